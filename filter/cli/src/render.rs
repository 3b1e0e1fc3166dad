//! `berth render`: a host's configuration for a Berth config.

mod asked;
mod envoy;
mod kubernetes;
mod nginx;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use berth_shared_state::config::{self, Affinity, Config, Pool};
use berth_shared_state::names;
use serde_json::{Value, json};

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
    /// The resources for an Istio gateway, as one file for `kubectl apply`.
    Istio(IstioArgs),
    /// The resources for Envoy Gateway, as one file for `kubectl apply`.
    EnvoyGateway(EnvoyGatewayArgs),
    /// A complete nginx.conf, for nginx or OpenResty with ngx_wasm_module.
    Nginx(NginxArgs),
    /// Kong's declarative configuration, or its settings.
    Kong(PartArgs),
    /// APISIX's route, or its settings. There Berth knows only what it sent itself.
    Apisix(PartArgs),
}

/// What the nginx family has in common.
#[derive(clap::Args)]
pub struct FamilyArgs {
    /// The Berth config, JSON.
    #[arg(long)]
    pub config: PathBuf,
    /// Address the gateway listens on.
    #[arg(long, default_value = "127.0.0.1:8080")]
    pub listen: std::net::SocketAddr,
    /// How long one request may be silent, in seconds.
    #[arg(long, default_value_t = 600)]
    pub timeout: u32,
}

/// Arguments of `berth render nginx`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  berth render nginx --config berth.json > nginx.conf && nginx -c $PWD/nginx.conf")]
pub struct NginxArgs {
    /// What all of the family are made from.
    #[command(flatten)]
    pub common: FamilyArgs,
    /// The filter, as nginx sees it.
    #[arg(long, default_value = "/etc/nginx/berth_filter.wasm")]
    pub wasm: PathBuf,
}

/// Which of a host's two files.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Services and routes.
    Routes,
    /// The proxy's own settings.
    Settings,
}

/// Arguments of `berth render kong` and `apisix`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  berth render kong --config berth.json --part settings > kong.conf\n  berth render kong --config berth.json > kong.yaml"
)]
pub struct PartArgs {
    /// What all of the family are made from.
    #[command(flatten)]
    pub common: FamilyArgs,
    /// The filter, as the proxy sees it.
    #[arg(long, default_value = "/etc/berth/berth_filter.wasm")]
    pub wasm: PathBuf,
    /// Which file.
    #[arg(long, value_enum, default_value = "routes")]
    pub part: Part,
}

/// Who holds the headers in an Istio gateway.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Way {
    /// A WasmPlugin, Lua behind it, and an EnvoyFilter for the clusters. Istio 1.30 or newer.
    HandOver,
    /// An EnvoyFilter for everything. Istio 1.27 or newer.
    Hold,
    /// No EnvoyFilter: a WasmPlugin, Lua behind it, and a route for chosen pods. Istio 1.30 or newer.
    Plugins,
}

/// Arguments of `berth render istio`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  berth render istio --config berth.json --gateway llama | kubectl apply -f -\n\nThe config names Istio's cluster: {\"discovery\": {\"envoy_admin\": {\"cluster\": \"outbound|8000||llama.default.svc.cluster.local\", \"admin\": \"prometheus_stats\"}}}"
)]
pub struct IstioArgs {
    /// What all resources are made from.
    #[command(flatten)]
    pub common: KubernetesArgs,
    /// Who holds the headers until the pod is chosen.
    #[arg(long, value_enum, default_value = "hand-over")]
    pub way: Way,
    /// How long one request may be silent, in seconds; with `--way hold` and `admission.queue`.
    #[arg(long, default_value_t = 600)]
    pub timeout: u32,
}

/// Arguments of `berth render envoy-gateway`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  berth render envoy-gateway --config berth.json --gateway llama | kubectl apply -f -\n\nThe config names the route's cluster: {\"discovery\": {\"envoy_admin\": {\"cluster\": \"httproute/default/llama/rule/0\"}}}"
)]
pub struct EnvoyGatewayArgs {
    /// What all resources are made from.
    #[command(flatten)]
    pub common: KubernetesArgs,
    /// Name of the Gateway's listener.
    #[arg(long, default_value = "http")]
    pub listener: String,
    /// How long one request may take in all, in seconds.
    #[arg(long, default_value_t = 600)]
    pub timeout: u32,
}

/// What hosts in Kubernetes have in common.
#[derive(clap::Args)]
pub struct KubernetesArgs {
    /// The Berth config, JSON.
    #[arg(long)]
    pub config: PathBuf,
    /// Name of the Gateway.
    #[arg(long)]
    pub gateway: String,
    /// Its namespace; the resources go there too.
    #[arg(long, default_value = "default")]
    pub namespace: String,
    /// The image with the filter, `plugin.wasm` in its last layer.
    #[arg(long, default_value = "oci://registry.example.com/berth:0.1.0")]
    pub image: String,
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
    /// Who answers with the list of pods, in plain text, `cluster=name:port`; for `discovery.json`, and for
    /// `discovery.kubernetes` where that is not the API itself but something like `kubectl proxy`.
    #[arg(long)]
    pub list: Vec<String>,
    /// The file that says where the token for the Kubernetes API is, as Envoy sees it; for `discovery.kubernetes`.
    #[arg(long, default_value = "envoy-config/kubernetes-token.yaml")]
    pub token: PathBuf,
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
    let path = match &args.host {
        Host::Envoy(args) => &args.config,
        Host::Istio(args) => &args.common.config,
        Host::EnvoyGateway(args) => &args.common.config,
        Host::Nginx(args) => &args.common.config,
        Host::Kong(args) | Host::Apisix(args) => &args.common.config,
    };
    let text = document::read(path)?;
    let Some(config) = document::valid(&text) else {
        bail!("{} is not valid; `berth validate` says the same", path.display());
    };
    let rendered = match &args.host {
        Host::Envoy(args) => envoy::render(&config, &text, args)?,
        Host::Istio(args) => kubernetes::istio(&config, &text, args)?,
        Host::EnvoyGateway(args) => kubernetes::envoy_gateway(&config, &text, args)?,
        Host::Nginx(args) => nginx::nginx(&config, &text, args)?,
        Host::Kong(args) => nginx::kong(&config, &text, args)?,
        Host::Apisix(args) => nginx::apisix(&config, &text, args)?,
    };
    print!("{rendered}");
    Ok(ExitCode::SUCCESS)
}

/// The config as it is put into this host, named in it, with these keys of `body` where it has none of its own; and what it
/// then says. A name is needed, since what a host answers need not tell which it is: Envoy may be restricted.
fn embedded(document: &[u8], host: config::Host, body: &[(&str, Value)]) -> anyhow::Result<(Value, Config)> {
    let mut value: Value = serde_json::from_slice(document).context("the config is not JSON")?;
    if let Some(root) = value.as_object_mut() {
        let own = root.insert("host".to_owned(), json!(host));
        if let Some(own) = own.filter(|own| ![json!(config::Host::Auto), json!(host)].contains(own)) {
            bail!(
                "the config is for the host {}: leave `host` out",
                own.as_str().unwrap_or("?")
            );
        }
        if !body.is_empty()
            && let Some(own) = root.entry("body").or_insert_with(|| json!({})).as_object_mut()
        {
            for (key, preset) in body {
                own.entry(*key).or_insert_with(|| preset.clone());
            }
        }
    }
    match Config::parse(value.to_string().as_bytes()) {
        Ok(config) => Ok((value, config)),
        Err(errors) => bail!("that cannot be had there:\n{}", document::lines(&errors)),
    }
}

/// Every header that could steer is removed once more in front of Berth, so that a filter that fails open cannot be
/// used to steer. Those that the config trusts stay for Berth to read.
fn stripped(config: &Config) -> Vec<&'static str> {
    let trusted = |name: &str| config.trust.headers.iter().any(|trusted| trusted == name);
    names::STRIPPED.into_iter().filter(|name| !trusted(name)).collect()
}

/// Variables that headers of Berth's own calls are made from, and secrets that seal cookies: they must be let into the VM by name, and Envoy refuses
/// a name that stands twice.
fn variables<'a>(pools: impl IntoIterator<Item = &'a Pool, IntoIter: Clone>) -> BTreeSet<&'a str> {
    let pools = pools.into_iter();
    let headers = pools
        .clone()
        .flat_map(|pool| pool.scrape.headers.iter().chain(pool.discovery.headers()));
    let secret = |pool: &'a Pool| match &pool.routing.affinity {
        Affinity::Cookie { key, .. } => Some(key.as_str()),
        _ => None,
    };
    let secrets = pools.clone().filter_map(secret);
    headers.map(|(_, variable)| variable.as_str()).chain(secrets).collect()
}

/// The same as Envoy's `environment_variables`.
fn environment<'a>(pools: impl IntoIterator<Item = &'a Pool, IntoIter: Clone>) -> String {
    format!("{{ host_env_keys: [{}] }}", list(&variables(pools)))
}

/// Items of a YAML list in one line.
fn list(names: &BTreeSet<&str>) -> String {
    let names: Vec<String> = names.iter().copied().map(yaml).collect();
    names.join(", ")
}

/// A YAML scalar: JSON strings are YAML strings.
fn yaml(text: &str) -> String {
    Value::from(text).to_string()
}
