//! What an adapter costs at a pod: the load, and the wait for a slot.

use berth_shared_state::table::ActiveAdapters;
use serde::Serialize;

use super::{HOST_LOAD, SLOT_WAIT, Stage};
use crate::decision::PodFacts;

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

/// How the slots of a pod are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Slots {
    /// How sure the adapter has one, 0 to 1.
    pub has: f64,
    /// Adapters that must leave before one more gets one.
    pub excess: f64,
}

impl Slots {
    /// At a pod, for an adapter with this key. What this proxy has in flight there is known; the gauges are as old as
    /// the reading, so they count as far as others send. An adapter that is in memory, but not in flight, is the first
    /// to lose its place.
    #[must_use]
    pub fn of(pod: &PodFacts<'_>, stage: Stage, tier: Tier, key: u64, max: Option<u32>, elsewhere: f64) -> Self {
        let own = pod.adapters_in_use;
        if tier == Tier::Base || own.iter().any(|used| used.adapter == key) {
            return Self { has: 1.0, excess: 0.0 };
        }
        let Some(max) = max.filter(|max| *max > 0) else {
            return Self::default();
        };
        let distinct = own.iter().enumerate().filter(|(at, used)| {
            let before = own.iter().take(*at);
            !before.into_iter().any(|other| other.adapter == used.adapter)
        });
        let shown = pod.row.activity.as_ref().filter(|_| stage != Stage::Unknown);
        let others = elsewhere * shown.map_or(0.0, in_flight);
        let used = distinct.count() as f64 + others;
        Self {
            has: if tier == Tier::Active { elsewhere } else { 0.0 },
            excess: (used - f64::from(max) + 1.0).max(0.0),
        }
    }
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

/// Adapters in flight, as the gauges show them. Running and waiting are one set: today's
/// vLLM writes the same list twice, and adding them would count every slot double.
pub(super) fn in_flight(active: &ActiveAdapters) -> f64 {
    let waiting = active.waiting.iter().take(SLOTS_SEEN);
    let more = waiting
        .filter(|id| !active.running.iter().take(SLOTS_SEEN).any(|other| other == *id))
        .count();
    active.running.len().saturating_add(more) as f64
}

/// Adapters of one list that are compared: more than any engine has slots, and the work is square.
const SLOTS_SEEN: usize = 64;
