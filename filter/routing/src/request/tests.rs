//! Facts of small bodies, thought through by hand, per API and per rule.

mod bodies;
mod heads;
mod multiparts;
mod sizes;
#[cfg(not(target_arch = "wasm32"))]
mod splits;

use super::*;

/// What reached the sink: text as it came, tokens as `<7>`, a further prompt as `<>`.
#[derive(Clone, Debug, Default, PartialEq)]
struct Heard {
    prompt: Vec<u8>,
    media: Vec<u8>,
}

impl PromptSink for Heard {
    fn text(&mut self, piece: &[u8]) {
        self.prompt.extend(piece);
    }
    fn token(&mut self, token: u32) {
        self.prompt.extend(format!("<{token}>").bytes());
    }
    fn media(&mut self, piece: &[u8]) {
        self.media.extend(piece);
    }
    fn next_prompt(&mut self) {
        self.prompt.extend(b"<>");
    }
}

fn feed_all<'a>(reader: &BodyReader, chunks: impl IntoIterator<Item = &'a [u8]>) -> (Facts, Heard) {
    let (mut reader, mut heard) = (reader.clone(), Heard::default());
    for chunk in chunks {
        reader.feed(chunk, &mut heard);
    }
    (reader.finish(), heard)
}

/// Reads a small body whole, byte by byte and cut in two at each place: all must agree.
#[track_caller]
fn read_by(reader: &BodyReader, body: &[u8]) -> (Facts, Heard) {
    let whole = feed_all(reader, [body]);
    assert_eq!(whole, feed_all(reader, body.chunks(1)), "byte by byte");
    for cut in 0..=body.len() {
        let (left, right) = body.split_at(cut);
        assert_eq!(whole, feed_all(reader, [left, right]), "cut at {cut}");
    }
    whole
}

#[track_caller]
fn read(api: Api, body: &str) -> Facts {
    read_by(&BodyReader::json(api), body.as_bytes()).0
}

/// The prompt as the sink heard it.
#[track_caller]
fn heard(api: Api, body: &str) -> String {
    let (facts, heard) = read_by(&BodyReader::json(api), body.as_bytes());
    assert!(facts.complete && !facts.malformed, "{facts:?}");
    String::from_utf8(heard.prompt).expect("UTF-8")
}
