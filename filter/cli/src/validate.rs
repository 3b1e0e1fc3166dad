//! `berth validate`: every error of a config at once, or what the config means.
//!
//! Deliberately not here: any rule. They stand with the options in `berth-shared-state`.

use std::io::{Write, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use berth_shared_state::config::{
    Affinity, BodyMode, Config, Discovery, Host, Pool, Rewrite, Routing, Sticky, Target, duration_text, size_text,
};
use berth_shared_state::names;

use crate::document;

/// Arguments of `berth validate`.
#[derive(clap::Args)]
#[command(after_help = "\
Prints every error on a line of its own: path: value: rule. Nothing of the host is asked; variables
of the environment are not read.

Exit codes: 0 the config is valid, 1 it is not, 2 it cannot be read.

Example:
  $ echo '{\"pools\": [{\"name\": \"llama\", \"discovery\": {\"static\": [\"10.0.0.1\"]}}]}' | berth validate -
  pools[0].discovery.static[0]: \"10.0.0.1\": must be ip:port, for example 10.0.0.1:8000 ...")]
pub struct Args {
    /// The config, a JSON document; `-` reads it from standard input.
    file: PathBuf,
}

/// Runs it; the exit code is the answer.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let document = document::read(&args.file)?;
    let (text, code) = match Config::parse(&document) {
        Ok(config) => (summary(&config), ExitCode::SUCCESS),
        Err(errors) => (document::lines(&errors), ExitCode::FAILURE),
    };
    stdout().write_all(text.as_bytes()).context("cannot write the answer")?;
    Ok(code)
}

fn summary(config: &Config) -> String {
    let mut lines = vec![format!("valid: {}", counted(config.pools.len(), "pool"))];
    lines.extend(config.pools.iter().flat_map(pool_lines));
    if config.pools.len() > 1 {
        lines.push(format!(
            "pools:   the proxy's routes must lead by the header {}; without it to pool {}",
            names::POOL,
            config.pools.first().map_or("", |pool| pool.name.as_str())
        ));
    }
    lines.extend(config.rewrites.iter().map(rewrite_line));
    lines.extend(models_line(config));
    let how = match config.body.mode {
        BodyMode::Hold => "held",
        BodyMode::HandOver => "read as they pass; a filter behind Berth must hold the headers",
    };
    let most = size_text(config.body.hold_bytes as u64);
    lines.push(format!("bodies:  up to {most} of a request are {how}"));
    lines.extend(host_line(config));
    lines.push(match config.trust.headers.as_slice() {
        [] => "trusted: no steering header; every copy is removed".to_owned(),
        headers => format!(
            "trusted: {}; every other steering header is removed",
            headers.join(", ")
        ),
    });
    if config.status.decision_header {
        lines.push("shown:   every response has x-berth-decision".to_owned());
    }
    lines.push(String::new());
    lines.join("\n")
}

/// What the proxy cannot do though nothing in the config asks for it in words.
fn host_line(config: &Config) -> Option<String> {
    let lacks = match config.host {
        Host::Auto | Host::Envoy => return None,
        Host::Nginx => "nginx: no prefix index, no second pod where the chosen one cannot be reached",
        Host::Kong => {
            "kong: no prefix index, no second pod where the chosen one cannot be reached, which is noticed at the second failure"
        }
        Host::Apisix => {
            "apisix: no pod is read; each worker goes by what it sent itself, by hashes, and by load in answers; nothing is counted, no model is 404"
        }
    };
    Some(format!("host:    {lacks}"))
}

fn rewrite_line(rewrite: &Rewrite) -> String {
    let all: u64 = rewrite.to.iter().map(|target| u64::from(target.weight)).sum();
    let part = |target: &Target| match rewrite.to.as_slice() {
        [_] => target.model.clone(),
        _ => format!("{} ({}/{all})", target.model, target.weight),
    };
    let targets: Vec<String> = rewrite.to.iter().map(part).collect();
    let sticky = match rewrite.sticky {
        Sticky::None => "",
        Sticky::Session => ", the same for all requests of a session",
        Sticky::User => ", the same for all requests of a user",
    };
    let from = rewrite.from.as_deref().unwrap_or("every other name");
    format!("rewrite: {from} -> {}{sticky}", targets.join(", "))
}

/// What is told of models, where it is not the default.
fn models_line(config: &Config) -> Option<String> {
    let models = &config.models;
    let list = (!models.list).then(|| "GET /v1/models passes to a pod".to_owned());
    let near = models.near_names.then(|| "near names are suggested".to_owned());
    let hidden = (!models.hidden.is_empty()).then(|| format!("{} hidden", counted(models.hidden.len(), "name")));
    let told: Vec<String> = [list, near, hidden].into_iter().flatten().collect();
    (!told.is_empty()).then(|| format!("models:  {}", told.join(", ")))
}

fn pool_lines(pool: &Pool) -> Vec<String> {
    let pods = match &pool.discovery {
        Discovery::Static(pods) => counted(pods.len(), "pod"),
        Discovery::EnvoyAdmin { cluster, interval, .. } => format!(
            "the hosts of cluster {cluster}, listed every {}",
            duration_text(*interval)
        ),
        Discovery::Kubernetes { asks, service } => format!(
            "the EndpointSlices of {}/{}, asked of cluster {} every {}",
            service.namespace,
            service.name,
            asks.cluster,
            duration_text(asks.interval)
        ),
        Discovery::Json { asks, path } => format!(
            "the list at {path} of cluster {}, read every {}",
            asks.cluster,
            duration_text(asks.interval)
        ),
    };
    let engine = pool
        .engine
        .and_then(|engine| serde_json::to_value(engine).ok())
        .and_then(|name| name.as_str().map(str::to_owned));
    let models = match pool.models.as_slice() {
        [] => "models learned from the pods".to_owned(),
        models => format!("models {} and what the pods list", models.join(", ")),
    };
    let engine = engine.map_or_else(|| "engine detected".to_owned(), |engine| format!("engine {engine}"));
    let scrape = &pool.scrape;
    let times = format!(
        "  scraped every {} (patience {}), models every {}, a reading counts for {}",
        duration_text(scrape.interval),
        duration_text(scrape.timeout),
        duration_text(scrape.models_interval),
        duration_text(pool.routing.stale_after)
    );
    let sent = scrape.headers.iter();
    let sent = sent.map(|(header, variable)| format!("  scrapes send {header} from the variable {variable}"));
    let asked = pool.discovery.headers().iter();
    let asked = asked.map(|(header, variable)| format!("  discovery sends {header} from the variable {variable}"));
    let mut lines = vec![format!("pool {}: {pods}; {engine}; {models}", pool.name), times];
    lines.extend(asked);
    lines.extend(sent);
    lines.extend(wishes(&pool.routing));
    lines
}

/// What an operator asked for, where it is not the default.
fn wishes(routing: &Routing) -> Vec<String> {
    let sessions = match &routing.affinity {
        Affinity::None => None,
        Affinity::Session => Some(format!("  sessions stay by {}", names::SESSION)),
        Affinity::Cookie { key, max_age } => Some(format!(
            "  sessions stay by a cookie for {}, sealed with the variable {key}",
            duration_text(*max_age)
        )),
    };
    let required = (!routing.require.is_empty()).then(|| format!("  only pods with {}", routing.require.join(", ")));
    let apart = routing.retry_apart.as_ref();
    let apart = apart.map(|label| format!("  retries go to another {label}"));
    let requests = routing.caps.requests.map(|max| counted(max as usize, "request"));
    let tokens = routing.caps.tokens.map(|max| format!("{} KV tokens", max.0));
    let caps: Vec<String> = requests.into_iter().chain(tokens).collect();
    let caps = (!caps.is_empty()).then(|| format!("  a pod has at most {}", caps.join(", ")));
    let slow = (routing.slow_start.0 > 0).then(|| {
        format!(
            "  a new pod gets its share within {}",
            duration_text(routing.slow_start)
        )
    });
    [sessions, required, apart, caps, slow].into_iter().flatten().collect()
}

fn counted(count: usize, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}
