//! The poller of one pool: when to read which page, what the answers mean over time, and when to
//! publish. A state machine: an [`Event`] and the time go in, [`Effect`]s come out.
//!
//! ```text
//!             discovery answers, or the static list
//!                              |
//!                              v            every page and pod has one of these
//!   +--------------------- due (slot) <---------------------------------+
//!   |                          | Tick                                   |
//!   |                          v                                        |
//!   |   Effect::Call <----- open ------ Answer: good page ------------->+ next slot of its own phase
//!   |                          |------- Answer: failure, bad page ----->+ backs off: 1, 2, 4, 8 intervals,
//!   |                          |------- no answer: timeout + grace ---->+   at most 30 s, less some jitter
//!   |                          |                                          (the last reading stays, and ages)
//!   |                          v good page
//!   |        Sample + history -> row: rates, trend, incarnation
//!   |          a counter fell, or the start moved -> incarnation + 1, rates void, models page due at once
//!   |          equal pages under load            -> Trend::Frozen
//!   |          a queue with nothing running      -> Trend::Stuck
//!   |          an earlier process again and again -> Trend::Several
//!   |          far fewer tokens than usual       -> slow
//!   |                          |
//!   |                          v Tick
//!   +-- pod gone        Effect::Publish, once, when something changed or as a heartbeat
//! ```
//!
//! Deliberately not here: who polls ([`crate::lease`]), how a page is read ([`crate::metrics`],
//! [`crate::models`], [`crate::discovery`]), and what the readings mean for a request.

mod answer;
mod effect;
mod find;
mod history;
mod journal;
mod pace;
mod pod;
mod publish;
mod report;
mod schedule;
mod settle;
mod tempo;

use std::collections::BTreeMap;

pub use effect::{Call, CallId, Effect, Event, HeaderValue, Outcome, Response, Severity, Stat, Target};

use crate::clock::{Clock, Now};
use crate::config::{Discovery, Pool};
use crate::discovery;
use crate::limits::{
    CALL_GRACE, CALLS_OPEN_MAX, MODELS_REFRESH_MIN, NAMES_MAX, PUBLISH_HEARTBEAT, PUBLISH_MIN, REFRESH_AT_ONCE,
    REFRESH_SPREAD, TABLE_BYTES_PER_MILLI,
};
use crate::pod::PodAddress;
use crate::table::{Discovered, ScrapeError, Table};
use crate::units::{Millis, UnixMillis};

use answer::{metrics_path, metrics_port};
use effect::Tally;
use find::Finder;
use journal::Journal;
use pace::{Bucket, Pace};
use pod::Pod;
use publish::{Fitted, Publisher};
use schedule::Schedule;

/// Reads the pods of one pool and makes its table.
#[derive(Debug)]
pub struct Poller {
    pool: Pool,
    epoch: u64,
    seed: u64,
    rng: fastrand::Rng,
    /// Pages are pushed in; nothing is asked for.
    passive: bool,
    clock: Clock,
    /// The pods are known, or known to be unknown.
    begun: bool,
    finder: Finder,
    discovered: Discovered,
    pods: BTreeMap<PodAddress, Pod>,
    open: BTreeMap<CallId, Open>,
    bucket: Bucket,
    last_call: CallId,
    /// A table of another configuration, until it is known which pods there are.
    earlier: Option<Table>,
    /// Above the incarnation of every pod that went: its address may come back as another pod.
    next_incarnation: u32,
    refreshed_at: Option<Millis>,
    publisher: Publisher,
    seq: u64,
    /// Something changed since the last publish.
    dirty: bool,
    published_at: Option<Millis>,
    /// Length of that table.
    published_bytes: usize,
    fitted: Fitted,
    /// Time between two scrapes that was told last, if it is not the configured one.
    stretched: Option<Millis>,
    journal: Journal,
    tally: Tally,
}

/// A call without an answer.
#[derive(Clone, Copy, Debug)]
struct Open {
    target: Target,
    expires: Millis,
}

impl Poller {
    /// A poller that has read nothing yet. `epoch` is the config's; `seed` keeps the pollers of
    /// several proxies apart in time.
    #[must_use]
    pub fn new(pool: &Pool, epoch: u64, seed: u64) -> Self {
        Self {
            pool: pool.clone(),
            epoch,
            seed,
            rng: fastrand::Rng::with_seed(seed),
            passive: false,
            clock: Clock::default(),
            begun: false,
            finder: Finder::default(),
            discovered: Discovered::default(),
            pods: BTreeMap::new(),
            open: BTreeMap::new(),
            bucket: Bucket::default(),
            last_call: CallId(0),
            earlier: None,
            next_incarnation: 0,
            refreshed_at: None,
            publisher: Publisher::default(),
            seq: 0,
            dirty: false,
            published_at: None,
            published_bytes: 0,
            fitted: Fitted::All,
            stretched: None,
            journal: Journal::new(&pool.name),
            tally: Tally::default(),
        }
    }

    /// A poller that makes no calls: everything comes as [`Event::Page`] and [`Event::Pods`].
    #[must_use]
    pub fn passive(pool: &Pool, epoch: u64) -> Self {
        Self {
            passive: true,
            ..Self::new(pool, epoch, 0)
        }
    }

    /// Takes an event in. Every call that is asked for must be answered, with
    /// [`ScrapeError::NotSent`] if need be; else it expires.
    pub fn on(&mut self, event: Event<'_>, now: UnixMillis) -> Vec<Effect> {
        let now = self.clock.read(now);
        let mut effects = Vec::new();
        self.begin(now);
        match event {
            Event::Tick => self.tick(now, &mut effects),
            Event::Answer { call, outcome } => match self.close(call) {
                Some(target) => self.settle(target, outcome, now),
                None => self.tally.add(Stat::AnswersIgnored, 1),
            },
            Event::Page { target, outcome } => self.settle(target, outcome, now),
            Event::Adopt(table) => self.adopt(table, now),
            Event::Reports(reports) => self.settle_reports(reports, now),
            Event::Pods(pods) => self.settle_pods(discovery::one_per_address(pods), now),
            Event::RefreshModels => self.refresh_models(now, &mut effects),
        }
        effects.extend(self.journal.take());
        effects
    }

    /// A static list needs no answer.
    fn begin(&mut self, now: Now) {
        if let (false, Discovery::Static(list)) = (self.begun, &self.pool.discovery) {
            self.settle_pods(discovery::fixed(list), now);
        }
    }

    fn tick(&mut self, now: Now, effects: &mut Vec<Effect>) {
        let expired: Vec<CallId> = self
            .open
            .iter()
            .filter(|(_, open)| open.expires <= now.steady)
            .map(|(id, _)| *id)
            .collect();
        for id in expired {
            if let Some(target) = self.close(id) {
                self.tally.add(Stat::CallsExpired, 1);
                self.settle(target, Err(ScrapeError::Timeout), now);
            }
        }
        self.start_calls(now, effects);
        self.publish(now, effects);
        self.tally.add(Stat::LogLinesLeftOut, self.journal.take_left_out());
        self.tally.set(Stat::CallsOpen, self.open.len() as u64);
        self.tally.set(Stat::Pods, self.pods.len() as u64);
        self.tally.set(Stat::ScrapeInterval, self.pace().metrics.0);
        self.tally.flush(effects);
    }

    fn pace(&self) -> Pace {
        Pace::of(&self.pool.scrape, self.pods.len())
    }

    /// Starts what is due, the longest overdue first, within the budget.
    fn start_calls(&mut self, now: Now, effects: &mut Vec<Effect>) {
        if self.passive {
            return;
        }
        let mut due = Vec::new();
        if self.pool.discovery.interval().is_some() && self.finder.schedule.is_due(now) {
            due.push((Millis(0), Target::Discovery));
        }
        for (address, pod) in &self.pods {
            if pod.metrics.is_due(now) {
                due.push((pod.metrics.due, Target::Metrics(*address)));
            }
            if pod.models.is_due(now) {
                due.push((pod.models.due, Target::Models(*address)));
            }
        }
        due.sort_unstable();
        due.truncate(CALLS_OPEN_MAX.saturating_sub(self.open.len()));
        self.bucket.fill(self.pool.scrape.per_second, now);
        for (_, target) in due {
            // The reading of the pods stands first, and outside the budget.
            if target != Target::Discovery && !self.bucket.take() {
                break;
            }
            let call = self.call(target);
            let expires = now.steady + call.timeout + CALL_GRACE;
            self.open.insert(call.id, Open { target, expires });
            if let Some(schedule) = self.schedule(target) {
                schedule.open = true;
            }
            effects.push(Effect::Call(call));
        }
    }

    fn call(&mut self, target: Target) -> Call {
        self.last_call = CallId(self.last_call.0.saturating_add(1));
        let scrape = &self.pool.scrape;
        let of_pod = |address: PodAddress, path: &str, accept: &str| {
            let authority = address.to_string();
            let mut headers = vec![
                text(&scrape.address_header, &authority),
                text("accept", accept),
                text("accept-encoding", "identity"),
            ];
            headers.extend(from_environment(&scrape.headers));
            // Envoy's cluster decides about TLS; WasmX goes by the scheme.
            headers.extend(scrape.tls.then(|| text(":scheme", "https")));
            Call {
                id: self.last_call,
                target,
                cluster: scrape.cluster.clone(),
                path: path.to_owned(),
                authority,
                headers,
                timeout: scrape.timeout,
            }
        };
        match target {
            Target::Metrics(pod) => {
                let mut socket = pod.socket();
                socket.set_port(metrics_port(&self.pool).unwrap_or(socket.port()));
                of_pod(
                    PodAddress::new(socket),
                    metrics_path(&self.pool),
                    "text/plain;version=0.0.4",
                )
            }
            Target::Models(pod) => of_pod(pod, "/v1/models", "application/json"),
            Target::Discovery => self.finder.call(self.last_call, &self.pool.discovery),
        }
    }

    /// The call has ended. `None` = it had before, or was never made.
    fn close(&mut self, id: CallId) -> Option<Target> {
        let target = self.open.remove(&id)?.target;
        if let Some(schedule) = self.schedule(target) {
            schedule.open = false;
        }
        Some(target)
    }

    fn schedule(&mut self, target: Target) -> Option<&mut Schedule> {
        match target {
            Target::Discovery => Some(&mut self.finder.schedule),
            Target::Metrics(address) => self.pods.get_mut(&address).map(|pod| &mut pod.metrics),
            Target::Models(address) => self.pods.get_mut(&address).map(|pod| &mut pod.models),
        }
    }

    fn refresh_models(&mut self, now: Now, effects: &mut Vec<Effect>) {
        let just_now = |at: Millis| now.steady.since(at) < MODELS_REFRESH_MIN;
        if self.passive || self.refreshed_at.is_some_and(just_now) {
            return;
        }
        self.refreshed_at = Some(now.steady);
        // A pod that refused its page keeps its back-off.
        // Clients choose model names: many pods are not asked in one instant because of one.
        let spread = (self.pods.len() as u64 * REFRESH_SPREAD.0).clamp(1, MODELS_REFRESH_MIN.0);
        for (address, pod) in self.pods.iter_mut().filter(|(_, pod)| pod.models.failures == 0) {
            let wait = if spread < REFRESH_AT_ONCE.0 {
                0
            } else {
                address.key().0 % spread
            };
            pod.models.due = Millis(now.steady.0 + wait);
        }
        self.start_calls(now, effects);
    }

    fn publish(&mut self, now: Now, effects: &mut Vec<Effect>) {
        let least = PUBLISH_MIN.max(Millis((self.published_bytes / TABLE_BYTES_PER_MILLI) as u64));
        let wait = match (self.dirty, self.passive) {
            (false, _) => PUBLISH_HEARTBEAT,
            (true, false) => least,
            // What is pushed in is to be seen by the next request.
            (true, true) => Millis(0),
        };
        let is_early = |at: Millis| now.steady.since(at) < wait;
        if !self.begun || self.published_at.is_some_and(is_early) {
            return;
        }
        self.dirty = false;
        self.published_at = Some(now.steady);
        self.seq = self.seq.saturating_add(1);
        if matches!(self.pool.discovery, Discovery::Static(_)) {
            self.discovered.at = Some(now.wall);
        }
        let head = Table {
            seq: self.seq,
            written_at: now.wall,
            config_epoch: self.epoch,
            discovery: self.discovered.clone(),
            scrape_interval: self.pace().metrics,
            ..Table::default()
        };
        match self.publisher.encode(head, &mut self.pods) {
            Ok((bytes, fitted)) => {
                self.tally.add(Stat::Publishes, 1);
                self.tally.add(Stat::PublishedBytes, bytes.len());
                self.published_bytes = bytes.len();
                effects.push(Effect::Publish { bytes });
                self.tell_fitted(fitted, now);
            }
            Err(error) => self
                .journal
                .warn(now, format_args!("the table cannot be published: {error}")),
        }
    }

    fn tell_fitted(&mut self, fitted: Fitted, now: Now) {
        if self.fitted == fitted {
            return;
        }
        self.fitted = fitted;
        let journal = &mut self.journal;
        match fitted {
            Fitted::All => journal.info(now, format_args!("the table is complete again")),
            Fitted::NotAllNames => journal.warn(
                now,
                format_args!(
                    "more than {NAMES_MAX} model and adapter names: those of the last pods are left out; split the pool"
                ),
            ),
            Fitted::NoAdapterLists => journal.warn(
                now,
                format_args!("the table is too large: adapter lists are left out, requests go by load; split the pool"),
            ),
            Fitted::OnlyLoad => journal.warn(
                now,
                format_args!("the table is too large: everything but load is left out; split the pool"),
            ),
        }
    }
}

/// A header as it stands.
fn text(name: &str, value: &str) -> (String, HeaderValue) {
    (name.to_owned(), HeaderValue::Text(value.to_owned()))
}

/// Headers whose values the VM's environment has.
fn from_environment(headers: &[(String, String)]) -> impl Iterator<Item = (String, HeaderValue)> {
    { headers }
        .iter()
        .map(|(name, variable)| (name.clone(), HeaderValue::Variable(variable.clone())))
}

#[cfg(test)]
mod tests;
