//! Reads a body in chunks, JSON or multipart, without holding it.

use super::json::Scanner;
use super::multipart::Multipart;
use super::walk::{Visit, Walk};
use super::{Api, Facts, PromptSink};

/// A body being read. Its memory is bounded, whatever is fed.
#[derive(Clone, Debug)]
pub struct BodyReader {
    api: Api,
    format: Format,
    /// The path alone asks for a stream (/generate_stream).
    stream: bool,
    bound: usize,
    /// Bytes fed so far.
    read: u64,
    /// What the head says the body has.
    declared: Option<u64>,
}

#[derive(Clone, Debug)]
enum Format {
    Json(Box<(Scanner, Walk)>),
    Multipart(Box<Multipart>),
}

impl BodyReader {
    /// Before the first byte of a JSON body.
    #[must_use]
    pub fn json(api: Api) -> Self {
        let format = Format::Json(Box::new((Scanner::new(), Walk::new(api))));
        Self {
            api,
            format,
            stream: false,
            bound: usize::MAX,
            read: 0,
            declared: None,
        }
    }

    /// Before the first byte of a multipart body, parted by `boundary`.
    #[must_use]
    pub fn multipart(api: Api, boundary: &[u8]) -> Self {
        Self {
            api,
            format: Format::Multipart(Box::new(Multipart::new(api, boundary))),
            stream: false,
            bound: usize::MAX,
            read: 0,
            declared: None,
        }
    }

    /// The path asks for a stream whatever the body says.
    pub(super) fn streaming(self, stream: bool) -> Self {
        Self { stream, ..self }
    }

    /// At most so many bytes may be held, of as many as the head declares.
    pub(super) fn bounded(self, bound: usize, declared: Option<u64>) -> Self {
        Self {
            bound,
            declared,
            ..self
        }
    }

    /// Bytes of the body after which it is decided by what was read, [`Self::facts`].
    #[must_use]
    pub const fn bound(&self) -> usize {
        self.bound
    }

    /// Which API this is.
    #[must_use]
    pub fn api(&self) -> Api {
        self.api
    }

    /// Reads the next chunk. Any split of a body gives the same facts.
    pub fn feed(&mut self, chunk: &[u8], sink: &mut impl PromptSink) {
        self.read = self.read.saturating_add(chunk.len() as u64);
        match &mut self.format {
            Format::Json(json) => {
                let (scanner, walk) = &mut **json;
                scanner.feed(chunk, &mut Visit { walk, sink });
            }
            Format::Multipart(multipart) => multipart.feed(chunk, sink),
        }
    }

    /// The facts of the whole body.
    #[must_use]
    pub fn finish(self) -> Facts {
        let complete = match &self.format {
            Format::Json(json) => json.0.is_done(),
            Format::Multipart(multipart) => multipart.is_done(),
        };
        Facts {
            complete,
            malformed: !complete,
            ..self.so_far()
        }
    }

    /// The facts so far, for a body that is cut at the hold bound: never `complete`. Of a declared length, the
    /// part that was not read counts as text like the part that was.
    #[must_use]
    pub fn facts(&self) -> Facts {
        let mut facts = self.so_far();
        let unread = self.declared.unwrap_or(0).saturating_sub(self.read);
        let scaled =
            |bytes: u64| bytes.saturating_add((bytes as f64 * (unread as f64 / self.read.max(1) as f64)) as u64);
        facts.prompt.ascii_bytes = scaled(facts.prompt.ascii_bytes);
        facts.prompt.other_bytes = scaled(facts.prompt.other_bytes);
        facts
    }

    fn so_far(&self) -> Facts {
        let (found, malformed) = match &self.format {
            Format::Json(json) => (&json.1.found, json.0.is_failed()),
            Format::Multipart(multipart) => (&multipart.found, multipart.is_failed()),
        };
        let facts = found.facts();
        Facts {
            stream: facts.stream || self.stream,
            malformed,
            ..facts
        }
    }
}
