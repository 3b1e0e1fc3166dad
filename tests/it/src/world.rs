//! The pods of a scenario: their present state, and what a proxy that calls them meets.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::{Value, json};

use crate::page::{Page, Pod};
use crate::scenario::Scenario;

/// Attempts that the rendered routes make at most: the list has three pods.
const ATTEMPTS_MAX: usize = 3;

/// Shared by whoever answers calls and whoever plays the steps.
pub type Shared = Rc<RefCell<World>>;

/// All pods.
#[derive(Debug)]
pub struct World {
    /// Unix seconds at the start.
    start: f64,
    pods: BTreeMap<String, (Pod, Value)>,
    addresses: BTreeMap<String, String>,
    /// Requests at each pod.
    active: BTreeMap<String, u32>,
}

/// Where the proxy's attempts ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The last pod tried.
    pub pod: String,
    /// How many were tried.
    pub attempts: u32,
    /// Its status; 0 = no pod could be reached.
    pub status: u16,
    /// Its body.
    pub says: String,
}

impl World {
    /// The pods as the file begins with them; `address` gives each its place.
    ///
    /// # Errors
    /// A pod that is none.
    pub fn new(scenario: &Scenario, start: f64, address: impl Fn(usize) -> String) -> Result<Self, String> {
        let mut pods = BTreeMap::new();
        let mut addresses = BTreeMap::new();
        for (index, (name, keys)) in scenario.pods.iter().enumerate() {
            let pod = Pod::with(&json!({}), keys).map_err(|error| format!("pod {name}: {error}"))?;
            pods.insert(name.clone(), pod);
            addresses.insert(name.clone(), address(index));
        }
        Ok(Self {
            start,
            pods,
            addresses,
            active: BTreeMap::new(),
        })
    }

    /// A pod changes.
    ///
    /// # Errors
    /// An unknown key.
    pub fn set(&mut self, name: &str, keys: &Value) -> Result<(), String> {
        let before = self.pods.get(name).map(|(_, raw)| raw.clone()).unwrap_or_default();
        let pod = Pod::with(&before, keys).map_err(|error| format!("pod {name}: {error}"))?;
        self.pods.insert(name.to_owned(), pod);
        Ok(())
    }

    /// `ip:port` of a pod.
    #[must_use]
    pub fn address(&self, name: &str) -> Option<String> {
        self.addresses.get(name).cloned()
    }

    /// The pod at an address; the address itself where there is none.
    #[must_use]
    pub fn name(&self, address: &str) -> String {
        let found = self.addresses.iter().find(|(_, at)| *at == address);
        found.map_or(address, |(name, _)| name).to_owned()
    }

    /// A GET to a pod, `seconds` after the start.
    #[must_use]
    pub fn get(&self, address: &str, path: &str, seconds: f64) -> Page {
        let pod = self.pods.get(&self.name(address));
        pod.map_or(Page::Refused, |(pod, _)| pod.get(path, self.start, seconds))
    }

    /// Envoy's `/clusters?format=json` for one cluster of these pods.
    #[must_use]
    pub fn clusters(&self, cluster: &str) -> String {
        let mut hosts = Vec::new();
        for (name, (pod, _)) in self.pods.iter().filter(|(_, (pod, _))| pod.listed) {
            let (ip, port) = self.addresses[name].rsplit_once(':').unwrap_or_default();
            let active = self.active.get(name).copied().unwrap_or(0).to_string();
            hosts.push(json!({
                "address": {"socket_address": {"address": ip, "port_value": port.parse::<u16>().unwrap_or(0)}},
                "stats": [{"name": "rq_active", "value": active, "type": "GAUGE"}],
                "health_status": {"eds_health_status": pod.health},
                "hostname": name, "weight": 1,
            }));
        }
        json!({"cluster_statuses": [{"name": cluster, "host_statuses": hosts}]}).to_string()
    }

    /// The proxy walks the list: the next pod after one that cannot be reached.
    #[must_use]
    pub fn walk(&self, list: &[String]) -> Option<Attempt> {
        let mut last = None;
        for (attempts, name) in (1..).zip(list.iter().take(ATTEMPTS_MAX)) {
            let (pod, _) = self.pods.get(name)?;
            let status = if pod.up { pod.serve } else { 0 };
            last = Some(Attempt {
                pod: name.clone(),
                attempts,
                status,
                says: pod.says.clone(),
            });
            if status != 0 {
                break;
            }
        }
        last
    }

    /// A request arrives at a pod or leaves it.
    pub fn count(&mut self, pod: &str, arrives: bool) {
        let count = self.active.entry(pod.to_owned()).or_default();
        *count = if arrives { *count + 1 } else { count.saturating_sub(1) };
    }
}
