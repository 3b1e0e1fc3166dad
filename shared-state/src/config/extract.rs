//! From a checked document to the typed config. Nothing here can fail: the checker put every option
//! of the description into its record. A key that the description does not have trips an assertion
//! in every test.

use serde::de::DeserializeOwned;
use serde::de::value::{Error, StrDeserializer};

use super::check::{Checked, Is, Record};
use super::{
    Adapters, Admission, Affinity, Asks, Body, Caps, Config, Discovery, Labelled, ModelNames, Objective, Pool, PortOf,
    Prefix, Queue, Rewrite, Routing, Scrape, Service, StatusPage, Target, Told, Trust,
};
use crate::discovery::range::Range;
use crate::limits::{STALE_AFTER_FLOOR, STALE_AFTER_INTERVALS};
use crate::pod::PodAddress;
use crate::units::{Millis, Tokens};

/// The name of a rewrite that applies to all names.
const CATCH_ALL: &str = "*";

static UNSET: Is = Is::Unset;
static EMPTY: Record = Record::EMPTY;

impl Record {
    fn is(&self, key: &str) -> &Is {
        let found = self.find(key);
        debug_assert!(found.is_some(), "no option {key} in the description");
        found.map_or(&UNSET, |checked| &checked.is)
    }

    fn flag(&self, key: &str) -> bool {
        matches!(self.is(key), Is::Bool(true))
    }

    fn number(&self, key: &str) -> Option<u64> {
        match self.is(key) {
            Is::Number(number) => Some(*number),
            _ => None,
        }
    }

    /// The checker holds its bounds, which an `i16` has room for.
    fn priority(&self, key: &str) -> i16 {
        match self.is(key) {
            Is::Integer(number) => i16::try_from(*number).unwrap_or_default(),
            _ => 0,
        }
    }

    fn millis(&self, key: &str) -> Millis {
        Millis(self.number(key).unwrap_or_default())
    }

    fn count(&self, key: &str) -> u32 {
        self.number(key)
            .and_then(|count| count.try_into().ok())
            .unwrap_or_default()
    }

    fn word(&self, key: &str) -> Option<String> {
        match self.is(key) {
            Is::Word(word) => Some(word.clone()),
            _ => None,
        }
    }

    fn name(&self, key: &str) -> String {
        self.word(key).unwrap_or_default()
    }

    /// A choice, by the names that serde gives its variants.
    fn choice<T: DeserializeOwned>(&self, key: &str) -> Option<T> {
        let word = self.word(key)?;
        T::deserialize(StrDeserializer::<Error>::new(&word)).ok()
    }

    fn record(&self, key: &str) -> &Self {
        match self.is(key) {
            Is::Record(record) => record,
            _ => &EMPTY,
        }
    }

    fn items<T>(&self, key: &str, take: impl Fn(&Is) -> Option<T>) -> Vec<T> {
        match self.is(key) {
            Is::List(items) => items.iter().filter_map(|item| take(&item.is)).collect(),
            _ => Vec::new(),
        }
    }

    fn words(&self, key: &str) -> Vec<String> {
        self.items(key, |item| match item {
            Is::Word(word) => Some(word.clone()),
            _ => None,
        })
    }

    fn records<T>(&self, key: &str, take: impl Fn(&Self) -> T) -> Vec<T> {
        self.items(key, |item| match item {
            Is::Record(record) => Some(take(record)),
            _ => None,
        })
    }

    /// (header, variable that its value comes from).
    fn headers(&self, key: &str) -> Vec<(String, String)> {
        let headers = match self.is(key) {
            Is::Headers(headers) => headers.as_slice(),
            _ => &[],
        };
        let variable = |source: &Is| match source {
            Is::Record(source) => source.word("env"),
            _ => None,
        };
        let pair = |(name, source): &(String, Checked)| Some((name.clone(), variable(&source.is)?));
        headers.iter().filter_map(pair).collect()
    }

    fn addresses(&self, key: &str) -> Vec<PodAddress> {
        self.items(key, |item| match item {
            Is::Address(address) => Some(*address),
            _ => None,
        })
    }
}

/// The config of a document without errors.
pub(super) fn config(document: &Record, epoch: u64) -> Config {
    let mut pools = document.records("pools", pool_of);
    // Pools may be polled by different contexts that do not know each other's, so each has a fixed share.
    let share = document.record("poll").count("budget_per_second") / (pools.len() as u32).max(1);
    pools.iter_mut().for_each(|pool| pool.scrape.per_second = share);
    let host = document.choice("host").unwrap_or_default();
    let mut config = Config {
        pools,
        trust: Trust {
            headers: document.record("trust").words("headers"),
            filters: document.record("trust").records("filters", told),
        },
        models: ModelNames {
            list: document.record("models").flag("list"),
            near_names: document.record("models").flag("near_names"),
            hidden: document.record("models").words("hidden"),
        },
        rewrites: document.records("rewrites", rewrite),
        admission: admission(document.record("admission")),
        body: Body {
            mode: document.record("body").choice("mode").unwrap_or_default(),
            hold_bytes: document.record("body").count("hold") as usize,
        },
        status: StatusPage {
            decision_header: document.record("status").flag("decision_header"),
        },
        role: document.choice("role").unwrap_or_default(),
        host,
        epoch,
    };
    config.settle(host);
    config
}

fn told(told: &Record) -> Told {
    let from = told.record("from");
    let (at, path): (&[&str], Vec<String>) = match from.word("filter_state") {
        Some(key) => (&["filter_state"], vec![key]),
        None => (&["metadata", "filter_metadata"], from.words("metadata")),
    };
    Told {
        input: told.name("input"),
        path: at.iter().map(|&part| part.to_owned()).chain(path).collect(),
    }
}

fn pool_of(pool: &Record) -> Pool {
    let (discovery, allow) = discovery(pool.record("discovery"));
    let scrape = scrape(pool.record("scrape"));
    let adapters = pool.record("adapters");
    let routing = routing(pool.record("routing"), scrape.interval);
    Pool {
        name: pool.name("name"),
        models: pool.words("models"),
        routes: pool.words("routes"),
        engine: pool.choice("engine"),
        discovery,
        allow,
        adapters: Adapters {
            resolver: adapters.flag("resolver"),
            known: adapters.records("known", |adapter| (adapter.name("name"), adapter.word("base"))),
            cold_load: adapters.millis("cold_load"),
        },
        scrape,
        routing,
        labels: pool.records("labels", labelled),
    }
}

fn labelled(record: &Record) -> Labelled {
    let pods = record.words("pods");
    Labelled {
        label: record.name("label"),
        pods: pods.iter().filter_map(|text| text.parse().ok()).collect(),
        ranges: pods.iter().filter_map(|text| text.parse().ok()).collect(),
    }
}

fn rewrite(rewrite: &Record) -> Rewrite {
    Rewrite {
        from: rewrite.word("from").filter(|name| name != CATCH_ALL),
        to: rewrite.records("to", |target| Target {
            model: target.name("model"),
            weight: target.count("weight").max(1),
        }),
        sticky: rewrite.choice("sticky").unwrap_or_default(),
    }
}

fn admission(admission: &Record) -> Admission {
    let patience = admission.millis("patience");
    let objectives = admission.records("objectives", |objective| Objective {
        name: objective.name("name"),
        priority: objective.priority("priority"),
        patience: objective.number("patience").map_or(patience, Millis),
    });
    let queue = admission.record("queue");
    let size = |key| queue.number(key).map(|size| size as usize);
    let (max_requests, max_bytes) = (queue.count("max_requests") as usize, queue.count("max_bytes") as usize);
    Admission {
        objectives,
        patience,
        queue: queue.flag("enabled").then(|| Queue {
            max_requests,
            max_bytes,
            band_requests: size("band_requests").map_or(max_requests, |band| band.min(max_requests)),
            band_bytes: size("band_bytes").map_or(max_bytes, |band| band.min(max_bytes)),
            max_wait: queue.millis("max_wait"),
        }),
    }
}

/// The way that is configured, and the addresses that it may bring.
fn discovery(discovery: &Record) -> (Discovery, Vec<Range>) {
    let ranges = |record: &Record| {
        record
            .words("allow")
            .iter()
            .filter_map(|text| text.parse().ok())
            .collect()
    };
    if let Is::Record(admin) = discovery.is("envoy_admin") {
        let found = Discovery::EnvoyAdmin {
            cluster: admin.name("cluster"),
            admin: admin.name("admin"),
            interval: admin.millis("interval"),
        };
        return (found, ranges(admin));
    }
    if let Is::Record(kubernetes) = discovery.is("kubernetes") {
        let port = |text: String| text.parse().map_or(PortOf::Name(text), PortOf::Number);
        let service = Service {
            namespace: kubernetes.name("namespace"),
            name: kubernetes.name("service"),
            ports: kubernetes.words("ports").into_iter().map(port).collect(),
            prefer: kubernetes.choice("prefer").unwrap_or_default(),
        };
        let asks = asks(kubernetes);
        return (Discovery::Kubernetes { asks, service }, ranges(kubernetes));
    }
    if let Is::Record(json) = discovery.is("json") {
        let (asks, path) = (asks(json), json.name("path"));
        return (Discovery::Json { asks, path }, ranges(json));
    }
    (Discovery::Static(discovery.addresses("static")), Vec::new())
}

fn asks(kind: &Record) -> Asks {
    Asks {
        cluster: kind.name("cluster"),
        authority: kind.name("authority"),
        headers: kind.headers("headers"),
        interval: kind.millis("interval"),
    }
}

fn scrape(scrape: &Record) -> Scrape {
    Scrape {
        path: scrape.word("path"),
        port: scrape.number("port").and_then(|port| port.try_into().ok()),
        interval: scrape.millis("interval"),
        timeout: scrape.millis("timeout"),
        models_interval: scrape.millis("models_interval"),
        cluster: scrape.name("cluster"),
        address_header: scrape.name("address_header"),
        headers: scrape.headers("headers"),
        tls: scrape.flag("tls"),
        in_band: scrape.flag("in_band"),
        per_second: 1,
    }
}

fn routing(routing: &Record, interval: Millis) -> Routing {
    let stale_after = routing.number("stale_after").map(Millis);
    Routing {
        prefill_tokens_per_second: routing.count("prefill_tokens_per_second"),
        expected_output_tokens: routing.count("expected_output_tokens"),
        stale_after: stale_after
            .unwrap_or_else(|| Millis(STALE_AFTER_INTERVALS.saturating_mul(interval.0)).max(STALE_AFTER_FLOOR)),
        prefix: Prefix {
            enabled: routing.record("prefix").flag("enabled"),
            max_bytes: routing.record("prefix").count("max_bytes") as usize,
        },
        affinity: affinity(routing.record("affinity")),
        require: routing.words("require"),
        retry_apart: routing.word("retry_apart"),
        caps: Caps {
            requests: routing.number("max_requests").and_then(|max| max.try_into().ok()),
            tokens: routing.number("max_tokens").map(Tokens),
        },
        slow_start: routing.millis("slow_start"),
    }
}

fn affinity(affinity: &Record) -> Affinity {
    match affinity.word("by").as_deref() {
        Some("session") => Affinity::Session,
        Some("cookie") => Affinity::Cookie {
            key: affinity.record("key").name("env"),
            max_age: affinity.millis("max_age"),
        },
        _ => Affinity::None,
    }
}
