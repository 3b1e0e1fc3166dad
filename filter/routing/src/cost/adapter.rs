//! What an adapter costs at a pod: the load, and the wait for a slot.

use serde::Serialize;

use super::{HOST_LOAD, SLOT_WAIT, Stage, most};
use crate::decision::PodFacts;
use crate::ledger::InUse;

/// How warm an adapter is at a pod, the warmest first. [`Tier::Base`] needs none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tier {
    /// The base model.
    Base,
    /// A request with it is in flight there: it has a slot.
    Active,
    /// The engine says that it is in GPU memory.
    Resident,
    /// Sent there lately, and no more others since than the pod has slots.
    Recent,
    /// In host memory, as the engine says or as the last requests let one think.
    Host,
    /// Listed on the models page; no sign of it in memory.
    Registered,
    /// Not listed; the engine loads what is asked for.
    Loadable,
    /// Nobody knows whether the pod has it.
    Unlisted,
}

impl Tier {
    /// The word for headers, the same as in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Active => "active",
            Self::Resident => "resident",
            Self::Recent => "recent",
            Self::Host => "host",
            Self::Registered => "registered",
            Self::Loadable => "loadable",
            Self::Unlisted => "unlisted",
        }
    }
}

/// How the slots of a pod are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Slots {
    /// How sure the adapter has one, 0 to 1.
    pub has: f64,
    /// Adapters that must leave before one more gets one.
    pub excess: f64,
}

impl Slots {
    /// At a pod, for an adapter with this key. What this proxy has in flight there is known. The page is as old as its
    /// reading: what it shows in flight is others', unless this proxy sent it, too; then it has likely ended, as far
    /// as this proxy sends. An adapter that is in memory, but not in flight, is the first to lose its place.
    #[must_use]
    pub fn of(pod: &PodFacts<'_>, stage: Stage, tier: Tier, key: u64, max: Option<u32>, elsewhere: f64) -> Self {
        let own = |key: u64| pod.adapters_in_use.iter().any(|used| used.adapter == key);
        if tier == Tier::Base || own(key) {
            return Self { has: 1.0, excess: 0.0 };
        }
        let read = pod.row.scraped_at.filter(|_| stage != Stage::Unknown);
        let shown = pod.seen_adapters.iter().take_while(|(_, at)| Some(*at) == read);
        let by_others = |key: u64| {
            let sent = pod.recent_adapters.iter().any(|(known, _)| *known == key);
            if sent { elsewhere } else { 1.0 }
        };
        let (mut has, mut used) = (0.0, distinct(pod.adapters_in_use));
        for (shown, _) in shown.filter(|(shown, _)| !own(*shown)) {
            if *shown == key {
                has = by_others(key);
            } else {
                used += by_others(*shown);
            }
        }
        let excess = max
            .filter(|max| *max > 0)
            .map_or(0.0, |max| used - f64::from(max) + 1.0);
        Self {
            has,
            excess: most(excess, 0.0),
        }
    }
}

/// Adapters of all views, each once.
fn distinct(used: &[InUse]) -> f64 {
    // A handful: that is cheaper than a list.
    let is_first = |(at, one): &(usize, &InUse)| used.iter().take(*at).all(|other| other.adapter != one.adapter);
    used.iter().enumerate().filter(is_first).count() as f64
}

/// Milliseconds until the adapter can run; `cold_load` is what it costs to load it from afar.
#[must_use]
pub fn adapter(tier: Tier, cold_load: f64, slots: Slots) -> f64 {
    let load = match tier {
        Tier::Base | Tier::Active | Tier::Resident | Tier::Recent => 0.0,
        Tier::Host => HOST_LOAD,
        Tier::Registered | Tier::Loadable | Tier::Unlisted => cold_load,
    };
    load + SLOT_WAIT * slots.excess * (1.0 - slots.has)
}
