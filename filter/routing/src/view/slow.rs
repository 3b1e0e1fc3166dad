//! Whether what the pages say of a slow pod counts for the request at hand.
//!
//! A slow pod is sent little, and where nothing runs, nothing shows that it works again. So when it was left alone for
//! long enough, a request may try it, one of each proxy at a time. And pages that stand still may be at fault, not the
//! engine: it answers.

use berth_shared_state::limits::SLOW_TRIED_AFTER_MAX;
use berth_shared_state::snapshot::Freshness;
use berth_shared_state::table::{PodRow, Slow, Trend};
use berth_shared_state::units::UnixMillis;

use crate::ledger::OwnLoad;

/// What is to be believed of it. `answered_sent_at`: when the latest of the requests was sent there that
/// were answered.
pub(super) fn slow(
    row: &PodRow,
    freshness: Freshness,
    own: &OwnLoad,
    answered_sent_at: UnixMillis,
    now: UnixMillis,
) -> Option<Slow> {
    // Its load is not believed, that nothing moves is.
    let frozen = row.trend == Trend::Frozen && row.failures == 0;
    let slow = row.slow.filter(|_| frozen || freshness != Freshness::Unknown)?;
    let idle =
        own.in_flight() == 0 && row.load.running == Some(0) && row.load.waiting.is_none_or(|waiting| waiting == 0);
    // Further ahead than anybody is left alone: from before the clock stepped back.
    let tried = idle && (slow.again <= now || slow.again.since(now) > SLOW_TRIED_AFTER_MAX);
    let lied = slow.still_since.is_some_and(|since| answered_sent_at > since);
    (!tried && !lied).then_some(slow)
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    const NOW: UnixMillis = UnixMillis(1_000_000);

    struct Known {
        row: PodRow,
        freshness: Freshness,
        own: OwnLoad,
        answered_sent_at: UnixMillis,
    }

    /// Whether it counts for an idle pod that may be tried in a second.
    #[track_caller]
    fn check(change: impl Fn(&mut Known, &mut Slow), counts: bool) {
        let mut known = Known {
            row: PodRow::unread("10.0.0.1:80".parse().unwrap(), UnixMillis(0)),
            freshness: Freshness::Fresh,
            own: OwnLoad::default(),
            answered_sent_at: UnixMillis(0),
        };
        (known.row.load.running, known.row.load.waiting) = (Some(0), Some(0));
        let mut told = Slow {
            times: 10.0,
            still_since: None,
            again: UnixMillis(NOW.0 + 1_000),
        };
        change(&mut known, &mut told);
        known.row.slow = Some(told);
        let believed = slow(&known.row, known.freshness, &known.own, known.answered_sent_at, NOW);
        assert_eq!(believed, counts.then_some(told));
    }

    #[test]
    fn who_was_left_alone_for_long_is_tried_by_one_request_at_a_time() {
        check(|_, _| {}, true);
        check(|_, slow| slow.again = UnixMillis(NOW.0 + 1), true);
        check(|_, slow| slow.again = NOW, false);
        check(
            |known, slow| {
                slow.again = NOW;
                known.own.unanswered = 1;
            },
            true,
        );
        // Others try it, or nobody knows.
        for running in [Some(1), None] {
            check(
                |known, slow| {
                    slow.again = NOW;
                    known.row.load.running = running;
                },
                true,
            );
        }
        check(
            |known, slow| {
                slow.again = NOW;
                known.row.load.waiting = Some(1);
            },
            true,
        );
    }

    #[test]
    fn a_time_that_nobody_is_left_alone_for_is_of_another_clock() {
        let ahead = NOW.0 + SLOW_TRIED_AFTER_MAX.0;
        check(|_, slow| slow.again = UnixMillis(ahead), true);
        check(|_, slow| slow.again = UnixMillis(ahead + 1), false);
    }

    #[test]
    fn pages_that_stand_still_while_the_pod_answers_are_not_believed() {
        let still = |sent: u64, counts| {
            check(
                |known, slow| {
                    slow.still_since = Some(UnixMillis(NOW.0 - 5_000));
                    known.answered_sent_at = UnixMillis(NOW.0 - sent);
                },
                counts,
            );
        };
        still(5_001, true);
        // Sent before they stood still: that its answer came later is what a slow pod does, too.
        still(5_000, true);
        still(4_999, false);
        // What moves is a measurement, whatever was answered.
        check(|known, _| known.answered_sent_at = NOW, true);
    }

    #[test]
    fn what_was_read_too_long_ago_says_nothing() {
        check(|known, _| known.freshness = Freshness::Ageing, true);
        check(|known, _| known.freshness = Freshness::Unknown, false);
    }

    #[test]
    fn a_pod_that_hangs_is_slow_when_its_pages_are_frozen() {
        let frozen = |failures, sent: u64, counts| {
            check(
                |known, slow| {
                    (known.row.trend, known.row.failures) = (Trend::Frozen, failures);
                    known.freshness = Freshness::Unknown;
                    slow.still_since = Some(UnixMillis(NOW.0 - 20_000));
                    known.answered_sent_at = UnixMillis(NOW.0 - sent);
                },
                counts,
            );
        };
        frozen(0, 30_000, true);
        // It answers, or nobody reads it any more.
        frozen(0, 10_000, false);
        frozen(1, 30_000, false);
    }
}
