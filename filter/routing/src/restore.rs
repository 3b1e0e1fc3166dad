//! The client's name for a model, put back into an answer that names the target of its rewrite.
//!
//! ```text
//!  JSON   ------------------------> scanner: "model" at the top, or in `response` / `message` -> held -> equal?
//!  SSE    line by line, `data:` -> a scanner per line                                              no: as it came
//!                                                                                                 yes: the client's
//! ```
//! Bytes go on as they come; only those that may be the name are held, as many as the target has, escaped. Every byte
//! but the name's stays. What is no JSON passes as it is. Deliberately not here: error texts that mention the target.

use crate::limits::KEY_MAX_BYTES;
use crate::request::json::{Events, Scanner};
use crate::request::media_type;

/// What an answer is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One JSON document.
    Json,
    /// A stream of server-sent events, each with a JSON document on one line.
    Events,
}

impl Format {
    /// By the content type; `None` = nothing is restored in it.
    #[must_use]
    pub fn of(content_type: &[u8]) -> Option<Self> {
        let kind = media_type(content_type);
        if kind.eq_ignore_ascii_case(b"application/json") {
            Some(Self::Json)
        } else if kind.eq_ignore_ascii_case(b"text/event-stream") {
            Some(Self::Events)
        } else {
            None
        }
    }
}

/// An answer on its way.
#[derive(Clone, Debug)]
pub struct Restorer {
    format: Format,
    line: Line,
    scanner: Scanner,
    names: Names,
    /// Bytes that wait for the end of what may be the name.
    held: Vec<u8>,
    /// The client's name as JSON.
    asked: Vec<u8>,
}

/// Where a line of an event stream stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// So many bytes of `data:` were there.
    Begins(usize),
    /// The rest of the line is a document.
    Data,
    /// The rest is something else.
    Other,
}

const DATA: &[u8] = b"data:";

impl Restorer {
    /// Before the first byte of an answer. `target` is what the pod was asked for, `asked` what the client said.
    #[must_use]
    pub fn new(format: Format, target: &str, asked: &str) -> Self {
        Self {
            format,
            line: Line::Begins(0),
            scanner: Scanner::new(),
            names: Names::new(target),
            held: Vec::new(),
            asked: serde_json::to_vec(asked).unwrap_or_default(),
        }
    }

    /// Takes a piece of the answer, and gives what goes on. Any split of an answer gives the same bytes in the end.
    #[must_use]
    pub fn feed(&mut self, piece: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(piece.len() + self.held.len());
        let mut rest = piece;
        while let Some(&byte) = rest.first() {
            if self.format == Format::Json {
                self.document(rest, &mut out);
                break;
            }
            let is_end = |byte: &u8| matches!(byte, b'\n' | b'\r');
            if is_end(&byte) {
                self.end_document(&mut out);
                out.push(byte);
                self.line = Line::Begins(0);
                rest = rest.get(1..).unwrap_or_default();
                continue;
            }
            let length = match self.line {
                Line::Begins(_) => 1,
                _ => rest.iter().position(is_end).unwrap_or(rest.len()),
            };
            let Some((part, after)) = rest.split_at_checked(length) else {
                break;
            };
            self.part(byte, part, &mut out);
            rest = after;
        }
        out
    }

    /// What is still held when the answer is over: an answer that ends inside of a name.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        core::mem::take(&mut self.held)
    }

    /// A part of one line.
    fn part(&mut self, first: u8, part: &[u8], out: &mut Vec<u8>) {
        match self.line {
            Line::Data => return self.document(part, out),
            Line::Other => {}
            Line::Begins(seen) if DATA.get(seen) == Some(&first) => {
                self.line = if seen + 1 == DATA.len() {
                    Line::Data
                } else {
                    Line::Begins(seen + 1)
                };
            }
            Line::Begins(_) => self.line = Line::Other,
        }
        out.extend(part);
    }

    /// A part of a document.
    fn document(&mut self, part: &[u8], out: &mut Vec<u8>) {
        let mut done = 0;
        // At each event that concerns the name the scanner is stopped, and the bytes before it are known to go on.
        while done < part.len() {
            let Some(rest) = part.get(done..) else { return };
            let read = self.scanner.feed_until(rest, &mut self.names);
            let (piece, _) = rest.split_at_checked(read).unwrap_or((rest, &[]));
            done += piece.len().max(1);
            if self.scanner.is_failed() {
                self.names.equal = None;
            }
            match self.names.take() {
                Found::Nothing if self.names.watching() => self.held.extend(piece),
                Found::Nothing => self.release(piece, out),
                // The quote that was read is the first byte held.
                Found::Begins => {
                    let (before, quote) = piece
                        .split_at_checked(piece.len().saturating_sub(1))
                        .unwrap_or((piece, &[]));
                    out.extend(before);
                    self.held.extend(quote);
                }
                Found::Equal => {
                    out.extend(&self.asked);
                    self.held.clear();
                }
                Found::Differs => self.release(piece, out),
            }
        }
    }

    fn release(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        out.append(&mut self.held);
        out.extend(piece);
    }

    fn end_document(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.held);
        self.scanner = Scanner::new();
        self.names.restart();
    }
}

/// What happened to a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Found {
    #[default]
    Nothing,
    /// A value that may be the name begins.
    Begins,
    /// It was the target.
    Equal,
    /// It was not.
    Differs,
}

/// Watches for names in the events of a document.
#[derive(Clone, Debug)]
struct Names {
    target: Vec<u8>,
    depth: usize,
    /// The last key at the top was `response` or `message`, and its object is open.
    inside: bool,
    key: Key,
    found: Found,
    /// Bytes of the target that the value being read equals so far.
    equal: Option<usize>,
}

#[derive(Clone, Debug, Default)]
struct Key {
    text: Vec<u8>,
    reading: bool,
    too_long: bool,
}

impl Names {
    fn new(target: &str) -> Self {
        Self {
            target: target.as_bytes().to_vec(),
            depth: 0,
            inside: false,
            key: Key::default(),
            found: Found::Nothing,
            equal: None,
        }
    }

    fn restart(&mut self) {
        (self.depth, self.inside, self.equal, self.found) = (0, false, None, Found::Nothing);
        self.key = Key::default();
    }

    fn take(&mut self) -> Found {
        core::mem::take(&mut self.found)
    }

    const fn watching(&self) -> bool {
        self.equal.is_some()
    }

    /// The object being read may name the model.
    fn names_model(&self) -> bool {
        self.depth == 1 || self.depth == 2 && self.inside
    }
}

impl Events for Names {
    fn string(&mut self, key: bool, _at: usize) {
        if key {
            self.key.text.clear();
            (self.key.reading, self.key.too_long) = (true, false);
        } else if self.names_model() && !self.key.too_long && self.key.text == b"model" {
            self.equal = Some(0);
            self.found = Found::Begins;
        }
    }

    fn text(&mut self, piece: &[u8], _other: usize) {
        if self.key.reading {
            let fits = self.key.text.len() + piece.len() <= KEY_MAX_BYTES;
            self.key.too_long |= !fits;
            if fits {
                self.key.text.extend(piece);
            }
        } else if let Some(seen) = self.equal {
            let rest = self.target.get(seen..).unwrap_or_default();
            self.equal = rest.starts_with(piece).then_some(seen + piece.len());
            if self.equal.is_none() {
                self.found = Found::Differs;
            }
        }
    }

    fn string_end(&mut self, _end: usize) {
        if core::mem::take(&mut self.key.reading) {
            return;
        }
        if let Some(seen) = self.equal.take() {
            self.found = if seen == self.target.len() {
                Found::Equal
            } else {
                Found::Differs
            };
        }
        self.key.text.clear();
    }

    fn scalar(&mut self, _text: &[u8]) {
        self.key.text.clear();
    }

    fn open(&mut self, array: bool) {
        if self.depth == 1 {
            self.inside = !array && (self.key.text == b"response" || self.key.text == b"message");
        }
        self.depth += 1;
        self.key.text.clear();
    }

    fn close(&mut self) {
        self.depth = self.depth.saturating_sub(1);
    }

    fn comma(&mut self) {}

    fn stops(&self) -> bool {
        self.found != Found::Nothing
    }
}

#[cfg(test)]
mod tests;
