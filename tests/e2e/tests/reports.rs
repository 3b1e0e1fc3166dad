//! What polling costs in a real Envoy: the budget, and load that pods report in their answers.

use anyhow::{Result, ensure};
use berth_shared_state::names;
use berth_tests_e2e::rig::Setup;
use berth_tests_simulator::server::Pinned;
use serde_json::json;

use crate::support::{CHAT, JSON, chat, idle, once_read, pods, routed, streamed};

#[tokio::test]
async fn a_report_in_an_answer_counts_before_the_next_scrape_and_stays_inside() -> Result<()> {
    let rig = once_read("reports", 2).await?;
    let client = rig.client();
    // Read once as idle; what follows is known from answers alone.
    let full = Pinned {
        waiting: Some(40.0),
        kv_usage: Some(0.9),
        ..Pinned::default()
    };
    rig.pod("a")?.pin(full);
    rig.pod("b")?.pin(idle());
    rig.until("an answer of a", async || {
        let answer = routed(&client, &chat("llama", "finds out", 50, 1)).await?;
        ensure!(answer.header(names::LOAD_REPORT).is_empty(), "{:?}", answer.headers);
        Ok(answer.pod() == "a")
    })
    .await?;
    // 40 queued requests are seconds of work.
    rig.until("the report in a table", async || {
        let answer = routed(&client, &chat("llama", "looks", 50, 1)).await?;
        let (_, cost) = answer.decision("next").rsplit_once('@').unwrap_or_default();
        Ok(answer.pod() == "b" && cost.parse::<u32>().is_ok_and(|cost| cost > 1_000))
    })
    .await?;
    for _ in 0..8 {
        let answer = routed(&client, &chat("llama", "knows", 50, 1)).await?;
        ensure!(answer.pod() == "b", "{:?}", answer.headers);
    }
    for request in rig.received("b", CHAT)? {
        assert_eq!(request.header(names::LOAD_FORMAT), Some("TEXT"));
    }
    // A stream has no report, and is none the worse for being asked.
    let answer = client.post(CHAT, &streamed("llama", "stream", 50, 3)).await?;
    assert_eq!((answer.status, answer.header(names::LOAD_REPORT)), (200, ""));

    let body = chat("llama", "asks", 50, 1).to_string().into_bytes();
    let answer = client
        .send("POST", CHAT, &[JSON, (names::LOAD_FORMAT, "JSON")], body)
        .await?;
    ensure!(
        answer.header(names::LOAD_REPORT).starts_with("JSON {"),
        "{:?}",
        answer.headers
    );
    Ok(())
}

#[tokio::test]
async fn with_reports_off_answers_are_left_alone() -> Result<()> {
    let rig = Setup::new("no-reports", pods(1))
        .pool(json!({"scrape": {"in_band": false}}))
        .start()
        .await?;
    let client = rig.client();
    for _ in 0..4 {
        routed(&client, &chat("llama", "plain", 50, 1)).await?;
    }
    for request in rig.received("a", CHAT)? {
        ensure!(request.header(names::LOAD_FORMAT).is_none());
    }
    assert_eq!(rig.stat("load_reports").await?, 0);
    Ok(())
}

#[tokio::test]
async fn a_budget_stretches_the_interval_and_shows_it() -> Result<()> {
    // Two pods, five times a second each, would be 10 calls and 2 for models pages.
    let rig = Setup::new("budget", pods(2))
        .config(json!({"poll": {"budget_per_second": 4}}))
        .start()
        .await?;
    assert_eq!(rig.stat("scrape_interval_ms").await?, 1_000);
    ensure!(rig.envoy.log_text().contains("2 pods: each is scraped every 1000 ms"));
    let answer = routed(&rig.client(), &chat("llama", "routed", 50, 1)).await?;
    assert_eq!(answer.decision("reading"), "fresh");
    Ok(())
}
