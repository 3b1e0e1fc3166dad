//! Events in, decisions out, in virtual time: the code of the wasm without a proxy.
//!
//! ```text
//!  pods, scrape, models -> Poller -> table bytes --+                    +-> one line per request
//!                                                  +-> MemoryStore <-> N Views
//!  request, first_token, token, done --------------+                    (one per worker)
//! ```
//!
//! Deliberately not here: a second implementation of anything. The discovery of the config is
//! replaced by `pods` events; before the first one a static list counts.

mod event;
mod output;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use berth_shared_state::config::{Config, Discovery, Pool};
use berth_shared_state::discovery::Found;
use berth_shared_state::limits::{LEDGER_IN_FLIGHT_MAX, QUEUE_WAIT_MAX, TICK};
use berth_shared_state::names::Keys;
use berth_shared_state::pod::PodAddress;
use berth_shared_state::poll::{self, Effect, Poller, Response, Severity, Target};
use berth_shared_state::store::{MemoryStore, SharedData};
use berth_shared_state::table::ScrapeError;
use berth_shared_state::units::UnixMillis;

use crate::decision::{Action, explain};
use crate::ledger::Outcome;
use crate::prefix::{Blocks, Hasher};
use crate::request::{Facts, Head, HeadVerdict, PassReason, asks_for_models, classify};
use crate::view::{self, Steering, View};
use event::{Answer, Event, Id, Line, Request};
use output::{decided, listed, passed, plain};

/// The start of virtual time where none is given: the year 2286, later than any clock on a page
/// and than the sum of a few, so that no LoRA clock is taken for a sum and repaired.
const START_WITHOUT_EPOCH: UnixMillis = UnixMillis(10_000_000_000_000);

/// How to replay.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// For choices among near-equals.
    pub seed: u64,
    /// When t = 0 is; `None` = LoRA clocks are not repaired.
    pub epoch: Option<UnixMillis>,
    /// Views that the requests are dealt to in turn, at least 1.
    pub workers: usize,
    /// Give reasons for every candidate.
    pub in_full: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 0,
            epoch: None,
            workers: 1,
            in_full: false,
        }
    }
}

/// What one line of input led to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    /// Lines for stdout: JSON, one per decided request.
    pub out: Vec<String>,
    /// Lines for stderr: what was skipped, and what the poller would warn of.
    pub notes: Vec<String>,
    /// The decided request's id and its reasons as a table, where they were asked for in full.
    pub explained: Option<(String, String)>,
}

/// A replay under way.
#[derive(Debug)]
pub struct Replay {
    config: Rc<Config>,
    start: UnixMillis,
    in_full: bool,
    store: MemoryStore,
    pools: Vec<PollerOf>,
    views: Vec<View>,
    in_flight: BTreeMap<String, InFlight>,
    /// Ids of those that wait, by number.
    waiting: BTreeMap<u64, Id>,
    requests: u64,
    lines: u64,
    now: UnixMillis,
    ticked_at: UnixMillis,
}

/// The poller of one pool.
#[derive(Debug)]
struct PollerOf {
    table_key: String,
    poller: Poller,
    pods: BTreeSet<PodAddress>,
    /// The set of pods is known: nothing is published before.
    known: bool,
}

/// A routed request.
#[derive(Debug)]
struct InFlight {
    number: u64,
    worker: usize,
    streams: bool,
    answered: bool,
}

impl Replay {
    /// A replay before its first line.
    #[must_use]
    pub fn new(mut config: Config, options: Options) -> Self {
        let mut pools = Vec::new();
        for pool in &mut config.pools {
            let fixed = match &pool.discovery {
                Discovery::Static(list) => Some(list.clone()),
                _ => None,
            };
            // Events replace the discovery and are always current, as a static list is.
            pool.discovery = Discovery::Static(fixed.clone().unwrap_or_default());
            pools.push(PollerOf {
                table_key: Keys::of(pool).table,
                poller: Poller::passive(pool, config.epoch),
                known: fixed.is_some(),
                pods: fixed.unwrap_or_default().into_iter().collect(),
            });
        }
        let start = options.epoch.unwrap_or(START_WITHOUT_EPOCH);
        let config = Rc::new(config);
        let workers = options.workers.max(1) as u64;
        let view = |worker| View::new(Rc::clone(&config), worker, options.seed.wrapping_add(worker));
        Self {
            views: (0..workers).map(view).collect(),
            config,
            start,
            in_full: options.in_full,
            store: MemoryStore::default(),
            pools,
            in_flight: BTreeMap::new(),
            waiting: BTreeMap::new(),
            requests: 0,
            lines: 0,
            now: start,
            ticked_at: start,
        }
    }

    /// Takes one line in. Never fails: what cannot be used is skipped with a note.
    pub fn feed(&mut self, line: &str) -> Answers {
        let mut answers = Answers::default();
        self.lines += 1;
        if line.trim().is_empty() {
            return answers;
        }
        match event::read(line) {
            Ok(line) => self.run(line, &mut answers),
            Err(error) => self.note(&format!("skipped: {error}"), &mut answers),
        }
        answers
    }

    /// One line, whatever the input has in its keys.
    fn note(&self, text: &str, answers: &mut Answers) {
        let text = text.replace(char::is_control, " ");
        answers.notes.push(format!("line {}: {text}", self.lines));
    }

    fn run(&mut self, line: Line, answers: &mut Answers) {
        if !line.skipped.is_empty() {
            self.note(&format!("skipped: {}", line.skipped.join(", ")), answers);
        }
        match line.t {
            Some(t) => self.advance(t, answers),
            None => self.note("no time: \"t\" must be a number of milliseconds", answers),
        }
        match line.event {
            Event::Pods(pods) => self.pods(line.pool.as_deref(), &pods, answers),
            Event::Scrape(pod, answer) => self.page(pod, Target::Metrics(pod), &answer, answers),
            Event::Models(pod, answer) => self.page(pod, Target::Models(pod), &answer, answers),
            Event::Request(request) => self.request(&request, answers),
            Event::FirstToken(id) => self.first_token(&id),
            Event::Token(id) => self.token(&id),
            Event::Done(id, status, failed) => self.done(&id, status, failed, answers),
        }
    }

    /// Moves the clock, which never goes back, and ticks where a root context would have. Where nobody waits, one tick
    /// stands for all that were due since the last event: nothing else happened in between.
    fn advance(&mut self, t: f64, answers: &mut Answers) {
        let at = UnixMillis(self.start.0.saturating_add_signed(t.floor() as i64));
        let to = self.now.max(at);
        let due = UnixMillis(to.0 - to.0 % TICK.0);
        while !self.waiting.is_empty() && self.ticked_at < due {
            self.tick(UnixMillis(self.ticked_at.0 - self.ticked_at.0 % TICK.0) + TICK, answers);
        }
        if due > self.ticked_at {
            self.tick(due, answers);
        }
        self.now = to;
    }

    fn tick(&mut self, at: UnixMillis, answers: &mut Answers) {
        self.ticked_at = at;
        for worker in 0..self.views.len() {
            if let Some(view) = self.views.get_mut(worker) {
                view.tick(&self.store, at);
            }
            self.release(worker, at, answers);
        }
    }

    /// What the glue does with those that may go.
    fn release(&mut self, worker: usize, now: UnixMillis, answers: &mut Answers) {
        let Some(view) = self.views.get_mut(worker) else { return };
        for (number, decision) in view.release(&self.store, now) {
            let Some(id) = self.waiting.remove(&number) else {
                continue;
            };
            if !matches!(decision.action, Action::Route { .. }) {
                self.in_flight.remove(&id.to_string());
            }
            answers.out.push(decided(&id, &decision));
        }
    }

    /// The end of the input: time passes until nobody waits any more.
    pub fn finish(&mut self) -> Answers {
        let mut answers = Answers::default();
        let last = self.now + QUEUE_WAIT_MAX + TICK;
        while !self.waiting.is_empty() && self.ticked_at < last {
            self.tick(self.ticked_at + TICK, &mut answers);
        }
        answers
    }

    /// A whole set of pods: of the pool named, of the only one, or each of the pool whose list has
    /// it, else of the first.
    fn pods(&mut self, pool: Option<&str>, pods: &[(Option<String>, PodAddress)], answers: &mut Answers) {
        let named = pool.map(|name| self.config.pools.iter().position(|pool| pool.name == name));
        if named == Some(None) {
            return self.note("skipped: no such pool", answers);
        }
        let lists = |pool: &Pool, pod| matches!(&pool.discovery, Discovery::Static(list) if list.contains(&pod));
        let of_config = |pod| self.config.pools.iter().position(|pool| lists(pool, pod)).unwrap_or(0);
        let mut sets: BTreeMap<usize, Vec<Found>> = BTreeMap::new();
        match named.flatten() {
            Some(index) => drop(sets.insert(index, Vec::new())),
            None => sets.extend((0..self.pools.len()).map(|index| (index, Vec::new()))),
        }
        for (name, pod) in pods {
            let index = named.flatten().unwrap_or_else(|| of_config(*pod));
            sets.entry(index).or_default().push(Found {
                name: name.clone(),
                ..Found::at(*pod)
            });
        }
        for (index, found) in sets {
            if let Some(of) = self.pools.get_mut(index) {
                of.known = true;
                of.pods = found.iter().map(|found| found.address).collect();
            }
            self.poll(index, poll::Event::Pods(found), answers);
        }
    }

    fn page(&mut self, pod: PodAddress, target: Target, answer: &Answer, answers: &mut Answers) {
        let outcome = match answer {
            Answer::Page { status, body } => Ok(Response {
                status: *status,
                body: body.as_bytes(),
                ..Response::default()
            }),
            Answer::Failed { error } if error.to_ascii_lowercase().contains("time") => Err(ScrapeError::Timeout),
            Answer::Failed { .. } => Err(ScrapeError::Unreachable),
        };
        let having: Vec<usize> = (0..self.pools.len())
            .filter(|index| self.pools.get(*index).is_some_and(|of| of.pods.contains(&pod)))
            .collect();
        if having.is_empty() {
            self.note(&format!("skipped: {pod} is no pod of any pool"), answers);
        }
        for index in having {
            self.poll(index, poll::Event::Page { target, outcome }, answers);
        }
    }

    /// Gives the poller an event and stores what it publishes.
    fn poll(&mut self, index: usize, event: poll::Event<'_>, answers: &mut Answers) {
        let Some(of) = self.pools.get_mut(index).filter(|of| of.known) else {
            return;
        };
        let mut effects = of.poller.on(event, self.now);
        effects.extend(of.poller.on(poll::Event::Tick, self.now));
        for effect in effects {
            match effect {
                Effect::Publish { bytes } => {
                    // The store in memory takes any unconditional write.
                    let _ = self.store.set(&of.table_key, &bytes, None);
                }
                Effect::Log {
                    severity: Severity::Warn,
                    text,
                } => answers.notes.push(format!("line {}: {text}", self.lines)),
                Effect::Log { .. } | Effect::Call(_) | Effect::Count { .. } => {}
            }
        }
    }

    fn request(&mut self, request: &Request, answers: &mut Answers) {
        // A static list that no event has replaced is published with the first request.
        for index in 0..self.pools.len() {
            self.poll(index, poll::Event::Tick, answers);
        }
        let headers = headers(request);
        let head = Head {
            headers: &headers,
            end_of_stream: request.body.is_empty(),
        };
        let steering = Steering::from_headers(&self.config.trust, headers.iter().copied());
        self.requests += 1;
        let worker = (self.requests as usize - 1) % self.views.len();
        let Some(view) = self.views.get_mut(worker) else {
            return;
        };
        let question = asks_for_models(&head);
        if let Some((status, _)) = question.and_then(|question| view.models(&self.store, &question, self.now)) {
            return answers.out.push(listed(&request.id, status));
        }
        let facts = read(&head, request, self.config.body.hold_bytes);
        let facts = facts.and_then(|read| match view.lacks_model(&read.0, &steering) {
            true => Err(PassReason::BodyTooLarge),
            false => Ok(read),
        });
        match facts {
            Err(reason) => {
                answers.out.push(passed(&request.id, reason));
                let text = format!("passed to the proxy's own balancer: {}\n", reason.as_str());
                answers.explained = self.in_full.then(|| (plain(&request.id), text));
            }
            Ok((facts, prompt, body)) => {
                let (id, steering) = (self.requests, &steering);
                let asked = view::Request {
                    id,
                    facts: &facts,
                    prompt: &prompt,
                    steering,
                    body,
                    in_full: self.in_full,
                };
                let decision = view.decide(&self.store, &asked, self.now);
                if matches!(decision.action, Action::Route { .. } | Action::Hold) {
                    self.follow(&request.id, worker, facts.stream);
                }
                if decision.action == Action::Hold {
                    self.waiting.insert(self.requests, request.id.clone());
                }
                answers.out.push(decided(&request.id, &decision));
                answers.explained = self
                    .in_full
                    .then(|| (plain(&request.id), explain::table(&decision.why)));
            }
        }
    }

    fn follow(&mut self, id: &Id, worker: usize, streams: bool) {
        if self.in_flight.len() >= LEDGER_IN_FLIGHT_MAX * self.views.len() {
            self.in_flight.pop_first();
        }
        let request = InFlight {
            number: self.requests,
            worker,
            streams,
            answered: false,
        };
        if let Some(same) = self.in_flight.insert(id.to_string(), request)
            && let Some(view) = self.views.get_mut(same.worker)
        {
            self.waiting.remove(&same.number);
            view.on_end(&self.store, same.number, Outcome::Abandoned, self.now);
        }
    }

    fn first_token(&mut self, id: &Id) {
        let Some(request) = self.in_flight.get_mut(&id.to_string()) else {
            return;
        };
        request.answered = true;
        if let Some(view) = self.views.get_mut(request.worker) {
            view.on_first_byte(&self.store, request.number, 200, request.streams, self.now);
        }
    }

    fn token(&mut self, id: &Id) {
        if let Some(request) = self.in_flight.get(&id.to_string())
            && let Some(view) = self.views.get_mut(request.worker)
        {
            view.on_token(&self.store, request.number, self.now);
        }
    }

    fn done(&mut self, id: &Id, status: Option<u16>, failed: bool, answers: &mut Answers) {
        let Some(request) = self.in_flight.remove(&id.to_string()) else {
            return;
        };
        let outcome = match status {
            _ if failed => Outcome::Unreachable,
            // A stream that ended before its first token: the client left.
            Some(200..=299) if request.streams && !request.answered => Outcome::Abandoned,
            Some(status) => Outcome::of_status(status, false),
            None => Outcome::Abandoned,
        };
        // One that waits has no answer yet: its client left.
        self.waiting.remove(&request.number);
        if let Some(view) = self.views.get_mut(request.worker) {
            view.on_end(&self.store, request.number, outcome, self.now);
        }
        self.release(request.worker, self.now, answers);
    }
}

/// Names and values of the head.
fn headers(request: &Request) -> Vec<(&str, &[u8])> {
    let path = request.path.iter().map(|path| (":path", path.as_bytes()));
    let others = request.headers.iter();
    path.chain(others.map(|(name, value)| (name.as_str(), value.as_bytes())))
        .collect()
}

/// What the glue does with a head and a body that comes in one piece. The number: bytes of a body that is held whole.
fn read(head: &Head<'_>, request: &Request, hold_bytes: usize) -> Result<(Facts, Blocks, Option<usize>), PassReason> {
    let body = request.body.as_bytes();
    let mut reader = match classify(head, hold_bytes) {
        HeadVerdict::Pass(reason) => return Err(reason),
        HeadVerdict::Hold(reader) => reader,
    };
    let held = body.get(..reader.bound()).unwrap_or(body);
    let mut hasher = Hasher::default();
    reader.feed(held, &mut hasher);
    let (facts, whole) = if held.len() == body.len() {
        (reader.finish(), Some(body.len()))
    } else {
        (reader.facts(), None)
    };
    Ok((facts, hasher.finish(), whole))
}

#[cfg(test)]
mod tests;
