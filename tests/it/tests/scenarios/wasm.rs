//! The wasm artifacts as a proxy: two workers and a service in the Proxy-Wasm host, under its virtual clock.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use berth_shared_state::config::Config;
use berth_shared_state::limits::{LEASE_PATIENCE, PODS_MAX, TICK};
use berth_shared_state::names::{self, Keys};
use berth_shared_state::table::{self, Table};
use berth_tests_host::{
    Answer, Callout, CasRules, Dialect, FailurePolicy, Headers, Host, MetricKind, Plugin, PluginId, Settings, Stream,
    Thread,
};
use berth_tests_it::artifact;
use berth_tests_it::page::Page;
use berth_tests_it::play::{Proxy, Seen, WORKERS};
use berth_tests_it::scenario::{LIST_CLUSTER, Life, Request, Says, Scenario, Then};
use berth_tests_it::world::{Attempt, Shared, World};
use serde_json::{Value, json};

use super::{LATENCY_MILLIS, Lot, START_MILLIS, document};

/// The vm_id that filter and service share.
pub const VM_ID: &str = "berth";
/// Bytes of a body that arrive at once.
const CHUNK: usize = 64 << 10;

/// See the module.
pub struct Wasm {
    pub host: Host,
    dialect: Dialect,
    pub filter: PluginId,
    pub service: Option<PluginId>,
    pub world: Shared,
    document: String,
    flights: BTreeMap<u64, Flight>,
    /// Streams that the filter holds, and whether a stream was asked for.
    waiting: BTreeMap<u64, (Stream, bool)>,
}

struct Flight {
    stream: Stream,
    attempt: Attempt,
    streams: bool,
    answered: bool,
}

/// A plugin of Berth as the rendered configuration has it.
pub fn plugin(name: &str, root_id: &str, document: &str) -> Plugin {
    Plugin {
        root_id: root_id.to_owned(),
        vm_id: VM_ID.to_owned(),
        allow_on_headers_stop_iteration: true,
        failure_policy: FailurePolicy::Reload,
        ..Plugin::new(name, document)
    }
}

/// An empty proxy process.
pub fn process() -> Host {
    process_of(Settings::default())
}

/// An empty proxy process with these rules for shared data.
pub fn process_with(cas_rules: CasRules) -> Host {
    process_of(Settings {
        cas_rules,
        ..Settings::default()
    })
}

/// An empty proxy process of this kind.
pub fn process_of(settings: Settings) -> Host {
    let mut host = Host::new(Settings {
        workers: WORKERS,
        start: Duration::from_millis(START_MILLIS),
        ..settings
    });
    host.add_cluster(names::SCRAPE_CLUSTER);
    host.add_cluster(names::ADMIN_CLUSTER);
    host.add_cluster(LIST_CLUSTER);
    host
}

/// A proxy in front of these pods, by a scenario with these further keys. Nothing was read yet.
pub fn unread(pods: &Value, more: Value) -> Wasm {
    let mut file = json!({"story": "", "runs": ["wasm"], "pods": pods, "steps": []});
    if let (Value::Object(file), Value::Object(more)) = (&mut file, more) {
        file.extend(more);
    }
    let scenario: Scenario = serde_json::from_value(file).expect("a scenario");
    Wasm::of(&scenario).expect("it starts")
}

/// The head of a chat request, with these further headers.
pub fn head(more: &[(&str, &str)]) -> Headers {
    let mut head = vec![
        (":method", "POST"),
        (":path", "/v1/chat/completions"),
        (":authority", "models.example"),
        ("content-type", "application/json"),
    ];
    head.extend(more);
    Headers::from(head.as_slice())
}

/// The table that the proxy's VMs share.
#[track_caller]
pub fn table(host: &Host, keys: &Keys) -> Table {
    let (bytes, _) = host.shared_data(VM_ID, &keys.table).expect("a table");
    table::decode(&bytes).expect("a table")
}

impl Wasm {
    /// Where the values of its first pool stand.
    pub fn keys(&self) -> Keys {
        let config = Config::parse(self.document.as_bytes()).expect("it was parsed before");
        Keys::of(&config.pools[0])
    }

    /// The scenario's proxy, an Envoy.
    pub fn of(scenario: &Scenario) -> Result<Self, String> {
        Self::under(scenario, Dialect::Envoy)
    }

    /// The scenario's proxy. In an nginx there is no service, and a worker polls once it has waited for one.
    pub fn under(scenario: &Scenario, dialect: Dialect) -> Result<Self, String> {
        if dialect != Dialect::Envoy && scenario.steps.iter().any(|step| step.service.is_some()) {
            return Err("an nginx has no service".to_owned());
        }
        let (document, config) = document(scenario, Lot::default(), named(dialect))?;
        let world = World::new(scenario, START_MILLIS as f64 / 1000.0, |index| {
            Lot::default().address(index)
        })?;
        let world = Rc::new(RefCell::new(world));
        let mut host = process_of(Settings {
            // Of nginx: client_body_buffer_size, as it is rendered.
            buffer_limit: if dialect == Dialect::Envoy { 1 << 20 } else { 8 << 20 },
            ..Settings::of(dialect)
        });
        let (answering, pool) = (Rc::clone(&world), config.pools[0].name.clone());
        host.on_callout(move |callout| answer(&answering.borrow(), &pool, callout));
        let plugin = Plugin {
            variables: [names::VARIABLE_TARGET, names::VARIABLE_DECISION]
                .map(str::to_owned)
                .into(),
            ..plugin("filter", names::ROOT_FILTER, &document)
        };
        let filter = host.add_filter(&artifact("berth_filter.wasm"), plugin);
        let mut wasm = Self {
            filter: filter.map_err(|error| format!("{error:#}"))?,
            host,
            dialect,
            service: None,
            world,
            document,
            flights: BTreeMap::new(),
            waiting: BTreeMap::new(),
        };
        match dialect {
            Dialect::Envoy if scenario.without_service => {}
            Dialect::Envoy => wasm.service(Life::Starts),
            Dialect::WasmX => wasm.wait(LEASE_PATIENCE.0 + TICK.0),
            Dialect::Apisix => {}
        }
        Ok(wasm)
    }

    /// Counters of passed requests.
    fn passed(&self) -> BTreeMap<String, u64> {
        let counters = self
            .host
            .metrics()
            .into_iter()
            .filter(|(kind, _)| *kind == MetricKind::Counter);
        let passed = counters.filter_map(|(_, name)| {
            let (_, reason) = name
                .split_once(".passed.")
                .or_else(|| name.split_once("berth.passed."))?;
            Some((reason.to_owned(), self.host.counter(&name).unwrap_or(0)))
        });
        let mut sums = BTreeMap::new();
        for (reason, count) in passed {
            *sums.entry(reason).or_default() += count;
        }
        sums
    }

    /// A stream through the filter: its head and body have arrived.
    pub fn open(&mut self, worker: usize, request: &Request) -> Stream {
        let (stream, body) = (self.host.open(self.filter, worker), request.bytes());
        let mut head = request.head(|pod| self.world.borrow().address(pod));
        if request.chunked && self.dialect != Dialect::Envoy {
            // As the client wrote it; Envoy's own codec takes it off.
            head.push(("transfer-encoding".to_owned(), "chunked".to_owned()));
        }
        stream.request_headers(&mut self.host, headers(&head), body.is_empty());
        let mut rest = body.as_slice();
        while !rest.is_empty() && !stream.is_refused() {
            let (piece, more) = rest.split_at(rest.len().min(CHUNK));
            stream.request_body(&mut self.host, piece, more.is_empty());
            rest = more;
        }
        stream
    }
}

/// The host as a config names it, for a proxy that is not the usual one.
fn named(dialect: Dialect) -> Option<&'static str> {
    match dialect {
        Dialect::Envoy => None,
        Dialect::WasmX => Some("nginx"),
        Dialect::Apisix => Some("apisix"),
    }
}

fn headers(pairs: &[(String, String)]) -> Headers {
    let mut headers = Headers::default();
    for (name, value) in pairs {
        headers.add(name, value.as_str());
    }
    headers
}

/// What a callout gets.
fn answer(world: &World, pool: &str, callout: &Callout) -> Answer {
    let seconds = (callout.at.as_millis() as f64 - START_MILLIS as f64) / 1000.0;
    let header = callout.headers.get(names::ORIGINAL_DST_HOST).unwrap_or_default();
    let path = callout.headers.get(":path").unwrap_or_default();
    let page = match callout.cluster.as_str() {
        names::ADMIN_CLUSTER | LIST_CLUSTER => world.pods_page(pool),
        names::SCRAPE_CLUSTER => world.get(header, path, seconds),
        pod => world.get(pod, path, seconds),
    };
    let answer = match page {
        Page::Answer(status, body) => Answer::reply(status, body),
        Page::Refused => Answer::ConnectFailure { after: Duration::ZERO },
        Page::Silent => Answer::Silence,
    };
    answer.after(Duration::from_millis(LATENCY_MILLIS))
}

impl Proxy for Wasm {
    const SHOWS_UPSTREAM: bool = true;

    fn wait(&mut self, millis: u64) {
        self.host.advance(Duration::from_millis(millis));
    }

    fn set(&mut self, pod: &str, keys: &Value) -> Result<(), String> {
        self.world.borrow_mut().set(pod, keys)
    }

    fn discovery(&mut self, says: Says) {
        self.world.borrow_mut().discovery(says);
    }

    fn service(&mut self, life: Life) {
        match (life, self.service) {
            (Life::Dies, Some(service)) => self.host.kill(service, Thread::Main),
            (Life::Dies, None) => {}
            (Life::Starts, _) => {
                let plugin = plugin("service", names::ROOT_SERVICE, &self.document);
                let service = self.host.add_service(&artifact("berth_service.wasm"), plugin);
                self.service = Some(service.expect("the service starts"));
            }
        }
    }

    fn send(&mut self, id: u64, worker: usize, request: &Request) -> Seen {
        let before = self.passed();
        let stream = self.open(worker, request);
        let pass = self
            .passed()
            .into_iter()
            .find(|(reason, count)| before.get(reason).unwrap_or(&0) < count);
        let pass = pass.map(|(reason, _)| reason);
        self.became(id, stream, request.stream, pass)
    }

    fn go_on(&mut self, id: u64, then: Then) {
        let Some(mut flight) = self.flights.remove(&id) else {
            if let Some((stream, _)) = self.waiting.remove(&id) {
                stream.reset(&mut self.host);
            }
            return;
        };
        let (stream, host) = (flight.stream.clone(), &mut self.host);
        let Attempt { pod, status, says, .. } = flight.attempt.clone();
        if then == Then::ClientLeaves {
            self.world.borrow_mut().count(&pod, false);
            stream.set_property(&["response", "code_details"], "downstream_remote_disconnect");
            return stream.reset(host);
        }
        if !flight.answered {
            flight.answered = true;
            let kind = if flight.streams && status == 200 {
                "text/event-stream"
            } else {
                "application/json"
            };
            let head = [(":status", status.to_string()), ("content-type", kind.to_owned())];
            let mut headers = Headers::default();
            head.into_iter().for_each(|(name, value)| headers.add(name, value));
            stream.response_headers(host, headers, false);
            let body = if says.is_empty() { "data: {}\n\n" } else { &says };
            stream.response_body(host, body.as_bytes(), false);
        }
        if then == Then::Token {
            stream.response_body(host, b"data: {}\n\n", false);
        }
        if matches!(then, Then::FirstToken | Then::Token) {
            self.flights.insert(id, flight);
        } else {
            self.world.borrow_mut().count(&pod, false);
            stream.response_body(host, b"", true);
        }
    }

    fn left(&mut self, id: u64) -> Option<Seen> {
        let (stream, streams) = self.waiting.remove(&id)?;
        let seen = self.became(id, stream, streams, None);
        (!seen.waits).then_some(seen)
    }

    fn log(&self) -> Vec<String> {
        self.host.log().into_iter().map(|line| line.text).collect()
    }

    /// The host had nothing to complain of: no trap, no misuse.
    fn sound(&self) -> Result<(), String> {
        let log = self.host.log();
        let complaints = log
            .iter()
            .filter(|line| line.from_host && !line.text.contains("killed by the test"));
        let complaints: Vec<_> = complaints
            .map(|line| format!("{:?}: {}", line.thread, line.text))
            .collect();
        if complaints.is_empty() {
            Ok(())
        } else {
            Err(complaints.join("\n"))
        }
    }
}

impl Wasm {
    /// What has become of a stream by now.
    fn became(&mut self, id: u64, stream: Stream, streams: bool, pass: Option<String>) -> Seen {
        let mut seen = Seen {
            pass,
            why: match self.dialect {
                Dialect::Envoy => stream.filter_state("wasm.berth"),
                _ => stream.variable(names::VARIABLE_DECISION),
            }
            .map_or_else(String::new, |why| String::from_utf8_lossy(&why).into()),
            ..Seen::default()
        };
        if stream.is_refused() {
            let sent = stream.downstream().unwrap_or_default();
            seen.status = stream.status().map(|status| status as u16);
            seen.answer = String::from_utf8_lossy(&sent.body).into_owned();
            seen.reason = sent.headers.get(names::REASON).map(str::to_owned);
            return seen;
        }
        let Some(upstream) = stream.upstream() else {
            seen.waits = true;
            self.waiting.insert(id, (stream, streams));
            return seen;
        };
        let text = |(name, value): (&str, &[u8])| (name.to_owned(), String::from_utf8_lossy(value).into_owned());
        seen.upstream = upstream.headers.iter().map(text).collect();
        seen.body = String::from_utf8_lossy(&upstream.body).into_owned();
        let list = upstream
            .headers
            .get(names::DESTINATION_ENDPOINT)
            .map(|list| list.split(',').take(PODS_MAX));
        seen.list = list
            .into_iter()
            .flatten()
            .map(|at| self.world.borrow().name(at))
            .collect();
        let mut tried = seen.list.clone();
        if self.dialect != Dialect::Envoy {
            // nginx dials one pod, and goes to no other.
            tried.truncate(1);
        }
        if self.dialect == Dialect::WasmX {
            let target = stream.variable(names::VARIABLE_TARGET).unwrap_or_default();
            let first = tried.first().and_then(|pod| self.world.borrow().address(pod));
            assert_eq!(
                String::from_utf8_lossy(&target),
                first.unwrap_or_default(),
                "the pod to dial"
            );
        }
        let attempt = self.world.borrow().walk(&tried);
        match attempt {
            Some(attempt) => self.fly(id, stream, streams, attempt, &mut seen),
            None => stream.respond(&mut self.host, 200, [("content-type", "application/json")], b"{}"),
        }
        seen
    }

    /// The request is with a pod, or no pod could be reached and the proxy says so.
    fn fly(&mut self, id: u64, stream: Stream, streams: bool, attempt: Attempt, seen: &mut Seen) {
        let at = self.world.borrow().address(&attempt.pod).expect("a pod");
        if self.dialect == Dialect::Envoy {
            stream.set_property(&["upstream", "address"], at);
        } else {
            let answered = if attempt.status == 0 { "-" } else { "0.010" };
            stream.set_variable("upstream_addr", at);
            stream.set_variable("upstream_header_time", answered);
        }
        stream.set_number_property(&["upstream", "request_attempt_count"], attempt.attempts.into());
        if attempt.status == 0 {
            let status = if self.dialect == Dialect::Envoy { 503 } else { 502 };
            seen.status = Some(status);
            let details = "upstream_reset_before_response_started{remote_connection_failure}";
            stream.set_property(&["response", "code_details"], details);
            let kind = [("content-type", "text/plain")];
            return stream.respond(&mut self.host, status, kind, b"upstream connect error");
        }
        seen.status = Some(attempt.status);
        seen.served_by = Some(attempt.pod.clone());
        self.world.borrow_mut().count(&attempt.pod, true);
        let flight = Flight {
            stream,
            attempt,
            streams,
            answered: false,
        };
        self.flights.insert(id, flight);
    }
}
