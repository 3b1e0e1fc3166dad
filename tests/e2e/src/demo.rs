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
    greet(&envoy, &folder, simulators.is_empty()).await?;
    tokio::signal::ctrl_c().await?;
    println!("\nStopping.");
    envoy.stop().await?;
    Ok(ExitCode::SUCCESS)
}

async fn greet(envoy: &Envoy, folder: &std::path::Path, real: bool) -> Result<()> {
    let model = first_model(&Client::new(envoy.gateway))
        .await
        .unwrap_or_else(|_| "YOUR-MODEL".to_owned());
    let gateway = envoy.gateway;
    println!(
        "Berth is running: Envoy on http://{gateway}, admin page on http://{}.",
        envoy.admin
    );
    if !real {
        println!("\n  pod     adapters    KV tokens");
        for (name, adapters, blocks) in PODS {
            println!("  {name}   {:<10}  {:>9}", adapters.join(","), blocks * 16);
        }
    }
    println!("\nTry:\n  curl -i http://{gateway}/v1/chat/completions -H 'content-type: application/json' \\");
    println!("    -d '{{\"model\":\"{model}\",\"messages\":[{{\"role\":\"user\",\"content\":\"Hello\"}}]}}'");
    if !real {
        println!("  ... and with \"model\":\"sql\": it goes to a pod that has the adapter.");
    }
    println!(
        "\nx-berth-decision in the answer says why. Stats: curl -s 'http://{}/stats?filter=berth'",
        envoy.admin
    );
    println!("Files of this run: {}\nCtrl-C ends it.", folder.display());
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
