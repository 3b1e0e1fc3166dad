//! Envoy's clusters through which Berth asks for pods: of the Kubernetes API, and of whoever has a JSON list.
//!
//! The former is the example in `envoy-config/`, with the names of the config. Deliberately not here: the clusters of the
//! pods themselves, and Envoy's own admin page.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use berth_shared_state::config::{Asks, Discovery, Pool};

use super::{EnvoyArgs, yaml};

const API: &str = include_str!("../../../../envoy-config/kubernetes-api.yaml");
const LIST: &str = include_str!("list.yaml");

/// The API's port, where its authority names none.
const API_PORT: &str = "443";

/// All of them, once each.
pub fn clusters(pools: &[Pool], args: &EnvoyArgs) -> anyhow::Result<String> {
    let mut made: BTreeMap<&str, String> = BTreeMap::new();
    for pool in pools {
        let (asks, text) = match &pool.discovery {
            Discovery::Kubernetes { asks, .. } if place(asks, args).is_none() => (asks, api(asks, args)),
            Discovery::Kubernetes { asks, .. } => (asks, list(asks, args)?),
            Discovery::Json { asks, .. } => (asks, list(asks, args)?),
            Discovery::Static(_) | Discovery::EnvoyAdmin { .. } => continue,
        };
        match made.insert(&asks.cluster, text.clone()) {
            Some(other) if other != text => bail!("the cluster {:?} is asked in two ways", asks.cluster),
            _ => {}
        }
    }
    Ok(made.into_values().collect())
}

/// Who takes a secret from a file must say who it is.
pub fn node(pools: &[Pool]) -> &'static str {
    let asks_api = |pool: &Pool| matches!(pool.discovery, Discovery::Kubernetes { .. });
    if pools.iter().any(asks_api) {
        "# The token for the Kubernetes API comes by SDS, from a file, and only to a proxy with a name.\nnode: { id: berth, cluster: berth }\n"
    } else {
        ""
    }
}

fn api(asks: &Asks, args: &EnvoyArgs) -> String {
    let (host, port) = asks.authority.split_once(':').unwrap_or((&asks.authority, API_PORT));
    let mut out = String::new();
    for line in API.lines().filter(|line| !line.starts_with('#')) {
        let line = line
            .replace("kubernetes_api", &yaml(&asks.cluster))
            .replace("kubernetes.default.svc", &yaml(host))
            .replace("port_value: 443", &format!("port_value: {port}"))
            .replace(
                "envoy-config/kubernetes-token.yaml",
                &yaml(&args.token.display().to_string()),
            );
        // Without Berth nobody asks.
        out.push_str(&format!("    {line}  #+\n"));
    }
    out
}

/// Where the question goes in plain text, as the arguments have it.
fn place<'a>(asks: &Asks, args: &'a EnvoyArgs) -> Option<&'a str> {
    let mut places = args.list.iter().filter_map(|list| list.split_once('='));
    places.find(|(name, _)| *name == asks.cluster).map(|(_, place)| place)
}

fn list(asks: &Asks, args: &EnvoyArgs) -> anyhow::Result<String> {
    let cluster = &asks.cluster;
    let place = place(asks, args).and_then(|place| place.rsplit_once(':'));
    let (host, port) = place.with_context(|| {
        format!("somebody has the list of cluster {cluster:?}: say where with --list {cluster}=name:port")
    })?;
    let port: u16 = port.parse().context("--list must be cluster=name:port")?;
    let host = host.trim_matches(['[', ']']);
    let kind = match host.parse::<std::net::IpAddr>() {
        Ok(_) => "STATIC",
        Err(_) => "STRICT_DNS",
    };
    Ok(LIST
        .replace("@CLUSTER@", &yaml(cluster))
        .replace("@KIND@", kind)
        .replace("@HOST@", &yaml(host))
        .replace("@PORT@", &port.to_string()))
}
