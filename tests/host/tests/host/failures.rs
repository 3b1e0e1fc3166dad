//! Traps: what dies, what does not, and what comes back.

use crate::guest::{filter, get, guest, said};
use berth_tests_host::{End, FailurePolicy, Host, Plugin, Settings, Step, Thread};
use std::time::Duration;

/// Traps on `boom: yes`; otherwise holds the request at its headers.
const BODY: &str = r#"
(func (export "proxy_on_configure") (param i32 i32) (result i32)
  (drop (call $set_tick (i32.const 400)))
  (i32.const 1))
(func (export "proxy_on_tick") (param i32) (call $tell @"tick"))
(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
  (if (i32.eqz (call $get_header (i32.const 0) @"boom" (i32.const 0) (i32.const 4))) (then unreachable))
  (i32.const 1))
(func (export "proxy_on_request_body") (param i32 i32 i32) (result i32) (i32.const 0))
(func (export "proxy_on_response_headers") (param i32 i32 i32) (result i32)
  (call $tell @"response") (i32.const 0))
(func (export "proxy_on_log") (param i32) (call $tell @"log"))
"#;

fn boom() -> berth_tests_host::Headers {
    let mut headers = get();
    headers.add("boom", "yes");
    headers
}

fn policy(failure_policy: FailurePolicy) -> impl FnOnce(&mut Plugin) {
    move |plugin| {
        plugin.failure_policy = failure_policy;
        plugin.allow_on_headers_stop_iteration = true;
    }
}

#[test]
fn a_trap_kills_its_stream_and_fails_others_of_the_vm_at_their_next_callback() {
    let (mut host, id) = filter(BODY, policy(FailurePolicy::Closed));
    let other = host.open(id, 0);
    assert_eq!(other.request_headers(&mut host, get(), false), Step::Pause);
    let elsewhere = host.open(id, 1);
    assert_eq!(elsewhere.request_headers(&mut host, get(), false), Step::Pause);
    let bad = host.open(id, 0);
    assert_eq!(bad.request_headers(&mut host, boom(), true), Step::Over);
    assert_eq!(bad.status(), Some(503));
    assert_eq!(bad.details().as_deref(), Some("wasm_fail_stream"));
    assert_eq!(bad.downstream().expect("a reply").body, b"");
    assert!(host.is_failed(id, Thread::Worker(0)) && !host.is_failed(id, Thread::Worker(1)));
    assert!(other.is_held());
    assert_eq!(other.request_body(&mut host, b"x", true), Step::Over);
    assert_eq!(other.status(), Some(503));
    assert_eq!(said(&mut host), [""; 0], "a dead VM is not asked");
    assert_eq!(elsewhere.request_body(&mut host, b"x", true), Step::Continue);
    elsewhere.respond(&mut host, 200, [], b"");
    assert_eq!(elsewhere.end(), Some(End::Complete));
    assert_eq!(said(&mut host), ["response", "log"]);
}

#[test]
fn a_dead_vm_neither_ticks_nor_hears_and_the_trap_is_in_the_log() {
    let (mut host, id) = filter(BODY, policy(FailurePolicy::Closed));
    host.open(id, 0).request_headers(&mut host, boom(), true);
    let log = host.take_log();
    let traps: Vec<_> = log.iter().filter(|line| line.from_host).collect();
    assert_eq!(traps.len(), 1);
    assert!(
        traps[0].text.contains("proxy_on_request_headers failed"),
        "{}",
        traps[0].text
    );
    host.advance(Duration::from_millis(400));
    assert_eq!(said(&mut host), ["tick", "tick"], "main and the other worker");
}

#[test]
fn a_response_that_has_begun_is_reset() {
    let (mut host, id) = filter(BODY, policy(FailurePolicy::Closed));
    let stream = host.open(id, 0);
    stream.request_headers(&mut host, get(), false);
    stream.request_body(&mut host, b"x", true);
    stream.response_headers(&mut host, [(":status", "200")], false);
    host.kill(id, Thread::Worker(0));
    assert_eq!(stream.response_body(&mut host, b"data: ", false), Step::Over);
    assert_eq!((stream.status(), stream.end()), (Some(200), Some(End::Reset)));
}

#[test]
fn closed_answers_503_for_ever() {
    let (mut host, id) = filter(BODY, policy(FailurePolicy::Closed));
    host.kill(id, Thread::Worker(0));
    host.advance(Duration::from_secs(60));
    let stream = host.open(id, 0);
    assert_eq!(stream.request_headers(&mut host, get(), true), Step::Over);
    assert_eq!(stream.status(), Some(503));
}

#[test]
fn open_lets_new_requests_pass_but_not_those_in_flight() {
    let (mut host, id) = filter(BODY, policy(FailurePolicy::Open));
    let old = host.open(id, 0);
    old.request_headers(&mut host, get(), false);
    host.kill(id, Thread::Worker(0));
    assert_eq!(old.request_body(&mut host, b"x", true), Step::Over);
    assert_eq!(old.status(), Some(503));
    let new = host.open(id, 0);
    assert_eq!(new.request_headers(&mut host, get(), true), Step::NotCalled);
    assert!(new.upstream().expect("sent").end);
}

#[test]
fn the_old_fail_open_lets_everything_pass() {
    let (mut host, id) = filter(BODY, policy(FailurePolicy::LegacyOpen));
    let old = host.open(id, 0);
    old.request_headers(&mut host, get(), false);
    host.kill(id, Thread::Worker(0));
    assert_eq!(old.request_body(&mut host, b"x", true), Step::NotCalled);
    assert_eq!(old.upstream().expect("sent").body, b"x");
    let bad = host.open(id, 1);
    assert_eq!(bad.request_headers(&mut host, boom(), true), Step::NotCalled);
    assert!(bad.upstream().is_some());
}

#[test]
fn reload_makes_a_new_vm_at_the_next_request_but_not_within_the_backoff() {
    let (mut host, id) = filter(BODY, policy(FailurePolicy::Reload));
    host.set_shared_data("", "kept", b"1");
    let status = |host: &mut Host| {
        let stream = host.open(id, 0);
        stream.request_headers(host, get(), true);
        let status = stream.status();
        stream.reset(host);
        status
    };
    host.advance(Duration::from_millis(1000));
    host.open(id, 0).request_headers(&mut host, boom(), true);
    host.advance(Duration::from_secs(5));
    assert!(
        host.is_failed(id, Thread::Worker(0)),
        "nothing but a request makes a VM"
    );
    assert_eq!(status(&mut host), None, "held by the new VM");
    assert!(!host.is_failed(id, Thread::Worker(0)));
    host.open(id, 0).request_headers(&mut host, boom(), true);
    host.advance(Duration::from_millis(999));
    assert_eq!(status(&mut host), Some(503));
    host.advance(Duration::from_millis(1));
    assert_eq!(status(&mut host), None);
    assert!(host.shared_data("", "kept").is_some());
}

#[test]
fn the_main_threads_vm_never_comes_back() {
    let (mut host, id) = filter(BODY, policy(FailurePolicy::Reload));
    host.kill(id, Thread::Main);
    host.advance(Duration::from_secs(5));
    host.open(id, 0).request_headers(&mut host, get(), true);
    assert!(host.is_failed(id, Thread::Main));
}

#[test]
fn linear_memory_is_capped_at_1_gib() {
    let grow = r#"
(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
  (if (i32.ne (memory.grow (i32.const 16381)) (i32.const -1)) (then unreachable))
  (if (i32.eq (memory.grow (i32.const 16380)) (i32.const -1)) (then unreachable))
  (i32.const 0))
"#;
    let (mut host, id) = filter(grow, |_| {});
    let stream = host.open(id, 0);
    assert_eq!(stream.request_headers(&mut host, get(), true), Step::Continue);
    assert_eq!(host.memory_size(id, Thread::Worker(0)), 1 << 30);
}

#[test]
fn a_callback_that_never_returns_ends_in_a_trap() {
    let endless = r#"
(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
  (loop $again (br $again))
  (i32.const 0))
"#;
    let mut host = Host::new(Settings {
        fuel_per_callback: 10_000,
        ..Settings::default()
    });
    let wasm = guest(endless);
    let id = host.add_filter(&wasm, Plugin::new("f", "")).expect("good");
    let stream = host.open(id, 0);
    assert_eq!(stream.request_headers(&mut host, get(), true), Step::Over);
    assert_eq!(host.fuel_used(id, Thread::Worker(0)), 10_000);
}

#[test]
fn fuel_is_the_same_each_time() {
    let used = || {
        let (mut host, id) = filter(BODY, policy(FailurePolicy::Closed));
        let before = host.fuel_used(id, Thread::Worker(1));
        host.open(id, 1).request_headers(&mut host, get(), false);
        host.fuel_used(id, Thread::Worker(1)) - before
    };
    let first = used();
    assert!(first > 0);
    assert_eq!(used(), first);
}
