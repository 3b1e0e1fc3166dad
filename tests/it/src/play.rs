//! Plays the steps of a scenario against a proxy, whatever the proxy is.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use berth_shared_state::names;

use crate::scenario::{AFTER_MILLIS, Expect, Life, OneOf, Request, Says, Scenario, Step, Then};

/// A proxy with Berth in it, in front of the scenario's pods.
pub trait Proxy {
    /// Whether headers that arrive at pods can be seen.
    const SHOWS_UPSTREAM: bool;

    /// Time passes.
    fn wait(&mut self, millis: u64);
    /// Time passes between two requests of a burst whose pace does not matter.
    fn pause(&mut self) {
        self.wait(AFTER_MILLIS);
    }
    /// Pods change.
    ///
    /// # Errors
    /// What is wrong with the step.
    fn set(&mut self, pod: &str, keys: &serde_json::Value) -> Result<(), String>;
    /// Discovery answers otherwise from now on.
    fn discovery(&mut self, says: Says);
    /// The poller dies or starts.
    fn service(&mut self, life: Life);
    /// A client sends a request, which is then with a pod or over. `id` names it for [`Self::go_on`].
    fn send(&mut self, id: u64, worker: usize, request: &Request) -> Seen;
    /// A request that is with a pod goes on. Never [`Then::Open`] or [`Then::Waits`]. The client of one that waits may
    /// leave.
    fn go_on(&mut self, id: u64, then: Then);
    /// What became of a request that waited, if it does not wait any more.
    fn left(&mut self, id: u64) -> Option<Seen>;
    /// The log so far.
    fn log(&self) -> Vec<String>;
    /// Nothing went wrong beside the steps.
    ///
    /// # Errors
    /// What did.
    fn sound(&self) -> Result<(), String> {
        Ok(())
    }
}

/// What became of a request.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The proxy holds it.
    pub waits: bool,
    /// The pods it may go to, best first. Empty = it was not routed.
    pub list: Vec<String>,
    /// The pod that got it in the end.
    pub served_by: Option<String>,
    /// Status for the client, as far as it is known already.
    pub status: Option<u16>,
    /// `x-berth-reason`.
    pub reason: Option<String>,
    /// Why it was passed.
    pub pass: Option<String>,
    /// The decision in a line.
    pub why: String,
    /// The decision as a table, where it can be had.
    pub table: String,
    /// Headers that went to a pod.
    pub upstream: Vec<(String, String)>,
    /// The body that went to a pod.
    pub body: String,
    /// The body that Berth answered with.
    pub answer: String,
}

/// Workers of every proxy.
pub const WORKERS: usize = 2;

/// Plays all steps.
///
/// # Errors
/// The first expectation that was not met, or all that is wrong with it.
pub fn play(scenario: &Scenario, proxy: &mut impl Proxy) -> Result<(), String> {
    let mut player = Player {
        proxy,
        sent: 0,
        named: BTreeMap::new(),
    };
    for (number, step) in (1..).zip(&scenario.steps) {
        player.step(step).map_err(|error| {
            let because = if step.because.is_empty() {
                String::new()
            } else {
                format!(" ({})", step.because)
            };
            format!("step {number}{because}: {error}")
        })?;
    }
    player.proxy.sound()
}

struct Player<'a, P> {
    proxy: &'a mut P,
    sent: u64,
    named: BTreeMap<String, u64>,
}

impl<P: Proxy> Player<'_, P> {
    fn step(&mut self, step: &Step) -> Result<(), String> {
        if let Some(millis) = step.wait_ms {
            self.proxy.wait(millis);
        }
        for (pod, keys) in step.set.iter().flatten() {
            self.proxy.set(pod, keys)?;
        }
        if let Some(life) = step.service {
            self.proxy.service(life);
        }
        if let Some(says) = step.discovery {
            self.proxy.discovery(says);
        }
        if let Some(request) = &step.request {
            self.requests(step, request)?;
        }
        if let Some(name) = &step.finish {
            let id = *self.named.get(name).ok_or_else(|| format!("no request {name}"))?;
            for _ in 0..step.burst.unwrap_or(1) {
                self.proxy.go_on(id, step.then.unwrap_or_default());
                step.every_ms.into_iter().for_each(|millis| self.proxy.wait(millis));
            }
        }
        if let Some(name) = &step.leaves {
            self.leaves(step, name)?;
        }
        match &step.log {
            Some(text) if !self.proxy.log().iter().any(|line| line.contains(text)) => Err(format!(
                "no line with {text:?} in the log:\n{}",
                self.proxy.log().join("\n")
            )),
            _ => Ok(()),
        }
    }

    fn leaves(&mut self, step: &Step, name: &str) -> Result<(), String> {
        let id = *self.named.get(name).ok_or_else(|| format!("no request {name}"))?;
        let seen = self.proxy.left(id).ok_or_else(|| format!("{name} still waits"))?;
        let wrong = wrong(&step.expect.clone().unwrap_or_default(), &seen, P::SHOWS_UPSTREAM);
        if !wrong.is_empty() {
            return Err(format!("{name}: {}\n{}", wrong.join("; "), told(&seen)));
        }
        let then = step.then.unwrap_or_default();
        if then != Then::Open && seen.served_by.is_some() {
            self.proxy.go_on(id, then);
        }
        self.proxy.wait(AFTER_MILLIS);
        Ok(())
    }

    fn requests(&mut self, step: &Step, request: &Request) -> Result<(), String> {
        let mut counts: BTreeMap<String, u32> = BTreeMap::new();
        let times = step.burst.unwrap_or(1);
        let then = step.then.unwrap_or_default();
        let expect = step.expect.clone().unwrap_or_default();
        for time in 1..=times {
            self.sent += 1;
            let worker = step.worker.unwrap_or((self.sent as usize - 1) % WORKERS);
            let request = &Request {
                number: self.sent,
                ..request.clone()
            };
            let seen = self.proxy.send(self.sent, worker, request);
            if let Some(first) = seen.list.first() {
                *counts.entry(first.clone()).or_default() += 1;
            }
            if let Some(name) = &step.id {
                self.named.insert(name.clone(), self.sent);
            }
            let mut wrong = wrong(&expect, &seen, P::SHOWS_UPSTREAM);
            wrong.extend(spoofed(request, &seen));
            if seen.waits != (then == Then::Waits) {
                wrong.push(if seen.waits { "is held" } else { "is not held" }.to_owned());
            }
            if !wrong.is_empty() {
                return Err(format!(
                    "request {time} of {times}: {}\n{}",
                    wrong.join("; "),
                    told(&seen)
                ));
            }
            if !matches!(then, Then::Open | Then::Waits) && seen.served_by.is_some() {
                self.proxy.go_on(self.sent, then);
            }
            match step.every_ms {
                Some(millis) => self.proxy.wait(millis),
                None => self.proxy.pause(),
            }
        }
        for (pod, [least, most]) in &expect.between {
            let count = counts.get(pod).copied().unwrap_or(0);
            if !(*least..=*most).contains(&count) {
                return Err(format!(
                    "{count} requests to {pod}, not {least} to {most}; all: {counts:?}"
                ));
            }
        }
        Ok(())
    }
}

/// What differs from the expectation.
fn wrong(expect: &Expect, seen: &Seen, shows_upstream: bool) -> Vec<String> {
    let mut wrong = Vec::new();
    let first = seen.list.first().map_or("", String::as_str);
    if let Some(pod) = &expect.pod
        && !pod.has(first)
    {
        wrong.push(format!("went to {first:?}, not to {}", one_of(pod)));
    }
    if !seen.list.starts_with(&expect.list) {
        wrong.push(format!("the list does not begin with {:?}", expect.list));
    }
    if let Some(pod) = &expect.not
        && (pod.has(first) || first.is_empty())
    {
        wrong.push(format!("went to {first:?}"));
    }
    let mut same = |what: &str, expected: Option<String>, found: Option<String>| {
        if expected.is_some() && expected != found {
            let said = |text: Option<String>| text.unwrap_or_else(|| "none".to_owned());
            wrong.push(format!("{what} is {}, not {}", said(found), said(expected)));
        }
    };
    let text = |number: u16| number.to_string();
    same("the serving pod", expect.served_by.clone(), seen.served_by.clone());
    same("the status", expect.status.map(text), seen.status.map(text));
    same("the reason", expect.reason.clone(), seen.reason.clone());
    same("the pass", expect.pass.clone(), seen.pass.clone());
    for part in &expect.why {
        if !seen.why.contains(part.as_str()) {
            wrong.push(format!("{part:?} is not in the decision"));
        }
    }
    for part in &expect.why_not {
        if seen.why.contains(part.as_str()) {
            wrong.push(format!("{part:?} is in the decision"));
        }
    }
    let body = expect.body.iter().filter(|_| shows_upstream);
    for part in body.filter(|part| !seen.body.contains(part.as_str())) {
        wrong.push(format!("{part:?} is not in the body that arrives: {:.300}", seen.body));
    }
    for part in expect.answer.iter().filter(|part| !seen.answer.contains(part.as_str())) {
        wrong.push(format!("{part:?} is not in the answer {:?}", seen.answer));
    }
    for part in expect
        .answer_not
        .iter()
        .filter(|part| seen.answer.contains(part.as_str()))
    {
        wrong.push(format!("{part:?} is in the answer {:?}", seen.answer));
    }
    for (name, value) in expect.upstream.iter().filter(|_| shows_upstream) {
        let found = header(seen, name);
        if found != value.as_deref() {
            wrong.push(format!("{name} arrives as {found:?}, not {value:?}"));
        }
    }
    wrong
}

/// On every path: no steering header of the client arrives at a pod, trusted or not.
fn spoofed(request: &Request, seen: &Seen) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, value) in &request.headers {
        let name = name.to_ascii_lowercase();
        let named = [names::MODEL_NAME, names::BASE_MODEL_NAME].contains(&name.as_str());
        let written = named || [names::DESTINATION_ENDPOINT, names::POOL].contains(&name.as_str());
        let arrived = header(seen, &name);
        let kept = if written && !seen.list.is_empty() {
            arrived == value.as_deref() && !named
        } else {
            arrived.is_some()
        };
        if names::STRIPPED.contains(&name.as_str()) && kept {
            wrong.push(format!("the client's {name} arrives at the pod"));
        }
    }
    wrong
}

fn header<'a>(seen: &'a Seen, name: &str) -> Option<&'a str> {
    seen.upstream
        .iter()
        .find(|(key, _)| key == name)
        .map(|(_, value)| value.as_str())
}

fn one_of(pods: &OneOf) -> String {
    match pods {
        OneOf::One(name) => name.clone(),
        OneOf::Several(names) => names.join(" or "),
    }
}

fn told(seen: &Seen) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "  list {:?}, served by {:?}, status {:?}, reason {:?}, passed {:?}\n  {}",
        seen.list, seen.served_by, seen.status, seen.reason, seen.pass, seen.why
    );
    for line in seen.table.lines() {
        let _ = writeln!(out, "  | {line}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(header: &str, arrives_as: Option<&str>, routed: bool, good: bool) {
        let request = Request {
            headers: BTreeMap::from([(header.to_owned(), Some("client".to_owned()))]),
            ..Request::default()
        };
        let seen = Seen {
            list: routed.then(|| "a".to_owned()).into_iter().collect(),
            upstream: arrives_as
                .map(|value| (header.to_ascii_lowercase(), value.to_owned()))
                .into_iter()
                .collect(),
            ..Seen::default()
        };
        assert_eq!(spoofed(&request, &seen).is_empty(), good, "{header} as {arrives_as:?}");
    }

    #[test]
    fn a_steering_header_of_the_client_must_not_arrive() {
        check(names::ORIGINAL_DST_HOST, None, true, true);
        check(names::ORIGINAL_DST_HOST, Some("client"), true, false);
        check("X-Session-Id", Some("client"), false, false);
        check(names::DESTINATION_ENDPOINT, Some("10.0.0.1:8000"), true, true);
        check(names::DESTINATION_ENDPOINT, Some("client"), true, false);
        check(names::DESTINATION_ENDPOINT, Some("10.0.0.1:8000"), false, false);
        check("x-request-id", Some("client"), true, true);
    }
}
