//! References that see what no router can: the engines' true state and the true length of every answer.
//!
//! *Greedy* sends a request where its own first token comes first if nothing else is ever sent; a tie goes to the pod
//! with the least KV in use. It knows nothing of later requests. *Lookahead* takes the best few of greedy's choices and
//! for each lets greedy place the next requests, too; the least sum of their times wins. Several proxies share the truth,
//! so references do not herd.

use crate::client::Job;
use crate::fleet::{Door, Fleet};
use crate::world::{Asked, Router, START, request};
use berth_tests_simulator::engine::{Engine, Micros, Request};
use berth_tests_simulator::random::Rng;

/// Candidates of the lookahead.
const CANDIDATES: usize = 3;
/// Further requests that it places for each.
const HORIZON: usize = 6;
/// A request that comes later than this is no business of the one at hand.
const HORIZON_TIME: Micros = 2_000_000;

/// Either reference.
#[derive(Debug)]
pub struct Clairvoyant {
    horizon: usize,
    rng: Rng,
}

/// A pod and when the first token would come there.
type Forecast = (Micros, usize);

impl Clairvoyant {
    /// The greedy one.
    #[must_use]
    pub fn greedy(seed: u64) -> Self {
        Self {
            horizon: 0,
            rng: Rng::new(seed),
        }
    }

    /// The one that looks ahead.
    #[must_use]
    pub fn lookahead(seed: u64) -> Self {
        Self {
            horizon: HORIZON,
            rng: Rng::new(seed),
        }
    }

    /// The `count` pods with the earliest first tokens, in order. A pod is simulated only if its lower bound can still
    /// matter, so most are not.
    fn best(&mut self, engines: &[(usize, &Engine)], request: &Request, now: Micros, count: usize) -> Vec<Forecast> {
        let tie = |engine: &Engine| (engine.blocks_used(), engine.unfinished());
        let mut order: Vec<(Micros, (u32, usize), u64, usize)> = engines
            .iter()
            .enumerate()
            .map(|(place, (_, engine))| {
                (
                    engine.earliest_first_token(request, now),
                    tie(engine),
                    self.rng.next_u64(),
                    place,
                )
            })
            .collect();
        order.sort_unstable();
        let mut best: Vec<(Micros, (u32, usize), usize)> = Vec::new();
        for (bound, tie, _, place) in order {
            let worst = best.get(count - 1).map_or(Micros::MAX, |worst| worst.0);
            if bound > worst {
                break;
            }
            let (pod, engine) = engines[place];
            if let Some(at) = engine.forecast_first_token(request, now, worst) {
                best.push((at, tie, pod));
                best.sort();
                best.truncate(count);
            }
        }
        best.into_iter().map(|(at, _, pod)| (at, pod)).collect()
    }

    /// Sum of the times to first token of the request and the next ones, if the request goes to `pod` and greedy places
    /// the others.
    fn outlook(&mut self, asked: &Asked<'_>, fleet: &Fleet, first: Forecast, now: Micros) -> Micros {
        let mut changed: Vec<(usize, Engine)> = Vec::new();
        send(&mut changed, fleet, first.1, request(asked.id, asked.job), now);
        let mut sum = first.0 - now;
        for (index, job) in next_jobs(asked, self.horizon, now) {
            let at = (job.at + START).max(now);
            let engines: Vec<(usize, &Engine)> = usable(fleet)
                .into_iter()
                .map(|pod| (pod, current(&changed, fleet, pod)))
                .collect();
            let ask = request(index, job);
            let Some((token, pod)) = self.best(&engines, &ask, at, 1).first().copied() else {
                continue;
            };
            sum += token - at;
            send(&mut changed, fleet, pod, ask, at);
        }
        sum
    }
}

fn usable(fleet: &Fleet) -> Vec<usize> {
    fleet
        .listed()
        .into_iter()
        .filter(|pod| fleet.pods[*pod].door == Door::Open)
        .collect()
}

fn current<'a>(changed: &'a [(usize, Engine)], fleet: &'a Fleet, pod: usize) -> &'a Engine {
    changed
        .iter()
        .find(|(other, _)| *other == pod)
        .map_or(&fleet.pods[pod].engine, |(_, engine)| engine)
}

fn send(changed: &mut Vec<(usize, Engine)>, fleet: &Fleet, pod: usize, request: Request, at: Micros) {
    let mut engine = current(changed, fleet, pod).clone();
    engine.submit(request, at);
    let _ = engine.step(at);
    changed.retain(|(other, _)| *other != pod);
    changed.push((pod, engine));
}

/// The next jobs in order of their plan, those that wait for an answer left out.
fn next_jobs<'a>(asked: &Asked<'a>, count: usize, now: Micros) -> impl Iterator<Item = (usize, &'a Job)> {
    let later = asked
        .jobs
        .iter()
        .enumerate()
        .skip(asked.id + 1)
        .filter(|(_, job)| job.after.is_none());
    later
        .take_while(move |(_, job)| job.at + START <= now + HORIZON_TIME)
        .take(count)
}

impl Router for Clairvoyant {
    fn pick(&mut self, asked: &Asked<'_>, fleet: &mut Fleet, now: Micros) -> Vec<usize> {
        let engines: Vec<(usize, &Engine)> = usable(fleet)
            .into_iter()
            .map(|pod| (pod, &fleet.pods[pod].engine))
            .collect();
        let ask = request(asked.id, asked.job);
        let count = if self.horizon == 0 { 1 } else { CANDIDATES };
        let best = self.best(&engines, &ask, now, count);
        if best.len() < 2 {
            return best.into_iter().map(|(_, pod)| pod).collect();
        }
        let fleet = &*fleet;
        let outlooks: Vec<(Micros, usize)> = best
            .iter()
            .map(|first| (self.outlook(asked, fleet, *first, now), first.1))
            .collect();
        outlooks
            .into_iter()
            .min_by_key(|(sum, _)| *sum)
            .map(|(_, pod)| pod)
            .into_iter()
            .collect()
    }
}

#[cfg(test)]
mod tests;
