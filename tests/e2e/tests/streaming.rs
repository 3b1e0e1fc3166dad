//! Streams: pieces arrive as they come, the first one teaches, and a client that leaves leaves nothing behind.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use berth_tests_e2e::rig::Setup;
use http_body_util::BodyExt;

use crate::support::{CHAT, arrived, chat, ledger_empties, once_read, pods, routed, streamed};

/// Prefill predicted for 4,000 tokens, milliseconds.
async fn prefill(rig: &berth_tests_e2e::rig::Rig, name: &str) -> Result<f64> {
    let answer = routed(&rig.client(), &chat("llama", name, 4_000, 1)).await?;
    answer.decision("prefill").parse().context("no prefill in the decision")
}

#[tokio::test]
async fn pieces_arrive_as_they_come() -> Result<()> {
    let rig = Setup::new("pieces", pods(2)).start().await?;
    // 400 tokens of 7 ms: the first must be here while the pod still works on the others.
    let mut response = rig.client().stream(CHAT, &streamed("llama", "pieces", 20, 400)).await?;
    assert_eq!(response.status(), 200);
    let name = response.headers()["x-simulator-pod"].to_str()?.to_owned();
    let first = response.body_mut().frame().await.context("no piece")??;
    ensure!(first.is_data());
    tokio::time::timeout(Duration::from_millis(1), rig.pod(&name)?.wait_in_flight(1))
        .await
        .context("the first piece came when the answer was over")?;
    let (mut pieces, mut text) = (1, String::new());
    while let Some(frame) = response.body_mut().frame().await {
        if let Ok(data) = frame?.into_data() {
            pieces += 1;
            text.push_str(&String::from_utf8_lossy(&data));
        }
    }
    ensure!(text.ends_with("data: [DONE]\n\n"), "{text}");
    ensure!(pieces > 50, "{pieces} pieces for 400 tokens");
    Ok(())
}

#[tokio::test]
async fn only_streams_teach_the_rate() -> Result<()> {
    let rig = Setup::new("teaches", pods(1)).start().await?;
    let client = rig.client();
    let before = prefill(&rig, "before").await?;
    ensure!(
        (495.0..=515.0).contains(&before),
        "4,000 tokens at the default 8,000/s: {before} ms"
    );
    // Whole answers take longer than their first token, and say nothing about it.
    for index in 0..5 {
        routed(&client, &chat("llama", &format!("whole {index}"), 4_000, 40)).await?;
    }
    let unmoved = prefill(&rig, "unmoved").await?;
    assert_eq!(unmoved, before);
    for index in 0..6 {
        routed(&client, &streamed("llama", &format!("stream {index}"), 4_000, 4)).await?;
    }
    // The pod reads 31,000 tokens a second; a loaded machine may show it slower, never 8,000.
    let learned = prefill(&rig, "learned").await?;
    ensure!((100.0..400.0).contains(&learned), "{learned} ms after six streams");
    Ok(())
}

#[tokio::test]
async fn a_client_that_leaves_leaves_nothing_in_the_ledger() -> Result<()> {
    let rig = once_read("leaves", 2).await?;
    ledger_empties(&rig).await?;
    let client = rig.client();
    let before = arrived(&rig, CHAT);
    // Streams that have begun ...
    let mut streams = Vec::new();
    for index in 0..6 {
        streams.push(
            client
                .stream(CHAT, &streamed("llama", &format!("s{index}"), 100, 4_000))
                .await?,
        );
    }
    // ... and whole answers that have not.
    let whole: Vec<_> = (0..6)
        .map(|index| {
            let (client, body) = (client.clone(), chat("llama", &format!("w{index}"), 100, 4_000));
            tokio::spawn(async move { client.post(CHAT, &body).await.map(|answer| answer.status) })
        })
        .collect();
    rig.until("twelve requests at the pods", async || {
        Ok(arrived(&rig, CHAT) >= before + 12)
    })
    .await?;
    let seen = routed(&client, &chat("llama", "probe", 1, 1)).await?;
    ensure!(
        seen.header("x-berth-decision").contains(";harm="),
        "twelve requests in flight are not seen: {:?}",
        seen.header("x-berth-decision")
    );
    drop(streams);
    whole.iter().for_each(tokio::task::JoinHandle::abort);
    for name in ["a", "b"] {
        rig.pod(name)?.wait_in_flight(0).await;
    }
    ledger_empties(&rig).await
}
