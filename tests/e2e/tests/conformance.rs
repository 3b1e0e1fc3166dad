//! The conformance tests of the Gateway API Inference Extension that make sense without Kubernetes, replayed: their test picker
//! is told by a header which pods to take, and the subset hint tells Berth.
//!
//! Its other tests are elsewhere: the weighted split is the scenario `canary_gets_its_weight`, fail-open is
//! `failures::without_a_table_requests_pass_and_are_served` and those below it, h2c is
//! `models::a_name_is_replaced_on_the_way_and_comes_back`, routes and pools are `bodies` and the scenarios of pools.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use berth_shared_state::names;
use berth_tests_e2e::client::Client;
use berth_tests_e2e::rig::{Rig, Setup};
use berth_tests_simulator::server::Fault;
use serde_json::json;

use crate::support::{CHAT, JSON, busy, chat, full, idle, pod, pods, routed};

/// Sends 100 requests, 10 at a time, that may go to these pods only. How many each pod answered.
async fn designated(rig: &Rig, names: &[&str]) -> Result<BTreeMap<String, usize>> {
    let addresses: Result<Vec<String>> = names
        .iter()
        .map(|name| Ok(rig.pod(name)?.address().to_string()))
        .collect();
    let hint = addresses?.join(",");
    let mut counts = BTreeMap::new();
    for round in 0..10 {
        let mut tasks = Vec::new();
        for one in 0..10 {
            let (client, hint) = (Client::new(rig.envoy.gateway), hint.clone());
            let body = chat("llama", &format!("{hint} {round} {one}"), 20, 1)
                .to_string()
                .into_bytes();
            let headers = [
                (JSON.0.to_owned(), JSON.1.to_owned()),
                (names::ENDPOINT_SUBSET.to_owned(), hint),
            ];
            tasks.push(tokio::spawn(async move {
                let headers = headers.each_ref().map(|(name, value)| (name.as_str(), value.as_str()));
                client.send("POST", CHAT, &headers, body).await
            }));
        }
        for task in tasks {
            let answer = task.await??;
            ensure!(answer.status == 200, "{}: {}", answer.status, answer.text());
            *counts.entry(answer.pod().to_owned()).or_default() += 1;
        }
    }
    Ok(counts)
}

/// `GatewayFollowingEPPRouting`, and the same with data parallelism: eight ports of one address, each a pod of its own.
#[tokio::test]
async fn only_designated_ports_of_an_address_are_hit() -> Result<()> {
    let ranks = ["0", "1", "2", "3", "4", "5", "6", "7"];
    let rig = Setup::new("designated", ranks.map(|name| pod(name, &[])).into())
        .config(json!({"trust": {"headers": [names::ENDPOINT_SUBSET]}}))
        .start()
        .await?;
    for designated_ones in [&["3"][..], &["0", "4"], &["1", "2", "6"], &ranks] {
        let counts = designated(&rig, designated_ones).await?;
        let hit: Vec<&str> = counts.keys().map(String::as_str).collect();
        // Idle pods that cost the same take turns; with eight the number of requests leaves little room for a pod that was
        // found dearer.
        let all = designated_ones.len() <= 3;
        ensure!(
            hit.iter().all(|name| designated_ones.contains(name)),
            "{designated_ones:?}: {counts:?}"
        );
        ensure!(
            !all || hit.len() == designated_ones.len(),
            "{designated_ones:?}: {counts:?}"
        );
    }
    Ok(())
}

/// `GatewayDestinationEndpointServed`: a retry makes it another than the first of the list, and both ways to tell say so.
#[tokio::test]
async fn the_endpoint_that_served_is_reported() -> Result<()> {
    const SERVED: &str = "x-gateway-destination-endpoint-served";
    let rig = Setup::new("served", pods(3))
        .edit(
            "                override_host_sources:\n",
            &format!(
                "                selected_host_key: {{ key: envoy.lb, path: [{{ key: {SERVED} }}] }}\n                override_host_sources:\n"
            ),
        )
        .edit(
            "                      domains: [\"*\"]\n",
            &format!(
                "                      domains: [\"*\"]
                      response_headers_to_add:
                        - header: {{ key: x-conformance-test-served-endpoint, value: \"%UPSTREAM_REMOTE_ADDRESS%\" }}
                        - header: {{ key: {SERVED}, value: \"%DYNAMIC_METADATA(envoy.lb:{SERVED})%\" }}\n"
            ),
        )
        .start()
        .await?;
    rig.pin(&[("a", idle()), ("b", busy()), ("c", full())]).await?;
    let client = rig.client();
    let served = async |name: &str, expected: &str| -> Result<()> {
        let answer = routed(&client, &chat("llama", name, 50, 1)).await?;
        let address = rig.pod(expected)?.address().to_string();
        assert_eq!(answer.pod(), expected);
        for header in ["x-conformance-test-served-endpoint", SERVED] {
            ensure!(answer.header(header) == address, "{header}: {:?}", answer.headers);
        }
        Ok(())
    };
    served("first", "a").await.context("the first of the list")?;
    rig.pod("a")?
        .set_fault(Fault::InferenceStatus {
            status: 503,
            times: Some(1),
        })
        .await;
    served("retried", "b").await.context("after a retry")
}
