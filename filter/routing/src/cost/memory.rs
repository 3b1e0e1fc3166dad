//! The term `memory`: what it costs that a pod's KV memory fills up.
//!
//! Near the limit an engine preempts: it throws away an answer's context and computes it again. The barrier rises before that, since
//! the reading is old, what others sent since is only thought to be there, and answers still grow.
//! Deliberately not here: whether a request may wait for room (`room`).

use super::{Fleet, GUESSED_PART, MEMORY_CAP, MEMORY_SCALE, NEVER_FITS, NO_ROOM, Need, Stage, capacity, least, most};
use crate::decision::PodFacts;

/// The barrier against preemption, with one engine of the pod as the room, since a context must
/// fit one. Engines are taken as equally full: the page names the mean and the worst, while the
/// pod's own balancer picks a better one. `guessed`: tokens that no gauge shows, which alone fill no pod.
pub(super) fn memory(pod: &PodFacts<'_>, used: Option<f64>, fleet: &Fleet, need: &Need, guessed: f64) -> f64 {
    let Some(capacity) = capacity(pod.row).or(fleet.mean_capacity()) else {
        return used.map_or(0.0, barrier);
    };
    let engines = f64::from(pod.row.load.engines.max(1));
    let room = capacity / engines;
    let (takes, prompts) = (need.takes().0 as f64, f64::from(need.prompts.max(1)));
    let known = used.unwrap_or(0.0) + pod.own.context_tokens.0 as f64 / capacity;
    let taken = known + least(guessed / capacity, GUESSED_PART * most(1.0 - known, 0.0));
    let k = taken + takes / least(prompts, engines) / room;
    let whole = (need.prompt + need.output).0 as f64 / prompts;
    barrier(k) + if k > 1.0 { NO_ROOM } else { 0.0 } + if whole > room { NEVER_FITS } else { 0.0 }
}

/// Tokens by which the answers that run have grown, each, on average.
pub(super) fn half_an_answer(need: &Need) -> f64 {
    need.output.0 as f64 / f64::from(need.prompts.max(1)) / 2.0
}

fn barrier(k: f64) -> f64 {
    let capped = least(k, MEMORY_CAP);
    MEMORY_SCALE * capped / (1.0 - capped) * most(k, 1.0)
}

/// KV tokens free in one engine of the pod, as the memory term sees it; negative when overbooked.
#[must_use]
pub fn free_tokens(pod: &PodFacts<'_>, stage: Stage, fleet: &Fleet) -> Option<i64> {
    let capacity = capacity(pod.row).or(fleet.mean_capacity())?;
    let used = fleet.foreign(pod, stage).used.unwrap_or(0.0) * capacity;
    let free = capacity - used - pod.own.context_tokens.0 as f64;
    Some((free / f64::from(pod.row.load.engines.max(1))).round() as i64)
}
