//! A real Envoy as the proxy of a scenario, with connections to each of its two workers.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use berth_shared_state::names;
use berth_tests_e2e::client::decision;
use berth_tests_e2e::envoy::{Envoy, free_port, render, scratch};
use berth_tests_it::play::{Proxy, Seen, WORKERS};
use berth_tests_it::scenario::{Discovery, Life, Request, Says, Scenario, Then};
use futures_util::stream::iter;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Response, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use super::pods::{Answer, Arrival, ID, Pods};

/// What Envoy tells pods of the decision, so that it is known before the answer.
const DECISION: &str = "x-scenario-decision";
const TOLD: &str = "domains: [\"*\"]
                      request_headers_to_add:
                        - { header: { key: x-scenario-decision, value: \"%FILTER_STATE(wasm.berth:PLAIN)%\" } }";
/// Waits shorter than this are the pause between two requests, and stand for nothing else.
const PAUSE_MILLIS: u64 = 100;
/// Time for a request that may go to go: ticks, and a machine that is busy.
const LEAVES_WITHIN: Duration = Duration::from_secs(20);
/// Bytes of a piece of a body without a declared length.
const PIECE: usize = 64 << 10;

/// See the module.
pub struct Gateway {
    pods: Pods,
    envoy: Envoy,
    pools: Vec<String>,
    /// Bodies are rewritten.
    rewrites: bool,
    idle: [Vec<Connection>; WORKERS],
    /// Requests may be held.
    queues: bool,
    flights: BTreeMap<u64, Flight>,
    waiting: BTreeMap<u64, Waiting>,
    /// Pages of each pod, and models pages of all, that must be read before the next wait is over.
    due: Option<Due>,
    complaints: Vec<String>,
    // Last: what it runs goes first.
    runtime: Runtime,
}

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// A client's connection to one worker.
struct Connection {
    worker: usize,
    sender: SendRequest<Body>,
    driver: JoinHandle<hyper::Result<()>>,
}

struct Flight {
    connection: Connection,
    arrival: Arrival,
    why: String,
    head: Coming,
    body: Option<Incoming>,
    /// Of the answer, that the pod was told to send.
    pieces: u32,
}

/// A request that the proxy holds.
struct Waiting {
    connection: Connection,
    head: Coming,
    body: Vec<u8>,
}

/// A response on its way.
type Coming = JoinHandle<hyper::Result<Response<Incoming>>>;

#[derive(Default)]
struct Due {
    pages: BTreeMap<String, u64>,
    failures: u64,
    models: u64,
}

impl Gateway {
    /// Envoy with Berth in front of the scenario's pods.
    pub fn start(name: &str, scenario: &Scenario) -> Result<Self> {
        ensure!(
            scenario.discovery == Discovery::Static,
            "Envoy's own discovery is not played"
        );
        ensure!(!scenario.without_service, "the service lives as long as the process");
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let (pods, envoy, pools) = runtime.block_on(begin(name, scenario))?;
        let due = Due {
            pages: pods.read().into_keys().map(|pod| (pod, 0)).collect(),
            failures: 0,
            models: scenario.pods.len() as u64,
        };
        Ok(Self {
            due: Some(due),
            idle: Default::default(),
            queues: scenario
                .top
                .get("admission")
                .is_some_and(|admission| admission["queue"]["enabled"] == true),
            flights: BTreeMap::new(),
            waiting: BTreeMap::new(),
            complaints: Vec::new(),
            pods,
            envoy,
            pools,
            rewrites: scenario.top.contains_key("rewrites"),
            runtime,
        })
    }

    fn run<T>(&mut self, what: &str, work: impl AsyncFnOnce(&mut Self) -> Result<T>) -> T {
        let handle = self.runtime.handle().clone();
        handle
            .block_on(work(self))
            .unwrap_or_else(|error| panic!("{what}: {error:#}\n{}", self.envoy.log_text()))
    }
}

async fn begin(name: &str, scenario: &Scenario) -> Result<(Pods, Envoy, Vec<String>)> {
    let (pods, addresses) = Pods::start(scenario).await?;
    let mut document = scenario.document(|pod| addresses.get(pod).map_or_else(String::new, SocketAddr::to_string));
    document["status"]["decision_header"] = true.into();
    let pools = document["pools"].as_array().context("no pools")?.iter();
    let pools = pools.filter_map(|pool| Some(pool["name"].as_str()?.to_owned()));
    let pools = pools.collect();
    let folder = scratch(name)?;
    let file = folder.join("berth.json");
    fs::write(&file, document.to_string())?;
    let (gateway, admin) = (free_port()?, free_port()?);
    let yaml = render(&file, gateway, admin, &[]).await?;
    ensure!(yaml.contains("domains: [\"*\"]"), "the route was rendered otherwise");
    let yaml = yaml.replace("domains: [\"*\"]", TOLD);
    let envoy = Envoy::start(&folder, &yaml, gateway, admin, &[]).await?;
    Ok((pods, envoy, pools))
}

/// What must be read before a step's time is over.
impl Gateway {
    /// Over all pools.
    async fn stat(&self, stat: &str) -> Result<u64> {
        let mut sum = 0;
        for pool in &self.pools {
            let name = format!("wasmcustom.berth.pool.{pool}.{stat}");
            sum += self.envoy.stat(&name).await?.unwrap_or(0);
        }
        Ok(sum)
    }

    /// The pods have changed: they are to be read again.
    async fn changed(&mut self) -> Result<()> {
        let failures = self.stat("scrape_failures").await?;
        let due = self.due.get_or_insert_default();
        due.pages = self
            .pods
            .read()
            .into_iter()
            .map(|(pod, (_, read))| (pod, read))
            .collect();
        due.failures = failures;
        Ok(())
    }

    /// Waits until what is due was read. A page asked for twice was taken in once: the poller never has two calls to
    /// a pod, and publishes what it knows on the tick before the second one.
    async fn read(&self, due: &Due) -> Result<()> {
        self.envoy
            .until("the pods' pages to be read again", async || {
                let mut dumb = 0;
                for (pod, (status, read)) in self.pods.read() {
                    let since = read - due.pages.get(&pod).copied().unwrap_or(0);
                    dumb += u64::from(status != 200);
                    let wanted = match status {
                        200 => 2,
                        0 => 0,
                        _ => 1,
                    };
                    if since < wanted {
                        return Ok(false);
                    }
                }
                Ok(self.stat("scrape_failures").await? >= due.failures + dumb
                    && self.stat("models_reads").await? >= due.models)
            })
            .await
    }
}

/// Connections.
impl Gateway {
    /// Connections that each worker has taken so far.
    async fn taken(&self) -> Result<[u64; WORKERS]> {
        let text = self.envoy.stats("worker_.*downstream_cx_total").await?;
        let mut taken = [0; WORKERS];
        for (worker, taken) in taken.iter_mut().enumerate() {
            let part = format!("{}.worker_{worker}.downstream_cx_total: ", self.envoy.gateway.port());
            let line = text.lines().find_map(|line| line.split_once(&part));
            *taken = line.context("no such stat")?.1.trim().parse()?;
        }
        Ok(taken)
    }

    /// A connection to a worker. The kernel deals new ones out; those of the other worker are kept for later.
    async fn connection(&mut self, worker: usize) -> Result<Connection> {
        while let Some(mut connection) = self.idle[worker].pop() {
            if connection.sender.ready().await.is_ok() {
                return Ok(connection);
            }
        }
        for _ in 0..200 {
            let before = self.taken().await?;
            let stream = TcpStream::connect(self.envoy.gateway).await?;
            stream.set_nodelay(true)?;
            let mut now = before;
            while now == before {
                now = self.taken().await?;
            }
            let (sender, driver) = handshake(TokioIo::new(stream)).await?;
            let taken = (0..WORKERS).find(|worker| now[*worker] > before[*worker]);
            let connection = Connection {
                worker: taken.context("a stat fell")?,
                sender,
                driver: tokio::spawn(driver),
            };
            if connection.worker == worker {
                return Ok(connection);
            }
            self.idle[connection.worker].push(connection);
        }
        bail!("200 connections, and none to worker {worker}")
    }

    /// Envoy, and so the filter, has done with all requests but those in flight.
    async fn calm(&self) -> Result<()> {
        self.envoy
            .until("the end of a request", async || {
                // One that waited may have been answered by now.
                let waiting = self.waiting.values().filter(|waiting| !waiting.head.is_finished());
                let open = (self.flights.len() + waiting.count()) as u64;
                Ok(self.envoy.stat("http.gateway.downstream_rq_active").await? == Some(open))
            })
            .await
    }
}

/// A request as hyper has it.
fn made(id: u64, request: &Request, pods: &Pods) -> Result<hyper::Request<Body>> {
    let bytes = request.bytes();
    let mut out = hyper::Request::builder().header(ID, id);
    for (name, value) in request.head(|pod| pods.address(pod)) {
        out = match name.as_str() {
            ":method" => out.method(value.as_str()),
            ":path" => out.uri(value.parse::<Uri>()?),
            ":authority" => out.header("host", value),
            _ => out.header(name, value),
        };
    }
    let body = if request.chunked {
        let pieces: Vec<Bytes> = bytes.chunks(PIECE).map(Bytes::copy_from_slice).collect();
        StreamBody::new(iter(pieces.into_iter().map(|piece| Ok(Frame::data(piece))))).boxed_unsync()
    } else {
        Full::new(Bytes::from(bytes))
            .map_err(|never| match never {})
            .boxed_unsync()
    };
    Ok(out.body(body)?)
}

/// Requests.
impl Gateway {
    async fn ask(&mut self, id: u64, worker: usize, request: &Request) -> Result<Seen> {
        self.pods.doors();
        self.pods.expect(id, request.stream);
        let mut connection = self.connection(worker).await?;
        let held = if self.queues { Some(self.held().await?) } else { None };
        let sent = connection.sender.send_request(made(id, request, &self.pods)?);
        let mut head: Coming = tokio::spawn(sent);
        tokio::select! {
            arrival = self.pods.arrival(id) => {
                if !self.rewrites && arrival.body != request.bytes() {
                    self.complaints.push(format!("request {id}: {} got another body", arrival.pod));
                }
                Ok(self.arrived(id, connection, head, arrival))
            }
            answer = &mut head => self.answered(connection, answer??).await,
            held = self.until_held(held) => {
                held?;
                self.waiting.insert(id, Waiting { connection, head, body: request.bytes() });
                Ok(Seen { waits: true, ..Seen::default() })
            }
        }
    }

    /// Requests that were held so far.
    async fn held(&self) -> Result<u64> {
        let text = self.envoy.stats("held$").await?;
        Ok(text
            .lines()
            .filter_map(|line| line.rsplit_once(": ")?.1.trim().parse::<u64>().ok())
            .sum())
    }

    /// Until there is one more. Never, where nothing is held.
    async fn until_held(&self, before: Option<u64>) -> Result<()> {
        let Some(before) = before else {
            return std::future::pending().await;
        };
        while self.held().await? == before {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    fn arrived(&mut self, id: u64, connection: Connection, head: Coming, arrival: Arrival) -> Seen {
        let seen = self.with_pod(&arrival);
        let why = seen.why.clone();
        let flight = Flight {
            connection,
            arrival,
            why,
            head,
            body: None,
            pieces: 0,
        };
        self.flights.insert(id, flight);
        seen
    }

    async fn answered(&mut self, connection: Connection, answer: Response<Incoming>) -> Result<Seen> {
        let header = |name: &str| answer.headers().get(name).and_then(|value| value.to_str().ok());
        let mut seen = Seen {
            status: Some(answer.status().as_u16()),
            reason: header(names::REASON).map(str::to_owned),
            why: header(names::DECISION).unwrap_or_default().to_owned(),
            ..Seen::default()
        };
        let body = answer.into_body().collect().await?.to_bytes();
        seen.answer = String::from_utf8_lossy(&body).into_owned();
        self.idle[connection.worker].push(connection);
        self.calm().await?;
        if seen.reason.as_deref() == Some("model-unknown") {
            // The poller looks again at once.
            let reads = self.stat("models_reads").await?;
            let pods = self.pods.read().len() as u64;
            self.due.get_or_insert_default().models = reads + pods;
        }
        Ok(seen)
    }

    /// What becomes of a request that waits, within a time in which it must.
    async fn came(&mut self, id: u64) -> Result<Option<Seen>> {
        let Some(mut waiting) = self.waiting.remove(&id) else {
            return Ok(None);
        };
        tokio::select! {
            arrival = self.pods.arrival(id) => {
                if !self.rewrites && arrival.body != waiting.body {
                    self.complaints.push(format!("request {id}: {} got another body", arrival.pod));
                }
                Ok(Some(self.arrived(id, waiting.connection, waiting.head, arrival)))
            }
            answer = &mut waiting.head => Ok(Some(self.answered(waiting.connection, answer??).await?)),
            () = tokio::time::sleep(LEAVES_WITHIN) => {
                self.waiting.insert(id, waiting);
                Ok(None)
            }
        }
    }

    /// What the pod that has the request sees.
    fn with_pod(&self, arrival: &Arrival) -> Seen {
        let header = |name: &str| arrival.headers.iter().find(|(key, _)| key == name);
        let value = |name: &str| header(name).map(|(_, value)| value.as_str());
        let why = value(DECISION).filter(|why| *why != "-").unwrap_or_default().to_owned();
        let list = value(names::DESTINATION_ENDPOINT).unwrap_or_default();
        let list = list.split(',').filter(|address| !address.is_empty());
        let own = |(name, _): &&(String, String)| name != ID && name != DECISION;
        Seen {
            list: list.map(|address| self.pods.name(address)).collect(),
            served_by: Some(arrival.pod.clone()),
            status: Some(arrival.status),
            pass: Some(decision(&why, "pass").to_owned()).filter(|reason| !reason.is_empty()),
            body: String::from_utf8_lossy(&arrival.body).into_owned(),
            upstream: arrival.headers.iter().filter(own).cloned().collect(),
            why,
            ..Seen::default()
        }
    }

    async fn proceed(&mut self, id: u64, then: Then) -> Result<()> {
        let Some(mut flight) = self.flights.remove(&id) else {
            if let Some(waiting) = self.waiting.remove(&id) {
                waiting.head.abort();
                waiting.connection.driver.abort();
                self.calm().await?;
            }
            return Ok(());
        };
        if then == Then::ClientLeaves {
            flight.head.abort();
            flight.connection.driver.abort();
            return self.calm().await;
        }
        let streams = matches!(then, Then::FirstToken | Then::Token);
        flight.pieces += 1;
        let answer = if streams {
            Answer::Pieces(flight.pieces)
        } else {
            Answer::All
        };
        flight.arrival.answer.send_replace(answer);
        if flight.body.is_none() {
            let response = (&mut flight.head).await??;
            self.promised(id, &flight, &response);
            flight.body = Some(response.into_body());
        }
        let mut body = flight.body.take().context("no body")?;
        if streams {
            body.frame().await.context("no more bytes")??;
            flight.body = Some(body);
            self.flights.insert(id, flight);
            return Ok(());
        }
        body.collect().await?;
        self.idle[flight.connection.worker].push(flight.connection);
        self.calm().await
    }

    /// The client gets what the pod answered, and is told the decision that the pod saw.
    fn promised(&mut self, id: u64, flight: &Flight, response: &Response<Incoming>) {
        let (status, promised) = (response.status().as_u16(), flight.arrival.status);
        if status != promised {
            self.complaints
                .push(format!("request {id}: the client got {status}, not {promised}"));
        }
        let told = response.headers().get(names::DECISION);
        let told = told.and_then(|value| value.to_str().ok()).unwrap_or_default();
        // A filter that let the request go at its headers adds none, and then has named the reason alone.
        let at_headers = flight.why.strip_prefix("pass=");
        let silent = told.is_empty() && at_headers.is_some_and(|reason| !reason.contains(';'));
        if told != flight.why && !silent {
            self.complaints.push(format!(
                "request {id}: the client is told {told:?}, the log {:?}",
                flight.why
            ));
        }
    }
}

impl Proxy for Gateway {
    const SHOWS_UPSTREAM: bool = true;

    fn wait(&mut self, millis: u64) {
        self.run("wait", async |gateway| {
            tokio::time::sleep(Duration::from_millis(millis)).await;
            match gateway.due.take_if(|_| millis >= PAUSE_MILLIS) {
                Some(due) => gateway.read(&due).await,
                None => Ok(()),
            }
        });
    }

    fn set(&mut self, pod: &str, keys: &serde_json::Value) -> Result<(), String> {
        self.pods.set(pod, keys)?;
        self.pods.doors();
        self.run("set", async |gateway| gateway.changed().await);
        Ok(())
    }

    fn discovery(&mut self, _says: Says) {
        self.complaints.push("a static list has no other answer".to_owned());
    }

    fn service(&mut self, _life: Life) {
        panic!("a file with a step of the service is not for Envoy: there the service lives as long as the process");
    }

    fn send(&mut self, id: u64, worker: usize, request: &Request) -> Seen {
        self.run("request", async |gateway| gateway.ask(id, worker, request).await)
    }

    fn go_on(&mut self, id: u64, then: Then) {
        self.run("answer", async |gateway| gateway.proceed(id, then).await);
    }

    fn left(&mut self, id: u64) -> Option<Seen> {
        self.run("leave", async |gateway| gateway.came(id).await)
    }

    fn log(&self) -> Vec<String> {
        self.envoy.log_text().lines().map(str::to_owned).collect()
    }

    fn sound(&self) -> Result<(), String> {
        let mut wrong = self.complaints.clone();
        let log = self.log().into_iter();
        wrong.extend(log.filter(|line| line.contains("[critical]") || line.contains("panicked")));
        if wrong.is_empty() {
            Ok(())
        } else {
            Err(wrong.join("\n"))
        }
    }
}
