//! How the pods' load is shared between this proxy and others that it does not talk to.

use berth_shared_state::table::PodRow;

use crate::ledger::OwnLoad;

/// Requests in flight that are assumed before any were seen, all of them this proxy's: others are believed in
/// when they are seen.
const PRIOR: f64 = 20.0;
/// What is kept of the sums with each table: tables come several times a second, and one says little, since a
/// gauge is from another moment than the ledger.
const KEPT: f64 = 0.97;

/// Others send less than this part: nobody is there. Gauge and ledger are from different moments, so a lone proxy
/// sees up to 0.04 of what is not its own.
const NOISE: f64 = 0.05;

/// The part of others where workers share nothing: there are two workers at least.
const UNSEEN: f64 = 0.5;

/// Sums over the last tables, in requests in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    own: f64,
    all: f64,
}

impl Default for Share {
    fn default() -> Self {
        Self { own: PRIOR, all: PRIOR }
    }
}

impl Share {
    /// Of a worker that cannot see what the others of its own process send.
    pub const fn unseen() -> Self {
        Self {
            own: PRIOR * (1.0 - UNSEEN),
            all: PRIOR,
        }
    }

    /// Takes in a new table, with what this proxy has at each pod. Idle and dead pods say nothing.
    pub fn add<'a>(&mut self, pods: impl Iterator<Item = (&'a PodRow, OwnLoad)>) {
        let (mut own, mut all) = (0.0, 0.0);
        for (row, load) in pods {
            // A pod that fails its scrapes, or whose gauges stand still, keeps its last ones.
            let is_live = row.failures == 0 && row.trend.is_believed();
            if let (true, Some(running), Some(waiting)) = (is_live, row.load.running, row.load.waiting) {
                own += f64::from(load.unanswered) + f64::from(load.generating);
                all += f64::from(running) + f64::from(waiting);
            }
        }
        if all > 0.0 {
            self.own = self.own * KEPT + own.min(all);
            self.all = self.all * KEPT + all;
        }
    }

    /// This proxy's part, 0 to 1.
    pub fn own(self) -> f64 {
        let own = (self.own / self.all).clamp(0.0, 1.0);
        if own > 1.0 - NOISE { 1.0 } else { own }
    }
}

#[cfg(test)]
mod tests {
    use berth_shared_state::table::Trend;
    use berth_shared_state::units::UnixMillis;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    #[track_caller]
    fn check(running: u32, own: u32, tables: usize, expected: core::ops::RangeInclusive<f64>) {
        let mut row = PodRow::unread("10.0.0.1:80".parse().unwrap(), UnixMillis(0));
        row.load.running = Some(running);
        row.load.waiting = Some(0);
        let load = OwnLoad {
            generating: own,
            ..OwnLoad::default()
        };
        let mut share = Share::default();
        for _ in 0..tables {
            share.add([(&row, load)].into_iter());
        }
        assert!(expected.contains(&share.own()), "{}", share.own());
    }

    #[test]
    fn others_are_believed_in_when_they_are_seen() {
        check(0, 0, 100, 1.0..=1.0);
        check(10, 10, 100, 1.0..=1.0);
        check(100, 97, 1_000, 1.0..=1.0);
        check(100, 94, 1_000, 0.93..=0.95);
        check(40, 10, 100, 0.25..=0.28);
        check(40, 0, 200, 0.0..=0.01);
    }

    #[test]
    fn a_pod_that_died_busy_is_nobodys_load() {
        let mut share = Share::default();
        let mut dead = PodRow::unread("10.0.0.1:80".parse().unwrap(), UnixMillis(0));
        dead.load.running = Some(40);
        dead.load.waiting = Some(0);
        let mut frozen = dead.clone();
        dead.failures = 1;
        frozen.trend = Trend::Frozen;
        for _ in 0..1_000 {
            share.add([(&dead, OwnLoad::default()), (&frozen, OwnLoad::default())].into_iter());
        }
        assert_eq!(share.own().to_bits(), 1.0_f64.to_bits());
    }

    #[test]
    fn requests_that_no_gauge_shows_yet_are_no_more_than_all() {
        check(1, 5, 1_000, 1.0..=1.0);
    }
}
