//! A push scanner for JSON: bytes in any chunks, events out.
//!
//! It holds no text: a string passes through in pieces. It is not a validator: what an engine's
//! parser might refuse (control characters in strings, leading zeros) passes, broken structure
//! does not. Nesting is bounded, so a body of brackets costs nothing.
//!
//! ```text
//!  Start -{-> FirstKey -"-> Text -"-> Colon -:-> Value -"-> Text   -"-> After -,-> Key | Value
//!                 |          | \                  |    -0-> Scalar ---> After -]}-> After | Done
//!                 }        Escape -u-> Unicode    |    -[-> FirstItem
//!                 v                               |    -{-> FirstKey
//!               After                             anything else, anywhere -> Failed
//! ```

use super::kept::Kept;
use super::spans::plain_run;
use crate::limits::{BODY_DEPTH_MAX, SCALAR_MAX_BYTES};

/// What the scanner tells, in the order of the body.
pub(crate) trait Events {
    /// A string begins, with the quote that is byte `at` of the body; `key` = it is the key of a member.
    fn string(&mut self, key: bool, at: usize);
    /// A piece of it, escapes decoded, with the number of its bytes that are not ASCII.
    fn text(&mut self, piece: &[u8], other: usize);
    /// It ends; `end` is the byte after its quote.
    fn string_end(&mut self, end: usize);
    /// A number, `true`, `false` or `null`; empty when it is too long to mean anything.
    fn scalar(&mut self, text: &[u8]);
    /// An array or object begins.
    fn open(&mut self, array: bool);
    /// It ends.
    fn close(&mut self);
    /// Between two items or members.
    fn comma(&mut self);
    /// The last event was worth a stop of [`Scanner::feed_until`].
    fn stops(&self) -> bool {
        false
    }
}

/// Where the scanner stands between two bytes.
#[derive(Clone, Debug)]
pub(crate) struct Scanner {
    state: State,
    /// One bit per open container, the innermost lowest; set = array.
    arrays: u64,
    depth: u32,
    /// The string being read is a key.
    in_key: bool,
    /// A number or literal cut by the end of a chunk.
    held: Kept,
    /// The hex digits of `\u` so far, with a 1 in front.
    unit: u32,
    /// A high surrogate that waits for its low one.
    high: Option<u32>,
    /// Bytes of the body before this chunk, and before what is read now.
    before: usize,
    at: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Start,
    Value,
    FirstItem,
    FirstKey,
    Key,
    Colon,
    After,
    Text,
    Escape,
    Unicode,
    Scalar,
    Done,
    Failed,
}

impl Scanner {
    /// Before the first byte of a body that must be one object.
    pub(crate) fn new() -> Self {
        Self {
            state: State::Start,
            arrays: 0,
            depth: 0,
            in_key: false,
            held: Kept::default(),
            unit: 1,
            high: None,
            before: 0,
            at: 0,
        }
    }

    /// The object is closed.
    pub(crate) fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Something cannot be JSON; no more events will come.
    pub(crate) fn is_failed(&self) -> bool {
        self.state == State::Failed
    }

    /// Reads a chunk.
    pub(crate) fn feed(&mut self, chunk: &[u8], to: &mut impl Events) {
        let mut rest = chunk;
        while !rest.is_empty() {
            rest = rest.get(self.feed_until(rest, to)..).unwrap_or_default();
        }
    }

    /// Reads a chunk until the listener wants to stop. Returns how many bytes were read, at least one.
    pub(crate) fn feed_until(&mut self, chunk: &[u8], to: &mut impl Events) -> usize {
        let mut rest = chunk;
        while let Some((&byte, after)) = rest.split_first() {
            self.at = self.before.wrapping_add(chunk.len() - rest.len());
            rest = match self.state {
                State::Text => self.text(rest, to),
                State::Scalar => self.scalar(rest, to),
                State::Failed => &[],
                State::Escape => {
                    self.escape(byte, to);
                    after
                }
                State::Unicode => {
                    self.hex(byte, to);
                    after
                }
                _ => {
                    self.structure(byte, to);
                    // The first byte of a scalar belongs to the scalar.
                    if self.state == State::Scalar { rest } else { after }
                }
            };
            if to.stops() {
                break;
            }
        }
        let read = chunk.len() - rest.len();
        self.before = self.before.wrapping_add(read);
        read
    }

    fn structure(&mut self, byte: u8, to: &mut impl Events) {
        if matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
            return;
        }
        let in_array = self.arrays & 1 == 1;
        match (self.state, byte) {
            // A byte order mark.
            (State::Start, 0xEF | 0xBB | 0xBF) => {}
            (State::Start | State::Value | State::FirstItem, b'{') => self.open(false, to),
            (State::Value | State::FirstItem, b'[') => self.open(true, to),
            (State::Value | State::FirstItem, b'"') => self.string(false, to),
            (State::FirstKey | State::Key, b'"') => self.string(true, to),
            (State::Value | State::FirstItem, b'-' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z') => {
                self.held.clear();
                self.state = State::Scalar;
            }
            (State::Colon, b':') => self.state = State::Value,
            (State::After, b',') => {
                to.comma();
                self.state = if in_array { State::Value } else { State::Key };
            }
            (State::FirstItem, b']') | (State::FirstKey, b'}') => self.close(to),
            (State::After, b']') if in_array => self.close(to),
            (State::After, b'}') if !in_array => self.close(to),
            _ => self.state = State::Failed,
        }
    }

    fn open(&mut self, array: bool, to: &mut impl Events) {
        if self.depth >= BODY_DEPTH_MAX {
            self.state = State::Failed;
            return;
        }
        self.depth += 1;
        self.arrays = self.arrays << 1 | u64::from(array);
        self.state = if array { State::FirstItem } else { State::FirstKey };
        to.open(array);
    }

    fn close(&mut self, to: &mut impl Events) {
        self.depth = self.depth.saturating_sub(1);
        self.arrays >>= 1;
        self.state = if self.depth == 0 { State::Done } else { State::After };
        to.close();
    }

    fn string(&mut self, key: bool, to: &mut impl Events) {
        self.in_key = key;
        self.state = State::Text;
        to.string(key, self.at);
    }

    fn text<'c>(&mut self, chunk: &'c [u8], to: &mut impl Events) -> &'c [u8] {
        let (len, other) = plain_run(chunk);
        let Some((plain, rest)) = chunk.split_at_checked(len) else {
            return &[];
        };
        if !plain.is_empty() {
            self.flush_surrogate(to);
            to.text(plain, other);
        }
        match rest.split_first() {
            Some((b'"', after)) => {
                self.flush_surrogate(to);
                to.string_end(self.at.wrapping_add(len + 1));
                self.state = if self.in_key { State::Colon } else { State::After };
                after
            }
            // Bodies written in pure ASCII consist of these.
            Some((_, [b'u', a, b, c, d, after @ ..])) if [a, b, c, d].iter().all(|digit| digit.is_ascii_hexdigit()) => {
                let unit = [a, b, c, d]
                    .iter()
                    .fold(0, |unit, digit| unit << 4 | hex_value(**digit));
                self.code_unit(unit, to);
                after
            }
            Some((_, after)) => {
                self.state = State::Escape;
                after
            }
            None => rest,
        }
    }

    fn escape(&mut self, byte: u8, to: &mut impl Events) {
        let plain = match byte {
            b'"' | b'\\' | b'/' => byte,
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                self.unit = 1;
                self.state = State::Unicode;
                return;
            }
            _ => {
                self.state = State::Failed;
                return;
            }
        };
        self.flush_surrogate(to);
        to.text(&[plain], 0);
        self.state = State::Text;
    }

    fn hex(&mut self, byte: u8, to: &mut impl Events) {
        if !byte.is_ascii_hexdigit() {
            self.state = State::Failed;
            return;
        }
        self.unit = self.unit << 4 | hex_value(byte);
        if let Some(unit) = self.unit.checked_sub(0x1_0000) {
            self.state = State::Text;
            self.code_unit(unit, to);
        }
    }

    fn code_unit(&mut self, unit: u32, to: &mut impl Events) {
        match (self.high.take(), unit) {
            (Some(high), 0xDC00..=0xDFFF) => character(0x1_0000 + ((high - 0xD800) << 10) + (unit - 0xDC00), to),
            (high, _) => {
                self.high = high;
                self.flush_surrogate(to);
                match unit {
                    0xD800..=0xDBFF => self.high = Some(unit),
                    _ => character(unit, to),
                }
            }
        }
    }

    /// A high surrogate without its low one is no character.
    fn flush_surrogate(&mut self, to: &mut impl Events) {
        if let Some(high) = self.high.take() {
            character(high, to);
        }
    }

    fn scalar<'c>(&mut self, chunk: &'c [u8], to: &mut impl Events) -> &'c [u8] {
        let len = chunk
            .iter()
            .take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.'))
            .count();
        let Some((text, rest)) = chunk.split_at_checked(len) else {
            return &[];
        };
        if rest.is_empty() || !self.held.start().is_empty() || text.len() > SCALAR_MAX_BYTES {
            self.held.push(text, SCALAR_MAX_BYTES);
            if rest.is_empty() {
                return rest;
            }
        }
        self.state = State::After;
        let whole = if self.held.start().is_empty() {
            Some(text)
        } else {
            self.held.whole()
        };
        match whole {
            Some(text) if !is_scalar(text) => self.state = State::Failed,
            Some(text) => to.scalar(text),
            None => to.scalar(&[]),
        }
        rest
    }
}

fn hex_value(digit: u8) -> u32 {
    char::from(digit).to_digit(16).unwrap_or(0)
}

/// Passes a code point on; a lone surrogate as U+FFFD.
fn character(code: u32, to: &mut impl Events) {
    let character = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
    let mut buffer = [0; 4];
    let text = character.encode_utf8(&mut buffer).as_bytes();
    to.text(text, if character.is_ascii() { 0 } else { text.len() });
}

/// A number or one of the literals, also those of Python's parser.
fn is_scalar(text: &[u8]) -> bool {
    if text.iter().all(u8::is_ascii_digit)
        || matches!(text, b"true" | b"false" | b"null" | b"NaN" | b"Infinity" | b"-Infinity")
    {
        return true;
    }
    let numeric = text
        .iter()
        .all(|byte| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E'));
    numeric && core::str::from_utf8(text).is_ok_and(|text| text.parse::<f64>().is_ok())
}
