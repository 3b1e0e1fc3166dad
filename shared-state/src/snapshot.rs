//! One immutable view of a table, with what a decision looks up often.
//!
//! Made once per change of the shared value, read by every request. Deliberately not here: any
//! judgement of load. The one judgement is age, since "how old is too old" must be the same for all.

use hashbrown::HashMap;

use crate::config::Pool;
use crate::limits::{FRESH_INTERVALS, SCRAPE_INTERVAL_MAX, STALE_AFTER_INTERVALS_MIN};
use crate::pod::{PodAddress, PodKey};
use crate::table::{Models, NameId, PodRow, Table};
use crate::units::{Millis, UnixMillis};

/// How far the reading of one pod can be believed: the rungs of the staleness ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Freshness {
    /// Read within [`FRESH_INTERVALS`] scrape intervals.
    Fresh,
    /// Older, up to `routing.stale_after`: own accounting counts for more than the gauges.
    Ageing,
    /// Older still, never read, from the future, or not to be believed ([`crate::table::Trend::is_believed`]: frozen, or of
    /// several pods): the gauges say nothing.
    Unknown,
}

/// Up to which ages readings are believed.
#[derive(Clone, Copy, Debug)]
pub struct Ages {
    fresh: Millis,
    stale: Millis,
}

impl Ages {
    /// How far a pod's reading can be believed. Reports in answers keep a page fresh, but not beyond `stale`: they say
    /// half of it.
    #[must_use]
    pub fn freshness(self, pod: &PodRow, now: UnixMillis) -> Freshness {
        match pod.scraped_at {
            _ if !pod.trend.is_believed() => Freshness::Unknown,
            None => Freshness::Unknown,
            Some(at) if now.since(at) > self.stale || at.since(now) > self.stale => Freshness::Unknown,
            Some(at) if now.since(at.max(pod.reported_at.unwrap_or(at))) <= self.fresh => Freshness::Fresh,
            Some(_) => Freshness::Ageing,
        }
    }
}

/// A table and the index of its names.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    table: Table,
    ids: HashMap<String, NameId>,
}

impl Snapshot {
    /// Indexes a table that [`crate::table::decode`] found sound.
    #[must_use]
    pub fn new(table: Table) -> Self {
        let ids = table
            .names
            .iter()
            .zip(0..)
            .map(|(name, id)| (name.clone(), NameId(id)))
            .collect();
        Self { table, ids }
    }

    /// The table itself.
    #[must_use]
    pub const fn table(&self) -> &Table {
        &self.table
    }

    /// The pods, ordered by address.
    #[must_use]
    pub fn pods(&self) -> &[PodRow] {
        &self.table.pods
    }

    /// The pod at an address.
    #[must_use]
    pub fn pod(&self, address: PodAddress) -> Option<&PodRow> {
        let index = self.table.pods.binary_search_by_key(&address, |pod| pod.address).ok()?;
        self.table.pods.get(index)
    }

    /// The pod behind a key of the ledger. Looks at every pod: not for the way of a request.
    #[must_use]
    pub fn pod_by_key(&self, key: PodKey) -> Option<&PodRow> {
        self.table.pods.iter().find(|pod| pod.address.key() == key)
    }

    /// The name behind an id of this table; empty for an id of another one.
    #[must_use]
    pub fn name(&self, id: NameId) -> &str {
        self.table.names.get(usize::from(id.0)).map_or("", String::as_str)
    }

    /// The id of a model or adapter in this table; `None` = no pod names it.
    #[must_use]
    pub fn id(&self, name: &str) -> Option<NameId> {
        self.ids.get(name).copied()
    }

    /// The pods whose models page lists a base or an adapter, ordered by address.
    pub fn listing(&self, id: NameId) -> impl Iterator<Item = &PodRow> {
        let lists = move |models: &Models| {
            models.bases.contains(&id) || models.adapters.iter().any(|(adapter, _)| *adapter == id)
        };
        let pods = self.table.pods.iter();
        pods.filter(move |pod| pod.models.as_ref().is_some_and(lists))
    }

    /// Age of a pod's reading; `None` = never read. Zero when the clock went back.
    #[must_use]
    pub fn age(&self, pod: &PodRow, now: UnixMillis) -> Option<Millis> {
        pod.gauges_at().map(|at| now.since(at))
    }

    /// How far a pod's reading can be believed.
    #[must_use]
    pub fn freshness(&self, pod: &PodRow, pool: &Pool, now: UnixMillis) -> Freshness {
        self.ages(pool).freshness(pod, now)
    }

    /// The ages by which readings of this table are judged. `stale_after` wins over the intervals, unless the budget
    /// stretches them.
    #[must_use]
    pub fn ages(&self, pool: &Pool) -> Ages {
        let stretched = self.table.scrape_interval.min(SCRAPE_INTERVAL_MAX);
        let interval = pool.scrape.interval.max(stretched);
        let least = Millis(interval.0.saturating_mul(STALE_AFTER_INTERVALS_MIN));
        Ages {
            fresh: intervals(interval),
            stale: pool.routing.stale_after.max(least),
        }
    }

    /// Whether the set of pods can be believed, so that "no ready pod" is a fact. A static list
    /// always can; another one for [`FRESH_INTERVALS`] discovery intervals.
    #[must_use]
    pub fn discovery_fresh(&self, pool: &Pool, now: UnixMillis) -> bool {
        match (pool.discovery.interval(), self.table.discovery.at) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(interval), Some(at)) => now.since(at) <= intervals(interval),
        }
    }
}

fn intervals(interval: Millis) -> Millis {
    Millis(interval.0.saturating_mul(FRESH_INTERVALS))
}

#[cfg(test)]
pub(crate) mod tests;
