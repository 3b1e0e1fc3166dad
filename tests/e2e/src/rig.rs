//! Simulated pods and an Envoy with Berth in front of them, as one thing.

use anyhow::{Context, Result};
use berth_tests_simulator::server::{Pinned, Simulator, SimulatorConfig};
use serde_json::{Value, json};

use crate::client::Client;
use crate::envoy::{Envoy, scratch};

/// The pool's name in every rig.
pub const POOL: &str = "demo";

/// Pods and a gateway.
pub struct Rig {
    /// The pods, in the order given.
    pub pods: Vec<Simulator>,
    /// Their names, in the same order.
    pub names: Vec<String>,
    /// The gateway.
    pub envoy: Envoy,
}

impl Rig {
    /// Starts everything and waits until every pod was read. `more` is merged into the Berth config
    /// at the top, `pool` into its pool.
    ///
    /// # Errors
    /// When something does not start.
    pub async fn start(name: &str, pods: Vec<SimulatorConfig>, pool: Value, more: Value) -> Result<Self> {
        let names = pods.iter().map(|pod| pod.name.clone()).collect();
        let mut running = Vec::new();
        for pod in pods {
            running.push(Simulator::start(pod).await.context("a simulated pod does not start")?);
        }
        let addresses: Vec<String> = running.iter().map(|pod| pod.address().to_string()).collect();
        let config = config(&addresses, pool, more);
        let envoy = Envoy::with_config(&scratch(name)?, &config, &[]).await?;
        let rig = Self {
            pods: running,
            names,
            envoy,
        };
        rig.settled().await?;
        Ok(rig)
    }

    /// Waits until every pod was read twice more and the result is published, so that what is true
    /// of the pods now is what the filter knows.
    ///
    /// # Errors
    /// When the poller makes no progress.
    pub async fn settled(&self) -> Result<()> {
        let stat = |name: &str| format!("wasmcustom.berth.pool.{POOL}.{name}");
        let read = async |name: &str| -> Result<u64> { Ok(self.envoy.stat(&stat(name)).await?.unwrap_or(0)) };
        let scrapes = read("scrapes").await? + 2 * self.pods.len() as u64;
        self.envoy
            .until("two scrapes of every pod", async || {
                Ok(read("scrapes").await? >= scrapes)
            })
            .await?;
        let publishes = read("publishes").await?;
        self.envoy
            .until("a published table", async || Ok(read("publishes").await? > publishes))
            .await
    }

    /// Pins what a pod's metrics page shows; the filter knows it when this returns.
    ///
    /// # Errors
    /// When the poller makes no progress.
    pub async fn pin(&self, pins: &[(&str, Pinned)]) -> Result<()> {
        for (name, pinned) in pins {
            self.pod(name)?.pin(pinned.clone());
        }
        self.settled().await
    }

    /// A pod by its name.
    ///
    /// # Errors
    /// When there is none.
    pub fn pod(&self, name: &str) -> Result<&Simulator> {
        let index = self
            .names
            .iter()
            .position(|known| known == name)
            .with_context(|| format!("no pod {name}"))?;
        self.pods.get(index).with_context(|| format!("no pod {name}"))
    }

    /// A client of the gateway.
    #[must_use]
    pub fn client(&self) -> Client {
        self.envoy.client()
    }
}

/// A Berth config for these pods, with fast scrapes and decisions shown.
#[must_use]
pub fn config(addresses: &[String], pool: Value, more: Value) -> Value {
    let mut base = json!({
        "name": POOL,
        "discovery": {"static": addresses},
        "scrape": {"interval": "200ms", "timeout": "1s", "models_interval": "1s"},
    });
    merge(&mut base, pool);
    let mut config = json!({"pools": [base], "status": {"decision_header": true}});
    merge(&mut config, more);
    config
}

/// Puts the keys of `from` into `to`; objects are merged, everything else is replaced.
fn merge(to: &mut Value, from: Value) {
    match (to, from) {
        (Value::Object(to), Value::Object(from)) => {
            for (key, value) in from {
                merge(to.entry(key).or_insert(Value::Null), value);
            }
        }
        (to, from) if !from.is_null() => *to = from,
        _ => {}
    }
}
