//! What a platform team puts behind one gateway: five models and forty adapters, a sixth model that is rolled out by
//! weight, and two tenants.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Result, ensure};
use berth_shared_state::names;
use berth_tests_e2e::client::Client;
use berth_tests_e2e::envoy::{Envoy, free_port, render, scratch};
use berth_tests_simulator::EngineConfig;
use berth_tests_simulator::server::Simulator;
use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::support::{CHAT, JSON, chat, pod, routed};

const MODELS: usize = 6;
const ADAPTERS_EACH: usize = 8;
const TENANT: &str = names::FAIRNESS_ID[0];

fn model(number: usize) -> String {
    format!("model-{number}")
}

fn adapters(number: usize) -> Vec<String> {
    (0..ADAPTERS_EACH)
        .map(|adapter| format!("adapter-{number}-{adapter}"))
        .collect()
}

/// One pod for each model, under the model's name. The sixth has no adapters, the first little room.
async fn simulators() -> Result<Vec<Simulator>> {
    let mut simulators = Vec::new();
    for number in 1..=MODELS {
        let mut config = pod(&model(number), &[]);
        config.model = model(number);
        if number < MODELS {
            config.adapters = adapters(number);
        }
        if number == 1 {
            // 1,280 tokens.
            config.engine = EngineConfig {
                num_gpu_blocks: 80,
                ..config.engine
            };
        }
        simulators.push(Simulator::start(config).await?);
    }
    Ok(simulators)
}

async fn gateway(simulators: &[Simulator]) -> Result<Envoy> {
    let pools: Vec<Value> = (1..)
        .zip(simulators)
        .map(|(number, pod)| {
            let address = pod.address().to_string();
            json!({"name": model(number), "discovery": {"static": [address]}, "scrape": {"interval": "200ms"}})
        })
        .collect();
    let config = json!({
        "pools": pools,
        "rewrites": [{"from": "assistant", "to": [{"model": model(5), "weight": 80}, {"model": model(6), "weight": 20}]}],
        "trust": {"headers": [TENANT]},
        "admission": {"queue": {"enabled": true}},
        "status": {"decision_header": true},
    });
    let folder = scratch("platform")?;
    let file = folder.join("berth.json");
    fs::write(&file, config.to_string())?;
    let (gateway, admin) = (free_port()?, free_port()?);
    let yaml = render(&file, gateway, admin, &[]).await?;
    Envoy::start(&folder, &yaml, gateway, admin, &[]).await
}

#[tokio::test]
async fn five_models_and_forty_adapters_stand_behind_one_gateway() -> Result<()> {
    let simulators = simulators().await?;
    let envoy = gateway(&simulators).await?;
    let client = envoy.client();
    // All names and the alias are listed once the pods have been read.
    let all = MODELS + (MODELS - 1) * ADAPTERS_EACH + 1;
    envoy
        .until("all names", async || {
            let listed = client.get("/v1/models").await?;
            Ok(listed.status == 200 && listed.json()["data"].as_array().map(Vec::len) == Some(all))
        })
        .await?;
    for number in 1..MODELS {
        for name in [vec![model(number)], adapters(number)].concat() {
            let answer = routed(&client, &chat(&name, "each", 20, 1)).await?;
            assert_eq!(
                (answer.pod(), &answer.json()["model"]),
                (model(number).as_str(), &json!(name))
            );
        }
    }
    let unknown = client.post(CHAT, &chat("adapter-9-9", "none", 20, 1)).await?;
    assert_eq!(unknown.status, 404, "{}", unknown.text());
    rolls_out(&client).await?;
    no_tenant_starves(&envoy).await
}

/// A fifth of 200: 40, and farther off than 27 once in a million times.
async fn rolls_out(client: &Client) -> Result<()> {
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for _ in 0..200 {
        let answer = routed(client, &chat("assistant", "canary", 20, 1)).await?;
        assert_eq!(answer.json()["model"], "assistant");
        *counts.entry(answer.pod().to_owned()).or_default() += 1;
    }
    let new = counts.get(&model(6)).copied().unwrap_or_default();
    let old = counts.get(&model(5)).copied().unwrap_or_default();
    ensure!((12..=69).contains(&new) && new + old == 200, "{counts:?}");
    Ok(())
}

/// One tenant sends ten times as much as the other, and first. In the order of their coming the other's last request
/// would be the last of all; in turns it is among the first half.
async fn no_tenant_starves(envoy: &Envoy) -> Result<()> {
    let (done, mut order) = mpsc::unbounded_channel();
    let ask = async |tenant: &'static str, number: usize| -> Result<()> {
        // A client of its own: connections go to both workers. Three of four such contexts fit at once.
        let body = chat(&model(1), &format!("{tenant} {number}"), 300, 60)
            .to_string()
            .into_bytes();
        let client = envoy.client();
        let answer = client.send("POST", CHAT, &[JSON, (TENANT, tenant)], body).await?;
        ensure!(answer.status == 200, "{tenant}: {} {}", answer.status, answer.text());
        done.send(tenant)?;
        Ok(())
    };
    let waiting = async || {
        envoy
            .stat(&format!("wasmcustom.berth.pool.{}.band.0.waiting", model(1)))
            .await
    };
    let greedy = join_all((0..40).map(|number| ask("greedy", number)));
    let modest = async {
        envoy
            .until("the greedy one to wait", async || Ok(waiting().await? >= Some(20)))
            .await?;
        join_all((0..4).map(|number| ask("modest", number)))
            .await
            .into_iter()
            .collect::<Result<Vec<_>>>()
    };
    let (greedy, modest) = tokio::join!(greedy, modest);
    greedy.into_iter().collect::<Result<Vec<_>>>()?;
    modest?;
    let order: Vec<&str> = std::iter::from_fn(|| order.try_recv().ok()).collect();
    let last = order.iter().rposition(|tenant| *tenant == "modest").unwrap_or_default();
    ensure!(order.len() == 44 && last < 36, "{order:?}");
    Ok(())
}
