//! Walks a document with its description and collects every error.
//!
//! What comes out has every option of the description in it, with its preset where the document is
//! silent, so that making the typed config from it cannot fail.

use core::net::SocketAddr;

use hashbrown::HashMap;

use super::ConfigError;
use super::json::{Json, quoted};
use super::options::{CALL_HEADER, DOCUMENT};
use super::schema::{Field, Kind, List, Preset, Section};
use super::values::{duration, nearest, size};
use crate::limits;
use crate::pod::PodAddress;

const HIDDEN: &str = "(not shown)";

/// A value, and its place in the order of the document.
#[derive(Debug)]
pub(super) struct Checked {
    pub(super) at: usize,
    pub(super) is: Is,
}

/// A value that was checked.
#[derive(Debug)]
pub(super) enum Is {
    /// Absent, without a default.
    Unset,
    /// An error was reported.
    Bad,
    Bool(bool),
    /// Milliseconds, bytes or a count.
    Number(u64),
    Integer(i64),
    Word(String),
    Address(PodAddress),
    List(Vec<Checked>),
    Record(Record),
    /// Header name -> where its value comes from.
    Headers(Vec<(String, Checked)>),
}

/// An object that was checked: every key of its section.
#[derive(Debug)]
pub(super) struct Record(Vec<(&'static str, Checked)>);

impl Record {
    pub(super) const EMPTY: Self = Self(Vec::new());

    pub(super) fn find(&self, key: &str) -> Option<&Checked> {
        self.0.iter().find(|(known, _)| *known == key).map(|(_, value)| value)
    }
}

/// Checks a whole document.
pub(super) fn document(json: &Json) -> (Checked, Report) {
    let mut walk = Walk::default();
    let checked = walk.value(Kind::Section(&DOCUMENT), json);
    (checked, walk.report)
}

/// The errors found so far.
#[derive(Debug, Default)]
pub(super) struct Report {
    errors: Vec<(usize, ConfigError)>,
}

impl Report {
    pub(super) fn add(&mut self, at: usize, path: String, value: String, rule: String) {
        if !self.full() {
            self.errors.push((at, ConfigError { path, value, rule }));
        }
    }

    /// One more than is shown, to know that there are more.
    fn full(&self) -> bool {
        self.errors.len() > limits::CONFIG_ERRORS_MAX
    }

    /// The errors in the order of the document.
    pub(super) fn finish(mut self) -> Vec<ConfigError> {
        self.errors.sort_by_key(|(at, _)| *at);
        let mut errors: Vec<ConfigError> = self.errors.into_iter().map(|(_, error)| error).collect();
        if errors.len() > limits::CONFIG_ERRORS_MAX {
            errors.truncate(limits::CONFIG_ERRORS_MAX);
            errors.push(ConfigError {
                path: "document".to_owned(),
                value: "more errors".to_owned(),
                rule: format!("only the first {} are shown", limits::CONFIG_ERRORS_MAX),
            });
        }
        errors
    }
}

#[derive(Default)]
struct Walk {
    path: String,
    at: usize,
    /// Values here may be secrets.
    hidden: bool,
    report: Report,
}

impl Walk {
    fn fail(&mut self, found: &Json, rule: String) {
        let value = if self.hidden { HIDDEN.to_owned() } else { found.shown() };
        self.note(value, rule);
    }

    fn note(&mut self, value: String, rule: String) {
        let path = if self.path.is_empty() { "document" } else { &self.path };
        self.report.add(self.at, path.to_owned(), value, rule);
    }

    fn inside<R>(&mut self, step: &str, act: impl FnOnce(&mut Self) -> R) -> R {
        let length = self.path.len();
        self.path.push_str(step);
        self.at += 1;
        let result = act(self);
        self.path.truncate(length);
        result
    }

    fn key<R>(&mut self, key: &str, act: impl FnOnce(&mut Self) -> R) -> R {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        let step = match key {
            "" => "[\"\"]".to_owned(),
            key if key.len() > limits::KEY_MAX_BYTES || !key.bytes().all(plain) => format!("[{}]", quoted(key)),
            key if self.path.is_empty() => key.to_owned(),
            key => format!(".{key}"),
        };
        self.inside(&step, act)
    }

    fn value(&mut self, kind: Kind, found: &Json) -> Checked {
        let at = self.at;
        let is = match (kind, found) {
            (Kind::Section(section), Json::Object(entries)) => Is::Record(self.record(section, entries)),
            (Kind::OneOf(section), Json::Object(entries)) => self.one_of(section, found, entries),
            (Kind::Headers(section), Json::Object(entries)) => self.headers(section, found, entries),
            (Kind::List(list), Json::List(items)) => self.list(list, found, items),
            _ => scalar(kind, found).unwrap_or_else(|rule| {
                self.fail(found, rule);
                Is::Bad
            }),
        };
        Checked { at, is }
    }

    fn record(&mut self, section: &Section, entries: &[(String, Json)]) -> Record {
        let mut record = Record::EMPTY;
        for (key, value) in entries {
            if self.report.full() {
                break;
            }
            self.key(key, |walk| match section.field(key) {
                None => walk.unknown(section, key, value),
                Some(field) if record.find(field.key).is_some() => {
                    walk.fail(value, "this key stands twice in its object; keep one".to_owned());
                }
                Some(field) => record.0.push((field.key, walk.value(field.kind, value))),
            });
        }
        for field in section.fields {
            if record.find(field.key).is_none() {
                let checked = self.absent(field);
                record.0.push((field.key, checked));
            }
        }
        record
    }

    fn absent(&mut self, field: &'static Field) -> Checked {
        let at = self.at;
        let is = match (field.preset, field.kind) {
            (Preset::Required, _) => {
                self.key(field.key, |walk| {
                    let rule = format!("required, must be {}", field.kind.describe());
                    walk.note("absent".to_owned(), rule);
                });
                Is::Bad
            }
            (Preset::Unset(_), _) => Is::Unset,
            (Preset::Bool(value), _) => Is::Bool(value),
            (Preset::Number(number), _) => Is::Number(number),
            (Preset::Integer(number), _) => Is::Integer(number),
            (Preset::Word(word), _) => Is::Word(word.to_owned()),
            (Preset::Empty, Kind::Section(section)) => Is::Record(self.record(section, &[])),
            (Preset::Empty, Kind::List(_)) => Is::List(Vec::new()),
            (Preset::Empty, Kind::Headers(_)) => Is::Headers(Vec::new()),
            (Preset::Empty, _) => Is::Unset,
        };
        Checked { at, is }
    }

    /// The value is not shown when it is a text: an unknown key may hold a secret.
    fn unknown(&mut self, section: &Section, key: &str, value: &Json) {
        let below = section.fields.iter().find_map(|field| {
            let inner = field
                .kind
                .section()
                .filter(|_| matches!(field.kind, Kind::Section(_)))?;
            inner.field(key).map(|known| format!("{}.{}", field.key, known.key))
        });
        let meant = below.or_else(|| nearest(key, section.keys()).map(str::to_owned));
        let rule = match meant {
            Some(meant) => format!("unknown key; did you mean `{meant}`?"),
            None => format!(
                "unknown key; known here: {}",
                section.keys().collect::<Vec<_>>().join(", ")
            ),
        };
        let value = if self.hidden || matches!(value, Json::Text(_)) {
            HIDDEN.to_owned()
        } else {
            value.shown()
        };
        self.note(value, rule);
    }

    fn one_of(&mut self, section: &'static Section, found: &Json, entries: &[(String, Json)]) -> Is {
        let named = section
            .keys()
            .filter(|known| entries.iter().any(|(key, _)| key == known));
        if named.count() != 1 {
            self.fail(found, format!("must be {}", Kind::OneOf(section).describe()));
        }
        Is::Record(self.record(section, entries))
    }

    fn headers(&mut self, section: &'static Section, found: &Json, entries: &[(String, Json)]) -> Is {
        if entries.len() > limits::CALL_HEADERS_MAX {
            self.fail(found, format!("must have at most {} headers", limits::CALL_HEADERS_MAX));
        }
        let outside = core::mem::replace(&mut self.hidden, true);
        let mut headers: Vec<(String, Checked)> = Vec::new();
        for (name, value) in entries.iter().take(limits::CALL_HEADERS_MAX) {
            let known = headers.iter().any(|(other, _)| other == name);
            let checked = self.key(name, |walk| walk.header(section, name, known, value));
            headers.push((name.clone(), checked));
        }
        self.hidden = outside;
        Is::Headers(headers)
    }

    fn header(&mut self, section: &'static Section, name: &str, known: bool, value: &Json) -> Checked {
        if known {
            self.fail(value, "this header stands twice; keep one".to_owned());
        }
        if !(CALL_HEADER.accepts)(name) {
            self.fail(value, format!("the key must be {}", CALL_HEADER.says));
        }
        if !matches!(value, Json::Object(_)) {
            let rule = r#"must be {"env": "VARIABLE"}: a header's value may be a secret, so it never stands in the config; it is read from a variable of the VM's environment"#;
            self.fail(value, rule.to_owned());
            return Checked {
                at: self.at,
                is: Is::Bad,
            };
        }
        self.value(Kind::Section(section), value)
    }

    fn list(&mut self, list: &'static List, found: &Json, items: &[Json]) -> Is {
        if !(list.min..=list.max).contains(&items.len()) {
            self.fail(found, format!("must be {}", Kind::List(list).describe()));
        }
        let mut first: HashMap<String, usize> = HashMap::new();
        let mut checked = Vec::new();
        for (index, item) in items.iter().take(list.max).enumerate() {
            let value = self.inside(&format!("[{index}]"), |walk| {
                let value = walk.value(list.of, item);
                if let Some(earlier) = scalar_text(&value.is).and_then(|text| first.insert(text, index)) {
                    walk.fail(
                        item,
                        format!("stands twice in this list, also at [{earlier}]; keep one"),
                    );
                }
                value
            });
            checked.push(value);
        }
        Is::List(checked)
    }
}

/// What makes two items of a list equal.
fn scalar_text(is: &Is) -> Option<String> {
    match is {
        Is::Word(word) => Some(word.clone()),
        Is::Address(address) => Some(identity(*address).to_string()),
        _ => None,
    }
}

/// The address that a proxy dials: `[::ffff:10.0.0.1]:80` is `10.0.0.1:80`.
pub(super) fn identity(address: PodAddress) -> SocketAddr {
    let socket = address.socket();
    SocketAddr::new(socket.ip().to_canonical(), socket.port())
}

/// Checks a value without parts.
///
/// # Errors
/// The rule that it breaks.
fn scalar(kind: Kind, found: &Json) -> Result<Is, String> {
    let must = || format!("must be {}", kind.describe());
    match (kind, found) {
        (_, Json::Null) => Err(format!("{}; null is no value, leave the key out", must())),
        (Kind::Bool, Json::Bool(value)) => Ok(Is::Bool(*value)),
        (Kind::Duration { min, max }, Json::Text(text)) => match duration(text) {
            Some(value) if (min..=max).contains(&value) => Ok(Is::Number(value.0)),
            Some(_) => Err(must()),
            None => Err(format!("{}: a whole number and ms, s or m, such as \"1500ms\"", must())),
        },
        (Kind::Duration { .. }, Json::Number(_)) => Err(format!(
            "{}: a text with its unit ms, s or m, such as \"1500ms\"; a bare number does not say which",
            must()
        )),
        (Kind::Size { min, max }, Json::Text(_) | Json::Number(_)) => {
            let bytes = match found {
                Json::Text(text) => size(text),
                _ => found.whole(),
            };
            match bytes {
                Some(bytes) if (min as u64..=max as u64).contains(&bytes) => Ok(Is::Number(bytes)),
                Some(_) => Err(must()),
                None => Err(format!(
                    "{}: bytes as a whole number, or a text such as \"768KiB\" or \"16MiB\"",
                    must()
                )),
            }
        }
        (Kind::Count { min, max }, Json::Number(_)) => match found.whole() {
            Some(number) if (min..=max).contains(&number) => Ok(Is::Number(number)),
            _ => Err(must()),
        },
        (Kind::Integer { min, max }, Json::Number(_)) => match found.integer() {
            Some(number) if (min..=max).contains(&number) => Ok(Is::Integer(number)),
            _ => Err(must()),
        },
        (Kind::Count { .. } | Kind::Integer { .. } | Kind::Bool, Json::Text(_)) => {
            Err(format!("{}, without quotes", must()))
        }
        (Kind::Choice(names), Json::Text(text)) => choice(names, text).map_err(|hint| must() + &hint),
        (Kind::Text(rule), Json::Text(text)) if (rule.accepts)(text) => Ok(Is::Word(text.clone())),
        (Kind::Address, Json::Text(text)) => address(text),
        _ => Err(must()),
    }
}

fn choice(names: &[&str], text: &str) -> Result<Is, String> {
    if names.contains(&text) {
        return Ok(Is::Word(text.to_owned()));
    }
    Err(match nearest(text, names.iter().copied()) {
        Some(meant) => format!("; did you mean `{meant}`?"),
        None => String::new(),
    })
}

fn address(text: &str) -> Result<Is, String> {
    let address: PodAddress = text.parse().map_err(|error| format!("{error}"))?;
    let ip = identity(address).ip();
    if ip.is_unspecified() {
        return Err("must be the address of one pod: 0.0.0.0 and [::] stand for every address".to_owned());
    }
    if ip.is_multicast() {
        return Err("must be the address of one pod: a multicast address stands for many".to_owned());
    }
    if text.contains('%') {
        return Err("must be ip:port without a scope: the proxy finds a pod by its exact address".to_owned());
    }
    Ok(Is::Address(address))
}
