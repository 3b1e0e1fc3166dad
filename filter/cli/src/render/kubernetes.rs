//! Resources for gateways in Kubernetes, from the templates beside this file: Istio in three ways, and Envoy Gateway.
//!
//! The folders `istio/` and `envoy-gateway/` hold what this renders for their configs, and tests run it. Deliberately
//! not here: the pods, the Gateway and its routes, which people have already.

use anyhow::bail;
use berth_shared_state::config::{BodyMode, Config, Discovery, Host, Pool, size_text};
use berth_shared_state::limits::{BODY_HOLD_BYTES, BODY_HOLD_MARGIN_BYTES, BODY_HOLD_RENDERED_BYTES};
use berth_shared_state::names;
use serde_json::json;

use super::{EnvoyGatewayArgs, IstioArgs, KubernetesArgs, Way, embedded, environment, list, stripped, variables, yaml};

const PLUGIN: &str = include_str!("istio-plugin.yaml");
const EXTENSION: &str = include_str!("istio-extension.yaml");
const HAND_OVER: &str = include_str!("istio-hand-over.yaml");
const PLUGINS: &str = include_str!("istio-plugins.yaml");
const HOLD: &str = include_str!("istio-hold.yaml");
const GATEWAY: &str = include_str!("envoy-gateway.yaml");
const LUA: &str = include_str!("hand-over.lua");

/// Istio's resources.
pub fn istio(config: &Config, document: &[u8], args: &IstioArgs) -> anyhow::Result<String> {
    let pool = only(config)?;
    let (cluster, admin) = found_by_envoy(pool)?;
    let parts: Vec<&str> = cluster.split('|').collect();
    let ["outbound", port, _, host] = parts.as_slice() else {
        bail!("{cluster:?} is no cluster of Istio: they are named outbound|8000||llama.default.svc.cluster.local");
    };
    if admin != "prometheus_stats" {
        bail!(
            "discovery.envoy_admin.admin is {admin:?}: Istio's own cluster for the admin page is \"prometheus_stats\""
        );
    }
    scrapes(pool, args.way, port, host)?;
    let (mode, hold, template, indent) = match args.way {
        Way::HandOver => (BodyMode::HandOver, BODY_HOLD_RENDERED_BYTES, HAND_OVER, 4),
        // Envoy's own limit cannot be raised.
        Way::Plugins => (BodyMode::HandOver, BODY_HOLD_BYTES, PLUGINS, 4),
        Way::Hold => (BodyMode::Hold, BODY_HOLD_RENDERED_BYTES, HOLD, 18),
    };
    let (embedded, held) = embedded_for(document, mode, hold)?;
    let meshed = pool.scrape.cluster == subset(port, host);
    let template = template
        .replace("@PLUGIN@", PLUGIN.trim_end())
        .replace("@EXTENSION@", EXTENSION.trim_end());
    let mut out = common(&template, config, &args.common, &indented(&embedded, indent))
        .replace("@LUA@", &indented(&lua(config, args.way), 6))
        .replace("@VARIABLES@", &plugin_variables(pool))
        .replace("@SCRAPE@", if meshed { MESH_SCRAPE } else { DIRECT_SCRAPE }.trim_end())
        .replace("@FALLBACK@", FALLBACK.trim_end())
        .replace("@ROUTES@", ROUTES.trim_end())
        .replace("@IDLE@", if config.admission.queue.is_some() { IDLE } else { "" })
        .replace("@TIMEOUT@", &format!("{}s", args.timeout))
        .replace("@BODY_LIMIT@", &held.saturating_add(BODY_HOLD_MARGIN_BYTES).to_string())
        .replace("@CLUSTER@", &yaml(cluster))
        .replace("@PORT@", port);
    out.push_str(&RULE.replace("@HOST@", &yaml(host)));
    if meshed {
        out.push_str(SUBSET);
    }
    if args.way == Way::Plugins {
        out = picked(&out, host)?;
    }
    Ok(named(&out, pool, &args.common))
}

/// Names the Service whose cluster dials chosen pods, beside the pool's.
fn picked(out: &str, host: &str) -> anyhow::Result<String> {
    let mut labels = host.splitn(3, '.');
    let (Some(name), Some(namespace), Some(rest)) = (labels.next(), labels.next(), labels.next()) else {
        bail!("{host:?} is no Service: they are named llama.default.svc.cluster.local");
    };
    Ok(out
        .replace("@PICKED@", &format!("{name}-picked"))
        .replace("@PICKED_NAMESPACE@", namespace)
        .replace("@PICKED_HOST@", &yaml(&format!("{name}-picked.{namespace}.{rest}"))))
}

/// The subset of the pool's Service through which Berth's own calls go in a mesh.
fn subset(port: &str, host: &str) -> String {
    format!("outbound|{port}|berth-scrape|{host}")
}

/// Checks that the config scrapes through a cluster that these resources make.
fn scrapes(pool: &Pool, way: Way, port: &str, host: &str) -> anyhow::Result<()> {
    let (cluster, header) = (&pool.scrape.cluster, &pool.scrape.address_header);
    if way == Way::Plugins {
        let wanted = format!("outbound|{port}||*.berth.internal");
        if *cluster != wanted {
            bail!("scrape.cluster is {cluster:?}: the one that is made here is {wanted:?}");
        }
        return Ok(());
    }
    let meshed = cluster.starts_with("outbound|");
    let wanted = subset(port, host);
    if meshed && *cluster != wanted {
        bail!("scrape.cluster is {cluster:?}: the subset that is made here is {wanted:?}");
    }
    let wanted = if meshed {
        names::DESTINATION_ENDPOINT
    } else {
        names::ORIGINAL_DST_HOST
    };
    if header != wanted {
        bail!("with this scrape.cluster, scrape.address_header must be {wanted:?}");
    }
    Ok(())
}

/// Envoy Gateway's resources.
pub fn envoy_gateway(config: &Config, document: &[u8], args: &EnvoyGatewayArgs) -> anyhow::Result<String> {
    let pool = only(config)?;
    let (cluster, admin) = found_by_envoy(pool)?;
    let parts: Vec<&str> = cluster.split('/').collect();
    let ["httproute", namespace, route, "rule", _] = parts.as_slice() else {
        bail!("{cluster:?} is no cluster of Envoy Gateway: they are named httproute/default/llama/rule/0");
    };
    if *namespace != args.common.namespace {
        bail!("the route is in namespace {namespace:?}: policies must be there too, so say --namespace {namespace}");
    }
    let (embedded, held) = embedded_for(document, BodyMode::Hold, BODY_HOLD_RENDERED_BYTES)?;
    let limit = held.saturating_add(BODY_HOLD_MARGIN_BYTES).to_string();
    let listener = [&args.common.namespace, &args.common.gateway, &args.listener].map(String::as_str);
    let out = common(GATEWAY, config, &args.common, &indented(&embedded, 8))
        .replace("@VARIABLES@", &policy_variables(pool))
        .replace("@BODY_LIMIT@", &limit)
        .replace("@ROUTE@", &yaml(route))
        .replace("@LISTENER@", &yaml(&listener.join("/")))
        .replace("@TIMEOUT@", &format!("{}s", args.timeout))
        .replace("@ADMIN_CLUSTER@", &yaml(admin));
    Ok(named(&out, pool, &args.common))
}

fn only(config: &Config) -> anyhow::Result<&Pool> {
    match config.pools.as_slice() {
        [pool] => Ok(pool),
        pools => bail!(
            "{} pools in one config: resources are rendered for one pool and its route; write one config per pool",
            pools.len()
        ),
    }
}

fn found_by_envoy(pool: &Pool) -> anyhow::Result<(&str, &str)> {
    match &pool.discovery {
        Discovery::EnvoyAdmin { cluster, admin, .. } => Ok((cluster, admin)),
        Discovery::Static(_) => {
            bail!("pods in Kubernetes come and go: use discovery.envoy_admin with the proxy's cluster")
        }
        Discovery::Kubernetes { .. } | Discovery::Json { .. } => {
            bail!(
                "the proxy knows the pods already: these resources are rendered for discovery.envoy_admin with its cluster"
            )
        }
    }
}

/// The config as it is put into the resource, and the bytes that it lets be held.
fn embedded_for(document: &[u8], mode: BodyMode, hold: usize) -> anyhow::Result<(String, usize)> {
    let mut body = vec![("hold", json!(size_text(hold as u64)))];
    if mode == BodyMode::HandOver {
        body.push(("mode", json!(mode)));
    }
    let (value, config) = embedded(document, Host::Envoy, &body)?;
    if config.body.mode != mode {
        bail!("body.mode is another than these resources are for: leave it out");
    }
    Ok((serde_json::to_string_pretty(&value)?, config.body.hold_bytes))
}

fn common(template: &str, config: &Config, args: &KubernetesArgs, embedded: &str) -> String {
    let stripped = stripped(config);
    let list = |indent: usize, item: &str| {
        let lines: Vec<String> = stripped.iter().map(|name| format!("- {item}{name}")).collect();
        indented(&lines.join("\n"), indent)
    };
    template
        .replace("@STRIP_MUTATIONS@", &list(16, "remove: "))
        .replace("@STRIP_LIST@", &list(8, ""))
        .replace("@IMAGE@", &yaml(&args.image))
        .replace("@CONFIG@", embedded)
}

fn named(out: &str, pool: &Pool, args: &KubernetesArgs) -> String {
    out.replace("@ENVIRONMENT@", &environment([pool]))
        .replace("@SCRAPE_CLUSTER@", &yaml(&pool.scrape.cluster))
        .replace("@SCRAPE_HEADER@", &yaml(&pool.scrape.address_header))
        .replace("@DESTINATION@", names::DESTINATION_ENDPOINT)
        .replace("@GATEWAY@", &args.gateway)
        .replace("@NAMESPACE@", &args.namespace)
}

fn lua(config: &Config, way: Way) -> String {
    let apply = if way == Way::Plugins { BY_ROUTE } else { BY_METADATA };
    let names: Vec<String> = stripped(config)
        .iter()
        .map(|name| format!("\n    \"{name}\""))
        .collect();
    let told = [
        (names::STATE_ENDPOINTS, names::DESTINATION_ENDPOINT),
        (names::STATE_MODEL, names::MODEL_NAME),
        (names::STATE_REPORT, names::LOAD_FORMAT),
    ];
    let told = told.map(|(state, header)| format!("\n    {state} = \"{header}\""));
    LUA.trim_end()
        .replace("@STRIP@", &format!("{}\n  ", names.join(",")))
        .replace("@HEADERS@", &format!("{}\n  ", told.join(",")))
        .replace("@APPLY@", apply)
        .replace("@WAIT@", names::STATE_WAIT)
        .replace("@ENDPOINTS@", names::STATE_ENDPOINTS)
}

/// Variables that are let in from the proxy's environment.
fn plugin_variables(pool: &Pool) -> String {
    let variables = variables([pool]);
    if variables.is_empty() {
        return String::new();
    }
    let variable = |name: &str| format!("      - {{ name: {}, valueFrom: HOST }}\n", yaml(name));
    let lines: String = variables.into_iter().map(variable).collect();
    format!("  vmConfig:\n    env:\n{lines}")
}

fn policy_variables(pool: &Pool) -> String {
    let variables = variables([pool]);
    if variables.is_empty() {
        return String::new();
    }
    format!("      env:\n        hostKeys: [{}]\n", list(&variables))
}

fn indented(text: &str, by: usize) -> String {
    let pad = " ".repeat(by);
    let lines: Vec<String> = text
        .lines()
        .map(|line| {
            if line.is_empty() {
                String::new()
            } else {
                format!("{pad}{line}")
            }
        })
        .collect();
    lines.join("\n")
}

const FALLBACK: &str = r#"                    # Serves when Berth passes a request: no table yet, or a body too large to hold.
                    fallback_policy:
                      policies:
                        - typed_extension_config:
                            name: envoy.load_balancing_policies.least_request
                            typed_config:
                              "@type": type.googleapis.com/envoy.extensions.load_balancing_policies.least_request.v3.LeastRequest
"#;

const ROUTES: &str =
    "    # Bodies wait until the pod is chosen. 2 MiB more than `body.hold`: the piece that reaches the bound must fit,
    # or Envoy answers 413.
    - applyTo: VIRTUAL_HOST
      match: { context: GATEWAY }
      patch:
        operation: MERGE
        value:
          request_body_buffer_limit: @BODY_LIMIT@
    # By itself Istio retries no status. A retry takes the next pod of the list that Berth wrote.
    - applyTo: HTTP_ROUTE
      match: { context: GATEWAY, routeConfiguration: { vhost: { route: { action: ROUTE } } } }
      patch:
        operation: MERGE
        value:
          route:
@IDLE@            retry_policy:
              retry_on: connect-failure,refused-stream,reset-before-request,retriable-status-codes
              retriable_status_codes: [429, 503]
";

/// Where requests wait, which they do in no other way than [`Way::Hold`].
const IDLE: &str =
    "            # What waits in a VM that traps has not come to the router, so only this ends it; Istio's own is off. An answer
            # that is not streamed is silent as long, until it is there.
            idle_timeout: @TIMEOUT@
";

const DIRECT_SCRAPE: &str = r#"    # Dials the exact pod that a callout names, in plain text. No route leads here.
    - applyTo: CLUSTER
      match: { context: GATEWAY }
      patch:
        operation: ADD
        value:
          name: @SCRAPE_CLUSTER@
          connect_timeout: 1s
          type: ORIGINAL_DST
          lb_policy: CLUSTER_PROVIDED
          original_dst_lb_config: { use_http_header: true, http_header_name: @SCRAPE_HEADER@ }
          typed_extension_protocol_options:
            envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
              "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
              common_http_protocol_options: { idle_timeout: 4s }
              explicit_http_config: { http_protocol_options: {} }
"#;

const MESH_SCRAPE: &str = r#"    # The same pods for Berth's own calls, with the mesh's TLS: a subset that no route leads to. Its fallback is always
    # empty: an address that is not here is a failed scrape, and never another pod's page.
    - applyTo: CLUSTER
      match:
        context: GATEWAY
        cluster: { name: @SCRAPE_CLUSTER@ }
      patch:
        operation: MERGE
        value:
          load_balancing_policy:
            policies:
              - typed_extension_config:
                  name: envoy.load_balancing_policies.override_host
                  typed_config:
                    "@type": type.googleapis.com/envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost
                    override_host_sources:
                      - header: @SCRAPE_HEADER@
                    fallback_policy:
                      policies:
                        - typed_extension_config:
                            name: envoy.load_balancing_policies.subset
                            typed_config:
                              "@type": type.googleapis.com/envoy.extensions.load_balancing_policies.subset.v3.Subset
                              fallback_policy: NO_FALLBACK
                              subset_selectors: [{ keys: [berth-never] }]
                              subset_lb_policy:
                                policies:
                                  - typed_extension_config:
                                      name: envoy.load_balancing_policies.round_robin
                                      typed_config:
                                        "@type": type.googleapis.com/envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin
"#;

/// How the choice gets from the Lua to the balancer.
const BY_METADATA: &str = r#"handle:streamInfo():dynamicMetadata():set("envoy.lb", "@DESTINATION@", pods)"#;
/// The same where a route with a match on the header does it.
const BY_ROUTE: &str = "handle:clearRouteCache()";

const RULE: &str = "---
# vLLM (uvicorn) and llama.cpp close idle connections after 5 s; a request sent at that moment would be lost.
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata:
  name: berth
  namespace: @NAMESPACE@
spec:
  host: @HOST@
  trafficPolicy:
    connectionPool:
      http: { idleTimeout: 4s }
";

const SUBSET: &str = "  # A second cluster of the same pods, for Berth's own calls.
  subsets:
    - name: berth-scrape
";
