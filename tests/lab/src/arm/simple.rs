//! Policies that need no metrics: random, round robin, least request, consistent hashing with bounded loads.

use crate::fleet::Fleet;
use crate::world::{Asked, Router};
use berth_filter_routing::ledger::Outcome;
use berth_tests_simulator::engine::Micros;
use berth_tests_simulator::random::{Rng, mix2};

/// How to choose.
#[derive(Debug, Clone, Copy)]
pub enum Rule {
    /// Any.
    Random,
    /// One after the other.
    RoundRobin,
    /// Fewer own requests in flight, of two drawn (Envoy's `choice_count` of 2).
    LeastOfTwo,
    /// Fewest own requests in flight.
    LeastOfAll,
}

/// A rule and what it counts.
#[derive(Debug)]
pub struct Simple {
    rule: Rule,
    in_flight: Vec<u32>,
    turn: usize,
    rng: Rng,
}

impl Simple {
    /// Before the first request.
    #[must_use]
    pub fn new(rule: Rule, pods: usize, seed: u64) -> Self {
        Self {
            rule,
            in_flight: vec![0; pods],
            turn: (seed % 1024) as usize,
            rng: Rng::new(seed),
        }
    }

    fn any(&mut self, of: &[usize]) -> usize {
        of[self.rng.below(of.len() as u64) as usize]
    }
}

impl Router for Simple {
    fn pick(&mut self, _asked: &Asked<'_>, fleet: &mut Fleet, _now: Micros) -> Vec<usize> {
        let listed = fleet.listed();
        vec![match self.rule {
            Rule::Random => self.any(&listed),
            Rule::RoundRobin => {
                self.turn += 1;
                listed[self.turn % listed.len()]
            }
            Rule::LeastOfTwo => {
                let two = [self.any(&listed), self.any(&listed)];
                *two.iter().min_by_key(|pod| self.in_flight[**pod]).expect("two")
            }
            Rule::LeastOfAll => {
                let least = listed.iter().map(|pod| self.in_flight[*pod]).min();
                let ties: Vec<usize> = listed
                    .into_iter()
                    .filter(|pod| Some(self.in_flight[*pod]) == least)
                    .collect();
                self.any(&ties)
            }
        }]
    }

    fn sent(&mut self, _asked: &Asked<'_>, pod: usize, _refused: usize, _now: Micros) {
        self.in_flight[pod] += 1;
    }

    fn ended(&mut self, _asked: &Asked<'_>, pod: usize, _outcome: Outcome, _now: Micros) {
        self.in_flight[pod] = self.in_flight[pod].saturating_sub(1);
    }
}

/// Places of one pod on the ring (KubeAI's default).
const REPLICAS: u64 = 256;
/// A pod takes at most this multiple of the mean load (KubeAI's default of 125 %).
const LOAD_FACTOR: f64 = 1.25;

/// Consistent hashing with bounded loads over the first 100 characters of a prompt and the adapter, as KubeAI's
/// `PrefixHash` strategy does.
#[derive(Debug)]
pub struct Chwbl {
    /// (place, pod), in order.
    ring: Vec<(u64, usize)>,
    in_flight: Vec<u32>,
}

impl Chwbl {
    /// Before the first request.
    #[must_use]
    pub fn new(pods: usize) -> Self {
        let place = |pod: usize| move |replica| (mix2(mix2(0xc4, pod as u64), replica), pod);
        let mut ring: Vec<_> = (0..pods).flat_map(|pod| (0..REPLICAS).map(place(pod))).collect();
        ring.sort_unstable();
        Self {
            ring,
            in_flight: vec![0; pods],
        }
    }

    /// Walks the ring from `key` to the first pod with room; if none has, the first pod met.
    fn walk(&self, key: u64, listed: &[usize]) -> usize {
        let total: u32 = listed.iter().map(|pod| self.in_flight[*pod]).sum();
        let bound = f64::from(total + 1) / listed.len() as f64 * LOAD_FACTOR;
        let start = self.ring.partition_point(|(place, _)| *place < key);
        let around = self
            .ring
            .iter()
            .cycle()
            .skip(start)
            .take(self.ring.len())
            .map(|(_, pod)| *pod);
        let mut around = around.filter(|pod| listed.contains(pod)).peekable();
        let first = around.peek().copied().unwrap_or_default();
        around
            .find(|pod| total == 0 || f64::from(self.in_flight[*pod] + 1) <= bound)
            .unwrap_or(first)
    }
}

impl Router for Chwbl {
    fn pick(&mut self, asked: &Asked<'_>, fleet: &mut Fleet, _now: Micros) -> Vec<usize> {
        vec![self.walk(asked.job.anchor(), &fleet.listed())]
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
    fn a_key_stays_on_its_pod_until_that_has_a_quarter_more_than_its_share() {
        let mut chwbl = Chwbl::new(4);
        let home = chwbl.walk(42, &[0, 1, 2, 3]);
        chwbl.in_flight = vec![3; 4];
        // (12 + 1) / 4 x 1.25 = 4.06: a fourth fits, a fifth does not.
        assert_eq!(chwbl.walk(42, &[0, 1, 2, 3]), home);
        chwbl.in_flight[home] = 4;
        assert_ne!(chwbl.walk(42, &[0, 1, 2, 3]), home);
    }

    #[test]
    fn a_pod_that_is_gone_is_passed_over() {
        let chwbl = Chwbl::new(4);
        let home = chwbl.walk(42, &[0, 1, 2, 3]);
        let others: Vec<usize> = (0..4).filter(|pod| *pod != home).collect();
        assert!(others.contains(&chwbl.walk(42, &others)));
    }
}
