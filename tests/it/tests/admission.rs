//! Requests that wait, through the wasm: what only a host can do to them.

use berth_shared_state::limits::LEDGER_VIEW_SILENT;
use berth_shared_state::names;
use berth_tests_host::{Step, Stream, Thread};
use berth_tests_it::play::Proxy;
use berth_tests_it::scenario::{Request, Then};
use serde_json::{Value, json};

use crate::scenarios::wasm::{Wasm, head, unread};

const BODY: &[u8] = br#"{"messages": [{"role": "user", "content": "hello"}]}"#;

/// The KV cache of the only pod is full, and the queue is on.
fn full() -> Wasm {
    queueing(&json!({"running": 1, "kv": 0.999}))
}

fn queueing(pod: &Value) -> Wasm {
    let admission = json!({"queue": {"enabled": true, "max_wait": "60s"},
        "objectives": [{"name": "chat", "priority": 5}]});
    let trust = json!({"headers": ["x-gateway-inference-objective"]});
    let more = json!({"top": {"admission": admission, "trust": trust}});
    let mut wasm = unread(&json!({"a": pod}), more);
    wasm.wait(1_500);
    wasm
}

fn request(objective: Option<&str>) -> Request {
    let objective = objective.map(|name| (names::OBJECTIVE[0].to_owned(), Some(name.to_owned())));
    Request {
        prompt_tokens: 100,
        headers: objective.into_iter().collect(),
        ..Request::default()
    }
}

fn make_room(wasm: &mut Wasm) {
    wasm.set("a", &json!({"kv": 0.1})).expect("a pod");
    wasm.wait(1_500);
}

#[test]
fn a_body_that_ends_with_trailers_waits_and_goes_on_whole() {
    let mut wasm = full();
    let stream = wasm.host.open(wasm.filter, 0);
    stream.request_headers(&mut wasm.host, head(&[]), false);
    assert_eq!(stream.request_body(&mut wasm.host, BODY, false), Step::Pause);
    stream.request_trailers(&mut wasm.host, [("x-checksum", "1")]);
    assert!(stream.is_held());
    make_room(&mut wasm);
    let sent = stream.upstream().expect("it went on");
    assert_eq!((sent.body.as_slice(), sent.trailers.is_some()), (BODY, true));
    assert!(sent.headers.get(names::DESTINATION_ENDPOINT).is_some());
}

#[test]
fn what_waits_at_a_worker_that_died_is_gone_and_holds_nobody_back() {
    let mut wasm = full();
    assert!(wasm.send(1, 0, &request(Some("chat"))).waits);
    wasm.wait(300);
    assert!(wasm.send(2, 1, &request(None)).waits);
    wasm.host.kill(wasm.filter, Thread::Worker(0));
    make_room(&mut wasm);
    assert!(wasm.left(2).is_none(), "a higher priority may still wait there");
    wasm.wait(LEDGER_VIEW_SILENT.0 + 500);
    let seen = wasm.left(2).expect("the dead worker is forgotten");
    assert_eq!(seen.served_by.as_deref(), Some("a"));
    wasm.go_on(2, Then::Done);
    let anew = wasm.send(3, 0, &request(Some("chat")));
    assert_eq!(
        anew.served_by.as_deref(),
        Some("a"),
        "a new VM begins with an empty queue"
    );
}

#[test]
fn a_client_that_leaves_while_it_waits_leaves_nothing_behind() {
    let mut wasm = full();
    assert!(wasm.send(1, 0, &request(Some("chat"))).waits);
    wasm.wait(300);
    assert_eq!(wasm.host.gauge("berth.pool.pods.band.5.waiting"), Some(1));
    wasm.go_on(1, Then::ClientLeaves);
    wasm.wait(300);
    assert_eq!(wasm.host.gauge("berth.pool.pods.band.5.waiting"), Some(0));
    make_room(&mut wasm);
    let next = wasm.send(2, 1, &request(None));
    assert_eq!(next.served_by.as_deref(), Some("a"), "{}", next.why);
    assert_eq!(wasm.host.counter("berth.pool.pods.routed"), Some(1));
    assert_eq!(wasm.host.counter("berth.pool.pods.band.5.held"), Some(1));
}

#[test]
fn the_gauges_show_what_waits_at_all_workers() {
    let mut wasm = full();
    for (id, worker) in [(1, 0), (2, 0), (3, 1)] {
        assert!(wasm.send(id, worker, &request(None)).waits);
    }
    wasm.wait(300);
    assert_eq!(wasm.host.gauge("berth.pool.pods.band.0.waiting"), Some(3));
    assert_eq!(wasm.host.gauge("berth.pool.pods.band.5.waiting"), Some(0));
    make_room(&mut wasm);
    wasm.wait(300);
    assert_eq!(wasm.host.gauge("berth.pool.pods.band.0.waiting"), Some(0));
    assert_eq!(wasm.host.gauge("berth.pool.pods.band.0.waiting_tokens"), Some(0));
}

/// One request is on its way at the pod and fills it, and another waits for that.
fn one_behind_the_other() -> (Wasm, Stream, Stream) {
    let mut wasm = queueing(&json!({"running": 0, "kv": 0.1}));
    let first = wasm.open(0, &request(None));
    let head = [(":status", "200"), ("content-type", "text/event-stream")];
    first.response_headers(&mut wasm.host, head, false);
    first.response_body(&mut wasm.host, b"data: 1\n\n", false);
    wasm.set("a", &json!({"running": 1, "kv": 0.999})).expect("a pod");
    wasm.wait(1_500);
    let second = wasm.open(0, &request(None));
    assert!(second.is_held());
    (wasm, first, second)
}

#[test]
fn the_end_of_an_answer_lets_others_go_at_once() {
    let (mut wasm, first, second) = one_behind_the_other();
    first.response_body(&mut wasm.host, b"data: 2\n\n", true);
    assert!(second.upstream().is_some());
}

/// Others of its connection are reset next, those that wait too.
#[test]
fn a_stream_that_is_reset_lets_others_go_at_the_next_tick() {
    let (mut wasm, first, second) = one_behind_the_other();
    first.reset(&mut wasm.host);
    assert!(second.is_held());
    wasm.wait(200);
    assert!(second.upstream().is_some());
}

#[test]
fn what_waited_at_a_worker_that_died_is_shown_no_longer() {
    let mut wasm = full();
    assert!(wasm.send(1, 0, &request(None)).waits);
    wasm.wait(300);
    assert_eq!(wasm.host.gauge("berth.pool.pods.band.0.waiting"), Some(1));
    wasm.host.kill(wasm.filter, Thread::Worker(0));
    make_room(&mut wasm);
    wasm.wait(LEDGER_VIEW_SILENT.0);
    // With the next request the worker has a new VM.
    assert!(wasm.send(2, 0, &request(None)).served_by.is_some());
    wasm.wait(300);
    assert_eq!(wasm.host.gauge("berth.pool.pods.band.0.waiting"), Some(0));
}
