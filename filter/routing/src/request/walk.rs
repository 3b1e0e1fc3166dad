//! From the events of a JSON body to what was found: keeps the place in the document and sends
//! each value where it belongs.

use super::found::{Found, number};
use super::json::Events;
use super::kept::Kept;
use super::keys::{self, Field, Part, Place};
use super::{Api, PromptSink};
use crate::limits::{KEPT_MAX_BYTES, KEY_MAX_BYTES};

/// The place in the document.
#[derive(Clone, Debug)]
pub(super) struct Walk {
    api: Api,
    pub(super) found: Found,
    /// Open containers, outermost first; the scanner bounds their number.
    stack: Vec<Container>,
    /// What the value of the last key means.
    next: Place,
    /// The part of the prompt that the value of the last top key would begin.
    part: Option<Part>,
    target: Target,
    kept: Kept,
    /// Where the string being read began.
    began: usize,
}

#[derive(Clone, Copy, Debug)]
struct Container {
    place: Place,
    array: bool,
}

/// Where the pieces of the string being read go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Nowhere,
    Key,
    Keep(Field),
    Text,
    JsonKey,
    JsonText,
    Media,
}

/// A walk with the sink of this chunk.
pub(super) struct Visit<'a, S> {
    pub(super) walk: &'a mut Walk,
    pub(super) sink: &'a mut S,
}

impl Walk {
    pub(super) fn new(api: Api) -> Self {
        Self {
            api,
            found: Found::new(api),
            stack: Vec::new(),
            next: Place::Root,
            part: None,
            target: Target::Nowhere,
            kept: Kept::default(),
            began: 0,
        }
    }

    /// What the value that begins now means.
    fn place(&self) -> Place {
        match self.stack.last() {
            Some(container) if container.array => item(container.place),
            // The keys inside of these are not looked at.
            Some(Container {
                place: Place::Text | Place::Json,
                ..
            }) => Place::Json,
            Some(Container {
                place: Place::MediaInner,
                ..
            }) => Place::MediaInner,
            _ => self.next,
        }
    }

    /// What the value of this key means.
    fn member(&mut self, key: &[u8]) -> Place {
        match self.container() {
            Place::Root => {
                let (place, part) = keys::root(self.api, key);
                self.part = part;
                place
            }
            Place::Params => keys::params(key),
            Place::Source => keys::source(key),
            Place::Metadata => keys::metadata(key),
            place if is_block(place) => keys::block(key),
            _ => Place::Skip,
        }
    }

    fn container(&self) -> Place {
        self.stack.last().map_or(Place::Skip, |container| container.place)
    }

    /// A value other than a scalar begins: at the top it may begin a part of the prompt.
    fn begin(&mut self) {
        if let (1, Some(part)) = (self.stack.len(), self.part) {
            self.found.begin(part);
        }
    }

    fn source_data(&self) -> Place {
        if self.found.source_is_text {
            Place::Text
        } else {
            Place::Media
        }
    }
}

impl<S: PromptSink> Visit<'_, S> {
    fn emit(&mut self, text: &[u8], other: usize) {
        self.walk.found.text(text.len(), other);
        self.sink.text(text);
    }

    fn prompt(&mut self) {
        self.walk.found.prompt();
        self.sink.next_prompt();
    }

    fn token(&mut self, text: &[u8]) {
        if let Some(token) = number(text) {
            self.walk.found.token();
            self.sink.token(u32::try_from(token).unwrap_or(u32::MAX));
        }
    }

    fn string_value(&mut self, place: Place) -> Target {
        match place {
            Place::Keep(field) => {
                self.walk.kept.clear();
                return Target::Keep(field);
            }
            Place::Text | Place::Content | Place::Token => {}
            Place::Turns | Place::Turn => self.walk.found.message(),
            Place::Prompt | Place::PromptItem => self.prompt(),
            Place::Json => {
                self.emit(b"\"", 0);
                return Target::JsonText;
            }
            Place::SourceData => return self.string_value(self.walk.source_data()),
            Place::Media | Place::Source => {
                self.walk.found.media();
                return Target::Media;
            }
            Place::MediaInner => return Target::Media,
            Place::Hidden => {
                self.walk.found.hidden = true;
                return Target::Nowhere;
            }
            Place::Skip | Place::Root | Place::Params | Place::Block | Place::Metadata => return Target::Nowhere,
        }
        Target::Text
    }

    fn key(&mut self) -> Target {
        match self.walk.container() {
            Place::Text | Place::Json => {
                self.emit(b"\"", 0);
                Target::JsonKey
            }
            Place::Skip | Place::MediaInner | Place::Hidden | Place::Keep(_) => Target::Nowhere,
            _ => {
                self.walk.kept.clear();
                Target::Key
            }
        }
    }
}

impl<S: PromptSink> Events for Visit<'_, S> {
    fn string(&mut self, key: bool, at: usize) {
        self.walk.began = at;
        self.walk.target = if key {
            self.key()
        } else {
            self.walk.begin();
            self.string_value(self.walk.place())
        };
    }

    fn text(&mut self, piece: &[u8], other: usize) {
        match self.walk.target {
            Target::Nowhere => {}
            Target::Key => self.walk.kept.push(piece, KEY_MAX_BYTES),
            Target::Keep(_) => self.walk.kept.push(piece, KEPT_MAX_BYTES),
            Target::Text | Target::JsonKey | Target::JsonText => self.emit(piece, other),
            Target::Media => self.sink.media(piece),
        }
    }

    fn string_end(&mut self, end: usize) {
        match self.walk.target {
            Target::Key => {
                let kept = core::mem::take(&mut self.walk.kept);
                self.walk.next = kept.whole().map_or(Place::Skip, |key| self.walk.member(key));
                self.walk.kept = kept;
            }
            Target::Keep(field) => {
                self.walk.found.string(field, &self.walk.kept);
                if field == Field::Model {
                    self.walk.found.model_stands(self.walk.began, end, true);
                }
            }
            Target::JsonKey => self.emit(b"\":", 0),
            Target::JsonText => self.emit(b"\"", 0),
            Target::Nowhere | Target::Text | Target::Media => {}
        }
    }

    fn scalar(&mut self, text: &[u8]) {
        match self.walk.place() {
            Place::Keep(field) => self.walk.found.scalar(field, text),
            Place::Json => self.emit(text, 0),
            Place::PromptItem => {
                if self.walk.found.prompts() == 0 {
                    self.prompt();
                }
                self.token(text);
            }
            Place::Token => self.token(text),
            _ => {}
        }
    }

    fn open(&mut self, array: bool) {
        let mut place = self.walk.place();
        self.walk.begin();
        if place == Place::SourceData {
            place = self.walk.source_data();
        }
        match place {
            Place::Text | Place::Json => self.emit(if array { b"[" } else { b"{" }, 0),
            Place::Turn => self.walk.found.message(),
            Place::PromptItem => self.prompt(),
            Place::Prompt if !array => self.prompt(),
            Place::Media if !array => self.walk.found.media(),
            Place::Hidden => self.walk.found.hidden = true,
            Place::Source => self.walk.found.source_is_text = false,
            _ => {}
        }
        // Inside of one media object all is part of it.
        let place = if place == Place::Media && !array {
            Place::MediaInner
        } else {
            place
        };
        self.walk.stack.push(Container { place, array });
        self.walk.next = Place::Skip;
    }

    fn close(&mut self) {
        if let Some(Container {
            place: Place::Text | Place::Json,
            array,
        }) = self.walk.stack.pop()
        {
            self.emit(if array { b"]" } else { b"}" }, 0);
        }
    }

    fn comma(&mut self) {
        if matches!(self.walk.container(), Place::Text | Place::Json) {
            self.emit(b",", 0);
        }
    }
}

/// What the items of an array mean.
fn item(array: Place) -> Place {
    match array {
        Place::Text | Place::Json => Place::Json,
        Place::Turns => Place::Turn,
        Place::Prompt => Place::PromptItem,
        Place::PromptItem | Place::Token => Place::Token,
        // A batch of SGLang names one adapter per prompt; the last one stands for all.
        Place::Keep(Field::Adapter) => Place::Keep(Field::Adapter),
        Place::Content | Place::Block | Place::Media | Place::MediaInner | Place::Params => array,
        Place::Turn => Place::Content,
        _ => Place::Skip,
    }
}

/// Whether the objects of this place have the keys of a message or a part.
fn is_block(place: Place) -> bool {
    matches!(
        place,
        Place::Turns | Place::Turn | Place::Content | Place::Block | Place::Prompt | Place::PromptItem | Place::Token
    )
}
