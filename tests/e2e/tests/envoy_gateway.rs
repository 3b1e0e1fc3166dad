//! The folder `envoy-gateway/`, translated as Envoy Gateway 1.9 does: an extension policy becomes a disabled filter that
//! the route turns on, in a VM of its own; traffic policies go into cluster, route and listener; patches come last.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use berth_tests_it::manifest::{load, of_kind};
use serde_json::{Map, Value, json};

use crate::kubernetes::{
    Place, Plane, WASM, comes_back_after_a_trap, endpoints, http_options, keeps_its_promises, previous_hosts, routes,
    start, takes_large_bodies_and_retries, watched,
};
use crate::support::pods;

/// Where Envoy Gateway binds the admin page.
const ADMIN: &str = "127.0.0.1:19000";

/// The only manifest of a kind.
fn the<'a>(documents: &'a [Value], kind: &'a str) -> Result<&'a Value> {
    of_kind(documents, kind).next().with_context(|| format!("no {kind}"))
}

/// The name that a policy's first module gets, as filter and as VM.
fn module_name(policy: &Value) -> Result<String> {
    let field = |name: &str| policy["metadata"][name].as_str().context("no name");
    Ok(format!(
        "envoyextensionpolicy/{}/{}/wasm/0",
        field("namespace")?,
        field("name")?
    ))
}

fn filter(policy: &Value, place: &Place) -> Result<Value> {
    let wasm = &policy["spec"]["wasm"][0];
    ensure!(
        wasm["code"]["type"] == "Image" && wasm["failOpen"].is_null(),
        "not translated here"
    );
    let name = module_name(policy)?;
    Ok(json!({
        "name": format!("envoy.filters.http.wasm/{name}"),
        "disabled": true,
        "typed_config": {"@type": WASM, "config": {
            "name": wasm["name"],
            "root_id": wasm["rootID"],
            "vm_config": {"vm_id": name, "runtime": "envoy.wasm.runtime.v8", "code": place.code()},
            "configuration": {
                "@type": "type.googleapis.com/google.protobuf.StringValue",
                "value": watched(&wasm["config"]),
            },
        }},
    }))
}

fn listener(documents: &[Value], place: &Place, cluster: &str) -> Result<Value> {
    let policy = the(documents, "EnvoyExtensionPolicy")?;
    let client = &the(documents, "ClientTrafficPolicy")?["spec"];
    let backend = &the(documents, "BackendTrafficPolicy")?["spec"];
    let removed = client["headers"]["earlyRequestHeaders"]["remove"].as_array();
    let mutations: Vec<Value> = removed
        .context("nothing removed")?
        .iter()
        .map(|name| json!({"remove": name}))
        .collect();
    let filter = filter(policy, place)?;
    let triggers = backend["retry"]["retryOn"]["triggers"]
        .as_array()
        .context("no triggers")?;
    let triggers: Vec<&str> = triggers.iter().filter_map(Value::as_str).collect();
    let route = |_: &str| {
        json!({
            "cluster": cluster,
            "idle_timeout": backend["timeout"]["http"]["streamIdleTimeout"],
            "upgrade_configs": [{"upgrade_type": "websocket"}],
            "retry_policy": {
                "num_retries": backend["retry"]["numRetries"],
                "retry_on": triggers.join(","),
                "retriable_status_codes": backend["retry"]["retryOn"]["httpStatusCodes"],
                "host_selection_retry_max_attempts": "5",
                "retry_host_predicate": [previous_hosts()],
            },
        })
    };
    let mut on = Map::new();
    let enabled = json!({"@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "config": {}});
    on.insert(filter["name"].as_str().unwrap_or_default().to_owned(), enabled);
    let mut routes = routes(documents, route)?;
    for route in &mut routes {
        route["typed_per_filter_config"] = json!(on);
    }
    let manager = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "http-10080",
        "use_remote_address": true,
        "normalize_path": true,
        "merge_slashes": true,
        "path_with_escaped_slashes_action": "UNESCAPE_AND_REDIRECT",
        "server_header_transformation": "PASS_THROUGH",
        "common_http_protocol_options": {"headers_with_underscores_action": "REJECT_REQUEST"},
        "early_header_mutation_extensions": [{
            "name": "envoy.http.early_header_mutation.header_mutation",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation",
                "mutations": mutations,
            },
        }],
        "http_filters": [filter, {"name": "envoy.filters.http.router", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router", "suppress_envoy_headers": true,
        }}],
        "route_config": {"name": "default/llama/http", "virtual_hosts": [
            {"name": "default/llama/http/*", "domains": ["*"], "routes": routes},
        ]},
    });
    Ok(json!({
        "name": "default/llama/http",
        "per_connection_buffer_limit_bytes": client["connection"]["bufferLimit"],
        "default_filter_chain": {"filters": [
            {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager},
        ]},
    }))
}

fn cluster(documents: &[Value], place: &Place, name: &str) -> Result<Value> {
    let backend = &the(documents, "BackendTrafficPolicy")?["spec"];
    let balancer = &backend["loadBalancer"];
    ensure!(balancer["type"] == "LeastRequest", "not translated here");
    let limits = &backend["circuitBreaker"];
    Ok(json!({
        "name": name,
        "type": "EDS",
        "eds_cluster_config": {"eds_config": endpoints(&place.folder, name, &place.pods)?, "service_name": name},
        "connect_timeout": "10s",
        "common_lb_config": {},
        "ignore_health_on_host_removal": true,
        "per_connection_buffer_limit_bytes": 32768,
        "circuit_breakers": {"thresholds": [{
            "max_connections": limits["maxConnections"],
            "max_pending_requests": limits["maxPendingRequests"],
            "max_requests": limits["maxParallelRequests"],
            "max_retries": limits["maxParallelRetries"],
        }]},
        "typed_extension_protocol_options": http_options(&backend["timeout"]["http"]["connectionIdleTimeout"]),
        "load_balancing_policy": {"policies": [{"typed_extension_config": {
            "name": "envoy.load_balancing_policies.override_host",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost",
                "override_host_sources": balancer["endpointOverride"]["extractFrom"],
                "fallback_policy": {"policies": [{"typed_extension_config": {
                    "name": "envoy.load_balancing_policies.least_request",
                    "typed_config": {"@type": "type.googleapis.com/envoy.extensions.load_balancing_policies.least_request.v3.LeastRequest"},
                }}]},
            },
        }}]},
    }))
}

/// Applies one operation; of JSONPath only `..list[?(@.name=='x')].field.field` is known.
fn patch(plane: &mut Plane, patch: &Value, admin: SocketAddr) -> Result<()> {
    let operation = &patch["operation"];
    ensure!(operation["op"] == "add", "not translated here");
    let kind = patch["type"].as_str().unwrap_or_default();
    if kind.ends_with(".Cluster") && operation["path"] == "" {
        ensure!(operation["value"]["name"] == patch["name"], "two names of one cluster");
        let text = operation["value"].to_string();
        let (here, port) = ADMIN.split_once(':').context("an address")?;
        let there = format!(r#"{{"address":"{here}","port_value":{port}}}"#);
        let value = text.replace(
            &there,
            &format!(r#"{{"address":"{here}","port_value":{}}}"#, admin.port()),
        );
        ensure!(
            (value != text) == (patch["name"] == "berth_admin"),
            "the admin page is at {ADMIN}"
        );
        plane.clusters.push(serde_json::from_str(&value)?);
        return Ok(());
    }
    ensure!(
        kind.ends_with(".Listener") && patch["name"] == plane.listener["name"],
        "no such resource"
    );
    let path = operation["jsonPath"].as_str().context("no JSONPath")?;
    let (list, rest) = path
        .strip_prefix("..")
        .and_then(|path| path.split_once("[?(@.name=='"))
        .context("a list")?;
    let (name, fields) = rest.split_once("')].").context("a name")?;
    let mut place = named(&mut plane.listener, list, name).with_context(|| format!("no {name} in {list}"))?;
    for field in fields.split('.') {
        place = place.get_mut(field).with_context(|| format!("no {field}"))?;
    }
    let key = operation["path"]
        .as_str()
        .and_then(|path| path.strip_prefix('/'))
        .context("a path")?;
    place[key] = operation["value"].clone();
    Ok(())
}

/// The item of this name in any list of that name.
fn named<'a>(value: &'a mut Value, list: &str, name: &str) -> Option<&'a mut Value> {
    match value {
        Value::Object(fields) => fields.iter_mut().find_map(|(key, field)| {
            if key == list {
                field.as_array_mut()?.iter_mut().find(|item| item["name"] == name)
            } else {
                named(field, list, name)
            }
        }),
        Value::Array(items) => items.iter_mut().find_map(|item| named(item, list, name)),
        _ => None,
    }
}

#[tokio::test]
async fn the_policies_of_envoy_gateway_route() -> Result<()> {
    let mut documents = load("envoy-gateway/sample.yaml")?;
    documents.extend(load("envoy-gateway/berth.yaml")?);
    let name = "httproute/default/llama/rule/0";
    let plane = |place: &Place| {
        let mut plane = Plane {
            listener: listener(&documents, place, name)?,
            clusters: vec![cluster(&documents, place, name)?],
        };
        let patches = &the(&documents, "EnvoyPatchPolicy")?["spec"]["jsonPatches"];
        for found in patches.as_array().context("no patches")? {
            patch(&mut plane, found, place.admin)?;
        }
        Ok(plane)
    };
    let rig = start("envoy-gateway", pods(3), plane, &[]).await?;
    keeps_its_promises(&rig).await?;
    takes_large_bodies_and_retries(&rig).await?;
    comes_back_after_a_trap(&rig).await
}
