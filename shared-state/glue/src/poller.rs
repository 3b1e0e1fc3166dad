//! Drives the pure poller: timer and callout answers in, callouts and published tables out.
//!
//! One [`PollerRoot`] per root context, with one pure poller per pool. It is used by the service;
//! the filter's roots can hold one too where no service can be deployed.

use berth_shared_state::config::{Config, Role};
use berth_shared_state::limits::{DISCOVERY_PAGE_MAX_BYTES, TICK};
use berth_shared_state::names;
use berth_shared_state::poll::{Call, CallId, Effect, Event, HeaderValue, Poller, Response, Severity, Stat};
use berth_shared_state::store::SharedData;
use berth_shared_state::table::{self, ScrapeError};
use berth_shared_state::units::Millis;
use hashbrown::HashMap;

use crate::host::{self, Buffer, HostError, HostStore, Map, MetricKind};
use crate::stats::Stats;

/// One root context that polls.
pub struct PollerRoot {
    pools: Vec<PoolPoller>,
    /// Open callouts: the host's token -> pool and the poller's own id.
    open: HashMap<u32, (usize, CallId)>,
    stats: Stats,
}

struct PoolPoller {
    name: String,
    poller: Poller,
    /// Last value of the refresh key that was acted on.
    refreshed: Vec<u8>,
    /// A former poller's table was looked for.
    adopted: bool,
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
    /// Reads the document; `None` (and a log line for each mistake) when it is not valid.
    ///
    /// Nothing is sent from here: hosts configure more VMs than they keep.
    #[must_use]
    pub fn configure(document: &[u8]) -> Option<Self> {
        let config = parse(document)?;
        let seed = seed();
        if config.role == Role::Reader {
            log::info!("role is reader: no pod is polled from here");
        }
        let pools: Vec<PoolPoller> = config
            .pools
            .iter()
            .filter(|_| config.role != Role::Reader)
            .map(|pool| PoolPoller {
                name: pool.name.clone(),
                poller: Poller::new(pool, config.epoch, seed),
                refreshed: Vec::new(),
                adopted: false,
            })
            .collect();
        if let Err(error) = host::set_tick(TICK) {
            log::error!("this host has no timers ({error}): pods cannot be polled");
            return None;
        }
        Some(Self {
            stats: known(&pools),
            pools,
            open: HashMap::new(),
        })
    }

    /// The root's timer.
    pub fn tick(&mut self) {
        for index in 0..self.pools.len() {
            self.adopt(index);
            if self.wants_refresh(index) {
                self.feed(index, Event::RefreshModels);
            }
            self.feed(index, Event::Tick);
        }
    }

    /// Goes on where a former poller of this process with the same configuration stopped. A refresh that was
    /// asked of that one is no news: pages are read at first sight anyway.
    fn adopt(&mut self, index: usize) {
        let Some(pool) = self.pools.get_mut(index).filter(|pool| !pool.adopted) else {
            return;
        };
        pool.adopted = true;
        if let Ok(Some(asked)) = HostStore.get(&names::refresh_key(&pool.name)) {
            pool.refreshed = asked.value;
        }
        let stored = HostStore.get(&names::table_key(&pool.name)).ok().flatten();
        if let Some(table) = stored.and_then(|stored| table::decode(&stored.value).ok()) {
            self.feed(index, Event::Adopt(&table));
        }
    }

    /// A filter that met an unknown model writes the refresh key.
    fn wants_refresh(&mut self, index: usize) -> bool {
        let Some(pool) = self.pools.get_mut(index) else {
            return false;
        };
        match HostStore.get(&names::refresh_key(&pool.name)) {
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
            self.feed(
                index,
                Event::Answer {
                    call,
                    outcome: Err(ScrapeError::Unreachable),
                },
            );
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

    /// Feeds one event and does what comes out; a call that fails at once is an event again.
    fn feed(&mut self, index: usize, event: Event<'_>) {
        let Some(pool) = self.pools.get_mut(index) else { return };
        let mut effects = pool.poller.on(event, host::now());
        let mut failed = Vec::new();
        while !effects.is_empty() {
            for effect in effects.drain(..) {
                failed.extend(self.apply(index, effect));
            }
            for call in failed.drain(..) {
                let Some(pool) = self.pools.get_mut(index) else { return };
                let answer = Event::Answer {
                    call,
                    outcome: Err(ScrapeError::NotSent),
                };
                effects.extend(pool.poller.on(answer, host::now()));
            }
        }
    }

    /// Does one thing. Returns the call when it could not be sent.
    fn apply(&mut self, index: usize, effect: Effect) -> Option<CallId> {
        let pool = self.pools.get(index).map_or("", |pool| &pool.name);
        match effect {
            Effect::Call(call) => {
                return match send(&call) {
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
            Effect::Publish { bytes } => match HostStore.set(&names::table_key(pool), &bytes, None) {
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

/// The stats of all pools, known before anything happens.
fn known(pools: &[PoolPoller]) -> Stats {
    let mut stats = Stats::default();
    for pool in pools {
        for stat in Stat::ALL {
            let kind = if stat.is_gauge() {
                MetricKind::Gauge
            } else {
                MetricKind::Counter
            };
            stats.define(kind, &names::pool_stat(&pool.name, stat.name()));
        }
    }
    stats
}

/// Sends one call. Variables that are not set leave their header out.
#[allow(
    clippy::disallowed_methods,
    reason = "the VM's environment is where scrape headers come from"
)]
fn send(call: &Call) -> Result<u32, HostError> {
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
    host::call(&call.cluster, &headers, call.timeout)
}
