//! Whether a pod has room for a request: it would begin with its prompt in time, and its memory takes it.
//!
//! The same predictions as the cost, but a pod's real memory where it is known: the ledger books whole answers
//! in advance, and what waited for those would leave part of the memory idle.

use berth_shared_state::units::UnixMillis;

use super::{Fleet, NO_ROOM, Need, Stage, Terms, capacity, part};
use crate::decision::PodFacts;
use crate::limits::{RESUME_PART, ROOM_MAX};

/// What a request bears.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Milliseconds until a pod begins with its prompt.
    pub wait: f64,
    /// The pool was full: it has room again only with some to spare.
    pub resumes: bool,
}

/// A pod's room.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Room {
    /// For so many requests like this one, none below 1.
    pub requests: f64,
    /// Milliseconds until there is some, as far as can be said.
    pub drain: f64,
}

/// Judges one pod. `terms` is its price for the request.
#[must_use]
pub fn room(
    pod: &PodFacts<'_>,
    stage: Stage,
    need: &Need,
    terms: &Terms,
    fleet: &Fleet,
    patience: Patience,
    now: UnixMillis,
) -> Room {
    if terms.failed > 0.0 {
        let until = pod.avoided_until.map_or(0, |until| until.since(now).0);
        return Room {
            requests: 0.0,
            drain: until as f64,
        };
    }
    let part = if patience.resumes { RESUME_PART } else { 1.0 };
    // What it is too long for even an idle pod is for the engine to say; and of a pod that nobody could read,
    // nobody can say that it is full.
    if is_idle(pod, stage, fleet) {
        return Room {
            requests: in_time(0.0, patience.wait * part, terms.prefill),
            drain: 0.0,
        };
    }
    if terms.stuck > 0.0 {
        return Room {
            requests: 0.0,
            drain: NO_ROOM,
        };
    }
    let (wait, bears) = (terms.queue + late(pod, now), patience.wait * part);
    let (free, asked) = memory(pod, stage, need, fleet);
    // Some to spare, but no more than there is.
    let asked = (asked / part).min(asked.max(1.0));
    let short = (asked - free).clamp(0.0, 1.0);
    Room {
        requests: in_time(wait, bears, terms.prefill).min((free / asked).clamp(0.0, ROOM_MAX).floor()),
        // All of the memory turns over in about the time in which an answer ends.
        drain: (wait - bears).max(0.0).max(NO_ROOM * short),
    }
}

/// Requests whose prefill begins in time, one behind the other.
fn in_time(wait: f64, bears: f64, prefill: f64) -> f64 {
    if wait > bears {
        return 0.0;
    }
    (1.0 + (bears - wait) / prefill.max(1.0)).min(ROOM_MAX).floor()
}

fn is_idle(pod: &PodFacts<'_>, stage: Stage, fleet: &Fleet) -> bool {
    let foreign = fleet.foreign(pod, stage);
    let others = foreign.queued.unwrap_or(0.0) + foreign.running.unwrap_or(0.0);
    pod.own.in_flight() == 0 && (stage == Stage::Unknown || others < 1.0)
}

/// How much longer than predicted the oldest request already waits for its first token: so much the predictions are
/// short of, whatever the engine waits for.
fn late(pod: &PodFacts<'_>, now: UnixMillis) -> f64 {
    pod.own.oldest_unanswered.map_or(0.0, |(sent, predicted)| {
        now.since(sent).0.saturating_sub(predicted.0) as f64
    })
}

/// Parts of an engine's memory: what is free, and what the request takes. Of one whose size nobody says, all is free.
fn memory(pod: &PodFacts<'_>, stage: Stage, need: &Need, fleet: &Fleet) -> (f64, f64) {
    let Some(capacity) = capacity(pod.row).or(fleet.mean_capacity()) else {
        return (1.0, 0.0);
    };
    let engines = f64::from(pod.row.load.engines.max(1));
    let (takes, prompts) = (need.takes().0 as f64, f64::from(need.prompts.max(1)));
    let asked = (takes / prompts).max(takes / engines) * engines / capacity;
    let own = pod.own.context_tokens.0 as f64 / capacity;
    let used = match part(pod.row.load.kv_mean).filter(|_| stage == Stage::Fresh) {
        Some(used) => {
            // What was sent since is in no gauge yet, nor what waits in the engine. What ended since still is.
            let sent = pod.own.sent_since_tokens.max(pod.own.unanswered_tokens).0 as f64 / capacity;
            (used - ended(pod, used * capacity) / capacity).max(0.0) + sent
        }
        None => fleet.foreign(pod, stage).used.unwrap_or(0.0) + own,
    };
    ((1.0 - used).max(0.0), asked)
}

/// KV tokens of what ended here since the gauges were read: of the part of the gauge that is this proxy's, as much as of
/// its requests. A gauge knows real contexts, the ledger expected ones, so the parts are compared.
fn ended(pod: &PodFacts<'_>, used: f64) -> f64 {
    let then = pod.context_then.0 as f64;
    if then <= 0.0 {
        return 0.0;
    }
    let still = pod.own.context_tokens.0.saturating_sub(pod.own.sent_since_tokens.0) as f64;
    used.min(then) * (1.0 - still / then).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use berth_shared_state::table::PodRow;
    use berth_shared_state::units::{Millis, Tokens};
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;
    use crate::decision::PoolFacts;
    use crate::decision::tests::world::{NOW, World, ago};

    const PATIENCE: Patience = Patience {
        wait: 2_000.0,
        resumes: false,
    };

    /// The room of a pod of 100,000 tokens for requests of 10,000, 1,000 of them prompt: 100 ms of its work.
    fn room_of(change: impl FnOnce(&mut PodFacts<'_>, &mut Terms), patience: Patience) -> Room {
        let mut world = World::of(1);
        busy(&mut world.pods[0].row);
        let snapshot = world.snapshot();
        let facts = world.facts(&snapshot);
        let mut pod = facts[0];
        let mut terms = Terms {
            prefill: 100.0,
            ..Terms::default()
        };
        change(&mut pod, &mut terms);
        let mut fleet = Fleet::new(&PoolFacts::default(), 10_000);
        fleet.add(&pod, Stage::Fresh);
        let need = Need {
            prompt: Tokens(1_000),
            output: Tokens(9_000),
            prompts: 1,
            ..Need::default()
        };
        room(&pod, Stage::Fresh, &need, &terms, &fleet, patience, NOW)
    }

    fn busy(row: &mut PodRow) {
        row.load.running = Some(5);
        row.load.kv_mean = Some(0.5);
        row.load.kv_capacity = Some(Tokens(100_000));
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut PodFacts<'_>, &mut Terms), requests: u32, drain: f64) {
        let room = room_of(change, PATIENCE);
        assert_eq!((room.requests as u32, room.drain.round()), (requests, drain));
    }

    #[test]
    fn memory_and_patience_each_bound_what_a_pod_takes() {
        check(|_, _| {}, 5, 0.0);
        check(|_, terms| terms.queue = 1_700.0, 4, 0.0);
        check(|_, terms| terms.queue = 2_000.0, 1, 0.0);
        check(|_, terms| terms.queue = 2_001.0, 0, 1.0);
    }

    #[test]
    fn who_waits_longer_than_predicted_is_added_to_every_prediction() {
        let oldest = |age: u64| Some((ago(age), Millis(300)));
        check(|pod, _| pod.own.oldest_unanswered = oldest(300), 5, 0.0);
        check(|pod, _| pod.own.oldest_unanswered = oldest(2_300), 1, 0.0);
        check(|pod, _| pod.own.oldest_unanswered = oldest(2_800), 0, 500.0);
    }

    #[test]
    fn what_was_sent_since_the_page_takes_room_and_what_ended_gives_it_back() {
        // Two of 20,000 were there when it said 50,000.
        let two = |pod: &mut PodFacts<'_>| {
            pod.context_then = Tokens(40_000);
            pod.own.generating = 2;
            pod.own.context_tokens = Tokens(40_000);
        };
        check(|pod, _| two(pod), 5, 0.0);
        check(
            |pod, _| {
                two(pod);
                pod.own.context_tokens = Tokens(10_000);
            },
            8,
            0.0,
        );
        check(
            |pod, _| {
                two(pod);
                pod.own.context_tokens = Tokens(60_000);
                pod.own.sent_since_tokens = Tokens(20_000);
            },
            3,
            0.0,
        );
        check(|pod, _| pod.own.unanswered_tokens = Tokens(45_000), 0, 500.0);
    }

    #[test]
    fn a_pool_that_was_full_has_room_again_with_a_fifth_to_spare() {
        let resumes = Patience {
            resumes: true,
            ..PATIENCE
        };
        let requests = |queue: f64| room_of(|_, terms| terms.queue = queue, resumes).requests as u32;
        assert_eq!((requests(1_600.0), requests(1_601.0)), (1, 0));
        // 50,000 free, and 12,500 for each.
        assert_eq!(requests(0.0), 4);
    }

    #[test]
    fn pods_that_fail_or_hang_have_no_room_and_idle_ones_have() {
        check(|_, terms| terms.failed = 1.0, 0, 0.0);
        check(|_, terms| terms.stuck = 1.0, 0, NO_ROOM);
    }
}
