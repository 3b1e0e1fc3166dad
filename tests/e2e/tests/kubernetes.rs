//! Gateways as their control planes configure them: what Istio and Envoy Gateway make of manifests, in a real Envoy.
//!
//! The manifests are read from the folders that people apply. What a control plane adds by itself (listener, cluster,
//! route) is written down in `istio.rs` and `envoy_gateway.rs` after its sources.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use berth_tests_e2e::client::Answer;
use berth_tests_e2e::envoy::{Envoy, free_port, root, scratch};
use berth_tests_e2e::rig::{POOL, Rig};
use berth_tests_simulator::server::{Fault, Simulator, SimulatorConfig};
use serde_json::{Value, json};

use crate::support::{CHAT, JSON, busy, chat, full, idle};

pub const WASM: &str = "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm";

/// What a control plane sends to its proxy.
pub struct Plane {
    /// Without an address.
    pub listener: Value,
    pub clusters: Vec<Value>,
}

/// Where a run is.
pub struct Place {
    pub folder: std::path::PathBuf,
    pub gateway: SocketAddr,
    pub admin: SocketAddr,
    pub pods: Vec<SocketAddr>,
    /// The module that manifests fetch, as a file.
    pub module: std::path::PathBuf,
}

impl Place {
    /// The module as a proxy loads it.
    pub fn code(&self) -> Value {
        json!({"local": {"filename": self.module}})
    }
}

/// Starts pods and a proxy with what `plane` makes for them, and waits until the pods are read.
pub async fn start(
    name: &str,
    pods: Vec<SimulatorConfig>,
    plane: impl FnOnce(&Place) -> Result<Plane>,
    environment: &[(&str, &str)],
) -> Result<Rig> {
    let names = pods.iter().map(|pod| pod.name.clone()).collect();
    let mut running = Vec::new();
    for pod in pods {
        running.push(Simulator::start(pod).await?);
    }
    let place = Place {
        folder: scratch(name)?,
        gateway: free_port()?,
        admin: free_port()?,
        pods: running.iter().map(Simulator::address).collect(),
        // It does what the one in `dist/` does, and traps on demand.
        module: root().join("target/test-trap/wasm32-wasip1/release/berth_filter.wasm"),
    };
    let Plane { mut listener, clusters } = plane(&place)?;
    listener["address"] = socket(place.gateway);
    let config = json!({
        "node": {"id": "gateway", "cluster": "gateway"},
        "admin": {"address": socket(place.admin)},
        "static_resources": {"listeners": [listener], "clusters": clusters},
    });
    let text = serde_json::to_string_pretty(&config)?;
    let envoy = Envoy::start(&place.folder, &text, place.gateway, place.admin, environment).await?;
    let rig = Rig {
        pods: running,
        names,
        envoy,
        folder: place.folder,
    };
    rig.settled().await?;
    Ok(rig)
}

pub fn socket(address: SocketAddr) -> Value {
    json!({"socket_address": {"address": address.ip().to_string(), "port_value": address.port()}})
}

/// A retry goes to another pod.
pub fn previous_hosts() -> Value {
    json!({
        "name": "envoy.retry_host_predicates.previous_hosts",
        "typed_config": {"@type": "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"},
    })
}

/// A cluster's options that end connections idle for this long.
pub fn http_options(idle_timeout: &Value) -> Value {
    json!({"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        "common_http_protocol_options": {"idle_timeout": idle_timeout},
        "explicit_http_config": {"http_protocol_options": {}},
    }})
}

/// The Berth config of a manifest, with what tests need to see: quick scrapes, decisions in a header, a known pool name.
pub fn watched(config: &Value) -> String {
    let mut config = config.clone();
    config["pools"][0]["name"] = json!(POOL);
    config["pools"][0]["scrape"]["interval"] = json!("200ms");
    config["pools"][0]["scrape"]["models_interval"] = json!("1s");
    config["status"] = json!({"decision_header": true});
    config.to_string()
}

/// A file of endpoints, as the control plane's endpoint discovery sends them.
pub fn endpoints(folder: &Path, cluster: &str, pods: &[SocketAddr]) -> Result<Value> {
    let endpoints: Vec<Value> = pods
        .iter()
        .map(|pod| json!({"endpoint": {"address": socket(*pod)}}))
        .collect();
    let text = json!({"resources": [{
        "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
        "cluster_name": cluster,
        "endpoints": [{"lb_endpoints": endpoints}],
    }]});
    from_file(folder, "endpoints", &text)
}

/// Writes resources where Envoy finds them, and says where.
pub fn from_file(folder: &Path, what: &str, text: &Value) -> Result<Value> {
    let count = fs::read_dir(folder)?.count();
    let file = folder.join(format!("{what}-{count}.json"));
    fs::write(&file, text.to_string())?;
    Ok(json!({"resource_api_version": "V3", "path_config_source": {"path": file}}))
}

/// Merges as protobuf does: objects by field, lists one behind the other, the rest replaced.
pub fn merge(to: &mut Value, from: &Value) {
    match (to, from) {
        (Value::Object(to), Value::Object(from)) => {
            for (name, value) in from {
                merge(to.entry(name).or_insert(Value::Null), value);
            }
        }
        (Value::Array(to), Value::Array(from)) => to.extend(from.iter().cloned()),
        (to, from) => *to = from.clone(),
    }
}

/// What a HTTPRoute's rules are to a proxy, in their order; `route` makes the action for a Service. Of several routes of
/// one name the last one applied stands.
pub fn routes(documents: &[Value], route: impl Fn(&str) -> Value) -> Result<Vec<Value>> {
    let found = documents.iter().rfind(|document| document["kind"] == "HTTPRoute");
    let rules = found
        .and_then(|found| found["spec"]["rules"].as_array())
        .context("no HTTPRoute")?;
    let mut out = Vec::new();
    for rule in rules {
        let service = rule["backendRefs"][0]["name"].as_str().context("no backend")?;
        let mut action = route(service);
        action["timeout"] = rule["timeouts"]["request"].clone();
        for found in rule["matches"].as_array().context("no matches")? {
            let (kind, path) = (found["path"]["type"].as_str(), &found["path"]["value"]);
            let mut matched = match kind {
                Some("Exact") => json!({"path": path}),
                Some("PathPrefix") => json!({"prefix": path}),
                _ => bail!("{found} is not translated here"),
            };
            for header in found["headers"].as_array().into_iter().flatten() {
                ensure!(header["type"] == "RegularExpression", "not translated here");
                let value = json!({"safe_regex": {"regex": header["value"]}});
                matched["headers"] = json!([{"name": header["name"], "string_match": value}]);
            }
            out.push(json!({"match": matched, "route": action}));
        }
    }
    Ok(out)
}

/// Sends a chat request with these headers.
pub async fn send(rig: &Rig, headers: &[(&str, &str)], body: &Value) -> Result<Answer> {
    let headers: Vec<(&str, &str)> = [JSON].into_iter().chain(headers.iter().copied()).collect();
    rig.client()
        .send("POST", CHAT, &headers, body.to_string().into_bytes())
        .await
}

/// What every README here promises, with pods a, b and c: requests go to the pod that Berth picks; a client does not
/// steer; unknown models are refused; the rest passes.
pub async fn keeps_its_promises(rig: &Rig) -> Result<()> {
    let client = rig.client();
    rig.pin(&[("a", idle()), ("b", busy()), ("c", full())]).await?;
    let answer = send(rig, &[], &chat("llama", "first", 50, 1)).await?;
    assert_eq!((answer.status, answer.pod()), (200, "a"), "{answer:?}");
    assert_eq!(
        (answer.decision("reading"), answer.decision("candidates")),
        ("fresh", "3")
    );
    assert_eq!(answer.header("endpoint-load-metrics"), "", "the client did not ask");
    let received = rig.received("a", CHAT)?.pop().context("nothing came")?;
    assert_eq!(received.header("x-gateway-model-name"), Some("llama"));
    assert_eq!(received.header("endpoint-load-metrics-format"), Some("TEXT"));

    // A client names the pod it wants, in every way that a proxy could understand.
    let wanted = rig.pod("c")?.address().to_string();
    for name in ["x-gateway-destination-endpoint", "x-envoy-original-dst-host"] {
        let answer = send(rig, &[(name, &wanted)], &chat("llama", name, 50, 1)).await?;
        assert_eq!((answer.status, answer.pod()), (200, "a"), "{name}");
        // Also where the request is none of Berth's business. Scrapes carry the second header themselves.
        let text = [("content-type", "text/plain"), (name, &wanted)];
        client.send("POST", CHAT, &text, b"hello".to_vec()).await?;
        let seen = rig.pods.iter().flat_map(Simulator::requests);
        let forwarded = seen
            .filter(|request| request.path == CHAT)
            .flat_map(|request| request.headers)
            .filter(|(key, value)| key == name && *value == wanted);
        assert_eq!(forwarded.count(), 0, "{name} came through");
    }

    let answer = send(rig, &[], &chat("nobody-has-this", "x", 1, 1)).await?;
    assert_eq!(
        (answer.status, answer.header("x-berth-reason")),
        (404, "model-unknown"),
        "{answer:?}"
    );
    let before = rig.count("passed.content-type").await?;
    let passed = client
        .send("POST", CHAT, &[("content-type", "text/plain")], b"hello".to_vec())
        .await?;
    assert!(!passed.pod().is_empty(), "it reached a pod: {passed:?}");
    assert_eq!(rig.count("passed.content-type").await?, before + 1);
    assert_eq!(client.get("/update_weights").await?.status, 404, "not in the route");
    assert_eq!(rig.stat("elsewhere").await?, 0, "every choice was applied");

    ensure!(rig.stat("scrape_failures").await? == 0, "scrapes failed");
    Ok(())
}

/// A VM that traps takes its requests with it, and the next request on its thread makes a new one.
pub async fn comes_back_after_a_trap(rig: &Rig) -> Result<()> {
    let client = rig.client();
    for _ in 0..4 {
        let answer = send(rig, &[("x-berth-test-trap", "1")], &chat("llama", "trap", 1, 1)).await?;
        assert_eq!(answer.status, 503, "{answer:?}");
    }
    rig.until("every worker to route again", async || {
        for _ in 0..8 {
            let answer = client.post(CHAT, &chat("llama", "after", 10, 1)).await?;
            if answer.status != 200 || answer.decision("pod").is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    })
    .await
}

/// Where the resources make room for them: large bodies are routed, and retries walk the list.
pub async fn takes_large_bodies_and_retries(rig: &Rig) -> Result<()> {
    // 3 MB: more than any buffer that a proxy has by itself.
    let mut large = chat("llama", "large", 50, 1);
    large["padding"] = json!("x".repeat(3 << 20));
    let answer = send(rig, &[], &large).await?;
    assert_eq!((answer.status, answer.pod()), (200, "a"), "{}", answer.text());
    let body = large.to_string();
    assert_eq!(
        rig.received("a", CHAT)?.pop().map(|last| last.body_bytes),
        Some(body.len())
    );

    // The first of the list fails: the second gets it.
    rig.pod("a")?
        .set_fault(Fault::InferenceStatus {
            status: 503,
            times: Some(1),
        })
        .await;
    let answer = send(rig, &[], &chat("llama", "retry", 50, 1)).await?;
    assert_eq!((answer.status, answer.pod()), (200, "b"), "{answer:?}");
    Ok(())
}
