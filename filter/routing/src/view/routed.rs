//! A routed request until it is over: what is known of it, and who is told what becomes of it.
//!
//! A decision says where a request is to go; the proxy sends it, maybe elsewhere, and tells so piece by piece. Each piece
//! goes to all who had noted the request: the ledger, the prefix index and the pool's line. Deliberately not here: how a
//! pod is chosen ([`super::View::decide`]), and what a request was before it was let go ([`super::line`]).

use berth_shared_state::limits::LEDGER_IN_FLIGHT_MAX;
use berth_shared_state::pod::{PodAddress, PodKey};
use berth_shared_state::store::SharedData;
use berth_shared_state::units::{Tokens, UnixMillis};

use super::pool::PoolView;
use super::{Request, View, prefix};
use crate::decision::Booking;
use crate::ledger::{Asked, Outcome, Sent};
use crate::prefix::Written;

/// Attempts of one request that are looked at; no proxy retries more often.
const ATTEMPTS_MAX: u32 = 16;

/// A routed request in flight.
#[derive(Debug)]
pub(super) struct Routed {
    pub pool: usize,
    pub endpoints: Vec<PodAddress>,
    /// KV tokens that it takes.
    pub takes: Tokens,
    /// What the prefix index was told of the prompt, and of the session.
    pub written: [Written; 2],
    /// Tokens of its context, where a cookie says who holds it.
    pub context: Option<Tokens>,
    /// The client's cookies need not go by plain HTTP.
    pub secure: bool,
    /// What it is like, if engines count it as it was read.
    pub asked: Option<Asked>,
    /// Where its stream comes from, once it began.
    pub stream: Option<PodAddress>,
    /// When the last token of it came, from the second piece on.
    pub token_at: Option<UnixMillis>,
}

impl View {
    /// Whether this pod is the first that the request was to go to.
    #[must_use]
    pub fn is_first(&self, id: u64, serving: PodAddress) -> bool {
        self.routed
            .get(&id)
            .is_none_or(|routed| routed.endpoints.first() == Some(&serving))
    }

    /// Whether this pod is in the table of the pool that the request was routed to.
    #[must_use]
    pub fn knows(&self, id: u64, pod: PodAddress) -> bool {
        let pool = self.pool_of(id).and_then(|index| self.pools.get(index));
        pool.and_then(PoolView::snapshot)
            .is_some_and(|snapshot| snapshot.pod(pod).is_some())
    }

    /// The pool, by its place in the config, to which a request in flight was routed.
    #[must_use]
    pub fn pool_of(&self, id: u64) -> Option<usize> {
        self.routed.get(&id).map(|routed| routed.pool)
    }

    pub(super) fn book(
        &mut self,
        store: &dyn SharedData,
        request: &Request<'_>,
        routed: Routed,
        booking: Booking,
        now: UnixMillis,
    ) {
        let (Some(first), Some(view)) = (routed.endpoints.first(), self.pools.get_mut(routed.pool)) else {
            return;
        };
        let sent = Sent {
            id: request.id,
            pod: first.key(),
            adapter: booking.adapter,
            uncached: booking.work,
            context: booking.context,
            predicted: booking.predicted,
            streams: request.facts.stream,
            teaches: !booking.misleads,
        };
        self.counts.ledger(view.ledger.sent(store, &sent, now));
        view.sent_adapter(booking.adapter, *first);
        if self.routed.len() >= LEDGER_IN_FLIGHT_MAX {
            self.routed.pop_first();
        }
        self.routed.insert(request.id, routed);
    }

    /// The first byte of a response body came. `is_stream`: the response is an event stream, whose
    /// first byte is the first token; any other first byte is the last one too.
    pub fn on_first_byte(&mut self, store: &dyn SharedData, id: u64, status: u16, is_stream: bool, now: UnixMillis) {
        let is_good = (200..300).contains(&status);
        let Some(routed) = self.routed.get_mut(&id) else {
            return;
        };
        let Some(view) = self.pools.get_mut(routed.pool) else {
            return;
        };
        self.counts
            .ledger(view.ledger.first_token(store, id, is_stream, is_good, now));
        if is_stream && is_good && routed.stream.is_none() {
            routed.stream = routed.endpoints.first().copied();
            if let Some(steps) = routed.stream.and_then(|pod| view.steps(pod)) {
                steps.began(now);
            }
        }
    }

    /// Something more of an event stream came, mostly one token.
    pub fn on_token(&mut self, store: &dyn SharedData, id: u64, now: UnixMillis) {
        let Some(routed) = self.routed.get_mut(&id) else { return };
        // The second piece may be of the same step as the first: a role, then a token.
        let before = routed.token_at.replace(now).unwrap_or(now);
        if let (Some(pod), Some(view)) = (routed.stream, self.pools.get_mut(routed.pool)) {
            self.counts.ledger(view.token(store, pod, now.since(before), now));
        }
    }

    /// Whether a request is served by the pod that it was last said to be at, so that nobody else can
    /// have failed. A list of two is walked again by a third attempt, which says nothing of the second.
    #[must_use]
    pub fn is_at(&self, id: u64, serving: PodAddress) -> bool {
        let at = |list: &[PodAddress]| list.first() == Some(&serving) && list.len() != 2;
        self.routed.get(&id).is_none_or(|routed| at(&routed.endpoints))
    }

    /// The pod that serves a request is known: `attempts` sends were made (`None` = the host does
    /// not say). The proxy walks the list on its own; the pods that were tried before are charged.
    pub fn on_upstream(
        &mut self,
        store: &dyn SharedData,
        id: u64,
        serving: PodAddress,
        attempts: Option<u32>,
        now: UnixMillis,
    ) {
        if self.is_at(id, serving) {
            return;
        }
        let Some(routed) = self.routed.get_mut(&id) else {
            return;
        };
        let Some(view) = self.pools.get_mut(routed.pool) else {
            return;
        };
        let failed = failed(&routed.endpoints, serving, attempts);
        if failed.is_empty() && routed.endpoints.first() == Some(&serving) {
            return;
        }
        if let Some(prefix) = &view.prefix {
            let filled = view.ledger.ledger().at(serving.key()).filled() + routed.takes;
            let row = view.snapshot().and_then(|snapshot| snapshot.pod(serving));
            let to = row.map(|row| prefix::stamp(row, filled));
            for written in &mut routed.written {
                prefix.take_back(store, written, to);
            }
        }
        self.counts
            .ledger(view.ledger.moved(store, id, &failed, serving.key(), now));
        // Said once: a second report of the same pod changes nothing.
        routed.endpoints = vec![serving];
    }

    /// A request is over. To be called for every decided request, once.
    pub fn on_end(&mut self, store: &dyn SharedData, id: u64, outcome: Outcome, now: UnixMillis) {
        let Some(mut routed) = self.routed.remove(&id) else {
            return self.leave(store, id, now);
        };
        if let Some(view) = self.pools.get_mut(routed.pool) {
            // A client that leaves leaves its prompt in the cache.
            let computed = matches!(outcome, Outcome::Success | Outcome::Abandoned);
            if let Some(prefix) = view.prefix.as_ref().filter(|_| !computed) {
                for written in &mut routed.written {
                    prefix.take_back(store, written, None);
                }
            }
            // Engines count what they answered, not what they refused.
            if let Some(asked) = routed.asked.filter(|_| outcome == Outcome::Success) {
                view.ledger.asked(asked);
            }
            self.counts.ledger(view.ledger.ended(store, id, outcome, now));
            if let Some(steps) = routed.stream.and_then(|pod| view.steps(pod)) {
                steps.ended();
            }
        }
        if let Some(line) = self.lines.get_mut(routed.pool) {
            line.ended();
        }
    }
}

/// The pods that were tried and failed before the serving one.
///
/// The proxy walks the list round and round, one pod per attempt. A pod that it does not know, or that is
/// not healthy, is skipped without an attempt. So when the last attempt is not at its place in the list,
/// somebody was skipped, and nobody can tell who: then nobody is charged. Where the host does not tell
/// attempts, each pod before the serving one was tried.
fn failed(list: &[PodAddress], serving: PodAddress, attempts: Option<u32>) -> Vec<PodKey> {
    let walk = || list.iter().cycle();
    let before = match attempts {
        Some(attempts) => attempts.saturating_sub(1).min(ATTEMPTS_MAX) as usize,
        None => list.iter().position(|pod| *pod == serving).unwrap_or(list.len()),
    };
    if attempts.is_some() && walk().nth(before) != Some(&serving) {
        return Vec::new();
    }
    let tried = walk().take(before).filter(|pod| **pod != serving);
    let mut failed: Vec<PodKey> = tried.map(|pod| pod.key()).collect();
    failed.sort_unstable();
    failed.dedup();
    failed
}
