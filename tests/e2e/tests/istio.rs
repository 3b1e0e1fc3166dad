//! The recipes in `istio/`, translated as istiod does: extensions by extension discovery with an empty vm_id and no
//! flag, ordered by priority, in front of the filters that a gateway has anyway; then the patches of EnvoyFilters.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail, ensure};
use berth_tests_e2e::rig::Rig;
use berth_tests_it::manifest::{load, of_kind};
use serde_json::{Value, json};

use crate::kubernetes::{
    Place, Plane, endpoints, from_file, keeps_its_promises, merge, module, routes, send, socket, start, watched,
};
use crate::support::{busy, chat, idle, pods};

const HOST: &str = "llama.default.svc.cluster.local";
const ROUTER: &str = "envoy.filters.http.router";
const WASM: &str = "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm";

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
            ensure!(rule["spec"]["host"] == HOST, "a rule for another host");
            for subset in rule["spec"]["subsets"].as_array().into_iter().flatten() {
                let name = subset["name"].as_str().context("a subset without a name")?;
                clusters.push(service_cluster(place, &format!("outbound|8000|{name}|{HOST}"))?);
            }
        }
        let route = json!({
            "cluster": pool,
            // The mesh's default.
            "retry_policy": {
                "retry_on": "connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes",
                "num_retries": 2,
                "retry_host_predicate": [{
                    "name": "envoy.retry_host_predicates.previous_hosts",
                    "typed_config": {"@type": "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"},
                }],
                "host_selection_retry_max_attempts": "5",
                "retriable_status_codes": [503],
            },
        });
        let routes = routes(documents, &route)?;
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
                    "code": module(),
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
            let lua = json!({
                "name": "default.berth-hand-over",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua",
                    "default_source_code": {"inline_string": spec["lua"]["inlineCode"]},
                },
            });
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
                config["vm_config"]["code"] = module();
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
    keeps_its_promises(&gateway("hand-over", |_| Ok(())).await?).await
}

#[tokio::test]
async fn an_envoy_filter_alone_holds() -> Result<()> {
    keeps_its_promises(&gateway("hold", |_| Ok(())).await?).await
}

#[tokio::test]
async fn in_a_mesh_pods_are_read_through_a_subset_of_their_service() -> Result<()> {
    keeps_its_promises(&gateway("mesh", |_| Ok(())).await?).await
}
