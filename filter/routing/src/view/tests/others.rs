//! Proxies that send to the same pods and do not talk: each has a view and shared data of its own.

use super::*;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::ledger::Outcome;

const PODS: [&str; 4] = ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80", "10.0.0.4:80"];
/// Milliseconds between two requests, to a first byte, to the end, and between two pages.
const EVERY: u64 = 20;
const FIRST_BYTE: u64 = 60;
const LASTS: u64 = 3_000;
const SCRAPE: u64 = 1_000;

struct Proxy {
    view: View,
    store: MemoryStore,
    /// In flight: when sent, the number of the request, and the pod.
    sent: Vec<(u64, u64, usize)>,
    /// Requests that each pod got since they are counted.
    counts: [u32; 4],
}

/// Sends requests through so many proxies at random, from `counted` on with a count.
fn play(proxies: usize, seed: u64, counted: u64, until: u64) -> Vec<Proxy> {
    let document = format!(r#"{{"pools": [{{"name": "a", "discovery": {{"static": {PODS:?}}}}}]}}"#);
    let key = Keys::of(&Config::parse(document.as_bytes()).unwrap().pools[0]).table;
    let mut rng = Rng::with_seed(seed);
    let proxy = |number| Proxy {
        view: view(&document, seed * 100 + number),
        store: MemoryStore::default(),
        sent: Vec::new(),
        counts: [0; 4],
    };
    let mut all: Vec<Proxy> = (1..=proxies as u64).map(proxy).collect();
    for step in 0..until / EVERY {
        let now = step * EVERY;
        for one in &mut all {
            for (_, id, _) in one.sent.iter().filter(|(sent, ..)| sent + FIRST_BYTE == now) {
                one.view.on_first_byte(&one.store, *id, 200, true, at(now));
            }
            for (_, id, _) in one.sent.extract_if(.., |(sent, ..)| *sent + LASTS == now) {
                one.view.on_end(&one.store, id, Outcome::Success, at(now));
            }
        }
        if now.is_multiple_of(SCRAPE) {
            publish_pages(&mut all, &key, now);
        }
        let one = &mut all[rng.usize(0..proxies)];
        let decision = decide(&mut one.view, &one.store, step, None, now);
        let pod = endpoints(&decision)[0].to_string();
        let pod = PODS.iter().position(|known| **known == pod).unwrap();
        one.sent.push((now, step, pod));
        one.counts[pod] += u32::from(now >= counted);
    }
    all
}

/// What all have in flight, to each.
fn publish_pages(all: &mut [Proxy], key: &str, now: u64) {
    let running = |pod| {
        all.iter()
            .flat_map(|one| &one.sent)
            .filter(|sent| sent.2 == pod)
            .count()
    };
    let page = |(pod, address): (usize, &&str)| {
        let mut row = row(address);
        row.scraped_at = Some(at(now));
        row.load.running = Some(u32::try_from(running(pod)).unwrap());
        row
    };
    let table = Table {
        seq: now / SCRAPE + 1,
        written_at: at(now),
        scrape_interval: Millis(SCRAPE),
        names: vec!["base".to_owned()],
        pods: PODS.iter().enumerate().map(page).collect(),
        ..Table::default()
    };
    for one in all {
        one.store.set(key, &table::encode(&table).unwrap(), None).unwrap();
    }
}

/// What part of a proxy's requests goes to a pod that it sends to: 1 / pods where it sends the same to all, 1 where to one.
fn concentration(counts: [u32; 4]) -> f64 {
    let counts = counts.map(f64::from);
    let sum: f64 = counts.iter().sum();
    counts.iter().map(|count| (count / sum).powi(2)).sum()
}

#[test]
fn each_soon_has_pods_of_its_own_and_all_pods_get_the_same() {
    // Without it, each sends a quarter to each pod; at best all to one.
    for (proxies, least) in [(4, 0.35), (8, 0.45)] {
        for seed in 1..=5 {
            let all = play(proxies, seed, 20_000, 60_000);
            let mean = all.iter().map(|one| concentration(one.counts)).sum::<f64>() / proxies as f64;
            assert!(mean > least, "{proxies} proxies, seed {seed}: {mean}");
            for pod in 0..PODS.len() {
                let got: u32 = all.iter().map(|one| one.counts[pod]).sum();
                // 2,000 in all, of which each would get 500.
                assert!(
                    (300..=700).contains(&got),
                    "{proxies} proxies, seed {seed}: pod {pod} got {got}"
                );
            }
        }
    }
}

#[test]
fn a_lone_proxy_sends_the_same_to_all() {
    let all = play(1, 1, 20_000, 60_000);
    assert!(
        all[0].counts.iter().all(|count| (450..=550).contains(count)),
        "{:?}",
        all[0].counts
    );
}
