//! JSON as it stands in the document: entries in their order, every key of an object, also a second
//! one of the same name.
//!
//! `serde_json::Value` keeps only the last of two equal keys, so a mistyped copy of a section would
//! win in silence. Deliberately not here: what any key means.

use core::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Number;

use super::ConfigError;
use crate::limits::{DOCUMENT_DEPTH_MAX, DOCUMENT_MAX_BYTES, SHOWN_VALUE_MAX_CHARS};

const TOO_DEEP: &str = "nested too deep";

/// One JSON value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Json {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    /// The value in few characters, safe to print: long texts are cut, odd characters escaped.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Bool(value) => value.to_string(),
            Self::Number(value) => value.to_string(),
            Self::Text(text) => quoted(text),
            Self::List(items) => format!("[...] ({} items)", items.len()),
            Self::Object(entries) => format!("{{...}} ({} keys)", entries.len()),
        }
    }

    /// A whole number. `8000.0` is one: numbers that come through a protobuf `Struct` are doubles.
    pub(super) fn whole(&self) -> Option<u64> {
        const EXACT: f64 = 9_007_199_254_740_992.0;
        let Self::Number(number) = self else { return None };
        let exact = |value: &f64| value.fract() == 0.0 && (0.0..=EXACT).contains(value);
        number
            .as_u64()
            .or_else(|| number.as_f64().filter(exact).map(|value| value as u64))
    }

    /// A whole number that may be negative; `-1.0` is one, as above.
    pub(super) fn integer(&self) -> Option<i64> {
        const EXACT: f64 = 9_007_199_254_740_992.0;
        let Self::Number(number) = self else { return None };
        let exact = |value: &f64| value.fract() == 0.0 && value.abs() <= EXACT;
        number
            .as_i64()
            .or_else(|| number.as_f64().filter(exact).map(|value| value as i64))
    }
}

/// A text in quotes, cut and escaped.
pub(super) fn quoted(text: &str) -> String {
    let mut cut: String = text.chars().take(SHOWN_VALUE_MAX_CHARS).collect();
    if cut.len() < text.len() {
        cut.push_str("...");
    }
    format!("{cut:?}")
}

/// Reads a document.
///
/// # Errors
/// Why the bytes are not JSON, where, and what to do.
pub(super) fn parse(document: &[u8]) -> Result<Json, ConfigError> {
    let whole = |value: String, rule: String| ConfigError {
        path: "document".to_owned(),
        value,
        rule,
    };
    if document.len() > DOCUMENT_MAX_BYTES {
        let rule = format!("must have at most {DOCUMENT_MAX_BYTES} bytes");
        return Err(whole(format!("{} bytes", document.len()), rule));
    }
    if document.trim_ascii().is_empty() {
        let rule = r#"must be a JSON object, at least {"pools": [{"name": "llama", "discovery": {"static": ["10.0.0.1:8000"]}}]}"#;
        return Err(whole("empty".to_owned(), rule.to_owned()));
    }
    let mut deserializer = serde_json::Deserializer::from_slice(document);
    Depth(0)
        .deserialize(&mut deserializer)
        .and_then(|json| deserializer.end().map(|()| json))
        .map_err(|error| syntax_error(document, &error))
}

fn syntax_error(document: &[u8], error: &serde_json::Error) -> ConfigError {
    let text = error.to_string();
    let said = text.split(" at line ").next().unwrap_or_default();
    ConfigError {
        path: format!("line {} column {}", error.line(), error.column().max(1)),
        value: match found(document, error) {
            _ if error.is_eof() => "end of the document".to_owned(),
            Some(character) => format!("{character:?}"),
            None => "line break".to_owned(),
        },
        rule: format!("not JSON ({said}): {}", remedy(document, said)),
    }
}

/// The character that the error points at; column 0 is the line break before. No more of the line: there may be a secret in it.
fn found(document: &[u8], error: &serde_json::Error) -> Option<char> {
    let line = document
        .split(|byte| *byte == b'\n')
        .nth(error.line().checked_sub(1)?)?;
    let rest = line.get(error.column().checked_sub(1)?..)?;
    let start = rest.get(..rest.len().min(4))?;
    String::from_utf8_lossy(start).chars().next()
}

fn remedy(document: &[u8], said: &str) -> &'static str {
    /// Part of serde_json's message, and what to do then.
    const REMEDIES: [(&str, &str); 14] = [
        (TOO_DEEP, "no option stands this deep; check the brackets"),
        (
            "EOF",
            "the document ends too early; close every quote, bracket and brace",
        ),
        ("trailing comma", "remove the comma before the closing bracket"),
        (
            "trailing characters",
            "the document ends here; remove what follows, or check the brackets",
        ),
        ("expected `:`", "write a colon between a key and its value"),
        (
            "expected `,`",
            "write a comma between two entries, or close what was opened",
        ),
        (
            "key must be",
            "keys stand in double quotes; JSON has no comments and no trailing commas",
        ),
        (
            "control character",
            "a text ends on its line; write a line break as \\n and a tab as \\t",
        ),
        ("escape", "write a backslash inside a text as \\\\"),
        ("surrogate", "write the character itself instead of an escape"),
        ("unicode", "save the document as UTF-8"),
        (
            "number",
            "write digits only, without leading zero, plus sign or unit; a value with a unit is a text",
        ),
        (
            "expected value",
            "write a value: text stands in double quotes, JSON has no comments",
        ),
        ("expected ident", "only true, false and null stand without quotes"),
    ];
    if document.starts_with(b"\xef\xbb\xbf") {
        return "remove the byte order mark at the start of the file";
    }
    if !document.trim_ascii_start().starts_with(b"{") {
        return "the document is one JSON object and starts with {; convert YAML to JSON first";
    }
    let known = REMEDIES.iter().find(|(part, _)| said.contains(part));
    known.map_or("check this place", |(_, remedy)| remedy)
}

/// Depth of the value to be read. Carries the bound through the recursion.
#[derive(Clone, Copy)]
struct Depth(usize);

impl Depth {
    fn deeper<E: Error>(self) -> Result<Self, E> {
        if self.0 >= DOCUMENT_DEPTH_MAX {
            return Err(E::custom(TOO_DEEP));
        }
        Ok(Self(self.0 + 1))
    }
}

impl<'de> DeserializeSeed<'de> for Depth {
    type Value = Json;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Json, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Depth {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }
    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }
    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }
    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }
    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }
    fn visit_f64<E: Error>(self, value: f64) -> Result<Json, E> {
        let number = Number::from_f64(value).ok_or_else(|| E::custom("number out of range"))?;
        Ok(Json::Number(number))
    }
    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json::Text(value.to_owned()))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Json, A::Error> {
        let inner = self.deeper()?;
        let mut items = Vec::new();
        while let Some(item) = list.next_element_seed(inner)? {
            items.push(item);
        }
        Ok(Json::List(items))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
        let inner = self.deeper()?;
        let mut entries = Vec::new();
        while let Some(key) = map.next_key()? {
            entries.push((key, map.next_value_seed(inner)?));
        }
        Ok(Json::Object(entries))
    }
}
