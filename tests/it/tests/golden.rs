//! What the reference picker (Gateway API Inference Extension, llm-d router) does with a request, row by row, and what Berth
//! does. Each test bears the number of its row.
//!
//! The rows of its scorers are in tests/lab, those about hashes (12 to 16) in `filter/routing/src/prefix/tests/`, 29 and
//! 31 in `decision/tests/names.rs`, 34 and 44 in `request/tests/`. Not here, since Berth has no such part: selectors of
//! metrics (41), usage in answers (39), a picker by least recent use (25).

use berth_filter_routing::replay::{Options, Replay};
use berth_filter_routing::restore::{Format, Restorer};
use berth_shared_state::config::Config;
use berth_shared_state::metrics::{self, Hints};
use berth_shared_state::names;
use berth_shared_state::sample::Status;
use berth_shared_state::units::UnixMillis;
use serde_json::{Value, json};

const PODS: [&str; 2] = ["10.0.0.1:8000", "10.0.0.2:8000"];

/// What becomes of a request, in front of these pods.
fn decided(pods: &[&str], request: Value) -> Value {
    let document = json!({"pools": [{"name": "p", "discovery": {"static": PODS}}],
                          "trust": {"headers": [names::ENDPOINT_SUBSET]}});
    let config = Config::parse(document.to_string().as_bytes()).expect("a valid config");
    let mut replay = Replay::new(config, Options::default());
    let pods: Vec<Value> = pods.iter().map(|pod| json!({"name": pod, "address": pod})).collect();
    replay.feed(&json!({"t": 0, "pods": pods}).to_string());
    let mut request = request;
    request["id"] = json!("r");
    let mut answers = replay.feed(&json!({"t": 1, "request": request}).to_string());
    let line = answers.out.pop().unwrap_or_else(|| panic!("{:?}", answers.notes));
    serde_json::from_str(&line).expect("JSON")
}

/// A completion with these headers besides.
fn completion(headers: Value, body: &str) -> Value {
    json!({"path": "/v1/completions", "headers": headers, "body": body})
}

#[test]
fn row_28_subsets() {
    #[track_caller]
    fn check(hint: Option<&str>, expected: &[&str]) {
        let headers: Vec<_> = hint.iter().map(|hint| (names::ENDPOINT_SUBSET, hint)).collect();
        let decision = decided(&PODS, completion(json!(headers), r#"{"prompt": "x"}"#));
        if expected.is_empty() {
            assert_eq!(
                (&decision["action"], &decision["status"]),
                (&json!("reply"), &json!(503))
            );
            assert_eq!(decision["why"]["reason"], "subset-no-match");
            return;
        }
        let mut endpoints: Vec<&str> = decision["endpoints"]
            .as_array()
            .unwrap_or_else(|| panic!("{decision}"))
            .iter()
            .filter_map(Value::as_str)
            .collect();
        endpoints.sort_unstable();
        assert_eq!(endpoints, expected, "{hint:?}");
    }
    check(None, &PODS);
    check(Some(PODS[0]), &PODS[..1]);
    check(Some("10.9.9.9:8000"), &[]);
    check(Some(""), &[]);
    check(Some("10.0.0.1:8000,12345"), &PODS[..1]);
    // The peer takes an address without its port for all of its ports; a hint names pods exactly here.
    check(Some("10.0.0.1"), &[]);
}

/// The peer answers 400. The engine knows better what its version takes, and says so in its own words: a body that
/// does not tell the model is for the pool's base.
#[test]
fn row_33_bodies_that_the_engine_refuses() {
    for (path, body) in [
        ("/v1/completions", "no JSON"),
        ("/v1/completions", r#"{"prompt": "x"}"#),
        ("/v1/completions", r#"{"model": null}"#),
        ("/v1/chat/completions", r#"{"messages": []}"#),
        ("/v1/embeddings", r#"{"input": null}"#),
    ] {
        let decision = decided(&PODS, json!({"path": path, "body": body}));
        assert_eq!(decision["action"], "route", "{path} {body}");
    }
}

/// The peer picks a pod by chance, or answers 500 where there is none. Here the proxy's balancer takes it.
#[test]
fn row_35_no_body() {
    for pods in [&PODS[..], &[]] {
        let get = json!({"path": "/health", "headers": [[":method", "GET"]]});
        assert_eq!(decided(pods, get)["action"], "pass");
        let post = json!({"path": "/v1/completions"});
        assert_eq!(decided(pods, post)["why"]["reason"], "no-body");
    }
    let decision = decided(&[], completion(json!([]), r#"{"prompt": "x"}"#));
    assert_eq!(
        (&decision["status"], &decision["why"]["reason"]),
        (&json!(503), &json!("no-ready-pod"))
    );
}

/// That they really are removed is checked on every request of every scenario.
#[test]
fn row_36_what_a_client_may_not_send() {
    for name in [
        "x-gateway-destination-endpoint",
        "x-gateway-inference-objective",
        "x-llm-d-inference-objective",
    ] {
        assert!(names::STRIPPED.contains(&name), "{name}");
    }
    for name in ["x-user-data", "content-length", "authorization"] {
        assert!(!names::STRIPPED.contains(&name), "{name}");
    }
}

#[test]
fn row_38_the_clients_name_in_answers() {
    #[track_caller]
    fn check(format: Format, target: &str, asked: &str, answer: &str, expected: &str) {
        let mut restorer = Restorer::new(format, target, asked);
        let mut restored = restorer.feed(answer.as_bytes());
        restored.extend(restorer.finish());
        assert_eq!(String::from_utf8(restored).expect("text"), expected);
    }
    let (pod, client) = ("vllm-backend-01", "llama");
    let tight = r#"{"id":"1","model":"vllm-backend-01","choices":[]}"#;
    check(
        Format::Json,
        pod,
        client,
        tight,
        r#"{"id":"1","model":"llama","choices":[]}"#,
    );
    check(
        Format::Json,
        pod,
        client,
        r#"{"model": "vllm-backend-01"}"#,
        r#"{"model": "llama"}"#,
    );
    let line = "data: {\"model\":\"vllm-backend-01\",\"choices\":[]}\n\ndata: [DONE]\n\n";
    check(Format::Events, pod, client, line, &line.replace(pod, client));
    check(Format::Events, pod, client, "data: [DONE]\n\n", "data: [DONE]\n\n");
    for same in [r#"{"model":"other"}"#, r#"{"text":"\"model\":\"vllm-backend-01\""}"#] {
        check(Format::Json, pod, client, same, same);
    }
    check(Format::Json, pod, pod, tight, tight);
}

/// The peer reports an error and moves the time on; here what is not there is unknown, and the rest counts.
#[test]
fn row_43_a_page_with_the_queue_alone() {
    let hints = Hints {
        engine: None,
        known_adapters: &[],
        now: UnixMillis(0),
    };
    let sample = metrics::read(
        b"# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting 3\n",
        hints,
    );
    assert_eq!((sample.waiting, sample.running, sample.kv_mean), (Some(3), None, None));
    assert_eq!(sample.status, Status::Partial);
    assert!(sample.reason.is_some());
}
