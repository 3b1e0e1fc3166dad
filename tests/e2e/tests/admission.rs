//! Full pods: who is sent away, who waits, and how tenants share.

use anyhow::{Context, Result, ensure};
use berth_tests_e2e::client::{Answer, Client};
use berth_tests_e2e::rig::{Rig, Setup};
use berth_tests_simulator::EngineConfig;
use berth_tests_simulator::server::{Pinned, SimulatorConfig};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::{CHAT, JSON, arrived, chat, full, idle, pod, pods, streamed};

const OBJECTIVE: &str = "x-gateway-inference-objective";
const TENANT: &str = "x-gateway-inference-fairness-id";

fn setup(name: &str, pods: Vec<SimulatorConfig>, queue: bool) -> Setup {
    let objectives = json!([{"name": "chat", "priority": 10}, {"name": "batch", "priority": -10}]);
    Setup::new(name, pods).config(json!({
        "trust": {"headers": [OBJECTIVE, TENANT]},
        "admission": {"objectives": objectives, "queue": {"enabled": queue, "max_wait": "4m"}},
    }))
}

async fn ask(client: &Client, header: (&str, &str), body: &Value) -> Result<Answer> {
    client
        .send("POST", CHAT, &[JSON, header], body.to_string().into_bytes())
        .await
}

async fn stat(rig: &Rig, name: String) -> Result<u64> {
    rig.stat(&name).await
}

/// Asks on a connection of its own, which the kernel gives to any worker.
fn spawn(rig: &Rig, header: (&'static str, &'static str), body: Value) -> JoinHandle<Result<Answer>> {
    let client = Client::new(rig.envoy.gateway);
    tokio::spawn(async move { ask(&client, header, &body).await })
}

#[tokio::test]
async fn what_is_sheddable_is_told_when_to_come_back_and_others_pass() -> Result<()> {
    let rig = setup("shed", pods(1), false).start().await?;
    rig.pin(&[("a", full())]).await?;
    let client = rig.client();
    let shed = ask(&client, (OBJECTIVE, "batch"), &chat("llama", "one", 100, 5)).await?;
    ensure!(shed.status == 429, "{} {}", shed.status, shed.text());
    assert_eq!(shed.header("x-berth-reason"), "saturated");
    assert_eq!(shed.json()["error"]["type"], "rate_limit_error");
    let seconds: u64 = shed.header("retry-after").parse().context("retry-after")?;
    // 40 prompts wait and the cache is full: more than a moment, less than the bound.
    ensure!((1..=60).contains(&seconds), "{seconds}");
    for objective in ["chat", "unheard-of"] {
        let answer = ask(&client, (OBJECTIVE, objective), &chat("llama", objective, 100, 5)).await?;
        ensure!(answer.status == 200, "{objective}: {}", answer.status);
    }
    assert_eq!(arrived(&rig, CHAT), 2);
    rig.until("the counts", async || {
        Ok(rig.stat("band.minus-10.refused").await? == 1
            && rig.stat("replied.saturated").await? == 1
            && rig.count("objectives_unknown").await? == 1)
    })
    .await?;
    rig.pin(&[("a", idle())]).await?;
    let answer = ask(&client, (OBJECTIVE, "batch"), &chat("llama", "two", 100, 5)).await?;
    ensure!(answer.status == 200, "{}", answer.status);
    Ok(())
}

#[tokio::test]
async fn what_waits_goes_on_unharmed_when_there_is_room() -> Result<()> {
    let rig = setup("hold", pods(1), true).start().await?;
    rig.pin(&[("a", full())]).await?;
    // A large body comes in pieces, and a stream is answered in pieces.
    let large = spawn(&rig, (OBJECTIVE, "batch"), chat("llama", "large", 20_000, 5));
    let stream = spawn(&rig, (OBJECTIVE, "chat"), streamed("llama", "stream", 100, 20));
    rig.until("both to wait", async || {
        let waiting = |band: &str| stat(&rig, format!("band.{band}.waiting"));
        Ok(waiting("minus-10").await? == 1 && waiting("10").await? == 1)
    })
    .await?;
    assert_eq!(arrived(&rig, CHAT), 0);
    rig.pin(&[("a", idle())]).await?;
    for (answer, priority) in [(stream.await??, "10"), (large.await??, "-10")] {
        ensure!(answer.status == 200, "{} {}", answer.status, answer.text());
        assert_eq!(answer.decision("priority"), priority);
        let waited: u64 = answer.decision("waited").parse().context("waited")?;
        ensure!(waited >= 100, "{waited}");
    }
    rig.until("the gauges to fall", async || {
        let waiting = |band: &str| stat(&rig, format!("band.{band}.waiting"));
        Ok(waiting("minus-10").await? == 0 && waiting("10").await? == 0)
    })
    .await
}

#[tokio::test]
async fn a_small_tenant_is_not_behind_the_backlog_of_a_large_one() -> Result<()> {
    const LARGE: usize = 40;
    const SMALL: usize = 4;
    // Room for four of these contexts, which take about a second each.
    let tight = SimulatorConfig {
        engine: EngineConfig {
            num_gpu_blocks: 61,
            max_model_len: 512,
            ..EngineConfig::h100()
        },
        ..pod("a", &[])
    };
    let rig = setup("tenants", vec![tight], true).start().await?;
    let waiting = |count: usize| {
        let held = rig.stat("band.0.held");
        async move { Ok(held.await? == count as u64) }
    };
    // Nothing goes until all of them wait.
    rig.pin(&[("a", full())]).await?;
    let mut answers: Vec<_> = (0..LARGE)
        .map(|index| spawn(&rig, (TENANT, "large"), chat("llama", &format!("{index:04}"), 100, 100)))
        .collect();
    rig.until("a backlog", || waiting(LARGE)).await?;
    // One word more, so that the pod's log tells them apart.
    answers.extend(
        (0..SMALL).map(|index| spawn(&rig, (TENANT, "small"), chat("llama", &format!("{index:04}"), 101, 100))),
    );
    rig.until("the small tenant to wait", || waiting(LARGE + SMALL)).await?;
    assert_eq!(arrived(&rig, CHAT), 0);
    rig.pin(&[("a", Pinned::default())]).await?;
    for answer in answers {
        let answer = answer.await??;
        ensure!(answer.status == 200, "{} {}", answer.status, answer.text());
    }
    let received = rig.received("a", CHAT)?;
    let longest = received.iter().map(|request| request.body_bytes).max();
    let places: Vec<usize> = (0..received.len())
        .filter(|place| Some(received[*place].body_bytes) == longest)
        .collect();
    assert_eq!(places.len(), SMALL);
    // By turns they are among the first eight; two workers, and what they were owed, may shift that. First come,
    // first served would have them at the end.
    let last = places.last().copied().unwrap_or_default();
    ensure!(last < LARGE - 5, "{places:?}");
    Ok(())
}
