//! What an engine tells: events of requests, records of steps, gauges, totals.

use super::{Adapter, Micros, RequestId};

/// Something happened to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// When.
    pub at: Micros,
    /// To whom.
    pub id: RequestId,
    /// What.
    pub kind: EventKind,
}

/// What can happen to a request, in this order: `Rejected`, or `FirstToken`, `Token`…, `Finished`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventKind {
    /// The prompt is computed and the first token is out.
    FirstToken {
        /// Time since it was submitted.
        after: Micros,
    },
    /// One more token.
    Token {
        /// Time since the token before.
        gap: Micros,
    },
    /// The last token, reported just before, ended the request.
    Finished(Done),
    /// The engine will not take it.
    Rejected(Refusal),
}

/// Why the engine will not take a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Prompt plus output exceed `limit` tokens.
    TooLong {
        /// `max_model_len`.
        limit: u32,
    },
    /// It names an adapter and LoRA is off.
    AdaptersOff,
    /// A request with this id is in the engine.
    DuplicateId,
}

/// How a finished request went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// Length of the prompt.
    pub prompt_tokens: u32,
    /// Length of the output.
    pub output_tokens: u32,
    /// Prompt tokens taken from the prefix cache at first admission.
    pub cached_tokens: u32,
    /// How often it lost its blocks.
    pub preemptions: u32,
    /// When it was submitted.
    pub arrived: Micros,
    /// When the step that first took it began.
    pub admitted: Micros,
    /// When its first token came out.
    pub first_token: Micros,
}

/// One engine step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepRecord {
    /// When it ended.
    pub at: Micros,
    /// Prompt tokens computed.
    pub prefill_tokens: u32,
    /// Sequences that decoded.
    pub decode_sequences: u32,
    /// [`Gauges::adapters`] after it.
    pub adapters: Vec<Adapter>,
}

/// What came of a call of [`super::Engine::step`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepReport {
    /// In order of time.
    pub events: Vec<Event>,
    /// Steps that ended.
    pub steps: Vec<StepRecord>,
    /// When to call again; none = when something is submitted.
    pub next_wakeup: Option<Micros>,
}

/// The state at the end of a step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Gauges {
    /// When that was.
    pub at: Micros,
    /// Requests in the batch.
    pub running: u32,
    /// Requests that wait for blocks, budget or a place in the batch.
    pub waiting_capacity: u32,
    /// Requests passed over for want of a LoRA slot.
    pub waiting_deferred: u32,
    /// Blocks in use over usable blocks, 0 to 1. Free blocks that hold a prefix do not count.
    pub kv_usage: f64,
    /// Adapters with a request that gave its first token and has not ended, in the order of first use.
    pub adapters: Vec<Adapter>,
}

/// Totals since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Prompt tokens of requests that gave a first token.
    pub prompt_tokens: u64,
    /// Of these, taken from the prefix cache.
    pub cached_prompt_tokens: u64,
    /// Tokens that came out.
    pub generation_tokens: u64,
    /// Tokens looked up in the prefix cache, at first admission.
    pub prefix_queries: u64,
    /// Of these, found.
    pub prefix_hits: u64,
    /// Requests that lost their blocks.
    pub preemptions: u64,
    /// Requests that ended.
    pub finished: u64,
    /// Requests that were cancelled.
    pub cancelled: u64,
}
