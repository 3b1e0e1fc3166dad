//! The table of a pool whose pods nobody reads: where a host has no timers and shares nothing (APISIX).
//!
//! One per worker, in its own memory. It knows the pods of the config, that each serves what the config names, and what
//! each reported in its last answer to this worker. A pod that has not reported for a while is taken for idle but for what
//! this worker sent: nothing else would ever be learned of it, while elsewhere an unknown pod counts as the mean of the
//! others and is read a moment later. Deliberately not here: names that the config does not have. No page lists them, so
//! they are neither known nor unknown for certain.

use std::collections::BTreeMap;

use crate::config::{Discovery, Pool};
use crate::limits::{NAMES_MAX, REPORT_FORGOTTEN_AFTER};
use crate::names::Keys;
use crate::pod::PodAddress;
use crate::reports::Report;
use crate::sample::Status;
use crate::store::{self, SharedData, StoreError};
use crate::table::{self, Discovered, Load, Models, NameId, PodRow, Table};
use crate::units::{Millis, UnixMillis};

/// The pods of one pool, as far as one worker knows them.
#[derive(Debug)]
pub struct Unpolled {
    key: String,
    epoch: u64,
    interval: Millis,
    pods: BTreeMap<PodAddress, Option<Report>>,
    names: Vec<String>,
    models: Models,
    seq: u64,
    /// When it was last written; `None` = something is not in the table yet.
    written: Option<UnixMillis>,
}

impl Unpolled {
    /// The pods of the config; none where it names none.
    #[must_use]
    pub fn new(pool: &Pool, epoch: u64) -> Self {
        let pods = match &pool.discovery {
            Discovery::Static(pods) => pods.iter().map(|pod| (*pod, None)).collect(),
            Discovery::EnvoyAdmin { .. } | Discovery::Kubernetes { .. } | Discovery::Json { .. } => BTreeMap::new(),
        };
        let bases = pool.models.iter().map(|name| (name, false));
        let adapters = pool.adapters.known.iter().map(|(name, _)| (name, true));
        let mut names: Vec<String> = Vec::new();
        let mut models = Models {
            // It proves no absence.
            at: UnixMillis(0),
            bases: Vec::new(),
            adapters: Vec::new(),
            max_model_len: None,
        };
        for ((name, is_adapter), id) in bases.chain(adapters).take(NAMES_MAX).zip(0..) {
            names.push(name.clone());
            if is_adapter {
                models.adapters.push((NameId(id), None));
            } else {
                models.bases.push(NameId(id));
            }
        }
        Self {
            key: Keys::of(pool).table,
            epoch,
            interval: pool.scrape.interval,
            pods,
            names,
            models,
            seq: 0,
            written: None,
        }
    }

    /// A pod reported its load.
    pub fn add(&mut self, pod: PodAddress, report: Report) {
        if let Some(known) = self.pods.get_mut(&pod) {
            *known = Some(report);
            self.written = None;
        }
    }

    /// Writes the table, if anything is new, or the last one is as old as a page may be. None of a pool whose pods the
    /// config does not name: it would say that there are no pods, and every request would be refused instead of passed.
    ///
    /// # Errors
    /// When the store refuses.
    pub fn publish(&mut self, store: &dyn SharedData, now: UnixMillis) -> Result<(), StoreError> {
        if self.pods.is_empty() || self.written.is_some_and(|at| now.since(at) < self.interval) {
            return Ok(());
        }
        self.written = Some(now);
        self.seq = self.seq.saturating_add(1);
        let table = Table {
            seq: self.seq,
            written_at: now,
            config_epoch: self.epoch,
            discovery: Discovered {
                at: Some(now),
                error: None,
            },
            scrape_interval: self.interval,
            names: self.names.clone(),
            pods: self
                .pods
                .iter()
                .map(|(pod, report)| self.row(*pod, *report, now))
                .collect(),
        };
        // A config's pods always fit.
        let Ok(bytes) = table::encode(&table) else {
            return Ok(());
        };
        store::put(store, &self.key, &bytes)
    }

    /// A report counts as a page that shows two gauges; none at all as a page that shows an idle pod.
    fn row(&self, pod: PodAddress, report: Option<Report>, now: UnixMillis) -> PodRow {
        let old = |report: &Report| now.since(report.at) >= REPORT_FORGOTTEN_AFTER;
        let report = report.filter(|report| !old(report)).unwrap_or(Report {
            at: now,
            waiting: Some(0),
            kv: None,
        });
        PodRow {
            scraped_at: Some(report.at),
            load: Load {
                status: Status::Partial,
                waiting: report.waiting,
                kv_mean: report.kv,
                kv_max: report.kv,
                engines: 1,
                ..Load::UNKNOWN
            },
            models: Some(self.models.clone()),
            ..PodRow::unread(pod, now)
        }
    }
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;
    use crate::config::Config;
    use crate::store::MemoryStore;

    fn read(store: &MemoryStore, key: &str) -> Table {
        table::decode(&store.get(key).unwrap().expect("a table").value).expect("a sound table")
    }

    #[test]
    fn it_knows_the_pods_of_the_config_and_what_they_report() {
        let pods = ["10.0.0.2:80", "10.0.0.1:80"].map(|pod| pod.parse().unwrap());
        let config = Config::minimal(&pods).unwrap();
        let (store, key) = (MemoryStore::default(), Keys::of(&config.pools[0]).table);
        let mut unpolled = Unpolled::new(&config.pools[0], config.epoch);
        unpolled.publish(&store, UnixMillis(5)).unwrap();
        let first = read(&store, &key);
        assert_eq!(
            first.pods.iter().map(|row| row.address).collect::<Vec<_>>(),
            [pods[1], pods[0]]
        );
        assert!(
            first
                .pods
                .iter()
                .all(|row| row.load.waiting == Some(0) && row.load.kv_mean.is_none())
        );

        let report = Report {
            at: UnixMillis(7),
            waiting: Some(3),
            kv: None,
        };
        unpolled.add(pods[0], report);
        unpolled.add("10.0.0.9:80".parse().unwrap(), report);
        unpolled.publish(&store, UnixMillis(8)).unwrap();
        let second = read(&store, &key);
        assert_eq!(
            (second.seq, second.pods.len()),
            (2, 2),
            "a stranger's report is nobody's"
        );
        let row = &second.pods[1];
        assert_eq!(
            (row.scraped_at, row.load.waiting, row.load.kv_mean),
            (Some(UnixMillis(7)), Some(3), None)
        );
    }

    #[test]
    fn it_is_written_when_something_is_new_and_once_an_interval() {
        let config = Config::minimal(&["10.0.0.1:80".parse().unwrap()]).unwrap();
        let interval = config.pools[0].scrape.interval;
        let (store, key) = (MemoryStore::default(), Keys::of(&config.pools[0]).table);
        let mut unpolled = Unpolled::new(&config.pools[0], config.epoch);
        let start = UnixMillis(5);
        let before = UnixMillis(start.0 + interval.0 - 1);
        for (at, seq) in [(start, 1), (before, 1), (start + interval, 2)] {
            unpolled.publish(&store, at).unwrap();
            assert_eq!(read(&store, &key).seq, seq);
        }
    }

    #[test]
    fn of_pods_that_the_config_does_not_name_there_is_no_table() {
        for discovery in [
            r#"{"json": {"cluster": "c", "path": "/pods"}}"#,
            r#"{"kubernetes": {"cluster": "c", "namespace": "n", "service": "s", "authority": "a"}}"#,
            r#"{"envoy_admin": {"cluster": "c"}}"#,
        ] {
            let document = format!(r#"{{"pools": [{{"name": "p", "discovery": {discovery}}}]}}"#);
            let config = Config::parse(document.as_bytes()).unwrap();
            let (store, key) = (MemoryStore::default(), Keys::of(&config.pools[0]).table);
            let mut unpolled = Unpolled::new(&config.pools[0], config.epoch);
            unpolled.publish(&store, UnixMillis(5)).unwrap();
            assert!(store.get(&key).unwrap().is_none(), "{discovery}");
        }
    }

    #[test]
    fn an_old_report_is_none() {
        let pod = "10.0.0.1:80".parse().unwrap();
        let config = Config::minimal(&[pod]).unwrap();
        let (store, key) = (MemoryStore::default(), Keys::of(&config.pools[0]).table);
        let mut unpolled = Unpolled::new(&config.pools[0], config.epoch);
        let report = Report {
            at: UnixMillis(7),
            waiting: Some(9),
            kv: Some(0.5),
        };
        unpolled.add(pod, report);
        for (now, waiting) in [(report.at, 9), (report.at + REPORT_FORGOTTEN_AFTER, 0)] {
            unpolled.publish(&store, now).unwrap();
            assert_eq!(read(&store, &key).pods[0].load.waiting, Some(waiting));
        }
    }

    #[test]
    fn names_of_the_config_are_listed_by_every_pod() {
        let document = r#"{"pools": [{"name": "p", "models": ["base"], "adapters": {"known": [{"name": "lora"}]},
            "discovery": {"static": ["10.0.0.1:80"]}}]}"#;
        let config = Config::parse(document.as_bytes()).unwrap();
        let (store, key) = (MemoryStore::default(), Keys::of(&config.pools[0]).table);
        let mut unpolled = Unpolled::new(&config.pools[0], config.epoch);
        unpolled.publish(&store, UnixMillis(5)).unwrap();
        let table = read(&store, &key);
        let models = table.pods[0].models.as_ref().expect("a list");
        assert_eq!(table.names, ["base", "lora"]);
        assert_eq!(models.bases, [NameId(0)]);
        assert_eq!(models.adapters, [(NameId(1), None)]);
        assert_eq!(models.at, UnixMillis(0), "it proves no absence");
    }
}
