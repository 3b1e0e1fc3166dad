//! What all workers remember of one pod: how fast it is, which adapters it was sent, how it failed.
//!
//! Only own observations are in here. What the pod says of itself is in the table.
//!
//! ```text
//!            a failure: 3 s, then 6, 12, ... 30                  time is up
//!   closed ------------------------------------> open -----------------------> half open
//!     ^                                           ^                             |      ^
//!     |                                  it fails |        one request is sent  v      | it says nothing,
//!     +--------- it is answered, with 2xx --------+--------------------------- probed -+ or takes 10 s
//! ```
//! Who is open or probed is avoided; in half open the next request is the probe. What fails while it is open, since
//! there was nobody else, keeps it open and does not double the time. Workers that decide within the
//! age of a copy ([`berth_shared_state::limits::VIEW_MAX_AGE`]) may send one each.

use berth_shared_state::limits::{
    ADAPTERS_REMEMBERED, AVOID_FIRST, AVOID_MAX, ERROR_PAIR_WINDOW, PROBE_PATIENCE, RATE_FORGOTTEN_AFTER,
};
use berth_shared_state::units::{Millis, Tokens, UnixMillis};
use serde::{Deserialize, Serialize};

use super::Heard;

/// Weight of an observation above the rate, and of one below it. Queues of others only ever make a
/// pod look slower, so the rate is an upper expectile (0.71) of what was seen. With a tenth of the weight
/// above instead of two fifths, a pod that became slow was believed fast for four times as long.
const WEIGHT_UP: f64 = 0.25;
const WEIGHT_DOWN: f64 = 0.1;
/// Work that teaches with full weight; a shorter prompt shows fixed costs more than the rate.
const FULL_WEIGHT_TOKENS: f64 = 256.0;
/// One observation raises the rate to this multiple at most: a prefix that was cached after all
/// looks like an impossibly fast pod.
const GROWTH_MAX: f64 = 4.0;
/// No accelerator reads a million tokens per second; faster is a cached prefix.
const RATE_MAX: f64 = 1_000.0;
/// Observations before a rate is believed.
const SAMPLES_MIN: u32 = 3;

/// How a request ended, as far as it says something about its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Answered with 2xx to the end.
    Success,
    /// A 4xx other than 404 and 429, or a 500 whose text blames the length of the context: the client's.
    Refused,
    /// 404: the pod does not have what was asked for. Its adapter is not there, whatever was thought.
    NotFound,
    /// The client left, or nobody knows.
    Abandoned,
    /// No connection, a reset, an earlier attempt of a retried request, or a client that left in vain: the pod answered
    /// nobody while it waited.
    Unreachable,
    /// 429 or 503: the pod says that it is full or not ready.
    Overloaded,
    /// Another 5xx.
    ServerError,
}

impl Outcome {
    /// What the end of a stream says. `details` is Envoy's `response.code_details`; empty where the host
    /// has none. An answer that the proxy made itself is no pod's failure, unless a pod was dialled and
    /// did not answer.
    #[must_use]
    pub fn of_stream(details: &[u8], status: u16, context_length: bool) -> Self {
        let overflow = details.windows(b"overflow".len()).any(|part| part == b"overflow");
        match details {
            _ if status == 0 => Self::Abandoned,
            b"" | b"via_upstream" => Self::of_status(status, context_length),
            // The cluster's own limit: nothing was sent.
            _ if overflow => Self::Abandoned,
            b"response_timeout" => Self::ServerError,
            _ if details.starts_with(b"upstream_reset") || details.starts_with(b"upstream_per_try_timeout") => {
                Self::Unreachable
            }
            _ => Self::Abandoned,
        }
    }

    /// Says nothing of whether its pod works.
    pub(super) const fn is_silent(self) -> bool {
        matches!(self, Self::Refused | Self::NotFound | Self::Abandoned)
    }

    /// What a status says; `context_length` if the text of the answer blames the context length.
    #[must_use]
    pub const fn of_status(status: u16, context_length: bool) -> Self {
        match status {
            404 => Self::NotFound,
            429 | 503 => Self::Overloaded,
            500.. if !context_length => Self::ServerError,
            400.. => Self::Refused,
            _ => Self::Success,
        }
    }
}

/// A prompt that was answered while somebody watched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Observation {
    /// Own uncached prompt tokens the pod had to read until the first token.
    pub work: Tokens,
    /// Time to the first token.
    pub took: Millis,
}

/// One request's end, as charged to a pod.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ending {
    /// Tells requests apart.
    pub request: u64,
    pub sent_at: UnixMillis,
    pub outcome: Outcome,
}

/// Notes when an adapter was last met, newest first; the oldest are forgotten.
pub fn put_first(adapters: &mut Vec<(u64, UnixMillis)>, adapter: u64, at: UnixMillis) {
    adapters.retain(|(known, _)| *known != adapter);
    adapters.insert(0, (adapter, at));
    adapters.truncate(ADAPTERS_REMEMBERED);
}

/// Memory of one pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Memory {
    /// The table's incarnation that `adapters` belong to.
    pub incarnation: u32,
    /// Tokens per millisecond.
    rate: f64,
    samples: u32,
    observed_at: UnixMillis,
    /// When an answer with 2xx last began, or ended well, whatever it taught.
    pub answered_at: UnixMillis,
    /// When the latest of the requests was sent that were answered so.
    pub answered_sent_at: UnixMillis,
    /// xxh64 of the name and when it was last sent, newest first.
    pub adapters: Vec<(u64, UnixMillis)>,
    /// KV tokens sent so far.
    pub filled: Tokens,
    /// When the latest request was sent.
    pub sent_at: UnixMillis,
    /// Charges since the last success.
    strikes: u8,
    charged_at: UnixMillis,
    /// The circuit is open until then, half open later; `None` = closed.
    avoid_until: Option<UnixMillis>,
    /// When the request was sent that shows whether the pod works again.
    probe: Option<UnixMillis>,
    /// The last request that met a 5xx.
    error: Option<(u64, UnixMillis)>,
    /// What was heard of its engine's steps.
    pub heard: Heard,
}

impl Memory {
    /// Learned prefill rate in tokens per millisecond, once enough was seen.
    pub fn rate(&self) -> Option<f64> {
        (self.samples >= SAMPLES_MIN && self.rate.is_finite() && self.rate > 0.0).then_some(self.rate)
    }

    /// A pod that looks slow gets no requests, so nothing could correct its rate: after a while
    /// without observations it counts as the pool's again, and has to be seen anew.
    pub fn forget_rate(&mut self, now: UnixMillis) {
        if self.samples > 0 && now.since(self.observed_at) > RATE_FORGOTTEN_AFTER {
            (self.rate, self.samples) = (0.0, 0);
        }
    }

    /// Learns from one observed time to first token.
    pub fn observe(&mut self, seen: Observation, now: UnixMillis) {
        if seen.work.0 == 0 {
            return;
        }
        self.forget_rate(now);
        let work = seen.work.0 as f64;
        let observed = (work / (seen.took.0.max(1) as f64)).min(RATE_MAX);
        self.observed_at = now;
        if self.samples < SAMPLES_MIN {
            // The first answers of a pod are its slowest (warm-up), and one of them must not stand for it.
            self.rate = self.rate.max(observed);
        } else {
            let weight = if observed > self.rate { WEIGHT_UP } else { WEIGHT_DOWN };
            let step = observed.min(self.rate * GROWTH_MAX) - self.rate;
            self.rate += weight * (work / FULL_WEIGHT_TOKENS).min(1.0) * step;
        }
        self.samples = self.samples.saturating_add(1);
    }

    /// Until when nothing should be sent to the pod; may lie in the past.
    pub fn avoided_until(&self) -> Option<UnixMillis> {
        let open = self.avoid_until?;
        Some(self.probe.map_or(open, |sent| open.max(sent + PROBE_PATIENCE)))
    }

    /// A request of so many KV tokens was sent to the pod: where its circuit is half open, that is the probe. Its end is
    /// told from others by when it was sent, however late this is noted.
    pub fn sent(&mut self, tokens: Tokens, sent_at: UnixMillis, now: UnixMillis) {
        self.filled = self.filled + tokens;
        self.sent_at = self.sent_at.max(sent_at).min(now);
        if self.avoided_until().is_some_and(|until| until <= now) {
            self.probe = Some(sent_at);
        }
    }

    /// Something of an answer with 2xx was seen, to a request that was sent then.
    pub fn works(&mut self, sent_at: UnixMillis, at: UnixMillis, now: UnixMillis) {
        self.answered_at = self.answered_at.max(at).min(now);
        self.answered_sent_at = self.answered_sent_at.max(sent_at).min(now);
    }

    /// A request that was sent then is answered, with 2xx.
    pub fn answered(&mut self, sent_at: UnixMillis, now: UnixMillis) {
        if sent_at >= self.charged_at || self.charged_at > now {
            (self.avoid_until, self.probe) = (None, None);
        }
    }

    /// An adapter was sent to the pod.
    pub fn sent_adapter(&mut self, adapter: u64, at: UnixMillis) {
        put_first(&mut self.adapters, adapter, at);
    }

    /// The pod answered that it does not have the adapter.
    pub fn lacks_adapter(&mut self, adapter: u64) {
        self.adapters.retain(|(known, _)| *known != adapter);
    }

    /// The pod runs as this incarnation: a restart emptied its adapter slots.
    pub fn restarted(&mut self, incarnation: u32) {
        if incarnation > self.incarnation {
            self.adapters.clear();
            self.incarnation = incarnation;
        }
    }

    /// A request ended. One sent before the last charge says nothing new: a burst that fails
    /// together is one failure, and an old stream that ends well does not excuse the pod.
    pub fn ended(&mut self, end: Ending, now: UnixMillis) {
        if end.outcome.is_silent() {
            // Another one may try.
            self.probe = self.probe.filter(|sent| *sent != end.sent_at);
            return;
        }
        // A charge from the future was written before the clock stepped back: it says nothing.
        let charged = self.strikes > 0 && self.charged_at <= now;
        if charged && end.sent_at < self.charged_at {
            return;
        }
        match end.outcome {
            Outcome::Success => {
                self.strikes = 0;
                self.error = None;
                self.answered(end.sent_at, now);
            }
            Outcome::Refused | Outcome::NotFound | Outcome::Abandoned => {}
            Outcome::Unreachable | Outcome::Overloaded => self.charge(now),
            Outcome::ServerError => {
                let pair = self
                    .error
                    .is_some_and(|(other, at)| other != end.request && now.since(at) <= ERROR_PAIR_WINDOW);
                self.error = Some((end.request, now));
                if pair {
                    self.charge(now);
                }
            }
        }
    }

    fn charge(&mut self, now: UnixMillis) {
        // What is sent while it is open, since all the others fail too, shows that it still fails and no more: pods that
        // all come back together would be waited for.
        let open = self.avoid_until.is_some_and(|until| until > now);
        self.strikes = self.strikes.saturating_add(u8::from(!open)).max(1);
        let doubled = AVOID_FIRST.0 << u32::from(self.strikes - 1).min(16);
        self.avoid_until = Some(now + Millis(doubled.min(AVOID_MAX.0)));
        self.charged_at = now;
        self.probe = None;
    }
}

#[cfg(test)]
mod tests;
