//! What polling costs: the budget, and what pods tell by themselves.

use super::*;
use crate::reports::Report;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

fn budgeted(pods: u32, per_second: u32) -> Rig {
    let mut pool = pool_of(Discovery::Static(many(pods)));
    pool.scrape.per_second = per_second;
    Rig::new(&pool)
}

#[test]
fn calls_stay_within_the_budget_and_the_interval_shows_it() {
    let mut rig = budgeted(100, 20);
    rig.run(60_000, idle);
    for second in 0..600 {
        let from = START + second * 100;
        let calls = rig
            .calls
            .iter()
            .filter(|(at, _)| (from..from + 1_000).contains(at))
            .count();
        assert!(calls <= 20 + 10, "{calls} calls in the second from {}", from - START);
    }
    // Half of it for models: 100 pods every 10 s each way.
    assert_eq!(rig.count(Stat::ScrapeInterval), 10_000);
    assert_eq!(rig.table().scrape_interval, Millis(10_000));
    assert_eq!(rig.lines("100 pods: each is scraped every 10000 ms"), 1);
    for pod in many(100) {
        let asked = rig.asked(Target::Metrics(pod));
        assert!(asked[0] <= 15_000 && (5..=7).contains(&asked.len()), "{asked:?}");
        let waits = asked.windows(2).skip(1).map(|pair| pair[1] - pair[0]);
        assert!({ waits }.all(|wait| wait <= 12_500), "{asked:?}");
    }
}

#[test]
fn a_budget_that_is_enough_changes_nothing_and_says_nothing() {
    let mut rig = budgeted(10, 11);
    rig.run(30_000, idle);
    assert_eq!(rig.count(Stat::ScrapeInterval), 1_000);
    assert_eq!(rig.lines("poll.budget"), 0);
    assert!(rig.asked(Target::Metrics(many(1)[0])).len() >= 28);
}

#[test]
fn asking_for_models_at_once_stays_within_the_budget() {
    let mut rig = budgeted(100, 50);
    rig.run(30_000, idle);
    rig.send(Event::RefreshModels);
    let (from, before) = (rig.now, rig.calls.len());
    rig.run(3_000, idle);
    let calls = rig.calls.len() - before;
    assert!(calls <= 3 * 50 + 25, "{calls} calls in 3 s from {from}");
}

fn report(at: u64, waiting: Option<u32>, kv: Option<f32>) -> Report {
    Report {
        at: UnixMillis(at),
        waiting,
        kv,
    }
}

/// One pod, read for 10 s with 4 waiting and half of the KV used.
fn read_pod(engines: u16) -> Rig {
    let mut rig = Rig::new(&fixed_pool(&[POD]));
    rig.run(10_000, |target| paged(target, engines));
    rig
}

fn paged(target: Target, engines: u16) -> Reply {
    match target {
        Target::Models(_) => Reply::Lists(vec![model("base", None)]),
        _ => reads(Sample {
            engines,
            ..busy(8, 4, 0.0)
        }),
    }
}

#[test]
fn the_newer_of_page_and_report_counts() {
    let mut rig = read_pod(1);
    let scraped = rig.row(POD).scraped_at.expect("it was read");
    let older = [(address(POD), report(scraped.0 - 1, Some(9), Some(0.75)))];
    rig.send(Event::Reports(&older));
    let newer = [(address(POD), report(rig.now, Some(0), Some(0.25)))];
    rig.send(Event::Reports(&newer));
    rig.tick(silent);
    let row = rig.row(POD);
    assert_eq!(
        (row.load.running, row.load.waiting, row.load.kv_mean),
        (Some(8), Some(0), Some(0.25))
    );
    assert_eq!(
        (row.scraped_at, row.reported_at),
        (Some(scraped), Some(UnixMillis(rig.now - 100)))
    );
    assert_eq!(row.gauges_at(), row.reported_at);
    assert_eq!(rig.count(Stat::LoadReports), 1);
    rig.run(5_000, |target| paged(target, 1));
    let row = rig.row(POD);
    assert_eq!(
        (row.load.waiting, row.load.kv_mean, row.reported_at),
        (Some(4), Some(0.5), None)
    );
}

#[test]
fn a_report_that_lacks_a_gauge_of_the_page_moves_none() {
    for (waiting, kv) in [(None, Some(0.75)), (Some(0), None)] {
        let mut rig = read_pod(1);
        let news = [(address(POD), report(rig.now, waiting, kv))];
        rig.send(Event::Reports(&news));
        rig.tick(silent);
        let row = rig.row(POD);
        assert_eq!(
            (row.load.waiting, row.load.kv_mean, row.reported_at),
            (Some(4), Some(0.5), None)
        );
    }
}

#[test]
fn a_report_need_not_have_what_the_page_never_had() {
    let without_kv = |target| match target {
        Target::Models(_) => Reply::Lists(vec![model("base", None)]),
        _ => reads(Sample {
            kv_mean: None,
            kv_max: None,
            ..busy(8, 4, 0.0)
        }),
    };
    let mut rig = Rig::new(&fixed_pool(&[POD]));
    rig.run(10_000, without_kv);
    let news = [(address(POD), report(rig.now, Some(1), None))];
    rig.send(Event::Reports(&news));
    rig.tick(silent);
    assert_eq!((rig.row(POD).load.waiting, rig.row(POD).load.kv_mean), (Some(1), None));
}

#[test]
fn a_report_for_one_of_several_engines_or_from_the_future_or_of_an_unread_pod_says_nothing() {
    let mut several = read_pod(2);
    let news = [(address(POD), report(several.now, Some(0), Some(0.0)))];
    several.send(Event::Reports(&news));
    let mut future = read_pod(1);
    let news = [(address(POD), report(future.now + 1, Some(0), Some(0.0)))];
    future.send(Event::Reports(&news));
    let mut unread = Rig::new(&fixed_pool(&[POD]));
    unread.tick(silent);
    let news = [
        (address(POD), report(unread.now, Some(0), Some(0.0))),
        (address("10.0.0.9:1"), report(unread.now, Some(0), Some(0.0))),
    ];
    unread.send(Event::Reports(&news));
    for rig in [&mut several, &mut future, &mut unread] {
        rig.tick(silent);
        assert_eq!(rig.count(Stat::LoadReports), 0);
        assert_eq!(rig.row(POD).reported_at, None);
    }
}

#[test]
fn a_pod_that_reports_is_scraped_as_often_as_any() {
    let mut rig = read_pod(1);
    let mut scrapes = |reports: bool| {
        let before = rig.asked(metrics_of(POD)).len();
        for _ in 0..200 {
            let news = [(address(POD), report(rig.now, Some(0), Some(0.5)))];
            if reports {
                rig.send(Event::Reports(&news));
            }
            rig.tick(|target| paged(target, 1));
        }
        rig.asked(metrics_of(POD)).len() - before
    };
    assert_eq!([scrapes(false), scrapes(true)], [20, 20]);
}

#[test]
fn pods_that_fail_are_retried_by_the_stretched_interval() {
    let mut rig = budgeted(100, 20);
    rig.run(60_000, |_| Reply::Fails(ScrapeError::Unreachable));
    for pod in many(100) {
        for target in [Target::Metrics(pod), Target::Models(pod)] {
            let asked = rig.asked(target);
            // 10 s, less a quarter at most.
            let early = asked.windows(2).find(|pair| pair[1] - pair[0] < 7_500);
            assert!(early.is_none() && asked.len() >= 3, "{target:?}: {asked:?}");
        }
    }
}

#[test]
fn a_large_table_is_published_less_often() {
    let mut rig = Rig::new(&pool_of(Discovery::Static(many(1))));
    // A change with every tick.
    let publishes = |rig: &mut Rig, bytes: usize| {
        rig.poller.published_bytes = bytes;
        let before = rig.published.len();
        for _ in 0..20 {
            rig.poller.dirty = true;
            rig.poller.published_bytes = bytes;
            rig.tick(silent);
        }
        rig.published.len() - before
    };
    rig.run(1_000, silent);
    assert_eq!(publishes(&mut rig, 8_192 * 100), 20);
    // 101 ms: every other tick.
    assert_eq!(publishes(&mut rig, 8_192 * 101), 10);
}

#[test]
fn two_ticks_at_once_publish_once() {
    let mut rig = Rig::new(&pool_of(Discovery::Static(many(1))));
    rig.tick(silent);
    assert_eq!((rig.now, rig.published.len()), (START + 100, 1));
    for (at, published) in [(99, 1), (100, 2)] {
        rig.poller.dirty = true;
        rig.now = START + at;
        rig.send(Event::Tick);
        assert_eq!(rig.published.len(), published);
    }
}
