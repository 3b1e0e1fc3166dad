//! What runs in a proxy's worker: `dist/berth_filter.wasm` in the wasmtime host, in instructions.
//!
//! Fuel is counted around each callback, so a request splits into its phases: the last body callback carries no
//! bytes and holds the decision alone. Host calls cost nothing here; what they cost is in the Envoy part.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use berth_shared_state::limits::PODS_MAX;
use berth_shared_state::names;
use berth_shared_state::table;
use berth_shared_state::units::UnixMillis;
use berth_tests_e2e::envoy::root;
use berth_tests_host::{Answer, Host, Plugin, PluginId, Settings, Step, Stream, Thread};

use crate::report::Group;
use crate::timing::median;
use crate::world;

const VM: &str = "berth";
/// Pieces in which a body arrives: Envoy reads 16 KiB at a time.
const PIECE: usize = 16 << 10;
/// Time between two requests: more than a copy of shared data may be old, so each request reads it.
const STEP: Duration = Duration::from_millis(5);
/// Time until the first token: a short prompt on an idle engine.
const FIRST_TOKEN: Duration = Duration::from_millis(45);
/// A table is published this often, in milliseconds.
const PUBLISH: u64 = 1_000;

/// Instructions of one request, by phase.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    headers: u64,
    body: u64,
    decide: u64,
    answer: u64,
    /// Nanoseconds of the decision, host calls and the counting of fuel included.
    decide_time: u64,
}

impl Spent {
    const fn all(self) -> u64 {
        self.headers + self.body + self.decide + self.answer
    }
}

/// A proxy with two workers, a published table, and requests in flight.
struct Rig {
    host: Host,
    filter: PluginId,
    pods: usize,
    published: Option<UnixMillis>,
    /// Streams that were decided and are kept open.
    open: Vec<(Stream, usize)>,
}

impl Rig {
    fn new(pods: usize) -> Result<Self> {
        let file = root().join("dist/berth_filter.wasm");
        let wasm = std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let mut host = Host::new(Settings {
            start: Duration::from_millis(world::START.0),
            ..Settings::default()
        });
        let plugin = Plugin {
            root_id: names::ROOT_FILTER.to_owned(),
            vm_id: VM.to_owned(),
            allow_on_headers_stop_iteration: true,
            ..Plugin::new("berth", world::reader(pods))
        };
        let filter = host.add_filter(&wasm, plugin)?;
        let mut rig = Self {
            host,
            filter,
            pods,
            published: None,
            open: Vec::new(),
        };
        rig.step(Duration::ZERO)?;
        Ok(rig)
    }

    fn now(&self) -> UnixMillis {
        UnixMillis(self.host.now().as_millis() as u64)
    }

    /// Lets time pass, and publishes a table when one is due.
    fn step(&mut self, by: Duration) -> Result<()> {
        self.host.advance(by);
        let now = self.now();
        if self.published.is_none_or(|at| now.since(at).0 >= PUBLISH) {
            self.published = Some(now);
            let bytes = table::encode(&world::table(self.pods, now))
                .map_err(|error| anyhow::anyhow!("{} pods: {error}", self.pods))?;
            self.host.set_shared_data(VM, &world::keys(self.pods)?.table, &bytes);
        }
        Ok(())
    }

    fn fuel(&self, worker: usize) -> u64 {
        self.host.fuel_used(self.filter, Thread::Worker(worker))
    }

    /// Instructions of a part of a request.
    fn spend<T>(&mut self, worker: usize, part: impl FnOnce(&mut Host) -> T) -> (u64, T) {
        let before = self.fuel(worker);
        let done = part(&mut self.host);
        (self.fuel(worker) - before, done)
    }

    /// One request until it goes upstream.
    fn send(&mut self, worker: usize, body: &[u8]) -> Result<(Stream, Spent)> {
        let length = body.len().to_string();
        let headers = [
            (":method", "POST"),
            (":path", "/v1/chat/completions"),
            (":authority", "gateway.example"),
            (":scheme", "http"),
            ("content-type", "application/json"),
            ("content-length", length.as_str()),
            ("authorization", "Bearer sk-0123456789abcdef0123456789abcdef"),
            ("user-agent", "OpenAI/Python 1.99.0"),
            ("accept", "application/json"),
            ("x-request-id", "0f5c8a40-6d0b-4a3f-9d0e-1c2b3a495867"),
            ("x-forwarded-proto", "http"),
        ];
        let mut spent = Spent::default();
        let stream = self.host.open(self.filter, worker);
        (spent.headers, _) = self.spend(worker, |host| stream.request_headers(host, headers, false));
        for piece in body.chunks(PIECE) {
            spent.body += self.spend(worker, |host| stream.request_body(host, piece, false)).0;
        }
        let began = Instant::now();
        let (decide, step) = self.spend(worker, |host| stream.request_body(host, b"", true));
        spent.decide_time = began.elapsed().as_nanos() as u64;
        spent.decide = decide;
        anyhow::ensure!(step == Step::Continue, "the request did not go on: {step:?}");
        Ok((stream, spent))
    }

    /// Its streamed answer: headers and the first token, then, unless it is kept open, the end.
    fn answer(&mut self, worker: usize, stream: &Stream, end: bool) -> Result<u64> {
        let upstream = stream.upstream().context("the request went upstream")?;
        let picked = upstream
            .headers
            .get(names::DESTINATION_ENDPOINT)
            .context("a pod was picked")?;
        let pod = picked.split(',').next().unwrap_or_default().to_owned();
        stream.set_property(&["upstream", "address"], pod);
        stream.set_number_property(&["upstream", "request_attempt_count"], 1);
        let headers = [(":status", "200"), ("content-type", "text/event-stream; charset=utf-8")];
        Ok(self
            .spend(worker, |host| {
                stream.response_headers(host, headers, false);
                for _ in 0..8 {
                    stream.response_body(host, b"data: {\"choices\":[]}\n\n", false);
                }
                if end {
                    stream.response_body(host, b"data: [DONE]\n\n", true);
                }
            })
            .0)
    }

    /// So many requests in flight, half of them past their first token, all seen by a scrape since.
    fn fill(&mut self, in_flight: usize) -> Result<()> {
        let body = world::body(1 << 10);
        while self.open.len() < in_flight {
            let worker = self.open.len() % 2;
            let (stream, _) = self.send(worker, &body)?;
            if self.open.len() % 4 < 2 {
                self.step(Duration::from_millis(1))?;
                self.answer(worker, &stream, false)?;
            }
            self.open.push((stream, worker));
        }
        for _ in 0..2 * PUBLISH / 100 {
            self.step(Duration::from_millis(100))?;
        }
        Ok(())
    }

    /// Whole requests on alternating workers; the median of each phase.
    fn typical(&mut self, requests: usize, body: &[u8]) -> Result<Spent> {
        let mut all = Vec::with_capacity(requests);
        for request in 0..requests {
            let worker = request % 2;
            self.step(STEP)?;
            let (stream, mut spent) = self.send(worker, body)?;
            self.step(FIRST_TOKEN)?;
            spent.answer = self.answer(worker, &stream, true)?;
            all.push(spent);
        }
        let middle =
            |phase: fn(&Spent) -> u64| median(&mut all.iter().map(|one| phase(one) as f64).collect::<Vec<_>>()) as u64;
        Ok(Spent {
            headers: middle(|one| one.headers),
            body: middle(|one| one.body),
            decide: middle(|one| one.decide),
            answer: middle(|one| one.answer),
            decide_time: middle(|one| one.decide_time),
        })
    }
}

/// Every group of this part.
pub fn run(quick: bool) -> Result<Vec<Group>> {
    Ok(vec![
        phases(quick)?,
        pods(quick)?,
        prefixes(quick)?,
        in_flight(quick)?,
        bodies()?,
        pages()?,
        memory(quick)?,
    ])
}

const UNIT: &str = "instructions";

const fn requests(quick: bool) -> usize {
    if quick { 41 } else { 201 }
}

fn phases(quick: bool) -> Result<Group> {
    let mut group = Group::new(
        "One request in the wasm, by phase (8 pods, 1 KB body, 16 in flight)",
        "the whole",
    );
    let mut rig = Rig::new(8)?;
    rig.fill(16)?;
    let spent = rig.typical(requests(quick), &world::body(1 << 10))?;
    group.add("whole request", spent.all() as f64, UNIT);
    group.add("headers: read, strip, classify", spent.headers as f64, UNIT);
    group.add("body: scan", spent.body as f64, UNIT);
    group.add("decide: tables, costs, ledger, headers", spent.decide as f64, UNIT);
    group.add("answer: first token, 8 chunks, end, ledger", spent.answer as f64, UNIT);
    Ok(group)
}

fn pods(quick: bool) -> Result<Group> {
    let mut group = Group::new("One decision in the wasm, by pods of the pool (16 in flight)", "8 pods");
    for pods in [8, 100, 1_000, PODS_MAX] {
        let mut rig = Rig::new(pods)?;
        rig.fill(16)?;
        let spent = rig.typical(requests(quick).min(41), &world::body(1 << 10))?;
        let bound = if pods == PODS_MAX { " (the bound)" } else { "" };
        group.add(format!("{pods} pods{bound}"), spent.decide as f64, UNIT);
        group.add(
            format!("{pods} pods{bound}, in wasmtime"),
            spent.decide_time as f64 / 1_000.0,
            "us",
        );
    }
    Ok(group)
}

/// Prompts that were sent before, each of a hundred that fill the index: what a longer one costs more is its chain of
/// hashes and the look-up of its pages.
fn prefixes(quick: bool) -> Result<Group> {
    let mut group = Group::new(
        "Looking up a prompt that was sent before in the wasm, and deciding (8 pods)",
        "1 KB",
    );
    for kib in [1, 32, 100] {
        let mut rig = Rig::new(8)?;
        let bodies: Vec<Vec<u8>> = (0..100).map(|number| world::prompt(number, kib << 10)).collect();
        for body in &bodies {
            rig.typical(2, body)?;
        }
        let all: Result<Vec<Spent>> = bodies
            .iter()
            .take(requests(quick))
            .map(|body| rig.typical(1, body))
            .collect();
        let all = all?;
        let middle = |of: fn(&Spent) -> u64| median(&mut all.iter().map(|one| of(one) as f64).collect::<Vec<_>>());
        group.add(format!("{kib} KB"), middle(|one| one.decide), UNIT);
        group.add(
            format!("{kib} KB, in wasmtime"),
            middle(|one| one.decide_time) / 1_000.0,
            "us",
        );
    }
    Ok(group)
}

fn in_flight(quick: bool) -> Result<Group> {
    let mut group = Group::new(
        "One request in the wasm, by requests in flight (8 pods, two workers)",
        "none in flight",
    );
    for in_flight in [0, 100, 1_000] {
        let mut rig = Rig::new(8)?;
        rig.fill(in_flight)?;
        let spent = rig.typical(requests(quick), &world::body(1 << 10))?;
        group.add(
            format!("{in_flight} in flight, whole request"),
            spent.all() as f64,
            UNIT,
        );
        group.add(format!("{in_flight} in flight, decide only"), spent.decide as f64, UNIT);
    }
    Ok(group)
}

fn bodies() -> Result<Group> {
    let mut group = Group::new("Reading a request body in the wasm", "1 KB");
    for kib in [1, 32, 256] {
        let mut rig = Rig::new(8)?;
        let body = world::body(kib << 10);
        let spent = rig.typical(5, &body)?;
        group.add(format!("{kib} KB"), spent.body as f64, UNIT);
        group.add(
            format!("{kib} KB, of each byte"),
            spent.body as f64 / body.len() as f64,
            "per byte",
        );
    }
    Ok(group)
}

/// The service polls eight pods for a while; all it does is divided by the scrapes.
fn pages() -> Result<Group> {
    const PODS: usize = 8;
    let mut group = Group::new(
        "One scrape in the service's wasm: read the page, publish the table",
        "the first page",
    );
    for name in ["vllm-metrics-lora-waiting.txt", "vllm-metrics-idle.txt"] {
        let (page, models) = (world::capture(name)?, world::models_page());
        let size = page.len();
        let file = root().join("dist/berth_service.wasm");
        let wasm = std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let mut host = Host::new(Settings::default());
        host.add_cluster(names::SCRAPE_CLUSTER);
        host.on_callout(move |call| match call.headers.get(":path") {
            Some("/metrics") => Answer::reply(200, page.clone()),
            _ => Answer::reply(200, models.clone()),
        });
        let plugin = Plugin {
            root_id: names::ROOT_SERVICE.to_owned(),
            vm_id: VM.to_owned(),
            ..Plugin::new("berth_service", world::config(PODS))
        };
        let service = host.add_service(&wasm, plugin)?;
        host.advance(Duration::from_secs(5));
        let scrapes = |host: &Host| {
            let calls = host.callouts();
            calls
                .iter()
                .filter(|call| call.headers.get(":path") == Some("/metrics"))
                .count() as u64
        };
        let (fuel, made) = (host.fuel_used(service, Thread::Main), scrapes(&host));
        host.advance(Duration::from_secs(20));
        let (fuel, made) = (host.fuel_used(service, Thread::Main) - fuel, scrapes(&host) - made);
        anyhow::ensure!(made > 0, "the service does not scrape");
        let each = fuel as f64 / made as f64;
        group.add(format!("{name}, {} KB", size / 1_000), each, UNIT);
        group.add(format!("{name}, of each byte"), each / size as f64, "per byte");
    }
    Ok(group)
}

fn memory(quick: bool) -> Result<Group> {
    let requests = if quick { 1_000 } else { 10_000 };
    let title =
        format!("Linear memory of one worker's VM, after {requests} requests of 1 KB, and of 100 KB one in a hundred");
    let mut group = Group::new(&title, "8 pods");
    for pods in [8, 1_000] {
        let mut rig = Rig::new(pods)?;
        let (body, long) = (world::body(1 << 10), world::body(100 << 10));
        for request in 0..requests {
            rig.step(Duration::from_millis(1))?;
            let body = if request % 100 == 0 { &long } else { &body };
            let (stream, _) = rig.send(request % 2, body)?;
            rig.answer(request % 2, &stream, true)?;
        }
        let bytes = rig.host.memory_size(rig.filter, Thread::Worker(0));
        group.add(format!("{pods} pods"), bytes as f64 / 1024.0, "KiB");
    }
    Ok(group)
}
