//! The pods of a scenario: their present state, and what a proxy that calls them meets.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::{Value, json};

use crate::page::{Page, Pod};
use crate::scenario::{Discovery, Says, Scenario};

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
    discovery: Discovery,
    /// What discovery answers.
    says: Says,
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
            discovery: scenario.discovery,
            says: Says::default(),
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

    /// What discovery answers from now on.
    pub fn discovery(&mut self, says: Says) {
        self.says = says;
    }

    /// The answer about all pods of a pool, by the scenario's way of discovery.
    #[must_use]
    pub fn pods_page(&self, pool: &str) -> Page {
        let page = match self.discovery {
            Discovery::Kubernetes => self.slices(pool),
            Discovery::Json => self.list(),
            Discovery::Static | Discovery::EnvoyAdmin => self.clusters(pool),
        };
        match self.says {
            Says::Ok => Page::Answer(200, page),
            Says::Refused => Page::Refused,
            Says::Silent => Page::Silent,
            Says::Foreign => Page::Answer(200, "<html>welcome</html>".to_owned()),
            Says::Cut => Page::Answer(200, page.chars().take(page.len() / 2).collect()),
            Says::Local => {
                let mut page = page;
                for address in self.addresses.values() {
                    let ip = address.split(':').next().unwrap_or_default();
                    page = page.replace(ip, "127.0.0.1");
                }
                Page::Answer(200, page)
            }
        }
    }

    /// The pods that discovery has: name, state, ip, port.
    fn listed(&self) -> impl Iterator<Item = (&String, &Pod, &str, u16)> {
        let listed = self.pods.iter().filter(|(_, (pod, _))| pod.listed);
        listed.map(|(name, (pod, _))| {
            let (ip, port) = self.addresses[name].rsplit_once(':').unwrap_or_default();
            (name, pod, ip, port.parse().unwrap_or(0))
        })
    }

    /// Envoy's `/clusters?format=json` for one cluster of these pods.
    fn clusters(&self, cluster: &str) -> String {
        let hosts: Vec<Value> = self
            .listed()
            .map(|(name, pod, ip, port)| {
                let active = self.active.get(name).copied().unwrap_or(0);
                json!({
                    "address": {"socket_address": {"address": ip, "port_value": port}},
                    "stats": [{"name": "rq_active", "value": active.to_string(), "type": "GAUGE"}],
                    "health_status": {"eds_health_status": pod.health},
                    "hostname": name, "weight": 1,
                    "locality": {"zone": pod.labels.get("zone").map_or("", String::as_str)},
                })
            })
            .collect();
        json!({"cluster_statuses": [{"name": cluster, "host_statuses": hosts}]}).to_string()
    }

    /// The API's list of the pool's EndpointSlices: one pod in each, as they never are, so that all must be read.
    fn slices(&self, service: &str) -> String {
        let slice = |(name, pod, ip, port): (&String, &Pod, &str, u16)| {
            let (ready, draining) = (pod.health == "HEALTHY", pod.health == "DRAINING");
            json!({
                "metadata": {"labels": {"kubernetes.io/service-name": service}}, "addressType": "IPv4",
                "endpoints": [{"addresses": [ip], "targetRef": {"kind": "Pod", "name": name},
                               "zone": pod.labels.get("zone"), "nodeName": pod.labels.get("node"),
                               "conditions": {"ready": ready, "serving": ready || draining, "terminating": draining}}],
                "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
            })
        };
        let slices: Vec<Value> = self.listed().map(slice).collect();
        json!({"kind": "EndpointSliceList", "metadata": {"resourceVersion": "1"}, "items": slices}).to_string()
    }

    /// A plain list.
    fn list(&self) -> String {
        let pod = |(name, pod, ip, port): (&String, &Pod, &str, u16)| json!({"address": format!("{ip}:{port}"), "name": name, "ready": pod.health == "HEALTHY", "labels": pod.labels});
        Value::from(self.listed().map(pod).collect::<Vec<Value>>()).to_string()
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
