//! Full pools: who is sent away, who waits, and who goes when there is room.

use super::*;
use crate::decision::Reason;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

mod drawn;
mod passing;

/// One pod, 8 prompt tokens per millisecond, two seconds of patience: a request of 1,000 tokens is 125 ms of work, so
/// seventeen of them have room, the last behind 2,000 ms of others.
const FITS: u64 = 17;

fn admission(queue: &str) -> String {
    let trust = r#""x-gateway-inference-objective", "x-gateway-inference-fairness-id", "x-gateway-request-timeout-ms""#;
    let objectives = r#"{"name": "chat", "priority": 10}, {"name": "batch", "priority": -10}"#;
    format!(
        r#"{{"pools": [{{"name": "a", "discovery": {{"static": ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"]}}}}],
            "trust": {{"headers": [{trust}]}}, "admission": {{"objectives": [{objectives}], "queue": {{{queue}}}}}}}"#
    )
}

fn shedding() -> String {
    admission("")
}

fn queueing() -> String {
    admission(r#""enabled": true"#)
}

fn one(store: &dyn SharedData) {
    publish(store, "a", "base", &["10.0.0.1:80"], 1);
}

fn objective(name: &str) -> Steering {
    Steering {
        objective: Some(name.to_owned()),
        ..Steering::default()
    }
}

fn tenant(flow: &str) -> Steering {
    Steering {
        flow: Some(flow.to_owned()),
        ..Steering::default()
    }
}

fn ask(view: &mut View, store: &dyn SharedData, id: u64, steering: &Steering, now: u64) -> Decision {
    ask_for(view, store, id, &chat(None), steering, now)
}

fn ask_for(view: &mut View, store: &dyn SharedData, id: u64, facts: &Facts, steering: &Steering, now: u64) -> Decision {
    let request = Request {
        id,
        facts,
        prompt: &Blocks::default(),
        steering,
        body: Some(4_000),
        in_full: false,
    };
    view.decide(store, &request, at(now))
}

/// A view of a full pool: requests 1 to [`FITS`] are on their way at the only pod, sent at 10.
fn full(document: &str, store: &dyn SharedData) -> View {
    one(store);
    let mut view = view(document, 1);
    for id in 1..=FITS {
        let decision = ask(&mut view, store, id, &Steering::default(), 10);
        assert!(matches!(decision.action, Action::Route { .. }), "{id}: {decision:?}");
    }
    view
}

/// Status, reason and seconds of a refusal.
#[track_caller]
fn refused(decision: &Decision) -> (u16, &'static str, u64) {
    match &decision.action {
        Action::Reply(refusal) => (
            refusal.status,
            refusal.reason.as_str(),
            refusal.retry_after.unwrap_or(0),
        ),
        other => panic!("{other:?}"),
    }
}

fn ids(gone: &[(u64, Decision)]) -> Vec<u64> {
    gone.iter().map(|(id, _)| *id).collect()
}

/// Ends the request and says who may go then.
fn end(view: &mut View, store: &dyn SharedData, id: u64, now: u64) -> Vec<u64> {
    view.on_end(store, id, Outcome::Success, at(now));
    ids(&view.release(store, at(now)))
}

#[test]
fn what_is_sheddable_is_sent_away_while_the_pool_is_full_and_nobody_else_is() {
    let store = MemoryStore::default();
    let mut view = full(&shedding(), &store);
    let shed = ask(&mut view, &store, 50, &objective("batch"), 10);
    // The pod begins 125 ms too late: a second is the least that is told.
    assert_eq!(refused(&shed), (429, "saturated", 1));
    assert_eq!((shed.why.priority, shed.why.room), (Some(-10), Some(0)));
    assert_eq!(shed.why.drain, Some(Millis(125)));
    for steering in [Steering::default(), objective("chat"), objective("no-such")] {
        let decision = ask(&mut view, &store, 60, &steering, 10);
        assert!(matches!(decision.action, Action::Route { .. }), "{steering:?}");
        view.on_end(&store, 60, Outcome::Abandoned, at(10));
    }
    assert_eq!(view.counts().objectives_unknown, 1);
    assert!(!view.anybody_waits());
}

/// The queue of one pool and worker is bounded in bytes, and what the VM keeps of a request is some of them.
#[test]
fn what_is_kept_beside_a_body_counts_as_bytes() {
    let store = MemoryStore::default();
    let mut view = full(&admission(r#""enabled": true, "max_bytes": "1MiB""#), &store);
    let pods = "10.0.0.1:80,".repeat(8_000);
    let long = Steering {
        subset: Some(pods),
        ..Steering::default()
    };
    // 96,000 bytes and a KB each: ten of them fit 1,048,576.
    for id in 101..=110 {
        assert_eq!(ask(&mut view, &store, id, &long, 20).action, Action::Hold, "{id}");
    }
    let last = ask(&mut view, &store, 111, &long, 20);
    assert_eq!(refused(&last).1, "queue-full");
}

#[test]
fn the_time_to_ask_again_is_what_the_pods_need_to_drain() {
    let store = MemoryStore::default();
    let mut view = full(&shedding(), &store);
    for id in 100..140 {
        ask(&mut view, &store, id, &objective("chat"), 10);
    }
    // 57 requests are ahead: 7,125 ms, of which 2,000 would be borne.
    let shed = ask(&mut view, &store, 50, &objective("batch"), 10);
    assert_eq!(refused(&shed), (429, "saturated", 6));
}

#[test]
fn a_pool_that_was_full_has_room_again_only_with_some_to_spare() {
    let store = MemoryStore::default();
    let mut view = full(&shedding(), &store);
    ask(&mut view, &store, 50, &objective("batch"), 10);
    // With four fewer there would be 1,625 ms ahead, more than eight tenths of the patience.
    for id in 1..=4 {
        view.on_end(&store, id, Outcome::Success, at(12));
    }
    let still = ask(&mut view, &store, 51, &objective("batch"), 12);
    assert_eq!(refused(&still).1, "saturated");
    view.on_end(&store, 5, Outcome::Success, at(12));
    let room = ask(&mut view, &store, 52, &objective("batch"), 12);
    assert!(matches!(room.action, Action::Route { .. }));
    let more = ask(&mut view, &store, 53, &objective("batch"), 12);
    assert!(
        matches!(more.action, Action::Route { .. }),
        "and then up to all of the patience"
    );
}

#[test]
fn an_idle_pod_is_never_full_and_an_unread_pool_neither() {
    let store = MemoryStore::default();
    one(&store);
    let mut view = view(&shedding(), 1);
    let huge = Facts {
        prompt: PromptSize {
            ascii_bytes: 40_000_000,
            ..PromptSize::default()
        },
        ..chat(None)
    };
    let decision = ask_for(&mut view, &store, 1, &huge, &objective("batch"), 10);
    assert!(
        matches!(decision.action, Action::Route { .. }),
        "the engine says what is too long for it"
    );
    for id in 2..40 {
        ask(&mut view, &store, id, &Steering::default(), 10);
    }
    assert_eq!(refused(&ask(&mut view, &store, 50, &objective("batch"), 10)).0, 429);
    let unread = ask(&mut view, &store, 51, &objective("batch"), 3_600_000);
    assert!(
        matches!(unread.action, Action::Route { .. }),
        "an hour later no gauge can be believed"
    );
}

#[test]
fn memory_is_room_as_well() {
    let store = MemoryStore::default();
    one(&store);
    let mut view = view(&shedding(), 1);
    // 40,000 tokens each, of 100,000; 5 s of work, so the patience must not be what ends it.
    let large = Facts {
        prompt: PromptSize {
            tokens: 40_000,
            ..PromptSize::default()
        },
        ..chat(None)
    };
    for id in 1..=2 {
        let decision = ask_for(&mut view, &store, id, &large, &objective("chat"), 10);
        assert!(matches!(decision.action, Action::Route { .. }));
        view.on_first_byte(&store, id, 200, true, at(11));
    }
    let shed = ask_for(&mut view, &store, 3, &large, &objective("batch"), 12);
    assert_eq!(refused(&shed).1, "saturated");
    let small = ask(&mut view, &store, 4, &objective("batch"), 12);
    assert!(matches!(small.action, Action::Route { .. }), "what is small has room");
}

#[test]
fn a_request_waits_until_a_stream_ends() {
    let store = MemoryStore::default();
    let mut view = full(&queueing(), &store);
    let held = ask(&mut view, &store, 50, &Steering::default(), 10);
    assert_eq!(held.action, Action::Hold);
    assert!(view.anybody_waits());
    assert_eq!(view.release(&store, at(10)), Vec::new());
    for id in 1..=4 {
        assert_eq!(end(&mut view, &store, id, 30), Vec::<u64>::new());
    }
    view.on_end(&store, 5, Outcome::Success, at(30));
    let gone = view.release(&store, at(30));
    assert_eq!(ids(&gone), [50]);
    assert!(matches!(gone[0].1.action, Action::Route { .. }));
    assert_eq!(gone[0].1.why.waited, Some(Millis(20)));
    assert!(!view.anybody_waits());
    let text = header::decision(&gone[0].1);
    assert!(text.contains(";priority=0;waited=20;"), "{text}");
    // It is in the ledger as any other.
    assert_eq!(view.pool_of(50), Some(0));
}

#[test]
fn the_higher_band_goes_first_and_nobody_overtakes_in_a_band() {
    let store = MemoryStore::default();
    let mut view = full(&queueing(), &store);
    for (id, steering) in [
        (50, objective("batch")),
        (51, Steering::default()),
        (52, Steering::default()),
        (53, objective("chat")),
    ] {
        assert_eq!(ask(&mut view, &store, id, &steering, 10).action, Action::Hold, "{id}");
    }
    for id in 1..FITS {
        view.on_end(&store, id, Outcome::Success, at(30));
    }
    // There is room, but it is theirs who wait.
    assert_eq!(
        ask(&mut view, &store, 54, &Steering::default(), 30).action,
        Action::Hold
    );
    assert_eq!(ids(&view.release(&store, at(30))), [53, 51, 52, 54, 50]);
}

#[test]
fn what_would_be_refused_anyhow_does_not_wait_for_that() {
    let store = MemoryStore::default();
    let mut view = full(&queueing(), &store);
    ask(&mut view, &store, 50, &Steering::default(), 10);
    let elsewhere = Steering {
        subset: Some("10.9.9.9:80".to_owned()),
        ..Steering::default()
    };
    let refusal = ask(&mut view, &store, 51, &elsewhere, 10);
    assert_eq!(refused(&refusal), (503, "subset-no-match", 0));
}

#[test]
fn tenants_share_by_tokens() {
    let store = MemoryStore::default();
    let mut view = full(&queueing(), &store);
    for id in 50..60 {
        ask(&mut view, &store, id, &tenant("big"), 10);
    }
    for id in 60..63 {
        ask(&mut view, &store, id, &tenant("small"), 10);
    }
    for id in 1..=FITS {
        view.on_end(&store, id, Outcome::Success, at(30));
    }
    let gone = ids(&view.release(&store, at(30)));
    assert_eq!(gone[..7], [50, 60, 51, 61, 52, 62, 53]);
}

#[test]
fn who_waited_as_long_as_it_may_is_told_so() {
    let store = MemoryStore::default();
    let mut view = full(&admission(r#""enabled": true, "max_wait": "5s""#), &store);
    ask(&mut view, &store, 50, &Steering::default(), 10);
    let hurried = Steering {
        timeout: Some(Millis(300)),
        ..Steering::default()
    };
    ask(&mut view, &store, 51, &hurried, 10);
    assert_eq!(view.release(&store, at(309)), Vec::new());
    let gone = view.release(&store, at(310));
    assert_eq!(ids(&gone), [51]);
    assert_eq!(refused(&gone[0].1).1, "queue-timeout");
    let gone = view.release(&store, at(5_010));
    assert_eq!(ids(&gone), [50]);
    assert_eq!(refused(&gone[0].1), (429, "queue-timeout", 1));
}

#[test]
fn a_full_queue_sends_the_lowest_away_and_tells_them_at_the_next_release() {
    let store = MemoryStore::default();
    let mut view = full(&admission(r#""enabled": true, "max_requests": 2"#), &store);
    ask(&mut view, &store, 50, &objective("batch"), 10);
    ask(&mut view, &store, 51, &Steering::default(), 10);
    assert_eq!(
        refused(&ask(&mut view, &store, 52, &objective("batch"), 10)).1,
        "queue-full"
    );
    assert_eq!(ask(&mut view, &store, 53, &objective("chat"), 10).action, Action::Hold);
    let gone = view.release(&store, at(10));
    assert_eq!(ids(&gone), [50]);
    assert_eq!(refused(&gone[0].1).1, "queue-full");
    assert_eq!(gone[0].1.why.priority, Some(-10));
}

#[test]
fn a_client_that_leaves_leaves_the_queue() {
    let store = MemoryStore::default();
    let mut view = full(&admission(r#""enabled": true, "max_requests": 1"#), &store);
    ask(&mut view, &store, 50, &objective("batch"), 10);
    ask(&mut view, &store, 51, &objective("chat"), 10);
    // One waits, the other gave way and was not told yet.
    view.on_end(&store, 50, Outcome::Abandoned, at(20));
    view.on_end(&store, 51, Outcome::Abandoned, at(20));
    assert!(!view.anybody_waits());
    assert_eq!(view.release(&store, at(20)), Vec::new());
    assert_eq!(view.waiting(0), Vec::new());
}

#[test]
fn what_the_host_cannot_keep_goes_where_there_is_room_and_passes_nobody() {
    let store = MemoryStore::default();
    let mut view = full(&queueing(), &store);
    let large = |view: &mut View, id: u64| decide_on(view, &store, id, &chat(None), &objective("chat"), 30);
    assert_eq!(refused(&large(&mut view, 50)), (429, "saturated", 1));
    assert!(!view.anybody_waits());
    for id in 1..=FITS {
        view.on_end(&store, id, Outcome::Success, at(30));
    }
    assert!(matches!(large(&mut view, 51).action, Action::Route { .. }));
    // There is room, but another waits for it: at this worker, or elsewhere.
    let mut view = full(&queueing(), &store);
    assert_eq!(ask(&mut view, &store, 60, &objective("chat"), 20).action, Action::Hold);
    for id in 1..=FITS {
        view.on_end(&store, id, Outcome::Success, at(30));
    }
    assert_eq!(refused(&large(&mut view, 61)).1, "saturated");
    let mut other = self::view(&queueing(), 2);
    assert_eq!(refused(&large(&mut other, 1)).1, "saturated");
}

#[test]
fn when_the_last_pod_is_gone_those_who_wait_are_told_as_anybody_is() {
    let store = MemoryStore::default();
    let mut view = full(&queueing(), &store);
    ask(&mut view, &store, 50, &Steering::default(), 10);
    publish(&store, "a", "base", &[], 2);
    let gone = view.release(&store, at(110));
    assert_eq!(ids(&gone), [50]);
    assert_eq!(refused(&gone[0].1), (503, "no-ready-pod", 0));
}

#[test]
fn one_that_waits_for_its_pod_is_passed_on_other_pods_by_other_tenants() {
    let store = MemoryStore::default();
    publish(&store, "a", "base", &["10.0.0.1:80", "10.0.0.2:80"], 1);
    let mut view = view(&queueing(), 1);
    let only = |pod: &str, flow: &str| Steering {
        subset: Some(pod.to_owned()),
        ..tenant(flow)
    };
    for id in 1..=FITS {
        ask(&mut view, &store, id, &only("10.0.0.1:80", "x"), 10);
        ask(&mut view, &store, 100 + id, &only("10.0.0.2:80", "x"), 10);
    }
    assert_eq!(
        ask(&mut view, &store, 50, &only("10.0.0.1:80", "pinned"), 10).action,
        Action::Hold
    );
    assert_eq!(ask(&mut view, &store, 51, &tenant("free"), 10).action, Action::Hold);
    for id in 1..=FITS {
        view.on_end(&store, 100 + id, Outcome::Success, at(30));
    }
    let gone = view.release(&store, at(30));
    assert_eq!(ids(&gone), [51]);
    assert_eq!(endpoints(&gone[0].1)[0], address("10.0.0.2:80"));
    assert!(view.anybody_waits());
}

#[test]
fn a_higher_band_at_another_worker_goes_first() {
    let store = MemoryStore::default();
    let mut first = full(&queueing(), &store);
    let mut other = view(&queueing(), 2);
    assert_eq!(ask(&mut other, &store, 1, &objective("chat"), 20).action, Action::Hold);
    assert_eq!(
        ask(&mut first, &store, 50, &Steering::default(), 30).action,
        Action::Hold
    );
    for id in 1..FITS {
        first.on_end(&store, id, Outcome::Success, at(40));
    }
    assert_eq!(
        first.release(&store, at(40)),
        Vec::new(),
        "there is room, but not for it"
    );
    assert_eq!(ids(&other.release(&store, at(45))), [1]);
    assert_eq!(ids(&first.release(&store, at(50))), [50]);
}

#[test]
fn a_worker_that_died_holds_nobody_back() {
    let store = MemoryStore::default();
    let mut first = full(&queueing(), &store);
    let mut dead = view(&queueing(), 2);
    ask(&mut dead, &store, 1, &objective("chat"), 20);
    ask(&mut first, &store, 50, &Steering::default(), 30);
    drop(dead);
    for id in 1..FITS {
        first.on_end(&store, id, Outcome::Success, at(40));
    }
    let mut gone = Vec::new();
    let mut now = 100;
    while gone.is_empty() && now < 20_000 {
        first.tick(&store, at(now));
        gone = ids(&first.release(&store, at(now)));
        now += 100;
    }
    assert_eq!(gone, [50]);
    assert!((5_000..=5_300).contains(&now), "{now}");
}

#[test]
fn workers_let_go_their_parts_of_what_waits() {
    let store = MemoryStore::default();
    let mut first = full(&queueing(), &store);
    let mut other = view(&queueing(), 2);
    for id in 50..90 {
        ask(&mut first, &store, id, &tenant("a"), 20);
    }
    for id in 1..=40 {
        ask(&mut other, &store, id, &tenant("b"), 20);
    }
    for id in 1..=FITS {
        first.on_end(&store, id, Outcome::Success, at(40));
    }
    // Both told the other on their tick what waits; there is room for fourteen with some to spare.
    first.tick(&store, at(100));
    other.tick(&store, at(100));
    let gone = first.release(&store, at(103)).len();
    assert!((6..=8).contains(&gone), "{gone} of 17");
    let rest = other.release(&store, at(106)).len();
    assert!((3..=8).contains(&rest), "{rest}");
    assert_eq!(first.waiting(0).len(), 1);
    assert_eq!(
        first.waiting(0)[0].requests,
        80 - gone as u32,
        "as last read, all workers together"
    );
}

#[test]
fn an_idle_queue_touches_no_shared_data() {
    let store = Counting::default();
    one(&store);
    let mut view = view(&queueing(), 1);
    ask(&mut view, &store, 1, &Steering::default(), 10);
    view.on_end(&store, 1, Outcome::Success, at(20));
    view.tick(&store, at(10_100));
    store.all.set(0);
    for now in 0..50 {
        view.tick(&store, at(10_200 + 100 * now));
        assert_eq!(view.release(&store, at(10_200 + 100 * now)), Vec::new());
    }
    assert_eq!(store.all.get(), 0);
}

#[test]
fn reasons_of_refusals_are_counted_by_their_names() {
    let names = [Reason::Saturated, Reason::QueueFull, Reason::QueueTimeout].map(Reason::as_str);
    assert_eq!(names, ["saturated", "queue-full", "queue-timeout"]);
    assert!(
        names
            .iter()
            .all(|name| Reason::REPLIES.iter().any(|reason| reason.as_str() == *name))
    );
}

/// What a request reads and writes of shared data.
fn touches(document: &str) -> u32 {
    let store = Counting::default();
    one(&store);
    let mut view = view(document, 1);
    store.all.set(0);
    ask(&mut view, &store, 1, &objective("batch"), 10);
    view.on_first_byte(&store, 1, 200, true, at(20));
    view.on_end(&store, 1, Outcome::Success, at(30));
    store.all.get()
}

#[test]
fn a_request_that_finds_room_touches_no_more_shared_data_than_without_admission() {
    let off = touches(ONE);
    assert_eq!(touches(&shedding()), off);
    assert_eq!(touches(&queueing()), off);
}

/// A prompt of so many tokens, all of which its pod has to hold beside the answer.
fn sized(tokens: u64) -> Facts {
    Facts {
        prompt: PromptSize {
            tokens,
            ..PromptSize::default()
        },
        ..chat(None)
    }
}

#[test]
fn refusals_are_no_decisions_of_those_that_one_release_may_make() {
    let store = MemoryStore::default();
    let mut view = full(&queueing(), &store);
    let hurried = Steering {
        timeout: Some(Millis(100)),
        ..objective("batch")
    };
    for id in 100..170 {
        assert_eq!(ask(&mut view, &store, id, &hurried, 10).action, Action::Hold);
    }
    for id in 50..55 {
        assert_eq!(
            ask(&mut view, &store, id, &Steering::default(), 10).action,
            Action::Hold
        );
    }
    for id in 1..=FITS {
        view.on_end(&store, id, Outcome::Success, at(200));
    }
    let gone = view.release(&store, at(200));
    let routed = |(id, decision): &&(u64, Decision)| matches!(decision.action, Action::Route { .. }) && *id < 60;
    assert_eq!((gone.len(), gone.iter().filter(routed).count()), (75, 5));
}

#[test]
fn one_release_makes_a_bounded_number_of_decisions() {
    let store = MemoryStore::default();
    let mut view = full(&admission(r#""enabled": true, "max_requests": 1000"#), &store);
    for id in 100..200 {
        ask_for(&mut view, &store, id, &sized(100), &Steering::default(), 10);
    }
    for id in 1..=FITS {
        view.on_end(&store, id, Outcome::Success, at(20));
    }
    assert_eq!(view.release(&store, at(20)).len(), crate::limits::RELEASE_MAX);
}

#[test]
fn the_end_of_a_stream_lets_those_of_its_pool_go_alone() {
    let store = MemoryStore::default();
    let mut view = full(&queueing(), &store);
    ask(&mut view, &store, 50, &Steering::default(), 10);
    for id in 1..=FITS {
        view.on_end(&store, id, Outcome::Success, at(30));
    }
    assert_eq!(view.release_pool(&store, 1, at(30)), Vec::new());
    assert_eq!(ids(&view.release_pool(&store, 0, at(30))), [50]);
}

#[test]
fn one_that_is_in_a_hurry_does_not_make_the_pool_full_for_others() {
    let store = MemoryStore::default();
    one(&store);
    let mut view = view(&shedding(), 1);
    // 1,750 ms are ahead: less than others of its band bear, and more than eight tenths of that.
    for id in 1..15 {
        ask(&mut view, &store, id, &Steering::default(), 10);
    }
    let hurried = Steering {
        timeout: Some(Millis(100)),
        ..objective("batch")
    };
    assert_eq!(refused(&ask(&mut view, &store, 50, &hurried, 10)).1, "saturated");
    let other = ask(&mut view, &store, 51, &objective("batch"), 10);
    assert!(matches!(other.action, Action::Route { .. }), "{other:?}");
}
