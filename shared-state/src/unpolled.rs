//! The table of a pool whose pods nobody reads: where a host has no timers and shares nothing (APISIX).
//!
//! One per worker, in its own memory. It knows the pods of the config, and of each what it reported in its last answer to
//! this worker. Deliberately not here: models and adapters. No page names them, so nothing is unknown for certain.

use std::collections::BTreeMap;

use crate::config::{Discovery, Pool};
use crate::names::Keys;
use crate::pod::PodAddress;
use crate::reports::Report;
use crate::sample::Status;
use crate::store::{self, SharedData, StoreError};
use crate::table::{self, Discovered, Load, PodRow, Table};
use crate::units::{Millis, UnixMillis};

/// The pods of one pool, as far as one worker knows them.
#[derive(Debug)]
pub struct Unpolled {
    key: String,
    epoch: u64,
    interval: Millis,
    pods: BTreeMap<PodAddress, Option<Report>>,
    seq: u64,
    /// Something is not in the table yet.
    stale: bool,
}

impl Unpolled {
    /// The pods of the config; none where it names none.
    #[must_use]
    pub fn new(pool: &Pool, epoch: u64) -> Self {
        let pods = match &pool.discovery {
            Discovery::Static(pods) => pods.iter().map(|pod| (*pod, None)).collect(),
            Discovery::EnvoyAdmin { .. } | Discovery::Kubernetes { .. } | Discovery::Json { .. } => BTreeMap::new(),
        };
        Self {
            key: Keys::of(pool).table,
            epoch,
            interval: pool.scrape.interval,
            pods,
            seq: 0,
            stale: true,
        }
    }

    /// A pod reported its load.
    pub fn add(&mut self, pod: PodAddress, report: Report) {
        if let Some(known) = self.pods.get_mut(&pod) {
            *known = Some(report);
            self.stale = true;
        }
    }

    /// Writes the table, if anything is new.
    ///
    /// # Errors
    /// When the store refuses.
    pub fn publish(&mut self, store: &dyn SharedData, now: UnixMillis) -> Result<(), StoreError> {
        if !core::mem::take(&mut self.stale) {
            return Ok(());
        }
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
            names: Vec::new(),
            pods: self
                .pods
                .iter()
                .map(|(pod, report)| row(*pod, report.as_ref(), now))
                .collect(),
        };
        // A config's pods always fit.
        let Ok(bytes) = table::encode(&table) else {
            return Ok(());
        };
        store::put(store, &self.key, &bytes)
    }
}

/// A report counts as a page that shows two gauges.
fn row(pod: PodAddress, report: Option<&Report>, now: UnixMillis) -> PodRow {
    let unread = PodRow::unread(pod, now);
    let Some(report) = report else { return unread };
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
        ..unread
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
        assert!(first.pods.iter().all(|row| row.scraped_at.is_none()));

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
    fn it_is_written_only_when_something_is_new() {
        let config = Config::minimal(&["10.0.0.1:80".parse().unwrap()]).unwrap();
        let (store, key) = (MemoryStore::default(), Keys::of(&config.pools[0]).table);
        let mut unpolled = Unpolled::new(&config.pools[0], config.epoch);
        for _ in 0..2 {
            unpolled.publish(&store, UnixMillis(5)).unwrap();
        }
        assert_eq!(read(&store, &key).seq, 1);
    }
}
