//! Reads multipart/form-data (RFC 7578) in chunks: keeps the few fields that matter, skips files.
//!
//! A delimiter begins with CR, which no boundary contains, so a match that fails can start again
//! only at the byte that broke it.
//!
//! ```text
//!  Preamble --delimiter--> Delimited -line-> Headers -empty line-> Content
//!                           |     ^                                   |
//!                          "--"   +------------delimiter--------------+
//!                           v
//!                         Done (an epilogue is skipped)
//! ```

use super::found::Found;
use super::kept::Kept;
use super::keys::{Field, Part, Place, form};
use super::spans::{other_bytes, run_before};
use super::{Api, PromptSink};
use crate::limits::{KEPT_MAX_BYTES, PART_LINE_MAX_BYTES};

/// Where the reader stands between two bytes.
#[derive(Clone, Debug)]
pub(super) struct Multipart {
    pub(super) found: Found,
    state: State,
    /// CR LF, two hyphens, and the boundary.
    delimiter: Vec<u8>,
    /// Bytes of it that the last bytes of the content equal.
    matched: usize,
    /// The header line being read, or the value being kept.
    kept: Kept,
    part: Place,
    /// Bytes of the body before this chunk, before what is read now, and before the part's content.
    before: usize,
    at: usize,
    began: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Preamble,
    Delimited,
    Headers,
    Content,
    Done,
    Failed,
}

impl Multipart {
    /// Before the first byte. The size of an audio file says little about its length, so the file
    /// counts as one part of fixed cost, even before it is seen.
    pub(super) fn new(api: Api, boundary: &[u8]) -> Self {
        let mut found = Found::new(api);
        found.begin(Part::Audios);
        found.media();
        Self {
            found,
            state: State::Preamble,
            delimiter: [b"\r\n--", boundary].concat(),
            // The first delimiter needs no line break before it.
            matched: 2,
            kept: Kept::default(),
            part: Place::Skip,
            before: 0,
            at: 0,
            began: 0,
        }
    }

    /// The closing delimiter was seen.
    pub(super) fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// The body is no multipart body of this boundary.
    pub(super) fn is_failed(&self) -> bool {
        self.state == State::Failed
    }

    /// Reads a chunk.
    pub(super) fn feed(&mut self, chunk: &[u8], sink: &mut impl PromptSink) {
        let mut rest = chunk;
        while !rest.is_empty() {
            self.at = self.before.wrapping_add(chunk.len() - rest.len());
            rest = match self.state {
                State::Preamble | State::Content => self.content(rest, sink),
                State::Delimited | State::Headers => self.line(rest),
                State::Done | State::Failed => return,
            };
        }
        self.before = self.before.wrapping_add(chunk.len());
    }

    fn content<'c>(&mut self, chunk: &'c [u8], sink: &mut impl PromptSink) -> &'c [u8] {
        if self.matched == 0 {
            let Some((plain, rest)) = chunk.split_at_checked(run_before(b'\r', chunk)) else {
                return &[];
            };
            self.take(plain, sink);
            self.matched = usize::from(!rest.is_empty());
            return rest.get(1..).unwrap_or_default();
        }
        let Some((byte, after)) = chunk.split_first() else {
            return &[];
        };
        if self.delimiter.get(self.matched) == Some(byte) {
            self.matched += 1;
            if self.matched == self.delimiter.len() {
                self.end_part();
            }
            return after;
        }
        let delimiter = core::mem::take(&mut self.delimiter);
        self.take(delimiter.get(..self.matched).unwrap_or_default(), sink);
        self.delimiter = delimiter;
        self.matched = 0;
        chunk
    }

    /// Content of the part.
    fn take(&mut self, piece: &[u8], sink: &mut impl PromptSink) {
        match self.part {
            Place::Keep(_) => self.kept.push(piece, KEPT_MAX_BYTES),
            Place::Text => {
                self.found.text(piece.len(), other_bytes(piece));
                sink.text(piece);
            }
            _ => {}
        }
    }

    fn end_part(&mut self) {
        if let Place::Keep(field) = self.part {
            self.found.string(field, &self.kept);
            if field == Field::Model {
                // The byte read last ends the delimiter.
                let end = self.at.wrapping_add(1).wrapping_sub(self.delimiter.len());
                self.found.model_stands(self.began, end, false);
            }
        }
        self.part = Place::Skip;
        self.matched = 0;
        self.kept.clear();
        self.state = State::Delimited;
    }

    /// The rest of a delimiter line, or a header line.
    fn line<'c>(&mut self, chunk: &'c [u8]) -> &'c [u8] {
        let Some((piece, rest)) = chunk.split_at_checked(run_before(b'\n', chunk)) else {
            return &[];
        };
        self.kept.push(piece, PART_LINE_MAX_BYTES);
        if self.state == State::Delimited && self.kept.start().starts_with(b"--") {
            self.state = State::Done;
        } else if !rest.is_empty() {
            let kept = core::mem::take(&mut self.kept);
            self.end_line(kept.start().trim_ascii());
            self.began = self.at.wrapping_add(piece.len() + 1);
            self.kept = kept;
            self.kept.clear();
        }
        rest.get(1..).unwrap_or_default()
    }

    fn end_line(&mut self, line: &[u8]) {
        self.state = match (self.state, line) {
            (State::Delimited, []) => State::Headers,
            (State::Headers, []) => State::Content,
            (State::Headers, line) => {
                self.header(line);
                State::Headers
            }
            _ => State::Failed,
        };
    }

    fn header(&mut self, line: &[u8]) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            return;
        };
        let Some((name, value)) = line.split_at_checked(colon) else {
            return;
        };
        if !name.eq_ignore_ascii_case(b"content-disposition") {
            return;
        }
        let is_file = parameter(value, b"filename")
            .or_else(|| parameter(value, b"filename*"))
            .is_some();
        self.part = if is_file {
            Place::Skip
        } else {
            parameter(value, b"name").map_or(Place::Skip, form)
        };
        if self.part == Place::Text {
            self.found.begin(Part::Prompt);
        }
    }
}

/// A parameter of a header value such as `multipart/form-data; boundary="x"`.
pub(super) fn parameter<'a>(value: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let mut quoted = false;
    let sections = value.split(|byte| {
        quoted ^= *byte == b'"';
        *byte == b';' && !quoted
    });
    sections.skip(1).find_map(|section| {
        let equals = section.iter().position(|byte| *byte == b'=')?;
        let (key, value) = section.split_at_checked(equals)?;
        let value = value.get(1..)?.trim_ascii();
        let value = value
            .strip_prefix(b"\"")
            .and_then(|value| value.strip_suffix(b"\""))
            .unwrap_or(value);
        key.trim_ascii().eq_ignore_ascii_case(name).then_some(value)
    })
}
