//! Envoy's static configuration, from the template beside this file.
//!
//! All pools stand behind one listener, each with a cluster of its own. Where there are several, routes lead by
//! the header in which Berth names the pool; what it passes without one goes to the first pool.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, bail};
use berth_shared_state::config::{BodyMode, Config, Discovery, Host, Pool};
use berth_shared_state::limits::{BODY_HOLD_MARGIN_BYTES, BODY_HOLD_RENDERED_BYTES};
use berth_shared_state::names;
use serde_json::json;

use super::{EnvoyArgs, asked, embedded, environment, stripped, yaml};

const TEMPLATE: &str = include_str!("envoy.yaml");
const POOL: &str = include_str!("pool.yaml");
const SCRAPE: &str = include_str!("scrape.yaml");

/// Paths that clients need. Everything else is answered with 404, since engines leave administrative
/// paths open beside them (/pause, /update_weights, adapter loading).
pub const FORWARDED: [&str; 22] = [
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
    let pools = config.pools.as_slice();
    if config.body.mode == BodyMode::HandOver {
        bail!("body.mode \"hand-over\" is for proxies that refuse Berth a flag, and this one has it: leave it out");
    }
    // Held bodies may be as large as the rendered routes allow.
    let (embedded, as_embedded) = embedded(document, Host::Envoy, &[("hold", json!(BODY_HOLD_RENDERED_BYTES))])?;
    let limit = as_embedded.body.hold_bytes.saturating_add(BODY_HOLD_MARGIN_BYTES);
    let wasm = |name: &str| yaml(&Path::new(&args.wasm).join(name).display().to_string());
    let clusters: Vec<String> = pools.iter().map(|pool| cluster(pool, args)).collect::<Result<_, _>>()?;
    let scrapes = scrape_clusters(pools)?;
    let values = [
        ("LISTEN_IP", args.listen.ip().to_string()),
        ("LISTEN_PORT", args.listen.port().to_string()),
        ("ADMIN_IP", args.admin.ip().to_string()),
        ("ADMIN_PORT", args.admin.port().to_string()),
        ("ROUTES", routes(pools, &args.forward)),
        ("TIMEOUT", format!("{}s", args.timeout)),
        ("BODY_LIMIT", limit.to_string()),
        ("STRIP", strip(config)),
        ("CONFIG", yaml(&embedded.to_string())),
        ("FILTER_WASM", wasm("berth_filter.wasm")),
        ("SERVICE_WASM", wasm("berth_service.wasm")),
        ("ADMIN_CLUSTER", yaml(admin_cluster(pools)?)),
        ("ENVIRONMENT", environment(pools)),
        ("DESTINATION", yaml(names::DESTINATION_ENDPOINT)),
    ];
    // Blocks of lines come first: some of their lines are for one variant.
    let whole = TEMPLATE
        .replace("@EARLY@\n", &early(pools))
        .replace("@POOLS@", clusters.concat().trim_end())
        .replace("@SCRAPES@\n", &[scrapes, asked::clusters(pools, args)?].concat())
        .replace("@NODE@\n", asked::node(pools));
    let mut out = select(&whole, args.without_berth);
    for (name, value) in values {
        out = out.replace(&format!("@{name}@"), &value);
    }
    Ok(out)
}

/// The cluster of a pool's pods.
fn cluster(pool: &Pool, args: &EnvoyArgs) -> anyhow::Result<String> {
    let text = POOL.replace("@CLUSTER@", &yaml(cluster_name(pool)));
    Ok(text.replace("@ENDPOINTS@", &endpoints(pool, args)?))
}

/// The clusters through which pods are read: usually one for all pools.
fn scrape_clusters(pools: &[Pool]) -> anyhow::Result<String> {
    let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
    let mut out = String::new();
    for scrape in pools.iter().map(|pool| &pool.scrape) {
        match seen.insert(&scrape.cluster, &scrape.address_header) {
            Some(header) if header == scrape.address_header => {}
            Some(_) => bail!(
                "the cluster {:?} learns the pod from two different headers",
                scrape.cluster
            ),
            None => {
                let text = SCRAPE.replace("@SCRAPE_CLUSTER@", &yaml(&scrape.cluster));
                out.push_str(&text.replace("@SCRAPE_HEADER@", &yaml(&scrape.address_header)));
            }
        }
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

fn cluster_name(pool: &Pool) -> &str {
    match &pool.discovery {
        Discovery::EnvoyAdmin { cluster, .. } => cluster,
        _ => &pool.name,
    }
}

/// The cluster that reaches the admin page, the same for all pools.
fn admin_cluster(pools: &[Pool]) -> anyhow::Result<&str> {
    let admins: BTreeSet<&str> = pools
        .iter()
        .filter_map(|pool| match &pool.discovery {
            Discovery::EnvoyAdmin { admin, .. } => Some(admin.as_str()),
            _ => None,
        })
        .collect();
    if admins.len() > 1 {
        bail!("one admin page has several clusters: {admins:?}");
    }
    Ok(admins.first().copied().unwrap_or(names::ADMIN_CLUSTER))
}

/// Mutations that remove what could steer.
fn strip(config: &Config) -> String {
    let names = stripped(config).into_iter();
    let lines: Vec<String> = names
        .map(|name| format!("                          - remove: {name}"))
        .collect();
    lines.join("\n")
}

/// Routes lead by the pool, so a client's copy must be gone before the first one is chosen.
fn early(pools: &[Pool]) -> String {
    if pools.len() == 1 {
        return String::new();
    }
    format!(
        "                # A client must not choose the pool: filters come too late for that.
                early_header_mutation_extensions:
                  - name: envoy.http.early_header_mutation.header_mutation
                    typed_config:
                      \"@type\": type.googleapis.com/envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation
                      mutations:
                        - remove: {}
",
        names::POOL
    )
}

fn endpoints(pool: &Pool, args: &EnvoyArgs) -> anyhow::Result<String> {
    let hosts: Vec<(String, u16)> = match &pool.discovery {
        Discovery::Static(pods) => pods
            .iter()
            .map(|pod| (pod.socket().ip().to_string(), pod.socket().port()))
            .collect(),
        _ => {
            let service = args.dns.iter().find_map(|dns| match dns.split_once('=') {
                Some((name, service)) => (name == pool.name).then_some(service),
                None => Some(dns.as_str()),
            });
            let service = service.with_context(|| {
                format!(
                    "the pods of cluster {:?} are found by Envoy: say where with --dns {}=name:port (a headless service)",
                    cluster_name(pool),
                    pool.name
                )
            })?;
            let (host, port) = service.rsplit_once(':').context("--dns must be name:port")?;
            vec![(host.to_owned(), port.parse().context("--dns must be name:port")?)]
        }
    };
    let kind = if matches!(pool.discovery, Discovery::Static(_)) {
        "STATIC"
    } else {
        "STRICT_DNS"
    };
    let mut out = format!(
        "      type: {kind}\n      load_assignment:\n        cluster_name: {}\n",
        yaml(cluster_name(pool))
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

/// One route per pool and path, then one per path for what names no pool. The first of a pool says where to; the
/// others repeat it.
fn routes(pools: &[Pool], more: &[String]) -> String {
    let mut out = String::new();
    let several = pools.len() > 1;
    for pool in pools.iter().filter(|_| several) {
        let named = format!(
            ", headers: [{{ name: {}, string_match: {{ exact: {} }} }}]",
            names::POOL,
            yaml(&pool.name)
        );
        to_pool(pool, &named, more, true, &mut out);
    }
    if let Some(first) = pools.first() {
        to_pool(first, "", more, !several, &mut out);
    }
    out.trim_end().to_owned()
}

fn to_pool(pool: &Pool, named: &str, more: &[String], says: bool, out: &mut String) {
    let mut says = says;
    for path in FORWARDED.iter().copied().chain(more.iter().map(String::as_str)) {
        let to = if std::mem::take(&mut says) {
            let route = ROUTE.replace("@CLUSTER@", &yaml(cluster_name(pool)));
            format!(" &{}\n{}", pool.name, route.trim_end())
        } else {
            format!(" *{}", pool.name)
        };
        let _ = writeln!(
            out,
            "{INDENT}- match: {{ path: {}{named} }}\n{INDENT}  route:{to}",
            yaml(path)
        );
    }
}

const INDENT: &str = "                        ";
const ROUTE: &str = "                            cluster: @CLUSTER@
                            timeout: @TIMEOUT@
                            # A long answer that is not streamed is silent until it is there.
                            idle_timeout: @TIMEOUT@
                            # A retry takes the next pod of the ranked list that Berth wrote.
                            retry_policy:
                              retry_on: connect-failure,refused-stream,reset-before-request,retriable-status-codes
                              retriable_status_codes: [429, 503]
                              num_retries: 2
";
