//! A pod's load by others, as its page shows it. Deliberately not here: what they sent since (`since`), and what stands in
//! for a pod that does not say (`fleet`).

use berth_shared_state::table::PodRow;

use super::most;
use crate::decision::PodFacts;

/// Load of a pod by others than this proxy, as its last page shows it. `None` = unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Foreign {
    /// Requests queued.
    pub queued: Option<f64>,
    /// Requests running.
    pub running: Option<f64>,
    /// KV usage, as a part of the capacity: pods differ in size, so tokens have no mean.
    pub used: Option<f64>,
}

impl Foreign {
    /// Takes the own part out of the gauges.
    #[must_use]
    pub fn of(pod: &PodFacts<'_>) -> Self {
        let (load, own) = (&pod.row.load, &pod.own);
        let own_tokens_before = own.context_tokens.0.saturating_sub(own.sent_since_tokens.0);
        let own_used = capacity(pod.row).map_or(0.0, |capacity| own_tokens_before as f64 / capacity);
        Self {
            queued: load
                .waiting
                .map(|n| f64::from(n.saturating_sub(own.unanswered_at_sample))),
            running: load.running.map(|n| f64::from(n.saturating_sub(pod.shown))),
            used: part(load.kv_mean).map(|used| most(used - own_used, 0.0)),
        }
    }
}

/// A gauge between 0 and 1, whatever the page said.
pub(super) fn part(gauge: Option<f32>) -> Option<f64> {
    gauge
        .filter(|value| value.is_finite())
        .map(|value| f64::from(value).clamp(0.0, 1.0))
}

/// KV tokens of the pod, over all its engines.
pub fn capacity(row: &PodRow) -> Option<f64> {
    row.load
        .kv_capacity
        .filter(|tokens| tokens.0 > 0)
        .map(|tokens| tokens.0 as f64)
}
