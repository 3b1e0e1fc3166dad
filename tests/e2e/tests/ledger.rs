//! One ledger for all workers: what one sends the other knows at once.

use anyhow::{Result, ensure};
use berth_tests_e2e::client::Client;

use crate::support::{CHAT, arrived, chat, once_read};

#[tokio::test]
async fn a_burst_between_two_scrapes_spreads_over_all_workers() -> Result<()> {
    const REQUESTS: usize = 80;
    let rig = once_read("burst", 4).await?;
    let scrapes = rig.stat("scrapes").await?;
    // Every request has its own connection, so that the kernel spreads them over the workers.
    let tasks: Vec<_> = (0..REQUESTS)
        .map(|index| {
            let (client, body) = (
                Client::new(rig.envoy.gateway),
                chat("llama", &format!("{index}"), 100, 2_000),
            );
            tokio::spawn(async move { client.post(CHAT, &body).await })
        })
        .collect();
    rig.until("all requests at the pods", async || Ok(arrived(&rig, CHAT) >= REQUESTS))
        .await?;
    assert_eq!(rig.stat("scrapes").await?, scrapes, "a scrape came in between");
    let mut spread = Vec::new();
    for name in &rig.names {
        spread.push(rig.received(name, CHAT)?.len());
    }
    // Even is 20 each. Costs within 5 ms are equal and take turns; two workers may choose at once, which leaves some play.
    ensure!(
        spread.iter().all(|count| (14..=26).contains(count)),
        "uneven: {spread:?}"
    );
    for worker in ["worker_0", "worker_1"] {
        let stats = rig.envoy.stats(&format!("{worker}.downstream_cx_total")).await?;
        let most = stats
            .lines()
            .filter_map(|line| line.rsplit_once(": ")?.1.parse::<usize>().ok())
            .max();
        ensure!(
            most >= Some(REQUESTS / 8),
            "{worker} took {most:?} of the connections:\n{stats}"
        );
    }
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    Ok(())
}
