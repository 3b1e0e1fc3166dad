//! Who polls: the companion service, a filter without one, whoever is left when VMs die, and one of two
//! generations of a listener.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use berth_tests_e2e::client::Client;
use berth_tests_e2e::rig::{Rig, Setup};
use berth_tests_simulator::server::Fault;

use crate::support::{busy, chat, idle, logged, pods, routed};

/// Requests go by what the pods show now, on both workers.
async fn routes_by_fresh_readings(rig: &Rig) -> Result<()> {
    for (best, other) in [("a", "b"), ("b", "a")] {
        rig.pin(&[(best, idle()), (other, busy())]).await?;
        for _ in 0..8 {
            let client = Client::new(rig.envoy.gateway);
            let answer = routed(&client, &chat("llama", "fresh", 50, 1)).await?;
            ensure!(answer.pod() == best, "{} with {best} idle", answer.pod());
            ensure!(answer.decision("reading") == "fresh", "{:?}", answer.headers);
        }
    }
    Ok(())
}

#[tokio::test]
async fn without_a_service_a_filter_polls_alone() -> Result<()> {
    let rig = Setup::new("filter-only", pods(2)).without_service().start().await?;
    routes_by_fresh_readings(&rig).await?;
    assert_eq!(rig.stat("pollers_begun").await?, 1, "{}", rig.envoy.log_text());
    assert_eq!(rig.stat("passed.no-table").await?, 0);
    Ok(())
}

#[tokio::test]
async fn when_the_service_dies_a_filter_polls_on() -> Result<()> {
    let rig = Setup::new("take-over", pods(2)).trapping().start().await?;
    assert_eq!(
        rig.stat("pollers_begun").await?,
        1,
        "the filters stand by: {}",
        rig.envoy.log_text()
    );
    rig.pod("b")?.set_fault(Fault::MetricsStatus { status: 418 }).await;
    logged(&rig, "the service traps").await?;
    rig.pod("b")?.set_fault(Fault::Clear).await;
    let published = rig.stat("published_at_seconds").await?;
    rig.until("a second poller", async || Ok(rig.stat("pollers_begun").await? == 2))
        .await?;
    routes_by_fresh_readings(&rig).await?;
    ensure!(rig.stat("published_at_seconds").await? > published);
    ensure!(rig.envoy.log_text().contains("polled from here, on an earlier table"));
    Ok(())
}

#[tokio::test]
async fn when_the_filter_that_polls_dies_another_one_does() -> Result<()> {
    let rig = Setup::new("filter-dies", pods(2))
        .without_service()
        .trapping()
        .start()
        .await?;
    rig.pod("b")?.set_fault(Fault::MetricsStatus { status: 419 }).await;
    logged(&rig, "the poller in the filter traps").await?;
    rig.pod("b")?.set_fault(Fault::Clear).await;
    rig.until("another poller", async || Ok(rig.stat("pollers_begun").await? == 2))
        .await?;
    routes_by_fresh_readings(&rig).await
}

#[tokio::test]
async fn a_new_configuration_of_the_listener_takes_over_the_polling() -> Result<()> {
    let rig = Setup::new("update", pods(2))
        .without_service()
        .listener_from_file()
        .start()
        .await?;
    // A client that stays keeps the old generation alive.
    let client = rig.client();
    routed(&client, &chat("llama", "before", 50, 1)).await?;
    rig.update_listener(r#"\"interval\":\"200ms\""#, r#"\"interval\":\"500ms\""#)?;
    logged(&rig, "polled by another context now").await?;
    assert_eq!(rig.stat("pollers_begun").await?, 2, "{}", rig.envoy.log_text());
    // Ten reads at 500 ms take 5 s; with the old generation's five per second they would take 1.4 s.
    let seen = rig.received("a", "/metrics")?.len();
    let began = Instant::now();
    rig.until("ten reads", async || {
        Ok(rig.received("a", "/metrics")?.len() >= seen + 10)
    })
    .await?;
    ensure!(began.elapsed() > Duration::from_millis(3_500), "{:?}", began.elapsed());
    routes_by_fresh_readings(&rig).await?;
    routed(&client, &chat("llama", "after", 50, 1)).await?;
    assert_eq!(rig.stat("pollers_begun").await?, 2, "{}", rig.envoy.log_text());
    Ok(())
}
