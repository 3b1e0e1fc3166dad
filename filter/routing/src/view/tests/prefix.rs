//! The prefix index follows what happens to a request.

use super::*;
use crate::prefix::Hasher;
use crate::request::PromptSink;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

/// 1,000 tokens that begin like no other prompt of these tests: one block has 64 of them.
fn prompt() -> Blocks {
    let mut hasher = Hasher::new(64, 1_000);
    for token in 0..1_000 {
        hasher.token(token);
    }
    hasher.finish()
}

fn ask(view: &mut View, store: &dyn SharedData, id: u64, now: u64) -> Decision {
    let request = Request {
        id,
        facts: &chat(None),
        prompt: &prompt(),
        steering: &Steering::default(),
        body: None,
        in_full: true,
    };
    view.decide(store, &request, at(now))
}

/// Prompt tokens that are thought to be in each pod's cache, by the pod's last number.
fn cached(view: &mut View, store: &dyn SharedData, now: u64) -> Vec<u64> {
    let decision = ask(view, store, 1_000_000 + now, now);
    view.on_end(store, 1_000_000 + now, Outcome::ServerError, at(now));
    let considered = decision.why.considered;
    let mut cached: Vec<(PodAddress, u64)> = considered.iter().map(|one| (one.pod, one.cached.0)).collect();
    cached.sort();
    cached.into_iter().map(|(_, tokens)| tokens).collect()
}

/// Where the request went, as an index into what [`cached`] returns.
fn index(pod: PodAddress) -> usize {
    ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"]
        .iter()
        .position(|known| address(known) == pod)
        .unwrap()
}

#[test]
fn a_prompt_that_a_pod_computed_is_in_its_cache() {
    for outcome in [Outcome::Success, Outcome::Abandoned] {
        let store = MemoryStore::default();
        let mut view = view(ONE, 1);
        three(&store);
        let pod = endpoints(&ask(&mut view, &store, 1, 10))[0];
        view.on_end(&store, 1, outcome, at(20));
        let mut expected = [0; 3];
        // 15 whole blocks of 64.
        expected[index(pod)] = 960;
        assert_eq!(cached(&mut view, &store, 30), expected, "{outcome:?}");
    }
}

#[test]
fn a_prompt_that_a_pod_did_not_compute_is_in_no_cache() {
    for outcome in [
        Outcome::Refused,
        Outcome::NotFound,
        Outcome::Unreachable,
        Outcome::Overloaded,
        Outcome::ServerError,
    ] {
        let store = MemoryStore::default();
        let mut view = view(ONE, 1);
        three(&store);
        ask(&mut view, &store, 1, 10);
        view.on_end(&store, 1, outcome, at(20));
        assert_eq!(cached(&mut view, &store, 30), [0; 3], "{outcome:?}");
    }
}

#[test]
fn a_retried_prompt_is_in_the_cache_of_the_pod_that_served_it() {
    let store = MemoryStore::default();
    let mut view = view(ONE, 1);
    three(&store);
    let list = endpoints(&ask(&mut view, &store, 1, 10));
    view.on_upstream(&store, 1, list[1], Some(2), at(20));
    view.on_end(&store, 1, Outcome::Success, at(30));
    let mut expected = [0; 3];
    expected[index(list[1])] = 960;
    assert_eq!(cached(&mut view, &store, 40), expected);
}
