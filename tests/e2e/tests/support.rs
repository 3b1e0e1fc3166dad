//! What the themes share: pods, requests, and waiting for what pods have seen.

use anyhow::{Result, ensure};
use berth_tests_e2e::client::{Answer, Client};
use berth_tests_e2e::rig::{Rig, Setup};
use berth_tests_simulator::server::{Pinned, SimulatorConfig};
use berth_tests_simulator::{EngineConfig, random};
use serde_json::{Value, json};

pub const CHAT: &str = "/v1/chat/completions";
pub const JSON: (&str, &str) = ("content-type", "application/json");

/// The endpoint as it is rendered for `--dns 127.0.0.1:1`.
pub const ENDPOINT: &str =
    "              - endpoint: { address: { socket_address: { address: \"127.0.0.1\", port_value: 1 } } }\n";
/// The endpoints of pods `a`, `b` and `c` in its place.
pub const ENDPOINTS: &str =
    "              - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: @port:a@ } } }
              - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: @port:b@ } } }
              - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: @port:c@ } } }
";

/// A fast pod with the base model `llama` and these adapters. 4,000 blocks of 16 tokens.
pub fn pod(name: &str, adapters: &[&str]) -> SimulatorConfig {
    SimulatorConfig {
        name: name.to_owned(),
        model: "llama".to_owned(),
        adapters: adapters.iter().map(|adapter| (*adapter).to_owned()).collect(),
        engine: EngineConfig {
            num_gpu_blocks: 4_000,
            ..EngineConfig::h100()
        },
        ..SimulatorConfig::default()
    }
}

/// Pods `a`, `b`, ... without adapters.
pub fn pods(count: usize) -> Vec<SimulatorConfig> {
    ["a", "b", "c", "d"]
        .into_iter()
        .take(count)
        .map(|name| pod(name, &[]))
        .collect()
}

/// A chat request of about `tokens` prompt tokens (the usual 4 bytes each) that gives exactly `output` tokens.
/// `name` begins the prompt: equal beginnings would be cached.
pub fn chat(model: &str, name: &str, tokens: usize, output: u32) -> Value {
    let content = format!("{name} {}", "word".repeat(tokens));
    json!({"messages": [{"role": "user", "content": content}], "max_tokens": output, "ignore_eos": true, "model": model})
}

/// The same as a stream.
pub fn streamed(model: &str, name: &str, tokens: usize, output: u32) -> Value {
    let mut body = chat(model, name, tokens, output);
    body["stream"] = json!(true);
    body
}

/// A request that Berth routed and a pod answered with 200.
pub async fn routed(client: &Client, body: &Value) -> Result<Answer> {
    let answer = client.post(CHAT, body).await?;
    ensure!(answer.status == 200, "status {}: {}", answer.status, answer.text());
    ensure!(
        !answer.decision("pod").is_empty(),
        "not routed by Berth: {:?}",
        answer.headers
    );
    Ok(answer)
}

/// The pod that answers.
pub async fn lands(client: &Client, body: &Value) -> Result<String> {
    Ok(routed(client, body).await?.pod().to_owned())
}

/// A pod with nothing to do.
pub fn idle() -> Pinned {
    Pinned {
        running: Some(0.0),
        waiting: Some(0.0),
        kv_usage: Some(0.0),
        ..Pinned::default()
    }
}

/// A pod with some work: clearly dearer than an idle one, clearly cheaper than a full one.
pub fn busy() -> Pinned {
    Pinned {
        running: Some(10.0),
        waiting: Some(0.0),
        kv_usage: Some(0.3),
        ..Pinned::default()
    }
}

/// A pod that preempts and queues.
pub fn full() -> Pinned {
    Pinned {
        running: Some(30.0),
        waiting: Some(40.0),
        kv_usage: Some(1.0),
        ..Pinned::default()
    }
}

/// A rig of idle pods whose gauges are read once: what decisions see from then on is the ledger.
pub async fn once_read(name: &str, count: usize) -> Result<Rig> {
    let rig = Setup::new(name, pods(count))
        .pool(json!({"scrape": {"interval": "30s", "models_interval": "10m"}}))
        .unread()
        .start()
        .await?;
    rig.until("the first page of every pod, in a table", async || {
        Ok(rig.stat("scrapes").await? >= count as u64 && rig.stat("models_reads").await? >= count as u64)
    })
    .await?;
    let publishes = rig.stat("publishes").await?;
    rig.until("a table with them", async || {
        Ok(rig.stat("publishes").await? > publishes)
    })
    .await?;
    Ok(rig)
}

/// How many requests for a path all pods have received.
pub fn arrived(rig: &Rig, path: &str) -> usize {
    let count = |name: &String| rig.received(name, path).map_or(0, |all| all.len());
    rig.names.iter().map(count).sum()
}

/// What the simulator's log shows for a body.
pub fn hash(body: &[u8]) -> u64 {
    random::mix_bytes(0, body)
}

/// Waits until a cheap request meets no own work at any pod: the ledger is empty.
/// Only with gauges that show no load.
pub async fn ledger_empties(rig: &Rig) -> Result<()> {
    let client = rig.client();
    rig.until("an empty ledger", async || {
        let answer = routed(&client, &chat("llama", "probe", 1, 1)).await?;
        let header = answer.header("x-berth-decision").to_owned();
        Ok(!header.contains(";harm=") && !header.contains(";queue=") && !header.contains(";memory="))
    })
    .await
}

/// Waits until this is in Envoy's log.
pub async fn logged(rig: &Rig, text: &str) -> Result<()> {
    rig.until(text, async || Ok(rig.envoy.log_text().contains(text))).await
}

/// Waits until the poller knows so many pods.
pub async fn knows(rig: &Rig, count: u64) -> Result<()> {
    rig.until(&format!("{count} pods"), async || Ok(rig.stat("pods").await? == count))
        .await
}

/// Waits until a cheap request lands here: readings and readiness have arrived.
pub async fn goes_to(rig: &Rig, pod: &str) -> Result<()> {
    let client = rig.client();
    rig.until(&format!("a request at {pod}"), async || {
        let answer = client.post(CHAT, &chat("llama", "probe", 50, 1)).await?;
        Ok(answer.status == 200 && answer.pod() == pod)
    })
    .await
}
