//! The pod behind the endpoints: the engine run in (scaled) real time, its page, its adapters, its faults.

use super::SimulatorConfig;
use super::fault::{Fault, Faults};
use crate::engine::{Engine, EventKind, Micros, Request, RequestId};
use crate::page::{Page, Pinned};
use serde::Serialize;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;

/// Received requests remembered for assertions; older ones are forgotten.
const LOG_MAX: usize = 10_000;

/// One received request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Received {
    /// Method.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// Headers in order, names in lower case; bytes that are not UTF-8 are replaced.
    pub headers: Vec<(String, String)>,
    /// Length of the body.
    pub body_bytes: usize,
    /// [`crate::random::mix_bytes`] of the body from 0: tells whether it came unchanged.
    pub body_hash: u64,
    /// Trailers, as `headers`.
    pub trailers: Vec<(String, String)>,
}

impl Received {
    /// The first header of this name, in lower case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// A registered adapter.
#[derive(Debug, Clone)]
pub(super) struct Registered {
    pub(super) name: String,
    pub(super) path: String,
}

/// Who waits for a request's tokens.
struct Client {
    events: mpsc::UnboundedSender<EventKind>,
    /// It will end by itself, not at its length limit.
    stops: bool,
}

pub(super) struct State {
    pub(super) engine: Engine,
    pub(super) page: Page,
    pub(super) faults: Faults,
    pub(super) adapters: Vec<Registered>,
    pub(super) received: VecDeque<Received>,
    clients: HashMap<RequestId, Client>,
    last_id: RequestId,
}

impl State {
    pub(super) fn render_page(&mut self, now: Micros) -> String {
        let gauges = self.engine.gauges(now).clone();
        self.page.render(&gauges, self.engine.counters())
    }
}

/// One pod. Cheap to share; every access locks it for a moment.
pub(super) struct Pod {
    pub(super) config: SimulatorConfig,
    state: Mutex<State>,
    /// There is new work for the engine.
    work: Notify,
    /// Real time of the engine's `zero`.
    started: Instant,
    zero: Micros,
    /// Unix seconds of `started`.
    started_unix: f64,
    /// Connections are to be refused.
    pub(super) refuse: watch::Sender<bool>,
    /// A listener is open.
    pub(super) listening: watch::Sender<bool>,
    /// Requests in the engine.
    pub(super) in_flight: watch::Sender<usize>,
}

impl Pod {
    /// A pod that has just loaded its adapters and is about to listen.
    pub(super) fn new(mut config: SimulatorConfig) -> Self {
        config.speed = if config.speed.is_finite() && config.speed > 0.0 {
            config.speed
        } else {
            1.0
        };
        let mut engine = Engine::new(config.engine.clone());
        let zero = config.adapters.iter().fold(0, |_, name| engine.load_adapter(name, 0));
        let adapters = config
            .adapters
            .iter()
            .map(|name| Registered {
                name: name.clone(),
                path: format!("/models/lora-{name}"),
            })
            .collect();
        let started_unix = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs_f64();
        let page_zero = started_unix - zero as f64 / 1e6 / config.speed;
        let page = Page::new(engine.config(), &config.model, page_zero, config.speed);
        let state = State {
            engine,
            page,
            faults: Faults::default(),
            adapters,
            received: VecDeque::new(),
            clients: HashMap::new(),
            last_id: 0,
        };
        Self {
            config,
            state: Mutex::new(state),
            work: Notify::new(),
            started: Instant::now(),
            zero,
            started_unix,
            refuse: watch::Sender::new(false),
            listening: watch::Sender::new(true),
            in_flight: watch::Sender::new(0),
        }
    }

    /// A panic elsewhere must not hide behind a poisoned lock.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The engine's time now.
    pub(super) fn now(&self) -> Micros {
        self.zero + (self.started.elapsed().as_secs_f64() * self.config.speed * 1e6) as Micros
    }

    /// Unix seconds now.
    pub(super) fn unix(&self) -> f64 {
        self.started_unix + self.started.elapsed().as_secs_f64()
    }

    /// The real time of an engine's time.
    pub(super) fn instant(&self, at: Micros) -> Instant {
        self.started + Duration::from_secs_f64(at.saturating_sub(self.zero) as f64 / 1e6 / self.config.speed)
    }

    /// Runs the engine for ever.
    pub(super) async fn drive(&self) {
        loop {
            match self.step() {
                Some(at) => {
                    let wakeup = tokio::time::sleep_until(self.instant(at));
                    tokio::select! { () = wakeup => {}, () = self.work.notified() => {} }
                }
                None => self.work.notified().await,
            }
        }
    }

    fn step(&self) -> Option<Micros> {
        let mut state = self.state();
        let report = state.engine.step(self.now());
        state.page.observe(&report);
        for event in report.events {
            let ends = matches!(event.kind, EventKind::Finished(_) | EventKind::Rejected(_));
            let stops = state.clients.get(&event.id).is_some_and(|client| client.stops);
            if matches!(event.kind, EventKind::Finished(_)) {
                state.page.count_end(stops);
            }
            if let Some(client) = state.clients.get(&event.id) {
                // A client that left cancels its request itself.
                let _ = client.events.send(event.kind);
            }
            if ends {
                state.clients.remove(&event.id);
            }
        }
        self.in_flight.send_replace(state.clients.len());
        report.next_wakeup
    }

    /// Gives a request to the engine; its `id` is chosen here.
    pub(super) fn submit(self: &Arc<Self>, request: Request, stops: bool) -> Ticket {
        let (sender, events) = mpsc::unbounded_channel();
        let mut state = self.state();
        state.last_id += 1;
        let id = state.last_id;
        state.clients.insert(id, Client { events: sender, stops });
        state.engine.submit(Request { id, ..request }, self.now());
        self.in_flight.send_replace(state.clients.len());
        self.work.notify_one();
        Ticket {
            id,
            events,
            pod: Arc::clone(self),
        }
    }

    fn cancel(&self, id: RequestId) {
        let mut state = self.state();
        if state.clients.remove(&id).is_some() {
            state.engine.cancel(id, self.now());
            self.in_flight.send_replace(state.clients.len());
            self.work.notify_one();
        }
    }

    /// Registers an adapter; returns when it is loaded.
    pub(super) async fn register(&self, adapter: Registered) {
        let ready = {
            let mut state = self.state();
            let ready = state.engine.load_adapter(&adapter.name, self.now());
            state.adapters.retain(|other| other.name != adapter.name);
            state.adapters.push(adapter);
            ready
        };
        self.work.notify_one();
        tokio::time::sleep_until(self.instant(ready)).await;
    }

    /// Sets a fault; returns when it is in force.
    pub(super) async fn set_fault(&self, fault: Fault) {
        {
            let now = self.now();
            let mut guard = self.state();
            let state = &mut *guard;
            let gauges = state.engine.gauges(now).clone();
            let (page, counters) = (&state.page, state.engine.counters());
            state.faults.set(fault, || page.render(&gauges, counters));
            match fault {
                Fault::Clear => state.engine.set_slowdown(1.0),
                Fault::Slow { factor } => state.engine.set_slowdown(factor),
                _ => {}
            }
        }
        let refuse = match fault {
            Fault::RefuseConnections => true,
            Fault::Clear => false,
            _ => return,
        };
        self.refuse.send_replace(refuse);
        // Fails only when the pod is gone, sender and all.
        let _ = self
            .listening
            .subscribe()
            .wait_for(|listening| *listening != refuse)
            .await;
    }

    /// Pins numbers of the page.
    pub(super) fn pin(&self, pinned: Pinned) {
        let now = self.now();
        self.state().page.pin(pinned, now);
    }

    /// Remembers a request for later assertions.
    pub(super) fn note(&self, received: Received) {
        let mut state = self.state();
        if state.received.len() >= LOG_MAX {
            state.received.pop_front();
        }
        state.received.push_back(received);
    }
}

/// A request in the engine. Dropping it before its end cancels it: that is how a client's disconnect arrives.
pub(super) struct Ticket {
    pub(super) id: RequestId,
    pub(super) events: mpsc::UnboundedReceiver<EventKind>,
    pod: Arc<Pod>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.pod.cancel(self.id);
    }
}
