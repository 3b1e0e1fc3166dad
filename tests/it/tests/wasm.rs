//! What only the artifacts can show: the proxy's body flag, deaths of VMs, foreign bytes in shared data,
//! configurations that are not valid, and how quiet Berth is.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_shared_state::limits::LEDGER_VIEW_SILENT;
use berth_shared_state::names;
use berth_tests_host::{Host, LogLevel, PluginId, Step, Stream, Thread};
use berth_tests_it::artifact;
use berth_tests_it::play::{Proxy, Seen};
use berth_tests_it::scenario::{Request, Then};
use serde_json::{Value, json};

use crate::scenarios::wasm::{VM_ID, Wasm, head, plugin, process, table, unread};

const MS: Duration = Duration::from_millis(1);

/// A proxy in front of these pods, its pages read.
fn proxy(pods: &Value) -> Wasm {
    let mut wasm = unread(pods, json!({}));
    wasm.wait(1500);
    wasm
}

fn tokens(prompt: usize) -> Request {
    Request {
        prompt_tokens: prompt,
        stream: true,
        ..Request::default()
    }
}

/// Such a request whose prompt begins like no other's number.
fn unlike(number: u64, prompt: usize) -> Request {
    Request {
        number,
        ..tokens(prompt)
    }
}

const BODY: &[u8] = br#"{"messages": [{"role": "user", "content": "hello"}]}"#;

/// The pods that a request may go to, as addresses, each once: a short list is repeated for retries.
fn destination(stream: &Stream) -> Option<String> {
    let upstream = stream.upstream()?;
    let list = upstream.headers.get(names::DESTINATION_ENDPOINT)?;
    Some(once(list.split(',')).join(","))
}

fn once<'a>(list: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let mut pods = Vec::new();
    for pod in list {
        if !pods.contains(&pod) {
            pods.push(pod);
        }
    }
    pods
}

/// The pods of a routed request, each once.
fn pods(seen: &Seen) -> Vec<&str> {
    once(seen.list.iter().map(String::as_str))
}

fn logged(host: &Host, level: LogLevel, text: &str) -> usize {
    host.log()
        .iter()
        .filter(|line| line.level == level && line.text.contains(text))
        .count()
}

/// A proxy without the flag that delivers bodies while headers are held.
fn without_flag() -> (Host, PluginId) {
    let mut host = process();
    let document = r#"{"pools": [{"name": "pods", "discovery": {"static": ["10.0.0.1:8000"]}}]}"#;
    let mut plugin = plugin("filter", names::ROOT_FILTER, document);
    plugin.allow_on_headers_stop_iteration = false;
    let filter = host
        .add_filter(&artifact("berth_filter.wasm"), plugin)
        .expect("it starts");
    (host, filter)
}

#[test]
fn without_the_body_flag_requests_are_let_go_and_the_log_has_the_remedy() {
    let (mut host, filter) = without_flag();
    let stream = host.open(filter, 0);
    assert_eq!(stream.request_headers(&mut host, head(&[]), false), Step::PauseAll);
    assert_eq!(stream.request_body(&mut host, BODY, true), Step::NotCalled);
    host.advance(450 * MS);
    assert!(stream.is_held(), "a slow upload looks the same for half a second");
    host.advance(200 * MS);
    assert_eq!(stream.upstream().expect("it went on").body, BODY);
    assert_eq!(destination(&stream), None);
    assert_eq!(host.counter("berth.passed.no-body-hold"), Some(1));
    assert_eq!(host.gauge("berth.no_body_hold"), Some(1));
    assert_eq!(
        logged(&host, LogLevel::Error, "allow_on_headers_stop_iteration: true"),
        1
    );

    let next = host.open(filter, 0);
    assert_eq!(
        next.request_headers(&mut host, head(&[]), false),
        Step::Continue,
        "nothing is held any more"
    );
    assert_eq!(host.counter("berth.passed.no-body-hold"), Some(2));
}

#[test]
fn a_slow_upload_is_just_slow_once_the_flag_is_proven() {
    let mut wasm = proxy(&json!({"a": {}}));
    assert_eq!(pods(&wasm.send(1, 0, &tokens(10))), ["a"]);
    let stream = wasm.host.open(wasm.filter, 0);
    assert_eq!(stream.request_headers(&mut wasm.host, head(&[]), false), Step::Pause);
    wasm.wait(20_000);
    assert!(stream.is_held());
    stream.request_body(&mut wasm.host, BODY, true);
    assert_eq!(destination(&stream).as_deref(), Some("10.0.0.1:8000"));
    assert_eq!(wasm.host.gauge("berth.no_body_hold"), Some(0));
}

#[test]
fn a_body_that_ends_with_trailers_is_decided() {
    let mut wasm = proxy(&json!({"a": {}, "b": {"running": 9, "kv": 0.5}}));
    let stream = wasm.host.open(wasm.filter, 0);
    stream.request_headers(&mut wasm.host, head(&[]), false);
    assert_eq!(stream.request_body(&mut wasm.host, BODY, false), Step::Pause);
    stream.request_trailers(&mut wasm.host, [("x-checksum", "1")]);
    assert_eq!(destination(&stream).as_deref(), Some("10.0.0.1:8000,10.0.0.2:8000"));
    let sent = stream.upstream().expect("it went on");
    assert_eq!((sent.body.as_slice(), sent.trailers.is_some()), (BODY, true));
}

#[test]
fn a_body_in_single_bytes_is_decided_at_its_end() {
    let mut wasm = proxy(&json!({"a": {}}));
    let stream = wasm.host.open(wasm.filter, 0);
    stream.request_headers(&mut wasm.host, head(&[]), false);
    for (index, byte) in BODY.iter().enumerate() {
        assert!(stream.is_held(), "after {index} bytes");
        stream.request_body(&mut wasm.host, &[*byte], false);
    }
    stream.request_body(&mut wasm.host, b"", true);
    assert_eq!(destination(&stream).as_deref(), Some("10.0.0.1:8000"));
}

#[test]
fn requests_of_a_worker_that_died_are_forgotten_and_it_works_again() {
    let mut wasm = proxy(&json!({"a": {}, "b": {"running": 6, "kv": 0.4}}));
    for id in 0..8 {
        let seen = wasm.send(id, 0, &unlike(id, 4000));
        assert!(seen.served_by.is_some());
    }
    let first = |seen: &Seen| seen.list.first().cloned();
    // Four or more of them are at a: 2,000 ms of queue.
    let probe = |wasm: &mut Wasm, id| wasm.send(id, 1, &tokens(10));
    let before = probe(&mut wasm, 100);
    assert!(cost(&before) > 1000, "worker 1 sees what worker 0 sent: {}", before.why);
    wasm.go_on(100, Then::Done);
    wasm.host.kill(wasm.filter, Thread::Worker(0));
    wasm.wait(LEDGER_VIEW_SILENT.0 + 500);
    let after = probe(&mut wasm, 101);
    assert_eq!(first(&after).as_deref(), Some("a"));
    assert!(cost(&after) < 100, "the dead worker's requests are gone: {}", after.why);
    wasm.go_on(101, Then::Done);
    assert!(wasm.host.is_failed(wasm.filter, Thread::Worker(0)));
    let anew = wasm.send(102, 0, &tokens(10));
    assert_eq!(first(&anew).as_deref(), Some("a"), "a new VM decides by the same table");
    assert!(!wasm.host.is_failed(wasm.filter, Thread::Worker(0)));
}

/// The cost in a decision, in milliseconds.
fn cost(seen: &Seen) -> u64 {
    let cost = seen.why.split(';').find_map(|part| part.strip_prefix("cost="));
    cost.and_then(|cost| cost.parse().ok())
        .unwrap_or_else(|| panic!("no cost in {:?}", seen.why))
}

#[test]
fn a_service_that_takes_over_keeps_the_table_readable() {
    let mut wasm = proxy(&json!({"a": {}, "b": {"running": 9, "kv": 0.5}}));
    wasm.service(berth_tests_it::scenario::Life::Dies);
    wasm.wait(1000);
    wasm.service(berth_tests_it::scenario::Life::Starts);
    for id in 0..30 {
        wasm.wait(50);
        assert_eq!(
            pods(&wasm.send(id, 0, &tokens(100))),
            ["a", "b"],
            "{} ms after the change",
            50 * (id + 1)
        );
        wasm.go_on(id, Then::Done);
    }
}

#[track_caller]
fn check_foreign_table(bytes: &[u8]) {
    let mut wasm = unread(
        &json!({"a": {}}),
        json!({"without_service": true, "top": {"role": "service"}}),
    );
    let key = wasm.keys().table;
    wasm.host.set_shared_data(VM_ID, &key, bytes);
    assert_eq!(wasm.send(1, 0, &tokens(10)).pass.as_deref(), Some("no-table"));
    wasm.wait(200);
    assert_eq!(wasm.host.counter("berth.tables_unreadable"), Some(1));
    wasm.service(berth_tests_it::scenario::Life::Starts);
    wasm.wait(1500);
    assert_eq!(pods(&wasm.send(2, 0, &tokens(10))), ["a"], "the next table is read");
    wasm.sound().expect("no trap");
}

#[test]
fn foreign_bytes_for_a_table_are_no_table() {
    let wasm = proxy(&json!({"a": {}}));
    let good = wasm.host.shared_data(VM_ID, &wasm.keys().table).expect("a table").0;
    let changed = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        bytes
    };
    check_foreign_table(b"garbage");
    check_foreign_table(&[0xff; 4096]);
    check_foreign_table(&good[..good.len() - 1]);
    for at in [0, 4, 6, 8, 12, 19, good.len() - 1] {
        check_foreign_table(&changed(at));
    }
}

#[test]
fn foreign_bytes_for_a_ledger_are_no_ledger() {
    for bytes in [&b"garbage"[..], b"", &[0xff; 4096]] {
        let mut wasm = proxy(&json!({"a": {}, "b": {}}));
        let key = names::ledger_key("pods");
        wasm.host.set_shared_data(VM_ID, &key, bytes);
        let first = wasm.send(1, 0, &unlike(1, 1000));
        let second = wasm.send(2, 1, &unlike(2, 1000));
        assert_ne!(
            first.list.first(),
            second.list.first(),
            "the ledger was written anew and read"
        );
        assert_ne!(wasm.host.shared_data(VM_ID, &key).expect("a ledger").0, bytes);
        wasm.sound().expect("no trap");
    }
}

#[test]
fn keys_are_few_and_carry_project_schema_and_pool() {
    let mut wasm = proxy(&json!({"a": {}}));
    wasm.send(1, 0, &tokens(10));
    let keys = wasm.keys();
    let mut expected = [keys.lease, keys.table, names::ledger_key("pods")];
    expected.sort();
    assert_eq!(wasm.host.shared_data_keys(VM_ID), expected);
    assert!(expected.iter().all(|key| key.starts_with("berth/5/pods/")));
}

#[test]
fn a_bad_config_is_refused_with_every_mistake_in_the_log() {
    let document = r#"{"pools": [{"name": "Llama", "discovery": {"static": ["host:80"]}, "colour": 1}]}"#;
    for file in ["berth_filter.wasm", "berth_service.wasm"] {
        let mut host = process();
        let plugin = plugin("berth", names::ROOT_FILTER, document);
        let refused = match file {
            "berth_filter.wasm" => host.add_filter(&artifact(file), plugin),
            _ => host.add_service(&artifact(file), plugin),
        };
        let error = format!("{:#}", refused.expect_err("not valid"));
        assert!(error.contains("proxy_on_configure returned false"), "{error}");
        for path in ["pools[0].name", "pools[0].discovery.static[0]", "pools[0].colour"] {
            assert_eq!(
                logged(&host, LogLevel::Error, &format!("configuration: {path}: ")),
                1,
                "{file}: {path}"
            );
        }
    }
}

#[test]
fn configuring_touches_nothing_outside() {
    let wasm = unread(&json!({"a": {}}), json!({}));
    assert_eq!(wasm.host.callouts().len(), 0, "hosts configure more VMs than they keep");
    assert_eq!(wasm.host.shared_data_keys(VM_ID), [""; 0]);
    let counted: Vec<_> = wasm.host.metrics();
    assert!(
        counted
            .iter()
            .all(|(_, name)| wasm.host.counter(name).unwrap_or(0) == 0),
        "{counted:?}"
    );
}

#[test]
fn only_the_service_calls_pods_once_per_interval_each() {
    let mut wasm = unread(&json!({"a": {}, "b": {}, "c": {}}), json!({}));
    wasm.wait(60_000);
    let mut calls: BTreeMap<(String, String), u32> = BTreeMap::new();
    for call in wasm.host.callouts() {
        assert_eq!((call.plugin.as_str(), call.thread), ("service", Thread::Main));
        let text = |name| call.headers.get(name).unwrap_or_default().to_owned();
        *calls
            .entry((text(names::ORIGINAL_DST_HOST), text(":path")))
            .or_default() += 1;
    }
    assert_eq!(calls.len(), 6);
    for ((pod, path), count) in calls {
        let expected = if path == "/metrics" { 58..=62 } else { 5..=8 };
        assert!(
            expected.contains(&count),
            "{count} calls of {path} at {pod} in a minute"
        );
    }
}

#[test]
fn a_pod_that_answers_slowly_gets_no_second_call_meanwhile() {
    let mut wasm = unread(&json!({"a": {"page": "silent", "models_page": "silent"}}), json!({}));
    for _ in 0..300 {
        wasm.wait(50);
        assert!(wasm.host.open_callouts() <= 2, "one call of each page");
    }
}

#[test]
fn an_idle_proxy_writes_no_ledger() {
    let mut wasm = proxy(&json!({"a": {}}));
    wasm.send(1, 0, &tokens(10));
    wasm.go_on(1, Then::Done);
    wasm.wait(15_000);
    let key = names::ledger_key("pods");
    let before = wasm.host.shared_data(VM_ID, &key);
    wasm.wait(60_000);
    assert_eq!(wasm.host.shared_data(VM_ID, &key), before);
}

/// A request whose answer carries this load report. What the pod was asked for, and what the client gets.
fn reported(wasm: &mut Wasm, request: &Request, report: &str) -> (Option<String>, Option<String>) {
    let stream = wasm.open(0, request);
    let asked = stream
        .upstream()
        .expect("it went on")
        .headers
        .get(names::LOAD_FORMAT)
        .map(str::to_owned);
    stream.set_property(&["upstream", "address"], "10.0.0.1:8000");
    let head = [("content-type", "application/json"), (names::LOAD_REPORT, report)];
    stream.respond(&mut wasm.host, 200, head, b"{}");
    let sent = stream.downstream().expect("a response");
    (asked, sent.headers.get(names::LOAD_REPORT).map(str::to_owned))
}

const REPORT: &str = "TEXT named_metrics.num_requests_waiting=3.0, named_metrics.kv_cache_usage_perc=0.25";

#[test]
fn a_load_report_reaches_the_table_and_no_client_that_did_not_ask() {
    for service in [true, false] {
        let mut wasm = unread(&json!({"a": {}}), json!({"without_service": !service}));
        wasm.wait(2_500);
        let got = reported(&mut wasm, &tokens(10), REPORT);
        assert_eq!(got, (Some("TEXT".to_owned()), None));
        wasm.wait(300);
        let load = table(&wasm.host, &wasm.keys()).pods[0].load;
        assert_eq!((load.waiting, load.kv_mean), (Some(3), Some(0.25)));
        assert_eq!(wasm.host.counter("berth.pool.pods.load_reports"), Some(1));
        wasm.sound().expect("no trap");
    }
}

#[test]
fn a_client_that_asks_for_a_load_report_gets_it_in_its_format() {
    let mut wasm = proxy(&json!({"a": {}}));
    let request = Request {
        headers: BTreeMap::from([(names::LOAD_FORMAT.to_owned(), Some("JSON".to_owned()))]),
        ..tokens(10)
    };
    let report = r#"JSON {"named_metrics": {"num_requests_waiting": 3.0, "kv_cache_usage_perc": 0.25}}"#;
    let got = reported(&mut wasm, &request, report);
    assert_eq!(got, (Some("JSON".to_owned()), Some(report.to_owned())));
    wasm.wait(300);
    assert_eq!(table(&wasm.host, &wasm.keys()).pods[0].load.waiting, Some(3));
}

#[test]
fn a_client_cannot_make_a_pod_silent() {
    let mut wasm = proxy(&json!({"a": {}}));
    let request = Request {
        headers: BTreeMap::from([(names::LOAD_FORMAT.to_owned(), Some("none".to_owned()))]),
        ..tokens(10)
    };
    assert_eq!(reported(&mut wasm, &request, REPORT), (Some("TEXT".to_owned()), None));
}

#[test]
fn with_reports_off_no_header_is_added_read_or_removed() {
    let mut wasm = unread(&json!({"a": {}}), json!({"pool": {"scrape": {"in_band": false}}}));
    wasm.wait(1_500);
    assert_eq!(
        reported(&mut wasm, &tokens(10), REPORT),
        (None, Some(REPORT.to_owned()))
    );
    wasm.wait(300);
    assert_eq!(table(&wasm.host, &wasm.keys()).pods[0].load.waiting, Some(0));
    assert_eq!(wasm.host.shared_data(VM_ID, &wasm.keys().reports), None);
}

#[test]
fn a_refusal_has_the_shape_that_clients_libraries_read() {
    let mut wasm = proxy(&json!({"a": {}}));
    let request = Request {
        model: Some("never".to_owned()),
        ..tokens(10)
    };
    let stream = wasm.open(0, &request);
    let sent = stream.downstream().expect("a reply");
    assert_eq!(stream.status(), Some(404));
    assert_eq!(sent.headers.get("content-type"), Some("application/json"));
    assert_eq!(sent.headers.get(names::REASON), Some("model-unknown"));
    let body: Value = serde_json::from_slice(&sent.body).expect("JSON");
    assert_eq!(body["error"]["code"], "model_not_found");
    assert_eq!(body["error"]["param"], "model");
}

#[test]
fn clients_see_a_decision_only_where_the_config_says_so() {
    for (shown, top) in [(false, json!({})), (true, json!({"status": {"decision_header": true}}))] {
        let mut wasm = unread(&json!({"a": {}}), json!({"top": top}));
        wasm.wait(1500);
        let stream = wasm.open(0, &tokens(10));
        stream.respond(&mut wasm.host, 200, [("x-berth-decision", "pod=me")], b"{}");
        let sent = stream.downstream().expect("a response");
        let decision = sent.headers.get(names::DECISION).unwrap_or_default().to_owned();
        assert_eq!(decision.starts_with("pod=10.0.0.1:8000;"), shown, "{decision}");
    }
}

#[test]
fn an_alias_works_before_anything_is_known() {
    let more = json!({
        "without_service": true,
        "top": {"role": "service", "rewrites": [{"from": "gpt", "to": [{"model": "base"}]}]},
    });
    let mut wasm = unread(&json!({"a": {}}), more);
    let request = Request {
        model: Some("gpt".to_owned()),
        prompt_tokens: 8,
        ..Request::default()
    };
    let stream = wasm.open(0, &request);
    let upstream = stream.upstream().expect("it passes");
    assert_eq!(destination(&stream), None);
    let sent = String::from_utf8(upstream.body).expect("text");
    assert!(sent.ends_with(r#""model":"base"}"#), "{sent}");
    assert_eq!(
        upstream.headers.get("content-length"),
        Some(sent.len().to_string().as_str())
    );
    let head = [("content-type", "application/json"), ("content-length", "16")];
    stream.respond(&mut wasm.host, 200, head, br#"{"model":"base"}"#);
    let answer = stream.downstream().expect("an answer");
    assert_eq!(answer.body, br#"{"model":"gpt"}"#);
    assert_eq!(answer.headers.get("content-length"), None);
    // A packed answer cannot be read, and passes as it is.
    let stream = wasm.open(0, &request);
    let head = [
        ("content-type", "application/json"),
        ("content-encoding", "gzip"),
        ("content-length", "16"),
    ];
    stream.respond(&mut wasm.host, 200, head, br#"{"model":"base"}"#);
    let answer = stream.downstream().expect("an answer");
    assert_eq!(
        (answer.body.as_slice(), answer.headers.get("content-length")),
        (&br#"{"model":"base"}"#[..], Some("16"))
    );
}
