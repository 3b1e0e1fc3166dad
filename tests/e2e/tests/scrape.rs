//! Reading the pods: keys, bad pages, and whose page it is.

use anyhow::{Result, ensure};
use berth_tests_e2e::rig::{Rig, Setup};
use berth_tests_simulator::server::{Fault, Pinned, SimulatorConfig};
use serde_json::json;

use crate::support::{CHAT, busy, chat, idle, logged, pod, pods, routed, streamed};

const SECRET: &str = "Bearer s3cret-of-the-scrape";

/// Two pods whose pages need a key.
fn locked() -> Vec<SimulatorConfig> {
    let mut pods = vec![pod("a", &["sql"]), pod("b", &["sql"])];
    for pod in &mut pods {
        pod.authorization = Some(SECRET.to_owned());
    }
    pods
}

fn with_key() -> serde_json::Value {
    json!({"scrape": {"headers": {"authorization": {"env": "SCRAPE_KEY"}}}})
}

#[tokio::test]
async fn pages_behind_a_key_are_read_with_it_and_the_key_is_never_shown() -> Result<()> {
    let rig = Setup::new("key", locked())
        .pool(with_key())
        .variable("SCRAPE_KEY", SECRET)
        .edit(
            "    - prefix: /stats\n",
            "    - prefix: /stats\n    - exact: /config_dump\n",
        )
        .start()
        .await?;
    assert_eq!(rig.stat("scrape_failures").await?, 0);
    assert_eq!(rig.stat("models_failures").await?, 0);
    rig.pin(&[("a", busy()), ("b", idle())]).await?;
    let answer = routed(&rig.client(), &chat("llama", "key", 10, 1)).await?;
    assert_eq!((answer.pod(), answer.decision("reading")), ("b", "fresh"));
    // It is for the pages alone.
    for received in rig.received("b", CHAT)? {
        ensure!(
            !received.headers.iter().any(|(_, value)| value == SECRET),
            "{received:?}"
        );
    }
    let dump = berth_tests_e2e::client::Client::new(rig.envoy.admin)
        .get("/config_dump")
        .await?;
    ensure!(
        dump.status == 200 && dump.text().contains("SCRAPE_KEY"),
        "{}",
        dump.status
    );
    ensure!(!dump.text().contains("s3cret"), "the key is in the config dump");
    ensure!(!rig.envoy.log_text().contains("s3cret"), "the key is in the log");
    Ok(())
}

#[tokio::test]
async fn pages_behind_a_key_without_one_are_unknown_and_the_remedy_is_said() -> Result<()> {
    for (name, value) in [("no-key", None), ("wrong-key", Some("Bearer n0t-it"))] {
        let mut setup = Setup::new(name, locked()).pool(with_key());
        if let Some(value) = value {
            setup = setup.variable("SCRAPE_KEY", value);
        }
        let rig = setup.start().await?;
        ensure!(rig.stat("scrape_failures").await? >= 4);
        // Adapters are unknown, not absent: no 404 from Berth.
        for model in ["llama", "sql"] {
            let answer = routed(&rig.client(), &chat(model, "unknown", 10, 1)).await?;
            assert_eq!(answer.decision("reading"), "unknown", "{model}");
        }
        let log = rig.envoy.log_text();
        ensure!(
            log.contains("401") && log.contains("scrape.headers"),
            "no remedy in the log:\n{log}"
        );
        ensure!(!log.contains("n0t-it"), "a key is in the log");
    }
    Ok(())
}

/// The pod reads as unknown, though it would look idle.
async fn is_unknown(rig: &Rig, name: &str) -> Result<bool> {
    let address = rig.pod(name)?.address().to_string();
    for _ in 0..10 {
        let answer = routed(&rig.client(), &chat("llama", "bad page", 10, 1)).await?;
        if answer.decision("pod") == address {
            return Ok(answer.decision("reading") == "unknown");
        }
    }
    // Never chosen: an idle pod that could be read would have been.
    Ok(true)
}

#[tokio::test]
async fn bad_pages_make_a_pod_unknown_never_idle() -> Result<()> {
    let rig = Setup::new("pages", pods(3))
        .pool(json!({"routing": {"stale_after": "1s"}}))
        .start()
        .await?;
    rig.pin(&[("a", busy()), ("b", idle()), ("c", busy())]).await?;
    assert_eq!(routed(&rig.client(), &chat("llama", "before", 50, 1)).await?.pod(), "b");
    let faults = [
        (Fault::MetricsCut { bytes: 20_000 }, "pages_rejected"),
        (Fault::MetricsGarbage, "scrape_failures"),
        (Fault::MetricsHang, "scrape_failures"),
        (Fault::MetricsDelay { ms: 3_000 }, "scrape_failures"),
        (Fault::MetricsStatus { status: 500 }, "scrape_failures"),
    ];
    for (index, (fault, stat)) in faults.into_iter().enumerate() {
        // Gauges that never move would be taken for frozen.
        let moved = Pinned {
            running: Some(11.0 + index as f64),
            ..busy()
        };
        rig.pin(&[("a", moved.clone()), ("c", moved)]).await?;
        let before = rig.stat(stat).await?;
        rig.pod("b")?.set_fault(fault).await;
        rig.until(&format!("{fault:?} to be counted as {stat}"), async || {
            Ok(rig.stat(stat).await? > before)
        })
        .await?;
        rig.until(&format!("{fault:?} to make the pod unknown"), async || {
            let answer = routed(&rig.client(), &chat("llama", "bad", 50, 1)).await?;
            Ok(answer.pod() != "b")
        })
        .await?;
        ensure!(is_unknown(&rig, "b").await?, "{fault:?}");
        rig.until("the others to be read as before", async || {
            let answer = routed(&rig.client(), &chat("llama", "others", 50, 1)).await?;
            Ok(answer.decision("reading") == "fresh")
        })
        .await?;
        rig.pod("b")?.set_fault(Fault::Clear).await;
        rig.until("the pod to be read again", async || {
            Ok(routed(&rig.client(), &chat("llama", "again", 50, 1)).await?.pod() == "b")
        })
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn gauges_that_freeze_under_load_are_not_believed() -> Result<()> {
    let rig = Setup::new("frozen", pods(2)).start().await?;
    let client = rig.client();
    let streams = [
        client.stream(CHAT, &streamed("llama", "one", 50, 4_000)).await?,
        client.stream(CHAT, &streamed("llama", "two", 50, 4_000)).await?,
    ];
    rig.settled().await?;
    rig.pod("a")?.set_fault(Fault::MetricsFreeze).await;
    let began = rig.stat("scrapes").await?;
    // 15 seconds without a change, at 2 pods every 200 ms.
    rig.until(
        "15 s of scrapes",
        async || Ok(rig.stat("scrapes").await? >= began + 140),
    )
    .await?;
    logged(&rig, "has not moved").await?;
    let log = rig.envoy.log_text();
    let a = rig.pod("a")?.address().to_string();
    ensure!(
        log.lines()
            .filter(|line| line.contains("has not moved"))
            .all(|line| line.contains(&a)),
        "{log}"
    );
    drop(streams);
    Ok(())
}

/// The scrape cluster for pods behind mTLS, as envoy-config/full.yaml has it: it knows pods `a` and `b`.
const OVERRIDE_HOST: &str = r#"      type: STATIC
      load_assignment:
        cluster_name: berth_scrape
        endpoints:
          - lb_endpoints:
              - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: @port:a@ } } }
              - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: @port:b@ } } }
      load_balancing_policy:
        policies:
          - typed_extension_config:
              name: envoy.load_balancing_policies.override_host
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost
                override_host_sources:
                  - header: x-gateway-destination-endpoint
                fallback_policy:
                  policies:
                    - typed_extension_config:
                        name: envoy.load_balancing_policies.@fallback@
"#;
const NOBODY: &str = r#"subset
                        typed_config:
                          "@type": type.googleapis.com/envoy.extensions.load_balancing_policies.subset.v3.Subset
                          fallback_policy: NO_FALLBACK
                          subset_selectors: [{ keys: [berth-never] }]
                          subset_lb_policy:
                            policies:
                              - typed_extension_config:
                                  name: envoy.load_balancing_policies.round_robin
                                  typed_config:
                                    "@type": type.googleapis.com/envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin"#;
const ANYBODY: &str = r#"round_robin
                        typed_config:
                          "@type": type.googleapis.com/envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin"#;

async fn scraped_through(name: &str, fallback: &str) -> Result<Rig> {
    let original = "      type: ORIGINAL_DST\n      lb_policy: CLUSTER_PROVIDED\n      original_dst_lb_config: { use_http_header: true, http_header_name: \"x-gateway-destination-endpoint\" }\n";
    let rig = Setup::new(name, pods(3))
        .pool(json!({"scrape": {"address_header": "x-gateway-destination-endpoint"}}))
        .edit(original, &OVERRIDE_HOST.replace("@fallback@", fallback))
        .unread()
        .start()
        .await?;
    rig.until("eight rounds of scrapes", async || {
        Ok(rig.received("a", "/metrics")?.len() >= 8)
    })
    .await?;
    Ok(rig)
}

#[tokio::test]
async fn a_scrape_cluster_with_override_host_never_gives_another_pods_page() -> Result<()> {
    // c is a pod that the scrape cluster does not know (yet). Its scrapes must fail.
    let rig = scraped_through("override", NOBODY).await?;
    assert_eq!(rig.received("c", "/metrics")?.len(), 0);
    ensure!(rig.stat("scrape_failures").await? >= 2, "c's scrapes did not fail");
    // a and b answered for themselves alone: nearly all answers are theirs.
    rig.pin(&[("a", busy()), ("b", busy()), ("c", idle())]).await?;
    let (a, b) = (
        rig.received("a", "/metrics")?.len(),
        rig.received("b", "/metrics")?.len(),
    );
    ensure!(a.abs_diff(b) <= 3, "a was read {a} times, b {b} times");
    let good = rig.stat("scrapes").await? - rig.stat("scrape_failures").await?;
    ensure!(
        good <= (a + b) as u64 + 2,
        "{good} good scrapes, but a and b were read {} times",
        a + b
    );
    // c's load stays unknown, though its requests are served.
    let answer = routed(&rig.client(), &chat("llama", "c", 10, 1)).await?;
    ensure!(
        answer.pod() != "c" || answer.decision("reading") == "unknown",
        "{:?}",
        answer.headers
    );

    // What it is there for: with a usual fallback c would be given the page of another.
    let rig = scraped_through("override-any", ANYBODY).await?;
    assert_eq!(rig.received("c", "/metrics")?.len(), 0);
    assert_eq!(
        rig.stat("scrape_failures").await?,
        0,
        "the control fails too: this test shows nothing"
    );
    Ok(())
}
