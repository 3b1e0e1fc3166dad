//! What a newcomer starts: Envoy with Berth in front of four simulated pods, or of real ones.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use berth_tests_simulator::EngineConfig;
use berth_tests_simulator::server::{Simulator, SimulatorConfig};
use serde_json::{Value, json};

use crate::check;
use crate::client::Client;
use crate::envoy::{Envoy, render, scratch};

/// Try Berth: a real Envoy in front of four simulated model-server pods.
#[derive(clap::Parser)]
#[command(
    name = "scripts/run",
    after_help = "Examples:
  scripts/run                                     four simulated pods; ends with Ctrl-C
  scripts/run --check                             sends requests, says how it went, ends
  scripts/run --pods 10.0.0.1:8000,10.0.0.2:8000  your own vLLM, SGLang, llama.cpp ... servers"
)]
pub struct Args {
    /// Real pods, `ip:port,ip:port`, in place of the simulated ones.
    #[arg(long, value_delimiter = ',', conflicts_with = "config")]
    pods: Vec<String>,
    /// A Berth config of your own.
    #[arg(long)]
    config: Option<PathBuf>,
    /// Send requests, print what happened, and end; exit code 0 only if all is well.
    #[arg(long)]
    check: bool,
    /// Where the gateway listens.
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Where Envoy's admin page listens.
    #[arg(long, default_value = "127.0.0.1:9901")]
    admin: SocketAddr,
}

/// The simulated pods of the demo: name, adapters, KV blocks of 16 tokens.
const PODS: [(&str, &[&str], u32); 4] = [
    ("pod-a", &["sql", "chat"], 2_000),
    ("pod-b", &["sql"], 2_000),
    ("pod-c", &["chat"], 2_000),
    ("pod-d", &[], 6_000),
];

/// One of the demo's pods.
pub(crate) fn pod(index: usize) -> SimulatorConfig {
    let (name, adapters, blocks) = PODS.get(index).copied().unwrap_or(("pod", &[], 2_000));
    SimulatorConfig {
        name: name.to_owned(),
        model: "llama".to_owned(),
        adapters: adapters.iter().map(|adapter| (*adapter).to_owned()).collect(),
        engine: EngineConfig {
            num_gpu_blocks: blocks,
            max_num_seqs: 32,
            ..EngineConfig::h100()
        },
        seed: index as u64,
        ..SimulatorConfig::default()
    }
}

/// Runs the demo; the exit code says whether the check went well.
///
/// # Errors
/// When something does not start; the message says what to do.
pub async fn run(args: Args) -> Result<ExitCode> {
    for address in [args.listen, args.admin] {
        TcpListener::bind(address)
            .with_context(|| format!("{address} is in use: choose others with --listen and --admin"))?;
    }
    if args.check && args.pods.is_empty() && args.config.is_none() {
        return check::simulated(args.listen, args.admin).await;
    }
    let mut simulators = Vec::new();
    let config: Value = match &args.config {
        Some(file) => {
            serde_json::from_str(&fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?)
                .with_context(|| format!("{} is not JSON", file.display()))?
        }
        None => {
            let mut pods = args.pods.clone();
            if pods.is_empty() {
                for index in 0..PODS.len() {
                    let simulator = Simulator::start(pod(index)).await?;
                    pods.push(simulator.address().to_string());
                    simulators.push(simulator);
                }
            }
            json!({"pools": [{"name": "demo", "discovery": {"static": pods}}], "status": {"decision_header": true}})
        }
    };
    let folder = scratch("demo")?;
    let file = folder.join("berth.json");
    fs::write(&file, serde_json::to_string_pretty(&config)?)?;
    let yaml = render(&file, args.listen, args.admin, &[]).await?;
    let envoy = Envoy::start(&folder, &yaml, args.listen, args.admin, &[]).await?;
    if args.check {
        return check::real(&envoy, &config).await;
    }
    greet(&envoy, &folder, &simulators).await?;
    tokio::signal::ctrl_c().await?;
    println!("\nStopping.");
    envoy.stop().await?;
    Ok(ExitCode::SUCCESS)
}

async fn greet(envoy: &Envoy, folder: &std::path::Path, simulators: &[Simulator]) -> Result<()> {
    let (gateway, admin) = (envoy.gateway, envoy.admin);
    let model = first_model(&Client::new(gateway))
        .await
        .unwrap_or_else(|_| "YOUR-MODEL".to_owned());
    println!("Berth is running: Envoy on http://{gateway}, its admin page on http://{admin}.");
    if !simulators.is_empty() {
        println!("\n  pod     address            adapters    KV tokens");
        for ((name, adapters, blocks), pod) in PODS.iter().zip(simulators) {
            let (address, adapters) = (pod.address().to_string(), adapters.join(","));
            println!("  {name}   {address:<17}  {adapters:<10}  {:>9}", blocks * 16);
        }
    }
    println!("\nTry:\n  curl -i http://{gateway}/v1/chat/completions -H 'content-type: application/json' \\");
    println!("    -d '{{\"model\":\"{model}\",\"messages\":[{{\"role\":\"user\",\"content\":\"Hello\"}}]}}'");
    if let Some(pod) = simulators.first() {
        let pod = pod.address();
        println!(
            "\n  With \"model\":\"sql\" it goes to a pod that has the adapter. With \"model\":\"nobody\" the answer is 404."
        );
        println!("  Make pod-a look full, ask again, and let it follow its engine again:");
        println!("  curl http://{pod}/sim/state -d '{{\"running\":30,\"waiting\":40,\"kv_usage\":1.0}}'");
        println!("  curl http://{pod}/sim/state -d '{{}}'");
        println!("  Take it away, and bring it back:");
        println!("  curl http://{pod}/sim/fault -d '{{\"fault\":\"inference_status\",\"status\":503}}'");
        println!("  curl http://{pod}/sim/fault -d '{{\"fault\":\"clear\"}}'");
    }
    println!("\nx-berth-decision in the answer says why: the pod, its cost in ms and the parts of it, the next best.");
    println!(
        "Stats: curl -s 'http://{admin}/stats?filter=berth'. Files of this run: {}",
        folder.display()
    );
    println!("Ctrl-C ends it.");
    Ok(())
}

/// The first base model that the pods list.
///
/// # Errors
/// When no pod answers.
pub(crate) async fn first_model(client: &Client) -> Result<String> {
    let answer = client.get("/v1/models").await?;
    match answer.json()["data"][0]["id"].as_str() {
        Some(model) => Ok(model.to_owned()),
        None => bail!("/v1/models answered {}: {}", answer.status, answer.text()),
    }
}
