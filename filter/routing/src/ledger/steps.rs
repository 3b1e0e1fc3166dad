//! What is heard of an engine's steps: the tokens of own streams.
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

use berth_shared_state::units::{Millis, UnixMillis};
use serde::{Deserialize, Serialize};

/// A token later than so many of the usual gaps means a step with prompts in it. Batches alone make steps differ less; with
/// 1.2 or 2 the lab shows the same.
const DECODE_TIMES: f64 = 1.5;
/// And this much more: clocks count whole milliseconds, and a prompt that takes less is not worth knowing of.
const DECODE_SLACK: f64 = 5.0;
/// Pieces so close together are of one step: no step of a model worth a proxy is as short.
const ONE_STEP: Millis = Millis(1);
/// Gaps that must be known before they say anything: all may have been long.
const GAPS_MIN: usize = 4;
/// Gaps that are remembered. A quarter of them may be shorter than the usual one: what a server sends in two pieces is no step;
/// and up to three quarters longer: most steps compute no prompts, since those that do take so much longer.
const GAPS: usize = 16;
/// A token that is late for longer says nothing: its client may read no more.
const LATE_MAX: Millis = Millis(5_000);

/// What was heard of one engine's steps. Times of 0 are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heard {
    /// When the last of its steps ended that computed no prompt: nothing waited then, unless it is kept from running.
    decoded_at: UnixMillis,
    /// From then on the step under way is too long for one without prompts.
    late_from: UnixMillis,
}

impl Heard {
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
    /// A longer one has prompts in it; `None` = too few are known.
    longest: Option<Millis>,
    /// The last of them, unless own prompts explain it.
    last: Millis,
    /// When the last step ended. Of all streams that wait for one step only the first adds a gap, or a dozen of them would fill the
    /// ring with one long step.
    ended_at: UnixMillis,
    /// When anything came of any stream.
    piece_at: UnixMillis,
    /// Streams that are open.
    streams: u32,
    /// So far.
    heard: Heard,
}

impl StepTimes {
    /// A stream begins: its first token came, of a step that computed its prompt.
    pub fn began(&mut self, now: UnixMillis) {
        self.streams = self.streams.saturating_add(1);
        (self.piece_at, self.ended_at, self.last) = (now, now, Millis(0));
    }

    /// A stream that began is over.
    pub fn ended(&mut self) {
        self.streams = self.streams.saturating_sub(1);
    }

    /// A token came, so long after the one before it of the same stream.
    pub fn token(&mut self, gap: Millis, now: UnixMillis) {
        self.piece_at = now;
        let of_a_new_step = gap > ONE_STEP && (now < self.ended_at || now.since(self.ended_at) >= gap);
        if of_a_new_step && let Some(oldest) = self.gaps.get_mut(self.count % GAPS) {
            *oldest = u16::try_from(gap.0).unwrap_or(u16::MAX);
            self.count = self.count.wrapping_add(1);
            (self.ended_at, self.last) = (now, gap.min(LATE_MAX));
            self.longest = self.decodes_within();
        }
        let Some(longest) = self.longest else { return };
        let seen = Heard {
            decoded_at: if gap > ONE_STEP && gap <= longest {
                now
            } else {
                UnixMillis(0)
            },
            late_from: now + longest,
        };
        self.heard = if self.heard.is_of_now(now) {
            self.heard.or(seen)
        } else {
            seen
        };
    }

    /// The longest step without prompts, by the lower quartile of the gaps.
    fn decodes_within(&self) -> Option<Millis> {
        let mut gaps = self.gaps;
        let known = gaps
            .get_mut(..self.count.min(GAPS))
            .filter(|known| known.len() >= GAPS_MIN)?;
        let usual = *known.select_nth_unstable(known.len() / 4).1;
        let longest = DECODE_TIMES * f64::from(usual) + DECODE_SLACK;
        Some(Millis(longest as u64).min(LATE_MAX))
    }

    /// By how much the next token of an open stream is late, or the last one was, whichever is more: the engine computes prompts,
    /// or it is slow, or it hangs.
    #[must_use]
    pub fn late(&self, now: UnixMillis) -> Millis {
        let silence = now.since(self.piece_at);
        match self.longest {
            Some(longest) if self.streams > 0 && silence <= LATE_MAX => {
                Millis(silence.max(self.last).0.saturating_sub(longest.0))
            }
            _ => Millis(0),
        }
    }

    /// What this worker is to tell the others.
    #[must_use]
    pub const fn heard(&self) -> Heard {
        self.heard
    }

    /// Together with what all workers told each other, so long after they heard it. Where nobody heard the pod later than this one,
    /// it knows best when a token is late.
    #[must_use]
    pub fn with(&self, told: Heard, after: Millis) -> Heard {
        let late_from = if self.heard.late_from >= told.late_from {
            self.heard.late_from
        } else {
            told.late_from + after
        };
        let both = self.heard.or(told);
        Heard { late_from, ..both }
    }
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    /// So long after it was heard others read it.
    const AFTER: Millis = Millis(50);

    /// A stream that begins at 1,000 and has these gaps.
    fn after(gaps: &[u64]) -> (StepTimes, u64) {
        let (mut times, mut now) = (StepTimes::default(), 1_000);
        times.began(UnixMillis(now));
        for gap in gaps {
            now += gap;
            times.token(Millis(*gap), UnixMillis(now));
        }
        (times, now)
    }

    /// How long before the last token of such a stream the last step without prompts ended.
    fn decoded_before(gaps: &[u64]) -> Option<u64> {
        let (times, now) = after(gaps);
        let decoded_at = times.heard().decoded_at(UnixMillis(now));
        decoded_at.map(|at| now - at.0)
    }

    /// As many usual steps as it takes to know them, and these.
    fn usual_and(gaps: &[u64]) -> Vec<u64> {
        [&[20; GAPS_MIN], gaps].concat()
    }

    #[test]
    fn a_step_without_prompts_shows_that_nothing_waited() {
        let (times, now) = after(&usual_and(&[21, 20]));
        assert_eq!(times.heard().decoded_at(UnixMillis(now)), Some(UnixMillis(now)));
        // Later it still says when.
        assert_eq!(times.heard().decoded_at(UnixMillis(now + 500)), Some(UnixMillis(now)));
        assert_eq!(decoded_before(&usual_and(&[300])), Some(300));
    }

    #[test]
    fn a_few_gaps_say_nothing_since_all_may_be_of_prompts() {
        assert_eq!(decoded_before(&[300; GAPS_MIN - 1]), None);
        assert_eq!(decoded_before(&[300; GAPS_MIN]), Some(0));
        let (times, now) = after(&[20; GAPS_MIN - 1]);
        assert!(!times.heard().is_late(UnixMillis(now + 500)));
        assert_eq!(times.late(UnixMillis(now + 500)), Millis(0));
    }

    #[test]
    fn a_token_is_late_when_a_step_without_prompts_would_be_over_and_not_for_ever() {
        let (times, now) = after(&usual_and(&[]));
        let late = |times: &StepTimes, after: u64| times.heard().is_late(UnixMillis(now + after));
        assert!(!late(&times, 35));
        assert!(late(&times, 36));
        assert!(late(&times, 35 + LATE_MAX.0));
        assert!(!late(&times, 36 + LATE_MAX.0));
        // Nobody hears it.
        assert!(!Heard::default().is_late(UnixMillis(5_000)));
        // What follows a long step is late by the same measure.
        let (times, now) = after(&usual_and(&[300]));
        assert!(!times.heard().is_late(UnixMillis(now + 35)));
        assert!(times.heard().is_late(UnixMillis(now + 36)));
    }

    #[test]
    fn an_engine_is_as_late_as_its_next_token_or_its_last_one_was() {
        let (times, now) = after(&usual_and(&[]));
        let late = |times: &StepTimes, now: u64| times.late(UnixMillis(now)).0;
        assert_eq!((late(&times, now + 35), late(&times, now + 135)), (0, 100));
        // Its client may read no more.
        assert_eq!(late(&times, now + LATE_MAX.0 + 1), 0);
        // A slow one was late, and will be.
        let (times, now) = after(&usual_and(&[1_035]));
        assert_eq!(
            (late(&times, now), late(&times, now + 500), late(&times, now + 1_135)),
            (1_000, 1_000, 1_100)
        );
        assert_eq!(late(&after(&usual_and(&[1_035, 20])).0, now + 20), 0);
        // Nobody is late by an hour.
        let (times, now) = after(&usual_and(&[3_600_000]));
        assert_eq!(late(&times, now), LATE_MAX.0 - 35);
    }

    #[test]
    fn nobody_is_late_where_no_stream_is_open() {
        let (mut times, now) = after(&usual_and(&[]));
        times.began(UnixMillis(now));
        times.ended();
        assert_eq!(times.late(UnixMillis(now + 135)), Millis(100));
        times.ended();
        assert_eq!(times.late(UnixMillis(now + 135)), Millis(0));
        // From its first token on another is listened to.
        times.began(UnixMillis(now + 500));
        assert_eq!(times.late(UnixMillis(now + 535)), Millis(0));
        assert_eq!(times.late(UnixMillis(now + 545)), Millis(10));
    }

    #[test]
    fn a_step_is_not_late_for_an_own_prompt_in_it() {
        let (mut times, now) = after(&usual_and(&[1_035]));
        // Whichever of its tokens comes first.
        times.began(UnixMillis(now));
        assert_eq!(times.late(UnixMillis(now)), Millis(0));
        let (mut times, now) = after(&usual_and(&[]));
        times.began(UnixMillis(now + 1_035));
        times.token(Millis(1_035), UnixMillis(now + 1_035));
        assert_eq!(times.late(UnixMillis(now + 1_035)), Millis(0));
    }

    #[test]
    fn pieces_of_one_step_are_no_steps() {
        // Each token in two pieces, a millisecond apart or in the same.
        for apart in [0, 1] {
            let mut gaps = [20 - apart, apart].repeat(20);
            gaps.push(20 - apart);
            assert_eq!(decoded_before(&gaps), Some(0));
            gaps.extend([apart, 300]);
            assert_eq!(decoded_before(&gaps), Some(300 + apart));
            // They are signs of life.
            gaps.extend([20, 20, 20, 1]);
            let (times, now) = after(&gaps);
            assert_eq!(times.late(UnixMillis(now + 33)), Millis(0));
            assert!(!times.heard().is_late(UnixMillis(now + 33)));
            assert!(times.heard().is_late(UnixMillis(now + 36)));
        }
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
            let heard = times.heard();
            assert_eq!(
                heard.decoded_at(UnixMillis(now)),
                Some(UnixMillis(decoded)),
                "{streams}"
            );
            assert!(heard.is_late(UnixMillis(now + 36)), "{streams}");
        }
    }

    #[test]
    fn larger_batches_are_learned() {
        // Twice as long from now on: at first it looks like prompts.
        let mut gaps = vec![20; 16];
        gaps.extend([50; 12]);
        assert_eq!(decoded_before(&gaps), Some(0));
        assert_eq!(decoded_before(&gaps[..27]), Some(550));
    }

    #[test]
    fn a_few_gaps_of_another_kind_change_nothing() {
        // Pieces a moment apart, and prompts: a step without prompts takes 20 ms all the same.
        let mut gaps = vec![3, 20, 20, 20, 20, 3, 20, 20, 20, 150, 20, 300, 20, 20, 3, 20];
        assert_eq!(decoded_before(&gaps), Some(0));
        let (times, now) = after(&gaps);
        assert!(!times.heard().is_late(UnixMillis(now + 35)));
        gaps.push(60);
        assert_eq!(decoded_before(&gaps), Some(60));
    }

    #[test]
    fn a_clock_that_steps_back_does_not_keep_what_is_to_come() {
        let mut times = StepTimes::default();
        times.began(UnixMillis(1_000_000));
        (0..GAPS).for_each(|_| times.token(Millis(20), UnixMillis(1_000_000)));
        (1..=GAPS as u64).for_each(|step| times.token(Millis(20), UnixMillis(5_000 + 20 * step)));
        assert_eq!(times.heard().decoded_at(UnixMillis(5_320)), Some(UnixMillis(5_320)));
        assert!(times.heard().is_late(UnixMillis(5_400)));
        assert_eq!(times.late(UnixMillis(5_400)), Millis(45));
        // And what another worker wrote then says nothing.
        let ahead = Heard {
            decoded_at: UnixMillis(9_000),
            late_from: UnixMillis(9_020),
        };
        assert_eq!(ahead.decoded_at(UnixMillis(5_000)), None);
        assert!(!ahead.is_late(UnixMillis(5_000)));
    }

    #[test]
    fn what_is_usual_for_a_slow_engine_is_of_now() {
        // A step of two seconds is not from before a clock stepped back.
        let (times, now) = after(&[2_000; 5]);
        assert!(times.heard().is_of_now(UnixMillis(now)));
        assert!(!times.heard().is_late(UnixMillis(now + 3_005)));
        assert!(times.heard().is_late(UnixMillis(now + 3_006)));
    }

    #[cfg(not(target_arch = "wasm32"))]
    proptest::proptest! {
        #[test]
        fn whatever_comes_in_whatever_time_it_is_of_the_past_and_nobody_is_late_for_ever(
            pieces in proptest::collection::vec((-3_000..3_000_i64, 0..3_000_u64, 0..4), 0..80),
        ) {
            let (mut times, mut now) = (StepTimes::default(), 1_000_000_u64);
            for (passes, gap, what) in pieces {
                now = now.saturating_add_signed(passes);
                match what {
                    0 => times.began(UnixMillis(now)),
                    1 => times.ended(),
                    _ => times.token(Millis(gap), UnixMillis(now)),
                }
                let at = UnixMillis(now);
                proptest::prop_assert!(times.heard().decoded_at(at).is_none_or(|decoded| decoded <= at));
                proptest::prop_assert!(times.late(at) <= LATE_MAX);
                let much_later = at + LATE_MAX + LATE_MAX + Millis(9_000);
                proptest::prop_assert_eq!(times.late(much_later), Millis(0));
                proptest::prop_assert!(what < 2 || !times.heard().is_late(much_later));
            }
        }
    }

    #[test]
    fn who_heard_a_pod_last_knows_best() {
        let (here, elsewhere) = (after(&[20; 5]).0, after(&[20; 10]).0);
        let told = elsewhere.heard();
        // Its own word, which came back, and an older one.
        assert_eq!(here.with(here.heard(), AFTER), here.heard());
        assert_eq!(elsewhere.with(here.heard(), AFTER), told);
        // Who reads it hears of the next tokens only after a while.
        let late_from = told.late_from + AFTER;
        assert_eq!(here.with(told, AFTER), Heard { late_from, ..told });
        // Nothing was heard here.
        assert_eq!(StepTimes::default().with(told, AFTER), Heard { late_from, ..told });
    }
}
