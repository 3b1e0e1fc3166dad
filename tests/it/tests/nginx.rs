//! What only an nginx can show: how it is recognised, bodies that it hides, shared memory that tears and goes, traps that
//! leave timers behind, and APISIX, where each worker is alone.

use std::time::Duration;

use berth_shared_state::names;
use berth_tests_host::{Dialect, Headers, Host, LogLevel, Plugin, PluginId, Settings, Stream, Thread};
use berth_tests_it::artifact;
use berth_tests_it::play::{Proxy, Seen};
use berth_tests_it::scenario::{Request, Scenario, Then};
use serde_json::{Value, json};

use crate::scenarios::wasm::{VM_ID, Wasm, head, plugin, process_of, table};

/// A proxy of this dialect in front of these pods, with these further keys of the scenario. Its pages are read, where it
/// reads any.
#[track_caller]
fn proxy(dialect: Dialect, pods: &Value, more: Value) -> Wasm {
    let mut file = json!({"story": "", "runs": ["wasm"], "pods": pods, "steps": []});
    if let (Value::Object(file), Value::Object(more)) = (&mut file, more) {
        file.extend(more);
    }
    let scenario: Scenario = serde_json::from_value(file).expect("a scenario");
    let mut wasm = Wasm::under(&scenario, dialect).expect("it starts");
    wasm.wait(1500);
    wasm
}

fn tokens(number: u64, prompt: usize) -> Request {
    Request {
        prompt_tokens: prompt,
        number,
        ..Request::default()
    }
}

fn first(seen: &Seen) -> &str {
    seen.list.first().map_or("", String::as_str)
}

fn logged(host: &Host, level: LogLevel, text: &str) -> usize {
    let lines = host.log();
    lines
        .iter()
        .filter(|line| line.level == level && line.text.contains(text))
        .count()
}

const IDLE_AND_BUSY: &str = r#"{"a": {}, "b": {"running": 9, "kv": 0.5}}"#;

fn idle_and_busy() -> Value {
    serde_json::from_str(IDLE_AND_BUSY).expect("pods")
}

/// A filter whose config names no host, and what it logged when it was configured.
fn unnamed(settings: Settings) -> (Host, PluginId) {
    let mut host = process_of(settings);
    let document = r#"{"pools": [{"name": "pods", "discovery": {"static": ["10.0.0.1:8000", "10.0.0.2:8000"]}}]}"#;
    let plugin = Plugin {
        variables: vec![names::VARIABLE_TARGET.to_owned()],
        ..plugin("filter", names::ROOT_FILTER, document)
    };
    let id = host.add_filter(&artifact("berth_filter.wasm"), plugin);
    (host, id.expect("it starts"))
}

#[test]
fn each_proxy_is_recognised_by_what_it_answers() {
    let restricted = Settings {
        properties: false,
        ..Settings::of(Dialect::Envoy)
    };
    for (settings, says) in [
        (Settings::of(Dialect::Envoy), None),
        (restricted, None),
        (Settings::of(Dialect::WasmX), Some("Nginx")),
        (Settings::of(Dialect::Apisix), Some("Apisix")),
    ] {
        let dialect = settings.dialect;
        let (mut host, id) = unnamed(settings);
        // APISIX configures by a request.
        let stream = host.open(id, 0);
        stream.request(&mut host, head(&[("content-length", "2")]), b"{}");
        let told = logged(&host, LogLevel::Warn, "this proxy speaks like the host");
        assert_eq!(told > 0, says.is_some(), "{dialect:?}");
        if let Some(says) = says {
            assert_eq!(logged(&host, LogLevel::Warn, says), told, "{dialect:?}");
        }
        let sent = stream.upstream().expect("it went on");
        let routed = sent.headers.get(names::DESTINATION_ENDPOINT).is_some();
        assert_eq!(
            routed,
            dialect == Dialect::Apisix,
            "{dialect:?}: only APISIX needs no poller"
        );
    }
}

#[test]
fn a_body_that_nginx_put_into_a_file_is_counted_explained_and_routed_by_load() {
    let mut wasm = proxy(Dialect::WasmX, &idle_and_busy(), json!({}));
    let long = vec![b' '; (8 << 20) + 1];
    for _ in 0..2 {
        let stream = wasm.host.open(wasm.filter, 0);
        let head = head(&[("content-length", &long.len().to_string())]);
        stream.request(&mut wasm.host, head, &long);
        assert_eq!(stream.variable(names::VARIABLE_TARGET), Some(b"10.0.0.1:8000".to_vec()));
        assert_eq!(stream.upstream().expect("it went on").body.len(), long.len());
    }
    assert_eq!(wasm.host.counter("berth.body_unreadable"), Some(2));
    assert_eq!(
        logged(&wasm.host, LogLevel::Error, "client_body_buffer_size"),
        1,
        "said once"
    );
}

#[test]
fn without_the_variable_the_log_says_what_to_write() {
    let mut wasm = proxy(Dialect::WasmX, &idle_and_busy(), json!({}));
    let document = r#"{"host": "nginx", "pools": [{"name": "pods", "discovery": {"static": ["10.0.0.1:8000", "10.0.0.2:8000"]}}]}"#;
    let bare = plugin("filter", names::ROOT_FILTER, document);
    let bare = wasm
        .host
        .add_filter(&artifact("berth_filter.wasm"), bare)
        .expect("it starts");
    let stream = wasm.host.open(bare, 0);
    stream.request(&mut wasm.host, head(&[("content-length", "2")]), b"{}");
    let sent = stream.upstream().expect("it went on");
    assert!(
        sent.headers.get(names::DESTINATION_ENDPOINT).is_some(),
        "the header is there nevertheless"
    );
    assert_eq!(logged(&wasm.host, LogLevel::Error, "set $berth_target"), 1);
}

#[test]
fn a_name_is_rewritten_and_comes_back_through_nginx() {
    let rewrites = json!([{"from": "short", "to": [{"model": "a-much-longer-name"}]}]);
    let more = json!({"top": {"rewrites": rewrites}, "pool": {"models": ["a-much-longer-name"]}});
    let mut wasm = proxy(Dialect::WasmX, &json!({"a": {"base": "a-much-longer-name"}}), more);
    let stream = wasm.host.open(wasm.filter, 0);
    let body = br#"{"model": "short", "messages": [{"role": "user", "content": "hello"}], "n": 1}"#;
    let head = head(&[("content-length", &body.len().to_string())]);
    stream.request(&mut wasm.host, head, body);
    let sent = stream.upstream().expect("it went on");
    let expected = br#"{"model": "a-much-longer-name", "messages": [{"role": "user", "content": "hello"}], "n": 1}"#;
    assert_eq!(String::from_utf8_lossy(&sent.body), String::from_utf8_lossy(expected));
    let length = expected.len().to_string();
    assert_eq!(sent.headers.get("content-length"), Some(length.as_str()));
    answers(&mut wasm.host, &stream, "200");
    stream.response_body(&mut wasm.host, br#"{"model": "a-much-long"#, false);
    stream.response_body(&mut wasm.host, br#"er-name", "choices": []}"#, true);
    let told = stream.downstream().expect("an answer").body;
    assert_eq!(String::from_utf8_lossy(&told), r#"{"model": "short", "choices": []}"#);
}

fn answers(host: &mut Host, stream: &Stream, status: &str) {
    let headers = [(":status", status), ("content-type", "application/json")];
    stream.response_headers(host, Headers::from(headers), false);
}

#[test]
fn a_pod_that_nginx_could_not_reach_is_avoided() {
    let mut wasm = proxy(Dialect::WasmX, &idle_and_busy(), json!({}));
    wasm.set("a", &json!({"serve": 0})).expect("a pod");
    let seen = wasm.send(1, 0, &tokens(1, 100));
    assert_eq!((first(&seen), seen.status), ("a", Some(502)));
    let next = wasm.send(2, 0, &tokens(2, 100));
    assert_eq!(first(&next), "b");
    // What a pod itself answers with 502 is no worse than any other 5xx: once may be the request's fault.
    wasm.go_on(2, Then::Done);
    let mut wasm = proxy(Dialect::WasmX, &idle_and_busy(), json!({}));
    wasm.set("a", &json!({"serve": 502})).expect("a pod");
    wasm.send(1, 0, &tokens(1, 100));
    wasm.go_on(1, Then::Done);
    let again = wasm.send(2, 0, &tokens(2, 100));
    assert_eq!(first(&again), "a");
}

/// In Kong the filter's own upstream is Kong's second hop.
#[test]
fn the_second_hop_of_kong_is_not_taken_for_a_pod() {
    for host in ["kong", "auto"] {
        second_hop(host);
    }
}

/// Kong that is not named looks like nginx, and lacks its variable.
#[track_caller]
fn second_hop(host: &str) {
    let mut wasm = proxy(Dialect::WasmX, &idle_and_busy(), json!({"top": {"host": host}}));
    for number in 0..3 {
        let stream = wasm.open(0, &tokens(number, 100));
        let sent = stream.upstream().expect("it went on");
        let list = sent.headers.get(names::DESTINATION_ENDPOINT).expect("a choice");
        assert!(list.starts_with("10.0.0.1:8000,"), "request {number} goes to {list}");
        stream.set_variable("upstream_addr", "127.0.0.1:8002");
        stream.set_variable("upstream_header_time", "0.010");
        answers(&mut wasm.host, &stream, "200");
        stream.response_body(&mut wasm.host, b"{}", true);
    }
    assert_eq!(wasm.host.counter("berth.pool.pods.elsewhere"), Some(0), "{host}");
    if host == "kong" {
        assert_eq!(
            logged(&wasm.host, LogLevel::Error, "$berth_target"),
            0,
            "Kong needs no variable"
        );
        wasm.sound().expect("no complaint");
    }
}

/// A reload of nginx begins with empty zones, and a small zone forgets by itself.
#[test]
fn shared_memory_that_is_lost_is_written_anew() {
    let mut wasm = proxy(Dialect::WasmX, &idle_and_busy(), json!({}));
    assert_eq!(first(&wasm.send(1, 0, &tokens(1, 100))), "a");
    wasm.go_on(1, Then::Done);
    wasm.host.lose_shared_data(VM_ID);
    let meanwhile = wasm.send(2, 1, &tokens(2, 100));
    assert_ne!(meanwhile.status, Some(503), "no client notices");
    wasm.set("a", &json!({"running": 30, "waiting": 30, "kv": 0.9}))
        .expect("a pod");
    wasm.wait(3000);
    assert_eq!(first(&wasm.send(3, 0, &tokens(3, 100))), "b", "pods are read on");
    wasm.sound().expect("no complaint");
}

#[test]
fn torn_reads_lose_nothing_but_freshness() {
    let mut wasm = proxy(Dialect::WasmX, &idle_and_busy(), json!({}));
    wasm.host.tear_reads(3);
    for id in 0..60 {
        let seen = wasm.send(id, (id % 2) as usize, &tokens(id, 100));
        assert_eq!(first(&seen), "a", "request {id}");
        wasm.go_on(id, Then::Done);
        wasm.wait(100);
    }
    let pollers = wasm.host.counter("berth.pool.pods.pollers_begun");
    assert_eq!(pollers, Some(1), "a torn lease is nobody's gain");
    wasm.sound().expect("no complaint");
}

/// The new instance's root is configured while the old one's timer still fires, and answers to calls of the old one come.
#[test]
fn an_instance_that_trapped_leaves_a_timer_and_calls_and_both_do_no_harm() {
    let mut wasm = proxy(Dialect::WasmX, &idle_and_busy(), json!({}));
    for _ in 0..3 {
        for worker in 0..2 {
            wasm.host.kill(wasm.filter, Thread::Worker(worker));
        }
        wasm.wait(500);
    }
    wasm.wait(30_000);
    let before = wasm.host.callouts().len();
    wasm.wait(10_000);
    let calls = wasm.host.callouts().len() - before;
    // Two pods, a scrape each second; models pages now and then.
    assert!(
        (20..=24).contains(&calls),
        "{calls} calls in ten seconds, with eight timers"
    );
    assert_eq!(first(&wasm.send(1, 0, &tokens(1, 100))), "a");
    wasm.sound().expect("no complaint");
}

#[test]
fn one_worker_polls_for_all_by_address() {
    let mut wasm = proxy(Dialect::WasmX, &idle_and_busy(), json!({}));
    wasm.wait(5000);
    let calls = wasm.host.callouts();
    let threads: std::collections::BTreeSet<Thread> = calls.iter().map(|call| call.thread).collect();
    assert_eq!(threads.len(), 1, "{threads:?}");
    assert!(
        calls
            .iter()
            .all(|call| ["10.0.0.1:8000", "10.0.0.2:8000"].contains(&call.cluster.as_str()))
    );
    assert_eq!(table(&wasm.host, &wasm.keys()).pods.len(), 2);
}

/// Three pods, and what a request with this model and prompt is sent to.
fn apisix(more: Value) -> Wasm {
    proxy(Dialect::Apisix, &json!({"a": {}, "b": {}, "c": {}}), more)
}

#[test]
fn apisix_reads_no_pod_and_calls_nobody() {
    let mut wasm = apisix(json!({}));
    let seen = wasm.send(1, 0, &tokens(1, 100));
    assert!(seen.served_by.is_some(), "{seen:?}");
    wasm.wait(5000);
    assert_eq!(wasm.host.callouts().len(), 0);
    assert_eq!(wasm.host.shared_data_keys(VM_ID), [""; 0]);
    wasm.sound().expect("no complaint");
}

/// Workers see nothing of each other, so they agree by hashing.
#[test]
fn workers_of_apisix_agree_where_an_adapter_lives() {
    let names: Vec<String> = (0..8).map(|number| format!("adapter-{number}")).collect();
    let known: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
    let mut wasm = apisix(json!({"pool": {"adapters": {"known": known}}}));
    let mut homes = std::collections::BTreeSet::new();
    for adapter in &names {
        let mut pods = Vec::new();
        for number in 0..6 {
            let request = Request {
                model: Some(adapter.clone()),
                ..tokens(number, 100)
            };
            let seen = wasm.send(number, (number % 2) as usize, &request);
            pods.push(first(&seen).to_owned());
            wasm.go_on(number, Then::Done);
            wasm.wait(10);
        }
        pods.dedup();
        assert_eq!(pods.len(), 1, "{adapter} went to {pods:?}");
        homes.extend(pods);
    }
    // By chance all eight would be at one pod once in two thousand times; a hash is the same each time.
    assert!(homes.len() > 1, "all adapters at {homes:?}");
}

#[test]
fn workers_of_apisix_agree_where_a_session_lives() {
    let more = json!({"top": {"trust": {"headers": ["x-session-id"]}},
        "pool": {"models": ["base"], "routing": {"affinity": {"by": "session"}}}});
    let mut wasm = apisix(more);
    for session in ["one", "two", "three", "four"] {
        let mut pods = Vec::new();
        for number in 0..6 {
            let request = Request {
                model: Some("base".to_owned()),
                headers: [("x-session-id".to_owned(), Some(session.to_owned()))].into(),
                ..tokens(number, 2000)
            };
            let seen = wasm.send(number, (number % 2) as usize, &request);
            pods.push(first(&seen).to_owned());
            wasm.go_on(number, Then::Done);
            wasm.wait(50);
        }
        pods.dedup();
        assert_eq!(pods.len(), 1, "{session} went to {pods:?}");
    }
}

#[test]
fn prompts_that_begin_alike_stay_together_in_apisix() {
    let mut wasm = apisix(json!({}));
    let mut pods = Vec::new();
    for number in 0..8 {
        let request = Request {
            prefix: Some("sama".to_owned()),
            prefix_tokens: 4000,
            ..tokens(number, 4100)
        };
        // By turns: from the second prompt on a worker knows what it sent itself.
        let seen = wasm.send(number, (number % 2) as usize, &request);
        pods.push(first(&seen).to_owned());
        wasm.go_on(number, Then::Done);
        wasm.wait(50);
    }
    for worker in 0..2 {
        let mut own: Vec<&String> = pods.iter().skip(worker).step_by(2).collect();
        own.dedup();
        assert_eq!(own.len(), 1, "worker {worker} sent them to {pods:?}");
    }
}

/// Whether its runtime has WASI's clock nobody has seen.
#[test]
fn without_any_clock_requests_are_routed_by_what_is_in_flight() {
    let mut host = process_of(Settings {
        wasi_clock: false,
        ..Settings::of(Dialect::Apisix)
    });
    let document = r#"{"host": "apisix", "pools": [{"name": "pods", "discovery": {"static":
        ["10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"]}}]}"#;
    let plugin = plugin("filter", names::ROOT_FILTER, document);
    let id = host
        .add_filter(&artifact("berth_filter.wasm"), plugin)
        .expect("it starts");
    for _ in 0..3 {
        let mut pods = std::collections::BTreeSet::new();
        let mut open = Vec::new();
        for number in 0..3 {
            let body = String::from_utf8(tokens(number, 1000).bytes()).expect("text");
            let stream = host.open(id, 0);
            stream.request(
                &mut host,
                head(&[("content-length", &body.len().to_string())]),
                body.as_bytes(),
            );
            let sent = stream.upstream().expect("it went on");
            let list = sent
                .headers
                .get(names::DESTINATION_ENDPOINT)
                .expect("a choice")
                .to_owned();
            pods.insert(list.split(',').next().unwrap_or_default().to_owned());
            open.push(stream);
        }
        assert_eq!(pods.len(), 3, "three in flight, one at each: {pods:?}");
        for stream in open {
            stream.respond(&mut host, 200, [("content-type", "application/json")], b"{}");
        }
        host.advance(Duration::from_secs(30));
    }
}

#[test]
fn a_report_in_an_answer_is_what_apisix_knows_of_a_pod() {
    let mut wasm = apisix(json!({}));
    let report = |wasm: &mut Wasm, number: u64, waiting: u32| -> String {
        let stream = wasm.open(0, &tokens(number, 100));
        let sent = stream.upstream().expect("it went on");
        assert_eq!(sent.headers.get(names::LOAD_FORMAT), Some("TEXT"));
        let list = sent.headers.get(names::DESTINATION_ENDPOINT).expect("a choice");
        let pod = list.split(',').next().expect("a pod").to_owned();
        stream.set_variable("upstream_addr", pod.clone());
        stream.set_variable("upstream_header_time", "0.010");
        let load = format!("TEXT named_metrics.kv_cache_usage_perc=0.9, named_metrics.num_requests_waiting={waiting}");
        let headers = [
            (":status", "200"),
            ("content-type", "application/json"),
            (names::LOAD_REPORT, load.as_str()),
        ];
        stream.response_headers(&mut wasm.host, Headers::from(headers), false);
        stream.response_body(&mut wasm.host, b"{}", true);
        let told = stream.downstream().expect("an answer");
        assert_eq!(told.headers.get(names::LOAD_REPORT), None, "no client sees it");
        wasm.wait(10);
        wasm.world.borrow().name(&pod)
    };
    let full = report(&mut wasm, 1, 200);
    for number in 2..12 {
        let seen = wasm.send(number, 0, &tokens(number, 100));
        assert_ne!(first(&seen), full, "request {number}");
        wasm.go_on(number, Then::Done);
        wasm.wait(10);
    }
    wasm.wait(60_000);
    let mut pods = std::collections::BTreeSet::new();
    for number in 20..50 {
        let seen = wasm.send(number, 0, &tokens(number, 100));
        pods.insert(first(&seen).to_owned());
        wasm.go_on(number, Then::Done);
        wasm.wait(10);
    }
    assert!(pods.contains(&full), "an old report says nothing: {pods:?}");
}
