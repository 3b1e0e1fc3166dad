//! What the readable pods of a pool have in common: stands in for what one pod does not say.

use berth_shared_state::table::Tempo;
use berth_shared_state::units::{Tokens, UnixMillis};

use super::{
    AWAY, AWAY_PER_REUSE, FOUND_SCALE, Foreign, HITS_SCALE, RATE_DIFFERS, RATE_DIFFERS_ELSEWHERE, RATE_MIN,
    SLOW_COUNTS, SLOW_MAX, Stage, TEMPO_APART, TEMPO_DIFFERS, capacity, least, most,
};
use crate::decision::{PodFacts, PoolFacts};

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

    /// The mean of the others, of one that was added with weight 1.
    fn without(self, value: f64) -> Option<f64> {
        let (sum, weight) = (self.sum - value, self.weight - 1.0);
        Self { sum, weight }.get()
    }

    fn get(self) -> Option<f64> {
        (self.weight > 0.0).then(|| self.sum / self.weight)
    }
}

/// How long something takes by the pods' tempos, in milliseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    mean: Mean,
    best: Option<f64>,
    worst: f64,
}

impl Times {
    fn add(&mut self, millis: f64) {
        self.mean.add(millis, 1.0);
        self.best = Some(self.best.map_or(millis, |best| best.min(millis)));
        self.worst = most(self.worst, millis);
    }

    /// At the best pod, as far as it is believed.
    fn best(&self) -> Option<f64> {
        Some(most(self.best?, self.mean.get()? / TEMPO_APART))
    }
}

/// Means over the pool's pods.
#[derive(Clone, Copy, Debug)]
pub struct Fleet {
    /// Tokens per millisecond: as learned; before that as the pods' tempos say, or the config.
    rate: f64,
    learned: bool,
    /// Others send, too: what is learned of a pod holds their queues.
    others: bool,
    /// A pod's own rate counts only if it differs by more than this factor.
    differs: f64,
    /// Unix milliseconds at which the rest of these was read.
    read_at: Mean,
    queued: Mean,
    running: Mean,
    used: Mean,
    capacity: Mean,
    /// Prompt tokens of a request, as the engines count.
    prompt: Option<f64>,
    /// Uncached prompt tokens of a request that ended, from the pods' counters.
    counted: Mean,
    /// Uncached prompt tokens of an own unanswered request.
    sent: Mean,
    /// Part of the prompt tokens that was found in prefix caches, from the pods' counters: now, and lately.
    hits: Mean,
    found: Option<f64>,
    /// It is too early for these to mean anything.
    early: bool,
    max_lora: Option<u32>,
    /// A token of an answer, usually.
    step: Times,
    /// A prompt token, usually.
    token: Times,
    /// Learned rate x the same, of the pods where both are known.
    per_token: Mean,
    /// The part of their usual tempo that the pods have.
    keep: Mean,
}

impl Fleet {
    /// An empty one. `initial` is the configured rate in tokens per second.
    #[must_use]
    pub fn new(facts: &PoolFacts, initial: u32) -> Self {
        let learned = usable(facts.rate);
        let rate = learned.unwrap_or(f64::from(initial) / 1_000.0).max(RATE_MIN);
        let mean = Mean::default();
        Self {
            rate,
            learned: learned.is_some(),
            others: facts.elsewhere > 0.0,
            differs: RATE_DIFFERS + RATE_DIFFERS_ELSEWHERE * facts.elsewhere,
            read_at: mean,
            queued: mean,
            running: mean,
            used: mean,
            capacity: mean,
            prompt: usable(facts.prompt),
            counted: mean,
            sent: mean,
            hits: mean,
            found: facts.found,
            early: facts.early,
            max_lora: None,
            step: Times::default(),
            token: Times::default(),
            per_token: mean,
            keep: mean,
        }
    }

    /// Adds a pod to the means.
    pub fn add(&mut self, pod: &PodFacts<'_>, stage: Stage) {
        let weight = stage.weight();
        let foreign = Foreign::of(pod);
        let read_at = pod.row.gauges_at().map(|at| at.0 as f64);
        let means = [&mut self.read_at, &mut self.queued, &mut self.running, &mut self.used];
        for (mean, value) in means
            .into_iter()
            .zip([read_at, foreign.queued, foreign.running, foreign.used])
        {
            if let Some(value) = value {
                mean.add(value, weight);
            }
        }
        if let Some(tokens) = capacity(pod.row) {
            self.capacity.add(tokens, 1.0);
        }
        let rates = &pod.row.rates;
        if let Some(prompt) = usable(rates.prompt_tokens.map(f64::from)) {
            let cached = usable(rates.cached_prompt_tokens.map(f64::from)).unwrap_or(0.0);
            if rates.cached_prompt_tokens.is_some() {
                self.hits.add(least(cached / prompt, 1.0), prompt);
            }
            if let Some(requests) = usable(rates.requests.map(f64::from)) {
                self.counted.add(most(prompt - cached, 0.0) / requests, requests);
            }
        }
        if pod.own.unanswered > 0 {
            let requests = f64::from(pod.own.unanswered);
            self.sent.add(pod.own.unanswered_tokens.0 as f64 / requests, requests);
        }
        if let Some(tempo) = pod.row.tempo {
            self.add_tempo(pod, tempo);
        }
        let slots = pod.row.activity.as_ref().and_then(|active| active.max);
        self.max_lora = self.max_lora.max(slots.filter(|max| *max > 0));
    }

    fn add_tempo(&mut self, pod: &PodFacts<'_>, tempo: Tempo) {
        let (step, token) = (f64::from(tempo.step), f64::from(tempo.token));
        self.step.add(step);
        self.token.add(token);
        if let Some(rate) = usable(pod.rate) {
            // All that was learned over all that tempos say: single rates are noise.
            self.per_token.add(rate * token, 1.0 / token);
        }
        if !self.learned {
            self.rate = most(self.token.mean.weight / self.token.mean.sum, RATE_MIN);
        }
        self.keep.add(self.kept(pod), 1.0);
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

    /// Uncached tokens of an ordinary queued request: by the pods' counters, as soon as enough is learned of those that
    /// began, till then of those that ended; else by what this proxy has sent, else as many as the request at hand.
    #[must_use]
    pub fn mean_uncached(&self, own: Tokens) -> f64 {
        let counted = self
            .prompt
            .map(|prompt| prompt * (1.0 - self.hits.get().unwrap_or(0.0)));
        counted
            .or(self.counted.get())
            .or(self.sent.get())
            .unwrap_or(own.0 as f64)
    }

    /// How far what other proxies sent is believed to be cached, 0 to 1: not at all where the engines
    /// find nothing now, else up to four times as much as they found lately. Where they do not say, the part of the own requests
    /// that began like an earlier one stands in for it.
    #[must_use]
    pub fn caches(&self, repeated: f64) -> f64 {
        let now = |part: f64| least(HITS_SCALE * part, 1.0);
        let lately = least(FOUND_SCALE * self.found.unwrap_or(1.0), 1.0);
        self.hits.get().map_or(now(repeated), |hits| now(hits) * lately)
    }

    /// Engines say that they find nothing, and it is too early for that to mean anything.
    #[must_use]
    pub fn is_early(&self) -> bool {
        self.early && self.hits.get().is_some()
    }

    /// Prefills that one copy more of a prefix costs: more the oftener a token that was computed is found again. Where engines
    /// do not say what they find, no more than its own: prompts may share nothing, and must not be driven from an idle
    /// pod to a busy one.
    #[must_use]
    pub fn away(&self) -> f64 {
        let by_reuse = |found: f64| least(AWAY_PER_REUSE * found / (1.0 - found), AWAY);
        self.hits.get().map_or(1.0, |_| self.found.map_or(AWAY, by_reuse))
    }

    /// A pod's prefill rate, tokens per millisecond. Single observations are noisy, so the pool's
    /// rate counts unless the pod's is clearly another one. A pod whose load is unknown gets no
    /// credit for being fast.
    pub(super) fn rate(&self, pod: &PodFacts<'_>, stage: Stage) -> f64 {
        let learned = usable(pod.rate);
        // What was learned beside others is noise: proxies that do not talk see each other's queues as slowness.
        let usual = match self.by_tempo(pod).filter(|_| self.others || learned.is_none()) {
            Some(rate) => rate,
            None => learned
                .filter(|own| own * self.differs < self.rate || *own > self.rate * self.differs)
                .unwrap_or(self.rate),
        };
        let usual = if stage == Stage::Unknown {
            least(usual, self.rate)
        } else {
            usual
        };
        most(usual / self.slowness(pod), RATE_MIN)
    }

    /// A pod's rate by its tempo, where those of the pool are apart; in the measure of what was learned.
    fn by_tempo(&self, pod: &PodFacts<'_>) -> Option<f64> {
        let token = f64::from(pod.row.tempo?.token);
        let best = self.token.best()?;
        let apart = self.token.worst > best * TEMPO_DIFFERS;
        // While nothing was learned of anybody, as it is; else a pod that nobody tried would beat all others.
        let measure = self.per_token.get().or((!self.learned).then_some(1.0))?;
        apart.then_some(measure / most(token, best))
    }

    /// How many times slower a pod is than usual, as far as the others are not.
    pub(crate) fn slowness(&self, pod: &PodFacts<'_>) -> f64 {
        if pod.slow.is_none() {
            return 1.0;
        }
        let kept = self.kept(pod);
        let times = self.keep.without(kept).unwrap_or(1.0) / kept;
        if times >= SLOW_COUNTS { times.min(SLOW_MAX) } else { 1.0 }
    }

    /// The part of a pod's usual tempo that it has.
    fn kept(&self, pod: &PodFacts<'_>) -> f64 {
        let Some(slow) = pod.slow else { return 1.0 };
        let times = f64::from(slow.times).max(1.0);
        // One long step moves nothing either: what this proxy sent there may be in it.
        let read = slow.still_since.and_then(|_| {
            let rate = usable(pod.rate).unwrap_or(self.rate);
            Some(pod.own.unanswered_tokens.0 as f64 / rate / (step(pod)? * times))
        });
        (1.0 / times + read.unwrap_or(0.0)).clamp(1.0 / SLOW_MAX, 1.0)
    }

    /// Milliseconds per token of an answer at a pod and at the best one; `None` where they are not clearly apart. A pod
    /// that does not say is like the others.
    pub(super) fn steps(&self, pod: &PodFacts<'_>) -> Option<(f64, f64)> {
        let (mean, best) = (self.step.mean.get()?, self.step.best()?);
        let step = step(pod).unwrap_or(mean) * self.slowness(pod);
        (step > best * TEMPO_DIFFERS).then_some((step, best))
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

    /// When the foreign load that is believed of a pod was read: its own, or the mean's.
    pub(super) fn read_at(&self, pod: &PodFacts<'_>, stage: Stage) -> Option<UnixMillis> {
        let mean = || self.read_at.get().map(|at| UnixMillis(at as u64));
        pod.row.gauges_at().filter(|_| stage != Stage::Unknown).or_else(mean)
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

/// Milliseconds per token of an answer, usually.
fn step(pod: &PodFacts<'_>) -> Option<f64> {
    pod.row.tempo.map(|tempo| f64::from(tempo.step))
}

/// A rate that can be divided by.
fn usable(rate: Option<f64>) -> Option<f64> {
    rate.filter(|rate| rate.is_finite() && *rate > 0.0)
}
