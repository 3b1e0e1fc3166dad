//! What differs in the nginx modules, each rule by a small guest.

use crate::guest::{get, guest, post, said};
use berth_tests_host::{Answer, Dialect, Host, Plugin, PluginId, Settings, Step, Thread};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

/// A filter of this body in a proxy of this dialect.
#[track_caller]
fn filter(dialect: Dialect, body: &str) -> (Host, PluginId) {
    let mut host = Host::new(Settings::of(dialect));
    let plugin = Plugin {
        variables: vec!["target".to_owned()],
        ..Plugin::new("filter", "")
    };
    let id = host.add_filter(&guest(body), plugin).expect("a good plugin");
    (host, id)
}

/// Says which callbacks come, with their numbers.
const TELLS: &str = r#"
(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
  (call $say @"headers" (local.get 1)) (call $say @"end" (local.get 2))
  (call $say @"ask" (call $set_property @"wasm_process_req_body" @"1"))
  (i32.const 0))
(func (export "proxy_on_request_body") (param i32 i32 i32) (result i32)
  (call $say @"body" (local.get 1)) (call $say @"end" (local.get 2))
  (i32.store (i32.const 0) (i32.const 0)) (i32.store (i32.const 4) (i32.const 0))
  (call $say @"read" (call $get_buffer (i32.const 0) (i32.const 2) (i32.const 64) (i32.const 0) (i32.const 4)))
  (call $tell_result)
  (drop (call $set_header (i32.const 0) @"x-late" @"yes"))
  (i32.const 0))
(func (export "proxy_on_response_body") (param i32 i32 i32) (result i32)
  (call $say @"piece" (local.get 1)) (call $say @"end" (local.get 2)) (i32.const 0))
(func (export "proxy_on_log") (param i32) (call $tell @"log"))
(func (export "proxy_on_delete") (param i32) (call $tell @"delete"))
"#;

#[test]
fn wasmx_gives_the_body_once_and_whole_and_whatever_the_start() {
    let (mut host, id) = filter(Dialect::WasmX, TELLS);
    let stream = host.open(id, 0);
    assert_eq!(stream.request_headers(&mut host, post(), false), Step::Continue);
    assert!(stream.upstream().is_none(), "nothing is sent before the body callback");
    assert_eq!(stream.request_body(&mut host, b"abc", false), Step::NotCalled);
    assert_eq!(stream.request_body(&mut host, b"def", true), Step::Continue);
    let expected = ["headers 3", "end 0", "ask 1", "body 6", "end 1", "read 0", "abcdef"];
    assert_eq!(said(&mut host), expected);
    let sent = stream.upstream().expect("it went on");
    assert_eq!(
        (sent.headers.get("x-late"), sent.body.as_slice()),
        (Some("yes"), &b"abcdef"[..])
    );
    stream.respond(&mut host, 200, [], b"xyz");
    assert_eq!(
        said(&mut host),
        ["piece 3", "end 0", "piece 0", "end 1", "log", "delete"]
    );
}

#[test]
fn wasmx_has_no_body_callback_without_a_body() {
    let (mut host, id) = filter(Dialect::WasmX, TELLS);
    let stream = host.open(id, 0);
    assert_eq!(stream.request_headers(&mut host, get(), true), Step::Continue);
    assert_eq!(said(&mut host), ["headers 3", "end 0", "ask 1"]);
    assert!(stream.upstream().expect("it went on").end);
}

#[test]
fn a_body_beyond_the_buffer_of_wasmx_has_a_size_and_no_bytes() {
    let (mut host, id) = filter(Dialect::WasmX, TELLS);
    for (size, read) in [(1024 * 1024, "read 0"), (1024 * 1024 + 1, "read 1")] {
        let stream = host.open(id, 0);
        stream.request(&mut host, post(), &vec![b'x'; size]);
        let said = said(&mut host);
        assert!(
            said.contains(&format!("body {size}")) && said.contains(&read.to_owned()),
            "{said:?}"
        );
        assert_eq!(stream.upstream().expect("it went on").body.len(), size);
    }
}

#[test]
fn apisix_tells_an_end_always_and_gives_the_body_where_it_was_asked_for() {
    let (mut host, id) = filter(Dialect::Apisix, TELLS);
    let stream = host.open(id, 0);
    stream.request(&mut host, post(), b"abcdef");
    let asked = ["headers 0", "end 1", "ask 0", "body 6", "end 1", "read 0", "cdef"];
    assert_eq!(said(&mut host), asked);
    stream.respond(&mut host, 200, [], b"xyz");
    assert_eq!(said(&mut host), ["piece 3", "end 1", "delete"], "nobody logs");
    let none = host.open(id, 0);
    none.request_headers(&mut host, get(), true);
    assert_eq!(
        said(&mut host),
        ["headers 0", "end 1", "ask 0", "body 0", "end 1", "read 0", ""]
    );
    let deaf = TELLS.replace("wasm_process_req_body", "something_else");
    let (mut host, id) = filter(Dialect::Apisix, &deaf);
    let stream = host.open(id, 0);
    stream.request(&mut host, post(), b"abcdef");
    assert_eq!(said(&mut host), ["headers 0", "end 1", "ask 1"]);
    assert_eq!(stream.upstream().expect("it went on").body, b"abcdef");
}

/// Returns Pause in a callback with nothing pending.
#[track_caller]
fn pauses(dialect: Dialect, callback: &str, why: &str) {
    let body = format!(
        r#"(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
             (drop (call $set_property @"wasm_process_req_body" @"1"))
             (i32.const {}))
           (func (export "proxy_on_request_body") (param i32 i32 i32) (result i32) (i32.const 1))"#,
        u32::from(callback == "proxy_on_request_headers")
    );
    let (mut host, id) = filter(dialect, &body);
    let stream = host.open(id, 0);
    stream.request(&mut host, post(), b"x");
    assert!(stream.upstream().is_none(), "{callback}: held for ever");
    assert_eq!(host.take_faults(), [format!("{why} in {callback}")]);
}

#[test]
fn pause_with_nothing_pending_is_a_fault() {
    let hangs = "Pause with no call pending: the request hangs";
    let crashes = "Pause with no call pending: a segmentation fault";
    for callback in ["proxy_on_request_headers", "proxy_on_request_body"] {
        pauses(Dialect::WasmX, callback, hangs);
        pauses(Dialect::Apisix, callback, crashes);
    }
}

/// A fault that nobody takes fails the test.
#[test]
fn a_fault_that_is_not_taken_panics_at_the_end_of_the_host() {
    let end = std::panic::catch_unwind(|| {
        let body = r#"(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32) (i32.const 1))"#;
        let (mut host, id) = filter(Dialect::WasmX, body);
        host.open(id, 0).request(&mut host, get(), b"");
    });
    assert!(end.is_err());
}

/// Answers locally, and returns Pause as one must.
#[test]
fn a_local_reply_may_be_followed_by_pause_everywhere() {
    let body = r#"(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
        (drop (call $reply (i32.const 429) (i32.const 0) (i32.const 0) @"no" (i32.const 0) (i32.const 0) (i32.const -1)))
        (i32.const 1))"#;
    for dialect in Dialect::ALL {
        let (mut host, id) = filter(dialect, body);
        let stream = host.open(id, 0);
        assert_eq!(stream.request(&mut host, post(), b"x"), Step::Over, "{dialect:?}");
        assert_eq!(stream.status(), Some(429), "{dialect:?}");
    }
}

/// Calls what only Envoy has.
const FOREIGN: &str = r#"
(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
  (call $say @"foreign" (call $foreign @"set_envoy_filter_state" (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)))
  (call $say @"time" (call $time (i32.const 8)))
  (call $say @"tick" (call $set_tick (i32.const 100)))
  (call $say @"shared" (call $set_shared @"k" @"v" (i32.const 0)))
  (call $say @"metric" (call $define (i32.const 0) @"m" (i32.const 8)))
  (call $say @"buffer" (call $set_buffer (i32.const 0) (i32.const 0) (i32.const 0) @"v"))
  (call $say @"resume" (call $resume (i32.const 0)))
  (i32.const 0))
"#;

#[test]
fn what_apisix_lacks_answers_and_what_wasmx_lacks_traps() {
    let (mut host, id) = filter(Dialect::Apisix, FOREIGN);
    host.open(id, 0).request(&mut host, get(), b"");
    let expected = [
        "foreign 12",
        "time 12",
        "tick 12",
        "shared 12",
        "metric 0",
        "buffer 12",
        "resume 0",
    ];
    assert_eq!(said(&mut host), expected);
    let (mut host, id) = filter(Dialect::WasmX, FOREIGN);
    let stream = host.open(id, 0);
    stream.request(&mut host, get(), b"");
    assert_eq!(stream.status(), Some(500));
    assert_eq!(said(&mut host), [""; 0]);
    let faults = host.take_faults();
    assert_eq!(
        faults,
        ["unknown foreign function set_envoy_filter_state in proxy_on_request_headers"]
    );
}

#[test]
fn a_module_with_an_import_of_another_arity_does_not_load() {
    let level = r#"(import "env" "proxy_get_log_level" (func $level (param i32) (result i32)))"#;
    let metric = r#"(import "env" "proxy_get_metric" (func $metric (param i32 i32) (result i32)))"#;
    let module = |import: &str| {
        let text = format!(
            r#"(module {import} (memory (export "memory") 1)
                (func (export "proxy_abi_version_0_2_1"))
                (func (export "proxy_on_memory_allocate") (param i32) (result i32) (i32.const 0)))"#
        );
        wat::parse_str(&text).expect("valid text")
    };
    for (dialect, import, loads) in [
        (Dialect::Envoy, level, true),
        (Dialect::WasmX, level, false),
        (Dialect::Apisix, level, false),
        (Dialect::Envoy, metric, true),
        (Dialect::WasmX, metric, true),
        (Dialect::Apisix, metric, false),
        (Dialect::Apisix, "", true),
    ] {
        let loaded = berth_tests_host::loads(&module(import), dialect);
        assert_eq!(loaded.is_ok(), loads, "{dialect:?} {import}: {loaded:?}");
    }
}

/// Counts its ticks, and sets them once or twice.
fn ticks(times: usize) -> String {
    let set = "(drop (call $set_tick (i32.const 100)))".repeat(times);
    format!(
        r#"(func (export "proxy_on_configure") (param i32 i32) (result i32) {set} (i32.const 1))
           (func (export "proxy_on_tick") (param i32) (call $tell @"tick"))
           (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32) unreachable)"#
    )
}

#[test]
fn wasmx_lets_a_tick_be_set_once() {
    let mut host = Host::new(Settings::of(Dialect::WasmX));
    let twice = host.add_filter(&guest(&ticks(2)), Plugin::new("filter", ""));
    assert!(format!("{:#}", twice.expect_err("it traps")).contains("already set"));
    assert_eq!(
        host.take_faults(),
        ["the tick period is already set in proxy_on_configure"]
    );
}

#[test]
fn after_a_trap_in_wasmx_a_new_instance_ticks_beside_the_old_timer() {
    let (mut host, id) = filter(Dialect::WasmX, &ticks(1));
    host.advance(100 * MS);
    assert_eq!(
        said(&mut host),
        ["tick", "tick"],
        "one in each worker, none in a main thread"
    );
    let stream = host.open(id, 0);
    stream.request(&mut host, get(), b"");
    assert_eq!(stream.status(), Some(500));
    assert!(!host.is_failed(id, Thread::Worker(0)), "there is a new one");
    host.take_log();
    host.advance(100 * MS);
    assert_eq!(said(&mut host), ["tick", "tick", "tick"]);
}

#[test]
fn after_a_trap_in_apisix_the_instance_goes_on_as_it_is() {
    let body = r#"(global $times (mut i32) (i32.const 0))
        (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
          (global.set $times (i32.add (global.get $times) (i32.const 1)))
          (call $say @"time" (global.get $times))
          (if (i32.eq (global.get $times) (i32.const 1)) (then unreachable))
          (i32.const 0))"#;
    let (mut host, id) = filter(Dialect::Apisix, body);
    let first = host.open(id, 0);
    first.request(&mut host, get(), b"");
    assert_eq!(first.status(), Some(503));
    let second = host.open(id, 0);
    second.request(&mut host, get(), b"");
    assert!(second.upstream().is_some());
    assert_eq!(said(&mut host), ["time 1", "time 2"], "its memory is the same");
}

#[test]
fn apisix_configures_by_the_first_request_of_a_worker() {
    let body =
        r#"(func (export "proxy_on_configure") (param i32 i32) (result i32) (call $tell @"configured") (i32.const 1))"#;
    let (mut host, id) = filter(Dialect::Apisix, body);
    assert_eq!(said(&mut host), [""; 0]);
    for expected in [&["configured"][..], &[]] {
        host.open(id, 0).request(&mut host, get(), b"");
        assert_eq!(said(&mut host), expected);
    }
}

/// Reads properties and writes variables.
const PROPERTIES: &str = r#"
(func (export "proxy_on_configure") (param i32 i32) (result i32)
  (call $say @"root" (call $get_property ROOT (i32.const 0) (i32.const 4))) (i32.const 1))
(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
  (call $say @"pid" (call $get_property PID (i32.const 0) (i32.const 4)))
  (call $say @"unknown" (call $get_property UNKNOWN (i32.const 0) (i32.const 4)))
  (call $say @"made" (call $set_property TARGET @"v"))
  (call $say @"not made" (call $set_property PID @"v"))
  (call $say @"authority" (call $set_header (i32.const 0) @":authority" @"v"))
  (i32.const 0))
"#;

#[test]
fn properties_are_variables_and_only_those_made_are_written() {
    let wasmx = PROPERTIES
        .replace("ROOT", "@\"ngx\0pid\"")
        .replace("PID", "@\"ngx\0pid\"")
        .replace("UNKNOWN", "@\"ngx\0none\"")
        .replace("TARGET", "@\"ngx\0target\"");
    let (mut host, id) = filter(Dialect::WasmX, &wasmx);
    let stream = host.open(id, 0);
    stream.request(&mut host, get(), b"");
    let roots = ["root 10", "root 10"];
    let expected = ["pid 0", "unknown 1", "made 0", "not made 1", "authority 0"];
    assert_eq!(said(&mut host), [&roots[..], &expected].concat());
    assert_eq!(stream.variable("target").as_deref(), Some(&b"v"[..]));
    let sent = stream.upstream().expect("it went on");
    assert_eq!(sent.headers.get(":authority"), Some("a.test"), "the write was ignored");

    let apisix = PROPERTIES
        .replace("ROOT", "@\"ngx\"")
        .replace("PID", "@\"pid\"")
        .replace("UNKNOWN", "@\"none\"")
        .replace("TARGET", "@\"target\"");
    let (mut host, id) = filter(Dialect::Apisix, &apisix);
    host.open(id, 0).request(&mut host, get(), b"");
    let expected = ["root 2", "pid 0", "unknown 1", "made 0", "not made 1", "authority 2"];
    assert_eq!(said(&mut host), expected);
}

#[test]
fn reading_what_wasmx_reads_past_its_end_is_a_fault() {
    let at = |path: &str, callback: &str| {
        format!(
            r#"(func (export "{callback}") (param i32 i32) (result i32)
                 (drop (call $get_property @"{path}" (i32.const 0) (i32.const 4))) (i32.const 1))"#
        )
    };
    let (mut host, _) = filter(Dialect::WasmX, &at("plugin_name", "proxy_on_configure"));
    let null = "plugin_name is read where it is a null pointer in proxy_on_configure";
    assert_eq!(host.take_faults(), [null, null], "one in each worker");
    for name in ["address", "port"] {
        let body = at(&format!("upstream\0{name}"), "proxy_on_request_headers")
            .replace("(param i32 i32)", "(param i32 i32 i32)")
            .replace("(i32.const 1))", "(i32.const 0))");
        let (mut host, id) = filter(Dialect::WasmX, &body);
        host.open(id, 0).request(&mut host, get(), b"");
        let fault = format!("upstream.{name} is read past its end in proxy_on_request_headers");
        assert_eq!(host.take_faults(), [fault]);
    }
}

/// Calls a pod when the request comes, and lets it go on when it answered.
fn caller(calls: usize, returns: usize) -> String {
    let call = r#"(call $say @"call" (call $call @"10.0.0.1:80" @{:method=GET|:path=/} (i32.const 0) (i32.const 0)
        (i32.const 0) (i32.const 0) (i32.const 100) (i32.const 8)))"#
        .repeat(calls);
    format!(
        r#"(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32) {call} (i32.const {returns}))
           (func (export "proxy_on_http_call_response") (param i32 i32 i32 i32 i32) (call $say @"answer" (local.get 2)))"#
    )
}

#[test]
fn a_call_of_a_request_lets_it_wait_and_go_on() {
    for (dialect, calls, said_) in [
        (Dialect::WasmX, 2, &["call 0", "call 0", "answer 1", "answer 1"][..]),
        (Dialect::Apisix, 2, &["call 0", "call 10", "answer 1"]),
    ] {
        let (mut host, id) = filter(dialect, &caller(calls, 1));
        host.on_callout(|_| Answer::reply(200, "x").after(5 * MS));
        let stream = host.open(id, 0);
        assert_eq!(stream.request(&mut host, get(), b""), Step::PauseAll, "{dialect:?}");
        assert!(stream.upstream().is_none());
        host.advance(5 * MS);
        assert_eq!(said(&mut host), said_, "{dialect:?}");
        assert!(stream.upstream().is_some(), "{dialect:?}");
    }
}

#[test]
fn only_a_tick_calls_from_a_root_in_wasmx_and_no_root_in_apisix() {
    let body = caller(1, 0).replace(
        r#"(export "proxy_on_request_headers") (param i32 i32 i32)"#,
        r#"(export "proxy_on_configure") (param i32 i32)"#,
    );
    let mut host = Host::new(Settings::of(Dialect::WasmX));
    assert!(host.add_filter(&guest(&body), Plugin::new("filter", "")).is_err());
    assert_eq!(
        host.take_faults(),
        ["no HTTP call may be sent from proxy_on_configure in proxy_on_configure"]
    );
    let mut host = Host::new(Settings::of(Dialect::Apisix));
    let id = host
        .add_filter(&guest(&body), Plugin::new("filter", ""))
        .expect("lazily");
    host.open(id, 0).request(&mut host, get(), b"");
    assert_eq!(said(&mut host), ["call 2"]);
}

#[test]
fn a_value_that_does_not_fit_the_zone_traps() {
    for (zone, loads) in [(2, true), (1, false)] {
        let mut host = Host::new(Settings {
            zone,
            ..Settings::of(Dialect::WasmX)
        });
        let body = r#"(func (export "proxy_on_configure") (param i32 i32) (result i32)
            (drop (call $set_shared @"k" @"vv" (i32.const 0))) (i32.const 1))"#;
        let added = host.add_filter(&guest(body), Plugin::new("filter", ""));
        assert_eq!(added.is_ok(), loads);
        assert_eq!(host.take_faults().is_empty(), loads);
    }
}

#[test]
fn no_nginx_has_bootstrap_services() {
    for dialect in [Dialect::WasmX, Dialect::Apisix] {
        let mut host = Host::new(Settings::of(dialect));
        assert!(host.add_service(&guest(""), Plugin::new("service", "")).is_err());
    }
}
