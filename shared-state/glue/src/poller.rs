//! Drives the pure poller of each pool while this context holds the pool's lease: timer and callout
//! answers in, callouts and published tables out.
//!
//! One [`PollerRoot`] per root context, in the service and in the filter. A pool's poller exists only
//! while its lease is held: who stands by keeps nothing and reads the lease once a second.

use std::rc::Rc;

use berth_shared_state::config::{Config, Role};
use berth_shared_state::dialect::Dialect;
use berth_shared_state::lease::{Candidate, Seat};
use berth_shared_state::limits::DISCOVERY_PAGE_MAX_BYTES;
use berth_shared_state::names::{self, Keys};
use berth_shared_state::poll::{Call, CallId, Effect, Event, HeaderValue, Poller, Response, Severity, Stat, Target};
use berth_shared_state::reports::Inbox;
use berth_shared_state::store::{self, SharedData};
use berth_shared_state::table::{self, ScrapeError};
use berth_shared_state::units::Millis;
use hashbrown::HashMap;

use crate::host::{self, Buffer, HostError, HostStore, Map, MetricKind};
use crate::stats::Stats;

/// What a context is, beside what its config says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The companion service: it polls where it can.
    Service,
    /// A root of the filter: it polls where nobody else does.
    Filter,
}

/// One root context that may poll.
pub struct PollerRoot {
    config: Rc<Config>,
    dialect: Dialect,
    /// One for each pool of the config, in its order; none where this context does not poll.
    pools: Vec<PoolPoller>,
    /// Open callouts: the host's token -> pool and the poller's own id.
    open: HashMap<u32, (usize, CallId)>,
    stats: Stats,
}

struct PoolPoller {
    seat: Seat,
    /// While the lease is held.
    poller: Option<Poller>,
    /// Key of the table.
    table: String,
    /// Key of the requests for models pages.
    refresh: String,
    /// Last value of the refresh key that was acted on.
    refreshed: Vec<u8>,
    /// What pods report in their answers to the workers.
    reports: Inbox,
}

/// Logs every mistake of a document; `None` when there are any.
#[must_use]
pub fn parse(document: &[u8]) -> Option<Config> {
    match Config::parse(document) {
        Ok(config) => Some(config),
        Err(errors) => {
            for error in errors {
                log::error!("configuration: {error}");
            }
            None
        }
    }
}

/// Two random numbers in one: the host's entropy through std, and the clock.
#[must_use]
pub fn seed() -> u64 {
    use core::hash::{BuildHasher, Hasher};
    let mut hasher = std::hash::RandomState::new().build_hasher();
    hasher.write_u64(host::now_nanos());
    hasher.finish()
}

impl PollerRoot {
    /// A context of this config that polls nothing yet.
    ///
    /// Nothing is sent or written from here: hosts configure more VMs than they keep.
    #[must_use]
    pub fn new(config: Rc<Config>, part: Part, dialect: Dialect) -> Self {
        let takes_part = match config.role {
            // Nobody would read the table, and no timer would send a call.
            _ if !dialect.shares() => false,
            Role::Auto | Role::Poller => true,
            Role::Service => part == Part::Service,
            Role::Reader => false,
        };
        if part == Part::Service && !takes_part {
            log::info!("role is reader: no pod is polled from here");
        }
        let me = Candidate {
            nonce: seed(),
            epoch: config.epoch,
            born: host::now(),
            preferred: part == Part::Service || config.role == Role::Poller,
        };
        let pools = config.pools.iter().filter(|_| takes_part);
        let pools = pools.map(|pool| {
            let keys = Keys::of(pool);
            PoolPoller {
                seat: Seat::new(keys.lease, me),
                reports: Inbox::new(keys.reports),
                table: keys.table,
                refresh: keys.refresh,
                poller: None,
                refreshed: Vec::new(),
            }
        });
        Self {
            pools: pools.collect(),
            config,
            dialect,
            open: HashMap::new(),
            stats: Stats::default(),
        }
    }

    /// The root's timer.
    pub fn tick(&mut self) {
        for index in 0..self.pools.len() {
            if !self.keeps_lease(index) {
                continue;
            }
            let in_band = self.config.pools.get(index).is_some_and(|pool| pool.scrape.in_band);
            if let Some(pool) = self.pools.get_mut(index).filter(|_| in_band) {
                let reports = pool.reports.tick(&HostStore);
                if !reports.is_empty() {
                    self.feed(index, Event::Reports(&reports));
                }
            }
            if self.wants_refresh(index) {
                self.feed(index, Event::RefreshModels);
            }
            self.feed(index, Event::Tick);
        }
    }

    /// The context is going: others need not wait for the end of its leases.
    pub fn release(&mut self) {
        for pool in &mut self.pools {
            pool.seat.release(&HostStore);
        }
    }

    /// Whether this context polls the pool now. Begins or ends it.
    fn keeps_lease(&mut self, index: usize) -> bool {
        let Some(pool) = self.pools.get_mut(index) else {
            return false;
        };
        let holds = pool.seat.tick(&HostStore, host::now());
        match (holds, pool.poller.is_some()) {
            (true, false) => self.begin(index),
            (false, true) => {
                pool.poller = None;
                if let Some(pool) = self.config.pools.get(index) {
                    log::info!("pool {}: polled by another context now", pool.name);
                }
                self.open.retain(|_, (of, _)| *of != index);
            }
            _ => {}
        }
        holds
    }

    /// Goes on where a former poller of this process stopped, also one of another configuration that reads the same
    /// pods in the same way. A refresh that was asked of that one is no news: pages are read at first sight anyway.
    fn begin(&mut self, index: usize) {
        let (Some(of), Some(pool)) = (self.config.pools.get(index), self.pools.get_mut(index)) else {
            return;
        };
        let name = &of.name;
        define(&mut self.stats, name);
        self.stats.count(&names::pool_stat(name, names::POLLERS_BEGUN), 1);
        pool.poller = Some(Poller::new(of, self.config.epoch, seed()));
        if let Ok(Some(asked)) = HostStore.get(&pool.refresh) {
            pool.refreshed = asked.value;
        }
        let stored = HostStore.get(&pool.table).ok().flatten();
        let table = stored.and_then(|stored| table::decode(&stored.value).ok());
        let goes_on = if table.is_some() { ", on an earlier table" } else { "" };
        log::info!("pool {name}: polled from here{goes_on}");
        if let Some(table) = table {
            self.feed(index, Event::Adopt(&table));
        }
    }

    /// A filter that met an unknown model writes the refresh key.
    fn wants_refresh(&mut self, index: usize) -> bool {
        let Some(pool) = self.pools.get_mut(index) else {
            return false;
        };
        match HostStore.get(&pool.refresh) {
            Ok(Some(stored)) if stored.value != pool.refreshed => {
                pool.refreshed = stored.value;
                true
            }
            _ => false,
        }
    }

    /// A callout was answered, or reset when there are no headers. Tokens of others are not ours.
    pub fn answered(&mut self, token: u32, headers: usize) {
        let Some((index, call)) = self.open.remove(&token) else {
            return;
        };
        if headers == 0 {
            let outcome = Err(self.failure());
            self.feed(index, Event::Answer { call, outcome });
            return;
        }
        let text = |name| String::from_utf8(host::header(Map::CallAnswer, name).unwrap_or_default()).ok();
        let status = text(":status").and_then(|status| status.parse().ok()).unwrap_or(0);
        let location = text("location");
        let retry_after = text("retry-after").and_then(|seconds| seconds.parse::<u64>().ok());
        // One byte more than any page may have shows that there was more; the poller knows each page's own bound.
        let body = host::buffer(Buffer::CallAnswer, 0, DISCOVERY_PAGE_MAX_BYTES + 1).unwrap_or_default();
        let response = Response {
            status,
            body: &body,
            retry_after: retry_after.map(|seconds| Millis(seconds.saturating_mul(1000))),
            location: location.as_deref(),
        };
        self.feed(
            index,
            Event::Answer {
                call,
                outcome: Ok(response),
            },
        );
    }

    /// Why a call ended without an answer.
    fn failure(&self) -> ScrapeError {
        // nginx shows no 504, but says it in a word.
        let why = host::header(Map::CallAnswer, ":dispatch_status");
        match why {
            Ok(why) if !self.dialect.is_envoy() && why == b"timeout" => ScrapeError::Timeout,
            _ => ScrapeError::Unreachable,
        }
    }

    /// Feeds one event and does what comes out; a call that fails at once is an event again.
    fn feed(&mut self, index: usize, event: Event<'_>) {
        let Some(poller) = self.poller(index) else { return };
        let mut effects = poller.on(event, host::now());
        let mut failed = Vec::new();
        while !effects.is_empty() {
            for effect in effects.drain(..) {
                failed.extend(self.apply(index, effect));
            }
            for call in failed.drain(..) {
                let Some(poller) = self.poller(index) else { return };
                let answer = Event::Answer {
                    call,
                    outcome: Err(ScrapeError::NotSent),
                };
                effects.extend(poller.on(answer, host::now()));
            }
        }
    }

    fn poller(&mut self, index: usize) -> Option<&mut Poller> {
        self.pools.get_mut(index)?.poller.as_mut()
    }

    /// Does one thing. Returns the call when it could not be sent.
    fn apply(&mut self, index: usize, effect: Effect) -> Option<CallId> {
        let pool = &self.config.pools.get(index)?.name;
        match effect {
            Effect::Call(call) => {
                return match send(&call, self.dialect) {
                    Ok(token) => {
                        self.open.insert(token, (index, call.id));
                        None
                    }
                    Err(error) => {
                        log::debug!("call to cluster {} failed at once: {error}", call.cluster);
                        Some(call.id)
                    }
                };
            }
            Effect::Publish { bytes } => match store::put(&HostStore, &self.pools.get(index)?.table, &bytes) {
                Ok(()) => {
                    let name = names::pool_stat(pool, names::PUBLISHED_AT);
                    self.stats.gauge(&name, host::now().0 / 1000);
                }
                Err(error) => log::error!("pool {pool}: the table cannot be published: {error}"),
            },
            Effect::Log {
                severity: Severity::Info,
                text,
            } => log::info!("{text}"),
            Effect::Log {
                severity: Severity::Warn,
                text,
            } => log::warn!("{text}"),
            Effect::Count { stat, value } => {
                let name = names::pool_stat(pool, stat.name());
                if stat.is_gauge() {
                    self.stats.gauge(&name, value)
                } else {
                    self.stats.count(&name, value)
                }
            }
        }
        None
    }
}

/// The poller's stats of a pool, known before anything happens.
fn define(stats: &mut Stats, pool: &str) {
    stats.define(MetricKind::Counter, &names::pool_stat(pool, names::POLLERS_BEGUN));
    for stat in Stat::ALL {
        let kind = if stat.is_gauge() {
            MetricKind::Gauge
        } else {
            MetricKind::Counter
        };
        stats.define(kind, &names::pool_stat(pool, stat.name()));
    }
}

/// Sends one call. Variables that are not set leave their header out.
#[allow(
    clippy::disallowed_methods,
    reason = "the VM's environment is where scrape headers come from"
)]
fn send(call: &Call, dialect: Dialect) -> Result<u32, HostError> {
    let named: Vec<(&str, String)> = call
        .headers
        .iter()
        .filter_map(|(name, value)| match value {
            HeaderValue::Text(text) => Some((name.as_str(), text.clone())),
            HeaderValue::Variable(variable) => Some((name.as_str(), std::env::var(variable).ok()?)),
        })
        .collect();
    let mut headers: Vec<(&str, &str)> = vec![
        (":method", "GET"),
        (":path", &call.path),
        (":authority", &call.authority),
    ];
    headers.extend(named.iter().map(|(name, value)| (*name, value.as_str())));
    host::call(target(call, dialect), &headers, call.timeout)
}

/// Whom a call is sent to: a cluster of Envoy, which learns the pod from a header; else the pod itself.
fn target(call: &Call, dialect: Dialect) -> &str {
    match call.target {
        Target::Metrics(_) | Target::Models(_) if !dialect.is_envoy() => &call.authority,
        _ => &call.cluster,
    }
}
