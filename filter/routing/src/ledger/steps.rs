//! What the tokens of own streams show of an engine's steps.
//!
//! An engine gives each running answer one token a step, and a step that also computes prompts takes longer. So who listens
//! to one answer knows within a step what everybody's prompts do to its engine; a page is a second old.
//!
//! ```text
//!  tokens   |  |  |          |  |  |  .....
//!            decode  prompts  decode ^  ^ late: prompts are being computed
//!                                    +--- nothing waited here
//! ```
//!
//! Deliberately not here: whose prompts they are, and how many; and what follows for a decision ([`crate::cost`]).

use berth_shared_state::limits::STEPS_TOLD_EVERY;
use berth_shared_state::units::{Millis, UnixMillis};
use serde::{Deserialize, Serialize};

/// A token later than so many of the usual gaps means a step with prompts in it. Batches alone make steps differ less; with
/// 1.2 or 2 the lab shows the same.
const DECODE_TIMES: f64 = 1.5;
/// And this much more: clocks count whole milliseconds, and a prompt that takes less is not worth knowing of.
const DECODE_SLACK: f64 = 5.0;
/// Gaps that are remembered. A quarter of them may be shorter than the usual one: what a server sends in two pieces is no step;
/// and up to three quarters longer: most steps compute no prompts, since those that do take so much longer.
const GAPS: usize = 16;
/// A token that is late for longer says nothing: its stream may have ended, or its client reads no more.
const LATE_MAX: Millis = Millis(1_000);

/// What is known of one engine's steps. Times of 0 are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Steps {
    /// When the last of its steps ended that computed no prompt: nothing waited then, unless it is kept from running.
    decoded_at: UnixMillis,
    /// From then on the step under way is too long for one without prompts.
    late_from: UnixMillis,
}

impl Steps {
    /// When the last step ended that computed no prompt; `None` = none was seen.
    #[must_use]
    pub fn decoded_at(self, now: UnixMillis) -> Option<UnixMillis> {
        // One from the future is from before the clock stepped back.
        (1..=now.0).contains(&self.decoded_at.0).then_some(self.decoded_at)
    }

    /// The step under way computes prompts. Only while a stream of this proxy's is there to tell.
    #[must_use]
    pub fn is_late(self, now: UnixMillis) -> bool {
        self.late_from.0 > 0 && now > self.late_from && now.since(self.late_from) <= LATE_MAX
    }

    /// Both of what two workers saw: the later.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            decoded_at: self.decoded_at.max(other.decoded_at),
            late_from: self.late_from.max(other.late_from),
        }
    }

    /// As other workers may take it, who hear of the next tokens only after a while.
    pub(super) fn told(self) -> Self {
        Self {
            late_from: self.late_from + STEPS_TOLD_EVERY,
            ..self
        }
    }

    /// Nothing of it lies further ahead than it may: else the clock stepped back since.
    pub(super) fn is_of_now(self, now: UnixMillis) -> bool {
        self.decoded_at <= now && self.late_from.since(now) <= LATE_MAX
    }
}

/// What one worker's streams show of one pod.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepTimes {
    /// The last gaps between tokens, in milliseconds, one of each step, the oldest overwritten first.
    gaps: [u16; GAPS],
    /// How many were seen.
    count: usize,
    /// When the last of them ended. Of all streams that wait for one step only the first adds a gap, or a dozen of them would fill the
    /// ring with one long step.
    ended_at: UnixMillis,
    /// So far.
    steps: Steps,
}

impl StepTimes {
    /// A token came, so long after the one before it of the same stream. What comes in the same millisecond is of the same step.
    pub fn token(&mut self, gap: Millis, now: UnixMillis) {
        if gap.0 == 0 {
            return;
        }
        let of_a_new_step = now < self.ended_at || now.since(self.ended_at) >= gap;
        if of_a_new_step && let Some(oldest) = self.gaps.get_mut(self.count % GAPS) {
            *oldest = u16::try_from(gap.0).unwrap_or(u16::MAX);
            self.count = self.count.wrapping_add(1);
            self.ended_at = now;
        }
        let longest = DECODE_TIMES * self.usual() + DECODE_SLACK;
        let seen = Steps {
            decoded_at: if gap.0 as f64 <= longest { now } else { UnixMillis(0) },
            late_from: now + Millis(longest as u64).min(LATE_MAX),
        };
        self.steps = if self.steps.is_of_now(now) {
            self.steps.or(seen)
        } else {
            seen
        };
    }

    /// Milliseconds of a step without prompts: the lower quartile of the gaps.
    fn usual(&self) -> f64 {
        let mut gaps = self.gaps;
        let known = gaps.get_mut(..self.count.min(GAPS)).unwrap_or_default();
        let quarter = known.len() / 4;
        if quarter >= known.len() {
            return 0.0;
        }
        f64::from(*known.select_nth_unstable(quarter).1)
    }

    /// What this worker is to tell the others.
    #[must_use]
    pub const fn steps(&self) -> Steps {
        self.steps
    }

    /// Together with what all workers told each other. Where nobody heard the pod later than this one, it knows best when a token
    /// is late.
    #[must_use]
    pub fn with(&self, told: Steps) -> Steps {
        let both = self.steps.or(told);
        let is_latest = self.steps.told().late_from >= told.late_from;
        let late_from = if is_latest {
            self.steps.late_from
        } else {
            told.late_from
        };
        Steps { late_from, ..both }
    }
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    /// A stream that begins at 1,000 and has these gaps.
    fn after(gaps: &[u64]) -> (Steps, u64) {
        let (mut times, mut now) = (StepTimes::default(), 1_000);
        for gap in gaps {
            now += gap;
            times.token(Millis(*gap), UnixMillis(now));
        }
        (times.steps(), now)
    }

    #[test]
    fn a_step_without_prompts_shows_that_nothing_waited() {
        let (steps, now) = after(&[20, 21, 20]);
        assert_eq!(steps.decoded_at(UnixMillis(now)), Some(UnixMillis(now)));
        // Later it still says when.
        assert_eq!(steps.decoded_at(UnixMillis(now + 500)), Some(UnixMillis(now)));
        let (steps, now) = after(&[20, 21, 20, 300]);
        assert_eq!(steps.decoded_at(UnixMillis(now)), Some(UnixMillis(now - 300)));
        assert_eq!(after(&[]).0.decoded_at(UnixMillis(5_000)), None);
    }

    #[test]
    fn a_token_is_late_when_a_step_without_prompts_would_be_over_and_not_for_ever() {
        let (steps, now) = after(&[20, 20]);
        let late = |after: u64| steps.is_late(UnixMillis(now + after));
        assert!(!late(35));
        assert!(late(36));
        assert!(late(1_035));
        assert!(!late(1_036));
        // Nobody listens.
        assert!(!Steps::default().is_late(UnixMillis(5_000)));
        // What follows a long step is late by the same measure.
        let (steps, now) = after(&[20, 20, 300]);
        assert!(!steps.is_late(UnixMillis(now + 35)));
        assert!(steps.is_late(UnixMillis(now + 36)));
    }

    #[test]
    fn pieces_of_one_step_are_no_steps() {
        let (pieces, now) = after(&[20, 0, 0, 20, 0]);
        assert_eq!((pieces, now), after(&[20, 20]));
        assert!(!pieces.is_late(UnixMillis(now + 30)));
    }

    #[test]
    fn a_step_with_prompts_is_one_step_however_many_streams_wait_for_it() {
        for streams in [1, 4, 12, 16, 64] {
            let (mut times, mut now) = (StepTimes::default(), 1_000);
            let mut step = |times: &mut StepTimes, gap: u64| {
                now += gap;
                (0..streams).for_each(|_| times.token(Millis(gap), UnixMillis(now)));
                now
            };
            let decoded = (0..50).map(|_| step(&mut times, 20)).last().unwrap_or_default();
            let now = step(&mut times, 300);
            let steps = times.steps();
            assert_eq!(
                steps.decoded_at(UnixMillis(now)),
                Some(UnixMillis(decoded)),
                "{streams}"
            );
            assert!(steps.is_late(UnixMillis(now + 36)), "{streams}");
        }
    }

    #[test]
    fn larger_batches_are_learned() {
        // Twice as long from now on: at first it looks like prompts.
        let mut gaps = vec![20; 16];
        gaps.extend([50; 12]);
        let (steps, now) = after(&gaps);
        assert_eq!(steps.decoded_at(UnixMillis(now)), Some(UnixMillis(now)));
        let (steps, now) = after(&gaps[..27]);
        assert_eq!(steps.decoded_at(UnixMillis(now)), Some(UnixMillis(now - 550)));
    }

    #[test]
    fn a_few_gaps_of_another_kind_change_nothing() {
        // Pieces a moment apart, and prompts: a step without prompts takes 20 ms all the same.
        let mut gaps = vec![1, 20, 20, 20, 20, 2, 20, 20, 20, 150, 20, 300, 20, 20, 1, 20];
        let (steps, now) = after(&gaps);
        assert_eq!(steps.decoded_at(UnixMillis(now)), Some(UnixMillis(now)));
        assert!(!steps.is_late(UnixMillis(now + 35)));
        gaps.push(60);
        let (steps, now) = after(&gaps);
        assert_eq!(steps.decoded_at(UnixMillis(now)), Some(UnixMillis(now - 60)));
    }

    #[test]
    fn a_clock_that_steps_back_does_not_keep_what_is_to_come() {
        let mut times = StepTimes::default();
        times.token(Millis(20), UnixMillis(1_000_000));
        times.token(Millis(20), UnixMillis(5_000));
        assert_eq!(times.steps().decoded_at(UnixMillis(5_000)), Some(UnixMillis(5_000)));
        assert!(times.steps().is_late(UnixMillis(5_100)));
        // And what another worker wrote then says nothing.
        let ahead = Steps {
            decoded_at: UnixMillis(9_000),
            late_from: UnixMillis(9_020),
        };
        assert_eq!(ahead.decoded_at(UnixMillis(5_000)), None);
        assert!(!ahead.is_late(UnixMillis(5_000)));
    }

    #[test]
    fn others_wait_longer_before_they_call_a_token_late() {
        let (steps, now) = after(&[20, 20]);
        let told = steps.told();
        assert!(!told.is_late(UnixMillis(now + 35 + STEPS_TOLD_EVERY.0)));
        assert!(told.is_late(UnixMillis(now + 36 + STEPS_TOLD_EVERY.0)));
        assert_eq!(told.decoded_at(UnixMillis(now)), steps.decoded_at(UnixMillis(now)));
    }

    #[test]
    fn who_heard_a_pod_last_knows_best() {
        let mut here = StepTimes::default();
        here.token(Millis(20), UnixMillis(1_000));
        // Its own word, which came back.
        assert_eq!(here.with(here.steps().told()), here.steps());
        let mut elsewhere = StepTimes::default();
        elsewhere.token(Millis(20), UnixMillis(1_100));
        let told = elsewhere.steps().told();
        assert_eq!(here.with(told), told);
        assert_eq!(elsewhere.with(here.steps().told()), elsewhere.steps());
        // Nothing was heard here.
        assert_eq!(StepTimes::default().with(told), told);
    }
}
