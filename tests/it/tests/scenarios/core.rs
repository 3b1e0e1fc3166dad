//! The core as a proxy: the crates' own poller and views over shared data in memory, no wasm.
//!
//! What the glue does between host calls is done here in the same order, and nothing else.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use berth_filter_routing::decision::{Action, Decision, explain};
use berth_filter_routing::header;
use berth_filter_routing::ledger::Outcome;
use berth_filter_routing::prefix::{Blocks, Hasher};
use berth_filter_routing::request::{Api, Facts, Head, HeadVerdict, PassReason, asks_for_models, classify};
use berth_filter_routing::view::{self, Steering, View};
use berth_shared_state::config::Config;
use berth_shared_state::limits::TICK;
use berth_shared_state::names::Keys;
use berth_shared_state::poll::{Call, CallId, Effect, Event, Poller, Response, Target};
use berth_shared_state::store::{MemoryStore, SharedData};
use berth_shared_state::units::{Millis, UnixMillis};
use berth_tests_it::page::Page;
use berth_tests_it::play::{Proxy, Seen, WORKERS};
use berth_tests_it::scenario::{Life, Request, Says, Scenario, Then};
use berth_tests_it::world::{Attempt, Shared, World};

use super::{LATENCY_MILLIS, Lot, START_MILLIS, document};

/// See the module.
pub struct Core {
    lot: Lot,
    config: Rc<Config>,
    world: Shared,
    store: MemoryStore,
    now: UnixMillis,
    /// One per pool; none while the service is dead.
    pollers: Vec<Poller>,
    refresh: Vec<bool>,
    /// Answers under way: when, and which call of which pool.
    due: BTreeMap<(UnixMillis, u64), (usize, CallId, Page)>,
    calls: u64,
    views: Vec<View>,
    flights: BTreeMap<u64, Flight>,
    waiting: BTreeMap<u64, Waiting>,
    /// Decisions on those that waited.
    left: BTreeMap<u64, Decision>,
    log: Vec<String>,
}

#[derive(Clone, Copy)]
struct Waiting {
    worker: usize,
    streams: bool,
    api: Option<Api>,
}

struct Flight {
    worker: usize,
    attempt: Attempt,
    streams: bool,
    answered: bool,
}

impl Core {
    /// The scenario's proxy, with its first pages read if there is a service.
    pub fn new(scenario: &Scenario, lot: Lot) -> Result<Self, String> {
        let (_, config) = document(scenario, lot, None)?;
        let config = Rc::new(config);
        let world = World::new(scenario, START_MILLIS as f64 / 1000.0, |index| lot.address(index))?;
        let view = |worker| View::new(Rc::clone(&config), worker, lot.seed(worker));
        let mut core = Self {
            lot,
            world: Rc::new(RefCell::new(world)),
            store: MemoryStore::default(),
            now: UnixMillis(START_MILLIS),
            pollers: Vec::new(),
            refresh: vec![false; config.pools.len()],
            due: BTreeMap::new(),
            calls: 0,
            views: (1..=WORKERS as u64).map(view).collect(),
            flights: BTreeMap::new(),
            waiting: BTreeMap::new(),
            left: BTreeMap::new(),
            log: Vec::new(),
            config,
        };
        if !scenario.without_service {
            core.service(Life::Starts);
        }
        Ok(core)
    }

    fn tick(&mut self) {
        for pool in 0..self.pollers.len() {
            if std::mem::take(&mut self.refresh[pool]) {
                self.poll(pool, Event::RefreshModels);
            }
            self.poll(pool, Event::Tick);
        }
        for view in &mut self.views {
            view.tick(&self.store, self.now);
            self.left.extend(view.release(&self.store, self.now));
        }
    }

    fn poll(&mut self, pool: usize, event: Event<'_>) {
        let name = &self.config.pools[pool].name;
        for effect in self.pollers[pool].on(event, self.now) {
            match effect {
                Effect::Call(call) => {
                    let (after, page) = answer(&self.world.borrow(), name, &call, self.now);
                    self.calls += 1;
                    self.due.insert((self.now + after, self.calls), (pool, call.id, page));
                }
                Effect::Publish { bytes } => {
                    self.store
                        .set(&Keys::of(&self.config.pools[pool]).table, &bytes, None)
                        .expect("memory takes any write");
                }
                Effect::Log { text, .. } => self.log.push(format!("pool {name}: {text}")),
                Effect::Count { .. } => {}
            }
        }
    }

    fn answered(&mut self, (pool, call, page): (usize, CallId, Page)) {
        let (status, body) = match page {
            Page::Answer(status, body) => (status, body),
            Page::Refused => (
                503,
                "upstream connect error or disconnect/reset before headers".to_owned(),
            ),
            Page::Silent => (504, "upstream request timeout".to_owned()),
        };
        let outcome = Ok(Response {
            status,
            body: body.as_bytes(),
            ..Response::default()
        });
        if pool < self.pollers.len() {
            self.poll(pool, Event::Answer { call, outcome });
        }
    }
}

/// What a call gets, and when.
fn answer(world: &World, pool: &str, call: &Call, now: UnixMillis) -> (Millis, Page) {
    let seconds = now.since(UnixMillis(START_MILLIS)).0 as f64 / 1000.0;
    let page = match call.target {
        Target::Discovery => world.pods_page(pool),
        Target::Metrics(pod) | Target::Models(pod) => world.get(&pod.to_string(), &call.path, seconds),
    };
    let after = if page == Page::Silent {
        call.timeout
    } else {
        Millis(LATENCY_MILLIS)
    };
    (after, page)
}

/// What the glue makes of a request's head and body.
fn read(head: &Head<'_>, body: &[u8], hold: usize) -> Result<(Facts, Blocks, Option<usize>), PassReason> {
    let mut hasher = Hasher::default();
    let read = match classify(head, hold) {
        HeadVerdict::Pass(reason) => Err(reason),
        HeadVerdict::Hold(mut reader) if body.len() >= reader.bound() => {
            reader.feed(&body[..reader.bound()], &mut hasher);
            Ok((reader.facts(), None))
        }
        HeadVerdict::Hold(mut reader) => {
            reader.feed(body, &mut hasher);
            Ok((reader.finish(), Some(body.len())))
        }
    };
    let (facts, whole) = read?;
    Ok((facts, hasher.finish(), whole))
}

/// The answer to a question for models, if it is one and something is known.
fn listed(view: &mut View, store: &MemoryStore, head: &Head<'_>, now: UnixMillis) -> Option<Seen> {
    let question = asks_for_models(head)?;
    let (status, answer) = view.models(store, &question, now)?;
    Some(Seen {
        status: Some(status),
        answer,
        ..Seen::default()
    })
}

impl Proxy for Core {
    const SHOWS_UPSTREAM: bool = false;

    fn wait(&mut self, millis: u64) {
        let until = self.now + Millis(millis);
        loop {
            let tick = UnixMillis((self.now.0 / TICK.0 + 1) * TICK.0);
            let answer = self.due.first_key_value().map(|((at, _), _)| *at);
            let next = answer.map_or(tick, |at| at.min(tick));
            if next > until {
                self.now = until;
                return;
            }
            self.now = next;
            if answer == Some(next) {
                let (_, due) = self.due.pop_first().expect("it is there");
                self.answered(due);
            } else {
                self.tick();
            }
        }
    }

    fn pause(&mut self) {
        self.wait(self.lot.pace());
    }

    fn set(&mut self, pod: &str, keys: &serde_json::Value) -> Result<(), String> {
        self.world.borrow_mut().set(pod, keys)
    }

    fn discovery(&mut self, says: Says) {
        self.world.borrow_mut().discovery(says);
    }

    fn service(&mut self, life: Life) {
        self.due.clear();
        self.pollers = match life {
            Life::Dies => Vec::new(),
            Life::Starts => self
                .config
                .pools
                .iter()
                .map(|pool| Poller::new(pool, self.config.epoch, 7))
                .collect(),
        };
    }

    fn send(&mut self, id: u64, worker: usize, request: &Request) -> Seen {
        let body = request.bytes();
        let named = request.head(|pod| self.world.borrow().address(pod));
        let headers: Vec<(&str, &[u8])> = named
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_bytes()))
            .collect();
        let head = Head {
            headers: &headers,
            end_of_stream: body.is_empty(),
        };
        let steering = Steering::from_headers(&self.config.trust, headers.iter().copied());
        let view = &mut self.views[worker];
        if let Some(answer) = listed(view, &self.store, &head, self.now) {
            return answer;
        }
        let facts = read(&head, &body, self.config.body.hold_bytes).and_then(|read| {
            let lacks = view.lacks_model(&read.0, &steering);
            if lacks { Err(PassReason::BodyTooLarge) } else { Ok(read) }
        });
        let (facts, prompt, body) = match facts {
            Ok(read) => read,
            Err(reason) => {
                return Seen {
                    pass: Some(reason.as_str().to_owned()),
                    ..Seen::default()
                };
            }
        };
        let asked = view::Request {
            id,
            facts: &facts,
            prompt: &prompt,
            steering: &steering,
            body,
            in_full: true,
        };
        let decision = view.decide(&self.store, &asked, self.now);
        if decision.refresh_models
            && let Some(pool) = self.config.pools.iter().position(|pool| pool.name == decision.why.pool)
        {
            self.refresh[pool] = true;
        }
        let waiting = Waiting {
            worker,
            streams: request.stream,
            api: facts.api,
        };
        self.became(id, waiting, &decision)
    }

    fn go_on(&mut self, id: u64, then: Then) {
        let Some(mut flight) = self.flights.remove(&id) else {
            if let Some(waiting) = self.waiting.remove(&id) {
                self.views[waiting.worker].on_end(&self.store, id, Outcome::Abandoned, self.now);
            }
            return;
        };
        let worker = flight.worker;
        let (view, store, now) = (&mut self.views[flight.worker], &self.store, self.now);
        let Attempt {
            pod,
            attempts,
            status,
            says,
        } = flight.attempt.clone();
        if then == Then::ClientLeaves {
            self.world.borrow_mut().count(&pod, false);
            view.on_end(store, id, Outcome::Abandoned, now);
            return self.release(worker);
        }
        if !flight.answered {
            flight.answered = true;
            let serving = self.world.borrow().address(&pod).and_then(|at| at.parse().ok());
            view.on_upstream(store, id, serving.expect("an address"), Some(attempts), now);
            view.on_first_byte(store, id, status, flight.streams && status == 200, now);
        }
        if then == Then::Token {
            view.on_token(store, id, now);
        }
        if matches!(then, Then::FirstToken | Then::Token) {
            self.flights.insert(id, flight);
        } else {
            self.world.borrow_mut().count(&pod, false);
            view.on_end(store, id, Outcome::of_status(status, says.contains("context")), now);
            self.release(worker);
        }
    }

    fn left(&mut self, id: u64) -> Option<Seen> {
        let decision = self.left.remove(&id)?;
        let waiting = self.waiting.remove(&id)?;
        Some(self.became(id, waiting, &decision))
    }

    fn log(&self) -> Vec<String> {
        self.log.clone()
    }
}

impl Core {
    fn release(&mut self, worker: usize) {
        self.left.extend(self.views[worker].release(&self.store, self.now));
    }

    /// What a decision makes of a request.
    fn became(&mut self, id: u64, request: Waiting, decision: &Decision) -> Seen {
        let mut seen = Seen {
            why: header::decision(decision),
            table: explain::table(&decision.why),
            ..Seen::default()
        };
        match &decision.action {
            Action::Pass(reason) => seen.pass = Some(reason.as_str().to_owned()),
            Action::Reply(refusal) => {
                seen.answer = header::body(refusal, request.api);
                seen.status = Some(refusal.status);
                seen.reason = Some(refusal.reason.as_str().to_owned());
            }
            Action::Route { endpoints, .. } => {
                seen.list = endpoints
                    .iter()
                    .map(|pod| self.world.borrow().name(&pod.to_string()))
                    .collect();
                let attempt = self
                    .world
                    .borrow()
                    .walk(&seen.list)
                    .expect("routed to the scenario's pods");
                self.fly(id, request.worker, request.streams, attempt, &mut seen);
            }
            Action::Hold => {
                seen.waits = true;
                self.waiting.insert(id, request);
            }
        }
        seen
    }

    /// The request is with a pod, or no pod could be reached.
    fn fly(&mut self, id: u64, worker: usize, streams: bool, attempt: Attempt, seen: &mut Seen) {
        if attempt.status == 0 {
            seen.status = Some(503);
            let last = self.world.borrow().address(&attempt.pod).and_then(|at| at.parse().ok());
            let (view, now) = (&mut self.views[worker], self.now);
            view.on_upstream(&self.store, id, last.expect("an address"), Some(attempt.attempts), now);
            return view.on_end(&self.store, id, Outcome::Unreachable, now);
        }
        seen.status = Some(attempt.status);
        seen.served_by = Some(attempt.pod.clone());
        self.world.borrow_mut().count(&attempt.pod, true);
        let flight = Flight {
            worker,
            attempt,
            streams,
            answered: false,
        };
        self.flights.insert(id, flight);
    }
}
