//! What went wrong for others, and what discovery may say.

use super::*;
use crate::table::{Readiness, Trend};
use crate::units::Tokens;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

#[track_caller]
fn check_failure(reply: fn() -> Reply, error: ScrapeError, line: &str) {
    let mut rig = Rig::new(&fixed_pool(&[POD]));
    rig.run(30_000, |target| match target {
        Target::Metrics(_) => reply(),
        target => idle(target),
    });
    assert_eq!(rig.row(POD).last_error, Some(error));
    assert!(rig.row(POD).failures > 3);
    assert_eq!(rig.lines(line), 1, "once per cause: {:?}", rig.logs);
    assert_eq!(rig.lines("metrics:"), 1);
}

#[test]
fn a_failure_is_told_once_with_its_remedy() {
    check_failure(|| Reply::Says(401, b""), ScrapeError::Unauthorized, "scrape.headers");
    check_failure(|| Reply::Says(403, b""), ScrapeError::Unauthorized, "scrape.headers");
    check_failure(|| Reply::Says(307, b""), ScrapeError::Http(307), "set scrape.path");
    check_failure(|| Reply::Says(404, b""), ScrapeError::Http(404), "no page at /metrics");
    check_failure(|| Reply::Says(500, b""), ScrapeError::Http(500), "status 500");
    check_failure(|| Reply::Says(503, b"loading"), ScrapeError::Http(503), "status 503");
    check_failure(
        || Reply::Says(503, b"no healthy upstream"),
        ScrapeError::Unreachable,
        "nobody answers",
    );
    check_failure(
        || Reply::Says(503, b"upstream connect error or disconnect/reset before headers"),
        ScrapeError::Unreachable,
        "nobody answers",
    );
    check_failure(
        || Reply::Says(504, b"upstream request timeout"),
        ScrapeError::Timeout,
        "scrape.timeout",
    );
    check_failure(
        || Reply::Fails(ScrapeError::NotSent),
        ScrapeError::NotSent,
        "check scrape.cluster",
    );
    let rejected = || reads(Sample::empty(Status::Reject, Some("a JSON body")));
    check_failure(rejected, ScrapeError::Page, "the page cannot be used: a JSON body");
}

#[test]
fn a_redirect_names_where_it_leads_without_letting_it_write_the_log() {
    let response = Response {
        status: 307,
        location: Some("/metrics/\nfake"),
        ..Response::default()
    };
    let failure = answer::page(Ok(response), 9).unwrap_err();
    let advice = answer::advice(metrics_of(POD), &failure, &fixed_pool(&[POD]));
    assert!(advice.contains(r#""/metrics/fake""#), "{advice}");
}

#[test]
fn a_recovery_is_told_once_and_a_flapping_pod_does_not_fill_the_log() {
    let mut rig = Rig::new(&fixed_pool(&[POD]));
    let turn = core::cell::Cell::new(0);
    let flapping = |target| match target {
        Target::Metrics(_) => {
            turn.set(turn.get() + 1);
            if turn.get() % 2 == 0 {
                idle(target)
            } else {
                Reply::Fails(ScrapeError::Timeout)
            }
        }
        target => idle(target),
    };
    rig.run(60_000, flapping);
    assert_eq!((rig.lines("no answer within 1000 ms"), rig.lines("read again")), (1, 0));
    rig.run(10_000, idle);
    assert_eq!(rig.lines("metrics: read again"), 1);
    rig.run(2_000, |_| Reply::Fails(ScrapeError::Timeout));
    assert_eq!(
        rig.lines("metrics: no answer within 1000 ms"),
        2,
        "a new failure after a recovery"
    );
}

#[test]
fn a_failed_or_refused_page_keeps_the_last_reading() {
    let mut rig = Rig::new(&fixed_pool(&[POD]));
    rig.run(2_000, |target| match target {
        Target::Metrics(_) => reads(busy(3, 1, 9.0)),
        target => idle(target),
    });
    let before = rig.row(POD).clone();
    rig.run(5_000, |target| match target {
        Target::Metrics(_) => reads(Sample::empty(Status::Reject, None)),
        _ => Reply::Fails(ScrapeError::Unreachable),
    });
    let after = rig.row(POD);
    assert_eq!(
        (after.load, after.scraped_at, &after.models),
        (before.load, before.scraped_at, &before.models)
    );
    assert!(after.failures > 0);
}

#[test]
fn an_incomplete_page_is_used_and_told_once() {
    let mut rig = Rig::new(&fixed_pool(&[POD]));
    rig.run(10_000, |target| match target {
        Target::Metrics(_) => reads(Sample {
            reason: Some("no KV gauge"),
            status: Status::Partial,
            kv_mean: None,
            ..busy(1, 0, 5.0)
        }),
        target => idle(target),
    });
    assert_eq!((rig.row(POD).load.running, rig.row(POD).load.kv_mean), (Some(1), None));
    assert_eq!(rig.lines("no KV gauge"), 1);
}

#[test]
fn a_models_page_behind_a_key_leaves_the_adapters_unknown() {
    for (status, line) in [(401, "scrape.headers"), (404, "no /v1/models")] {
        let mut rig = Rig::new(&fixed_pool(&[POD]));
        rig.run(60_000, |target| match target {
            Target::Models(_) => Reply::Says(status, b""),
            target => idle(target),
        });
        assert_eq!(rig.row(POD).models, None);
        assert_eq!((rig.lines(line), rig.lines("is unknown")), (1, 1));
        assert_eq!(rig.row(POD).failures, 0, "its metrics can be read");
        assert!(
            rig.asked(models_of(POD)).len() <= 5,
            "a final answer is not asked for again and again"
        );
    }
}

#[test]
fn a_pod_that_was_starting_is_asked_for_its_models_as_soon_as_it_answers() {
    let mut rig = Rig::new(&fixed_pool(&[POD]));
    rig.run(20_000, |_| Reply::Says(404, b""));
    let before = rig.asked(models_of(POD)).len();
    while rig.poller.pods[&address(POD)].row.failures > 0 {
        rig.tick(idle);
    }
    rig.run(100, idle);
    assert_eq!(rig.asked(models_of(POD)).len(), before + 1);
    let scraped = rig.asked(metrics_of(POD)).last().copied();
    assert!(
        rig.asked(models_of(POD)).last().copied() <= scraped.map(|at| at + 100),
        "at the next tick"
    );
}

#[test]
fn the_longest_context_is_that_of_the_shortest_base() {
    let mut rig = Rig::new(&fixed_pool(&[POD]));
    let base = |id: &str, len| Model {
        max_model_len: len,
        ..model(id, None)
    };
    let len = |n| Some(Tokens(n));
    rig.run(1_200, |target| match target {
        Target::Models(_) => Reply::Lists(vec![base("a", len(8_192)), base("b", len(4_096)), base("c", None)]),
        target => idle(target),
    });
    assert_eq!(rig.row(POD).models.as_ref().unwrap().max_model_len, len(4_096));
}

#[track_caller]
fn check_trend(sample: impl Fn(u32) -> Sample, scrapes: u32, expected: Trend) {
    let mut history = history::History::default();
    let last = (0..scrapes)
        .map(|n| history.step(&sample(n), Millis(u64::from(n) * 1_000)).trend)
        .last();
    assert_eq!(last, Some(expected));
}

#[test]
fn load_that_never_moves_is_frozen() {
    check_trend(|_| busy(3, 2, 9.0), 16, Trend::Live);
    check_trend(|_| busy(3, 2, 9.0), 17, Trend::Frozen);
    check_trend(|_| busy(3, 2, 9.0), 20, Trend::Frozen);
    check_trend(
        |n| if n == 19 { busy(3, 3, 9.0) } else { busy(3, 2, 9.0) },
        20,
        Trend::Live,
    );
    check_trend(|n| busy(3, 2, f64::from(n)), 60, Trend::Live);
    check_trend(
        |n| Sample {
            kv_mean: Some(f64::from(n) / 100.0),
            ..busy(3, 2, 9.0)
        },
        60,
        Trend::Live,
    );
}

#[test]
fn a_pod_that_hangs_does_not_become_well_when_its_pages_are_frozen() {
    // A step of 10 ms for ten seconds, and then nothing. It is forgotten after four minutes.
    let page = |second: u64| Sample {
        kv_mean: Some(0.5),
        kv_capacity: Some(Tokens(100_000)),
        counters: Counters {
            generation_tokens: Some(300.0 * second.min(10) as f64),
            requests: Some(0.0),
            prompt_tokens: Some(0.0),
            ..Counters::default()
        },
        ..busy(3, 0, 0.0)
    };
    let mut history = history::History::default();
    for second in 0..=300 {
        let trend = history.step(&page(second), Millis(second * 1_000)).trend;
        let now = Now {
            wall: UnixMillis(second * 1_000),
            steady: Millis(second * 1_000),
        };
        let still_since = history.tempo.slow(now).and_then(|slow| slow.still_since);
        assert_eq!(trend == Trend::Frozen, second >= 26, "{second}");
        assert_eq!(
            still_since,
            (12..=250).contains(&second).then_some(UnixMillis(10_000)),
            "{second}"
        );
    }
}

#[test]
fn an_older_process_three_times_means_several_pods() {
    // A page of the process that started at this second.
    let started = |at: u32| Sample {
        started_at: Some(1e9 + f64::from(at)),
        ..busy(0, 0, 9.0)
    };
    // Two pods by turns: pages 2, 4 and 6 go back.
    let turns = |n: u32| started(if n.min(7).is_multiple_of(2) { 0 } else { 100 });
    check_trend(turns, 6, Trend::Live);
    check_trend(turns, 7, Trend::Several);
    // From page 7 on it is one pod; page 26 is the twentieth that does not go back.
    check_trend(turns, 26, Trend::Several);
    check_trend(turns, 27, Trend::Live);
    // Returns that are rare are a clock's: one in 21 pages.
    check_trend(|n| started(if n % 21 == 1 { 100 } else { 0 }), 300, Trend::Live);
    // A process that restarts with every page is one pod.
    check_trend(|n| started(n * 100), 60, Trend::Live);
    // Half a second is a rounding.
    check_trend(
        |n| Sample {
            started_at: Some(1e9 + f64::from(n % 2) / 2.0),
            ..busy(0, 0, 9.0)
        },
        60,
        Trend::Live,
    );
}

#[test]
fn several_pods_behind_an_address_are_no_restarts() {
    let mut history = history::History::default();
    let mut restarts = 0;
    for page in 0..60_u32 {
        let sample = Sample {
            started_at: Some(1e9 + f64::from(page % 2) * 100.0),
            ..busy(0, 0, 9.0)
        };
        restarts += u32::from(history.step(&sample, Millis(page.into())).restarted);
    }
    // Pages 1 to 5, before the third return.
    assert_eq!(restarts, 5);
}

#[test]
fn what_cannot_move_is_not_frozen() {
    check_trend(|_| busy(0, 0, 9.0), 60, Trend::Live);
    check_trend(
        |_| Sample {
            counters: Counters::default(),
            ..busy(3, 0, 9.0)
        },
        60,
        Trend::Live,
    );
    check_trend(
        |_| Sample {
            engine: Some(Engine::LlamaCpp),
            ..busy(3, 0, 9.0)
        },
        60,
        Trend::Live,
    );
    check_trend(
        |_| Sample {
            kv_mean: Some(0.99),
            ..busy(0, 0, 9.0)
        },
        60,
        Trend::Live,
    );
}

#[test]
fn a_queue_with_nothing_running_is_stuck() {
    check_trend(|_| busy(0, 6, 9.0), 10, Trend::Live);
    check_trend(|_| busy(0, 6, 9.0), 11, Trend::Stuck);
    check_trend(|n| busy(0, 6 + n, 9.0), 60, Trend::Stuck);
    check_trend(
        |n| {
            if n == 59 {
                busy(1, 6, 9.0)
            } else {
                busy(0, 6, f64::from(n))
            }
        },
        60,
        Trend::Live,
    );
    check_trend(
        |n| Sample {
            running: None,
            ..busy(0, 6, f64::from(n))
        },
        60,
        Trend::Live,
    );
}

#[test]
fn a_trend_is_told_when_it_begins_and_when_it_ends() {
    let mut rig = Rig::new(&fixed_pool(&[POD]));
    let load = |running| {
        move |target| match target {
            Target::Metrics(_) => reads(busy(running, 6, 9.0)),
            target => idle(target),
        }
    };
    rig.run(60_000, load(0));
    assert_eq!(
        (rig.row(POD).trend, rig.lines("6 requests wait and none runs")),
        (Trend::Stuck, 1)
    );
    rig.run(2_000, load(1));
    assert_eq!((rig.row(POD).trend, rig.lines("moves again")), (Trend::Live, 1));
}

#[test]
fn rates_need_two_scrapes_and_smooth_the_rest() {
    let mut history = history::History::default();
    let mut rate = |tokens, at| history.step(&busy(1, 0, tokens), Millis(at)).rates.generation_tokens;
    assert_eq!(rate(100.0, 0), None);
    assert_eq!(rate(300.0, 2_000), Some(100.0));
    assert_eq!(rate(500.0, 3_000), Some(130.0), "100 + 0.3 x (200 - 100)");
    assert_eq!(rate(500.0, 3_000), Some(130.0), "no time passed");
    assert_eq!(rate(500.0, 4_000), Some(91.0), "130 + 0.3 x (0 - 130)");
    assert_eq!(rate(490.0, 5_000), None, "a fall, however small, is a restart");
    assert_eq!(rate(590.0, 6_000), Some(100.0), "nothing of the old process is left");
}

#[test]
fn a_moved_start_is_a_restart_and_a_missing_one_is_not() {
    let started = |at| Sample {
        started_at: at,
        ..busy(1, 0, 5.0)
    };
    let mut history = history::History::default();
    let mut restarted = |at, time| history.step(&started(at), Millis(time)).restarted;
    assert!(!restarted(Some(1e9), 0));
    assert!(!restarted(Some(1e9 + 0.5), 1));
    assert!(!restarted(None, 2));
    assert!(!restarted(Some(1e9 + 60.0), 3), "unknown in between");
    assert!(restarted(Some(1e9 + 120.0), 4));
}

const HEALTHY: &[u8] = br#"{"cluster_statuses":[{"name":"llama","host_statuses":[
    {"address":{"socket_address":{"address":"10.0.0.1","port_value":8000}},
     "stats":[{"name":"rq_active","value":"4"}],"health_status":{"eds_health_status":"HEALTHY"}},
    {"address":{"socket_address":{"address":"10.0.0.2","port_value":8000}},
     "health_status":{"failed_outlier_check":true}}]}]}"#;
const ONLY_SECOND: &[u8] = br#"{"cluster_statuses":[{"name":"llama","host_statuses":[
    {"address":{"socket_address":{"address":"10.0.0.2","port_value":8000}}}]}]}"#;
const EMPTY: &[u8] = br#"{"cluster_statuses":[{"name":"llama"}]}"#;

/// Pods that are idle, found by this answer.
fn found(status: u16, page: &'static [u8]) -> impl Fn(Target) -> Reply {
    move |target| match target {
        Target::Discovery => Reply::Says(status, page),
        target => idle(target),
    }
}

#[test]
fn nothing_is_published_before_discovery_has_spoken() {
    let mut rig = Rig::new(&admin_pool());
    rig.run(1_000, silent);
    assert_eq!(rig.published, []);
    assert_eq!(rig.calls, [(START, Target::Discovery)]);
    let call = &rig.open[0];
    assert_eq!(
        (call.cluster.as_str(), call.path.as_str()),
        ("admin", "/clusters?format=json&filter=%5Ellama%24")
    );
}

#[test]
fn the_admin_page_gives_pods_their_readiness_and_what_the_proxy_sent() {
    let mut rig = Rig::new(&admin_pool());
    rig.run(5_000, found(200, HEALTHY));
    assert_eq!(rig.asked(Target::Discovery), [0, 1_000, 2_000, 3_000, 4_000]);
    let seen = |pod| {
        (
            rig.row(pod).readiness,
            rig.row(pod).proxy_active,
            rig.row(pod).scraped_at.is_some(),
        )
    };
    assert_eq!(seen(POD), (Readiness::Ready, Some(4), true));
    assert_eq!(seen("10.0.0.2:8000"), (Readiness::NotReady, Some(0), true));
    assert_eq!(rig.lines("2 pods: 2 new, 0 gone"), 1);
}

#[test]
fn a_bad_answer_keeps_the_pods_and_says_why_once() {
    for (status, page, line) in [
        (500, HEALTHY, "status 500"),
        (200, &b"llama::10.0.0.1:8000::cx_active::0"[..], "discovery.admin"),
        (200, &b"{}"[..], "no cluster \"llama\""),
        (403, b"", "refuses the call"),
    ] {
        let mut rig = Rig::new(&admin_pool());
        rig.run(2_000, found(200, HEALTHY));
        let at = rig.table().discovery.at;
        rig.run(20_000, found(status, page));
        let table = rig.table();
        assert_eq!((table.pods.len(), table.discovery.at), (2, at));
        assert!(
            table.discovery.error.as_ref().unwrap().contains(line),
            "{:?}",
            table.discovery
        );
        assert_eq!((rig.lines(line), rig.lines("the 2 pods known so far stay")), (1, 1));
        rig.run(10_000, found(200, HEALTHY));
        assert_eq!(
            (rig.table().discovery.error.clone(), rig.lines("discovery works again")),
            (None, 1)
        );
    }
}

#[test]
fn an_empty_cluster_is_believed_and_explained() {
    let mut rig = Rig::new(&admin_pool());
    rig.run(5_000, found(200, EMPTY));
    assert_eq!((rig.table().pods.len(), rig.lines("the pool has no pods")), (0, 1));
    assert!(rig.table().discovery.at.is_some());
    rig.run(2_000, found(200, HEALTHY));
    rig.run(5_000, found(200, EMPTY));
    assert_eq!((rig.table().pods.len(), rig.lines("the pool has no pods")), (0, 2));
}

#[test]
fn pods_come_and_go_without_touching_the_others() {
    let mut rig = Rig::new(&admin_pool());
    rig.run(3_000, found(200, HEALTHY));
    let kept = rig.row("10.0.0.2:8000").clone();
    rig.run(1_100, found(200, ONLY_SECOND));
    assert_eq!(rig.table().pods.len(), 1);
    assert_eq!(rig.row("10.0.0.2:8000").incarnation, 0);
    assert!(rig.row("10.0.0.2:8000").since > kept.since, "it was not ready before");
    assert!(rig.row("10.0.0.2:8000").scraped_at >= kept.scraped_at);
    rig.run(1_100, found(200, HEALTHY));
    assert_eq!(rig.row(POD).incarnation, 1, "the address may be another pod now");
    assert_eq!(rig.row("10.0.0.2:8000").incarnation, 0);
}

#[test]
fn a_pod_that_comes_back_is_not_asked_while_its_old_call_is_open() {
    let hang = |page| {
        move |target| match target {
            Target::Discovery => Reply::Says(200, page),
            _ => Reply::Silence,
        }
    };
    let mut pool = admin_pool();
    pool.scrape.timeout = Millis(60_000);
    let mut rig = Rig::new(&pool);
    rig.run(2_500, hang(HEALTHY));
    rig.run(2_000, hang(ONLY_SECOND));
    // The rig itself refuses a second call.
    rig.run(5_000, hang(HEALTHY));
    assert_eq!(rig.asked(metrics_of(POD)).len(), 1);
}

#[test]
fn another_poller_keeps_the_pods_of_the_first_until_discovery_speaks() {
    let mut first = Rig::new(&admin_pool());
    first.run(5_000, found(200, HEALTHY));
    let table = first.table().clone();
    let mut second = Rig::new(&admin_pool());
    second.now = first.now;
    second.send(Event::Adopt(&table));
    second.tick(silent);
    assert_eq!(second.table().pods, table.pods);
    assert_eq!(second.table().discovery, table.discovery);
}
