//! The proxy walks the ranked list; the pods that failed are charged, avoided, and come back. Pods that take no
//! connection are scenarios.

use anyhow::{Context as _, Result, ensure};
use berth_tests_e2e::client::decision;
use berth_tests_e2e::rig::{Rig, Setup};
use berth_tests_simulator::server::Fault;

use crate::support::{CHAT, busy, chat, full, idle, lands, once_read, pod, pods, routed, streamed};

/// Pods that rank a, b, c.
async fn ranked(name: &str) -> Result<Rig> {
    let rig = Setup::new(name, pods(3)).start().await?;
    rig.pin(&[("a", idle()), ("b", busy()), ("c", full())]).await?;
    assert_eq!(lands(&rig.client(), &chat("llama", "before", 50, 2)).await?, "a");
    Ok(rig)
}

/// The request meets a failing `a`, `b` answers, `a` is avoided, then comes back.
async fn fails_over(rig: &Rig, fault: Fault) -> Result<()> {
    let client = rig.client();
    let a = rig.pod("a")?.address().to_string();
    let before = rig.received("a", CHAT)?.len();
    rig.pod("a")?.set_fault(fault).await;
    let answer = routed(&client, &chat("llama", "over", 50, 2)).await?;
    assert_eq!(answer.decision("pod"), a, "the list should have begun with a");
    assert_eq!(answer.pod(), "b", "the retry should have taken the second of the list");
    for _ in 0..5 {
        let answer = routed(&client, &chat("llama", "next", 50, 2)).await?;
        ensure!(
            answer.decision("pod") != a,
            "a failed a moment ago and was chosen again"
        );
        assert_eq!(answer.pod(), "b");
    }
    assert_eq!(
        rig.received("a", CHAT)?.len(),
        before + 1,
        "a got more than the first try"
    );
    rig.pod("a")?.set_fault(Fault::Clear).await;
    rig.until("requests at a again", async || {
        Ok(lands(&client, &chat("llama", "back", 50, 2)).await? == "a")
    })
    .await
}

#[tokio::test]
async fn a_pod_that_says_429_or_503_is_skipped_and_avoided() -> Result<()> {
    let rig = ranked("overloaded").await?;
    for status in [429, 503] {
        fails_over(&rig, Fault::InferenceStatus { status, times: None }).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_retry_never_goes_to_a_pod_without_the_adapter() -> Result<()> {
    // The pods without it would answer 404, which a client takes for the truth.
    let rig = Setup::new("adapter", vec![pod("a", &["sql"]), pod("b", &[]), pod("c", &[])])
        .start()
        .await?;
    let client = rig.client();
    for status in [429, 503] {
        rig.pod("a")?
            .set_fault(Fault::InferenceStatus { status, times: Some(1) })
            .await;
        let answer = routed(&client, &chat("sql", "again", 10, 1)).await?;
        assert_eq!(answer.pod(), "a", "the one pod that can was not asked again");
        rig.pod("a")?
            .set_fault(Fault::InferenceStatus { status, times: None })
            .await;
        let answer = client.post(CHAT, &chat("sql", "full", 10, 1)).await?;
        assert_eq!((answer.status, answer.pod()), (status, "a"));
        rig.pod("a")?.set_fault(Fault::Clear).await;
    }
    for name in ["b", "c"] {
        assert_eq!(rig.received(name, CHAT)?.len(), 0, "{name} was asked");
    }
    Ok(())
}

#[tokio::test]
async fn the_ledger_follows_the_request_to_the_pod_that_serves_it() -> Result<()> {
    // Gauges are read once and show idle pods: what a decision sees is the ledger alone.
    let rig = once_read("moved", 3).await?;
    let client = rig.client();
    let a = rig.pod("a")?.address().to_string();
    rig.pod("a")?
        .set_fault(Fault::InferenceStatus {
            status: 503,
            times: None,
        })
        .await;
    // The pods are equal and take turns; the first request that meets a is moved.
    let mut met = None;
    for number in 0..100 {
        let body = streamed("llama", &format!("{number} moved"), 4_000, 3_000);
        let answer = client.stream(CHAT, &body).await?;
        assert_eq!(answer.status(), 200);
        if decision(answer.headers()["x-berth-decision"].to_str()?, "pod") == a {
            met = Some(answer);
            break;
        }
    }
    let moved = met.context("a third of 100 requests meets a")?;
    let serving = moved.headers()["x-simulator-pod"].to_str()?.to_owned();
    let other = if serving == "b" { "c" } else { "b" };
    for number in 0..5 {
        let body = chat("llama", &format!("{number} beside"), 4_000, 1);
        assert_eq!(lands(&client, &body).await?, other);
    }
    // a holds nothing, but it is still avoided: it comes last.
    let answer = routed(&client, &chat("llama", "after", 4_000, 1)).await?;
    ensure!(answer.header("x-berth-decision").contains(&format!("next={a}@")));
    drop(moved);
    Ok(())
}

#[tokio::test]
async fn errors_of_the_client_charge_nobody_and_a_5xx_needs_two() -> Result<()> {
    let rig = ranked("charges").await?;
    let client = rig.client();
    let a = rig.pod("a")?;
    // Too long for any context: the engine's 400 is passed on, a stays the favourite.
    for _ in 0..3 {
        let answer = client.post(CHAT, &chat("llama", "long", 10, 1_000_000)).await?;
        assert_eq!((answer.status, answer.pod()), (400, "a"));
    }
    // A 500 that blames the context length is the client's as well.
    a.set_fault(Fault::InferenceContext).await;
    for _ in 0..3 {
        let answer = client.post(CHAT, &chat("llama", "context", 10, 2)).await?;
        assert_eq!((answer.status, answer.pod()), (500, "a"));
    }
    // Any other 5xx: one may be the request's fault, two are the pod's.
    a.set_fault(Fault::InferenceStatus {
        status: 500,
        times: None,
    })
    .await;
    for expected in ["a", "a", "b"] {
        let answer = client.post(CHAT, &chat("llama", "broken", 10, 2)).await?;
        assert_eq!(answer.pod(), expected);
    }
    Ok(())
}
