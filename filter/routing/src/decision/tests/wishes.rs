//! What an operator may ask of a decision: labels, failure domains, caps, slow start, sessions.

use berth_shared_state::config::Caps;
use berth_shared_state::table::{NameId, Readiness};
use berth_shared_state::units::{Millis, Tokens};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use super::reply;
use super::world::{ASK, DECODE, PREFILL, World, ZONE_A, ZONE_B, ago, endpoints};
use crate::decision::{Action, Note};

/// Pods with these labels.
fn labelled(labels: &[&[NameId]]) -> World {
    let mut world = World::of(labels.len());
    for (pod, labels) in world.pods.iter_mut().zip(labels) {
        pod.row.labels = labels.to_vec();
    }
    world
}

fn requiring(label: &str, labels: &[&[NameId]]) -> World {
    let mut world = labelled(labels);
    world.pool.routing.require = vec![label.to_owned()];
    world
}

#[test]
fn only_pods_with_the_required_label_get_requests() {
    let decision = requiring("role=decode", &[&[PREFILL], &[ZONE_A, DECODE], &[]]).decide(ASK);
    assert_eq!(endpoints(&decision), [1]);
    assert_eq!(decision.why.excluded.labels, 2);
    assert!(decision.why.notes.is_empty());
}

#[test]
fn a_label_that_nobody_is_known_to_have_is_asked_of_those_that_say_nothing() {
    let decision = requiring("role=decode", &[&[PREFILL], &[ZONE_A], &[]]).decide(ASK);
    let mut found = endpoints(&decision);
    found.sort_unstable();
    assert_eq!(found, [1, 2]);
    assert_eq!(
        (decision.why.excluded.labels, decision.why.notes),
        (1, vec![Note::LabelsUnknown])
    );
    // A label that the table never heard of.
    let decision = requiring("tier=gold", &[&[PREFILL], &[]]).decide(ASK);
    assert_eq!(endpoints(&decision).len(), 2);
}

#[test]
fn when_all_ready_pods_have_another_label_it_is_503_with_that_reason() {
    let mut world = requiring("role=decode", &[&[PREFILL], &[DECODE]]);
    world.pods[1].row.readiness = Readiness::Draining;
    assert_eq!(reply(&world.decide(ASK)), (503, "labels-no-match"));
    world.pods[0].row.readiness = Readiness::NotReady;
    assert_eq!(reply(&world.decide(ASK)), (503, "no-ready-pod"));
}

#[test]
fn all_required_labels_must_be_there() {
    let mut world = requiring("role=decode", &[&[DECODE, ZONE_A], &[DECODE, ZONE_B], &[ZONE_B]]);
    world.pool.routing.require.push("zone=b".to_owned());
    assert_eq!(endpoints(&world.decide(ASK)), [1]);
}

/// Pods in these zones, of which each costs more than the one before.
fn zones(zones: &[&[NameId]], apart: bool) -> World {
    let mut world = labelled(zones);
    for (running, pod) in (0..).zip(&mut world.pods) {
        pod.load(running * 10, 0, 0.0);
    }
    world.pool.routing.retry_apart = apart.then(|| "zone".to_owned());
    world
}

#[test]
fn retries_go_to_other_failure_domains_where_labels_say_so() {
    let labels: [&[NameId]; 4] = [&[ZONE_A], &[ZONE_A], &[ZONE_A], &[ZONE_B]];
    assert_eq!(endpoints(&zones(&labels, false).decide(ASK)), [0, 1, 2]);
    assert_eq!(endpoints(&zones(&labels, true).decide(ASK)), [0, 3, 1]);
    // Nobody knows where the second is: not where the first one is, as far as known.
    let labels: [&[NameId]; 4] = [&[ZONE_A], &[], &[ZONE_A], &[ZONE_B]];
    assert_eq!(endpoints(&zones(&labels, true).decide(ASK)), [0, 1, 3]);
}

#[test]
fn a_retry_elsewhere_is_worth_a_second_and_no_more() {
    #[track_caller]
    fn check(waiting: u32, expected: [usize; 3]) {
        let mut world = zones(&[&[ZONE_A], &[ZONE_A], &[ZONE_B]], true);
        // Its own queue costs 100 ms each, and half a second of it is done; each makes the prefill of 100 ms
        // cost as much more.
        world.pods[2].load(0, waiting, 0.0);
        assert_eq!(endpoints(&world.decide(ASK)), expected, "{waiting}");
    }
    // 100 ms + 500 + 600 against 220 + 1,000.
    check(5, [0, 2, 1]);
    // 100 + 1,500 + 2,000.
    check(20, [0, 1, 2]);
}

fn capped(requests: Option<u32>, tokens: Option<u64>) -> World {
    let mut world = World::of(3);
    world.pool.routing.caps = Caps {
        requests,
        tokens: tokens.map(Tokens),
    };
    world
}

#[test]
fn a_pod_at_its_cap_is_no_candidate_while_another_is_below() {
    let mut world = capped(Some(4), None);
    world.pods[0].load(4, 0, 0.0);
    world.pods[1].load(1, 3, 0.0);
    world.pods[2].load(3, 0, 0.9);
    let decision = world.decide(ASK);
    assert_eq!((endpoints(&decision), decision.why.excluded.at_cap), (vec![2], 2));
    let mut world = capped(None, Some(50_000));
    world.pods[0].load(0, 0, 0.51);
    world.pods[1].unanswered(1, 50_000);
    let decision = world.decide(ASK);
    assert_eq!((endpoints(&decision), decision.why.excluded.at_cap), (vec![2], 2));
}

#[test]
fn when_all_pods_are_at_their_cap_the_cheapest_is_taken_with_a_note() {
    let mut world = capped(Some(4), None);
    for (pod, running) in world.pods.iter_mut().zip([60, 5, 30]) {
        pod.load(running, 0, 0.0);
    }
    let decision = world.decide(ASK);
    assert_eq!(endpoints(&decision), [1, 2, 0]);
    assert_eq!(
        (decision.why.excluded.at_cap, decision.why.notes),
        (0, vec![Note::AllAtCap])
    );
}

/// Two old pods with this many running, and one that is this old.
fn with_new(running: u32, age: u64) -> World {
    let mut world = World::of(3);
    world.pool.routing.slow_start = Millis(20_000);
    for pod in &mut world.pods[..2] {
        pod.load(running, 0, 0.0);
    }
    world.pods[2].row.since = ago(age);
    world
}

#[test]
fn a_new_pod_gets_requests_when_the_others_are_ten_times_as_busy() {
    // 100 ms of prefill: 1,000 at first. Each running request costs the others 12 ms.
    assert_ne!(endpoints(&with_new(10, 0).decide(ASK))[0], 2);
    with_new(90, 0).always(ASK, 2);
    // After half of the time it is 200 ms.
    with_new(10, 10_000).always(ASK, 2);
    assert_ne!(endpoints(&with_new(5, 10_000).decide(ASK))[0], 2);
    with_new(5, 20_000).always(ASK, 2);
}

#[test]
fn a_slow_start_makes_no_503_and_keeps_the_order_among_the_new() {
    let mut world = World::of(2);
    world.pool.routing.slow_start = Millis(600_000);
    for pod in &mut world.pods {
        pod.row.since = ago(0);
    }
    world.pods[0].load(3, 0, 0.0);
    world.always(ASK, 1);
    world.pods.truncate(1);
    assert!(matches!(world.decide(ASK).action, Action::Route { .. }));
}

#[test]
fn a_session_stays_where_it_was_until_waiting_costs_more_than_its_context() {
    let session = |running: u32, waiting: u32| {
        let mut world = World::of(3);
        let pod = &mut world.pods[1];
        pod.load(running, waiting, 0.0);
        (pod.session, pod.cached) = (true, 0.9);
        world
    };
    let decision = session(3, 0).always(ASK, 1);
    assert_eq!(decision.why.notes, [Note::Session]);
    assert_eq!(decision.why.considered[0].cached, Tokens(720));
    // 90 ms of 100 are saved; a running request costs 2 ms, and a tenth of the 10 that are left.
    session(25, 0).always(ASK, 1);
    assert_ne!(endpoints(&session(35, 0).decide(ASK))[0], 1);
    assert_ne!(
        endpoints(&session(0, 9).decide(ASK))[0],
        1,
        "nine of 100 ms, half a second ago"
    );
}

#[test]
fn among_equals_a_session_goes_where_it_was_and_not_by_lot() {
    let mut world = World::of(5);
    // 8 of 800 tokens: a millisecond.
    (world.pods[3].session, world.pods[3].cached) = (true, 0.01);
    world.always(ASK, 3);
    world.pods[3].avoided_until = Some(super::UnixMillis(super::NOW.0 + 1_000));
    assert_ne!(
        endpoints(&world.decide(ASK))[0],
        3,
        "a pod that fails serves no session"
    );
}

/// Two pods with room for one such request each, by memory; the one that the client names is the cheaper.
#[test]
fn what_a_client_claims_makes_a_pod_cheaper_and_no_roomier() {
    let mut world = World::of(2);
    for pod in &mut world.pods {
        pod.load(3, 0, 0.0);
    }
    let ask = ASK;
    let without = match world.decide(ask).action {
        Action::Route { booking, .. } => booking,
        other => panic!("{other:?}"),
    };
    (world.pods[1].session, world.pods[1].claimed) = (true, 1.0);
    let decision = world.always(ask, 1);
    let first = &decision.why.considered[0];
    assert_eq!((first.cached, first.terms.prefill), (Tokens(800), 0.0));
    let Action::Route { booking, .. } = decision.action else {
        panic!("not routed");
    };
    assert_eq!((booking.work, booking.context), (without.work, without.context));
    // Known or claimed: what is known counts in both.
    world.pods[1].cached = 1.0;
    let Action::Route { booking, .. } = world.decide(ask).action else {
        panic!("not routed");
    };
    assert_eq!((booking.work, booking.misleads), (Tokens(0), false));
}
