//! Who goes first when the pods are full: what a request may claim, and who waits.
//!
//! ```text
//!  trusted headers -> Class (priority, patience, flow, deadline)
//!                       |
//!  decision: a pod has room? -> route        full -> sheddable, no queue: 429
//!                                                 -> Queue -> room, deadline, or given way: leaves once
//! ```
//!
//! Whether a pod has room is the decision's word ([`crate::cost::room`]); who waits where is the view's
//! ([`crate::view`]). Deliberately not here: a count of requests that would be too many. Pods differ.

mod queue;

use berth_shared_state::config::Admission;
use berth_shared_state::names;
use berth_shared_state::units::Millis;
use xxhash_rust::xxh64::xxh64;

use crate::view::Steering;
pub use queue::{Item, Queue};

/// The flow of requests that name none.
const NO_FLOW: u64 = 0;

/// What a request may claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    /// The higher goes first; below 0 is sheddable.
    pub priority: i16,
    /// Predicted wait for the begin of its prefill that it bears.
    pub patience: Millis,
    /// That is less than its objective bears, since its client does not wait so long.
    pub hurried: bool,
    /// Hash of the tenant, with whom others share.
    pub flow: u64,
    /// It names an objective that the config does not have.
    pub unknown: bool,
}

impl Class {
    /// By what trusted headers say. `None`: nothing is configured that could treat it other than the rest.
    #[must_use]
    pub fn of(admission: &Admission, steering: &Steering) -> Option<Self> {
        if !admission.is_on() {
            return None;
        }
        let named = steering.objective.as_deref();
        let known = named.and_then(|name| admission.objectives.iter().find(|objective| objective.name == name));
        let patience = known.map_or(admission.patience, |objective| objective.patience);
        Some(Self {
            priority: known.map_or(0, |objective| objective.priority),
            patience: steering.timeout.map_or(patience, |timeout| timeout.min(patience)),
            hurried: steering.timeout.is_some_and(|timeout| timeout < patience),
            flow: steering
                .flow
                .as_deref()
                .map_or(NO_FLOW, |flow| xxh64(flow.as_bytes(), 1)),
            unknown: named.is_some() && known.is_none(),
        })
    }

    /// May be sent away while its pool is full.
    #[must_use]
    pub const fn is_sheddable(&self) -> bool {
        self.priority < 0
    }
}

/// The name of a pool's stat of one priority.
#[must_use]
pub fn stat(pool: &str, priority: i16, what: &str) -> String {
    names::pool_stat(pool, &[&band(priority), ".", what].concat())
}

fn band(priority: i16) -> String {
    let sign = if priority < 0 { "minus-" } else { "" };
    format!("band.{sign}{}", priority.unsigned_abs())
}

/// The priorities that requests of a config can have, highest first.
#[must_use]
pub fn priorities(admission: &Admission) -> Vec<i16> {
    let named = admission.objectives.iter().map(|objective| objective.priority);
    let mut all: Vec<i16> = named.chain([0]).collect();
    all.sort_unstable_by(|a, b| b.cmp(a));
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use berth_shared_state::config::Objective;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    fn admission(objectives: &[(&str, i16, u64)]) -> Admission {
        let objective = |(name, priority, patience): &(&str, i16, u64)| Objective {
            name: (*name).to_owned(),
            priority: *priority,
            patience: Millis(*patience),
        };
        Admission {
            objectives: objectives.iter().map(objective).collect(),
            patience: Millis(2_000),
            queue: None,
        }
    }

    #[track_caller]
    fn check(objective: Option<&str>, timeout: Option<u64>, priority: i16, patience: u64, unknown: bool) {
        let admission = admission(&[("batch", -5, 9_000), ("chat", 10, 500)]);
        let steering = Steering {
            objective: objective.map(str::to_owned),
            timeout: timeout.map(Millis),
            ..Steering::default()
        };
        let class = Class::of(&admission, &steering).unwrap();
        assert_eq!(
            (class.priority, class.patience.0, class.unknown),
            (priority, patience, unknown)
        );
        assert_eq!(class.is_sheddable(), priority < 0);
    }

    #[test]
    fn an_objective_names_a_priority_and_any_other_name_is_the_default() {
        check(Some("chat"), None, 10, 500, false);
        check(Some("batch"), None, -5, 9_000, false);
        check(None, None, 0, 2_000, false);
        check(Some("Chat"), None, 0, 2_000, true);
    }

    #[test]
    fn nobody_bears_more_than_the_client_waits() {
        check(Some("batch"), Some(700), -5, 700, false);
        check(Some("chat"), Some(700), 10, 500, false);
    }

    #[test]
    fn without_objectives_and_queue_nobody_is_classed() {
        assert_eq!(Class::of(&admission(&[]), &Steering::default()), None);
    }

    #[test]
    fn bands_are_the_priorities_in_use_and_have_names_for_stats() {
        let bands = priorities(&admission(&[("a", -5, 1), ("b", 10, 1), ("c", 10, 1)]));
        assert_eq!(bands, [10, 0, -5]);
        assert_eq!([10, 0, -5].map(band), ["band.10", "band.0", "band.minus-5"]);
    }
}
