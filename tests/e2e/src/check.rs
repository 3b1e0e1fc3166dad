//! `scripts/run --check`: requests through the whole gateway, each with what happened in one line.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::{Result, bail, ensure};
use berth_tests_simulator::server::{Pinned, Simulator};
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::client::{Answer, Client};
use crate::demo::{first_model, pod};
use crate::envoy::{Envoy, render, scratch};
use crate::rig::{Rig, config};

/// Prints one line per step and counts what failed.
#[derive(Default)]
struct Report {
    passed: usize,
    failed: usize,
}

impl Report {
    async fn step(&mut self, what: &str, step: impl Future<Output = Result<String>>) {
        match step.await {
            Ok(seen) => {
                self.passed += 1;
                println!("  ok    {what:<58} {seen}");
            }
            Err(error) => {
                self.failed += 1;
                println!("  FAIL  {what:<58} {error:#}");
            }
        }
    }

    fn end(&self) -> ExitCode {
        println!("\n{} passed, {} failed", self.passed, self.failed);
        if self.failed == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}

/// The check over four simulated pods, the four stories included.
///
/// # Errors
/// When something does not start.
pub async fn simulated(listen: SocketAddr, admin: SocketAddr) -> Result<ExitCode> {
    println!("Starting Envoy with Berth in front of four simulated pods ...\n");
    let mut pods = Vec::new();
    for index in 0..4 {
        pods.push(Simulator::start(pod(index)).await?);
    }
    let addresses: Vec<String> = pods.iter().map(|pod| pod.address().to_string()).collect();
    let folder = scratch("check")?;
    let file = folder.join("berth.json");
    fs::write(&file, config(&addresses, Value::Null, Value::Null).to_string())?;
    let yaml = render(&file, listen, admin, &[]).await?;
    let envoy = Envoy::start(&folder, &yaml, listen, admin, &[]).await?;
    let names = ["pod-a", "pod-b", "pod-c", "pod-d"].map(str::to_owned).to_vec();
    let rig = Rig {
        pods,
        names,
        envoy,
        folder: folder.clone(),
    };
    rig.settled().await?;

    let mut report = Report::default();
    let client = rig.client();
    basics(&mut report, &client, "llama").await;
    report
        .step("an adapter goes to a pod that has it", adapter(&client))
        .await;
    stories(&mut report, &rig).await;
    report
        .step("60 requests at once spread by room and adapter", burst(&rig))
        .await;
    println!("\nFiles of this run: {}", folder.display());
    Ok(report.end())
}

/// The check over real pods: only what every server can do.
///
/// # Errors
/// When nobody answers.
pub async fn real(envoy: &Envoy, config: &Value) -> Result<ExitCode> {
    let client = envoy.client();
    let model = first_model(&client).await?;
    println!("Envoy with Berth on http://{}; model {model}\n", envoy.gateway);
    let mut report = Report::default();
    let pool = config["pools"][0]["name"].as_str().unwrap_or("").to_owned();
    report
        .step("every pod's metrics page is read", async {
            let stat = format!("wasmcustom.berth.pool.{pool}.publishes");
            envoy
                .until("a published table", async || {
                    Ok(envoy.stat(&stat).await?.unwrap_or(0) > 1)
                })
                .await?;
            let failures = envoy
                .stat(&format!("wasmcustom.berth.pool.{pool}.scrape_failures"))
                .await?
                .unwrap_or(0);
            ensure!(
                failures == 0,
                "{failures} scrapes failed; Envoy's log says why:\n{}",
                envoy.log_text()
            );
            Ok(String::new())
        })
        .await;
    basics(&mut report, &client, &model).await;
    Ok(report.end())
}

async fn basics(report: &mut Report, client: &Client, model: &str) {
    report.step("a chat completion is routed", chat(client, model)).await;
    report
        .step("a stream arrives piece by piece", stream(client, model))
        .await;
    report
        .step("a client cannot choose its pod", spoofed(client, model))
        .await;
    report
        .step("administrative paths are not forwarded", closed(client))
        .await;
}

/// A chat request.
fn ask(model: &str, content: &str, max_tokens: u32) -> Value {
    json!({"messages": [{"role": "user", "content": content}], "max_tokens": max_tokens, "model": model})
}

const CHAT: &str = "/v1/chat/completions";

/// What `x-berth-decision` says, shortened to the pod and its cost.
fn decided(answer: &Answer) -> String {
    let pod = match answer.pod() {
        "" => answer.decision("pod"),
        name => name,
    };
    format!("-> {pod} at a cost of {} ms", answer.decision("cost"))
}

async fn ok(client: &Client, body: &Value) -> Result<Answer> {
    let answer = client.post(CHAT, body).await?;
    ensure!(answer.status == 200, "status {}: {}", answer.status, answer.text());
    ensure!(
        answer.header("x-berth-decision").starts_with("pod="),
        "not routed by Berth: {:?}",
        answer.headers
    );
    Ok(answer)
}

async fn chat(client: &Client, model: &str) -> Result<String> {
    Ok(decided(&ok(client, &ask(model, "Hello", 8)).await?))
}

async fn stream(client: &Client, model: &str) -> Result<String> {
    let mut body = ask(model, "Hello", 12);
    body["stream"] = json!(true);
    let mut response = client.stream(CHAT, &body).await?;
    ensure!(response.status() == 200, "status {}", response.status());
    let (mut pieces, mut text) = (0, String::new());
    while let Some(frame) = response.body_mut().frame().await {
        if let Ok(data) = frame?.into_data() {
            pieces += 1;
            text.push_str(&String::from_utf8_lossy(&data));
        }
    }
    ensure!(
        text.trim_end().ends_with("data: [DONE]"),
        "the stream does not end with [DONE]: {text}"
    );
    ensure!(pieces > 1, "the stream came in one piece");
    Ok(format!("{pieces} pieces"))
}

async fn spoofed(client: &Client, model: &str) -> Result<String> {
    let headers = [
        ("content-type", "application/json"),
        ("x-gateway-destination-endpoint", "192.0.2.1:9"),
        ("x-envoy-original-dst-host", "192.0.2.1:9"),
    ];
    let answer = client
        .send("POST", CHAT, &headers, ask(model, "Hello", 4).to_string().into_bytes())
        .await?;
    ensure!(answer.status == 200, "status {}: {}", answer.status, answer.text());
    Ok(decided(&answer))
}

async fn closed(client: &Client) -> Result<String> {
    for path in ["/pause", "/v1/load_lora_adapter", "/update_weights"] {
        let answer = client.post(path, &json!({})).await?;
        ensure!(answer.status == 404, "{path} answered {}", answer.status);
    }
    Ok("404".to_owned())
}

async fn adapter(client: &Client) -> Result<String> {
    let answer = ok(client, &ask("sql", "SELECT", 8)).await?;
    ensure!(
        ["pod-a", "pod-b"].contains(&answer.pod()),
        "went to {}, which does not have it",
        answer.pod()
    );
    let refused = client.post(CHAT, &ask("no-such-model", "Hello", 8)).await?;
    ensure!(
        refused.status == 404,
        "an unknown model was answered with {}",
        refused.status
    );
    Ok(format!("{}; an unknown one: 404", decided(&answer)))
}

/// The stories that Berth exists for, on pinned gauges.
async fn stories(report: &mut Report, rig: &Rig) {
    let idle = || Pinned {
        running: Some(1.0),
        waiting: Some(0.0),
        kv_usage: Some(0.1),
        ..Pinned::default()
    };
    let full = || Pinned {
        running: Some(30.0),
        waiting: Some(25.0),
        kv_usage: Some(0.98),
        ..Pinned::default()
    };
    report
        .step("a pod with KV room wins over saturated ones", async {
            rig.pin(&[
                ("pod-a", full()),
                ("pod-b", full()),
                ("pod-c", idle()),
                ("pod-d", full()),
            ])
            .await?;
            lands(rig, &ask("llama", "Hello", 8), &["pod-c"]).await
        })
        .await;
    report
        .step("adapter on a saturated and on a free pod: the free one", async {
            let with = |pinned: Pinned| Pinned {
                adapters_running: Some(vec!["sql".to_owned()]),
                ..pinned
            };
            rig.pin(&[
                ("pod-a", with(full())),
                ("pod-b", with(idle())),
                ("pod-c", idle()),
                ("pod-d", idle()),
            ])
            .await?;
            lands(rig, &ask("sql", "SELECT", 8), &["pod-b"]).await
        })
        .await;
    report
        .step("adapter on a busy pod only: waiting beats a cold load", async {
            let home = Pinned {
                adapters_running: Some(vec!["chat".to_owned()]),
                waiting: Some(2.0),
                ..idle()
            };
            rig.pin(&[("pod-a", home), ("pod-c", idle())]).await?;
            lands(rig, &ask("chat", "Hello", 8), &["pod-a"]).await
        })
        .await;
    report
        .step("adapter on a full pod only: the cold load is cheaper", async {
            let home = Pinned {
                adapters_running: Some(vec!["chat".to_owned()]),
                kv_usage: Some(1.0),
                ..full()
            };
            rig.pin(&[("pod-a", home), ("pod-c", idle())]).await?;
            lands(rig, &ask("chat", "Hello", 8), &["pod-c"]).await
        })
        .await;
    report
        .step("a context that fits one pod's free tokens only", async {
            // 2,000 blocks of 16 tokens at 60 % leave 12,800 tokens; 6,000 blocks at 70 % leave 28,800.
            let part = |kv| Pinned {
                running: Some(4.0),
                waiting: Some(0.0),
                kv_usage: Some(kv),
                ..Pinned::default()
            };
            rig.pin(&[
                ("pod-a", part(0.6)),
                ("pod-b", part(0.6)),
                ("pod-c", part(0.6)),
                ("pod-d", part(0.7)),
            ])
            .await?;
            lands(rig, &ask("llama", &"word ".repeat(14_000), 64), &["pod-d"]).await
        })
        .await;
    let none = [("pod-a"), ("pod-b"), ("pod-c"), ("pod-d")].map(|name| (name, Pinned::default()));
    if let Err(error) = rig.pin(&none).await {
        println!("  the pods could not be unpinned: {error:#}");
    }
}

async fn lands(rig: &Rig, body: &Value, pods: &[&str]) -> Result<String> {
    let answer = ok(&rig.client(), body).await?;
    if !pods.contains(&answer.pod()) {
        bail!("went to {} ({})", answer.pod(), answer.header("x-berth-decision"));
    }
    Ok(decided(&answer))
}

async fn burst(rig: &Rig) -> Result<String> {
    let client = rig.client();
    let mut tasks = tokio::task::JoinSet::new();
    for index in 0..60 {
        let client = client.clone();
        let model = ["llama", "llama", "sql", "chat"][index % 4];
        let mut body = ask(model, &format!("Request {index}: {}", "word ".repeat(200)), 40);
        body["stream"] = json!(index % 5 < 3);
        tasks.spawn(async move { (model, client.post(CHAT, &body).await) });
    }
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    while let Some(done) = tasks.join_next().await {
        let (model, answer) = done?;
        let answer = answer?;
        ensure!(answer.status == 200, "status {}: {}", answer.status, answer.text());
        let allowed: &[&str] = match model {
            "sql" => &["pod-a", "pod-b"],
            "chat" => &["pod-a", "pod-c"],
            _ => &["pod-a", "pod-b", "pod-c", "pod-d"],
        };
        ensure!(allowed.contains(&answer.pod()), "{model} went to {}", answer.pod());
        *seen.entry(answer.pod().to_owned()).or_default() += 1;
    }
    let most = seen.values().max().copied().unwrap_or(0);
    ensure!(seen.len() == 4 && most <= 30, "uneven: {seen:?}");
    Ok(seen
        .iter()
        .map(|(pod, count)| format!("{pod} {count}"))
        .collect::<Vec<_>>()
        .join(", "))
}
