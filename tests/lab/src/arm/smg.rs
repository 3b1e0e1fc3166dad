//! `cache_aware` of the SGLang model gateway, with the defaults of its documentation
//! (docs/getting-started/load-balancing.md: threshold 0.3, absolute 64, relative 1.5).
//!
//! Its tree of characters is one of 64-token blocks here. It holds 2^26 characters per worker, more than any run sends.

use crate::fleet::Fleet;
use crate::world::{Asked, Router};
use berth_filter_routing::ledger::Outcome;
use berth_tests_simulator::engine::Micros;
use berth_tests_simulator::random::Rng;
use std::collections::HashMap;

const CACHE_THRESHOLD: f64 = 0.3;
const BALANCE_ABSOLUTE: u32 = 64;
const BALANCE_RELATIVE: f64 = 1.5;

/// Its state.
#[derive(Debug)]
pub struct Smg {
    /// Pods that were sent a block, the latest first.
    tree: HashMap<u64, Vec<usize>>,
    in_flight: Vec<u32>,
    rng: Rng,
}

impl Smg {
    /// Before the first request.
    #[must_use]
    pub fn new(pods: usize, seed: u64) -> Self {
        Self {
            tree: HashMap::new(),
            in_flight: vec![0; pods],
            rng: Rng::new(seed),
        }
    }

    fn least(&mut self, listed: &[usize]) -> usize {
        let least = listed.iter().map(|pod| self.in_flight[*pod]).min();
        let ties: Vec<usize> = listed
            .iter()
            .copied()
            .filter(|pod| Some(self.in_flight[*pod]) == least)
            .collect();
        ties[self.rng.below(ties.len() as u64) as usize]
    }

    /// The longest match of all, and a pod that has it.
    fn matched(&self, blocks: &[u64], listed: &[usize]) -> (usize, Option<usize>) {
        let holder = |block: &u64| self.tree.get(block)?.iter().copied().find(|pod| listed.contains(pod));
        let held: Vec<usize> = blocks.iter().map_while(holder).collect();
        (held.len(), held.last().copied())
    }

    fn insert(&mut self, blocks: &[u64], pod: usize) {
        for block in blocks {
            let holders = self.tree.entry(*block).or_default();
            holders.retain(|other| *other != pod);
            holders.insert(0, pod);
        }
    }
}

impl Router for Smg {
    fn pick(&mut self, asked: &Asked<'_>, fleet: &mut Fleet, _now: Micros) -> Vec<usize> {
        let listed = fleet.listed();
        let loads = || listed.iter().map(|pod| self.in_flight[*pod]);
        let (most, fewest) = (loads().max().unwrap_or(0), loads().min().unwrap_or(0));
        let unbalanced = most - fewest > BALANCE_ABSOLUTE && f64::from(most) > f64::from(fewest) * BALANCE_RELATIVE;
        let blocks = &asked.job.blocks;
        let (length, holder) = self.matched(blocks, &listed);
        let share = length as f64 / blocks.len().max(1) as f64;
        let pod = match holder {
            Some(holder) if !unbalanced && share > CACHE_THRESHOLD => holder,
            _ => self.least(&listed),
        };
        self.insert(blocks, pod);
        vec![pod]
    }

    fn sent(&mut self, _asked: &Asked<'_>, pod: usize, _refused: usize, _now: Micros) {
        self.in_flight[pod] += 1;
    }

    fn ended(&mut self, _asked: &Asked<'_>, pod: usize, _outcome: Outcome, _now: Micros) {
        self.in_flight[pod] = self.in_flight[pod].saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_match_decides_and_the_latest_holder_of_it() {
        let mut smg = Smg::new(3, 1);
        smg.insert(&[1, 2], 0);
        smg.insert(&[1, 2, 3], 1);
        assert_eq!(smg.matched(&[1, 2, 9], &[0, 1, 2]), (2, Some(1)));
        assert_eq!(smg.matched(&[1, 2, 9], &[0, 2]), (2, Some(0)));
        assert_eq!(smg.matched(&[9], &[0, 1, 2]), (0, None));
    }
}
