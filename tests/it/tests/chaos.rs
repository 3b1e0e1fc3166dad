//! One poller whatever dies: VMs are killed, services come and go, configurations are replaced, at any
//! time and under both rules for shared data. Pods are read on, and never twice for longer than a lease.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_shared_state::config::{Config, Discovery};
use berth_shared_state::limits::{LEASE, LEASE_LOOK, LEASE_MAX, LEASE_PROVEN, TICK};
use berth_shared_state::names::{self, Keys};
use berth_shared_state::table::Table;
use berth_tests_host::{Answer, CasRules, Host, PluginId, Thread};
use berth_tests_it::artifact;
use fastrand::Rng;

use crate::scenarios::wasm::{plugin, process_with, table};

/// Time without a living poller after the death of one that has lived for a minute, or the first: its lease, a look, and a tick to poll in.
const GAP: u64 = LEASE.0 + LEASE_LOOK.0 + 2 * TICK.0;
/// A pod is read once in this time by each who polls; twice at a change of the poller.
const INTERVAL: u64 = 1_000;

/// A proxy whose plugins come, go and die.
struct Proxy {
    host: Host,
    filters: Vec<PluginId>,
    service: Option<PluginId>,
    configs: u64,
}

impl Proxy {
    fn new(rules: CasRules, service: bool) -> Self {
        let mut host = process_with(rules);
        host.on_callout(|_| Answer::reply(200, page()).after(Duration::from_millis(5)));
        let mut proxy = Self {
            host,
            filters: Vec::new(),
            service: None,
            configs: 0,
        };
        proxy.update();
        if service {
            proxy.serve();
        }
        proxy
    }

    /// A newer configuration; the older filters go on until their streams have ended.
    fn update(&mut self) {
        self.configs += 1;
        let plugin = plugin("filter", names::ROOT_FILTER, &document(self.configs));
        let filter = self.host.add_filter(&artifact("berth_filter.wasm"), plugin);
        self.filters.push(filter.expect("it starts"));
    }

    fn drained(&mut self) {
        for old in self.filters.drain(..self.filters.len() - 1) {
            self.host.remove(old);
        }
    }

    fn serve(&mut self) {
        let plugin = plugin("service", names::ROOT_SERVICE, &document(self.configs));
        let service = self.host.add_service(&artifact("berth_service.wasm"), plugin);
        self.service = Some(service.expect("it starts"));
    }

    fn wait(&mut self, millis: u64) {
        self.host.advance(Duration::from_millis(millis));
    }

    fn now(&self) -> u64 {
        self.host.now().as_millis() as u64
    }

    /// The table of the newest configuration.
    #[track_caller]
    fn table(&self) -> Table {
        table(&self.host, &Keys::of(&config(self.configs).pools[0]))
    }

    /// Every pod was read within this time.
    #[track_caller]
    fn is_read(&self, within: u64, what: &str) {
        let (now, table) = (self.now(), self.table());
        for pod in &table.pods {
            let age = pod.scraped_at.map(|at| now - at.0);
            assert!(
                age.is_some_and(|age| age <= within),
                "{what}: {} was read {age:?} ms ago",
                pod.address
            );
        }
    }

    /// Calls for a pod's metrics since then, by plugin and thread.
    fn scrapes(&self, since: u64) -> BTreeMap<(String, Thread), u32> {
        let mut counts = BTreeMap::new();
        for call in self.host.callouts() {
            let metrics = call.headers.get(":path") == Some("/metrics")
                && call.headers.get(names::ORIGINAL_DST_HOST) == Some("10.0.0.1:8000");
            if metrics && call.at.as_millis() as u64 >= since {
                *counts.entry((call.plugin, call.thread)).or_default() += 1;
            }
        }
        counts
    }

    /// One context reads, once per interval, and the table is young.
    #[track_caller]
    fn settles(&mut self, what: &str) -> (String, Thread) {
        self.wait(GAP + INTERVAL);
        let since = self.now();
        self.wait(10 * INTERVAL);
        self.is_read(INTERVAL + TICK.0, what);
        let scrapes = self.scrapes(since);
        let who: Vec<_> = scrapes.keys().cloned().collect();
        assert_eq!(who.len(), 1, "{what}: {scrapes:?}");
        assert!((9..=11).contains(&scrapes[&who[0]]), "{what}: {scrapes:?}");
        who[0].clone()
    }
}

fn document(config: u64) -> String {
    let pods = r#"["10.0.0.1:8000", "10.0.0.2:8000"]"#;
    // Anything that makes it another document.
    format!(
        r#"{{"pools": [{{"name": "pods", "discovery": {{"static": {pods}}}}}], "body": {{"hold": {}}}}}"#,
        100_000 + config
    )
}

fn page() -> &'static str {
    "# TYPE vllm:num_requests_running gauge\n\
     vllm:num_requests_running{engine=\"0\",model_name=\"base\"} 1.0\n\
     # TYPE vllm:num_requests_waiting gauge\n\
     vllm:num_requests_waiting{engine=\"0\",model_name=\"base\"} 0.0\n\
     # TYPE vllm:kv_cache_usage_perc gauge\n\
     vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"base\"} 0.5\n"
}

const RULES: [CasRules; 2] = [CasRules::Envoy, CasRules::WasmX];

#[test]
fn a_service_polls_and_when_it_dies_a_filter_does() {
    for rules in RULES {
        let mut proxy = Proxy::new(rules, true);
        assert_eq!(proxy.settles("with a service"), ("service".to_owned(), Thread::Main));
        let service = proxy.service.expect("a service");
        proxy.host.kill(service, Thread::Main);
        assert_eq!(proxy.settles("after its death").0, "filter");
    }
}

#[test]
fn without_a_service_each_death_makes_another_root_poll() {
    for rules in RULES {
        let mut proxy = Proxy::new(rules, false);
        let filter = proxy.filters[0];
        for _ in 0..2 {
            let (_, thread) = proxy.settles("one of three");
            proxy.wait(LEASE_PROVEN.0);
            proxy.host.kill(filter, thread);
        }
        let (_, last) = proxy.settles("the last of three");
        proxy.wait(LEASE_PROVEN.0);
        proxy.host.kill(filter, last);
        proxy.wait(20_000);
        // A request makes a new VM on a worker, and that one polls.
        proxy.host.open(filter, 1);
        assert_eq!(
            proxy.settles("a VM that was made anew"),
            ("filter".to_owned(), Thread::Worker(1))
        );
    }
}

#[test]
fn two_generations_of_a_listener_read_the_pods_twice_for_no_longer_than_a_lease() {
    for rules in RULES {
        let mut proxy = Proxy::new(rules, false);
        proxy.settles("the first generation");
        let since = proxy.now();
        proxy.update();
        proxy.wait(LEASE.0);
        let twice: u32 = proxy.scrapes(since).values().sum();
        assert!(twice <= 2 * 3 + 1, "{twice} scrapes of a pod in {} ms", LEASE.0);
        assert_eq!(
            proxy.table().config_epoch,
            epoch(proxy.configs),
            "the newer configuration polls"
        );
        proxy.is_read(INTERVAL + TICK.0, "both generations");
        proxy.settles("both generations");
        proxy.drained();
        proxy.settles("the second generation");
        assert_eq!(proxy.table().config_epoch, epoch(proxy.configs));
    }
}

fn config(config: u64) -> Config {
    Config::parse(document(config).as_bytes()).expect("it is valid")
}

fn epoch(of: u64) -> u64 {
    config(of).epoch
}

#[test]
fn a_filter_that_goes_gives_its_lease_back() {
    let mut proxy = Proxy::new(CasRules::Envoy, false);
    proxy.settles("the first generation");
    // The same configuration once more: no reason to take the lease.
    proxy.configs -= 1;
    proxy.update();
    proxy.wait(2_000);
    proxy.drained();
    proxy.wait(LEASE_LOOK.0 + INTERVAL + TICK.0);
    proxy.is_read(INTERVAL + TICK.0, "the second generation");
}

/// As two plugins of Istio: one key space, one name, other pods.
#[test]
fn two_pools_of_one_name_are_read_each_by_its_own() {
    let mut host = process_with(CasRules::Envoy);
    host.on_callout(|_| Answer::reply(200, page()));
    let documents = ["10.0.0.1:8000", "10.0.0.2:8000"]
        .map(|pod| format!(r#"{{"pools": [{{"name": "pods", "discovery": {{"static": ["{pod}"]}}}}]}}"#));
    for document in &documents {
        let plugin = plugin("filter", names::ROOT_FILTER, document);
        host.add_filter(&artifact("berth_filter.wasm"), plugin)
            .expect("it starts");
    }
    host.advance(Duration::from_secs(5));
    for document in &documents {
        let config = Config::parse(document.as_bytes()).expect("it is valid");
        let table = table(&host, &Keys::of(&config.pools[0]));
        let pods: Vec<_> = table
            .pods
            .iter()
            .map(|pod| (pod.address, pod.scraped_at.is_some()))
            .collect();
        let Discovery::Static(own) = &config.pools[0].discovery else {
            panic!("no list")
        };
        assert_eq!(pods, [(own[0], true)]);
    }
}

/// Anything at any time. What must hold: somebody reads within [`LEASE_MAX`] of the last change, never more
/// than two at once within a lease, and the process stays sound.
#[track_caller]
fn chaos(rules: CasRules, seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let mut proxy = Proxy::new(rules, rng.bool());
    for _ in 0..40 {
        match rng.u8(0..10) {
            0 => proxy.serve(),
            1 => {
                if let Some(service) = proxy.service {
                    proxy.host.kill(service, Thread::Main);
                }
            }
            2 => proxy.update(),
            3 => proxy.drained(),
            4..6 => {
                let thread = [Thread::Main, Thread::Worker(0), Thread::Worker(1)][rng.usize(0..3)];
                let filter = proxy.filters[rng.usize(0..proxy.filters.len())];
                proxy.host.kill(filter, thread);
            }
            _ => {
                // A request on a worker, whose VM may have to be made anew.
                let filter = proxy.filters[proxy.filters.len() - 1];
                proxy.host.open(filter, rng.usize(0..2));
            }
        }
        let since = proxy.now();
        proxy.wait(rng.u64(1..4_000));
        let seconds = (proxy.now() - since) / 1000;
        let scrapes: u32 = proxy.scrapes(since).values().sum();
        assert!(
            u64::from(scrapes) <= 2 * (seconds + 2),
            "seed {seed}: {scrapes} in {seconds} s"
        );
    }
    // The workers' VMs live again; whoever is left, one polls, though many died in a row.
    proxy.wait(LEASE_MAX.0);
    for worker in 0..2 {
        let filter = proxy.filters[proxy.filters.len() - 1];
        proxy.host.open(filter, worker);
    }
    proxy.settles(&format!("{rules:?}, seed {seed}"));
    let trapped = proxy
        .host
        .log()
        .into_iter()
        .filter(|line| line.from_host && !line.text.contains("killed by the test"));
    let trapped: Vec<String> = trapped.map(|line| line.text).collect();
    assert!(trapped.is_empty(), "seed {seed}: {trapped:?}");
}

#[test]
fn whatever_dies_pods_are_read_on_and_by_one() {
    for seed in 0..12 {
        chaos(RULES[seed as usize % 2], seed);
    }
}
