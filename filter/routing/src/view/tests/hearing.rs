//! What a worker hears of a pod's steps, from the first byte of a stream to its end.

use super::*;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::ledger::Heard;

const POD: &str = "10.0.0.1:80";
/// Between two tokens.
const STEP: u64 = 20;
/// When the first token of stream 1 comes, when its next ten have come, and when a step without prompts would be over then.
const FIRST: u64 = 1_000;
const LAST: u64 = FIRST + 10 * STEP;
const DUE: u64 = LAST + 35;

/// A worker whose stream 1 runs at the only pod, where so many run by its page.
fn listening(store: &dyn SharedData, nonce: u64, running: u32) -> View {
    let mut view = view(ONE, nonce);
    publish_rows(store, "a", "base", vec![busy(POD, running)], 1);
    begin(&mut view, store, 1, FIRST - 100);
    view.on_first_byte(store, 1, 200, true, at(FIRST));
    speak(&mut view, store, FIRST);
    view
}

fn busy(pod: &str, running: u32) -> PodRow {
    let mut row = row(pod);
    row.load.running = Some(running);
    row
}

fn begin(view: &mut View, store: &dyn SharedData, id: u64, now: u64) {
    assert_eq!(endpoints(&decide(view, store, id, None, now)), [address(POD)]);
}

/// Ten tokens of stream 1.
fn speak(view: &mut View, store: &dyn SharedData, from: u64) {
    (1..=10).for_each(|step| view.on_token(store, 1, at(from + step * STEP)));
}

/// What is known of the only pod.
fn known(view: &mut View, store: &dyn SharedData, now: u64) -> (Heard, Millis) {
    view.pools[0].ledger.refresh(store, at(now));
    let pods = view.pools[0].pods(&view.config.pools[0], None, at(now));
    let pod = pods.iter().find(|pod| pod.row.address == address(POD)).unwrap();
    (pod.heard, pod.late)
}

fn late(view: &mut View, store: &dyn SharedData, now: u64) -> u64 {
    known(view, store, now).1.0
}

#[test]
fn a_pod_is_late_until_its_next_token() {
    let store = MemoryStore::default();
    let mut view = listening(&store, 1, 0);
    assert_eq!(late(&mut view, &store, DUE), 0);
    assert_eq!(late(&mut view, &store, DUE + 300), 300);
    view.on_token(&store, 1, at(DUE + 400));
    view.on_token(&store, 1, at(DUE + 400 + STEP));
    assert_eq!(late(&mut view, &store, DUE + 400 + STEP), 0);
}

#[test]
fn a_silent_pod_costs_what_its_silence_does_not_explain() {
    let store = MemoryStore::default();
    let mut view = listening(&store, 1, 0);
    let mut overdue = |id, now| {
        let decision = decide(&mut view, &store, id, None, now);
        view.on_end(&store, id, Outcome::Unreachable, at(now));
        decision.why.considered[0].terms.overdue
    };
    // 1,000 tokens take 125 ms: twice that, and 25 for nothing.
    assert_eq!([overdue(2, DUE + 275), overdue(3, DUE + 375)], [0.0, 100.0]);
}

#[test]
fn only_an_open_stream_is_heard() {
    let store = MemoryStore::default();
    let mut view = listening(&store, 1, 0);
    view.on_end(&store, 1, Outcome::Success, at(LAST));
    assert_eq!(late(&mut view, &store, DUE + 300), 0);
    // Neither an answer in one piece nor an error is one.
    for (status, is_stream) in [(200, false), (503, true)] {
        begin(&mut view, &store, 2, LAST);
        view.on_first_byte(&store, 2, status, is_stream, at(LAST));
        assert_eq!(late(&mut view, &store, DUE + 300), 0, "{status}");
        view.on_end(&store, 2, Outcome::Success, at(LAST));
    }
    // Of two one is left.
    for id in [3, 4] {
        begin(&mut view, &store, id, LAST);
        view.on_first_byte(&store, id, 200, true, at(LAST));
    }
    view.on_end(&store, 3, Outcome::Success, at(LAST));
    assert_eq!(late(&mut view, &store, DUE + 300), 300);
}

#[test]
fn a_second_piece_is_no_step_since_it_may_be_of_the_first_token() {
    let store = MemoryStore::default();
    let mut view = listening(&store, 1, 0);
    begin(&mut view, &store, 2, LAST);
    view.on_first_byte(&store, 2, 200, true, at(LAST + 300));
    let mut decoded_at = |now| {
        view.on_token(&store, 2, at(now));
        let (heard, late) = known(&mut view, &store, now + 35);
        assert_eq!(late, Millis(0), "but it is a sign of life");
        heard.decoded_at(at(now))
    };
    assert_eq!(decoded_at(LAST + 310), Some(at(LAST)));
    assert_eq!(decoded_at(LAST + 310 + STEP), Some(at(LAST + 310 + STEP)));
}

#[test]
fn what_was_heard_stays_when_other_pods_come_and_go() {
    let store = MemoryStore::default();
    let mut view = listening(&store, 1, 0);
    let rows = ["10.0.0.0:80", POD].map(|pod| busy(pod, 0));
    publish_rows(&store, "a", "base", rows.to_vec(), 2);
    decide(&mut view, &store, 9, None, LAST + 10);
    assert_eq!(late(&mut view, &store, DUE + 300), 300);
}

#[test]
fn where_others_send_workers_tell_each_other_and_where_nobody_does_they_do_not() {
    for (running, is_told) in [(0, false), (40, true)] {
        let store = MemoryStore::default();
        let mut one = listening(&store, 1, running);
        let mut two = view(ONE, 2);
        begin(&mut two, &store, 1, LAST);
        let (here, there) = (known(&mut one, &store, LAST).0, known(&mut two, &store, LAST).0);
        assert_eq!(here.decoded_at(at(LAST)), Some(at(LAST)));
        assert_eq!(there.decoded_at(at(LAST)).is_some(), is_told, "{running}");
        // One's own word is the later one.
        assert!(here.is_late(at(DUE + 1)));
        // It has no stream of its own there.
        assert_eq!(late(&mut two, &store, DUE + 300), 0);
    }
}
