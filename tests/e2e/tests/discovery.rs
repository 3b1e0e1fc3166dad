//! Pods that Envoy finds: its own list, its view of their health, and what it counts.

use std::fs;
#[cfg(target_os = "linux")]
use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::{Result, ensure};
use berth_tests_e2e::envoy::{free_port, scratch};
use berth_tests_e2e::rig::Setup;
use berth_tests_simulator::server::Fault;
use serde_json::json;

#[cfg(target_os = "linux")]
use crate::pages::Names;
use crate::support::{
    CHAT, ENDPOINT, ENDPOINTS, busy, chat, full, goes_to, idle, knows, lands, logged, pod, pods, routed, streamed,
};

fn admin() -> serde_json::Value {
    json!({"discovery": {"envoy_admin": {"cluster": "pods", "interval": "200ms"}}})
}

const HEALTH: &str = "      type: STRICT_DNS
      health_checks:
        - { timeout: 1s, interval: 0.2s, no_traffic_interval: 0.2s, unhealthy_threshold: 1, healthy_threshold: 1, http_health_check: { path: /health } }
";

#[tokio::test]
async fn a_dns_name_is_all_that_is_configured() -> Result<()> {
    let mut one = pod("a", &[]);
    one.port = free_port()?.port();
    let dns = format!("127.0.0.1:{}", one.port);
    let rig = Setup::new("dns", vec![one])
        .pool(admin())
        .render(&["--dns", &dns])
        .start()
        .await?;
    let answer = routed(&rig.client(), &chat("llama", "dns", 10, 1)).await?;
    assert_eq!((answer.pod(), answer.decision("reading")), ("a", "fresh"));
    assert_eq!(rig.stat("pods").await?, 1);
    Ok(())
}

#[tokio::test]
async fn unhealthy_pods_are_no_candidates() -> Result<()> {
    let rig = Setup::new("health", pods(3))
        .pool(admin())
        .render(&["--dns", "127.0.0.1:1"])
        .edit(ENDPOINT, ENDPOINTS)
        .edit("      type: STRICT_DNS\n", HEALTH)
        .start()
        .await?;
    let client = rig.client();
    rig.pin(&[("a", idle()), ("b", busy()), ("c", full())]).await?;
    assert_eq!(lands(&client, &chat("llama", "all", 50, 1)).await?, "a");

    // Before any request fails: the health check alone takes a out.
    rig.pod("a")?.set_fault(Fault::RefuseConnections).await;
    rig.until("a decision without a", async || {
        let answer = routed(&client, &chat("llama", "two left", 50, 1)).await?;
        Ok(answer.decision("candidates") == "2" && answer.pod() == "b")
    })
    .await?;
    for name in ["b", "c"] {
        rig.pod(name)?.set_fault(Fault::RefuseConnections).await;
    }
    rig.until("nobody left", async || {
        let answer = client.post(CHAT, &chat("llama", "nobody", 10, 1)).await?;
        Ok(answer.header("x-berth-reason") == "no-ready-pod")
    })
    .await?;
    let answer = client.post(CHAT, &chat("llama", "nobody", 10, 1)).await?;
    assert_eq!((answer.status, answer.header("retry-after")), (503, "2"));
    assert_eq!(answer.json()["error"]["code"], "no-ready-pod", "{}", answer.text());
    for name in ["a", "b", "c"] {
        rig.pod(name)?.set_fault(Fault::Clear).await;
    }
    goes_to(&rig, "a").await
}

/// Several addresses of the own machine, which only Linux has without further ado.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_addresses_of_a_headless_service_come_and_go() -> Result<()> {
    let [first, second, third] = [1, 2, 3].map(|last| Ipv4Addr::new(127, 0, 0, last));
    let names = Names::start(&[first, second]).await?;
    let port = free_port()?.port();
    let mut three = pods(3);
    for (pod, ip) in three.iter_mut().zip([first, second, third]) {
        (pod.ip, pod.port) = (ip, port);
    }
    let resolver = format!(
        "      type: STRICT_DNS
      dns_lookup_family: V4_ONLY
      dns_refresh_rate: 0.2s
      typed_dns_resolver_config:
        name: envoy.network.dns_resolver.cares
        typed_config:
          \"@type\": type.googleapis.com/envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig
          resolvers: [{{ socket_address: {{ address: 127.0.0.1, port_value: {} }} }}]
          dns_resolver_options: {{ no_default_search_domain: true }}
",
        names.address.port()
    );
    let mut pool = admin();
    pool["discovery"]["envoy_admin"]["allow"] = json!(["127.0.0.0/8"]);
    let rig = Setup::new("headless", three)
        .pool(pool)
        .render(&["--dns", &format!("llama.prod.svc.cluster.test:{port}")])
        .edit("      type: STRICT_DNS\n", &resolver)
        .unread()
        .start()
        .await?;
    knows(&rig, 2).await?;
    for (name, pinned) in [("a", busy()), ("b", full()), ("c", idle())] {
        rig.pod(name)?.pin(pinned);
    }
    goes_to(&rig, "a").await?;
    names.set(&[first, second, third]);
    goes_to(&rig, "c").await?;
    names.set(&[second]);
    knows(&rig, 1).await?;
    goes_to(&rig, "b").await?;
    // It may be all there is, or an address that hides the rest.
    logged(&rig, "make the Service headless (clusterIP: None)").await?;
    // An address of the name server's choice is not followed everywhere.
    names.set(&[second, Ipv4Addr::new(169, 254, 169, 254)]);
    rig.until("a refusal", async || Ok(rig.stat("addresses_refused").await? == 1))
        .await?;
    ensure!(rig.stat("pods").await? == 1);
    Ok(())
}

/// Writes an endpoint file in one step, as Envoy wants it.
fn write_endpoints(file: &Path, ports: &[u16]) -> Result<()> {
    let endpoints: Vec<_> = ports
        .iter()
        .map(|port| json!({"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}}))
        .collect();
    let answer = json!({"resources": [{
        "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
        "cluster_name": "pods",
        "endpoints": [{"lb_endpoints": endpoints}],
    }]});
    let new = file.with_extension("new");
    fs::write(&new, answer.to_string())?;
    Ok(fs::rename(new, file)?)
}

#[tokio::test]
async fn hosts_come_and_go_and_the_ledger_agrees_with_the_proxy() -> Result<()> {
    let folder = scratch("eds-files")?;
    let file = folder.join("eds.json");
    let mut three = pods(3);
    let mut ports = Vec::new();
    for pod in &mut three {
        pod.port = free_port()?.port();
        ports.push(pod.port);
    }
    write_endpoints(&file, &ports)?;
    let rendered = format!(
        "      type: STRICT_DNS\n      load_assignment:\n        cluster_name: \"pods\"\n        endpoints:\n          - lb_endpoints:\n{ENDPOINT}"
    );
    let eds = format!(
        "      type: EDS\n      eds_cluster_config: {{ eds_config: {{ resource_api_version: V3, path_config_source: {{ path: \"{}\" }} }} }}\n",
        file.display()
    );
    let mut pool = admin();
    // Gauges are read once: only the ledger, and what Envoy counts, tells of what follows.
    pool["scrape"] = json!({"interval": "30s", "models_interval": "10m"});
    let rig = Setup::new("eds", three)
        .pool(pool)
        .render(&["--dns", "127.0.0.1:1"])
        .edit(&rendered, &eds)
        .edit(
            "admin:\n  address",
            "node: { id: e2e, cluster: e2e }\nadmin:\n  address",
        )
        .unread()
        .start()
        .await?;
    let client = rig.client();
    rig.until("three pods", async || {
        Ok(rig.stat("pods").await? == 3 && rig.stat("scrapes").await? >= 3)
    })
    .await?;
    rig.until("a decision on three", async || {
        let answer = client.post(CHAT, &chat("llama", "three", 50, 1)).await?;
        Ok(answer.decision("candidates") == "3")
    })
    .await?;

    // A long stream stays in the ledger, since Envoy counts it too.
    let stream = client.stream(CHAT, &streamed("llama", "long", 2_000, 6_000)).await?;
    let serving = stream.headers()["x-simulator-pod"].to_str()?.to_owned();

    // Another pod leaves: no request goes there, though it would answer.
    let gone = rig.names.iter().position(|name| *name != serving).unwrap_or_default();
    let (gone_name, gone_port) = (rig.names[gone].clone(), ports[gone]);
    let left: Vec<u16> = ports.iter().copied().filter(|port| *port != gone_port).collect();
    write_endpoints(&file, &left)?;
    knows(&rig, 2).await?;
    rig.until("a decision on two", async || {
        let answer = routed(&client, &chat("llama", "two", 50, 1)).await?;
        Ok(answer.decision("candidates") == "2")
    })
    .await?;
    let before = rig.received(&gone_name, CHAT)?.len();

    // Longer than the patience with which a request that Envoy does not know is kept.
    let reads = rig.stat("discovery_reads").await?;
    rig.until("16 s of discoveries", async || {
        Ok(rig.stat("discovery_reads").await? >= reads + 80)
    })
    .await?;
    for _ in 0..6 {
        let answer = routed(&client, &chat("llama", "beside", 2_000, 1)).await?;
        ensure!(
            answer.pod() != serving,
            "the stream at {serving} was forgotten: {:?}",
            answer.headers
        );
    }
    assert_eq!(rig.received(&gone_name, CHAT)?.len(), before);
    drop(stream);

    // It comes back, and others go: an empty set is an answer too.
    write_endpoints(&file, &[gone_port])?;
    goes_to(&rig, &gone_name).await
}
