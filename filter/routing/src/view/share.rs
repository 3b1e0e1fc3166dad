//! How the pods' load is shared between this proxy and others that it does not talk to: of all pods, and of each.

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
const OTHER_WORKERS: f64 = 0.5;

/// Requests in flight that are assumed at a pod before any were seen, shared there as they are in the pool.
const PRIOR_AT_POD: f64 = 5.0;
/// What is kept of a pod's sums with each of its pages, so that some twenty of them count. With 10 or 50 the lab shows the same.
const KEPT_AT_POD: f64 = 0.95;

/// In requests in flight; the older, the less they count.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    own: f64,
    all: f64,
}

impl Sums {
    /// The ledger may be ahead of a gauge.
    fn add(&mut self, own: f64, all: f64, kept: f64) {
        self.own = self.own * kept + own.min(all);
        self.all = self.all * kept + all;
    }
}

/// Of all pods, over the last tables.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share(Sums);

impl Default for Share {
    fn default() -> Self {
        Self(Sums { own: PRIOR, all: PRIOR })
    }
}

impl Share {
    /// Of a worker that cannot see what the others of its own process send.
    pub const fn unseen() -> Self {
        Self(Sums {
            own: PRIOR * (1.0 - OTHER_WORKERS),
            all: PRIOR,
        })
    }

    /// Takes in a new table, with what this proxy has at each pod. Idle and dead pods say nothing.
    pub fn add<'a>(&mut self, pods: impl Iterator<Item = (&'a PodRow, OwnLoad)>) {
        let (mut own, mut all) = (0.0, 0.0);
        for (row, load) in pods {
            if let Some(shown) = shown(row) {
                own += f64::from(load.in_flight());
                all += shown;
            }
        }
        if all > 0.0 {
            self.0.add(own, all, KEPT);
        }
    }

    /// This proxy's part, 0 to 1.
    pub fn own(self) -> f64 {
        let own = (self.0.own / self.0.all).clamp(0.0, 1.0);
        if own > 1.0 - NOISE { 1.0 } else { own }
    }
}

/// Of one pod, over its last pages.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ShareAtPod(Sums);

impl ShareAtPod {
    /// Takes in a new page, with what this proxy has at the pod now: as much as it had then, on average, while of what it had
    /// then a part has ended.
    pub fn add(&mut self, row: &PodRow, load: &OwnLoad) {
        if let Some(all) = shown(row) {
            self.0.add(f64::from(load.in_flight()), all, KEPT_AT_POD);
        }
    }

    /// This proxy's part, 0 to 1. `pool`: its part of the pool's load, which stands in for what no page said.
    pub fn own(self, pool: f64) -> f64 {
        (self.0.own + PRIOR_AT_POD * pool) / (self.0.all + PRIOR_AT_POD)
    }
}

/// Requests in flight that a pod's page shows. A pod that fails its scrapes, or whose gauges stand still, keeps its last
/// ones, which say nothing.
fn shown(row: &PodRow) -> Option<f64> {
    let is_live = row.failures == 0 && row.trend.is_believed();
    let (running, waiting) = row.load.running.zip(row.load.waiting).filter(|_| is_live)?;
    Some(f64::from(running) + f64::from(waiting))
}

#[cfg(test)]
mod tests {
    use berth_shared_state::table::Trend;
    use berth_shared_state::units::UnixMillis;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    /// A pod where so many run, and so many of them are this proxy's.
    fn pod(running: u32, own: u32) -> (PodRow, OwnLoad) {
        let mut row = PodRow::unread("10.0.0.1:80".parse().unwrap(), UnixMillis(0));
        row.load.running = Some(running);
        row.load.waiting = Some(0);
        let load = OwnLoad {
            generating: own,
            ..OwnLoad::default()
        };
        (row, load)
    }

    #[track_caller]
    fn check(running: u32, own: u32, tables: usize, expected: core::ops::RangeInclusive<f64>) {
        let (row, load) = pod(running, own);
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
        let (mut dead, load) = pod(40, 0);
        let mut frozen = dead.clone();
        dead.failures = 1;
        frozen.trend = Trend::Frozen;
        for _ in 0..1_000 {
            share.add([(&dead, load), (&frozen, load)].into_iter());
        }
        assert_eq!(share.own().to_bits(), 1.0_f64.to_bits());
    }

    #[test]
    fn requests_that_no_gauge_shows_yet_are_no_more_than_all() {
        check(1, 5, 1_000, 1.0..=1.0);
    }

    /// This proxy's part at a pod after so many pages, where it sends a quarter of the pool's load.
    fn at_pod(running: u32, own: u32, pages: usize) -> f64 {
        let (row, load) = pod(running, own);
        let mut share = ShareAtPod::default();
        for _ in 0..pages {
            share.add(&row, &load);
        }
        share.own(0.25)
    }

    #[test]
    fn a_pod_is_shared_as_the_pool_is_until_its_pages_say_otherwise() {
        assert_eq!(at_pod(8, 8, 0), 0.25);
        assert_eq!(at_pod(0, 0, 100), 0.25);
        // One page of five requests weighs as much as what was assumed.
        assert_eq!(at_pod(5, 5, 1), 0.625);
        assert!(at_pod(8, 8, 100) > 0.97);
        assert!(at_pod(8, 0, 100) < 0.01);
        // The ledger is newer than the page: half as much may have begun since, or ended.
        assert!((at_pod(8, 4, 100) - 0.5).abs() < 0.02);
        assert!(at_pod(2, 8, 100) < 1.0);
    }

    #[test]
    fn the_last_pages_of_a_pod_outweigh_the_older_ones() {
        let mut share = ShareAtPod::default();
        let mut pages = |running: u32, own: u32, pages: usize| {
            let (row, load) = pod(running, own);
            (0..pages).for_each(|_| share.add(&row, &load));
            share.own(0.5)
        };
        assert!(pages(10, 0, 1_000) < 0.02);
        assert!((0.45..0.65).contains(&pages(10, 10, 14)));
        assert!(pages(10, 10, 40) > 0.9);
    }
}
