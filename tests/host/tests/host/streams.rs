//! The phases of a stream, with the flag that lets a paused header phase still get bodies, and without it.

use crate::guest::{filter, get, post, said};
use berth_tests_host::{End, Headers, Host, PluginId, Step};
use std::time::Duration;

/// Holds the headers, adds one in the body callback and lets go at the end. Says what each access gave.
const HOLD: &str = r#"
(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
  (call $say @"headers" (local.get 1))
  (i32.eqz (local.get 2)))
(func (export "proxy_on_request_body") (param i32 i32 i32) (result i32)
  (call $say @"body" (local.get 1))
  (drop (call $get_buffer (i32.const 0) (i32.const 0) (i32.const 9999) (i32.const 0) (i32.const 4)))
  (call $say @"buffer" (call $size))
  (call $say @"header" (call $set_header (i32.const 0) @"x-pick" @"10.0.0.1:80"))
  (i32.eqz (local.get 2)))
(func (export "proxy_on_request_trailers") (param i32 i32) (result i32)
  (call $say @"trailers" (local.get 1))
  (i32.const 0))
(func (export "proxy_on_tick") (param i32)
  (call $say @"stream" (call $act_as (i32.const 2)))
  (call $say @"header" (call $set_header (i32.const 0) @"x-pick" @"late"))
  (call $say @"resume" (call $resume (i32.const 0)))
  (drop (call $set_tick (i32.const 0))))
(func (export "proxy_on_configure") (param i32 i32) (result i32)
  (drop (call $set_tick (i32.const 100)))
  (i32.const 1))
"#;

fn flag_on(body: &str) -> (Host, PluginId) {
    filter(body, |plugin| plugin.allow_on_headers_stop_iteration = true)
}

#[test]
fn with_the_flag_a_held_header_phase_gets_the_growing_body_and_may_still_set_headers() {
    let (mut host, id) = flag_on(HOLD);
    let stream = host.open(id, 0);
    assert_eq!(stream.request_headers(&mut host, post(), false), Step::Pause);
    assert_eq!(stream.request_body(&mut host, b"12345", false), Step::Pause);
    assert_eq!(stream.request_body(&mut host, b"678", false), Step::Pause);
    assert_eq!((stream.is_held(), stream.held_bytes()), (true, 8));
    assert_eq!(stream.request_body(&mut host, b"", true), Step::Continue);
    let bodies = ["body 5", "body 8", "body 8"].map(|body| {
        let size = body.trim_start_matches("body ");
        [body.to_owned(), format!("buffer {size}"), "header 0".to_owned()]
    });
    let expected = [vec!["headers 3".to_owned()], bodies.concat()].concat();
    assert_eq!(said(&mut host), expected);
    let sent = stream.upstream().expect("sent");
    assert_eq!(sent.headers.get("x-pick"), Some("10.0.0.1:80"));
    assert_eq!((sent.body.as_slice(), sent.end), (&b"12345678"[..], true));
    assert_eq!(stream.route_cache_clears(), 3);
}

#[test]
fn without_the_flag_the_body_never_comes_and_only_a_resume_helps() {
    let (mut host, id) = filter(HOLD, |_| {});
    let stream = host.open(id, 0);
    assert_eq!(stream.request(&mut host, post(), b"12345"), Step::NotCalled);
    assert!(stream.is_held());
    assert_eq!(said(&mut host), ["headers 3"]);
    host.advance(Duration::from_millis(100));
    let sent = stream.upstream().expect("resumed");
    assert_eq!(sent.headers.get("x-pick"), Some("late"), "set before the resume");
    assert_eq!((sent.body.as_slice(), sent.end), (&b"12345"[..], true));
    let said = said(&mut host);
    let of_worker = ["stream 0", "header 0", "resume 0", "body 5", "buffer 5", "header 2"];
    assert!(said.windows(6).any(|lines| lines == of_worker), "{said:?}");
}

/// As seen on Envoy 1.40: the parts that come after the resume go on at once.
#[test]
fn a_stream_resumed_in_the_middle_of_its_body_flows_from_then_on() {
    let body = r#"
(global $resumed (mut i32) (i32.const 0))
(func (export "proxy_on_configure") (param i32 i32) (result i32)
  (drop (call $set_tick (i32.const 100)))
  (i32.const 1))
(func (export "proxy_on_tick") (param i32)
  (if (i32.eqz (call $act_as (i32.const 2))) (then
    (drop (call $resume (i32.const 0)))
    (drop (call $set_tick (i32.const 0)))
    (global.set $resumed (i32.const 1)))))
(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32) (i32.const 1))
(func (export "proxy_on_request_body") (param i32 i32 i32) (result i32)
  (call $say @"body" (local.get 1))
  (i32.eqz (global.get $resumed)))
"#;
    let (mut host, id) = flag_on(body);
    let stream = host.open(id, 0);
    stream.request_headers(&mut host, post(), false);
    stream.request_body(&mut host, b"first-", false);
    host.advance(Duration::from_millis(100));
    assert_eq!(stream.upstream().expect("resumed").body, b"first-");
    assert_eq!(stream.request_body(&mut host, b"second-", false), Step::Continue);
    assert_eq!(stream.upstream().expect("resumed").body, b"first-second-");
    assert_eq!(stream.request_body(&mut host, b"third", false), Step::Continue);
    assert_eq!(stream.request_body(&mut host, b"", true), Step::Continue);
    let sent = stream.upstream().expect("resumed");
    assert_eq!((sent.body.as_slice(), sent.end), (&b"first-second-third"[..], true));
    assert_eq!(said(&mut host), ["body 6", "body 7", "body 5", "body 0"]);
}

#[test]
fn without_the_flag_more_than_the_limit_waits_and_is_no_413() {
    let (mut host, id) = filter(HOLD, |_| {});
    let stream = host.open(id, 0);
    stream.request_headers(&mut host, post(), false);
    stream.request_body(&mut host, &vec![0; 1024 * 1024 + 1], false);
    assert!(stream.is_held());
}

#[test]
fn after_continue_the_request_headers_are_withdrawn() {
    let body = r#"
(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
  (call $say @"now" (call $get_header (i32.const 0) @":path" (i32.const 0) (i32.const 4)))
  (call $say @"absent" (call $get_header (i32.const 0) @"nope" (i32.const 0) (i32.const 4)))
  (call $say @"early" (call $get_header (i32.const 2) @":status" (i32.const 0) (i32.const 4)))
  (i32.const 0))
(func (export "proxy_on_request_body") (param i32 i32 i32) (result i32)
  (call $say @"late" (call $get_header (i32.const 0) @":path" (i32.const 0) (i32.const 4)))
  (call $say @"write" (call $set_header (i32.const 0) @"a" @"b"))
  (i32.store (i32.const 4) (i32.const 7))
  (call $say @"pairs" (call $get_pairs (i32.const 0) (i32.const 0) (i32.const 4)))
  (call $say @"size" (call $size))
  (call $say @"path" (call $get_property (i32.const 2000) (i32.const 0) (i32.const 0) (i32.const 4)))
  (i32.const 0))
(func (export "proxy_on_response_headers") (param i32 i32 i32) (result i32)
  (call $say @"old" (call $get_header (i32.const 0) @":path" (i32.const 0) (i32.const 4)))
  (call $say @"status" (call $get_header (i32.const 2) @":status" (i32.const 0) (i32.const 4)))
  (i32.const 0))
(func (export "proxy_on_log") (param i32)
  (call $say @"log path" (call $get_header (i32.const 0) @":path" (i32.const 0) (i32.const 4)))
  (call $say @"log none" (call $get_header (i32.const 1) @"x" (i32.const 0) (i32.const 4)))
  (call $say @"log write" (call $set_header (i32.const 0) @"a" @"b")))
"#;
    let (mut host, id) = flag_on(body);
    let stream = host.open(id, 0);
    stream.request_headers(&mut host, post(), false);
    assert_eq!(said(&mut host), ["now 0", "absent 1", "early 2"]);
    stream.request_body(&mut host, b"x", true);
    assert_eq!(said(&mut host), ["late 2", "write 2", "pairs 0", "size 0", "path 1"]);
    stream.respond(&mut host, 200, [], b"");
    let said = said(&mut host);
    assert_eq!(said, ["old 2", "status 0", "log path 0", "log none 1", "log write 2"]);
}

/// As seen on Envoy 1.40: only Continue from the header phase and a resume withdraw them.
#[test]
fn request_headers_let_go_by_a_body_callback_stay_readable_in_the_response_phase() {
    let body = format!(
        r#"{HOLD}
(func (export "proxy_on_response_headers") (param i32 i32 i32) (result i32)
  (call $say @"old" (call $get_header (i32.const 0) @":path" (i32.const 0) (i32.const 4)))
  (call $say @"write" (call $set_header (i32.const 0) @"late" @"x"))
  (i32.const 0))"#
    );
    let (mut host, id) = flag_on(&body);
    let stream = host.open(id, 0);
    stream.request(&mut host, post(), b"x");
    said(&mut host);
    stream.respond(&mut host, 200, [], b"");
    assert_eq!(said(&mut host), ["old 0", "write 0"]);
    assert_eq!(stream.upstream().expect("sent").headers.get("late"), None, "too late");
}

#[test]
fn a_request_without_a_body_ends_in_its_headers() {
    let (mut host, id) = flag_on(HOLD);
    let stream = host.open(id, 0);
    assert_eq!(stream.request(&mut host, get(), b""), Step::Continue);
    assert!(stream.upstream().expect("sent").end);
}

#[test]
fn trailers_let_a_held_request_go() {
    let (mut host, id) = flag_on(HOLD);
    let stream = host.open(id, 0);
    stream.request_headers(&mut host, post(), false);
    stream.request_body(&mut host, b"12", false);
    assert_eq!(stream.request_trailers(&mut host, [("t", "1")]), Step::Continue);
    let sent = stream.upstream().expect("sent");
    assert_eq!(sent.body, b"12");
    assert_eq!((sent.trailers, sent.end), (Some(Headers::from([("t", "1")])), true));
}

#[test]
fn the_buffer_limit_counts_held_bytes_and_the_filter_hears_of_the_413() {
    let body = format!(
        r#"{HOLD}
(func (export "proxy_on_response_headers") (param i32 i32 i32) (result i32)
  (call $tell @"response") (i32.const 0))
(func (export "proxy_on_log") (param i32) (call $tell @"log"))"#
    );
    let limit = 1024 * 1024;
    let (mut host, id) = flag_on(&body);
    let at = host.open(id, 0);
    at.request_headers(&mut host, post(), false);
    assert_eq!(at.request_body(&mut host, &vec![0; limit], false), Step::Pause);
    assert_eq!(at.request_body(&mut host, b"", true), Step::Continue);
    let over = host.open(id, 0);
    over.request_headers(&mut host, post(), false);
    over.request_body(&mut host, &vec![0; limit], false);
    said(&mut host);
    assert_eq!(over.request_body(&mut host, b"1", false), Step::Over);
    assert_eq!(said(&mut host), ["response", "log"], "and no body callback");
    assert_eq!((over.status(), over.end()), (Some(413), Some(End::Complete)));
    assert_eq!(over.details().as_deref(), Some("request_payload_too_large"));
    assert_eq!(over.request_body(&mut host, b"2", true), Step::NotCalled);
}

/// Replies in the header phase, then claims to continue.
const REPLY: &str = r#"
(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
  (call $say @"reply" (call $reply (i32.const 429) @"too busy" @"slow" @{retry-after=1} (i32.const -1)))
  (i32.const 0))
(func (export "proxy_on_request_body") (param i32 i32 i32) (result i32)
  (call $tell @"request body") (i32.const 0))
(func (export "proxy_on_response_headers") (param i32 i32 i32) (result i32)
  (call $say @"response" (local.get 1))
  (call $say @"end" (local.get 2))
  (call $say @"add" (call $set_header (i32.const 2) @"x-why" @"busy"))
  (i32.const 0))
(func (export "proxy_on_response_body") (param i32 i32 i32) (result i32)
  (call $say @"body" (local.get 1)) (i32.const 0))
(func (export "proxy_on_log") (param i32) (call $tell @"log"))
(func (export "proxy_on_done") (param i32) (result i32) (call $tell @"done") (i32.const 1))
(func (export "proxy_on_delete") (param i32) (call $tell @"delete"))
"#;

#[test]
fn a_local_reply_waits_for_the_callback_and_runs_through_the_response_callbacks() {
    let (mut host, id) = flag_on(REPLY);
    let stream = host.open(id, 0);
    assert_eq!(stream.request(&mut host, post(), b"never read"), Step::Over);
    let expected = [
        "reply 0",
        "response 4",
        "end 0",
        "add 0",
        "body 4",
        "log",
        "done",
        "delete",
    ];
    assert_eq!(said(&mut host), expected);
    assert!(stream.upstream().is_none() && stream.is_refused());
    let reply = stream.downstream().expect("a reply");
    assert_eq!(
        reply.headers,
        Headers::from([
            (":status", "429"),
            ("retry-after", "1"),
            ("content-length", "4"),
            ("content-type", "text/plain"),
            ("x-why", "busy"),
        ])
    );
    assert_eq!((reply.body.as_slice(), reply.end), (&b"slow"[..], true));
    assert_eq!(stream.details().as_deref(), Some("too_busy"));
}

#[test]
fn a_held_stream_can_be_refused_from_a_tick() {
    let body = r#"
(func (export "proxy_on_configure") (param i32 i32) (result i32)
  (drop (call $set_tick (i32.const 100)))
  (i32.const 1))
(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32) (i32.const 1))
(func (export "proxy_on_tick") (param i32)
  (if (i32.eqz (call $act_as (i32.const 2))) (then
    (drop (call $reply (i32.const 503) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)
      (i32.const 0) (i32.const 0) (i32.const -1))))))
"#;
    let (mut host, id) = flag_on(body);
    let stream = host.open(id, 1);
    stream.request_headers(&mut host, post(), false);
    host.advance(Duration::from_millis(100));
    assert_eq!((stream.status(), stream.end()), (Some(503), Some(End::Complete)));
    assert_eq!(
        stream.downstream().expect("a reply").headers,
        Headers::from([(":status", "503")])
    );
    host.advance(Duration::from_millis(500));
    assert!(
        host.log().iter().all(|line| !line.from_host),
        "the context is gone, no harm done"
    );
}

#[test]
fn resuming_what_is_not_paused_is_reported() {
    let body = r#"
(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
  (drop (call $resume (i32.const 0)))
  (i32.const 1))
"#;
    let (mut host, id) = flag_on(body);
    let stream = host.open(id, 0);
    assert_eq!(stream.request_headers(&mut host, get(), true), Step::Pause);
    let log = host.take_log();
    assert!(
        log.iter()
            .any(|line| line.from_host && line.text.contains("not paused")),
        "{log:?}"
    );
    assert!(stream.is_held());
}

#[test]
fn the_response_streams_through_and_the_client_may_leave() {
    let (mut host, id) = flag_on(
        r#"
(func (export "proxy_on_response_body") (param i32 i32 i32) (result i32)
  (call $say @"body" (local.get 1))
  (drop (call $set_buffer (i32.const 1) (i32.const 0) (i32.const 1) @"<<"))
  (i32.const 0))
(func (export "proxy_on_log") (param i32) (call $tell @"log"))
"#,
    );
    let stream = host.open(id, 0);
    assert_eq!(stream.request(&mut host, post(), b"x"), Step::NotCalled);
    stream.response_headers(&mut host, [(":status", "200")], false);
    assert_eq!(stream.response_body(&mut host, b"abc", false), Step::Continue);
    assert_eq!(stream.response_body(&mut host, b"d", false), Step::Continue);
    assert_eq!(stream.downstream().expect("begun").body, b"<<bc<<");
    stream.reset(&mut host);
    stream.reset(&mut host);
    assert_eq!(said(&mut host), ["body 3", "body 1", "log"]);
    assert_eq!(stream.end(), Some(End::Reset));
    assert_eq!(stream.response_body(&mut host, b"e", true), Step::NotCalled);
}

#[test]
fn properties_and_filter_state() {
    let body = r#"
(func $ask (param $path i32) (param $length i32)
  (if (call $get_property (local.get $path) (local.get $length) (i32.const 0) (i32.const 4))
    (then (call $tell @"none")) (else (call $tell_result))))
(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
  (call $ask (i32.const 16) (i32.const 12))
  (call $ask @"plugin_root_id")
  (call $ask @"pick")
  (call $say @"set" (call $set_property @"pick" @"pod1"))
  (call $ask @"pick")
  (call $say @"known" (call $foreign @"set_envoy_filter_state" (i32.const 32) (i32.const 68)
    (i32.const 0) (i32.const 0)))
  (call $say @"bad" (call $foreign @"set_envoy_filter_state" (i32.const 32) (i32.const 67)
    (i32.const 0) (i32.const 0)))
  (call $say @"clear" (call $foreign @"clear_route_cache" (i32.const 0) (i32.const 0)
    (i32.const 0) (i32.const 0)))
  (call $say @"unknown" (call $foreign @"nope" (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)))
  (i32.const 0))
(func (export "proxy_on_response_headers") (param i32 i32 i32) (result i32)
  (call $ask (i32.const 16) (i32.const 12))
  (call $ask (i32.const 120) (i32.const 16))
  (i32.const 0))
(func (export "proxy_on_configure") (param i32 i32) (result i32)
  (call $say @"root" (call $set_property @"pick" @"pod1"))
  (i32.const 1))
(data (i32.const 16) "request\00path")
(data (i32.const 32) "\0a\33envoy.network.transport_socket.original_dst_address\12\0d10.0.0.1:8000")
(data (i32.const 120) "upstream\00address")
"#;
    let (mut host, id) = filter(body, |plugin| plugin.root_id = "me".to_owned());
    let stream = host.open(id, 0);
    stream.request_headers(&mut host, post(), true);
    let said_first = said(&mut host);
    assert_eq!(
        said_first,
        [
            "/v1?x=1",
            "me",
            "none",
            "set 0",
            "pod1",
            "known 0",
            "bad 2",
            "clear 0",
            "unknown 1"
        ]
    );
    let known = "envoy.network.transport_socket.original_dst_address";
    assert_eq!(stream.filter_state(known).as_deref(), Some(&b"10.0.0.1:8000"[..]));
    assert_eq!(stream.filter_state("wasm.pick").as_deref(), Some(&b"pod1"[..]));
    assert_eq!(stream.route_cache_clears(), 1);
    stream.set_property(&["upstream", "address"], "10.0.0.1:8000");
    stream.respond(&mut host, 200, [], b"");
    assert_eq!(
        said(&mut host),
        ["none", "10.0.0.1:8000"],
        "the path went with the headers"
    );
}
