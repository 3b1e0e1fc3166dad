//! Simulated pods and an Envoy with Berth in front of them, as one thing.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use berth_tests_simulator::server::{Pinned, Received, Simulator, SimulatorConfig};
use serde_json::{Value, json};

use crate::client::Client;
use crate::envoy::{Envoy, free_port, render, root, scratch};

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
    /// Files of this run.
    pub folder: PathBuf,
}

/// What a rig is made of. Everything but the pods has a default.
pub struct Setup {
    name: String,
    pods: Vec<SimulatorConfig>,
    pool: Value,
    more: Value,
    render: Vec<String>,
    environment: Vec<(String, String)>,
    edits: Vec<(String, String)>,
    addresses: Vec<String>,
    serviced: bool,
    filed: bool,
    settles: bool,
}

impl Setup {
    /// A rig of these pods; `name` is for its folder.
    #[must_use]
    pub fn new(name: &str, pods: Vec<SimulatorConfig>) -> Self {
        Self {
            name: name.to_owned(),
            pods,
            pool: Value::Null,
            more: Value::Null,
            render: Vec::new(),
            environment: Vec::new(),
            edits: Vec::new(),
            addresses: Vec::new(),
            serviced: true,
            filed: false,
            settles: true,
        }
    }

    /// Merged into the pool of the Berth config.
    #[must_use]
    pub fn pool(mut self, pool: Value) -> Self {
        self.pool = pool;
        self
    }

    /// Merged into the Berth config at the top.
    #[must_use]
    pub fn config(mut self, more: Value) -> Self {
        self.more = more;
        self
    }

    /// Arguments of `berth render envoy`.
    #[must_use]
    pub fn render(mut self, args: &[&str]) -> Self {
        self.render.extend(args.iter().map(|arg| (*arg).to_owned()));
        self
    }

    /// A variable of Envoy's environment.
    #[must_use]
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// A pod that is no simulator.
    #[must_use]
    pub fn address(mut self, address: SocketAddr) -> Self {
        self.addresses.push(address.to_string());
        self
    }

    /// The modules that trap on demand, in place of those in `dist/`.
    #[must_use]
    pub fn trapping(self) -> Self {
        let dist = root().join("dist").display().to_string();
        let trap = root().join("target/test-trap/wasm32-wasip1/release");
        self.edit(&dist, &trap.display().to_string())
    }

    /// No companion service: the filter reads the pods.
    #[must_use]
    pub fn without_service(mut self) -> Self {
        self.serviced = false;
        self
    }

    /// The listener comes from a file, so that it can be replaced ([`Rig::update_listener`]).
    #[must_use]
    pub fn listener_from_file(mut self) -> Self {
        self.filed = true;
        self
    }

    /// Replaces a part of the rendered configuration, wherever it stands. A part that is not there
    /// is an error: the test would show nothing. `@port:a@` in the new part is the port of pod `a`,
    /// `@folder@` the rig's folder.
    #[must_use]
    pub fn edit(mut self, from: &str, to: &str) -> Self {
        self.edits.push((from.to_owned(), to.to_owned()));
        self
    }

    /// Does not wait for the pods to be read: they are not meant to be.
    #[must_use]
    pub fn unread(mut self) -> Self {
        self.settles = false;
        self
    }

    /// Starts everything, and waits until every pod was read.
    ///
    /// # Errors
    /// When something does not start.
    pub async fn start(self) -> Result<Rig> {
        let names: Vec<String> = self.pods.iter().map(|pod| pod.name.clone()).collect();
        let mut pods = Vec::new();
        for pod in self.pods {
            pods.push(Simulator::start(pod).await.context("a simulated pod does not start")?);
        }
        let mut addresses: Vec<String> = pods.iter().map(|pod| pod.address().to_string()).collect();
        addresses.extend(self.addresses);
        let folder = scratch(&self.name)?;
        let (gateway, admin) = (free_port()?, free_port()?);
        let file = folder.join("berth.json");
        let config = config(&addresses, self.pool, self.more);
        fs::write(&file, serde_json::to_string_pretty(&config)?)?;
        let args: Vec<&str> = self.render.iter().map(String::as_str).collect();
        let mut yaml = render(&file, gateway, admin, &args).await?;
        for (from, to) in &self.edits {
            ensure!(yaml.contains(from), "the rendered configuration has no {from:?}");
            yaml = yaml.replace(from, to);
        }
        if !self.serviced {
            yaml = without_service(&yaml)?;
        }
        yaml = yaml.replace("@folder@", &folder.display().to_string());
        for (name, pod) in names.iter().zip(&pods) {
            yaml = yaml.replace(&format!("@port:{name}@"), &pod.address().port().to_string());
        }
        if self.filed {
            yaml = split_listener(&folder, &yaml)?;
        }
        let environment: Vec<(&str, &str)> = self
            .environment
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        let envoy = Envoy::start(&folder, &yaml, gateway, admin, &environment).await?;
        let rig = Rig {
            pods,
            names,
            envoy,
            folder,
        };
        if self.settles {
            rig.settled().await?;
        }
        Ok(rig)
    }
}

impl Rig {
    /// Replaces a part of the listener, wherever it stands, in one step.
    ///
    /// # Errors
    /// When the part is not there, or the file cannot be written.
    pub fn update_listener(&self, from: &str, to: &str) -> Result<()> {
        let file = self.folder.join(LISTENERS);
        let text = fs::read_to_string(&file)?;
        ensure!(text.contains(from), "the listener has no {from:?}");
        let next = self.folder.join("next.yaml");
        fs::write(&next, text.replace(from, to))?;
        Ok(fs::rename(next, file)?)
    }

    /// The full name of a stat of the pool, as the admin page has it.
    #[must_use]
    pub fn stat_name(stat: &str) -> String {
        format!("wasmcustom.berth.pool.{POOL}.{stat}")
    }

    /// A counter or gauge of the pool; 0 when nobody counted yet.
    ///
    /// # Errors
    /// When the admin page does not answer.
    pub async fn stat(&self, stat: &str) -> Result<u64> {
        Ok(self.envoy.stat(&Self::stat_name(stat)).await?.unwrap_or(0))
    }

    /// A counter of the filter apart from the pool, such as `passed.upgrade`; 0 when nobody counted yet.
    ///
    /// # Errors
    /// When the admin page does not answer.
    pub async fn count(&self, stat: &str) -> Result<u64> {
        Ok(self.envoy.stat(&format!("wasmcustom.berth.{stat}")).await?.unwrap_or(0))
    }

    /// Waits until `probe` holds.
    ///
    /// # Errors
    /// When it never does; the message names what was waited for.
    pub async fn until<F>(&self, what: &str, probe: impl FnMut() -> F) -> Result<()>
    where
        F: Future<Output = Result<bool>>,
    {
        self.envoy.until(what, probe).await
    }

    /// What a pod received for a path, oldest first.
    ///
    /// # Errors
    /// When there is no such pod.
    pub fn received(&self, pod: &str, path: &str) -> Result<Vec<Received>> {
        let mut requests = self.pod(pod)?.requests();
        requests.retain(|request| request.path == path);
        Ok(requests)
    }

    /// Waits until every pod was read twice more and the result is published, so that what is true
    /// of the pods now is what the filter knows.
    ///
    /// # Errors
    /// When the poller makes no progress.
    pub async fn settled(&self) -> Result<()> {
        let pods = self.pods.len() as u64;
        self.until("the models page of every pod", async || {
            Ok(self.stat("models_reads").await? >= pods)
        })
        .await?;
        let scrapes = self.stat("scrapes").await? + 2 * pods;
        self.until("two scrapes of every pod", async || {
            Ok(self.stat("scrapes").await? >= scrapes)
        })
        .await?;
        let publishes = self.stat("publishes").await?;
        self.until("a published table", async || {
            Ok(self.stat("publishes").await? > publishes)
        })
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

/// Where a rig's listener is, if it comes from a file.
const LISTENERS: &str = "listeners.yaml";

/// Moves the only listener into a file of its own. Returns what is left.
fn split_listener(folder: &Path, yaml: &str) -> Result<String> {
    let (before, rest) = yaml.split_once("  listeners:\n").context("no listeners")?;
    let (listener, after) = rest.split_once("\n  clusters:").context("no clusters")?;
    let item = listener.replacen(
        "    - name: gateway",
        "    - \"@type\": type.googleapis.com/envoy.config.listener.v3.Listener\n      name: gateway",
        1,
    );
    fs::write(folder.join(LISTENERS), format!("resources:\n{item}\n"))?;
    let path = folder.join(LISTENERS);
    let dynamic = format!(
        "node: {{ id: rig, cluster: rig }}\ndynamic_resources:\n  lds_config: {{ resource_api_version: V3, path_config_source: {{ path: {path:?} }} }}\n"
    );
    Ok(format!("{dynamic}{before}  clusters:{after}"))
}

/// A rendered configuration without the companion service: a filter reads the pods, unless their config says
/// `"role": "service"`.
fn without_service(yaml: &str) -> Result<String> {
    let (before, rest) = yaml.split_once("bootstrap_extensions:").context("no service")?;
    let (_, after) = rest.split_once("static_resources:").context("no resources")?;
    Ok(format!("{before}static_resources:{after}"))
}

/// A Berth config for these pods, with fast scrapes and decisions shown.
#[must_use]
pub fn config(addresses: &[String], pool: Value, more: Value) -> Value {
    let mut base = json!({
        "name": POOL,
        "scrape": {"interval": "200ms", "timeout": "1s", "models_interval": "1s"},
    });
    if pool["discovery"].is_null() {
        base["discovery"] = json!({"static": addresses});
    }
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
