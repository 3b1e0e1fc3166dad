//! What a poller knows that goes on where another one stopped.

use super::*;
use crate::table::Trend;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

/// The pod shows `first` for 30 s, then another poller takes over and it shows `then`: its row before, and after one page.
fn taken_over(first: impl Fn(u32) -> Sample, then: Sample) -> (PodRow, PodRow) {
    let mut old = Rig::new(&fixed_pool(&[POD]));
    let mut page = 0;
    old.run(30_000, |target| match target {
        Target::Metrics(_) => {
            page += 1;
            reads(first(page))
        }
        target => idle(target),
    });
    let mut new = Rig::new(&fixed_pool(&[POD]));
    new.now = old.now;
    new.send(Event::Adopt(old.table()));
    new.run(1_500, |target| match target {
        Target::Metrics(_) => reads(then.clone()),
        target => idle(target),
    });
    assert!(new.row(POD).scraped_at > old.row(POD).scraped_at);
    (old.row(POD).clone(), new.row(POD).clone())
}

#[track_caller]
fn check_trend_after(first: impl Fn(u32) -> Sample, then: Sample, before: Trend, after: Trend) {
    let (old, new) = taken_over(first, then);
    assert_eq!((old.trend, new.trend), (before, after));
}

fn started(at: f64, tokens: f64) -> Sample {
    Sample {
        started_at: Some(at),
        ..busy(1, 0, tokens)
    }
}

#[test]
fn a_trend_outlives_the_poller_that_saw_it() {
    let frozen = |_| busy(3, 2, 9.0);
    check_trend_after(frozen, busy(3, 2, 9.0), Trend::Frozen, Trend::Frozen);
    check_trend_after(frozen, busy(3, 3, 9.0), Trend::Frozen, Trend::Live);
    check_trend_after(frozen, busy(3, 2, 10.0), Trend::Frozen, Trend::Live);
    let stuck = |page| busy(0, page, f64::from(page));
    check_trend_after(stuck, busy(0, 70, 70.0), Trend::Stuck, Trend::Stuck);
    check_trend_after(stuck, busy(1, 70, 70.0), Trend::Stuck, Trend::Live);
    let several = |page: u32| started(f64::from(page % 2) * 100.0, f64::from(page));
    check_trend_after(several, started(0.0, 90.0), Trend::Several, Trend::Several);
    let live = |page| busy(3, 2, f64::from(page));
    check_trend_after(live, busy(3, 2, 90.0), Trend::Live, Trend::Live);
}

#[track_caller]
fn check_restart(first: impl Fn(u32) -> Sample, then: Sample, restarts: u32) {
    let (old, new) = taken_over(first, then);
    assert_eq!(new.incarnation - old.incarnation, restarts);
    assert_eq!(new.rates == old.rates, restarts == 0, "rates go on, or are void");
}

#[test]
fn a_page_with_numbers_that_are_none_does_not_void_the_table() {
    let (row, _) = taken_over(|_| started(f64::INFINITY, f64::NAN), busy(1, 0, 9.0));
    assert_eq!((row.started_at, row.generated), (None, None));
}

#[test]
fn a_restart_between_two_pollers_is_seen() {
    let told = |page| started(1e9, f64::from(page));
    check_restart(told, started(1e9, 90.0), 0);
    check_restart(told, started(1e9 + 20.0, 90.0), 1);
    // An engine that does not tell when it started counts tokens.
    let untold = |page| busy(1, 0, f64::from(page));
    check_restart(untold, busy(1, 0, 90.0), 0);
    check_restart(untold, busy(1, 0, 3.0), 1);
}
