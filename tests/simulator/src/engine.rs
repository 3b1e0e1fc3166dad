//! One vLLM-V1 engine in virtual time: continuous batching, chunked prefill, paged KV with prefix reuse, preemption by
//! recompute, LoRA slots.
//!
//! ```text
//! submit -> waiting --schedule--> running --last token--> finished
//!              |  ^                  |
//!    no slot   v  | a slot           | out of blocks: the newest is preempted
//!            deferred                v
//!              waiting (in front, computed = 0, what is left of its blocks is found again as a prefix)
//! ```
//!
//! Time comes in, events come out; nothing here reads a clock or waits. After each call that adds work the caller calls
//! [`Engine::step`], and again at the returned wake-up. A late call loses no time: steps are chained end to start.
//! Deliberately not here: speculative decoding, priorities, several engines, KV offload.

mod adapters;
mod blocks;
mod config;
mod oracle;
mod report;
mod schedule;
#[cfg(test)]
mod tests;

pub use adapters::Adapter;
pub use config::{EngineConfig, Micros, StepCost};
pub use report::{Counters, Done, Event, EventKind, Gauges, Refusal, StepRecord, StepReport};

use crate::random::mix2;
use adapters::AdapterCache;
use blocks::{BlockId, BlockPool};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// The caller's name for a request; unique among those in the engine.
pub type RequestId = u64;

/// What a request asks of the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The caller's name for it.
    pub id: RequestId,
    /// Hash chain ([`crate::chain`]) of the full blocks of prompt *and* output, as far as it is known. Blocks past its
    /// end are shared with nobody. Empty = nothing is shared.
    pub chain: Vec<u64>,
    /// Tokens in the prompt; 0 counts as 1.
    pub prompt_tokens: u32,
    /// Tokens that will come out; 0 counts as 1.
    pub output_tokens: u32,
    /// LoRA adapter, if any.
    pub adapter: Option<Adapter>,
}

/// A request inside the engine.
#[derive(Debug, Clone)]
struct Sequence {
    request: Request,
    /// Makes its private blocks differ from all others.
    salt: u64,
    /// Tokens of prompt and output whose KV is (or in this step will be) computed.
    computed: u32,
    /// Tokens that came out.
    output: u32,
    blocks: Vec<BlockId>,
    /// How many of the blocks can be found by others.
    remembered: usize,
    /// Prompt tokens not computed thanks to the prefix cache, at first admission.
    cached: u32,
    arrived: Micros,
    admitted: Option<Micros>,
    first_token: Option<Micros>,
    last_token: Micros,
    preemptions: u32,
}

impl Sequence {
    /// Tokens known so far: what a (re)computation has to cover before the next one can come out.
    fn tokens(&self) -> u32 {
        self.request.prompt_tokens + self.output
    }

    /// Key of the content of its `index`-th block. The adapter changes the KV, so it is part of the key.
    fn key(&self, index: usize) -> u64 {
        match self.request.chain.get(index) {
            Some(hash) => mix2(*hash, self.adapter_salt()),
            None => mix2(self.salt, index as u64),
        }
    }

    fn adapter_salt(&self) -> u64 {
        self.request
            .adapter
            .as_ref()
            .map_or(0, |name| crate::random::mix_bytes(1, name.as_bytes()))
    }
}

/// The step being computed.
#[derive(Debug, Clone)]
struct Flight {
    ends: Micros,
    /// Who takes part, with how many tokens each.
    batch: Vec<(RequestId, u32)>,
    prefill_tokens: u32,
    decode_sequences: u32,
}

/// The engine. See the module for how to drive it.
#[derive(Debug, Clone)]
pub struct Engine {
    config: EngineConfig,
    sequences: HashMap<RequestId, Sequence>,
    /// Batch in order of admission.
    running: Vec<RequestId>,
    waiting: VecDeque<RequestId>,
    /// Passed over for want of a LoRA slot; looked at before `waiting`.
    deferred: VecDeque<RequestId>,
    pool: BlockPool,
    adapters: AdapterCache,
    /// Adapters with a request that gave its first token, in the order of first use, with the number of such requests.
    active: Vec<(Adapter, u32)>,
    flight: Option<Flight>,
    /// Nothing starts before this time: an adapter is being loaded.
    busy_until: Micros,
    slowdown: f64,
    /// Admits nobody any more.
    jammed: bool,
    submitted: u64,
    gauges: Gauges,
    counters: Counters,
    report: StepReport,
}

impl Engine {
    /// An idle engine. Impossible limits are corrected as [`EngineConfig`] describes.
    #[must_use]
    pub fn new(config: EngineConfig) -> Self {
        let config = config.corrected();
        Self {
            pool: BlockPool::new(config.usable_blocks()),
            adapters: AdapterCache::new(config.max_loras, config.max_cpu_loras),
            sequences: HashMap::new(),
            running: Vec::new(),
            waiting: VecDeque::new(),
            deferred: VecDeque::new(),
            active: Vec::new(),
            flight: None,
            busy_until: 0,
            slowdown: 1.0,
            jammed: false,
            submitted: 0,
            gauges: Gauges::default(),
            counters: Counters::default(),
            report: StepReport::default(),
            config,
        }
    }

    /// The limits in force.
    #[must_use]
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Queues a request. It can join the step that the next call of [`Self::step`] starts, not the one being computed.
    pub fn submit(&mut self, mut request: Request, now: Micros) {
        self.advance(now);
        request.prompt_tokens = request.prompt_tokens.max(1);
        request.output_tokens = request.output_tokens.max(1);
        if let Some(refusal) = self.refusal(&request) {
            self.report.events.push(Event {
                at: now,
                id: request.id,
                kind: EventKind::Rejected(refusal),
            });
            return;
        }
        self.submitted += 1;
        let id = request.id;
        let sequence = Sequence {
            request,
            salt: mix2(u64::MAX, self.submitted),
            computed: 0,
            output: 0,
            blocks: Vec::new(),
            remembered: 0,
            cached: 0,
            arrived: now,
            admitted: None,
            first_token: None,
            last_token: now,
            preemptions: 0,
        };
        self.sequences.insert(id, sequence);
        self.waiting.push_back(id);
    }

    fn refusal(&self, request: &Request) -> Option<Refusal> {
        let limit = self.config.max_model_len;
        if self.sequences.contains_key(&request.id) {
            Some(Refusal::DuplicateId)
        } else if request.adapter.is_some() && self.config.max_loras == 0 {
            Some(Refusal::AdaptersOff)
        } else if request.prompt_tokens.saturating_add(request.output_tokens) > limit {
            Some(Refusal::TooLong { limit })
        } else {
            None
        }
    }

    /// Forgets a request and frees its blocks at once; no more events of it. Unknown ids are ignored.
    pub fn cancel(&mut self, id: RequestId, now: Micros) {
        self.advance(now);
        if let Some(sequence) = self.remove(id) {
            self.pool.release(&sequence.blocks);
            self.counters.cancelled += 1;
        }
    }

    /// Computes up to `now` and starts the next step if there is work.
    pub fn step(&mut self, now: Micros) -> StepReport {
        self.advance(now);
        if self.flight.is_none() {
            self.begin(now);
        }
        self.report.next_wakeup = self.flight.as_ref().map(|flight| flight.ends);
        std::mem::take(&mut self.report)
    }

    /// What the engine last published: the state at the end of a step, so later arrivals are not in it.
    pub fn gauges(&mut self, now: Micros) -> &Gauges {
        self.advance(now);
        &self.gauges
    }

    /// Totals since the start.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Loads an adapter as registering one does: into CPU memory and a GPU slot, while everything else waits. Returns
    /// when it is there. Does nothing with LoRA off.
    pub fn load_adapter(&mut self, adapter: &str, now: Micros) -> Micros {
        self.advance(now);
        if self.config.max_loras == 0 {
            return now;
        }
        let time = self.adapters.activate(&[Arc::from(adapter)], &self.config.cost);
        let busy_until = match &mut self.flight {
            Some(flight) => &mut flight.ends,
            None => &mut self.busy_until,
        };
        *busy_until = now.max(*busy_until) + time;
        *busy_until
    }

    /// Drops an adapter's weights. Requests that still need them read them from disk again.
    pub fn unload_adapter(&mut self, adapter: &str, now: Micros) {
        self.advance(now);
        self.adapters.remove(adapter);
    }

    /// Adapters in GPU slots and in CPU memory, each least recently used first. No metric of a real server tells this.
    #[must_use]
    pub fn resident_adapters(&self) -> (&[Adapter], &[Adapter]) {
        (self.adapters.on_gpu(), self.adapters.in_cpu())
    }

    /// Adapters copied into a slot since the start.
    #[must_use]
    pub fn adapter_loads(&self) -> u64 {
        self.adapters.loads()
    }

    /// Makes the following steps this many times longer. Not positive or not finite = 1.
    pub fn set_slowdown(&mut self, factor: f64) {
        self.slowdown = if factor.is_finite() && factor > 0.0 {
            factor
        } else {
            1.0
        };
    }

    /// From now on the scheduler admits nobody: what runs goes on to its end, what waits or comes waits for ever, and the
    /// gauges say so. Seen in vLLM when what parked requests hold is what the head of the queue needs (its #45387 and
    /// #53130), and in vllm-metal (#479).
    pub fn jam(&mut self) {
        self.jammed = true;
    }

    /// Finishes the steps that end by `now`, each followed at once by the next.
    fn advance(&mut self, now: Micros) {
        while let Some(flight) = self.flight.take_if(|flight| flight.ends <= now) {
            let ended = flight.ends;
            self.finish(flight);
            self.begin(ended);
        }
    }

    /// Takes a request out of every list. Its blocks are the caller's to release.
    fn remove(&mut self, id: RequestId) -> Option<Sequence> {
        let sequence = self.sequences.remove(&id)?;
        self.running.retain(|other| *other != id);
        self.waiting.retain(|other| *other != id);
        self.deferred.retain(|other| *other != id);
        if let (Some(adapter), Some(_)) = (&sequence.request.adapter, sequence.first_token) {
            if let Some(entry) = self.active.iter_mut().find(|entry| entry.0 == *adapter) {
                entry.1 -= 1;
            }
            self.active.retain(|entry| entry.1 > 0);
        }
        Some(sequence)
    }

    /// Hands out the tokens of a step that ended, then publishes the gauges.
    fn finish(&mut self, flight: Flight) {
        let at = flight.ends;
        for (id, _) in &flight.batch {
            self.emit(*id, at);
        }
        self.publish(at);
        self.report.steps.push(StepRecord {
            at,
            prefill_tokens: flight.prefill_tokens,
            decode_sequences: flight.decode_sequences,
            adapters: self.gauges.adapters.clone(),
        });
    }

    /// One token of a sequence whose known tokens are all computed; nothing for one amid its prompt, or one that left.
    fn emit(&mut self, id: RequestId, at: Micros) {
        let Some(sequence) = self
            .sequences
            .get_mut(&id)
            .filter(|sequence| sequence.computed == sequence.tokens())
        else {
            return;
        };
        sequence.output += 1;
        let (gap, after) = (at - sequence.last_token, at - sequence.arrived);
        sequence.last_token = at;
        self.counters.generation_tokens += 1;
        let kind = if sequence.first_token.is_none() {
            sequence.first_token = Some(at);
            self.counters.prompt_tokens += u64::from(sequence.request.prompt_tokens);
            self.counters.cached_prompt_tokens += u64::from(sequence.cached);
            let adapter = sequence.request.adapter.clone();
            adapter.into_iter().for_each(|adapter| self.activate(adapter));
            EventKind::FirstToken { after }
        } else {
            EventKind::Token { gap }
        };
        self.report.events.push(Event { at, id, kind });
        self.end_if_done(id, at);
    }

    fn activate(&mut self, adapter: Adapter) {
        match self.active.iter_mut().find(|entry| entry.0 == adapter) {
            Some(entry) => entry.1 += 1,
            None => self.active.push((adapter, 1)),
        }
    }

    fn end_if_done(&mut self, id: RequestId, at: Micros) {
        if self
            .sequences
            .get(&id)
            .is_none_or(|sequence| sequence.output < sequence.request.output_tokens)
        {
            return;
        }
        let Some(sequence) = self.remove(id) else { return };
        self.pool.release(&sequence.blocks);
        self.counters.finished += 1;
        let done = Done {
            prompt_tokens: sequence.request.prompt_tokens,
            output_tokens: sequence.output,
            cached_tokens: sequence.cached,
            preemptions: sequence.preemptions,
            arrived: sequence.arrived,
            admitted: sequence.admitted.unwrap_or(at),
            first_token: sequence.first_token.unwrap_or(at),
        };
        self.report.events.push(Event {
            at,
            id,
            kind: EventKind::Finished(done),
        });
    }

    fn publish(&mut self, at: Micros) {
        self.gauges = Gauges {
            at,
            running: self.running.len() as u32,
            waiting_capacity: self.waiting.len() as u32,
            waiting_deferred: self.deferred.len() as u32,
            kv_usage: f64::from(self.pool.used()) / f64::from(self.config.usable_blocks()),
            adapters: self.active.iter().map(|entry| Arc::clone(&entry.0)).collect(),
        };
    }
}
