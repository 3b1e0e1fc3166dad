//! What a pod's memory makes of one observation after the other.

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
    assert_eq!(memory.avoided_until(), expected.map(UnixMillis));
}

/// What happens at a time, and until when the pod is avoided then.
enum Step {
    /// A request is sent.
    Sends,
    /// The answer to one sent then begins.
    Answers(u64),
    /// One sent then ends.
    Ends(u64, Outcome),
}

#[track_caller]
fn check_circuit(steps: &[(u64, Step, Option<u64>)]) {
    let mut memory = Memory::default();
    for (now, step, until) in steps {
        let at = UnixMillis(*now);
        match *step {
            Step::Sends => memory.sent(Tokens(1), at, at),
            Step::Answers(sent) => memory.answered(UnixMillis(sent), at),
            Step::Ends(sent, outcome) => memory.ended(
                Ending {
                    request: sent,
                    sent_at: UnixMillis(sent),
                    outcome,
                },
                at,
            ),
        }
        assert_eq!(memory.avoided_until(), until.map(UnixMillis), "at {now}");
    }
}

#[test]
fn one_request_at_a_time_shows_whether_a_pod_works_again() {
    use Outcome::{Abandoned, NotFound, Refused, Success, Unreachable};
    use Step::{Answers, Ends, Sends};
    let opened = || (100, Ends(0, Unreachable), Some(3_100));
    // What is sent while it is open is no probe: there was nobody else.
    check_circuit(&[opened(), (3_099, Sends, Some(3_100)), (3_100, Sends, Some(13_100))]);
    check_circuit(&[opened(), (4_000, Sends, Some(14_000)), (4_500, Answers(4_000), None)]);
    check_circuit(&[
        opened(),
        (4_000, Sends, Some(14_000)),
        (4_500, Ends(4_000, Success), None),
    ]);
    // It fails: twice as long.
    check_circuit(&[
        opened(),
        (4_000, Sends, Some(14_000)),
        (4_500, Ends(4_000, Unreachable), Some(10_500)),
    ]);
    // It says nothing: half open again, and the next one is the probe.
    for outcome in [Refused, NotFound, Abandoned] {
        check_circuit(&[
            opened(),
            (4_000, Sends, Some(14_000)),
            (4_500, Ends(4_001, outcome), Some(14_000)),
            (4_600, Ends(4_000, outcome), Some(3_100)),
            (4_700, Sends, Some(14_700)),
        ]);
    }
    // It takes too long: another one may try, and the answer to the first still counts.
    check_circuit(&[
        opened(),
        (4_000, Sends, Some(14_000)),
        (13_999, Sends, Some(14_000)),
        (14_000, Sends, Some(24_000)),
        (15_000, Answers(4_000), None),
    ]);
    // An answer to what was sent before the failure excuses nothing.
    check_circuit(&[opened(), (200, Answers(99), Some(3_100)), (300, Answers(100), None)]);
}

#[test]
fn failures_of_an_open_circuit_keep_it_open_and_do_not_double_its_time() {
    use Outcome::Unreachable;
    use Step::{Ends, Sends};
    check_circuit(&[
        (100, Ends(0, Unreachable), Some(3_100)),
        (103, Ends(101, Unreachable), Some(3_103)),
        (3_000, Ends(200, Unreachable), Some(6_000)),
        (6_000, Sends, Some(16_000)),
        (6_010, Ends(6_000, Unreachable), Some(12_010)),
        (7_000, Ends(6_500, Unreachable), Some(13_000)),
    ]);
}

#[test]
fn a_pod_that_answers_once_and_fails_again_is_avoided_for_longer() {
    use Outcome::{Success, Unreachable};
    use Step::{Answers, Ends, Sends};
    check_circuit(&[
        (100, Ends(0, Unreachable), Some(3_100)),
        (4_000, Sends, Some(14_000)),
        (4_500, Answers(4_000), None),
        (5_000, Ends(4_600, Unreachable), Some(11_000)),
        (12_000, Sends, Some(22_000)),
        (12_500, Ends(12_000, Success), None),
        (13_000, Ends(12_600, Unreachable), Some(16_000)),
    ]);
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
