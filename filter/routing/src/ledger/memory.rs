//! What all workers remember of one pod: how fast it is, which adapters it was sent, how it failed.
//!
//! Only own observations are in here. What the pod says of itself is in the table.

use berth_shared_state::limits::{
    ADAPTERS_REMEMBERED, AVOID_FIRST, AVOID_MAX, ERROR_PAIR_WINDOW, RATE_FORGOTTEN_AFTER,
};
use berth_shared_state::units::{Millis, Tokens, UnixMillis};
use serde::{Deserialize, Serialize};

/// Weight of an observation above the rate, and of one below it. Queues of others only ever make a
/// pod look slower, so the rate is an upper expectile (0.71) of what was seen. With a tenth of the weight
/// above instead of two fifths, a pod that became slow was believed fast for four times as long.
const WEIGHT_UP: f64 = 0.25;
const WEIGHT_DOWN: f64 = 0.1;
/// Work that teaches with full weight; a shorter prompt shows fixed costs more than the rate.
const FULL_WEIGHT_TOKENS: f64 = 256.0;
/// One observation raises the rate to this multiple at most: a prefix that was cached after all
/// looks like an impossibly fast pod.
const GROWTH_MAX: f64 = 4.0;
/// No accelerator reads a million tokens per second; faster is a cached prefix.
const RATE_MAX: f64 = 1_000.0;
/// Observations before a rate is believed.
const SAMPLES_MIN: u32 = 3;

/// How a request ended, as far as it says something about its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Answered with 2xx to the end.
    Success,
    /// A 4xx other than 404 and 429, or a 500 whose text blames the length of the context: the client's.
    Refused,
    /// 404: the pod does not have what was asked for. Its adapter is not there, whatever was thought.
    NotFound,
    /// The client left, or nobody knows.
    Abandoned,
    /// No connection, a reset, or an earlier attempt of a retried request.
    Unreachable,
    /// 429 or 503: the pod says that it is full or not ready.
    Overloaded,
    /// Another 5xx.
    ServerError,
}

impl Outcome {
    /// What the end of a stream says. `details` is Envoy's `response.code_details`; empty where the host
    /// has none. An answer that the proxy made itself is no pod's failure, unless a pod was dialled and
    /// did not answer.
    #[must_use]
    pub fn of_stream(details: &[u8], status: u16, context_length: bool) -> Self {
        let overflow = details.windows(b"overflow".len()).any(|part| part == b"overflow");
        match details {
            _ if status == 0 => Self::Abandoned,
            b"" | b"via_upstream" => Self::of_status(status, context_length),
            // The cluster's own limit: nothing was sent.
            _ if overflow => Self::Abandoned,
            b"response_timeout" => Self::ServerError,
            _ if details.starts_with(b"upstream_reset") || details.starts_with(b"upstream_per_try_timeout") => {
                Self::Unreachable
            }
            _ => Self::Abandoned,
        }
    }

    /// What a status says; `context_length` if the text of the answer blames the context length.
    #[must_use]
    pub const fn of_status(status: u16, context_length: bool) -> Self {
        match status {
            404 => Self::NotFound,
            429 | 503 => Self::Overloaded,
            500.. if !context_length => Self::ServerError,
            400.. => Self::Refused,
            _ => Self::Success,
        }
    }
}

/// A prompt that was answered while somebody watched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Observation {
    /// Own uncached prompt tokens the pod had to read until the first token.
    pub work: Tokens,
    /// Time to the first token.
    pub took: Millis,
}

/// One request's end, as charged to a pod.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ending {
    /// Tells requests apart.
    pub request: u64,
    pub sent_at: UnixMillis,
    pub outcome: Outcome,
}

/// Notes when an adapter was last met, newest first; the oldest are forgotten.
pub fn put_first(adapters: &mut Vec<(u64, UnixMillis)>, adapter: u64, at: UnixMillis) {
    adapters.retain(|(known, _)| *known != adapter);
    adapters.insert(0, (adapter, at));
    adapters.truncate(ADAPTERS_REMEMBERED);
}

/// Memory of one pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Memory {
    /// The table's incarnation that `adapters` belong to.
    pub incarnation: u32,
    /// Tokens per millisecond.
    rate: f64,
    samples: u32,
    observed_at: UnixMillis,
    /// xxh64 of the name and when it was last sent, newest first.
    pub adapters: Vec<(u64, UnixMillis)>,
    /// KV tokens sent so far.
    pub filled: Tokens,
    /// Charges since the last success.
    strikes: u8,
    charged_at: UnixMillis,
    pub avoid_until: Option<UnixMillis>,
    /// The last request that met a 5xx.
    error: Option<(u64, UnixMillis)>,
}

impl Memory {
    /// Learned prefill rate in tokens per millisecond, once enough was seen.
    pub fn rate(&self) -> Option<f64> {
        (self.samples >= SAMPLES_MIN && self.rate.is_finite() && self.rate > 0.0).then_some(self.rate)
    }

    /// A pod that looks slow gets no requests, so nothing could correct its rate: after a while
    /// without observations it counts as the pool's again, and has to be seen anew.
    pub fn forget_rate(&mut self, now: UnixMillis) {
        if self.samples > 0 && now.since(self.observed_at) > RATE_FORGOTTEN_AFTER {
            (self.rate, self.samples) = (0.0, 0);
        }
    }

    /// Learns from one observed time to first token.
    pub fn observe(&mut self, seen: Observation, now: UnixMillis) {
        if seen.work.0 == 0 {
            return;
        }
        self.forget_rate(now);
        self.observed_at = now;
        let work = seen.work.0 as f64;
        let observed = (work / (seen.took.0.max(1) as f64)).min(RATE_MAX);
        if self.samples < SAMPLES_MIN {
            // The first answers of a pod are its slowest (warm-up), and one of them must not stand for it.
            self.rate = self.rate.max(observed);
        } else {
            let weight = if observed > self.rate { WEIGHT_UP } else { WEIGHT_DOWN };
            let step = observed.min(self.rate * GROWTH_MAX) - self.rate;
            self.rate += weight * (work / FULL_WEIGHT_TOKENS).min(1.0) * step;
        }
        self.samples = self.samples.saturating_add(1);
    }

    /// An adapter was sent to the pod.
    pub fn sent_adapter(&mut self, adapter: u64, at: UnixMillis) {
        put_first(&mut self.adapters, adapter, at);
    }

    /// The pod answered that it does not have the adapter.
    pub fn lacks_adapter(&mut self, adapter: u64) {
        self.adapters.retain(|(known, _)| *known != adapter);
    }

    /// The pod runs as this incarnation: a restart emptied its adapter slots.
    pub fn restarted(&mut self, incarnation: u32) {
        if incarnation > self.incarnation {
            self.adapters.clear();
            self.incarnation = incarnation;
        }
    }

    /// A request ended. One sent before the last charge says nothing new: a burst that fails
    /// together is one failure, and an old stream that ends well does not excuse the pod.
    pub fn ended(&mut self, end: Ending, now: UnixMillis) {
        // A charge from the future was written before the clock stepped back: it says nothing.
        let charged = self.strikes > 0 && self.charged_at <= now;
        if charged && end.sent_at < self.charged_at {
            return;
        }
        match end.outcome {
            Outcome::Success => {
                self.strikes = 0;
                self.avoid_until = None;
                self.error = None;
            }
            Outcome::Refused | Outcome::NotFound | Outcome::Abandoned => {}
            Outcome::Unreachable | Outcome::Overloaded => self.charge(now),
            Outcome::ServerError => {
                let pair = self
                    .error
                    .is_some_and(|(other, at)| other != end.request && now.since(at) <= ERROR_PAIR_WINDOW);
                self.error = Some((end.request, now));
                if pair {
                    self.charge(now);
                }
            }
        }
    }

    fn charge(&mut self, now: UnixMillis) {
        let doubled = AVOID_FIRST.0 << u32::from(self.strikes).min(16);
        self.avoid_until = Some(now + Millis(doubled.min(AVOID_MAX.0)));
        self.strikes = self.strikes.saturating_add(1);
        self.charged_at = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn observed(pairs: &[(u64, u64)]) -> Option<f64> {
        let mut memory = Memory::default();
        for (work, took) in pairs {
            let (work, took) = (Tokens(*work), Millis(*took));
            memory.observe(Observation { work, took }, UnixMillis(1_000));
        }
        memory.rate()
    }

    #[track_caller]
    fn check_rate(pairs: &[(u64, u64)], expected: Option<f64>) {
        match (observed(pairs), expected) {
            (Some(found), Some(wanted)) => assert!((found - wanted).abs() < 1e-9, "{found} instead of {wanted}"),
            (found, wanted) => assert_eq!(found, wanted),
        }
    }

    #[test]
    fn a_rate_is_believed_after_three_observations() {
        check_rate(&[(1000, 100), (1000, 100)], None);
        check_rate(&[(1000, 100), (1000, 100), (1000, 100)], Some(10.0));
    }

    #[test]
    fn faster_teaches_more_than_slower() {
        // 10 -> 10 -> 10 -> + 0.25 x 10, or - 0.1 x 9.9.
        check_rate(&[(1000, 100), (1000, 100), (1000, 100), (1000, 50)], Some(12.5));
        check_rate(
            &[(1000, 100), (1000, 100), (1000, 100), (500, 5000)],
            Some(10.0 - 0.1 * 9.9),
        );
    }

    #[test]
    fn short_prompts_teach_little_and_empty_ones_nothing() {
        check_rate(&[(1000, 100), (1000, 100), (0, 50)], None);
        // 64 of 256 tokens: a quarter of the weight.
        check_rate(
            &[(1000, 100), (1000, 100), (1000, 100), (64, 4)],
            Some(10.0 + 0.25 * 0.25 * 6.0),
        );
    }

    #[test]
    fn a_cached_prefix_that_was_counted_as_work_raises_the_rate_little() {
        check_rate(
            &[(1000, 100), (1000, 100), (1000, 100), (100_000, 10)],
            Some(10.0 + 0.25 * 30.0),
        );
        check_rate(&[(10_000, 0), (10_000, 0), (10_000, 0)], Some(RATE_MAX));
    }

    #[test]
    fn a_slow_first_answer_does_not_stand_for_the_pod() {
        check_rate(&[(1000, 10_000), (1000, 100), (1000, 125)], Some(10.0));
    }

    #[test]
    fn a_rate_that_nothing_confirms_for_half_a_minute_is_forgotten() {
        let mut memory = Memory::default();
        let seen = |work| Observation {
            work: Tokens(work),
            took: Millis(1_000),
        };
        for at in 1..=3 {
            memory.observe(seen(100), UnixMillis(at));
        }
        memory.forget_rate(UnixMillis(30_003));
        assert_eq!(memory.rate(), Some(0.1), "believed until then");
        memory.forget_rate(UnixMillis(30_004));
        assert_eq!(memory.rate(), None);
        for at in 40_000..=40_002 {
            memory.observe(seen(8_000), UnixMillis(at));
        }
        assert_eq!(
            memory.rate(),
            Some(8.0),
            "the old rate says nothing about the pod of today"
        );
    }

    /// Endings as (sent, ended, request, outcome); expects the end of the avoidance.
    #[track_caller]
    fn check_avoided(endings: &[(u64, u64, u64, Outcome)], expected: Option<u64>) {
        let mut memory = Memory::default();
        for (sent_at, now, request, outcome) in endings {
            let end = Ending {
                request: *request,
                sent_at: UnixMillis(*sent_at),
                outcome: *outcome,
            };
            memory.ended(end, UnixMillis(*now));
        }
        assert_eq!(memory.avoid_until, expected.map(UnixMillis));
    }

    #[test]
    fn failures_of_the_pod_are_charged_at_once_and_grow_to_thirty_seconds() {
        use Outcome::{Overloaded, Unreachable};
        check_avoided(&[(0, 10, 1, Unreachable)], Some(3_010));
        check_avoided(&[(0, 10, 1, Overloaded)], Some(3_010));
        let ladder: Vec<_> = (0..20).map(|n| (n * 100_000, n * 100_000, n, Unreachable)).collect();
        check_avoided(&ladder[..2], Some(106_000));
        check_avoided(&ladder[..4], Some(324_000));
        check_avoided(&ladder[..5], Some(430_000));
        check_avoided(&ladder, Some(1_930_000));
    }

    #[test]
    fn a_burst_that_fails_together_is_one_failure() {
        use Outcome::Unreachable;
        check_avoided(
            &[
                (0, 100, 1, Unreachable),
                (0, 101, 2, Unreachable),
                (99, 102, 3, Unreachable),
            ],
            Some(3_100),
        );
    }

    #[test]
    fn a_success_clears_only_if_it_was_sent_after_the_charge() {
        use Outcome::{Overloaded, Success};
        check_avoided(&[(50, 100, 1, Overloaded), (60, 200, 2, Success)], Some(3_100));
        check_avoided(&[(50, 100, 1, Overloaded), (100, 200, 2, Success)], None);
        check_avoided(
            &[
                (50, 100, 1, Overloaded),
                (100, 200, 2, Success),
                (300, 300, 3, Overloaded),
            ],
            Some(3_300),
        );
    }

    #[test]
    fn a_server_error_needs_two_requests_within_ten_seconds() {
        use Outcome::ServerError;
        check_avoided(&[(0, 10, 1, ServerError)], None);
        check_avoided(&[(0, 10, 1, ServerError), (0, 20, 1, ServerError)], None);
        check_avoided(&[(0, 10, 1, ServerError), (0, 10_010, 2, ServerError)], Some(13_010));
        check_avoided(&[(0, 10, 1, ServerError), (0, 10_011, 2, ServerError)], None);
    }

    #[test]
    fn the_clients_own_errors_are_never_charged() {
        use Outcome::{Abandoned, NotFound, Refused};
        let many: Vec<_> = (0..60)
            .zip([Refused, Abandoned, NotFound].into_iter().cycle())
            .map(|(n, outcome)| (n, n, n, outcome))
            .collect();
        check_avoided(&many, None);
    }

    #[test]
    fn statuses_say_whose_fault_it_was() {
        for (status, context_length, expected) in [
            (200, false, Outcome::Success),
            (204, false, Outcome::Success),
            (400, false, Outcome::Refused),
            (404, false, Outcome::NotFound),
            (429, false, Outcome::Overloaded),
            (500, false, Outcome::ServerError),
            (500, true, Outcome::Refused),
            (502, false, Outcome::ServerError),
            (503, true, Outcome::Overloaded),
        ] {
            assert_eq!(Outcome::of_status(status, context_length), expected, "{status}");
        }
    }

    #[test]
    fn what_the_proxy_answers_itself_is_no_failure_of_a_pod() {
        for (details, status, expected) in [
            ("via_upstream", 200, Outcome::Success),
            ("via_upstream", 503, Outcome::Overloaded),
            ("", 503, Outcome::Overloaded),
            (
                "upstream_reset_before_response_started{connection_failure}",
                503,
                Outcome::Unreachable,
            ),
            (
                "upstream_reset_before_response_started{connection_termination}",
                503,
                Outcome::Unreachable,
            ),
            (
                "upstream_reset_after_response_started{remote_reset}",
                200,
                Outcome::Unreachable,
            ),
            ("upstream_per_try_timeout", 504, Outcome::Unreachable),
            ("response_timeout", 504, Outcome::ServerError),
            (
                "upstream_reset_before_response_started{overflow}",
                503,
                Outcome::Abandoned,
            ),
            ("no_healthy_upstream", 503, Outcome::Abandoned),
            ("request_rate_limited", 429, Outcome::Abandoned),
            ("stream_idle_timeout", 504, Outcome::Abandoned),
            ("downstream_remote_disconnect", 200, Outcome::Abandoned),
            ("via_upstream", 0, Outcome::Abandoned),
        ] {
            assert_eq!(
                Outcome::of_stream(details.as_bytes(), status, false),
                expected,
                "{details} {status}"
            );
        }
    }

    #[test]
    fn adapters_are_newest_first_distinct_and_at_most_thirty_two() {
        let mut memory = Memory::default();
        for n in 0..33 {
            memory.sent_adapter(n, UnixMillis(n));
        }
        assert_eq!(memory.adapters.len(), ADAPTERS_REMEMBERED);
        assert_eq!(memory.adapters.last(), Some(&(1, UnixMillis(1))));
        memory.sent_adapter(5, UnixMillis(99));
        assert_eq!(memory.adapters.len(), ADAPTERS_REMEMBERED);
        assert_eq!(memory.adapters.first(), Some(&(5, UnixMillis(99))));
        memory.restarted(0);
        assert_eq!(memory.adapters.len(), ADAPTERS_REMEMBERED);
        memory.restarted(1);
        assert!(memory.adapters.is_empty());
    }
}
