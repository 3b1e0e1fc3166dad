//! Lookups and the staleness ladder.

use super::*;
use crate::config::{Config, Discovery};
use crate::table::{Discovered, Models, Trend};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

pub(crate) fn pool(discovery: Discovery) -> Pool {
    let mut pool = Config::minimal(&[address("10.0.0.1:8000")]).unwrap().pools.remove(0);
    pool.name = "llama".into();
    pool.discovery = discovery;
    pool.scrape.cluster = "pods".into();
    pool.scrape.address_header = "x-pod".into();
    pool.adapters.cold_load = Millis(500);
    pool.routing.prefill_tokens_per_second = 5_000;
    pool.routing.stale_after = Millis(10_000);
    pool
}

fn address(text: &str) -> PodAddress {
    text.parse().unwrap()
}

fn row(text: &str) -> PodRow {
    PodRow::unread(address(text), UnixMillis(5))
}

#[track_caller]
fn check_freshness(change: impl FnOnce(&mut PodRow), now: u64, expected: Freshness) {
    let mut pod = row("10.0.0.1:8000");
    pod.scraped_at = Some(UnixMillis(100_000));
    change(&mut pod);
    let pool = pool(Discovery::Static(Vec::new()));
    assert_eq!(Snapshot::default().freshness(&pod, &pool, UnixMillis(now)), expected);
}

#[test]
fn a_reading_goes_down_the_ladder_with_age() {
    check_freshness(|_| (), 100_000, Freshness::Fresh);
    check_freshness(|_| (), 103_000, Freshness::Fresh);
    check_freshness(|_| (), 103_001, Freshness::Ageing);
    check_freshness(|_| (), 110_000, Freshness::Ageing);
    check_freshness(|_| (), 110_001, Freshness::Unknown);
}

#[test]
fn a_pod_that_was_never_read_or_is_frozen_is_unknown() {
    check_freshness(|pod| pod.scraped_at = None, 100_000, Freshness::Unknown);
    check_freshness(|pod| pod.trend = Trend::Frozen, 100_000, Freshness::Unknown);
    check_freshness(|pod| pod.trend = Trend::Several, 100_000, Freshness::Unknown);
    check_freshness(|pod| pod.trend = Trend::Stuck, 100_000, Freshness::Fresh);
}

#[test]
fn a_report_in_an_answer_keeps_a_page_fresh_until_it_is_stale() {
    let reported = |pod: &mut PodRow| pod.reported_at = Some(UnixMillis(106_000));
    check_freshness(reported, 109_000, Freshness::Fresh);
    check_freshness(reported, 109_001, Freshness::Ageing);
    let reported = |pod: &mut PodRow| pod.reported_at = Some(UnixMillis(110_000));
    check_freshness(reported, 110_000, Freshness::Fresh);
    check_freshness(reported, 110_001, Freshness::Unknown);
}

#[test]
fn readings_count_longer_where_the_budget_stretches_the_interval() {
    let freshness = |stretched: u64, now: u64| {
        let snapshot = Snapshot::new(Table {
            scrape_interval: Millis(stretched),
            ..Table::default()
        });
        let mut pod = row("10.0.0.1:8000");
        pod.scraped_at = Some(UnixMillis(1_000_000));
        snapshot.freshness(&pod, &pool(Discovery::Static(Vec::new())), UnixMillis(1_000_000 + now))
    };
    assert_eq!(freshness(1_000, 3_001), Freshness::Ageing);
    assert_eq!(freshness(2_000, 6_000), Freshness::Fresh);
    assert_eq!(freshness(2_000, 6_001), Freshness::Ageing, "up to stale_after, 10 s");
    assert_eq!(freshness(4_000, 12_000), Freshness::Fresh);
    assert_eq!(freshness(4_000, 12_001), Freshness::Unknown);
    // A minute is the longest interval: nothing is believed for hours.
    assert_eq!(freshness(3_600_000, 180_000), Freshness::Fresh);
    assert_eq!(freshness(3_600_000, 180_001), Freshness::Unknown);
}

#[test]
fn a_clock_that_went_back_does_not_keep_a_reading_fresh_for_ever() {
    check_freshness(|_| (), 90_000, Freshness::Fresh);
    check_freshness(|_| (), 89_999, Freshness::Unknown);
}

#[test]
fn only_a_dynamic_discovery_gets_old() {
    let admin = pool(Discovery::EnvoyAdmin {
        cluster: "llama".into(),
        admin: "admin".into(),
        interval: Millis(2_000),
    });
    let seen = |at| {
        Snapshot::new(Table {
            discovery: Discovered { at, error: None },
            ..Table::default()
        })
    };
    let at = seen(Some(UnixMillis(10_000)));
    assert!(at.discovery_fresh(&admin, UnixMillis(16_000)));
    assert!(!at.discovery_fresh(&admin, UnixMillis(16_001)));
    assert!(!seen(None).discovery_fresh(&admin, UnixMillis(0)));
    assert!(seen(None).discovery_fresh(&pool(Discovery::Static(Vec::new())), UnixMillis(99_999)));
}

#[test]
fn names_and_pods_are_found_both_ways() {
    let lists = |text, bases: &[u16], adapters: &[u16]| PodRow {
        models: Some(Models {
            at: UnixMillis(5),
            bases: bases.iter().copied().map(NameId).collect(),
            adapters: adapters.iter().map(|id| (NameId(*id), Some(NameId(0)))).collect(),
            max_model_len: None,
        }),
        ..row(text)
    };
    let snapshot = Snapshot::new(Table {
        names: vec!["base".into(), "sql".into(), "fr".into()],
        pods: vec![
            lists("10.0.0.1:8000", &[0], &[1]),
            lists("10.0.0.2:8000", &[0], &[1, 2]),
            row("10.0.0.3:8000"),
        ],
        ..Table::default()
    });
    let listing = |name| {
        let id = snapshot.id(name).unwrap();
        snapshot
            .listing(id)
            .map(|pod| pod.address.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(listing("base"), ["10.0.0.1:8000", "10.0.0.2:8000"]);
    assert_eq!(listing("sql"), ["10.0.0.1:8000", "10.0.0.2:8000"]);
    assert_eq!(listing("fr"), ["10.0.0.2:8000"]);
    assert_eq!(
        (snapshot.id("de"), snapshot.name(NameId(2)), snapshot.name(NameId(3))),
        (None, "fr", "")
    );
    let third = address("10.0.0.3:8000");
    assert_eq!(snapshot.pod(third), snapshot.pods().get(2));
    assert_eq!(snapshot.pod_by_key(third.key()), snapshot.pods().get(2));
    assert_eq!(snapshot.pod(address("10.0.0.3:8001")), None);
    assert_eq!(snapshot.age(&snapshot.pods()[2], UnixMillis(9)), None);
}
