//! Envoy's static configuration, from the template beside this file.
//!
//! One pool per listener: the pool's cluster and the route are one pair. Several pools behind one
//! listener need routes chosen by model, which is not rendered here yet.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, bail};
use berth_shared_state::config::{Config, Discovery, Pool};
use berth_shared_state::limits::{BODY_HOLD_MARGIN_BYTES, BODY_HOLD_RENDERED_BYTES};
use berth_shared_state::names;
use serde_json::{Value, json};

use super::EnvoyArgs;

const TEMPLATE: &str = include_str!("envoy.yaml");

/// Paths that clients need. Everything else is answered with 404, since engines leave administrative
/// paths open beside them (/pause, /update_weights, adapter loading).
const FORWARDED: [&str; 22] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/v1/pooling",
    "/v1/classify",
    "/v1/score",
    "/v1/rerank",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/models",
    "/v2/rerank",
    "/pooling",
    "/classify",
    "/score",
    "/rerank",
    "/tokenize",
    "/detokenize",
    "/generate",
    "/generate_stream",
];

/// Renders the whole file.
pub fn render(config: &Config, document: &[u8], args: &EnvoyArgs) -> anyhow::Result<String> {
    let [pool] = config.pools.as_slice() else {
        bail!(
            "{} pools in one config: a listener is rendered for one pool; write one config per pool, each with its own --listen",
            config.pools.len()
        );
    };
    let embedded = embedded(document)?;
    let held = Config::parse(embedded.as_bytes()).map_or(BODY_HOLD_RENDERED_BYTES, |config| config.body.hold_bytes);
    let wasm = |name: &str| yaml(&Path::new(&args.wasm).join(name).display().to_string());
    let cluster = cluster_name(pool);
    let timeout = format!("{}s", args.timeout);
    let values = [
        ("LISTEN_IP", args.listen.ip().to_string()),
        ("LISTEN_PORT", args.listen.port().to_string()),
        ("ADMIN_IP", args.admin.ip().to_string()),
        ("ADMIN_PORT", args.admin.port().to_string()),
        ("ROUTES", routes(&args.forward)),
        ("CLUSTER", yaml(&cluster)),
        ("TIMEOUT", timeout),
        ("BODY_LIMIT", held.saturating_add(BODY_HOLD_MARGIN_BYTES).to_string()),
        ("STRIP", strip(config)),
        ("CONFIG", yaml(&embedded)),
        ("FILTER_WASM", wasm("berth_filter.wasm")),
        ("SERVICE_WASM", wasm("berth_service.wasm")),
        ("SCRAPE_CLUSTER", yaml(&pool.scrape.cluster)),
        ("SCRAPE_HEADER", yaml(&pool.scrape.address_header)),
        ("ADMIN_CLUSTER", yaml(admin_cluster(pool))),
        ("ENVIRONMENT", environment(pool)),
        ("DESTINATION", yaml(names::DESTINATION_ENDPOINT)),
        ("ENDPOINTS", endpoints(pool, args)?),
    ];
    if let Discovery::Kubernetes { asks, .. } | Discovery::Json { asks, .. } = &pool.discovery {
        let cluster = &asks.cluster;
        eprintln!("berth: add the cluster {cluster:?}, through which Berth asks for the pods (envoy-config/README.md)");
    }
    let mut out = select(TEMPLATE, args.without_berth);
    for (name, value) in &values {
        out = out.replace(&format!("@{name}@"), value);
    }
    Ok(out)
}

/// Keeps the lines for this variant: `#+` marks lines only with Berth, `#-` only without.
fn select(template: &str, without: bool) -> String {
    let mut out = String::new();
    for line in template.lines() {
        let (text, wanted) = match line.rsplit_once("  #") {
            Some((text, "+")) => (text, !without),
            Some((text, "-")) => (text, without),
            _ => (line, true),
        };
        if wanted {
            out.push_str(text);
            out.push('\n');
        }
    }
    out
}

/// The config as it is put into Envoy: held bodies may be as large as the rendered routes allow.
fn embedded(document: &[u8]) -> anyhow::Result<String> {
    let mut value: Value = serde_json::from_slice(document).context("the config is not JSON")?;
    if let Some(root) = value.as_object_mut() {
        let body = root.entry("body").or_insert_with(|| json!({}));
        if let Some(body) = body.as_object_mut() {
            body.entry("hold").or_insert_with(|| json!(BODY_HOLD_RENDERED_BYTES));
        }
    }
    Ok(value.to_string())
}

fn cluster_name(pool: &Pool) -> String {
    match &pool.discovery {
        Discovery::EnvoyAdmin { cluster, .. } => cluster.clone(),
        _ => pool.name.clone(),
    }
}

fn admin_cluster(pool: &Pool) -> &str {
    match &pool.discovery {
        Discovery::EnvoyAdmin { admin, .. } => admin,
        _ => names::ADMIN_CLUSTER,
    }
}

/// Every header that could steer is removed once more in front of Berth, so that a fail-open filter
/// cannot be used to steer. Those that the config trusts stay for Berth to read.
fn strip(config: &Config) -> String {
    let trusted = |name: &str| config.trust.headers.iter().any(|trusted| trusted == name);
    let names = names::STRIPPED.into_iter().filter(|name| !trusted(name));
    let lines: Vec<String> = names
        .map(|name| format!("                          - remove: {name}"))
        .collect();
    lines.join("\n")
}

/// Variables that scrape headers are made from must be let into the VM by name.
fn environment(pool: &Pool) -> String {
    let headers = pool.scrape.headers.iter().chain(pool.discovery.headers());
    let variables: BTreeSet<&str> = headers.map(|(_, variable)| variable.as_str()).collect();
    let keys: Vec<String> = variables.into_iter().map(yaml).collect();
    format!("{{ host_env_keys: [{}] }}", keys.join(", "))
}

fn endpoints(pool: &Pool, args: &EnvoyArgs) -> anyhow::Result<String> {
    let hosts: Vec<(String, u16)> = match (&pool.discovery, &args.dns) {
        (Discovery::Static(pods), _) => pods
            .iter()
            .map(|pod| (pod.socket().ip().to_string(), pod.socket().port()))
            .collect(),
        (_, Some(dns)) => {
            let (host, port) = dns.rsplit_once(':').context("--dns must be name:port")?;
            vec![(host.to_owned(), port.parse().context("--dns must be name:port")?)]
        }
        (_, None) => bail!(
            "the pods of cluster {:?} are found by Envoy: say where with --dns name:port (a headless service)",
            cluster_name(pool)
        ),
    };
    let kind = if matches!(pool.discovery, Discovery::Static(_)) {
        "STATIC"
    } else {
        "STRICT_DNS"
    };
    let mut out = format!(
        "      type: {kind}\n      load_assignment:\n        cluster_name: {}\n",
        yaml(&cluster_name(pool))
    );
    out.push_str("        endpoints:\n          - lb_endpoints:\n");
    for (host, port) in hosts {
        let _ = writeln!(
            out,
            "              - endpoint: {{ address: {{ socket_address: {{ address: {}, port_value: {port} }} }} }}",
            yaml(&host)
        );
    }
    Ok(out.trim_end().to_owned())
}

/// A YAML scalar: JSON strings are YAML strings.
fn yaml(text: &str) -> String {
    Value::from(text).to_string()
}

/// One route per path. The first says where to; the others repeat it.
fn routes(more: &[String]) -> String {
    let mut out = String::new();
    for (index, path) in FORWARDED
        .iter()
        .copied()
        .chain(more.iter().map(String::as_str))
        .enumerate()
    {
        let to = if index == 0 {
            format!("\n{}", ROUTE.trim_end())
        } else {
            " *pods".to_owned()
        };
        let _ = writeln!(out, "{INDENT}- match: {{ path: {} }}\n{INDENT}  route:{to}", yaml(path));
    }
    out.trim_end().to_owned()
}

const INDENT: &str = "                        ";
const ROUTE: &str = "                            &pods
                            cluster: @CLUSTER@
                            timeout: @TIMEOUT@
                            # A long answer that is not streamed is silent until it is there.
                            idle_timeout: @TIMEOUT@
                            # A retry takes the next pod of the ranked list that Berth wrote.
                            retry_policy:
                              retry_on: connect-failure,refused-stream,reset-before-request,retriable-status-codes
                              retriable_status_codes: [429, 503]
                              num_retries: 2
";
