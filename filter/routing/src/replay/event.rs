//! A line of the replay protocol -> an event. What is not known is named, and skipped.

use berth_shared_state::pod::PodAddress;
use serde_json::{Map, Value};

/// The kinds of events, and the fields that each may have.
const KINDS: [(&str, &[&str]); 7] = [
    ("pods", &["name", "address"]),
    ("scrape", &["pod", "status", "body", "error"]),
    ("models", &["pod", "status", "body", "error"]),
    ("request", &["id", "path", "headers", "body"]),
    ("first_token", &["id"]),
    ("token", &["id"]),
    ("done", &["id", "status", "error"]),
];

/// An id of a request: a string or a number, echoed as it came.
pub(super) type Id = Value;

/// One line, understood.
#[derive(Debug, PartialEq)]
pub(super) struct Line {
    /// Milliseconds since the start, as given; `None` = not given, so nothing has passed.
    pub t: Option<f64>,
    /// The pool that `pods` are of; `None` = by their addresses.
    pub pool: Option<String>,
    pub event: Event,
    /// What was skipped: one text per line of input.
    pub skipped: Vec<String>,
}

#[derive(Debug, PartialEq)]
pub(super) enum Event {
    Pods(Vec<(Option<String>, PodAddress)>),
    Scrape(PodAddress, Answer),
    Models(PodAddress, Answer),
    Request(Request),
    FirstToken(Id),
    Token(Id),
    Done(Id, Option<u16>, bool),
}

/// What a call came to.
#[derive(Debug, PartialEq)]
pub(super) enum Answer {
    Page { status: u16, body: String },
    Failed { error: String },
}

#[derive(Debug, Default, PartialEq)]
pub(super) struct Request {
    pub id: Id,
    pub path: Option<String>,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

/// Reads a line.
///
/// # Errors
/// Why the whole line is skipped.
pub(super) fn read(line: &str) -> Result<Line, String> {
    let line: Map<String, Value> = serde_json::from_str(line).map_err(|error| format!("not a JSON object: {error}"))?;
    let t = line.get("t").and_then(Value::as_f64);
    let kinds: Vec<_> = KINDS
        .iter()
        .filter_map(|(kind, fields)| Some((*kind, *fields, line.get(*kind)?)))
        .collect();
    let (kind, known, value) = match kinds.as_slice() {
        [one] => *one,
        [] => {
            return Err(format!(
                "no known event; known are {}",
                KINDS.map(|(kind, _)| kind).join(", ")
            ));
        }
        _ => return Err("several events in one line".to_owned()),
    };
    let mut skipped = unknown(&line, &["t", "pool", kind]);
    let event = match kind {
        "pods" => pods(value, known, &mut skipped)?,
        _ => {
            let fields = value.as_object().ok_or_else(|| format!("{kind} must be an object"))?;
            skipped.extend(unknown(fields, known));
            event(kind, fields, &mut skipped)?
        }
    };
    let pool = line.get("pool").and_then(Value::as_str).map(str::to_owned);
    Ok(Line {
        t,
        pool,
        event,
        skipped,
    })
}

fn unknown(fields: &Map<String, Value>, known: &[&str]) -> Vec<String> {
    fields
        .keys()
        .filter(|key| !known.contains(&key.as_str()))
        .cloned()
        .collect()
}

fn pods(value: &Value, known: &[&str], skipped: &mut Vec<String>) -> Result<Event, String> {
    let list = value.as_array().ok_or("pods must be an array")?;
    let mut pods = Vec::with_capacity(list.len());
    for pod in list {
        let fields = pod.as_object().ok_or("each of pods must be an object")?;
        skipped.extend(unknown(fields, known));
        let name = fields.get("name").and_then(Value::as_str).map(str::to_owned);
        pods.push((name, address(fields, "address")?));
    }
    Ok(Event::Pods(pods))
}

fn event(kind: &str, fields: &Map<String, Value>, skipped: &mut Vec<String>) -> Result<Event, String> {
    match kind {
        "scrape" => Ok(Event::Scrape(address(fields, "pod")?, answer(fields)?)),
        "models" => Ok(Event::Models(address(fields, "pod")?, answer(fields)?)),
        "first_token" => Ok(Event::FirstToken(id(fields)?)),
        "token" => Ok(Event::Token(id(fields)?)),
        "done" => Ok(Event::Done(id(fields)?, status(fields), fields.contains_key("error"))),
        _ => Ok(Event::Request(Request {
            id: id(fields)?,
            path: fields.get("path").and_then(Value::as_str).map(str::to_owned),
            headers: headers(fields.get("headers"), skipped),
            body: text(fields.get("body")),
        })),
    }
}

fn id(fields: &Map<String, Value>) -> Result<Id, String> {
    let id = fields.get("id").filter(|id| id.is_string() || id.is_number());
    id.cloned().ok_or_else(|| "id must be a string or a number".to_owned())
}

fn address(fields: &Map<String, Value>, key: &str) -> Result<PodAddress, String> {
    let text = fields
        .get(key)
        .and_then(Value::as_str)
        .ok_or_else(|| format!("{key} must be a string"))?;
    text.parse().map_err(|error| format!("{key} {text:?}: {error}"))
}

fn status(fields: &Map<String, Value>) -> Option<u16> {
    let status = fields.get("status")?.as_f64()?;
    (0.0..=f64::from(u16::MAX)).contains(&status).then_some(status as u16)
}

/// Text as it is; anything else as its JSON.
fn text(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

fn answer(fields: &Map<String, Value>) -> Result<Answer, String> {
    match fields.get("error") {
        Some(error) => Ok(Answer::Failed {
            error: text(Some(error)),
        }),
        None => Ok(Answer::Page {
            status: status(fields).ok_or("neither status nor error")?,
            body: text(fields.get("body")),
        }),
    }
}

/// A request is answered whatever its headers are: bad ones are skipped.
fn headers(value: Option<&Value>, skipped: &mut Vec<String>) -> Vec<(String, String)> {
    let list = value.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let pair = |header: &Value| match header.as_array()?.as_slice() {
        [name, value] => Some((name.as_str()?.to_owned(), value.as_str()?.to_owned())),
        _ => None,
    };
    let pairs: Vec<_> = list.iter().filter_map(pair).collect();
    if pairs.len() < list.len() {
        skipped.push("headers that are not [name, value]".to_owned());
    }
    pairs
}
