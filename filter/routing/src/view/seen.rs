//! Which adapters the gauges showed in flight at a pod lately, whoever sent them.
//!
//! What this proxy sent it knows; what others sent shows on the pods' pages while it runs. All proxies read the
//! same pages, so they agree on where an adapter lives without talking. An engine keeps the adapters used last, so
//! the order is what matters. Deliberately not here: own requests ([`crate::ledger`]).

use berth_shared_state::limits::ADAPTERS_REMEMBERED;
use berth_shared_state::pod::PodKey;
use berth_shared_state::snapshot::Snapshot;
use berth_shared_state::units::UnixMillis;
use hashbrown::HashMap;

use crate::decision::adapter_key;
use crate::ledger::put_first;

/// Adapters of one incarnation of a pod, newest first.
#[derive(Clone, Debug, Default)]
struct AtPod {
    incarnation: u32,
    adapters: Vec<(u64, UnixMillis)>,
}

/// What was seen of a pool.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// In the order of the latest table.
    pods: Vec<(PodKey, AtPod)>,
}

impl Seen {
    /// Takes in a new table, with the keys of its pods. Pods that are not in it are forgotten.
    pub fn add(&mut self, snapshot: &Snapshot, keys: &[PodKey]) {
        if !self.pods.iter().map(|(key, _)| key).eq(keys) {
            let mut before: HashMap<PodKey, AtPod> = self.pods.drain(..).collect();
            let pods = keys.iter().map(|key| (*key, before.remove(key).unwrap_or_default()));
            self.pods = pods.collect();
        }
        for (row, (_, at_pod)) in snapshot.pods().iter().zip(&mut self.pods) {
            if at_pod.incarnation != row.incarnation {
                at_pod.adapters.clear();
                at_pod.incarnation = row.incarnation;
            }
            if let (Some(active), Some(at)) = (&row.activity, row.scraped_at) {
                for id in active.running.iter().take(ADAPTERS_REMEMBERED) {
                    put_first(&mut at_pod.adapters, adapter_key(snapshot.name(*id)), at);
                }
            }
        }
    }

    /// At a pod, by its place in the table: [`adapter_key`] and when it was last seen in flight, newest first.
    pub fn at(&self, place: usize) -> &[(u64, UnixMillis)] {
        self.pods.get(place).map_or(&[], |(_, at_pod)| &at_pod.adapters)
    }
}

#[cfg(test)]
mod tests {
    use berth_shared_state::table::{ActiveAdapters, NameId, PodRow, Table};
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    const POD: &str = "10.0.0.1:80";

    /// A table of one pod that runs these of the adapters a, b and c.
    fn table(at: u64, running: &[u16], incarnation: u32) -> Snapshot {
        let mut row = PodRow::unread(POD.parse().unwrap(), UnixMillis(0));
        row.scraped_at = Some(UnixMillis(at));
        row.incarnation = incarnation;
        row.activity = Some(ActiveAdapters {
            running: running.iter().map(|id| NameId(*id)).collect(),
            waiting: running.iter().map(|id| NameId(*id)).collect(),
            max: Some(2),
        });
        Snapshot::new(Table {
            names: ["a", "b", "c"].map(str::to_owned).to_vec(),
            pods: vec![row],
            ..Table::default()
        })
    }

    #[track_caller]
    fn check(seen: &Seen, expected: &[(&str, u64)]) {
        let expected: Vec<_> = expected
            .iter()
            .map(|(name, at)| (adapter_key(name), UnixMillis(*at)))
            .collect();
        assert_eq!(seen.at(0), expected);
    }

    #[test]
    fn adapters_in_flight_are_remembered_newest_first_until_a_restart() {
        let mut all = Seen::default();
        let mut add = |snapshot: &Snapshot| {
            let keys: Vec<PodKey> = snapshot.pods().iter().map(|row| row.address.key()).collect();
            all.add(snapshot, &keys);
            all.clone()
        };
        let seen = add(&table(1, &[0, 1], 0));
        check(&seen, &[("b", 1), ("a", 1)]);
        let seen = add(&table(2, &[0], 0));
        check(&seen, &[("a", 2), ("b", 1)]);
        let seen = add(&table(3, &[], 0));
        check(&seen, &[("a", 2), ("b", 1)]);
        let seen = add(&table(4, &[2], 1));
        check(&seen, &[("c", 4)]);
        let seen = add(&Snapshot::default());
        check(&seen, &[]);
    }

    #[test]
    fn they_are_bounded() {
        let mut at_pod = AtPod::default();
        for adapter in 0..=ADAPTERS_REMEMBERED as u64 {
            put_first(&mut at_pod.adapters, adapter, UnixMillis(adapter));
        }
        assert_eq!(at_pod.adapters.len(), ADAPTERS_REMEMBERED);
        assert_eq!(at_pod.adapters.last(), Some(&(1, UnixMillis(1))));
    }
}
