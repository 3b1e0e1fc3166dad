//! The in-flight ledger, shared by all workers of the process through shared data.

use berth_shared_state::units::{Millis, Tokens, UnixMillis};

/// What this proxy itself has at one pod. All of it is fact, not estimate, apart from the token counts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OwnLoad {
    /// Requests sent whose first token was not seen yet.
    pub unanswered: u32,
    /// Their uncached prompt tokens: work ahead of a new request.
    pub unanswered_tokens: Tokens,
    /// Requests past their first token.
    pub generating: u32,
    /// KV tokens all own requests in flight hold or will hold (prompt and expected output).
    pub context_tokens: Tokens,
    /// Requests sent after the sample was taken: its gauges cannot show them.
    pub sent_since: u32,
    /// KV tokens of those.
    pub sent_since_tokens: Tokens,
    /// Own requests that were unanswered when the sample was taken (part of its `waiting`).
    pub unanswered_at_sample: u32,
    /// The oldest unanswered one: when it was sent, and the time to first token predicted then.
    pub oldest_unanswered: Option<(UnixMillis, Millis)>,
}
