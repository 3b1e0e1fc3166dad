//! Who takes part in the next step, with how many tokens: vLLM V1's order of things.
//!
//! First the running ones, oldest first, each with all it lacks within the budget; when blocks run out, the newest loses
//! its own. Then, if nobody was preempted, waiting ones in order, until one does not fit. One that needs a LoRA slot
//! when all are taken is passed over, not waited for.

use super::{Adapter, Engine, Flight, Micros, RequestId};
use std::collections::VecDeque;

/// A step in the making.
#[derive(Default)]
struct Plan {
    batch: Vec<(RequestId, u32)>,
    adapters: Vec<Adapter>,
    tokens: u32,
    decode_sequences: u32,
    preempted: bool,
}

impl Engine {
    /// Starts a step, if there is work.
    pub(super) fn begin(&mut self, now: Micros) {
        if self.sequences.is_empty() {
            return;
        }
        let start = now.max(self.busy_until);
        let mut plan = Plan::default();
        self.plan_running(&mut plan);
        if !plan.preempted && !self.jammed {
            self.plan_waiting(&mut plan, start);
        }
        let prefill_tokens = plan.tokens - plan.decode_sequences;
        let load = self.adapters.activate(&plan.adapters, &self.config.cost);
        let ends = start + load + self.compute_time(prefill_tokens, plan.decode_sequences);
        self.flight = Some(Flight {
            ends,
            batch: plan.batch,
            prefill_tokens,
            decode_sequences: plan.decode_sequences,
        });
    }

    /// Rounded up to a microsecond, so that time always passes.
    pub(super) fn compute_time(&self, prefill_tokens: u32, decode_sequences: u32) -> Micros {
        let cost = &self.config.cost;
        let ns = cost.base_ns
            + u64::from(prefill_tokens) * cost.prefill_token_ns
            + u64::from(decode_sequences) * cost.decode_sequence_ns;
        ((ns as f64 * self.slowdown / 1000.0).ceil() as Micros).max(1)
    }

    fn plan_running(&mut self, plan: &mut Plan) {
        let mut at = 0;
        while let Some(&id) = self.running.get(at) {
            let Some(sequence) = self.sequences.get(&id) else { break };
            let count = (sequence.tokens() - sequence.computed).min(self.config.max_num_batched_tokens - plan.tokens);
            if count == 0 {
                break;
            }
            while !self.extend(id, count) {
                plan.preempted = true;
                if self.preempt_newest() == Some(id) {
                    return;
                }
            }
            self.enlist(id, count, plan);
            at += 1;
        }
    }

    /// Puts a sequence with its blocks into the step.
    fn enlist(&mut self, id: RequestId, count: u32, plan: &mut Plan) {
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return;
        };
        let decodes = sequence.output > 0 && sequence.computed + 1 == sequence.tokens();
        sequence.computed += count;
        plan.decode_sequences += u32::from(decodes);
        plan.tokens += count;
        plan.batch.push((id, count));
        if let Some(adapter) = &sequence.request.adapter
            && !plan.adapters.contains(adapter)
        {
            plan.adapters.push(Adapter::clone(adapter));
        }
    }

    /// Takes the newest running request's blocks; it waits in front and is computed again. None = nobody runs.
    fn preempt_newest(&mut self) -> Option<RequestId> {
        let id = self.running.pop()?;
        let sequence = self.sequences.get_mut(&id)?;
        self.pool.release(&sequence.blocks);
        sequence.blocks.clear();
        sequence.remembered = 0;
        sequence.computed = 0;
        sequence.preemptions += 1;
        self.counters.preemptions += 1;
        self.waiting.push_front(id);
        Some(id)
    }

    fn plan_waiting(&mut self, plan: &mut Plan, start: Micros) {
        let mut passed = VecDeque::new();
        while plan.tokens < self.config.max_num_batched_tokens
            && self.running.len() < self.config.max_num_seqs as usize
            && let Some(&id) = self.deferred.front().or_else(|| self.waiting.front())
        {
            if self.lacks_slot(id, plan) {
                self.pop_waiting();
                passed.push_back(id);
            } else if let Some(count) = self.admit(id, self.config.max_num_batched_tokens - plan.tokens, start) {
                self.pop_waiting();
                self.running.push(id);
                self.enlist(id, count, plan);
            } else {
                break;
            }
        }
        while let Some(id) = passed.pop_back() {
            self.deferred.push_front(id);
        }
    }

    fn pop_waiting(&mut self) {
        if self.deferred.pop_front().is_none() {
            self.waiting.pop_front();
        }
    }

    fn lacks_slot(&self, id: RequestId, plan: &Plan) -> bool {
        let adapter = self
            .sequences
            .get(&id)
            .and_then(|sequence| sequence.request.adapter.as_ref());
        adapter.is_some_and(|adapter| {
            plan.adapters.len() >= self.config.max_loras as usize && !plan.adapters.contains(adapter)
        })
    }

    /// Gives a waiting request its cached prefix and the blocks for its first chunk; returns the chunk's tokens.
    fn admit(&mut self, id: RequestId, budget: u32, start: Micros) -> Option<u32> {
        let block_size = self.config.block_size;
        let sequence = self.sequences.get_mut(&id)?;
        // The last token is always computed: without it there is nothing to sample from.
        let full = ((sequence.tokens() - 1) / block_size) as usize;
        let cached = self.pool.find((0..full).map(|index| sequence.key(index)));
        let hit = cached.len() as u32 * block_size;
        let count = (sequence.tokens() - hit).min(budget);
        let must_fit = if self.config.reserve_full_prompt {
            sequence.tokens()
        } else {
            hit + count
        };
        let new = must_fit.div_ceil(block_size) - cached.len() as u32;
        if new > self.pool.free() - self.pool.free_among(&cached) {
            return None;
        }
        self.pool.share(&cached);
        sequence.remembered = cached.len();
        sequence.blocks = cached;
        sequence.computed = hit;
        if sequence.admitted.is_none() {
            sequence.admitted = Some(start);
            sequence.cached = hit;
            self.counters.prefix_queries += u64::from(sequence.tokens());
            self.counters.prefix_hits += u64::from(hit);
        }
        self.extend(id, count).then_some(count)
    }

    /// Gives a sequence the blocks for `count` more tokens and lets others find those that become full; all or nothing.
    fn extend(&mut self, id: RequestId, count: u32) -> bool {
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return false;
        };
        let tokens = sequence.computed + count;
        let missing = tokens
            .div_ceil(self.config.block_size)
            .saturating_sub(sequence.blocks.len() as u32);
        if missing > self.pool.free() {
            return false;
        }
        self.pool.take(missing, &mut sequence.blocks);
        for index in sequence.remembered..(tokens / self.config.block_size) as usize {
            let key = sequence.key(index);
            sequence
                .blocks
                .get(index)
                .into_iter()
                .for_each(|id| self.pool.remember(*id, key));
            sequence.remembered = index + 1;
        }
        true
    }
}
