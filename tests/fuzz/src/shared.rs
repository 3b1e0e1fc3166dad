//! Values in shared data. Foreign bytes hardly ever have the right checksum, so that each input is
//! tried as it stands and as the payload of a sealed value.

use berth_filter_routing::ledger::Ledger;
use berth_shared_state::limits::{ADAPTERS_PER_POD_MAX, NAMES_MAX, PODS_MAX};
use berth_shared_state::reports::{self, Inbox};
use berth_shared_state::sealed::{self, Kind};
use berth_shared_state::snapshot::Snapshot;
use berth_shared_state::store::{MemoryStore, SharedData};
use berth_shared_state::table::{self, NameId, PodRow, Table};
use berth_shared_state::units::UnixMillis;
use serde::ser::{Serialize, SerializeTuple, Serializer};

use crate::world::{NOW, World, check_decision, config, pods, table_bytes};

/// Bytes that postcard writes as they are.
struct Raw<'a>(&'a [u8]);

impl Serialize for Raw<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut tuple = serializer.serialize_tuple(self.0.len())?;
        for byte in self.0 {
            tuple.serialize_element(byte)?;
        }
        tuple.end()
    }
}

/// The input as it stands, and sealed.
fn values(kind: Kind, data: &[u8]) -> Vec<Vec<u8>> {
    let sealed = sealed::seal(kind, &Raw(data)).ok();
    sealed.into_iter().chain([data.to_vec()]).collect()
}

/// Bytes of a table; also of load reports, as stored and as a header's value.
pub fn table(data: &[u8]) {
    reports(data);
    for bytes in values(Kind::Table, data) {
        let Ok(table) = table::decode(&bytes) else { continue };
        check_table(&table);
        let again = table::encode(&table).expect("no longer than it was");
        assert!(again.len() <= bytes.len());
        assert_eq!(table::decode(&again).as_ref(), Ok(&table), "written and read again");
        check_snapshot(&table);
        let decided = decide(&again, &table);
        assert_eq!(decided, decide(&again, &table), "equal input, equal seed");
    }
}

fn reports(data: &[u8]) {
    if let Some(report) = reports::read(data, NOW) {
        assert!(report.kv.is_none_or(|kv| (0.0..=1.0).contains(&kv)));
    }
    let (store, key) = (MemoryStore::default(), "reports".to_owned());
    for bytes in values(Kind::Reports, data) {
        store.set(&key, &bytes, None).expect("memory takes any write");
        let read = Inbox::new(key.clone()).tick(&store);
        assert!(read.len() <= PODS_MAX);
    }
}

fn check_table(table: &Table) {
    assert!(table.names.len() <= NAMES_MAX && table.pods.len() <= PODS_MAX);
    assert!(table.pods.is_sorted_by(|a, b| a.address < b.address));
    for pod in &table.pods {
        for kv in [pod.load.kv_mean, pod.load.kv_max].into_iter().flatten() {
            assert!((0.0..=1.0).contains(&kv), "KV usage {kv}");
        }
        let ids = ids(pod);
        assert!(
            ids.iter().all(|id| usize::from(id.0) < table.names.len()),
            "an id out of range"
        );
        assert!(ids.len() <= 7 * ADAPTERS_PER_POD_MAX);
    }
}

/// All name ids of a row.
fn ids(pod: &PodRow) -> Vec<NameId> {
    let mut ids = Vec::new();
    if let Some(activity) = &pod.activity {
        ids.extend(activity.running.iter().chain(&activity.waiting));
    }
    ids.extend(pod.resident.iter().flatten().map(|(id, _)| *id));
    if let Some(models) = &pod.models {
        ids.extend(&models.bases);
        ids.extend(
            models
                .adapters
                .iter()
                .flat_map(|(id, base)| [Some(*id), *base])
                .flatten(),
        );
    }
    ids
}

fn check_snapshot(table: &Table) {
    let (snapshot, config) = (Snapshot::new(table.clone()), config());
    for row in table.pods.iter().take(64) {
        assert_eq!(snapshot.pod(row.address), Some(row));
        assert_eq!(snapshot.pod_by_key(row.address.key()), Some(row));
        for now in [UnixMillis(0), NOW, UnixMillis(u64::MAX)] {
            let _ = (snapshot.freshness(row, &config.pools[0], now), snapshot.age(row, now));
        }
    }
    for name in table.names.iter().take(64) {
        let id = snapshot.id(name).expect("a name of the table");
        assert_eq!(snapshot.name(id), name);
        assert!(snapshot.listing(id).all(|row| table.pods.contains(row)));
    }
}

/// Decides about requests for the first names of the table, with and without a subset, then lives on.
fn decide(bytes: &[u8], table: &Table) -> Vec<berth_filter_routing::decision::Decision> {
    let mut world = World::new(bytes, &[]);
    let subset = table.pods.first().map(|row| row.address.to_string());
    let models = table.names.iter().take(3).map(|name| Some(name.as_str()));
    let mut decided = Vec::new();
    for model in models.chain([None, Some("not in the table")]) {
        for subset in [None, subset.as_deref(), Some("")] {
            let decision = world.decide(model, subset, NOW);
            check_decision(&decision, Some(table), subset);
            decided.push(decision);
        }
    }
    let pods: Vec<_> = table.pods.iter().map(|row| row.address).collect();
    world.live_on(&pods, NOW);
    decided
}

/// Bytes of a ledger.
pub fn ledger(data: &[u8]) {
    let rows = table_bytes();
    let table = table::decode(&rows).expect("a table");
    for bytes in values(Kind::Ledger, data) {
        let decoded = Ledger::decode(&bytes);
        if let Ok(mut ledger) = decoded {
            let again = ledger.encode().expect("no longer than it was").to_vec();
            assert!(again.len() <= bytes.len());
            // Compared as bytes: a rate that is not a number equals nothing.
            let mut twice = Ledger::decode(&again).expect("written and read again");
            assert_eq!(twice.encode().expect("a ledger"), again);
            check_ledger(&ledger);
        }
        let mut world = World::new(&rows, &bytes);
        for (model, subset) in [
            (Some("base"), None),
            (Some("sql"), Some("10.0.0.2:8000,10.0.0.3:8000")),
            (None, None),
        ] {
            check_decision(&world.decide(model, subset, NOW), Some(&table), subset);
        }
        let written = world.ledger().map(|(_, ledger)| ledger);
        check_ledger(&written.expect("a worker replaces what it cannot read"));
        world.live_on(&pods(), NOW);
        world.ledger().expect("what a worker leaves can be read");
    }
}

fn check_ledger(ledger: &Ledger) {
    let believable = |rate: Option<f64>| rate.is_none_or(|rate| rate.is_finite() && rate > 0.0);
    assert!(believable(ledger.pool_rate()));
    for pod in pods() {
        let key = pod.key();
        assert!(believable(ledger.at(key).rate()));
        for sample_at in [None, Some(UnixMillis(0)), Some(NOW), Some(UnixMillis(u64::MAX))] {
            let own = ledger.own(key, sample_at);
            assert!(own.sent_since_tokens <= own.context_tokens, "{own:?}");
            assert!(
                own.sent_since <= own.unanswered.saturating_add(own.generating),
                "{own:?}"
            );
            assert!(sample_at.is_some() || own.sent_since == own.unanswered.saturating_add(own.generating));
        }
        let _ = (ledger.at(key).avoided_until(), ledger.at(key).recent_adapters(0));
    }
}
