//! `body.mode: hand-over`, as on hosts without the body flag: what the filter tells the filter behind it.

use berth_shared_state::names;
use berth_tests_host::{Headers, Step, Stream};
use berth_tests_it::play::Proxy;
use serde_json::{Value, json};

use crate::scenarios::wasm::{Wasm, head, unread};

const BODY: &[u8] = br#"{"model": "base", "messages": [{"role": "user", "content": "hello"}]}"#;

/// Pods a (idle) and b (busy) that were read, behind a filter that hands over.
fn proxy(body: &Value) -> Wasm {
    let pods = json!({"a": {}, "b": {"running": 9, "kv": 0.5}});
    let mut wasm = unread(&pods, json!({"top": {"body": body}}));
    wasm.wait(1500);
    wasm
}

fn handing_over() -> Wasm {
    proxy(&json!({"mode": "hand-over"}))
}

/// Filter state as the filter behind reads it.
fn state(stream: &Stream, name: &str) -> Option<String> {
    let value = stream.filter_state(&format!("wasm.{name}"))?;
    Some(String::from_utf8(value).expect("text"))
}

#[track_caller]
fn asks_to_wait(stream: &Stream) {
    assert_eq!(state(stream, names::STATE_WAIT).as_deref(), Some("1"));
}

#[test]
fn the_choice_is_told_at_the_end_of_the_body_and_no_header_is_touched() {
    let mut wasm = handing_over();
    let stream = wasm.host.open(wasm.filter, 0);
    let steered = head(&[(names::DESTINATION_ENDPOINT, "10.6.6.6:1")]);
    assert_eq!(
        stream.request_headers(&mut wasm.host, steered, false),
        Step::Continue,
        "without the flag a pause here would never get the body"
    );
    asks_to_wait(&stream);
    let (first, last) = BODY.split_at(20);
    assert_eq!(stream.request_body(&mut wasm.host, first, false), Step::Continue);
    assert_eq!(state(&stream, names::STATE_ENDPOINTS), None, "half a body tells little");
    assert_eq!(stream.request_body(&mut wasm.host, last, true), Step::Continue);
    let endpoints = state(&stream, names::STATE_ENDPOINTS).expect("a choice");
    assert!(endpoints.starts_with("10.0.0.1:8000,10.0.0.2:8000"), "{endpoints}");
    let dialled = stream.filter_state("envoy.network.transport_socket.original_dst_address");
    assert_eq!(
        dialled.as_deref(),
        Some(&b"10.0.0.1:8000"[..]),
        "for an ORIGINAL_DST cluster"
    );
    assert_eq!(state(&stream, names::STATE_MODEL).as_deref(), Some("base"));
    assert_eq!(state(&stream, names::STATE_REPORT).as_deref(), Some("TEXT"));
    let sent = stream.upstream().expect("it went on");
    assert_eq!(sent.body, BODY);
    for name in [names::DESTINATION_ENDPOINT, names::MODEL_NAME, names::LOAD_FORMAT] {
        assert_eq!(sent.headers.get(name), None, "{name}");
    }
    wasm.sound().expect("no refused host call");
}

#[test]
fn trailers_and_the_bound_are_ends_too() {
    let mut wasm = proxy(&json!({"mode": "hand-over", "hold": "4KiB"}));
    let trailed = wasm.host.open(wasm.filter, 0);
    trailed.request_headers(&mut wasm.host, head(&[]), false);
    trailed.request_body(&mut wasm.host, BODY, false);
    trailed.request_trailers(&mut wasm.host, [("x-checksum", "1")]);
    assert!(state(&trailed, names::STATE_ENDPOINTS).is_some());

    // 4,095 bytes are not decided yet, 4,096 are; what comes then is nobody's business.
    let long = wasm.host.open(wasm.filter, 0);
    long.request_headers(&mut wasm.host, head(&[]), false);
    let start = br#"{"model": "base", "prompt": ""#;
    long.request_body(&mut wasm.host, start, false);
    long.request_body(&mut wasm.host, &vec![b'x'; 4095 - start.len()], false);
    assert_eq!(state(&long, names::STATE_ENDPOINTS), None);
    long.request_body(&mut wasm.host, b"x", false);
    assert!(state(&long, names::STATE_ENDPOINTS).is_some());
    assert_eq!(long.request_body(&mut wasm.host, b"xxx\"}", true), Step::Continue);
    wasm.sound().expect("no refused host call");
}

#[test]
fn what_passes_is_not_waited_for() {
    let mut wasm = proxy(&json!({"mode": "hand-over", "hold": "4KiB"}));
    let get = Headers::from([(":method", "GET"), (":path", "/health"), (":authority", "x")]);
    let cases = [
        ("not-inference", get, true),
        ("body-too-large", head(&[("content-length", "4097")]), false),
    ];
    for (reason, head, end) in cases {
        let stream = wasm.host.open(wasm.filter, 0);
        assert_eq!(stream.request_headers(&mut wasm.host, head, end), Step::Continue);
        assert_eq!(state(&stream, names::STATE_WAIT), None, "{reason}");
        assert_eq!(state(&stream, names::STATE_DECISION), Some(format!("pass={reason}")));
    }
    let largest = wasm.host.open(wasm.filter, 0);
    largest.request_headers(&mut wasm.host, head(&[("content-length", "4096")]), false);
    asks_to_wait(&largest);
}

#[test]
fn a_refusal_is_answered_at_the_end_of_the_body() {
    let mut wasm = handing_over();
    let stream = wasm.host.open(wasm.filter, 0);
    stream.request_headers(&mut wasm.host, head(&[]), false);
    stream.request_body(&mut wasm.host, br#"{"model": "nobody-has-this", "prompt": "x"}"#, true);
    assert_eq!(stream.status(), Some(404));
    assert_eq!(state(&stream, names::STATE_ENDPOINTS), None);
    wasm.sound().expect("no refused host call");
}

#[test]
fn where_nobody_applies_the_choice_a_counter_shows_it() {
    let mut wasm = handing_over();
    for (served, elsewhere) in [("10.0.0.1:8000", 0), ("10.0.0.2:8000", 1)] {
        let stream = wasm.host.open(wasm.filter, 0);
        stream.request_headers(&mut wasm.host, head(&[]), false);
        stream.request_body(&mut wasm.host, BODY, true);
        stream.set_property(&["upstream", "address"], served);
        stream.set_number_property(&["upstream", "request_attempt_count"], 1);
        stream.respond(&mut wasm.host, 200, [("content-type", "application/json")], b"{}");
        let counter = names::pool_stat("pods", names::ELSEWHERE);
        assert_eq!(wasm.host.counter(&counter), Some(elsewhere), "served by {served}");
    }
}
