//! Over real loopback HTTP. Engine time runs 1,000 times faster where an answer is awaited to its end.

use super::{Fault, POD_HEADER, Pinned, Simulator, SimulatorConfig};
use crate::engine::EngineConfig;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::net::SocketAddr;
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

struct Answer {
    status: u16,
    headers: HeaderMap,
    body: String,
}

impl Answer {
    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {}", self.body))
    }
}

async fn pod(speed: f64) -> Simulator {
    let config = SimulatorConfig {
        name: "p7".to_owned(),
        adapters: vec!["sql".to_owned()],
        engine: EngineConfig {
            max_loras: 2,
            max_cpu_loras: 4,
            max_model_len: 4096,
            ..EngineConfig::h100()
        },
        speed,
        ..SimulatorConfig::default()
    };
    Simulator::start(config).await.expect("a free port")
}

/// Sends a request; the answer's head is there, its body not yet. Aborting the handle closes the connection.
async fn open(address: SocketAddr, request: Request<Full<Bytes>>) -> (Response<Incoming>, AbortHandle) {
    let stream = TcpStream::connect(address).await.expect("it listens");
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.expect("HTTP");
    let connection = tokio::spawn(connection).abort_handle();
    (sender.send_request(request).await.expect("an answer"), connection)
}

fn get(path: &str) -> Request<Full<Bytes>> {
    Request::get(path)
        .header("host", "pod")
        .body(Full::default())
        .expect("a request")
}

fn post(path: &str, body: &Value) -> Request<Full<Bytes>> {
    let request = Request::post(path)
        .header("host", "pod")
        .header("content-type", "application/json");
    request.body(Full::from(body.to_string())).expect("a request")
}

async fn send(pod: &Simulator, request: Request<Full<Bytes>>) -> Answer {
    let (response, _connection) = open(pod.address(), request).await;
    let (head, body) = response.into_parts();
    let body = body.collect().await.expect("a whole body").to_bytes();
    Answer {
        status: head.status.as_u16(),
        headers: head.headers,
        body: String::from_utf8_lossy(&body).into_owned(),
    }
}

fn completion(model: &str, max_tokens: u32) -> Request<Full<Bytes>> {
    let body = json!({"model": model, "prompt": "Hello world", "max_tokens": max_tokens, "ignore_eos": true});
    post("/v1/completions", &body)
}

/// The value of the only sample that starts so.
#[track_caller]
fn sample(page: &str, start: &str) -> f64 {
    let mut lines = page.lines().filter(|line| line.starts_with(start));
    let line = lines.next().unwrap_or_else(|| panic!("no {start}"));
    assert_eq!(lines.next(), None);
    line.rsplit_once(' ')
        .and_then(|(_, value)| value.parse().ok())
        .expect("a number")
}

#[tokio::test]
async fn every_answer_names_the_pod() {
    let pod = pod(1000.0).await;
    for (request, status) in [
        (get("/health"), 200),
        (get("/metrics"), 200),
        (get("/metrics/"), 200),
        (get("/v1/models"), 200),
        (get("/nothing"), 404),
        (get("/v1/completions"), 405),
        (completion("nope", 1), 404),
        (completion("base", 1), 200),
        (post("/sim/fault", &json!({"fault": "unheard-of"})), 400),
    ] {
        let path = request.uri().to_string();
        let answer = send(&pod, request).await;
        assert_eq!(
            (answer.status, &answer.headers[POD_HEADER]),
            (status, &"p7".parse().expect("ASCII")),
            "{path}"
        );
    }
}

#[tokio::test]
async fn the_page_is_whole_and_shows_what_was_served() {
    let pod = pod(1000.0).await;
    assert_eq!(send(&pod, completion("sql", 5)).await.status, 200);
    let answer = send(&pod, get("/metrics")).await;
    assert_eq!(
        answer.headers["content-type"],
        "text/plain; version=1.0.0; charset=utf-8"
    );
    assert!(
        answer.body.len() > 40_000 && answer.body.ends_with('\n'),
        "{} bytes",
        answer.body.len()
    );
    assert_eq!(sample(&answer.body, "vllm:generation_tokens_total{"), 5.0);
    assert_eq!(sample(&answer.body, "vllm:num_requests_running{"), 0.0);
    assert_eq!(
        sample(
            &answer.body,
            r#"vllm:request_success_total{engine="0",finished_reason="length""#
        ),
        1.0
    );
    assert!(
        answer
            .body
            .contains(r#"{max_lora="2",running_lora_adapters="sql",waiting_lora_adapters="sql"}"#)
    );
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .expect("after 1970")
        .as_secs_f64();
    let idle = r#"vllm:lora_requests_info{max_lora="2",running_lora_adapters="","#;
    assert!(
        (sample(&answer.body, idle) - now).abs() < 60.0,
        "the log's clock is the wall's"
    );
}

#[tokio::test]
async fn an_unstreamed_answer_has_its_text_and_usage() {
    let pod = pod(1000.0).await;
    let answer = send(&pod, completion("base", 8)).await;
    assert_eq!(answer.headers["content-type"], "application/json");
    let body = answer.json();
    assert_eq!(body["model"], "base");
    assert_eq!(body["choices"][0]["finish_reason"], "length");
    assert_eq!(body["choices"][0]["text"].as_str().map(str::len), Some(32));
    assert_eq!(
        (&body["usage"]["prompt_tokens"], &body["usage"]["completion_tokens"]),
        (&json!(3), &json!(8))
    );
}

#[tokio::test]
async fn a_streamed_answer_comes_token_by_token_and_ends_with_done() {
    let pod = pod(1000.0).await;
    let body = json!({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "ignore_eos": true,
        "stream": true, "stream_options": {"include_usage": true}});
    let answer = send(&pod, post("/v1/chat/completions", &body)).await;
    assert_eq!(answer.headers["content-type"], "text/event-stream; charset=utf-8");
    let chunks: Vec<_> = answer.body.split_terminator("\n\n").collect();
    // Role, four tokens, usage, end.
    assert_eq!(chunks.len(), 7);
    assert_eq!(chunks[6], "data: [DONE]");
    let usage: Value = serde_json::from_str(&chunks[5]["data: ".len()..]).expect("JSON");
    assert_eq!(usage["usage"]["total_tokens"], 11);
    assert_eq!(usage["model"], "base", "without a model the base answers");
}

#[tokio::test]
async fn a_prompt_seen_before_is_taken_from_the_cache() {
    let pod = pod(1000.0).await;
    let prompt = "abcd".repeat(100);
    let ask = |model: &str| {
        post(
            "/v1/completions",
            &json!({"model": model, "prompt": prompt, "max_tokens": 1}),
        )
    };
    for (model, cached) in [("base", 0), ("base", 96), ("sql", 0), ("sql", 96)] {
        let usage = send(&pod, ask(model)).await.json();
        assert_eq!(
            usage["usage"]["prompt_tokens_details"]["cached_tokens"], cached,
            "{model}"
        );
    }
    let page = send(&pod, get("/metrics")).await.body;
    assert_eq!(sample(&page, "vllm:prefix_cache_hits_total{"), 192.0);
}

#[tokio::test]
async fn bad_requests_are_refused_in_the_engines_words() {
    let pod = pod(1000.0).await;
    let long = json!({"prompt": "abcd".repeat(4096), "max_tokens": 1, "stream": true});
    let plain = Request::post("/v1/completions")
        .header("content-type", "text/plain")
        .body(Full::from("{}"));
    for (request, status, part) in [
        (
            completion("nope", 1),
            404,
            "The model `nope` does not exist. Valid aliases: base.",
        ),
        (
            post("/v1/completions", &long),
            400,
            "maximum context length is 4096 tokens",
        ),
        (plain.expect("a request"), 400, "Only 'application/json' is allowed"),
    ] {
        let answer = send(&pod, request).await;
        assert_eq!(answer.status, status);
        assert!(answer.body.contains(part), "{}", answer.body);
    }
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_place() {
    let pod = pod(1.0).await;
    let body = json!({"prompt": "Hello", "max_tokens": 4000, "ignore_eos": true, "stream": true});
    let (mut response, connection) = open(pod.address(), post("/v1/completions", &body)).await;
    response.frame().await.expect("a first token").expect("no error");
    pod.wait_in_flight(1).await;
    assert_eq!(
        sample(&send(&pod, get("/metrics")).await.body, "vllm:num_requests_running{"),
        1.0
    );
    connection.abort();
    drop(response);
    pod.wait_in_flight(0).await;

    let waiting = tokio::spawn(open(pod.address(), completion("base", 4000)));
    pod.wait_in_flight(1).await;
    waiting.abort();
    pod.wait_in_flight(0).await;
    assert_eq!(pod.pod.state().engine.counters().cancelled, 2);
}

#[tokio::test]
async fn adapters_are_loaded_listed_served_and_unloaded() {
    let pod = pod(1000.0).await;
    let load = |name: &str, path: &str| post("/v1/load_lora_adapter", &json!({"lora_name": name, "lora_path": path}));
    let unload = |name: &str| post("/v1/unload_lora_adapter", &json!({"lora_name": name}));
    for (request, status, body) in [
        (
            load("fr", "/a/fr"),
            200,
            "Success: LoRA adapter 'fr' added successfully.",
        ),
        (load("fr", "/a/fr"), 400, "has already been loaded"),
        (load("base", "/a/fr"), 400, "conflicts with a served base model"),
        (load("de", "/a/missing"), 404, "No adapter found for /a/missing"),
        (load("", ""), 400, "must be provided"),
        (completion("fr", 1), 200, r#""model":"fr""#),
        (
            get("/v1/models"),
            200,
            r#""root":"/a/fr","parent":"base","max_model_len":null"#,
        ),
        (unload("fr"), 200, "Success: LoRA adapter 'fr' removed successfully."),
        (unload("fr"), 404, "The lora adapter 'fr' cannot be found."),
        (completion("fr", 1), 404, "does not exist"),
    ] {
        let answer = send(&pod, request).await;
        assert_eq!(answer.status, status, "{}", answer.body);
        assert!(answer.body.contains(body), "{}", answer.body);
    }
    let models = send(&pod, get("/v1/models")).await.json();
    let ids: Vec<_> = models["data"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|model| &model["id"])
        .collect();
    assert_eq!(ids, ["base", "sql"]);
}

#[tokio::test]
async fn without_lora_its_routes_do_not_exist() {
    let engine = EngineConfig {
        max_loras: 0,
        ..EngineConfig::h100()
    };
    let pod = Simulator::start(SimulatorConfig {
        engine,
        ..SimulatorConfig::default()
    })
    .await
    .expect("a free port");
    let answer = send(&pod, post("/v1/load_lora_adapter", &json!({}))).await;
    assert_eq!(
        (answer.status, answer.body.as_str()),
        (404, r#"{"detail":"Not Found"}"#)
    );
}

#[tokio::test]
async fn the_load_header_comes_when_asked_for_and_not_on_streams() {
    let pod = pod(1000.0).await;
    for (format, stream, expected) in [
        (
            "TEXT",
            false,
            Some("TEXT named_metrics.num_requests_waiting=0.0, named_metrics.kv_cache_usage_perc=0.0"),
        ),
        (
            "JSON",
            false,
            Some(r#"JSON {"named_metrics": {"num_requests_waiting": 0.0, "kv_cache_usage_perc": 0.0}}"#),
        ),
        ("XML", false, None),
        ("TEXT", true, None),
    ] {
        let mut request = post(
            "/v1/completions",
            &json!({"prompt": "x", "max_tokens": 1, "stream": stream}),
        );
        request
            .headers_mut()
            .insert("endpoint-load-metrics-format", format.parse().expect("ASCII"));
        let answer = send(&pod, request).await;
        assert_eq!(
            answer
                .headers
                .get("endpoint-load-metrics")
                .map(|value| value.to_str().expect("ASCII")),
            expected
        );
    }
}

#[tokio::test]
async fn metrics_faults() {
    let pod = pod(1000.0).await;
    let whole = send(&pod, get("/metrics")).await.body;
    pod.set_fault(Fault::MetricsFreeze).await;
    send(&pod, completion("base", 3)).await;
    assert_eq!(
        sample(&send(&pod, get("/metrics")).await.body, "vllm:generation_tokens_total{"),
        0.0
    );
    pod.set_fault(Fault::MetricsStatus { status: 401 }).await;
    assert_eq!(send(&pod, get("/metrics")).await.status, 401);
    pod.set_fault(Fault::MetricsGarbage).await;
    assert!(!send(&pod, get("/metrics")).await.body.contains("vllm"));
    pod.set_fault(Fault::MetricsCut { bytes: 1000 }).await;
    assert_eq!(send(&pod, get("/metrics")).await.body, whole[..1000]);
    pod.set_fault(Fault::MetricsDelay { ms: 30 }).await;
    let start = std::time::Instant::now();
    send(&pod, get("/metrics")).await;
    assert!(start.elapsed().as_millis() >= 30);
    pod.set_fault(Fault::MetricsHang).await;
    let hanging = tokio::time::timeout(std::time::Duration::from_millis(30), send(&pod, get("/metrics")));
    assert!(hanging.await.is_err(), "it never answers");
    pod.set_fault(Fault::Clear).await;
    assert_eq!(
        sample(&send(&pod, get("/metrics")).await.body, "vllm:generation_tokens_total{"),
        3.0
    );
}

#[tokio::test]
async fn inference_faults() {
    let pod = pod(1000.0).await;
    send(
        &pod,
        post(
            "/sim/fault",
            &json!({"fault": "inference_status", "status": 429, "times": 1}),
        ),
    )
    .await;
    assert_eq!(send(&pod, completion("base", 1)).await.status, 429);
    assert_eq!(send(&pod, completion("base", 1)).await.status, 200);
    pod.set_fault(Fault::InferenceStatus {
        status: 503,
        times: None,
    })
    .await;
    for _ in 0..3 {
        assert_eq!(send(&pod, completion("base", 1)).await.status, 503);
    }
    assert_eq!(send(&pod, get("/metrics")).await.status, 200);
    pod.set_fault(Fault::InferenceContext).await;
    let answer = send(&pod, completion("base", 1)).await;
    assert_eq!(answer.status, 500);
    assert!(answer.body.contains("Context size has been exceeded."));
    pod.set_fault(Fault::Clear).await;
    assert_eq!(send(&pod, completion("base", 1)).await.status, 200);
}

#[tokio::test]
async fn a_refusing_pod_drops_its_connections_and_comes_back_on_the_same_port() {
    let pod = pod(1.0).await;
    let body = json!({"prompt": "Hello", "max_tokens": 4000, "ignore_eos": true, "stream": true});
    let (response, _connection) = open(pod.address(), post("/v1/completions", &body)).await;
    pod.set_fault(Fault::RefuseConnections).await;
    assert!(TcpStream::connect(pod.address()).await.is_err());
    assert!(response.collect().await.is_err(), "the stream is cut");
    pod.wait_in_flight(0).await;
    pod.set_fault(Fault::Clear).await;
    assert_eq!(send(&pod, get("/health")).await.status, 200);
    // Steered over HTTP, it still says yes to the order that ends it.
    assert_eq!(
        send(&pod, post("/sim/fault", &json!({"fault": "refuse_connections"})))
            .await
            .status,
        200
    );
    assert!(TcpStream::connect(pod.address()).await.is_err());
}

#[tokio::test]
async fn a_stopped_pod_is_gone() {
    let pod = pod(1.0).await;
    let address = pod.address();
    pod.stop().await;
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn numbers_can_be_pinned() {
    let pod = pod(1000.0).await;
    let pinned = json!({"running": 3, "waiting": 12, "kv_usage": 0.98, "adapters_running": ["sql", "fr"]});
    assert_eq!(send(&pod, post("/sim/state", &pinned)).await.status, 200);
    let page = send(&pod, get("/metrics")).await.body;
    assert_eq!(sample(&page, "vllm:num_requests_waiting{"), 12.0);
    assert_eq!(sample(&page, "vllm:kv_cache_usage_perc{"), 0.98);
    assert!(page.contains(r#"running_lora_adapters="sql,fr""#));
    pod.pin(Pinned::default());
    assert_eq!(
        sample(&send(&pod, get("/metrics")).await.body, "vllm:num_requests_waiting{"),
        0.0
    );
    assert_eq!(send(&pod, post("/sim/state", &json!({"wating": 1}))).await.status, 400);
}

#[tokio::test]
async fn received_requests_are_remembered() {
    let pod = pod(1000.0).await;
    let mut request = completion("base", 1);
    request.headers_mut().insert("x-who", "me".parse().expect("ASCII"));
    send(&pod, request).await;
    send(&pod, get("/metrics?name=x")).await;
    let log = send(&pod, get("/sim/requests")).await.json();
    assert_eq!(log.as_array().map(Vec::len), Some(2), "steering is not in it");
    assert_eq!(
        (&log[0]["method"], &log[0]["path"]),
        (&json!("POST"), &json!("/v1/completions"))
    );
    let body = json!({"model": "base", "prompt": "Hello world", "max_tokens": 1, "ignore_eos": true}).to_string();
    assert_eq!(log[0]["body_bytes"], body.len());
    assert!(
        log[0]["headers"]
            .as_array()
            .expect("a list")
            .contains(&json!(["x-who", "me"]))
    );
    assert_eq!(log[1]["path"], "/metrics?name=x");
    assert_eq!(pod.requests().len(), 2);
}
