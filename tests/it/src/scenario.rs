//! A scenario file: config, pods, steps and expectations, as data. tests/scenarios/README.md is its reference.
//!
//! Deliberately not here: what runs it ([`crate::play`]), and what a pod's pages look like ([`crate::page`]).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fmt, fs};

use serde::Deserialize;
use serde_json::{Map, Value, json};

/// A whole file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// What must happen and why, in a sentence or three.
    pub story: String,
    /// Where it runs.
    pub runs: Vec<Place>,
    /// More keys of the only pool.
    #[serde(default)]
    pub pool: Map<String, Value>,
    /// Several pools instead: name -> its keys, and `pods`, the names of its pods.
    #[serde(default)]
    pub pools: BTreeMap<String, Map<String, Value>>,
    /// More keys of the document.
    #[serde(default)]
    pub top: Map<String, Value>,
    /// How pods are found.
    #[serde(default)]
    pub discovery: Discovery,
    /// The service does not run from the start. In the wasm a filter polls then, unless `top` gives the role to the
    /// service; on the core nobody does.
    #[serde(default)]
    pub without_service: bool,
    /// Why the story cannot happen in nginx. Without it, what runs through the wasm runs under nginx too.
    pub not_nginx: Option<String>,
    /// Name -> state, as [`crate::page::Pod`].
    pub pods: BTreeMap<String, Value>,
    /// What happens, in order.
    pub steps: Vec<Step>,
}

/// Where a scenario runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// The crates, natively, in virtual time.
    Core,
    /// The wasm artifacts, in virtual time.
    Wasm,
    /// The wasm artifacts in Envoy.
    Envoy,
    /// The filter alone as in APISIX, in virtual time.
    Apisix,
}

/// How pods are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Discovery {
    /// A list in the config.
    #[default]
    Static,
    /// Envoy's admin page; the pods' `health` and `listed` count.
    EnvoyAdmin,
    /// EndpointSlices; the pods' `health` and `listed` count.
    Kubernetes,
    /// A JSON list; the pods' `health` and `listed` count.
    Json,
}

/// The cluster through which a list of pods is asked for.
pub const LIST_CLUSTER: &str = "lists";

/// Milliseconds between two requests: a worker looks again at what others did after 2 ms.
pub const AFTER_MILLIS: u64 = 3;

/// One step.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Why, for a reader.
    #[serde(default)]
    pub because: String,
    /// Time passes.
    pub wait_ms: Option<u64>,
    /// Pods change: name -> the keys that change.
    pub set: Option<BTreeMap<String, Value>>,
    /// The poller dies, or starts.
    pub service: Option<Life>,
    /// What discovery answers from now on.
    pub discovery: Option<Says>,
    /// A request is sent.
    pub request: Option<Request>,
    /// Sent, or going on, so many times.
    pub burst: Option<u32>,
    /// Time after each time, of requests [`AFTER_MILLIS`] by default.
    pub every_ms: Option<u64>,
    /// The worker that gets it; else they take turns.
    pub worker: Option<usize>,
    /// Names the request for `finish`.
    pub id: Option<String>,
    /// What becomes of it, and of the request named by `finish`.
    pub then: Option<Then>,
    /// A request in flight goes on.
    pub finish: Option<String>,
    /// A request that waited has left the queue.
    pub leaves: Option<String>,
    /// What must have happened to the request.
    pub expect: Option<Expect>,
    /// Some log line has this text.
    pub log: Option<String>,
}

/// What discovery answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Says {
    /// The pods as they are.
    #[default]
    Ok,
    /// No connection.
    Refused,
    /// Nothing.
    Silent,
    /// A page of somebody else.
    Foreign,
    /// The first half.
    Cut,
    /// All pods at the own machine.
    Local,
}

/// What a poller does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Life {
    Starts,
    Dies,
}

/// What becomes of a request once it is with a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Then {
    /// The pod answers it at once.
    #[default]
    Done,
    /// Nothing yet.
    Open,
    /// The pod has sent the head of its answer and the first bytes.
    FirstToken,
    /// And more bytes of it.
    Token,
    /// The client leaves.
    ClientLeaves,
    /// Nothing: it must be held by the proxy.
    Waits,
}

/// A request. `body` counts, or else what it is made of.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Request {
    pub method: Option<String>,
    pub path: Option<String>,
    /// `{a}` in a value stands for the address of pod a; `null` leaves a header out.
    pub headers: BTreeMap<String, Option<String>>,
    pub model: Option<String>,
    /// Tokens of its messages, at 4 bytes each.
    pub prompt_tokens: usize,
    pub max_tokens: Option<u64>,
    pub stream: bool,
    /// Messages that the prompt is cut into.
    pub messages: Option<usize>,
    /// Name of the text that the prompt begins with. Without one no two prompts begin alike.
    pub prefix: Option<String>,
    /// Tokens of that text.
    pub prefix_tokens: usize,
    /// `cache_salt`.
    pub cache_salt: Option<String>,
    /// Which request of the scenario this is.
    #[serde(skip)]
    pub number: u64,
    /// The body as it is.
    pub body: Option<String>,
    /// Only so many bytes of the body arrive before its end.
    pub cut_bytes: Option<usize>,
    /// No content-length is declared.
    pub chunked: bool,
}

/// One or several.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum OneOf {
    One(String),
    Several(Vec<String>),
}

impl OneOf {
    /// Is it one of these?
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        match self {
            Self::One(one) => one == name,
            Self::Several(all) => all.iter().any(|one| one == name),
        }
    }
}

/// What must have happened to a request. Absent = anything.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Expect {
    /// The first pod of the list.
    pub pod: Option<OneOf>,
    /// How the list begins.
    pub list: Vec<String>,
    /// Not the first pod of the list.
    pub not: Option<OneOf>,
    /// The pod that served it after retries.
    pub served_by: Option<String>,
    /// Status that the client got.
    pub status: Option<u16>,
    /// `x-berth-reason` of a reply.
    pub reason: Option<String>,
    /// Why it was passed.
    pub pass: Option<String>,
    /// Parts of `x-berth-decision`.
    pub why: Vec<String>,
    /// Not in it.
    pub why_not: Vec<String>,
    /// Headers as the pod gets them; `null` = absent. Not checked on the core.
    pub upstream: BTreeMap<String, Option<String>>,
    /// Parts of the body as the pod gets it. Not checked on the core.
    pub body: Vec<String>,
    /// Parts of the body that Berth answers with.
    pub answer: Vec<String>,
    /// Not in it.
    pub answer_not: Vec<String>,
    /// Requests of a burst: pod -> least and most that go there.
    pub between: BTreeMap<String, [u32; 2]>,
}

/// A file that is no scenario.
#[derive(Debug)]
pub struct Broken(String);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Lines that a file may have.
const LINES_MAX: usize = 60;

impl Scenario {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(file: &Path) -> Result<Self, Broken> {
        let broken = |error: String| Broken(format!("{}: {error}", file.display()));
        let text = fs::read_to_string(file).map_err(|error| broken(error.to_string()))?;
        if text.lines().count() > LINES_MAX {
            return Err(broken(format!("more than {LINES_MAX} lines: two stories?")));
        }
        let scenario: Self = serde_json::from_str(&text).map_err(|error| broken(error.to_string()))?;
        scenario.check().map_err(broken)?;
        Ok(scenario)
    }

    fn check(&self) -> Result<(), String> {
        if self.runs.is_empty() {
            return Err("it runs nowhere".to_owned());
        }
        if !self.pool.is_empty() && !self.pools.is_empty() {
            return Err("pool and pools".to_owned());
        }
        for (number, step) in (1..).zip(&self.steps) {
            step.check().map_err(|error| format!("step {number}: {error}"))?;
            for name in step
                .set
                .iter()
                .flatten()
                .map(|(name, _)| name)
                .chain(step.expect.iter().flat_map(Expect::names))
            {
                if !self.pods.contains_key(name) {
                    return Err(format!("step {number}: there is no pod {name}"));
                }
            }
        }
        Ok(())
    }

    /// The config document, with each pod at the address that `address` gives.
    pub fn document(&self, address: impl Fn(&str) -> String) -> Value {
        let mut pools = Vec::new();
        let all = || self.pods.keys().cloned().collect::<Vec<_>>();
        let only = BTreeMap::from([("pods".to_owned(), self.pool.clone())]);
        for (name, keys) in if self.pools.is_empty() { &only } else { &self.pools } {
            let mut pool = keys.clone();
            let pods: Vec<String> = match pool.remove("pods") {
                Some(names) => serde_json::from_value(names).unwrap_or_default(),
                None => all(),
            };
            let pods: Vec<String> = pods.iter().map(|pod| address(pod)).collect();
            pool.insert("name".to_owned(), json!(name));
            let discovery = match self.discovery {
                Discovery::Static => json!({"static": pods}),
                Discovery::EnvoyAdmin => json!({"envoy_admin": {"cluster": name}}),
                Discovery::Kubernetes => {
                    json!({"kubernetes": {"cluster": LIST_CLUSTER, "namespace": "prod", "service": name}})
                }
                Discovery::Json => json!({"json": {"cluster": LIST_CLUSTER, "path": "/pods"}}),
            };
            pool.insert("discovery".to_owned(), discovery);
            let text = Value::Object(pool).to_string();
            let known = |name: &str| self.pods.contains_key(name).then(|| address(name));
            // Only addresses were put in, so it is JSON as before.
            pools.push(serde_json::from_str(&filled(&text, known)).unwrap_or_default());
        }
        let mut document = self.top.clone();
        document.insert("pools".to_owned(), Value::Array(pools));
        Value::Object(document)
    }
}

impl Step {
    /// It is of one kind, and has no key that its kind does not read.
    fn check(&self) -> Result<(), String> {
        let kinds = [
            self.wait_ms.is_some(),
            self.set.is_some(),
            self.service.is_some(),
            self.discovery.is_some(),
            self.request.is_some(),
            self.finish.is_some(),
            self.leaves.is_some(),
            self.log.is_some(),
        ];
        if kinds.iter().filter(|kind| **kind).count() != 1 {
            return Err("exactly one of wait_ms, set, service, discovery, request, finish, leaves, log".to_owned());
        }
        let requested = self.request.is_some();
        let streams = self.finish.is_some() && self.then == Some(Then::Token);
        let idle = [
            ("burst", self.burst.is_some() && !requested && !streams),
            ("every_ms", self.every_ms.is_some() && !requested && !streams),
            ("worker", self.worker.is_some() && !requested),
            ("id", self.id.is_some() && !requested),
            ("expect", self.expect.is_some() && !requested && self.leaves.is_none()),
            (
                "then",
                self.then.is_some() && !requested && self.finish.is_none() && self.leaves.is_none(),
            ),
            ("then: waits", self.then == Some(Then::Waits) && !requested),
            ("then: token", self.then == Some(Then::Token) && !streams),
        ];
        match idle.iter().find(|(_, idle)| *idle) {
            Some((key, _)) => Err(format!("nothing reads {key} here")),
            None => Ok(()),
        }
    }
}

impl Expect {
    /// Pods that it names.
    fn names(&self) -> impl Iterator<Item = &String> {
        let lists = [&self.pod, &self.not].into_iter().flatten().flat_map(|one| match one {
            OneOf::One(name) => std::slice::from_ref(name),
            OneOf::Several(names) => names.as_slice(),
        });
        lists.chain(&self.served_by).chain(self.between.keys())
    }
}

/// Every file of tests/scenarios, sorted, with its name.
///
/// # Errors
/// The first file that is no scenario, or that has no business there.
pub fn all() -> Result<Vec<(String, Scenario)>, Broken> {
    let folder = crate::root().join("tests/scenarios");
    let entries = fs::read_dir(&folder).map_err(|error| Broken(error.to_string()))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort();
    let mut scenarios = Vec::new();
    for file in files {
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        match file.extension().and_then(|extension| extension.to_str()) {
            Some("json") => scenarios.push((name, Scenario::read(&file)?)),
            Some("md") => {}
            _ => return Err(Broken(format!("{} is no scenario", file.display()))),
        }
    }
    Ok(scenarios)
}

impl Request {
    /// The body's bytes.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = match &self.body {
            Some(body) => body.clone().into_bytes(),
            None if self.method.as_deref().is_some_and(|method| method != "POST") => Vec::new(),
            None => self.made().into_bytes(),
        };
        bytes.truncate(self.cut_bytes.unwrap_or(usize::MAX));
        bytes
    }

    /// Messages first and the model last, as many clients write it.
    fn made(&self) -> String {
        let messages = self.messages.unwrap_or(1).max(1);
        let text = |first: &str, tokens: usize| {
            let rest = "word".repeat(tokens.saturating_sub(1));
            if tokens == 0 {
                rest
            } else {
                format!("{first:<4.4}{rest}")
            }
        };
        let message = |at: usize| {
            let tokens = self.prompt_tokens.max(1) / messages;
            let shared = if at == 0 { self.prefix_tokens.min(tokens) } else { 0 };
            let start = text(self.prefix.as_deref().unwrap_or_default(), shared);
            let own = text(&format!("{:04x}", self.number), tokens - shared);
            json!({"role": "user", "content": start + &own})
        };
        let all = (0..messages).map(message).collect();
        let mut members = vec![format!("\"messages\":{}", Value::Array(all))];
        if let Some(most) = self.max_tokens {
            members.push(format!("\"max_tokens\":{most}"));
        }
        if self.stream {
            members.push("\"stream\":true".to_owned());
        }
        if let Some(salt) = &self.cache_salt {
            members.push(format!("\"cache_salt\":{}", json!(salt)));
        }
        if let Some(model) = &self.model {
            members.push(format!("\"model\":{}", json!(model)));
        }
        format!("{{{}}}", members.join(","))
    }

    /// Pseudo headers first.
    pub fn head(&self, address: impl Fn(&str) -> Option<String>) -> Vec<(String, String)> {
        let text = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let mut head = vec![
            text(":method", self.method.as_deref().unwrap_or("POST")),
            text(":path", self.path.as_deref().unwrap_or("/v1/chat/completions")),
            text(":authority", "models.example"),
        ];
        let body = self.bytes();
        let mut others = BTreeMap::new();
        if !body.is_empty() {
            others.insert("content-type".to_owned(), Some("application/json".to_owned()));
            if !self.chunked {
                others.insert("content-length".to_owned(), Some(body.len().to_string()));
            }
        }
        others.extend(
            self.headers
                .iter()
                .map(|(name, value)| (name.to_ascii_lowercase(), value.clone())),
        );
        for (name, value) in others {
            if let Some(value) = value {
                head.push((name, filled(&value, &address)));
            }
        }
        head
    }
}

/// `{a}` -> the address of pod a.
fn filled(text: &str, address: impl Fn(&str) -> Option<String>) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        out.push_str(before);
        match after
            .split_once('}')
            .and_then(|(name, more)| Some((address(name)?, more)))
        {
            Some((address, more)) => {
                out.push_str(&address);
                rest = more;
            }
            None => {
                out.push('{');
                rest = after;
            }
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(change: (&str, &str), good: bool) {
        let text =
            r#"{"story": "", "runs": ["core"], "pods": {"a": {}}, "steps": [{"request": {}, "expect": {"pod": "a"}}]}"#;
        let text = text.replace(change.0, change.1);
        let read = serde_json::from_str::<Scenario>(&text).map_err(|error| error.to_string());
        assert_eq!(read.and_then(|scenario| scenario.check()).is_ok(), good, "{text}");
    }

    #[test]
    fn what_no_runner_would_notice_is_an_error() {
        check(("", ""), true);
        check(("\"story\"", "\"storey\""), false);
        check(("\"request\"", "\"requests\""), false);
        check(("\"request\": {}", "\"request\": {\"modle\": \"m\"}"), false);
        check(("\"pod\": \"a\"", "\"pods\": \"a\""), false);
        check(("\"pod\": \"a\"", "\"pod\": \"b\""), false);
        check(("[\"core\"]", "[]"), false);
        check(("[\"core\"]", "[\"cor\"]"), false);
        check(("\"request\": {}", "\"request\": {}, \"wait_ms\": 1"), false);
        check(("\"request\": {}, \"expect\": {\"pod\": \"a\"}", ""), false);
    }

    #[test]
    fn a_step_has_only_keys_that_its_kind_reads() {
        let step = "\"request\": {}, \"expect\": {\"pod\": \"a\"}";
        for key in [
            "\"expect\": {}",
            "\"burst\": 2",
            "\"every_ms\": 1",
            "\"worker\": 0",
            "\"id\": \"r\"",
        ] {
            check((step, &format!("\"request\": {{}}, {key}")), true);
            check((step, &format!("\"finish\": \"r\", {key}")), false);
            check((step, &format!("\"wait_ms\": 1, {key}")), false);
        }
        check((step, "\"request\": {}, \"then\": \"open\""), true);
        check((step, "\"finish\": \"r\", \"then\": \"done\""), true);
        check((step, "\"request\": {}, \"then\": \"waits\""), true);
        check((step, "\"leaves\": \"r\", \"then\": \"open\", \"expect\": {}"), true);
        check((step, "\"leaves\": \"r\", \"then\": \"waits\""), false);
        check((step, "\"finish\": \"r\", \"then\": \"waits\""), false);
        check(
            (
                step,
                "\"finish\": \"r\", \"then\": \"token\", \"burst\": 2, \"every_ms\": 9",
            ),
            true,
        );
        check((step, "\"request\": {}, \"then\": \"token\""), false);
        check((step, "\"log\": \"line\", \"then\": \"done\""), false);
    }

    #[test]
    fn discovery_says_one_of_what_is_known() {
        let step = "\"request\": {}, \"expect\": {\"pod\": \"a\"}";
        for (says, good) in [
            ("ok", true),
            ("refused", true),
            ("silent", true),
            ("foreign", true),
            ("cut", true),
            ("local", true),
            ("refusd", false),
            ("", false),
        ] {
            check((step, &format!("\"discovery\": \"{says}\"")), good);
        }
    }

    #[test]
    fn a_body_is_made_as_a_client_would() {
        let request = Request {
            model: Some("m".to_owned()),
            prompt_tokens: 4,
            messages: Some(2),
            stream: true,
            ..Request::default()
        };
        let expected = r#"{"messages":[{"content":"0000word","role":"user"},{"content":"0000word","role":"user"}],"stream":true,"model":"m"}"#;
        assert_eq!(String::from_utf8(request.bytes()).unwrap(), expected);
    }

    #[test]
    fn a_pods_name_in_a_header_becomes_its_address() {
        let address = |name: &str| (name == "a").then(|| "10.0.0.1:80".to_owned());
        assert_eq!(filled("{a}, {b},{", address), "10.0.0.1:80, {b},{");
    }
}
