//! The vocabulary in which options are described. The checker walks a document with a description,
//! the reference page and the JSON Schema file are printed from it, so the three cannot disagree.
//!
//! Deliberately not here: the options themselves (`options.rs`).

use super::values::{TextRule, duration_text, size_text};
use crate::units::Millis;

/// One option.
#[derive(Debug)]
pub(super) struct Field {
    pub(super) key: &'static str,
    pub(super) kind: Kind,
    pub(super) preset: Preset,
    /// What it does and why its default is what it is, in one line of Markdown.
    pub(super) doc: &'static str,
}

/// One object of the document.
#[derive(Debug)]
pub(super) struct Section {
    /// Where it stands, for example `pools[].scrape`; empty for the document itself.
    pub(super) path: &'static str,
    pub(super) doc: &'static str,
    pub(super) fields: &'static [Field],
}

/// A list. Scalars in it must differ.
#[derive(Debug)]
pub(super) struct List {
    pub(super) of: Kind,
    /// What the items are, in plural.
    pub(super) noun: &'static str,
    pub(super) min: usize,
    pub(super) max: usize,
}

/// What a value must be.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Bool,
    Duration {
        min: Millis,
        max: Millis,
    },
    /// In bytes.
    Size {
        min: usize,
        max: usize,
    },
    Count {
        min: u64,
        max: u64,
    },
    Choice(&'static [&'static str]),
    Text(&'static TextRule),
    /// `ip:port`.
    Address,
    List(&'static List),
    Section(&'static Section),
    /// An object with exactly one of the section's keys.
    OneOf(&'static Section),
    /// Header name -> section. What stands below is never repeated in a message.
    Headers(&'static Section),
    /// A whole number that may be negative.
    Integer {
        min: i64,
        max: i64,
    },
}

/// What holds when the key is absent.
#[derive(Clone, Copy, Debug)]
pub(super) enum Preset {
    /// It must be there.
    Required,
    /// Nothing; the text says what that means.
    Unset(&'static str),
    Bool(bool),
    /// Milliseconds, bytes or a count, as the kind says.
    Number(u64),
    Integer(i64),
    Word(&'static str),
    /// `[]` or `{}`, as the kind says; the options of a section have their own presets.
    Empty,
}

impl Section {
    pub(super) fn field(&self, key: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.key == key)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &'static str> {
        self.fields.iter().map(|field| field.key)
    }
}

impl Kind {
    /// Completes "must be ...". Also the bounds in the reference.
    pub(super) fn describe(self) -> String {
        match self {
            Self::Bool => "`true` or `false`".to_owned(),
            Self::Duration { min, max } => {
                format!("a duration from {} to {}", duration_text(min), duration_text(max))
            }
            Self::Size { min, max } => {
                let text = |bytes: usize| size_text(bytes as u64);
                format!("a size from {} to {}", text(min), text(max))
            }
            Self::Count { min, max } => format!("a whole number from {min} to {max}"),
            Self::Choice(names) => {
                let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
                format!("one of {}", names.join(", "))
            }
            Self::Text(rule) => rule.says.to_owned(),
            Self::Address => "`ip:port` of one pod".to_owned(),
            Self::List(list) => format!("a list of {} to {} {}", list.min, list.max, list.noun),
            Self::Section(_) => "an object".to_owned(),
            Self::OneOf(section) => {
                let keys: Vec<String> = section.keys().map(|key| format!("`{key}`")).collect();
                format!("an object with exactly one of {}", keys.join(", "))
            }
            Self::Headers(_) => r#"an object of header names, each with `{"env": "VARIABLE"}`"#.to_owned(),
            Self::Integer { min, max } => format!("a whole number from {min} to {max}"),
        }
    }

    /// The section that stands below, if any.
    pub(super) fn section(self) -> Option<&'static Section> {
        match self {
            Self::Section(section) | Self::OneOf(section) | Self::Headers(section) => Some(section),
            Self::List(list) => list.of.section(),
            _ => None,
        }
    }
}

impl Field {
    /// The preset as the document would write it; `None` where nothing can be written.
    pub(super) fn literal(&self) -> Option<serde_json::Value> {
        Some(match (self.preset, self.kind) {
            (Preset::Required | Preset::Unset(_), _) => return None,
            (Preset::Bool(value), _) => value.into(),
            (Preset::Word(word), _) => word.into(),
            (Preset::Number(millis), Kind::Duration { .. }) => duration_text(Millis(millis)).into(),
            (Preset::Number(bytes), Kind::Size { .. }) => size_text(bytes).into(),
            (Preset::Number(number), _) => number.into(),
            (Preset::Integer(number), _) => number.into(),
            (Preset::Empty, Kind::List(_)) => serde_json::Value::Array(Vec::new()),
            (Preset::Empty, _) => serde_json::Value::Object(serde_json::Map::new()),
        })
    }
}
