//! What one pod may have at most, by the config: requests, and KV tokens.
//!
//! A pod at its cap is no candidate while another is below; shedding is not decided here. What the page shows of
//! others counts as far as it is believed, the own work as it is. Deliberately not here: a guess of what others sent
//! since the page was read.

use berth_shared_state::config::Caps;

use super::PodFacts;
use crate::cost::{self, Foreign, Stage};

/// Whether a pod has as much as the config allows. One that has less takes a request whole, so that no request is too
/// large for an empty pod.
#[must_use]
pub fn at_cap(pod: &PodFacts<'_>, caps: &Caps) -> bool {
    let foreign = match Stage::of(pod) {
        Stage::Unknown => Foreign::default(),
        Stage::Fresh | Stage::Ageing => Foreign::of(pod),
    };
    let requests = foreign.queued.unwrap_or(0.0) + foreign.running.unwrap_or(0.0) + f64::from(pod.own.in_flight());
    let used = foreign.used.unwrap_or(0.0) * cost::capacity(pod.row).unwrap_or(0.0);
    let tokens = used + pod.own.context_tokens.0 as f64;
    caps.requests.is_some_and(|max| requests >= f64::from(max)) || caps.tokens.is_some_and(|max| tokens >= max.0 as f64)
}

#[cfg(test)]
mod tests {
    use berth_shared_state::units::Tokens;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;
    use crate::decision::tests::world::{Pod, World, ago, idle};

    #[track_caller]
    fn check(bend: impl Fn(&mut Pod), requests: Option<u32>, tokens: Option<u64>, expected: bool) {
        let mut pod = idle(0);
        bend(&mut pod);
        let world = World {
            pods: vec![pod],
            ..World::of(0)
        };
        let snapshot = world.snapshot();
        let caps = Caps {
            requests,
            tokens: tokens.map(Tokens),
        };
        assert_eq!(at_cap(&world.facts(&snapshot)[0], &caps), expected);
    }

    #[test]
    fn requests_of_the_page_and_own_ones_count_once() {
        let of_others = |pod: &mut Pod| {
            pod.load(3, 2, 0.0);
        };
        check(of_others, None, None, false);
        check(of_others, Some(5), None, true);
        check(of_others, Some(6), None, false);
        // One of them is ours, and one came since.
        let ours = |pod: &mut Pod| {
            pod.load(3, 2, 0.0);
            pod.own.generating = 2;
            pod.own.sent_since = 1;
        };
        check(ours, Some(6), None, true);
        check(ours, Some(7), None, false);
    }

    #[test]
    fn what_the_page_says_counts_as_far_as_it_is_believed() {
        let old = |pod: &mut Pod| {
            pod.load(9, 9, 0.9).row.scraped_at = Some(ago(60_000));
            pod.own.generating = 2;
        };
        check(old, Some(3), Some(1), false);
        check(old, Some(2), None, true);
    }

    #[test]
    fn tokens_are_the_cache_in_use_and_own_contexts_since() {
        // 30,000 of 100,000, of which 10,000 are ours; 5,000 came since.
        let pod = |pod: &mut Pod| {
            pod.load(1, 0, 0.3);
            pod.own.generating = 2;
            pod.own.sent_since = 1;
            pod.own.context_tokens = Tokens(15_000);
            pod.own.sent_since_tokens = Tokens(5_000);
        };
        check(pod, None, Some(34_990), true);
        check(pod, None, Some(35_010), false);
        let unknown = |pod: &mut Pod| {
            pod.row.load.kv_capacity = None;
            pod.row.load.kv_mean = Some(0.9);
            pod.own.context_tokens = Tokens(100);
        };
        check(unknown, None, Some(100), true);
        check(unknown, None, Some(101), false);
    }
}
