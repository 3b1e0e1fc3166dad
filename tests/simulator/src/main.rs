//! One simulated pod as a process: prints its address, serves until killed.

use anyhow::Context;
use berth_tests_simulator::{EngineConfig, Simulator, SimulatorConfig};
use clap::{Parser, ValueEnum};

/// The hardware whose step times and limits are taken.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Class {
    H100,
    L4,
}

/// A model-server pod that computes nothing: vLLM's endpoints, metrics page and timing.
#[derive(Debug, Parser)]
struct Options {
    /// Port on 127.0.0.1; 0 = any.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Name in the x-simulator-pod header.
    #[arg(long, default_value = "pod")]
    name: String,
    /// Served base model.
    #[arg(long, default_value = "base")]
    model: String,
    /// Registered adapters, comma-separated.
    #[arg(long, value_delimiter = ',')]
    adapters: Vec<String>,
    /// Hardware class; the options below override its limits.
    #[arg(long, value_enum, default_value = "h100")]
    class: Class,
    /// Different adapters in one batch; 0 = LoRA off.
    #[arg(long)]
    max_loras: Option<u32>,
    /// Adapters kept in CPU memory.
    #[arg(long)]
    max_cpu_loras: Option<u32>,
    /// KV blocks, one of them reserved.
    #[arg(long)]
    blocks: Option<u32>,
    /// Tokens in a KV block.
    #[arg(long)]
    block_size: Option<u32>,
    /// Most requests in the batch.
    #[arg(long)]
    max_num_seqs: Option<u32>,
    /// Longest prompt plus output, tokens.
    #[arg(long)]
    max_model_len: Option<u32>,
    /// Engine seconds per real second.
    #[arg(long, default_value_t = 1.0)]
    speed: f64,
    /// Decides lengths and texts of answers.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

impl Options {
    fn engine(&self) -> EngineConfig {
        let class = match self.class {
            Class::H100 => EngineConfig::h100(),
            Class::L4 => EngineConfig::l4(),
        };
        EngineConfig {
            max_loras: self.max_loras.unwrap_or(class.max_loras),
            max_cpu_loras: self.max_cpu_loras.unwrap_or(class.max_cpu_loras),
            num_gpu_blocks: self.blocks.unwrap_or(class.num_gpu_blocks),
            block_size: self.block_size.unwrap_or(class.block_size),
            max_num_seqs: self.max_num_seqs.unwrap_or(class.max_num_seqs),
            max_model_len: self.max_model_len.unwrap_or(class.max_model_len),
            ..class
        }
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let config = SimulatorConfig {
        engine: options.engine(),
        name: options.name,
        model: options.model,
        adapters: options.adapters,
        speed: options.speed,
        seed: options.seed,
        port: options.port,
        ..SimulatorConfig::default()
    };
    let simulator = Simulator::start(config)
        .await
        .with_context(|| format!("port {} cannot be used", options.port))?;
    println!("{}", simulator.address());
    simulator.run().await;
    Ok(())
}
