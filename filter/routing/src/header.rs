//! A decision as the proxy and the client see it: header values and the bodies of refusals.
//!
//! Values only. Which header gets which value, and what is removed first, is up to the glue.

use std::borrow::Cow;

use berth_shared_state::limits::{DECISION_HEADER_MAX_BYTES, ENDPOINTS_MAX};
use berth_shared_state::names::REASON;
use berth_shared_state::pod::PodAddress;
use serde_json::json;

use crate::decision::{Action, Decision, Reason, Refusal, shortened};
use crate::request::{Api, prefers_anthropic_errors, valid_header_name};

#[cfg(test)]
mod tests;

/// Seconds after which a client may ask again: a few scrapes, so that there is something new to say.
const RETRY_AFTER: &str = "2";

/// The value of `x-gateway-destination-endpoint`: `ip:port,ip:port`, best first.
///
/// It always names [`ENDPOINTS_MAX`] attempts, beginning anew where there are fewer pods. A proxy that
/// comes to the end of the list asks its own balancer, which knows neither adapters nor the subset: a pod
/// that answers 429 would be retried at one that answers 404.
#[must_use]
pub fn destination(endpoints: &[PodAddress]) -> String {
    let mut out = String::with_capacity(64);
    for pod in endpoints.iter().cycle().take(ENDPOINTS_MAX) {
        if !out.is_empty() {
            out.push(',');
        }
        pod.with_text(|text| out.push_str(text));
    }
    out
}

/// A model's name as a header value; `None` where it cannot be one.
#[must_use]
pub fn model(name: &str) -> Option<&str> {
    valid_header_name(name).then_some(name)
}

/// The value of `x-berth-decision`: `key=value` joined by `;`, visible ASCII, at most
/// [`DECISION_HEADER_MAX_BYTES`]. Nothing in it comes from the client. Costs and terms are
/// milliseconds, `cached` is prompt tokens.
#[must_use]
pub fn decision(decision: &Decision) -> String {
    let mut out = line(decision);
    out.truncate(DECISION_HEADER_MAX_BYTES);
    out
}

/// `key=value;` one behind the other. Formatting costs a decision more than what it says does, so it is pushed.
struct Line(String);

impl Line {
    fn text(&mut self, key: &str, value: &str) {
        for piece in [key, "=", value, ";"] {
            self.0.push_str(piece);
        }
    }

    fn pod(&mut self, key: &str, pod: PodAddress) {
        pod.with_text(|text| self.text(key, text));
    }

    fn number(&mut self, key: &str, value: i64) {
        self.0.push_str(key);
        self.0.push('=');
        push(&mut self.0, value);
        self.0.push(';');
    }
}

/// Digits of the longest number.
const DIGITS: usize = "18446744073709551615".len();

/// Pushes a number.
fn push(out: &mut String, value: i64) {
    if value < 0 {
        out.push('-');
    }
    let mut left = value.unsigned_abs();
    let mut text = [0; DIGITS];
    let mut free = text.iter_mut();
    while let Some(place) = free.next_back() {
        *place = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    let from = free.len();
    let digits = text.get(from..).unwrap_or_default();
    out.push_str(core::str::from_utf8(digits).unwrap_or_default());
}

fn line(decision: &Decision) -> String {
    let mut out = Line(String::with_capacity(256));
    let why = &decision.why;
    match &decision.action {
        Action::Route { endpoints, booking } => {
            if let Some(pod) = endpoints.first() {
                out.pod("pod", *pod);
            }
            out.number("predicted", saturated(booking.predicted.0));
        }
        Action::Reply(refusal) => {
            out.number("reply", refusal.status.into());
            out.text("reason", refusal.reason.as_str());
        }
        Action::Pass(reason) => out.text("pass", reason.as_str()),
        Action::Hold => out.0.push_str("hold;"),
    }
    if let Some(priority) = why.priority {
        out.number("priority", priority.into());
    }
    if let Some(waited) = why.waited {
        out.number("waited", saturated(waited.0));
    }
    // The target of a rewrite, a name of the config, and the only text here that may hold anything.
    if let (Some(_), Some(name)) = (&why.asked, &why.model)
        && let Some(target) = model(name)
        && !target.contains(';')
    {
        out.text("target", target);
    }
    if let Some(first) = why.considered.first() {
        out.number("cost", whole(first.cost));
        for (term, value) in first.terms.named().into_iter().filter(|(_, value)| *value >= 0.5) {
            out.number(term, whole(value));
        }
        if first.cached.0 > 0 {
            out.number("cached", saturated(first.cached.0));
        }
        out.text("adapter-is", first.tier.as_str());
        out.text("reading", first.stage.as_str());
    }
    for next in why.considered.iter().skip(1).take(2) {
        next.pod.with_text(|pod| {
            out.0.push_str("next=");
            out.0.push_str(pod);
        });
        out.0.push('@');
        push(&mut out.0, whole(next.cost));
        out.0.push(';');
    }
    for note in &why.notes {
        out.text("note", note.as_str());
    }
    out.number("candidates", why.candidates.into());
    out.0.push_str("pool=");
    out.0.push_str(&why.pool);
    out.0
}

fn saturated(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Milliseconds as a whole number, like `{:.0}` at a quarter of its price.
const fn whole(millis: f64) -> i64 {
    millis.round_ties_even() as i64
}

/// Headers of a refusal.
#[must_use]
pub fn refusal(refusal: &Refusal) -> Vec<(&'static str, Cow<'static, str>)> {
    let mut headers = vec![
        ("content-type", "application/json".into()),
        (REASON, refusal.reason.as_str().into()),
    ];
    match (refusal.status, refusal.retry_after) {
        (404, _) => {}
        (_, Some(seconds)) => headers.push(("retry-after", seconds.to_string().into())),
        (_, None) => headers.push(("retry-after", RETRY_AFTER.into())),
    }
    headers
}

/// Body of the 404 for a model that is not listed.
#[must_use]
pub fn unlisted(name: &str, anthropic: bool) -> String {
    let refusal = Refusal {
        status: 404,
        reason: Reason::ModelUnknown,
        model: Some(shortened(name)),
        near: None,
        retry_after: None,
    };
    body(&refusal, anthropic.then_some(Api::Messages))
}

/// Body of a refusal, in the shape that the client's library reads.
#[must_use]
pub fn body(refusal: &Refusal, api: Option<Api>) -> String {
    let message = message(refusal);
    let (kind, code) = match refusal.status {
        404 => ("invalid_request_error", "model_not_found"),
        429 => ("rate_limit_error", refusal.reason.as_str()),
        _ => ("service_unavailable", refusal.reason.as_str()),
    };
    let param = (refusal.status == 404).then_some("model");
    let body = if api.is_some_and(prefers_anthropic_errors) {
        let kind = match refusal.status {
            404 => "not_found_error",
            429 => "rate_limit_error",
            _ => "overloaded_error",
        };
        json!({"type": "error", "error": {"type": kind, "message": message}})
    } else {
        json!({"error": {"message": message, "type": kind, "param": param, "code": code}})
    };
    body.to_string()
}

/// What a client is told of a name that nobody has.
fn unknown_model(model: &str, near: Option<&str>) -> String {
    let near = near.map_or_else(String::new, |near| format!(" Did you mean `{near}`?"));
    format!("The model `{model}` does not exist.{near}")
}

fn message(refusal: &Refusal) -> String {
    match (refusal.reason, &refusal.model) {
        (Reason::ModelUnknown, Some(model)) => unknown_model(model, refusal.near.as_deref()),
        (Reason::ModelUnknown, None) => "The model does not exist.".to_owned(),
        (Reason::LabelsNoMatch, _) => "No model server of the required kind is ready.".to_owned(),
        (Reason::SubsetNoMatch, _) => "None of the allowed model servers is ready.".to_owned(),
        (Reason::Saturated, _) => {
            "The model servers are full, and others go before this request. Ask again later.".to_owned()
        }
        (Reason::QueueFull, _) => "The model servers are full, and so is the queue. Ask again later.".to_owned(),
        (Reason::QueueTimeout, _) => {
            "The model servers had no room for this request in time. Ask again later.".to_owned()
        }
        (Reason::NoTable | Reason::DiscoveryStale | Reason::NoReadyPod, _) => "No model server is ready.".to_owned(),
    }
}
