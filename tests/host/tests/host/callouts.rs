//! HTTP callouts from a service, seen by the guest.

use crate::guest::{guest, host, said, said_where};
use berth_tests_host::{Answer, Headers, Host, Plugin, Thread};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

/// Calls on each tick and tells what came back.
fn caller(headers: &str, timeout: u32) -> Vec<u8> {
    guest(&format!(
        r#"
(func (export "proxy_on_configure") (param i32 i32) (result i32)
  (drop (call $set_tick (i32.const 100)))
  (i32.const 1))
(func (export "proxy_on_tick") (param i32)
  (call $say @"called" (call $call @"pods" @{{{headers}}} @"ping"
    (i32.const 0) (i32.const 0) (i32.const {timeout}) (i32.const 8))))
(func (export "proxy_on_http_call_response") (param i32 i32 i32 i32 i32)
  (call $say @"headers" (local.get 2))
  (call $say @"token" (i32.eq (local.get 1) (i32.load (i32.const 8))))
  (call $say @"header" (call $get_header (i32.const 6) @":status" (i32.const 0) (i32.const 4)))
  (if (local.get 2) (then (call $tell_result)))
  (i32.store (i32.const 0) (i32.const 0))
  (i32.store (i32.const 4) (i32.const 0))
  (call $say @"body" (call $get_buffer (i32.const 4) (i32.const 0) (i32.const 99)
    (i32.const 0) (i32.const 4)))
  (if (local.get 3) (then (call $tell_result))))
"#
    ))
}

const GOOD: &str = ":method=GET|:path=/metrics|:authority=10.0.0.1:8000";

fn service(wasm: &[u8]) -> Host {
    let mut host = host();
    host.add_cluster("pods");
    host.add_service(wasm, Plugin::new("s", "")).expect("good");
    host
}

#[test]
fn an_answer_arrives_when_it_is_due_with_headers_and_body() {
    let mut host = service(&caller(GOOD, 50));
    host.on_callout(|callout| {
        assert_eq!(callout.headers.get(":path"), Some("/metrics"));
        assert_eq!(callout.headers.get("content-length"), Some("4"));
        assert_eq!((callout.body.as_slice(), callout.thread), (&b"ping"[..], Thread::Main));
        Answer::Reply {
            after: 7 * MS,
            status: 200,
            headers: Headers::from([("x", "y")]),
            body: b"pong".to_vec(),
        }
    });
    host.advance(106 * MS);
    assert_eq!(said(&mut host), ["called 0"]);
    assert_eq!(host.open_callouts(), 1);
    host.advance(MS);
    assert_eq!(
        said_where(&mut host),
        [
            "107 s@main: headers 2",
            "107 s@main: token 1",
            "107 s@main: header 0",
            "107 s@main: 200",
            "107 s@main: body 0",
            "107 s@main: pong",
        ]
    );
    assert_eq!((host.open_callouts(), host.callouts().len()), (0, 1));
}

#[test]
fn silence_becomes_504_at_the_timeout() {
    let mut host = service(&caller(GOOD, 50));
    host.advance(151 * MS);
    assert_eq!(
        said_where(&mut host),
        [
            "100 s@main: called 0",
            "150 s@main: headers 3",
            "150 s@main: token 1",
            "150 s@main: header 0",
            "150 s@main: 504",
            "150 s@main: body 0",
            "150 s@main: upstream request timeout",
        ]
    );
}

#[test]
fn silence_without_a_timeout_stays_silence() {
    let mut host = service(&caller(GOOD, 0));
    host.advance(Duration::from_millis(1050));
    assert_eq!(said(&mut host), ["called 0"; 10]);
    assert_eq!(host.open_callouts(), 10);
}

#[test]
fn a_reset_has_no_headers_and_its_map_is_not_there() {
    let mut host = service(&caller(GOOD, 50));
    host.on_callout(|_| Answer::Reset { after: MS });
    host.advance(101 * MS);
    let said = said(&mut host);
    assert_eq!(said, ["called 0", "headers 0", "token 1", "header 2", "body 1"]);
}

#[test]
fn refused_calls_say_why_and_call_nobody_back() {
    let check = |headers: &str, timeout, answer: Answer, expected: &str| {
        let mut host = service(&caller(headers, timeout));
        host.on_callout(move |_| answer.clone());
        host.advance(199 * MS);
        assert_eq!(said(&mut host), [expected], "{headers} {timeout}");
    };
    let fine = || Answer::reply(200, "").after(MS);
    check(":method=GET|:path=/", 50, fine(), "called 2");
    check(":method=GET|:authority=a", 50, fine(), "called 2");
    check(":path=/|:authority=a", 50, fine(), "called 2");
    check(GOOD, 0x8000_0000, fine(), "called 2");
    check(GOOD, 50, Answer::Refused, "called 10");
}

#[test]
fn an_unknown_cluster_is_a_bad_argument() {
    let mut host = service(&caller(GOOD, 50));
    host.remove_cluster("pods");
    host.advance(100 * MS);
    assert_eq!(said(&mut host), ["called 2"]);
}

#[test]
fn an_answer_to_a_dead_vm_reaches_nobody() {
    let mut host = host();
    host.add_cluster("pods");
    let wasm = caller(GOOD, 50);
    let id = host.add_service(&wasm, Plugin::new("s", "")).expect("good");
    host.on_callout(|_| Answer::reply(200, "").after(MS));
    host.advance(100 * MS);
    host.kill(id, Thread::Main);
    host.advance(Duration::from_secs(1));
    assert_eq!(said(&mut host), ["called 0"]);
}
