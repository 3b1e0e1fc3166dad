//! Pods as a scenario has them: real servers whose pages are what the file says, and whose answers come when the
//! steps say so.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use anyhow::{Context, Result};
use berth_tests_e2e::envoy::free_port;
use berth_tests_it::page::Page;
use berth_tests_it::scenario::Scenario;
use berth_tests_it::world::World;
use futures_util::stream::unfold;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

/// Carries a request's id to the pod.
pub const ID: &str = "x-scenario-id";

/// Which connections a pod takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Door {
    Open,
    /// None for requests: no new ones, and those that carried any are closed. Its pages are still read.
    OnlyPages,
    Closed,
}

/// How far an answer has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answer {
    Nothing,
    /// So many pieces of it went out.
    Pieces(u32),
    All,
}

/// A request that is with a pod.
#[derive(Clone)]
pub struct Arrival {
    pub pod: String,
    /// The status it will get.
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Bytes,
    /// What the pod is to do.
    pub answer: Arc<watch::Sender<Answer>>,
}

/// All pods of a scenario.
#[derive(Clone)]
pub struct Pods {
    state: Arc<Mutex<State>>,
    arrived: Arc<Notify>,
}

struct State {
    world: World,
    began: Instant,
    doors: BTreeMap<String, watch::Sender<Door>>,
    /// Answered metrics pages of each pod.
    read: BTreeMap<String, u64>,
    /// Requests that asked for a stream.
    streams: BTreeMap<u64, bool>,
    arrivals: BTreeMap<u64, Arrival>,
}

impl Pods {
    /// Pods at free ports, serving, and their addresses by name.
    pub async fn start(scenario: &Scenario) -> Result<(Self, BTreeMap<String, SocketAddr>)> {
        let mut addresses = BTreeMap::new();
        for name in scenario.pods.keys() {
            addresses.insert(name.clone(), free_port()?);
        }
        let places: Vec<String> = addresses.values().map(ToString::to_string).collect();
        let start = std::time::SystemTime::UNIX_EPOCH.elapsed()?.as_secs_f64();
        let world = World::new(scenario, start, |index| places[index].clone()).map_err(anyhow::Error::msg)?;
        let doors = addresses
            .keys()
            .map(|name| (name.clone(), watch::Sender::new(Door::Open)));
        let state = State {
            world,
            began: Instant::now(),
            doors: doors.collect(),
            read: BTreeMap::new(),
            streams: BTreeMap::new(),
            arrivals: BTreeMap::new(),
        };
        let pods = Self {
            state: Arc::new(Mutex::new(state)),
            arrived: Arc::default(),
        };
        for (name, address) in &addresses {
            let listener = TcpListener::bind(address).await.context("a pod's port was taken")?;
            tokio::spawn(pods.clone().serve(name.clone(), listener, *address));
        }
        Ok((pods, addresses))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics with it")
    }

    /// A pod changes, its door apart.
    pub fn set(&self, pod: &str, keys: &serde_json::Value) -> Result<(), String> {
        self.state().world.set(pod, keys)
    }

    /// Opens and closes doors as the pods' states say.
    pub fn doors(&self) {
        let state = self.state();
        for (name, door) in &state.doors {
            let up = state.page(name, "/metrics") != Page::Refused;
            let takes = state
                .world
                .walk(std::slice::from_ref(name))
                .is_some_and(|at| at.status != 0);
            door.send_replace(match (takes, up) {
                (true, _) => Door::Open,
                (false, true) => Door::OnlyPages,
                (false, false) => Door::Closed,
            });
        }
    }

    pub fn address(&self, pod: &str) -> Option<String> {
        self.state().world.address(pod)
    }

    pub fn name(&self, address: &str) -> String {
        self.state().world.name(address)
    }

    /// For each pod: the status of its metrics page, 0 when none comes, and how many were answered so far.
    pub fn read(&self) -> BTreeMap<String, (u16, u64)> {
        let state = self.state();
        let of = |name: &String| {
            let status = match state.page(name, "/metrics") {
                Page::Answer(status, _) => status,
                Page::Refused | Page::Silent => 0,
            };
            (name.clone(), (status, state.read.get(name).copied().unwrap_or(0)))
        };
        state.doors.keys().map(of).collect()
    }

    /// A request will come.
    pub fn expect(&self, id: u64, streams: bool) {
        self.state().streams.insert(id, streams);
    }

    /// Waits until a request is with a pod.
    pub async fn arrival(&self, id: u64) -> Arrival {
        loop {
            let news = self.arrived.notified();
            if let Some(arrival) = self.state().arrivals.get(&id) {
                return arrival.clone();
            }
            news.await;
        }
    }

    async fn serve(self, pod: String, listener: TcpListener, address: SocketAddr) {
        let mut door = self.state().doors[&pod].subscribe();
        let for_each = door.clone();
        let mut listener = Some(listener);
        let mut connections = JoinSet::new();
        loop {
            match &listener {
                Some(open) => tokio::select! {
                    accepted = open.accept() => if let Ok((stream, _)) = accepted {
                        connections.spawn(self.clone().connection(pod.clone(), stream, for_each.clone()));
                    },
                    Some(_) = connections.join_next() => {}
                    _ = door.wait_for(|door| *door != Door::Open) => listener = None,
                },
                None => {
                    let _ = door.wait_for(|door| *door == Door::Open).await;
                    listener = TcpListener::bind(address).await.ok();
                }
            }
        }
    }

    async fn connection(self, pod: String, stream: TcpStream, mut door: watch::Receiver<Door>) {
        let _ = stream.set_nodelay(true);
        let asked = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&asked);
        let service = service_fn(|request: Request<Incoming>| {
            let (pods, pod, flag) = (self.clone(), pod.clone(), Arc::clone(&flag));
            async move {
                match request.headers().get(ID).and_then(|id| id.to_str().ok()?.parse().ok()) {
                    Some(id) => {
                        flag.store(true, Ordering::Relaxed);
                        pods.request(id, &pod, request).await
                    }
                    None => pods.page(&pod, request.uri().path()).await,
                }
            }
        });
        let served = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        let closed = door.wait_for(|door| match door {
            Door::Open => false,
            Door::OnlyPages => asked.load(Ordering::Relaxed),
            Door::Closed => true,
        });
        tokio::select! { _ = served => {}, _ = closed => {} }
    }

    async fn page(&self, pod: &str, path: &str) -> Result<Response<Body>> {
        let page = {
            let mut state = self.state();
            let page = state.page(pod, path);
            let answered = matches!(page, Page::Answer(..)) && path != "/v1/models";
            *state.read.entry(pod.to_owned()).or_default() += u64::from(answered);
            page
        };
        match page {
            Page::Answer(status, text) => Ok(Response::builder().status(status).body(whole(text))?),
            // An error drops the connection.
            Page::Refused => anyhow::bail!("no page"),
            Page::Silent => std::future::pending().await,
        }
    }

    async fn request(&self, id: u64, pod: &str, request: Request<Incoming>) -> Result<Response<Body>> {
        let (head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let text = |(name, value): (&hyper::header::HeaderName, &hyper::header::HeaderValue)| {
            (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned())
        };
        let headers = head.headers.iter().map(text).collect();
        let answer = Arc::new(watch::Sender::new(Answer::Nothing));
        let mut told = answer.subscribe();
        let (status, says, streams) = {
            let mut state = self.state();
            let at = state.world.walk(&[pod.to_owned()]).context("no such pod")?;
            let arrival = Arrival {
                pod: pod.to_owned(),
                status: at.status,
                headers,
                body,
                answer,
            };
            state.arrivals.insert(id, arrival);
            (at.status, at.says, state.streams.get(&id) == Some(&true))
        };
        self.arrived.notify_waiters();
        told.wait_for(|answer| *answer != Answer::Nothing).await?;
        let kind = if streams && status == 200 {
            "text/event-stream"
        } else {
            "application/json"
        };
        let says = if says.is_empty() {
            "data: {}\n\n".to_owned()
        } else {
            says
        };
        let body = unfold((0, says, told), |(sent, says, mut told)| async move {
            let goes_on = |answer: &Answer| matches!(answer, Answer::Pieces(due) if *due > sent);
            let told_so = told.wait_for(|answer| *answer == Answer::All || goes_on(answer)).await;
            let told_so = told_so.ok().map(|answer| *answer);
            let sends = sent == 0 || told_so.is_some_and(|answer| goes_on(&answer));
            let piece = Bytes::from(says.clone());
            sends.then_some((Ok(Frame::data(piece)), (sent + 1, says, told)))
        });
        let response = Response::builder().status(status).header("content-type", kind);
        Ok(response.body(BodyExt::boxed_unsync(StreamBody::new(Box::pin(body))))?)
    }
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

fn whole(text: String) -> Body {
    Full::new(Bytes::from(text)).boxed_unsync()
}

impl State {
    fn page(&self, pod: &str, path: &str) -> Page {
        let address = self.world.address(pod).unwrap_or_default();
        self.world.get(&address, path, self.began.elapsed().as_secs_f64())
    }
}
