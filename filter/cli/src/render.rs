//! `berth render`: a host's configuration for a Berth config.

mod envoy;

use std::path::PathBuf;
use std::process::ExitCode;

use crate::document;

/// Arguments of `berth render`.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    host: Host,
}

#[derive(clap::Subcommand)]
enum Host {
    /// A complete Envoy configuration: listener, filter chain, service, clusters, admin.
    Envoy(EnvoyArgs),
}

/// Arguments of `berth render envoy`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  berth render envoy --config berth.json > envoy.yaml && envoy -c envoy.yaml")]
pub struct EnvoyArgs {
    /// The Berth config, JSON.
    #[arg(long)]
    pub config: PathBuf,
    /// Address the gateway listens on.
    #[arg(long, default_value = "127.0.0.1:8080")]
    pub listen: std::net::SocketAddr,
    /// Address of Envoy's admin page; keep it on loopback.
    #[arg(long, default_value = "127.0.0.1:9901")]
    pub admin: std::net::SocketAddr,
    /// Folder with `berth_filter.wasm` and `berth_service.wasm`, as Envoy sees it.
    #[arg(long, default_value = "dist")]
    pub wasm: PathBuf,
    /// Headless service that lists the pods, `name:port`, or `pool=name:port` for each of several pools; for
    /// `discovery.envoy_admin`.
    #[arg(long)]
    pub dns: Vec<String>,
    /// Further paths to forward as they are, besides the inference paths (for example `/health`).
    #[arg(long)]
    pub forward: Vec<String>,
    /// How long one request may take in all, in seconds.
    #[arg(long, default_value_t = 600)]
    pub timeout: u32,
    /// Leave Berth out: the same proxy with round robin, to compare with.
    #[arg(long)]
    pub without_berth: bool,
}

/// Runs it; the exit code is the answer.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let Host::Envoy(args) = &args.host;
    let text = document::read(&args.config)?;
    let Some(config) = document::valid(&text) else {
        anyhow::bail!("{} is not valid; `berth validate` says the same", args.config.display());
    };
    print!("{}", envoy::render(&config, &text, args)?);
    Ok(ExitCode::SUCCESS)
}
