//! Many runs: scenarios x arms x seeds, over a few threads.

use crate::arm::Arm;
use crate::client::trace::Traces;
use crate::record::{Figures, Run, median};
use crate::scenario::Scenario;
use crate::world::World;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What to run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Seeds; each gives other clients and other chances.
    pub seeds: Vec<u64>,
    /// Arms, where the scenario allows them.
    pub arms: Vec<Arm>,
    /// Scales the number of requests.
    pub size: f64,
    /// Threads.
    pub threads: usize,
    /// Terms that Berth's cost is left without.
    pub without: Vec<String>,
}

/// Figures of all seeds of one arm in one scenario.
#[derive(Debug, Clone, Default)]
pub struct Cell {
    /// By seed.
    pub figures: Vec<Figures>,
}

impl Cell {
    /// Median over the seeds.
    #[must_use]
    pub fn median(&self, of: fn(&Figures) -> f64) -> f64 {
        median(&self.figures.iter().map(of).collect::<Vec<_>>())
    }

    /// Least and greatest over the seeds.
    #[must_use]
    pub fn range(&self, of: fn(&Figures) -> f64) -> (f64, f64) {
        let values = || self.figures.iter().map(of);
        (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max))
    }
}

/// Results: one row of cells for each scenario.
#[derive(Debug)]
pub struct Results {
    /// In the order given.
    pub scenarios: Vec<Scenario>,
    /// By scenario.
    pub cells: Vec<BTreeMap<Arm, Cell>>,
}

/// One run.
#[must_use]
pub fn run(scenario: &Scenario, arm: Arm, traces: &Traces, seed: u64, size: f64) -> Run {
    let jobs = scenario.jobs(traces, seed, size);
    let mut fleet = scenario.fleet();
    let turns = fleet.turns(&scenario.faults, size);
    let proxies = (0..scenario.proxies)
        .map(|proxy| arm.router(scenario, proxy, seed))
        .collect();
    World::new(&jobs, fleet, turns, proxies, scenario.workers, seed).run()
}

fn arms_of(scenario: &Scenario, plan: &Plan) -> Vec<Arm> {
    let fits = |arm: &Arm| match arm {
        Arm::Greedy | Arm::Berth => true,
        Arm::Lookahead => scenario.lookahead,
        _ => !scenario.family.is_about_berth_alone(),
    };
    plan.arms.iter().copied().filter(fits).collect()
}

/// All runs of a plan.
///
/// # Panics
/// When a run panics.
#[must_use]
pub fn study(scenarios: Vec<Scenario>, plan: &Plan, traces: &Traces) -> Results {
    let mut work = Vec::new();
    for (index, scenario) in scenarios.iter().enumerate() {
        for seed in 0..plan.seeds.len() {
            work.extend(arms_of(scenario, plan).into_iter().map(|arm| (index, seed, arm)));
        }
    }
    let (next, done) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let worker = || {
        while let Some(&(index, seed, arm)) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
            berth_filter_routing::lab::leave_out(&plan.without);
            let figures = run(&scenarios[index], arm, traces, plan.seeds[seed], plan.size).figures();
            done.lock()
                .expect("no thread panicked")
                .insert((index, arm, seed), figures);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..plan.threads.max(1) {
            // An engine's clone is large; debug builds need the room.
            std::thread::Builder::new()
                .stack_size(8 << 20)
                .spawn_scoped(scope, worker)
                .expect("a thread");
        }
    });
    let mut cells: Vec<BTreeMap<Arm, Cell>> = vec![BTreeMap::new(); scenarios.len()];
    for ((index, arm, _), figures) in done.into_inner().expect("no thread panicked") {
        cells[index].entry(arm).or_default().figures.push(figures);
    }
    Results { scenarios, cells }
}
