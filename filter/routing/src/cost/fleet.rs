//! What the readable pods of a pool have in common: stands in for what one pod does not say.

use berth_shared_state::units::Tokens;

use super::{AWAY, Foreign, HITS_SCALE, RATE_DIFFERS, RATE_DIFFERS_ELSEWHERE, RATE_MIN, Stage, capacity, least, most};
use crate::decision::PodFacts;

/// A weighted mean under construction.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    sum: f64,
    weight: f64,
}

impl Mean {
    fn add(&mut self, value: f64, weight: f64) {
        self.sum += value * weight;
        self.weight += weight;
    }

    fn get(self) -> Option<f64> {
        (self.weight > 0.0).then(|| self.sum / self.weight)
    }
}

/// Means over the pool's pods.
#[derive(Clone, Copy, Debug)]
pub struct Fleet {
    /// Tokens per millisecond.
    rate: f64,
    /// A pod's own rate counts only if it differs by more than this factor.
    differs: f64,
    queued: Mean,
    running: Mean,
    used: Mean,
    capacity: Mean,
    /// Uncached prompt tokens of a request, from the pods' counters.
    counted: Mean,
    /// The same of the own unanswered requests.
    sent: Mean,
    /// Part of the prompt tokens that was found in prefix caches, from the pods' counters.
    hits: Mean,
    max_lora: Option<u32>,
}

impl Fleet {
    /// An empty one. `learned` is the pool's rate in tokens per millisecond, `initial` the configured
    /// one in tokens per second, `elsewhere` the part of the load that other proxies send.
    #[must_use]
    pub fn new(learned: Option<f64>, initial: u32, elsewhere: f64) -> Self {
        let rate = usable(learned).unwrap_or(f64::from(initial) / 1_000.0).max(RATE_MIN);
        let mean = Mean::default();
        Self {
            rate,
            differs: RATE_DIFFERS + RATE_DIFFERS_ELSEWHERE * elsewhere,
            queued: mean,
            running: mean,
            used: mean,
            capacity: mean,
            counted: mean,
            sent: mean,
            hits: mean,
            max_lora: None,
        }
    }

    /// Adds a pod to the means.
    pub fn add(&mut self, pod: &PodFacts<'_>, stage: Stage) {
        let weight = stage.weight();
        let foreign = Foreign::of(pod);
        let means = [&mut self.queued, &mut self.running, &mut self.used];
        for (mean, value) in means.into_iter().zip([foreign.queued, foreign.running, foreign.used]) {
            if let Some(value) = value {
                mean.add(value, weight);
            }
        }
        if let Some(tokens) = capacity(pod.row) {
            self.capacity.add(tokens, 1.0);
        }
        let rates = &pod.row.rates;
        let requests = usable(rates.requests.map(f64::from));
        if let (Some(requests), Some(prompt)) = (requests, usable(rates.prompt_tokens.map(f64::from))) {
            let cached = usable(rates.cached_prompt_tokens.map(f64::from)).unwrap_or(0.0);
            if rates.cached_prompt_tokens.is_some() {
                self.hits.add(least(cached / prompt, 1.0), prompt);
            }
            self.counted.add(most(prompt - cached, 0.0) / requests, requests);
        }
        if pod.own.unanswered > 0 {
            let requests = f64::from(pod.own.unanswered);
            self.sent.add(pod.own.unanswered_tokens.0 as f64 / requests, requests);
        }
        let slots = pod.row.activity.as_ref().and_then(|active| active.max);
        self.max_lora = self.max_lora.max(slots.filter(|max| *max > 0));
    }

    /// LoRA slots of a pod that does not say: the pool's largest.
    #[must_use]
    pub const fn max_lora(&self) -> Option<u32> {
        self.max_lora
    }

    /// KV tokens of a pod that does not say.
    #[must_use]
    pub fn mean_capacity(&self) -> Option<f64> {
        self.capacity.get()
    }

    /// Uncached tokens of an ordinary queued request: by the pods' counters, else by what this
    /// proxy has sent, else as many as the request at hand.
    #[must_use]
    pub fn mean_uncached(&self, own: Tokens) -> f64 {
        self.counted.get().or(self.sent.get()).unwrap_or(own.0 as f64)
    }

    /// How far what other proxies sent is believed to be cached, 0 to 1: not at all where the engines
    /// report no hits, in full from one in twenty tokens on. Where they do not say, the part of the own requests
    /// that began like an earlier one stands in for it.
    #[must_use]
    pub fn caches(&self, repeated: f64) -> f64 {
        (HITS_SCALE * self.hits.get().unwrap_or(repeated)).min(1.0)
    }

    /// Prefills that one copy more of a prefix costs: where engines do not say what they find, no more than its own.
    /// Prompts may share nothing, and must not be driven from an idle pod to a busy one.
    #[must_use]
    pub fn away(&self) -> f64 {
        self.hits.get().map_or(1.0, |_| AWAY)
    }

    /// A pod's prefill rate, tokens per millisecond. Single observations are noisy, so the pool's
    /// rate counts unless the pod's is clearly another one. A pod whose load is unknown gets no
    /// credit for being fast.
    pub(super) fn rate(&self, pod: &PodFacts<'_>, stage: Stage) -> f64 {
        let Some(own) = usable(pod.rate) else {
            return self.rate;
        };
        let slower = own * self.differs < self.rate;
        let faster = own > self.rate * self.differs && stage != Stage::Unknown;
        if slower || faster {
            most(own, RATE_MIN)
        } else {
            self.rate
        }
    }

    /// Requests at a pod when it was read, and its rate in multiples of the pool's.
    pub(super) fn load_and_speed(&self, pod: &PodFacts<'_>, stage: Stage) -> (f64, f64) {
        let foreign = self.foreign(pod, stage);
        let load = foreign.queued.unwrap_or(0.0) + foreign.running.unwrap_or(0.0);
        (
            load + f64::from(pod.own.in_flight_at_sample()),
            self.rate(pod, stage) / self.rate,
        )
    }

    /// A pod's foreign load as believed: its reading and the mean, by weight.
    pub(super) fn foreign(&self, pod: &PodFacts<'_>, stage: Stage) -> Foreign {
        let (read, weight) = (Foreign::of(pod), stage.weight());
        Foreign {
            queued: blend(read.queued, self.queued, weight),
            running: blend(read.running, self.running, weight),
            used: blend(read.used, self.used, weight),
        }
    }
}

fn blend(read: Option<f64>, mean: Mean, weight: f64) -> Option<f64> {
    // A fresh reading is believed as it is: three means of each pod need not be divided.
    if weight >= 1.0 && read.is_some() {
        return read;
    }
    match (read.filter(|_| weight > 0.0), mean.get()) {
        (Some(read), Some(mean)) => Some(weight * read + (1.0 - weight) * mean),
        (read, mean) => read.or(mean),
    }
}

/// A rate that can be divided by.
fn usable(rate: Option<f64>) -> Option<f64> {
    rate.filter(|rate| rate.is_finite() && *rate > 0.0)
}
