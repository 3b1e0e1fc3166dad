//! The recipes in `istio/`, translated as istiod does: extensions by extension discovery with an empty vm_id and no
//! flag, ordered by priority, in front of the filters that a gateway has anyway; then the patches of EnvoyFilters.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use berth_tests_e2e::client::Client;
use berth_tests_e2e::rig::Rig;
use berth_tests_it::manifest::{load, of_kind};
use berth_tests_simulator::server::Fault;
use hyper::HeaderMap;
use hyper::body::{Bytes, Frame};
use hyper::header::{HeaderName, HeaderValue};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::kubernetes::{
    Place, Plane, WASM, comes_back_after_a_trap, endpoints, from_file, http_options, keeps_its_promises, merge,
    previous_hosts, routes, send, socket, start, takes_large_bodies_and_retries, watched,
};
use crate::support::{CHAT, JSON, busy, chat, full, idle, pods};

const HOST: &str = "llama.default.svc.cluster.local";
const ROUTER: &str = "envoy.filters.http.router";

/// What istiod is about to send.
struct Draft<'a> {
    place: &'a Place,
    filters: Vec<Value>,
    routes: Value,
    clusters: Vec<Value>,
}

/// A cluster of a Service on a gateway.
fn service_cluster(place: &Place, name: &str) -> Result<Value> {
    Ok(json!({
        "name": name,
        "type": "EDS",
        "eds_cluster_config": {"eds_config": endpoints(&place.folder, name, &place.pods)?, "service_name": name},
        "connect_timeout": "10s",
        "lb_policy": "LEAST_REQUEST",
        "common_lb_config": {},
        "circuit_breakers": {"thresholds": [{
            "max_connections": u32::MAX, "max_pending_requests": u32::MAX, "max_requests": u32::MAX,
            "max_retries": u32::MAX, "track_remaining": true,
        }]},
        "metadata": {"filter_metadata": {"istio": {"services": [{"host": HOST, "name": "llama", "namespace": "default"}]}}},
    }))
}

/// What a DestinationRule makes: subsets of the pool's Service, or a Service that dials what it is told to.
fn ruled_clusters(place: &Place, rule: &Value) -> Result<Vec<Value>> {
    let host = rule["host"].as_str().context("no host")?;
    if rule["trafficPolicy"]["loadBalancer"]["simple"] == "PASSTHROUGH" {
        let mut cluster = service_cluster(place, &format!("outbound|8000||{host}"))?;
        cluster["type"] = json!("ORIGINAL_DST");
        cluster["lb_policy"] = json!("CLUSTER_PROVIDED");
        cluster
            .as_object_mut()
            .context("an object")?
            .remove("eds_cluster_config");
        return Ok(vec![cluster]);
    }
    ensure!(host == HOST, "a rule for another host");
    ensure!(
        rule["trafficPolicy"]["outlierDetection"].is_null(),
        "Envoy refuses what Istio makes of it"
    );
    let subsets = rule["subsets"].as_array().into_iter().flatten();
    let names = subsets.filter_map(|subset| subset["name"].as_str());
    names
        .map(|name| service_cluster(place, &format!("outbound|8000|{name}|{HOST}")))
        .collect()
}

/// Subsets have what their Service has.
fn ends_idle_connections(cluster: &mut Value, rule: &Value) {
    cluster["typed_extension_protocol_options"] =
        http_options(&rule["trafficPolicy"]["connectionPool"]["http"]["idleTimeout"]);
}

/// The cluster of a ServiceEntry with `resolution: DYNAMIC_DNS`.
fn dynamic_cluster(entry: &Value) -> Result<Value> {
    ensure!(entry["resolution"] == "DYNAMIC_DNS", "not translated here");
    let host = entry["hosts"][0].as_str().context("no host")?;
    Ok(json!({
        "name": format!("outbound|{}||{host}", entry["ports"][0]["number"]),
        "lb_policy": "CLUSTER_PROVIDED",
        "connect_timeout": "10s",
        "cluster_type": {
            "name": "envoy.clusters.dynamic_forward_proxy",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.clusters.dynamic_forward_proxy.v3.ClusterConfig",
                "dns_cache_config": {"name": host, "dns_lookup_family": "V4_ONLY"},
            },
        },
    }))
}

fn admin_cluster(admin: SocketAddr) -> Value {
    json!({
        "name": "prometheus_stats",
        "type": "STATIC",
        "connect_timeout": "0.250s",
        "lb_policy": "ROUND_ROBIN",
        "load_assignment": {
            "cluster_name": "prometheus_stats",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": socket(admin)}}]}],
        },
    })
}

fn lua(name: &str, source: &Value) -> Value {
    json!({
        "name": name,
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua",
            "default_source_code": {"inline_string": source},
        },
    })
}

/// Filters that a gateway has behind its extensions, as far as stock Envoy knows them.
fn usual_filters() -> Vec<Value> {
    let filter = |name: &str, of: &str| {
        let kind = format!("type.googleapis.com/envoy.extensions.filters.http.{of}");
        json!({"name": name, "typed_config": {"@type": kind}})
    };
    let mut stats = filter("envoy.filters.http.grpc_stats", "grpc_stats.v3.FilterConfig");
    stats["typed_config"]["emit_filter_state"] = json!(true);
    vec![
        stats,
        filter("envoy.filters.http.fault", "fault.v3.HTTPFault"),
        filter("envoy.filters.http.cors", "cors.v3.Cors"),
        filter(ROUTER, "router.v3.Router"),
    ]
}

impl Draft<'_> {
    fn of<'a>(documents: &[Value], place: &'a Place) -> Result<Draft<'a>> {
        let pool = format!("outbound|8000||{HOST}");
        let mut clusters = vec![service_cluster(place, &pool)?, admin_cluster(place.admin)];
        for rule in of_kind(documents, "DestinationRule") {
            let spec = &rule["spec"];
            clusters.extend(ruled_clusters(place, spec)?);
            for cluster in &mut clusters {
                let name = cluster["name"].as_str().unwrap_or_default();
                if name.ends_with(spec["host"].as_str().context("no host")?) {
                    ends_idle_connections(cluster, spec);
                }
            }
        }
        for entry in of_kind(documents, "ServiceEntry") {
            clusters.push(dynamic_cluster(&entry["spec"])?);
        }
        let cluster_of = |service: &str| format!("outbound|8000||{service}.default.svc.cluster.local");
        let route = |service: &str| {
            json!({
                "cluster": cluster_of(service),
                // The mesh's default.
                "retry_policy": {
                    "retry_on": "connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes",
                    "num_retries": 2,
                    "retry_host_predicate": [previous_hosts()],
                    "host_selection_retry_max_attempts": "5",
                    },
            })
        };
        let routes = routes(documents, route)?;
        let mut draft = Draft {
            place,
            filters: Vec::new(),
            routes: json!({"name": "http.80", "virtual_hosts": [{"name": "*:80", "domains": ["*"], "routes": routes}]}),
            clusters,
        };
        draft.extensions(documents)?;
        draft.filters.extend(usual_filters());
        for filter in of_kind(documents, "EnvoyFilter") {
            for patch in filter["spec"]["configPatches"].as_array().context("no patches")? {
                draft.patch(patch)?;
            }
        }
        Ok(draft)
    }

    /// WasmPlugins and TrafficExtensions of one phase, the higher priority first.
    fn extensions(&mut self, documents: &[Value]) -> Result<()> {
        let mut found: Vec<(i64, Value)> = Vec::new();
        for plugin in of_kind(documents, "WasmPlugin") {
            let spec = &plugin["spec"];
            ensure!(
                spec["phase"].is_null() && spec["failStrategy"] == "FAIL_RELOAD",
                "not translated here"
            );
            let keys = spec["vmConfig"]["env"].as_array().into_iter().flatten();
            let keys: Vec<&Value> = keys
                .filter(|key| key["valueFrom"] == "HOST")
                .map(|key| &key["name"])
                .collect();
            let config = json!({
                "name": "default.berth",
                "root_id": spec["pluginName"],
                "failure_policy": "FAIL_RELOAD",
                "vm_config": {
                    "runtime": "envoy.wasm.runtime.v8",
                    "code": self.place.code(),
                    "environment_variables": {"host_env_keys": keys},
                },
                "configuration": {
                    "@type": "type.googleapis.com/google.protobuf.StringValue",
                    "value": watched(&spec["pluginConfig"]),
                },
            });
            let name = "extensions.istio.io/trafficextension/default.berth";
            let extension = json!({"name": name, "typed_config": {"@type": WASM, "config": config}});
            found.push((
                spec["priority"].as_i64().unwrap_or_default(),
                self.discovered(&extension)?,
            ));
        }
        for extension in of_kind(documents, "TrafficExtension") {
            let spec = &extension["spec"];
            let lua = lua("default.berth-hand-over", &spec["lua"]["inlineCode"]);
            found.push((spec["priority"].as_i64().unwrap_or_default(), lua));
        }
        found.sort_by_key(|(priority, _)| -priority);
        self.filters.extend(found.into_iter().map(|(_, filter)| filter));
        Ok(())
    }

    /// A filter whose config comes by extension discovery.
    fn discovered(&self, extension: &Value) -> Result<Value> {
        let mut resource = extension.clone();
        resource["@type"] = json!("type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig");
        let source = from_file(&self.place.folder, "extension", &json!({"resources": [resource]}))?;
        Ok(json!({"name": extension["name"], "config_discovery": {"config_source": source, "type_urls": [WASM]}}))
    }

    /// Changes the config of a plugin that was translated already.
    fn rewrite_config(&self, change: impl FnOnce(&mut Value)) -> Result<()> {
        let source = |filter: &Value| {
            let path = &filter["config_discovery"]["config_source"]["path_config_source"]["path"];
            path.as_str().map(str::to_owned)
        };
        let file = &self.filters.iter().find_map(source).context("no plugin")?;
        let mut resources: Value = serde_json::from_slice(&fs::read(file)?)?;
        let value = &mut resources["resources"][0]["typed_config"]["config"]["configuration"]["value"];
        let mut config = serde_json::from_str(value.as_str().context("no config")?)?;
        change(&mut config);
        *value = json!(config.to_string());
        Ok(fs::write(file, resources.to_string())?)
    }

    fn patch(&mut self, patch: &Value) -> Result<()> {
        let (to, value) = (&patch["applyTo"], &patch["patch"]["value"]);
        let operation = &patch["patch"]["operation"];
        ensure!(patch["match"]["context"] == "GATEWAY", "for a gateway");
        match (to.as_str().unwrap_or_default(), operation.as_str().unwrap_or_default()) {
            ("CLUSTER", "ADD") => self.clusters.push(value.clone()),
            ("CLUSTER", "MERGE") => {
                let name = &patch["match"]["cluster"]["name"];
                let cluster = self.clusters.iter_mut().find(|cluster| cluster["name"] == *name);
                merge(cluster.with_context(|| format!("no cluster {name}"))?, value);
            }
            ("VIRTUAL_HOST", "MERGE") => merge(&mut self.routes["virtual_hosts"][0], value),
            ("HTTP_ROUTE", "MERGE") => {
                let action = &patch["match"]["routeConfiguration"]["vhost"]["route"]["action"];
                ensure!(action == "ROUTE", "a merge would change redirects");
                let routes = self.routes["virtual_hosts"][0]["routes"].as_array_mut();
                routes
                    .context("no routes")?
                    .iter_mut()
                    .for_each(|route| merge(route, value));
            }
            ("HTTP_FILTER", "INSERT_BEFORE") => {
                let before = &patch["match"]["listener"]["filterChain"]["filter"]["subFilter"]["name"];
                let place = self.filters.iter().position(|filter| filter["name"] == *before);
                self.filters.insert(place.context("no such filter")?, value.clone());
            }
            ("EXTENSION_CONFIG", "ADD") => {
                let mut extension = value.clone();
                let config = &mut extension["typed_config"]["config"];
                ensure!(
                    config["vm_config"]["code"]["remote"]["http_uri"]["uri"].is_string(),
                    "an image"
                );
                config["vm_config"]["code"] = self.place.code();
                let document = config["configuration"]["value"].as_str().context("no config")?;
                config["configuration"]["value"] = json!(watched(&serde_json::from_str(document)?));
                let discovered = self.discovered(&extension)?;
                let filter = self
                    .filters
                    .iter_mut()
                    .find(|filter| filter["name"] == extension["name"]);
                let filter = filter.context("no filter waits for it")?;
                ensure!(filter["config_discovery"]["type_urls"] == json!([WASM]), "of this type");
                *filter = discovered;
            }
            other => bail!("{other:?} is not translated here"),
        }
        Ok(())
    }

    fn plane(self) -> Plane {
        let manager = json!({
            "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": "outbound_0.0.0.0_80",
            "server_name": "istio-envoy",
            "use_remote_address": true,
            "normalize_path": true,
            "stream_idle_timeout": "0s",
            "upgrade_configs": [{"upgrade_type": "websocket"}],
            "http_filters": self.filters,
            "route_config": self.routes,
        });
        let filter = json!({"name": "envoy.filters.network.http_connection_manager", "typed_config": manager});
        Plane {
            listener: json!({"name": "0.0.0.0_80", "filter_chains": [{"filters": [filter]}]}),
            clusters: self.clusters,
        }
    }
}

/// A gateway with a recipe applied, and changed.
async fn gateway(recipe: &str, change: impl FnOnce(&mut Draft<'_>) -> Result<()>) -> Result<Rig> {
    let mut documents = load("istio/sample.yaml")?;
    documents.extend(load(format!("istio/{recipe}/berth.yaml"))?);
    if recipe == "plugins" {
        documents.extend(load("istio/plugins/route.yaml")?);
    }
    let mut three = pods(3);
    let keyed = recipe == "mesh";
    for pod in &mut three {
        pod.authorization = keyed.then(|| "Bearer key".to_owned());
    }
    let plane = |place: &Place| {
        let mut draft = Draft::of(&documents, place)?;
        change(&mut draft)?;
        Ok(draft.plane())
    };
    start(
        &format!("istio-{recipe}"),
        three,
        plane,
        &[("SCRAPE_AUTHORIZATION", "Bearer key")],
    )
    .await
}

#[tokio::test]
async fn a_wasm_plugin_hands_over_to_lua() -> Result<()> {
    let rig = gateway("hand-over", |_| Ok(())).await?;
    keeps_its_promises(&rig).await?;
    takes_large_bodies_and_retries(&rig).await?;

    // A body that ends with trailers, in pieces, over HTTP/2.
    let body = chat("llama", "trailers", 50, 1).to_string();
    let (first, last) = body.split_at(30);
    let (sender, frames) = mpsc::unbounded_channel();
    for piece in [first, last] {
        sender.send(Frame::data(Bytes::from(piece.to_owned())))?;
    }
    sender.send(Frame::trailers(HeaderMap::from_iter([(
        HeaderName::from_static("x-checksum"),
        HeaderValue::from_static("1"),
    )])))?;
    drop(sender);
    let answer = Client::http2(rig.envoy.gateway)
        .send_frames(CHAT, &[JSON], frames)
        .await?;
    assert_eq!(answer.status, 200, "{answer:?}");
    let served = rig.pod(answer.pod())?.address().to_string();
    assert_eq!(answer.decision("pod"), served, "it waited for the trailers");
    let received = rig.received(answer.pod(), CHAT)?.pop().context("it came")?;
    assert_eq!(received.body_bytes, body.len());
    comes_back_after_a_trap(&rig).await
}

#[tokio::test]
async fn a_body_of_unknown_length_over_the_limit_is_answered_with_413_and_a_declared_one_passes() -> Result<()> {
    let limit = 1 << 20;
    let rig = gateway("hand-over", |draft| {
        draft.routes["virtual_hosts"][0]["request_body_buffer_limit"] = json!(limit);
        draft.rewrite_config(|config| config["body"]["hold"] = json!("512KiB"))
    })
    .await?;
    let mut large = chat("llama", "large", 50, 1);
    large["padding"] = json!("x".repeat(2 * limit));
    let (sender, frames) = mpsc::unbounded_channel();
    sender.send(Frame::data(Bytes::from(large.to_string())))?;
    drop(sender);
    let answer = rig.client().send_frames(CHAT, &[JSON], frames).await?;
    assert_eq!(answer.status, 413, "{answer:?}");
    let answer = send(&rig, &[], &large).await?;
    assert_eq!((answer.status, answer.decision("pod")), (200, ""), "{answer:?}");
    assert_eq!(rig.count("passed.body-too-large").await?, 1);
    Ok(())
}

#[tokio::test]
async fn where_the_plugin_is_bypassed_a_client_does_not_steer_and_nothing_waits() -> Result<()> {
    let rig = gateway("hand-over", |draft| {
        // As if it were bypassed: it comes too late to be heard.
        draft.filters.swap(0, 1);
        Ok(())
    })
    .await?;
    rig.pin(&[("a", idle()), ("b", full()), ("c", full())]).await?;
    let wanted = rig.pod("c")?.address().to_string();
    let mut seen = BTreeSet::new();
    for number in 0..12 {
        let body = chat("llama", &number.to_string(), 10, 1);
        let answer = send(&rig, &[("x-gateway-destination-endpoint", &wanted)], &body).await?;
        assert_eq!(answer.status, 200, "{answer:?}");
        seen.insert(answer.pod().to_owned());
    }
    assert!(seen.len() > 1, "least request spreads: {seen:?}");
    assert!(
        rig.stat("elsewhere").await? > 0,
        "a counter shows that choices are not applied"
    );
    Ok(())
}

/// The cluster of an InferencePool, as Istio makes it.
fn inference_pool(draft: &mut Draft<'_>) {
    let path = |name: &str| json!({"key": "envoy.lb", "path": [{"key": name}]});
    let cluster = &mut draft.clusters[0];
    cluster["lb_policy"] = json!("CLUSTER_PROVIDED");
    cluster["load_balancing_policy"] = json!({"policies": [{"typed_extension_config": {
        "name": "envoy.load_balancing_policies.override_host",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost",
            "override_host_sources": [{"metadata": path("x-gateway-destination-endpoint")}],
            "selected_host_key": path("x-gateway-destination-endpoint-served"),
            "fallback_policy": {"policies": [{"typed_extension_config": {
                "name": "envoy.load_balancing_policies.round_robin",
                "typed_config": {"@type": "type.googleapis.com/envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin"},
            }}]},
        },
    }}]});
}

/// Puts a filter behind the extensions, where an endpoint picker is.
fn behind(draft: &mut Draft<'_>, filter: Value) {
    draft.filters.insert(2, filter);
}

#[tokio::test]
async fn an_inference_pool_is_served_while_its_picker_is_away() -> Result<()> {
    let rig = gateway("hand-over", |draft| {
        inference_pool(draft);
        let mut away = admin_cluster("127.0.0.1:1".parse()?);
        away["name"] = json!("picker");
        draft.clusters.push(away);
        behind(
            draft,
            json!({"name": "envoy.filters.http.ext_proc", "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor",
                "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}},
                "failure_mode_allow": true,
                "processing_mode": {"request_header_mode": "SEND", "response_header_mode": "SKIP"},
            }}),
        );
        Ok(())
    })
    .await?;
    rig.pin(&[("a", full()), ("b", idle()), ("c", full())]).await?;
    for number in 0..8 {
        let answer = send(&rig, &[], &chat("llama", &number.to_string(), 10, 1)).await?;
        assert_eq!((answer.status, answer.pod()), (200, "b"), "{answer:?}");
    }
    assert_eq!(rig.stat("elsewhere").await?, 0);
    Ok(())
}

#[tokio::test]
async fn a_picker_behind_berth_has_the_last_word_and_berth_sees_it() -> Result<()> {
    let rig = gateway("hand-over", |draft| {
        inference_pool(draft);
        let picked = draft.place.pods[2];
        // What the answer of an endpoint picker amounts to.
        let source = format!(
            "function envoy_on_request(handle) handle:streamInfo():dynamicMetadata():set(\"envoy.lb\", \"x-gateway-destination-endpoint\", \"{picked}\") end"
        );
        behind(draft, lua("picker", &source.into()));
        Ok(())
    })
    .await?;
    rig.pin(&[("a", idle()), ("b", busy()), ("c", full())]).await?;
    let answer = send(&rig, &[], &chat("llama", "picked", 10, 1)).await?;
    assert_eq!((answer.status, answer.pod()), (200, "c"), "{answer:?}");
    assert_eq!(rig.stat("elsewhere").await?, 1);
    Ok(())
}

#[tokio::test]
async fn an_envoy_filter_alone_holds() -> Result<()> {
    let rig = gateway("hold", |_| Ok(())).await?;
    keeps_its_promises(&rig).await?;
    takes_large_bodies_and_retries(&rig).await?;
    comes_back_after_a_trap(&rig).await
}

/// The router has seen nothing of what waits, so no other timeout ends it. What is rendered with a queue has this one.
#[tokio::test]
async fn what_waits_in_a_vm_that_traps_is_ended_by_the_idle_timeout() -> Result<()> {
    let rig = gateway("hold", |draft| {
        let routes = draft.routes["virtual_hosts"][0]["routes"].as_array_mut();
        for route in routes.context("no routes")? {
            route["route"]["idle_timeout"] = json!("10s");
        }
        draft.rewrite_config(|config| config["admission"] = json!({"queue": {"enabled": true, "max_wait": "4m"}}))
    })
    .await?;
    rig.pin(&[("a", full()), ("b", full()), ("c", full())]).await?;
    // One connection, so one worker.
    let client = Client::http2(rig.envoy.gateway);
    let waits = {
        let client = client.clone();
        tokio::spawn(async move { client.post(CHAT, &chat("llama", "waits", 100, 1)).await })
    };
    rig.until("it to wait", async || Ok(rig.stat("band.0.waiting").await? == 1))
        .await?;
    let body = chat("llama", "trap", 1, 1).to_string().into_bytes();
    let trap = client
        .send("POST", CHAT, &[JSON, ("x-berth-test-trap", "1")], body)
        .await?;
    assert_eq!(trap.status, 503, "{trap:?}");
    let answer = tokio::time::timeout(Duration::from_secs(60), waits).await;
    // Envoy's 504 passes through the filter of the dead VM, which makes it its own.
    let answer = answer.context("it hangs")???;
    assert_eq!(answer.status, 503, "{answer:?}");
    Ok(())
}

#[tokio::test]
async fn in_a_mesh_pods_are_read_through_a_subset_of_their_service() -> Result<()> {
    let rig = gateway("mesh", |_| Ok(())).await?;
    keeps_its_promises(&rig).await?;
    takes_large_bodies_and_retries(&rig).await
}

#[tokio::test]
async fn plugins_alone_route_by_a_header_that_only_berth_can_set() -> Result<()> {
    let rig = gateway("plugins", |_| Ok(())).await?;
    keeps_its_promises(&rig).await?;
    // Nothing retries a status here, and a retry would dial the same address.
    let once = Fault::InferenceStatus {
        status: 503,
        times: Some(1),
    };
    rig.pod("a")?.set_fault(once).await;
    let answer = send(&rig, &[], &chat("llama", "retry", 50, 1)).await?;
    assert_eq!((answer.status, answer.pod()), (503, "a"), "{answer:?}");
    // Envoy's own limit is 1 MiB: more passes, to the pods' own Service.
    let mut large = chat("llama", "large", 50, 1);
    large["padding"] = json!("x".repeat(900 << 10));
    let answer = send(&rig, &[], &large).await?;
    assert_eq!((answer.status, answer.decision("pod")), (200, ""), "{answer:?}");
    Ok(())
}

#[tokio::test]
async fn the_route_for_chosen_pods_dials_nothing_that_a_header_says() -> Result<()> {
    let rig = gateway("plugins", |draft| {
        // As if plugin and Lua were bypassed: the header is there, the filter state is not.
        let picked = draft.place.pods[2];
        let source = format!(
            "function envoy_on_request(handle) handle:headers():replace(\"x-gateway-destination-endpoint\", \"{picked}\") handle:headers():replace(\"x-envoy-original-dst-host\", \"{picked}\") handle:clearRouteCache() end"
        );
        behind(draft, lua("client", &source.into()));
        Ok(())
    })
    .await?;
    let text = [("content-type", "text/plain")];
    let answer = rig.client().send("POST", CHAT, &text, b"hello".to_vec()).await?;
    assert_eq!((answer.status, answer.pod()), (503, ""), "{answer:?}");
    Ok(())
}
