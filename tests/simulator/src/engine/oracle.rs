//! What somebody who sees the whole state of an engine can know of the future. For reference policies; no metric of a
//! real server tells it.

use super::{Engine, Micros, Request};

impl Engine {
    /// No first token of this request, sent now, can come earlier than this. Cheap: a look, not a simulation.
    #[must_use]
    pub fn earliest_first_token(&self, request: &Request, now: Micros) -> Micros {
        let start = self
            .flight
            .as_ref()
            .map_or(self.busy_until, |flight| flight.ends)
            .max(now);
        // Somebody ahead may bring a shared prefix in, or an adapter.
        let is_read = |id| {
            self.sequences
                .get(id)
                .is_some_and(|other| other.computed >= other.request.prompt_tokens)
        };
        let alone = self.waiting.is_empty() && self.deferred.is_empty() && self.running.iter().all(is_read);
        let uncached = if alone {
            request.prompt_tokens - self.cached_tokens(request)
        } else {
            1
        };
        let adapter = request
            .adapter
            .as_ref()
            .filter(|adapter| alone && !self.adapters.on_gpu().contains(adapter));
        let load = adapter.map_or(0, |_| self.config.cost.adapter_from_cpu);
        let full_steps = u64::from((uncached - 1) / self.config.max_num_batched_tokens);
        let budget = self.config.max_num_batched_tokens;
        let steps =
            full_steps * self.compute_time(budget, 0) + self.compute_time(uncached - full_steps as u32 * budget, 0);
        start + load + steps
    }

    /// Tokens of its prompt that the prefix cache holds now. The last token is never taken from it.
    #[must_use]
    pub fn cached_tokens(&self, request: &Request) -> u32 {
        let salt = request
            .adapter
            .as_ref()
            .map_or(0, |name| crate::random::mix_bytes(1, name.as_bytes()));
        let full = (request.prompt_tokens.max(1) - 1) / self.config.block_size;
        let keys = request
            .chain
            .iter()
            .take(full as usize)
            .map(|hash| crate::random::mix2(*hash, salt));
        self.pool.find(keys).len() as u32 * self.config.block_size
    }

    /// KV blocks in use now, not as of the last step.
    #[must_use]
    pub fn blocks_used(&self) -> u32 {
        self.pool.used()
    }

    /// Requests that wait or run.
    #[must_use]
    pub fn unfinished(&self) -> usize {
        self.sequences.len()
    }

    /// When the first token of this request comes if it is sent now and nothing else ever is. None = refused, or not by
    /// `patience`.
    #[must_use]
    pub fn forecast_first_token(&self, request: &Request, now: Micros, patience: Micros) -> Option<Micros> {
        if self.jammed {
            return None;
        }
        let mut future = self.clone();
        future.submit(request.clone(), now);
        if future.flight.is_none() {
            future.begin(now);
        }
        while let Some(flight) = future.flight.take_if(|flight| flight.ends <= patience) {
            let ended = flight.ends;
            future.finish(flight);
            future.report.events.clear();
            future.report.steps.clear();
            if future
                .sequences
                .get(&request.id)
                .is_none_or(|sequence| sequence.first_token.is_some())
            {
                return Some(ended);
            }
            future.begin(ended);
        }
        None
    }
}
