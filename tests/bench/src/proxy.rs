//! A real Envoy with Berth against the same Envoy without (round robin), in one run, turn by turn.
//!
//! Client, backends and both proxies share this machine, so the times are of a busy machine. What is compared
//! is alike on both sides, and the turns alternate, so that a ratio survives what the machine does beside.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use berth_tests_e2e::client::Client;
use berth_tests_e2e::envoy::{self, Envoy};
use serde_json::Value;

use crate::report::Group;
use crate::timing::{median, quantile};
use crate::{backend, world};

const PODS: usize = 4;
/// Connections at saturation.
const CONNECTIONS: usize = 8;
/// Time between two requests at the gentle rate.
const GENTLE: Duration = Duration::from_millis(5);
/// A clock tick of /proc is a hundredth of a second (`getconf CLK_TCK` on Linux).
const TICK_MICROS: f64 = 10_000.0;
const PATH: &str = "/v1/chat/completions";

/// What one turn of load showed.
#[derive(Clone, Copy, Debug)]
struct Turn {
    p50: f64,
    p99: f64,
    cpu: f64,
    rate: f64,
}

/// One of the two proxies.
struct Side {
    name: &'static str,
    envoy: Envoy,
    turns: Vec<Turn>,
}

/// Every group of this part.
pub fn run(quick: bool) -> Result<Vec<Group>> {
    tokio::runtime::Runtime::new()?.block_on(compare(quick))
}

async fn compare(quick: bool) -> Result<Vec<Group>> {
    let pods = backend::start(PODS).await?;
    let addresses: Vec<String> = pods.iter().map(ToString::to_string).collect();
    let config = serde_json::json!({"pools": [{"name": "llama", "discovery": {"static": addresses}}]});
    let mut sides = [
        side("without Berth", &config, &["--without-berth"]).await?,
        side("with Berth", &config, &[]).await?,
    ];
    let (turns, length) = if quick { (2, 2) } else { (7, 4) };
    let length = Duration::from_secs(length);
    for side in &sides {
        // V8 compiles hot functions anew while they run.
        saturate(
            side,
            &world::body(1 << 10),
            Duration::from_secs(if quick { 3 } else { 10 }),
        )
        .await?;
    }
    let mut groups = vec![idle(&sides, length).await?];
    for kib in [1, 32] {
        let body = world::body(kib << 10);
        for gentle in [true, false] {
            for _ in 0..turns {
                for side in &mut sides {
                    let turn = if gentle {
                        at_ease(side, &body, length).await?
                    } else {
                        saturate(side, &body, length).await?
                    };
                    side.turns.push(turn);
                }
            }
            let title = if gentle {
                format!("Envoy, {kib} KB bodies, {} requests/s", 1_000 / GENTLE.as_millis())
            } else {
                format!("Envoy, {kib} KB bodies, {CONNECTIONS} connections at saturation")
            };
            groups.push(summary(&title, &mut sides));
        }
    }
    groups.push(inside(&sides).await?);
    for side in sides {
        side.envoy.stop().await?;
    }
    Ok(groups)
}

async fn side(name: &'static str, config: &Value, more: &[&str]) -> Result<Side> {
    let folder = envoy::scratch("bench")?;
    let file = folder.join("berth.json");
    std::fs::write(&file, config.to_string())?;
    let (gateway, admin) = (envoy::free_port()?, envoy::free_port()?);
    let yaml = envoy::render(&file, gateway, admin, more).await?;
    Ok(Side {
        name,
        envoy: Envoy::start(&folder, &yaml, gateway, admin, &[]).await?,
        turns: Vec::new(),
    })
}

/// CPU of a proxy without requests: Berth scrapes, the other does nothing.
async fn idle(sides: &[Side], length: Duration) -> Result<Group> {
    let mut group = Group::new("Envoy without requests, 4 pods scraped once a second", "without Berth");
    for side in sides {
        let before = ticks(side)?;
        tokio::time::sleep(length).await;
        let used = (ticks(side)? - before) * TICK_MICROS / length.as_secs_f64();
        group.add_against(side.name, used / 10_000.0, "% of a core", None);
    }
    Ok(group)
}

fn ticks(side: &Side) -> Result<f64> {
    let ticks = side
        .envoy
        .cpu_ticks()
        .context("CPU time is read from /proc: Linux only")?;
    Ok(ticks as f64)
}

/// Requests one after another at a fixed rate.
async fn at_ease(side: &Side, body: &[u8], length: Duration) -> Result<Turn> {
    let client = side.envoy.client();
    let (before, began) = (ticks(side)?, Instant::now());
    let mut clock = tokio::time::interval(GENTLE);
    clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let mut times = Vec::new();
    while began.elapsed() < length {
        clock.tick().await;
        times.push(one(&client, body).await?);
    }
    turn(times, ticks(side)? - before, began.elapsed())
}

/// Requests as fast as they are answered, on several connections.
async fn saturate(side: &Side, body: &[u8], length: Duration) -> Result<Turn> {
    let (before, began) = (ticks(side)?, Instant::now());
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..CONNECTIONS {
        let (client, body) = (side.envoy.client(), body.to_vec());
        tasks.spawn(async move {
            let mut times = Vec::new();
            while began.elapsed() < length {
                times.push(one(&client, &body).await?);
            }
            Ok::<_, anyhow::Error>(times)
        });
    }
    let mut times = Vec::new();
    for part in tasks.join_all().await {
        times.extend(part?);
    }
    turn(times, ticks(side)? - before, began.elapsed())
}

/// Microseconds of one request.
async fn one(client: &Client, body: &[u8]) -> Result<f64> {
    let headers = [
        ("content-type", "application/json"),
        ("authorization", "Bearer sk-0123456789abcdef"),
    ];
    let began = Instant::now();
    let answer = client.send("POST", PATH, &headers, body.to_vec()).await?;
    let took = began.elapsed();
    anyhow::ensure!(answer.status == 200, "status {}: {}", answer.status, answer.text());
    Ok(took.as_nanos() as f64 / 1_000.0)
}

fn turn(mut times: Vec<f64>, ticks: f64, took: Duration) -> Result<Turn> {
    anyhow::ensure!(!times.is_empty(), "no request was answered");
    let requests = times.len() as f64;
    Ok(Turn {
        p50: quantile(&mut times, 0.5),
        p99: quantile(&mut times, 0.99),
        cpu: ticks * TICK_MICROS / requests,
        rate: requests / took.as_secs_f64(),
    })
}

/// The middle turn of each side, and the middle of the ratios of neighbouring turns.
fn summary(title: &str, sides: &mut [Side; 2]) -> Group {
    let mut group = Group::new(title, "without Berth");
    let [without, with] = sides;
    let (a, b) = (std::mem::take(&mut without.turns), std::mem::take(&mut with.turns));
    type Shown = (&'static str, &'static str, fn(&Turn) -> f64);
    let shown: [Shown; 4] = [
        ("latency p50", "us", |turn| turn.p50),
        ("latency p99", "us", |turn| turn.p99),
        ("CPU of a request", "us", |turn| turn.cpu),
        ("requests", "1/s", |turn| turn.rate),
    ];
    for (what, unit, value) in shown {
        let middle = |turns: &[Turn]| median(&mut turns.iter().map(value).collect::<Vec<_>>());
        let mut ratios: Vec<f64> = a.iter().zip(&b).map(|(a, b)| value(b) / value(a)).collect();
        group.add_against(format!("{what}, {}", without.name), middle(&a), unit, None);
        group.add_against(
            format!("{what}, {}", with.name),
            middle(&b),
            unit,
            Some(median(&mut ratios)),
        );
    }
    group
}

/// What the filter itself saw, from its histogram of all turns.
async fn inside(sides: &[Side; 2]) -> Result<Group> {
    let mut group = Group::new("Berth's own histogram berth.decision_us, over all turns", "p50");
    let stats = sides[1].envoy.stats("decision_us").await?;
    for part in ["P50", "P99"] {
        // "name: P0(interval,total) P25(...) ...": the total is what is wanted.
        let total = stats
            .split(&format!("{part}("))
            .nth(1)
            .and_then(|rest| rest.split(')').next());
        let total = total
            .and_then(|pair| pair.rsplit(',').next())
            .and_then(|text| text.parse().ok());
        if let Some(total) = total {
            group.add(part.to_lowercase(), total, "us");
        }
    }
    Ok(group)
}
