//! Every list at its bound and one above.

use super::*;
use crate::limits::{
    CALLS_OPEN_MAX, LOG_LINES_MAX, NAMES_MAX, PAGE_MAX_BYTES, PODS_MAX, SEALED_MAX_BYTES, TEXT_MAX_BYTES,
};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

/// A pod that lists `adapters`.
fn lists(adapters: impl Fn(PodAddress) -> Vec<String>) -> impl Fn(Target) -> Reply {
    move |target| match target {
        Target::Models(pod) => {
            let adapters = adapters(pod).into_iter().map(|id| model(&id, Some("base")));
            Reply::Lists([model("base", None)].into_iter().chain(adapters).collect())
        }
        target => idle(target),
    }
}

#[test]
fn a_pool_with_too_many_names_leaves_the_last_out_and_says_so() {
    // "base" and 4 x 1023 adapters, then `last` more.
    let run = |last: usize| {
        let mut rig = Rig::new(&pool_of(Discovery::Static(many(5))));
        rig.run(
            2_000,
            lists(move |pod| {
                let index = pod.socket().ip().to_string().chars().last().unwrap();
                (0..if index == '4' { last } else { 1_023 })
                    .map(|n| format!("{index}-{n}"))
                    .collect()
            }),
        );
        rig
    };
    let fits = run(NAMES_MAX - 1 - 4 * 1_023);
    assert_eq!((fits.table().names.len(), fits.lines("names")), (NAMES_MAX, 0));
    let over = run(NAMES_MAX - 4 * 1_023);
    assert_eq!((over.table().names.len(), over.lines("names")), (NAMES_MAX, 1));
    let models = over.row("10.0.0.4:8000").models.as_ref().unwrap();
    assert_eq!(
        (models.at, models.adapters.len()),
        (UnixMillis(0), 3),
        "cut: it proves no absence"
    );
    assert!(over.row("10.0.0.3:8000").models.as_ref().unwrap().at > UnixMillis(0));
}

#[test]
fn a_name_that_no_request_could_ask_for_is_left_out_without_a_word() {
    let mut rig = Rig::new(&fixed_pool(&[POD]));
    rig.run(2_000, lists(|_| vec!["n".repeat(256), "n".repeat(257), String::new()]));
    let models = rig.row(POD).models.as_ref().unwrap();
    assert_eq!(models.adapters.len(), 1);
    assert!(models.at > UnixMillis(0));
}

#[test]
fn a_table_too_large_loses_adapter_lists_first() {
    // 300 pods x 1000 adapters x 4 bytes: an id above 127 takes two, and its base two more.
    let mut pool = pool_of(Discovery::Static(many(300)));
    pool.scrape.interval = Millis(60_000);
    let mut rig = Rig::new(&pool);
    let adapters: Vec<String> = (0..1_000).map(|n| format!("a{n}")).collect();
    rig.run(1_200, lists(move |_| adapters.clone()));
    assert_eq!(rig.lines("adapter lists are left out"), 1);
    for row in &rig.table().pods {
        let models = row.models.as_ref().unwrap();
        assert_eq!(
            (models.at, models.bases.len(), models.adapters.len()),
            (UnixMillis(0), 1, 0)
        );
    }
    rig.now += 2_000;
    rig.send(Event::RefreshModels);
    // 300 pods are asked over two seconds, not at once.
    rig.run(2_200, lists(|_| Vec::new()));
    assert_eq!(rig.lines("complete again"), 1);
    assert_eq!(rig.table().names, ["base"], "names that nobody lists are gone");
}

#[test]
fn the_largest_rows_without_lists_fit() {
    let wide = |n: u16| {
        let mut row = PodRow::unread(
            PodAddress::new((core::net::Ipv6Addr::from([0xff, 0xff, 0, 0, 0, 0, 0, n]), u16::MAX).into()),
            UnixMillis(u64::MAX),
        );
        row.incarnation = u32::MAX;
        row.scraped_at = Some(UnixMillis(u64::MAX));
        row.failures = u32::MAX;
        row.last_error = Some(ScrapeError::Http(u16::MAX));
        let count = Some(u32::MAX);
        row.load = table::Load {
            engine: Some(Engine::Nim),
            status: Status::Reject,
            running: count,
            waiting: count,
            deferred: count,
            kv_mean: Some(1.0),
            kv_max: Some(1.0),
            kv_capacity: Some(crate::units::Tokens(u64::MAX)),
            engines: u16::MAX,
            sleeping: Some(true),
        };
        let rate = Some(1.0);
        row.rates = table::Rates {
            prompt_tokens: rate,
            cached_prompt_tokens: rate,
            generation_tokens: rate,
            requests: rate,
            preemptions: rate,
        };
        row.tempo = Some(table::Tempo { step: 1.0, token: 1.0 });
        row.slow = Some(table::Slow {
            times: 1.0,
            still_since: row.scraped_at,
            again: UnixMillis(u64::MAX),
        });
        row.proxy_active = count;
        row.reported_at = row.scraped_at;
        row.started_at = Some(1e9);
        row.generated = row.started_at;
        row
    };
    let table = Table {
        pods: (0..PODS_MAX as u16).map(wide).collect(),
        ..Table::default()
    };
    assert!(table::encode(&table).unwrap().len() <= SEALED_MAX_BYTES);
}

#[test]
fn pods_above_the_bound_are_left_out_and_told() {
    let run = |n: u32| {
        let mut rig = Rig::new(&pool_of(Discovery::Static(many(n))));
        rig.tick(silent);
        (rig.table().pods.len(), rig.lines("above 4096"))
    };
    assert_eq!(run(PODS_MAX as u32), (PODS_MAX, 0));
    assert_eq!(run(PODS_MAX as u32 + 1), (PODS_MAX, 1));
}

#[test]
fn calls_and_log_lines_are_bounded_and_all_pods_get_their_turn() {
    let mut rig = Rig::new(&pool_of(Discovery::Static(many(2_000))));
    rig.run(1_400, silent);
    assert_eq!(rig.open.len(), CALLS_OPEN_MAX);
    assert_eq!(rig.count(Stat::CallsOpen), CALLS_OPEN_MAX as u64);
    // Nobody ever answers: 512 calls per 1.5 s, two per pod.
    for _ in 0..200 {
        rig.now += 100;
        rig.send(Event::Tick);
        assert!(rig.poller.open.len() <= CALLS_OPEN_MAX);
    }
    let asked: std::collections::BTreeSet<Target> = rig.calls.iter().map(|(_, target)| *target).collect();
    assert_eq!(asked.len(), 4_000);
    assert!(
        rig.logs.len() <= 3 * LOG_LINES_MAX as usize,
        "{} lines in 22 s",
        rig.logs.len()
    );
    assert!(rig.count(Stat::LogLinesLeftOut) > 1_000);
}

#[test]
fn a_page_above_the_bound_is_refused() {
    let page = |n: usize| {
        answer::page(
            Ok(Response {
                status: 200,
                body: &vec![b'x'; n],
                ..Response::default()
            }),
            PAGE_MAX_BYTES,
        )
        .map(<[u8]>::len)
    };
    assert_eq!(page(PAGE_MAX_BYTES), Ok(PAGE_MAX_BYTES));
    let refused = page(PAGE_MAX_BYTES + 1).unwrap_err();
    assert_eq!(
        (refused.error, refused.detail.unwrap().as_str()),
        (ScrapeError::Page, "more than 4194304 bytes")
    );
}

#[test]
fn a_foreign_text_is_cut_between_characters() {
    assert_eq!(answer::clip(&"x".repeat(TEXT_MAX_BYTES)).len(), TEXT_MAX_BYTES);
    assert_eq!(answer::clip(&"x".repeat(TEXT_MAX_BYTES + 1)).len(), TEXT_MAX_BYTES);
    assert_eq!(
        answer::clip(&format!("{}é", "x".repeat(TEXT_MAX_BYTES - 1))).len(),
        TEXT_MAX_BYTES - 1
    );
    assert_eq!(answer::clip("a\nb\u{1b}"), "ab");
}
