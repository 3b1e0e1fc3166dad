//! What is left when parts of Berth fail: requests are served, and nothing stays behind.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_tests_e2e::client::Client;
use berth_tests_e2e::rig::Setup;
use berth_tests_simulator::server::Fault;
use http_body_util::BodyExt;
use serde_json::json;

use crate::support::{CHAT, JSON, busy, chat, idle, ledger_empties, logged, pods, routed, streamed};

const FLAG: &str = "allow_on_headers_stop_iteration: true";

#[tokio::test]
async fn without_a_table_requests_pass_and_are_served() -> Result<()> {
    let rig = Setup::new("no-service", pods(2))
        .config(json!({"role": "service"}))
        .without_service()
        .unread()
        .start()
        .await?;
    let client = rig.client();
    let mut seen = Vec::new();
    for _ in 0..12 {
        let answer = client.post(CHAT, &chat("llama", "passes", 10, 1)).await?;
        assert_eq!((answer.status, answer.decision("pass")), (200, "no-table"));
        seen.push(answer.pod().to_owned());
    }
    // The fallback policy balances.
    ensure!(
        ["a", "b"].iter().all(|pod| seen.contains(&(*pod).to_owned())),
        "{seen:?}"
    );
    assert_eq!(rig.stat("passed.no-table").await?, 12);
    assert_eq!(rig.stat("routed").await?, 0);
    Ok(())
}

#[tokio::test]
async fn when_the_poller_dies_the_table_ages_and_requests_are_still_routed() -> Result<()> {
    let rig = Setup::new("poller", pods(2))
        .config(json!({"role": "service"}))
        .pool(json!({"routing": {"stale_after": "1s"}}))
        .trapping()
        .start()
        .await?;
    let client = rig.client();
    rig.pin(&[("a", idle()), ("b", busy())]).await?;
    assert_eq!(routed(&client, &chat("llama", "fresh", 50, 1)).await?.pod(), "a");
    rig.pod("b")?.set_fault(Fault::MetricsStatus { status: 418 }).await;
    logged(&rig, "the service traps").await?;
    // What was known of b's load is believed for a second, then both pods are alike.
    rig.until("an aged table", async || {
        let answer = routed(&client, &chat("llama", "aged", 50, 1)).await?;
        Ok(answer.decision("reading") == "unknown")
    })
    .await?;
    let mut seen = Vec::new();
    for _ in 0..20 {
        seen.push(routed(&client, &chat("llama", "later", 50, 1)).await?.pod().to_owned());
    }
    ensure!(
        ["a", "b"].iter().all(|pod| seen.contains(&(*pod).to_owned())),
        "{seen:?}"
    );
    Ok(())
}

#[tokio::test]
async fn a_worker_that_traps_takes_neither_the_table_nor_the_others_with_it() -> Result<()> {
    let rig = Setup::new("worker", pods(2))
        .pool(json!({"scrape": {"interval": "30s", "models_interval": "10m"}, "routing": {"stale_after": "5m"}}))
        .trapping()
        .unread()
        .start()
        .await?;
    rig.until("a page of every pod", async || {
        Ok(rig.stat("models_reads").await? >= 2 && rig.stat("scrapes").await? >= 2)
    })
    .await?;
    // A VM younger than a second and a half is not reloaded at once. A table is published every three seconds.
    let publishes = rig.stat("publishes").await?;
    rig.until("VMs of some age", async || {
        Ok(rig.stat("publishes").await? > publishes + 1)
    })
    .await?;
    ledger_empties(&rig).await?;
    // Sixteen streams, each on its own connection: the kernel gives both workers some.
    let mut streams = Vec::new();
    for index in 0..16 {
        let client = Client::new(rig.envoy.gateway);
        let response = client
            .stream(CHAT, &streamed("llama", &format!("{index}"), 100, 4_000))
            .await?;
        assert_eq!(response.status(), 200);
        streams.push(response);
    }
    let trap = [JSON, ("x-berth-test-trap", "now")];
    let body = chat("llama", "trap", 10, 1).to_string().into_bytes();
    let answer = Client::new(rig.envoy.gateway).send("POST", CHAT, &trap, body).await?;
    assert_eq!(answer.status, 503, "{}", answer.text());

    // Both workers route on, on the table they had; the trapped one has a new VM.
    for _ in 0..20 {
        let answer = routed(&Client::new(rig.envoy.gateway), &chat("llama", "after", 10, 1)).await?;
        assert_eq!(answer.decision("reading"), "fresh");
    }
    let reloads = rig.envoy.stat("wasm.berth.vm_reload_success").await?;
    assert_eq!(reloads, Some(1), "{}", rig.envoy.log_text());
    let (mut living, mut cut) = (Vec::new(), 0);
    for mut stream in streams {
        // What came before the trap is read first. Behind it a living stream has more tokens, one every few milliseconds;
        // one that was cut has nothing, and its connection's end up to a second later.
        let old = async { while let Some(Ok(_)) = stream.body_mut().frame().await {} };
        let over = tokio::time::timeout(Duration::from_millis(500), old).await.is_ok();
        let next = tokio::time::timeout(Duration::from_secs(5), stream.body_mut().frame());
        match next.await.context("neither token nor end")? {
            Some(Ok(_)) if !over => living.push(stream),
            _ => cut += 1,
        }
    }
    ensure!(
        !living.is_empty() && cut > 0,
        "{cut} streams were cut, {} go on",
        living.len()
    );
    // The dead VM's streams leave the ledger by themselves, the others when they end.
    drop(living);
    for name in ["a", "b"] {
        rig.pod(name)?.wait_in_flight(0).await;
    }
    ledger_empties(&rig).await
}

#[tokio::test]
async fn without_the_flag_requests_are_let_go_and_the_remedy_is_said() -> Result<()> {
    let rig = Setup::new("flag", pods(2))
        .edit(FLAG, "allow_on_headers_stop_iteration: false")
        .start()
        .await?;
    let gauge = "wasmcustom.berth.no_body_hold";
    assert_ne!(rig.envoy.stat(gauge).await?, Some(1));
    // Until both workers know, some wait for half a second; all are served.
    rig.until("both workers to have noticed", async || {
        for _ in 0..8 {
            let answer = Client::new(rig.envoy.gateway)
                .post(CHAT, &chat("llama", "flag", 10, 1))
                .await?;
            assert_eq!(
                (answer.status, answer.header("x-berth-decision")),
                (200, ""),
                "{}",
                answer.text()
            );
        }
        Ok(rig.envoy.log_text().matches(FLAG).count() >= 2)
    })
    .await?;
    assert_eq!(rig.envoy.stat(gauge).await?, Some(1));
    let passed = rig.count("passed.no-body-hold").await?;
    let began = Instant::now();
    for _ in 0..30 {
        let answer = Client::new(rig.envoy.gateway)
            .post(CHAT, &chat("llama", "quick", 10, 1))
            .await?;
        assert_eq!(answer.status, 200);
    }
    // Waiting would take 15 seconds.
    ensure!(
        began.elapsed() < Duration::from_secs(8),
        "30 requests took {:?}",
        began.elapsed()
    );
    assert_eq!(rig.count("passed.no-body-hold").await?, passed + 30);
    assert_eq!(rig.stat("routed").await?, 0);
    Ok(())
}

#[test]
fn what_traps_on_demand_is_not_in_dist() {
    let marker = b"x-berth-test-trap";
    let has = |file: &std::path::Path| {
        let bytes = std::fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        bytes.windows(marker.len()).any(|window| window == marker)
    };
    let root = berth_tests_e2e::envoy::root();
    for artifact in ["berth_filter.wasm", "berth_service.wasm"] {
        assert!(
            !has(&root.join("dist").join(artifact)),
            "dist/{artifact} traps on demand"
        );
        // The search would find it.
        assert!(
            has(&root.join("target/test-trap/wasm32-wasip1/release").join(artifact)),
            "{artifact}: run scripts/test-e2e"
        );
    }
}
