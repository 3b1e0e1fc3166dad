//! The reference endpoint picker (llm-d router 0.10): its scorers, filter, prefix index and profiles.

pub mod index;
pub mod score;
#[cfg(test)]
mod tests;

use crate::arm::EPP_SCRAPE;
use crate::fleet::{Fleet, Scrape};
use crate::world::{Asked, Router};
use berth_filter_routing::ledger::Outcome;
use berth_tests_simulator::engine::{EngineConfig, Micros};
use berth_tests_simulator::random::Rng;
use index::Index;

/// `prefix-cache-affinity-filter`: a pod with this part of the prompt's blocks is sticky ...
const AFFINITY: f64 = 0.8;
/// ... unless its expected first token comes so many milliseconds later than elsewhere ...
const PENALTY_MS: f64 = 18_000.0;
/// ... at this prefill rate, tokens per second.
const PEAK_PREFILL: f64 = 15_928.0;
/// `token-load-scorer`: tokens in flight that score 0.
const TOKEN_LOAD_MAX: f64 = 4_194_304.0;

/// Which plugins run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// queue 2, KV 2, prefix 3.
    Default,
    /// The affinity filter, then token load.
    AffinityAndTokens,
    /// The default and LoRA affinity with weight 1.
    Lora,
}

/// One picker.
pub struct Epp {
    profile: Profile,
    /// None = never read, which the reference picker takes for zeros.
    metrics: Vec<Option<Scrape>>,
    max_loras: Vec<u32>,
    index: Index,
    tokens_in_flight: Vec<f64>,
    /// Uncached tokens of each job, while they count.
    counted: std::collections::HashMap<usize, f64>,
    rng: Rng,
}

impl Epp {
    /// Before the first request. The index takes its size from the first pod's page, 64-token entries for 16-token
    /// blocks, as the reference picker's auto-tuning does.
    #[must_use]
    pub fn new(profile: Profile, pods: &[EngineConfig], seed: u64) -> Self {
        Self {
            profile,
            metrics: vec![None; pods.len()],
            max_loras: pods.iter().map(|pod| pod.max_loras).collect(),
            index: Index::new(pods.len(), pods.first().map_or(1, |pod| pod.num_gpu_blocks as usize)),
            tokens_in_flight: vec![0.0; pods.len()],
            counted: std::collections::HashMap::new(),
            rng: Rng::new(seed),
        }
    }

    fn scores(&self, asked: &Asked<'_>, pods: &[usize], matches: &[usize], total: usize) -> Vec<f64> {
        let read = |of: fn(&Scrape) -> f64| -> Vec<f64> {
            pods.iter()
                .map(|pod| self.metrics[*pod].as_ref().map_or(0.0, of))
                .collect()
        };
        let queue = score::queue(&read(|scrape| f64::from(scrape.waiting())));
        let usage = read(|scrape| scrape.gauges.kv_usage);
        let one = |(place, pod): (usize, &usize)| {
            let prefix = score::prefix(matches[*pod], total, 0.0, 8192.0, 64.0);
            let mut sum = 2.0 * queue[place] + 2.0 * score::kv(usage[place]) + 3.0 * prefix;
            if self.profile == Profile::Lora {
                sum += self.lora_score(asked, *pod);
            }
            sum
        };
        pods.iter().enumerate().map(one).collect()
    }

    fn lora_score(&self, asked: &Asked<'_>, pod: usize) -> f64 {
        let target = asked.job.adapter.as_deref().unwrap_or(crate::fleet::BASE_MODEL);
        let running: Vec<&str> = self.metrics[pod]
            .iter()
            .flat_map(|scrape| scrape.gauges.adapters.iter().map(|name| &**name))
            .collect();
        // vLLM V1 writes one list twice; the picker's maps keep each name once per list.
        score::lora(target, &running, &running, self.max_loras[pod])
    }

    /// The pods that the affinity filter leaves.
    fn sticky(&self, pods: Vec<usize>, matches: &[usize], total: usize) -> Vec<usize> {
        let (sticky, others): (Vec<usize>, Vec<usize>) = pods
            .iter()
            .partition(|pod| total > 0 && matches[**pod] as f64 / total as f64 >= AFFINITY);
        let best = |of: &[usize]| {
            let ttft = of.iter().map(|pod| self.tokens_in_flight[*pod] / PEAK_PREFILL * 1e3);
            ttft.fold(f64::INFINITY, f64::min)
        };
        let broken = !others.is_empty() && best(&sticky) - best(&others) > PENALTY_MS;
        if sticky.is_empty() || broken { pods } else { sticky }
    }

    fn uncached(asked: &Asked<'_>, matched: usize) -> f64 {
        (f64::from(asked.job.prompt_tokens) - (matched * 64) as f64).max(0.0)
    }

    fn release(&mut self, id: usize, pod: usize) {
        if let Some(tokens) = self.counted.remove(&id) {
            self.tokens_in_flight[pod] = (self.tokens_in_flight[pod] - tokens).max(0.0);
        }
    }
}

impl Router for Epp {
    fn tick_every(&self) -> Option<Micros> {
        Some(EPP_SCRAPE)
    }

    fn tick(&mut self, fleet: &mut Fleet, now: Micros) {
        for (metrics, pod) in self.metrics.iter_mut().zip(&mut fleet.pods) {
            // A failed scrape leaves the last values.
            if let Some(scrape) = pod.scrape(now) {
                *metrics = Some(scrape);
            }
        }
    }

    fn pick(&mut self, asked: &Asked<'_>, fleet: &mut Fleet, _now: Micros) -> Vec<usize> {
        let blocks = &asked.job.blocks;
        let total = (asked.job.prompt_tokens as usize).div_ceil(64);
        let matches = self.index.matches(blocks);
        let mut pods = fleet.listed();
        let scores = if self.profile == Profile::AffinityAndTokens {
            pods = self.sticky(pods, &matches, total);
            let load = |pod: &usize| self.tokens_in_flight[*pod] + Self::uncached(asked, matches[*pod]);
            pods.iter()
                .map(|pod| score::token_load(Some(load(pod)), TOKEN_LOAD_MAX))
                .collect()
        } else {
            self.scores(asked, &pods, &matches, total)
        };
        let pod = pods[score::max_picker(&scores, &mut self.rng)];
        self.index.add(blocks, pod);
        let tokens = Self::uncached(asked, matches[pod]);
        self.counted.insert(asked.id, tokens);
        vec![pod]
    }

    fn sent(&mut self, asked: &Asked<'_>, pod: usize, _refused: usize, _now: Micros) {
        self.tokens_in_flight[pod] += self.counted.get(&asked.id).copied().unwrap_or(0.0);
    }

    fn first_byte(&mut self, asked: &Asked<'_>, pod: usize, _now: Micros) {
        self.release(asked.id, pod);
    }

    fn ended(&mut self, asked: &Asked<'_>, pod: usize, _outcome: Outcome, _now: Micros) {
        self.release(asked.id, pod);
    }
}
