//! The in-flight ledger, shared by all workers of the process through shared data.
//!
//! Scraped gauges lag; what this proxy itself sent is known at once. Workers that kept this to
//! themselves would herd like separate proxies, so one sealed value per pool holds what every
//! worker (a *view*) has in flight at every pod, and what all of them remember of a pod.
//!
//! ```text
//!  request -> truth of one view ---+                                  +-> OwnLoad, rates, adapters
//!                                  +-> get, apply, set(cas) -> Ledger-+   of all living views
//!  other views' records -----------+   (one value in shared data)
//! ```
//!
//! - A view's records are always rewritten from its own truth, so a lost race loses nothing.
//! - A view that falls silent is taken for dead and its records go with it: nothing leaks.
//! - Events that the latest scrape of a pod has seen are folded into sums. For a reader with that
//!   scrape or a newer one this is exact, and it bounds the size by the traffic between scrapes.
//!
//! Deliberately not here: the proxy's gauges (`proxy_get_metric` may not be imported), and any
//! estimate of what others sent.

mod asked;
mod lesson;
mod memory;
mod packed;
mod sections;
mod steps;
mod truth;
mod waiting;
mod worker;

use berth_shared_state::limits::{
    ADAPTERS_REMEMBERED, ADAPTERS_REMEMBERED_TOTAL, LEDGER_ENTRIES_MAX, LEDGER_VIEW_SILENT, LEDGER_VIEWS_MAX,
    POD_FORGOTTEN_AFTER, PODS_MAX,
};
use berth_shared_state::pod::PodKey;
use berth_shared_state::sealed::{self, Kind, Pieces, SealError};
use berth_shared_state::units::{Millis, Tokens, UnixMillis};
use serde::{Deserialize, Serialize};

pub use asked::Asked;
use memory::Memory;
pub use memory::{Outcome, put_first};
use sections::Sections;
pub use steps::{Heard, StepTimes};
pub use waiting::{Blocked, Waiting};
pub use worker::{LedgerView, PodFact, Sent, Synced};

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
    /// Requests in flight sent when the sample was taken or later: its gauges cannot show them.
    /// Without a sample: all in flight.
    pub sent_since: u32,
    /// KV tokens of those.
    pub sent_since_tokens: Tokens,
    /// Own requests that were unanswered when the sample was taken (part of its `waiting`).
    pub unanswered_at_sample: u32,
    /// The oldest unanswered one: when it was sent, and the time to first token predicted then.
    pub oldest_unanswered: Option<(UnixMillis, Millis)>,
}

/// Where a record's requests are in their life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// Before the first token: their uncached prompt tokens, and the oldest one's prediction.
    Unanswered { tokens: Tokens, predicted: Millis },
    /// Past the first token, which came then.
    Generating { answered_at: UnixMillis },
    /// Gone, but a recent sample still counted them as waiting.
    Ended { answered_at: UnixMillis },
}

/// One or more requests of one view at one pod. Several share a record once folded; `sent_at` and
/// `answered_at` are then the oldest one's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record {
    slot: u8,
    count: u32,
    sent_at: UnixMillis,
    context: Tokens,
    phase: Phase,
}

/// An adapter that requests in flight of one view use at a pod: it has a slot of the engine, or waits for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InUse {
    slot: u8,
    /// xxh64 of its name.
    pub adapter: u64,
}

#[cfg(test)]
impl InUse {
    /// One of some view.
    pub(crate) const fn of(adapter: u64) -> Self {
        Self { slot: 0, adapter }
    }
}

/// A living view. Its slot is what its records carry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Head {
    nonce: u64,
    slot: u8,
    heartbeat: UnixMillis,
    /// What waits there, by band, lowest first.
    waiting: Vec<Waiting>,
}

/// Everything about one pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct PodState {
    pod: PodKey,
    /// Last seen in the table or used.
    used_at: UnixMillis,
    memory: Memory,
    #[serde(with = "packed")]
    records: Vec<Record>,
    in_use: Vec<InUse>,
}

/// The ledger of one pool, decoded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ledger {
    views: Vec<Head>,
    asked: Asked,
    pods: Sections,
}

impl Ledger {
    /// Encodes for shared data. What did not change since it was read or written is copied.
    ///
    /// # Errors
    /// [`SealError::TooLarge`] when it does not fit one value.
    pub fn encode(&mut self) -> Result<&[u8], SealError> {
        let mut pieces = Pieces::new(self.pods.expected());
        pieces.add(&self.views)?;
        pieces.add(&self.asked)?;
        self.pods.write(Kind::Ledger, pieces)
    }

    /// Decodes. Never trusts a byte.
    ///
    /// # Errors
    /// See [`SealError`]; the caller treats the value as absent.
    pub fn decode(bytes: &[u8]) -> Result<Self, SealError> {
        let mut ledger = Self::default();
        ledger.update(bytes.to_vec())?;
        Ok(ledger)
    }

    /// Becomes what a value says. Only what is not there already is decoded. Never trusts a byte.
    ///
    /// # Errors
    /// As [`Self::decode`]; it stays as it was then.
    pub fn update(&mut self, value: Vec<u8>) -> Result<(), SealError> {
        let payload = sealed::open_bytes(Kind::Ledger, &value)?;
        let ((views, asked), rest) = sealed::take(payload)?;
        let from = value.len() - rest.len();
        self.pods.read(value, from)?;
        (self.views, self.asked) = (views, asked);
        Ok(())
    }

    /// All that is known of one pod.
    #[must_use]
    pub fn at(&self, pod: PodKey) -> AtPod<'_> {
        AtPod(self.pod(pod))
    }

    /// What all living views have at a pod whose gauges were read at `sample_at`.
    #[must_use]
    pub fn own(&self, pod: PodKey, sample_at: Option<UnixMillis>) -> OwnLoad {
        self.at(pod).own(sample_at)
    }

    /// The pool's prefill rate in tokens per millisecond: the median of its pods' rates.
    #[must_use]
    pub fn pool_rate(&self) -> Option<f64> {
        let mut rates: Vec<f64> = self.pods.iter().filter_map(|state| state.memory.rate()).collect();
        let middle = rates.len() / 2;
        (middle < rates.len()).then(|| *rates.select_nth_unstable_by(middle, f64::total_cmp).1)
    }

    /// What waits at other living views than this one.
    pub fn waiting_elsewhere(&self, nonce: u64) -> impl Iterator<Item = &Waiting> {
        let others = self.views.iter().filter(move |head| head.nonce != nonce);
        others.flat_map(|head| &head.waiting)
    }

    /// What the requests to the pool were like.
    #[must_use]
    pub const fn asked(&self) -> &Asked {
        &self.asked
    }

    /// At least this many requests of all living views were sent to a pod before `at` and are in
    /// flight; and when the oldest was sent. Of a folded record only the oldest is sure.
    fn in_flight_before(&self, pod: PodKey, at: UnixMillis) -> (u32, Option<UnixMillis>) {
        let records = self.pod(pod).map_or(&[][..], |state| &state.records);
        let counted = records
            .iter()
            .filter(|r| r.sent_at < at && !matches!(r.phase, Phase::Ended { .. }));
        counted.fold((0, None), |(count, oldest): (u32, Option<UnixMillis>), record| {
            (
                count.saturating_add(1),
                Some(oldest.map_or(record.sent_at, |at| at.min(record.sent_at))),
            )
        })
    }

    /// Drops views that fell silent. A heartbeat far in the future is one from before the clock
    /// stepped back.
    fn drop_silent(&mut self, now: UnixMillis) {
        let lives = |head: &Head| {
            now.since(head.heartbeat) <= LEDGER_VIEW_SILENT && head.heartbeat.since(now) <= LEDGER_VIEW_SILENT
        };
        if self.views.iter().all(lives) {
            return;
        }
        self.views.retain(lives);
        let views = &self.views;
        self.pods.keep_slots(|slot| views.iter().any(|head| head.slot == slot));
    }

    /// Records that a view may have: all share the bound.
    fn share(&self, nonce: u64) -> usize {
        let others = self.views.iter().filter(|head| head.nonce != nonce).count();
        LEDGER_ENTRIES_MAX / others.saturating_add(1)
    }

    /// Replaces a view's records by these, the adapters that it uses, and what waits there. With nothing of that the
    /// view leaves the ledger.
    fn replace(
        &mut self,
        nonce: u64,
        now: UnixMillis,
        records: &[(PodKey, Record)],
        in_use: &[(PodKey, u64)],
        waiting: &[Waiting],
    ) {
        let share = self.share(nonce);
        if let Some(known) = self.views.iter().position(|head| head.nonce == nonce) {
            let head = self.views.remove(known);
            self.pods.keep_slots(|slot| slot != head.slot);
        }
        if records.is_empty() && waiting.is_empty() {
            return;
        }
        let slot = self.free_slot();
        self.views.push(Head {
            nonce,
            slot,
            heartbeat: now,
            waiting: waiting.to_vec(),
        });
        for (pod, record) in records {
            if let Some(state) = self.pod_mut(*pod, now) {
                state.records.push(Record { slot, ..*record });
            }
        }
        for (pod, adapter) in in_use.iter().take(share) {
            if let Some(state) = self.pod_mut(*pod, now) {
                state.in_use.push(InUse {
                    slot,
                    adapter: *adapter,
                });
            }
        }
    }

    /// The same at one pod, for a view that is here.
    fn replace_at(&mut self, slot: u8, pod: PodKey, now: UnixMillis, records: &[Record], in_use: &[u64]) {
        if records.is_empty() && self.pod(pod).is_none() {
            return;
        }
        if let Some(state) = self.pod_mut(pod, now) {
            state.records.retain(|record| record.slot != slot);
            state
                .records
                .extend(records.iter().map(|record| Record { slot, ..*record }));
            state.in_use.retain(|used| used.slot != slot);
            state.in_use.extend(in_use.iter().map(|adapter| InUse {
                slot,
                adapter: *adapter,
            }));
        }
    }

    /// What a worker heard of a pod's steps. Only what is news changes anything.
    fn heard(&mut self, pod: PodKey, seen: Heard, now: UnixMillis) {
        let Ok(at) = self.pods.find(pod) else { return };
        let known = self.pods.get(at).map(|state| state.memory.heard).unwrap_or_default();
        let known = if known.is_of_now(now) { known } else { Heard::default() };
        if known.or(seen) != known
            && let Some(state) = self.pods.get_mut(at)
        {
            state.memory.heard = known.or(seen);
        }
    }

    fn head(&mut self, nonce: u64) -> Option<&mut Head> {
        self.views.iter_mut().find(|head| head.nonce == nonce)
    }

    /// The lowest slot nobody has; when all are taken, the most silent view's.
    fn free_slot(&mut self) -> u8 {
        if self.views.len() >= LEDGER_VIEWS_MAX
            && let Some(stalest) = (0..self.views.len()).min_by_key(|at| self.views.get(*at).map(|head| head.heartbeat))
        {
            let head = self.views.remove(stalest);
            self.pods.keep_slots(|slot| slot != head.slot);
        }
        (0..=u8::MAX)
            .find(|slot| self.views.iter().all(|head| head.slot != *slot))
            .unwrap_or(u8::MAX)
    }

    fn pod(&self, pod: PodKey) -> Option<&PodState> {
        self.pods.get(self.pods.find(pod).ok()?)
    }

    /// The pod's state, made if it is new; `None` when there are too many pods.
    fn pod_mut(&mut self, pod: PodKey, now: UnixMillis) -> Option<&mut PodState> {
        let at = match self.pods.find(pod) {
            Ok(at) => at,
            Err(_) if self.pods.len() >= PODS_MAX => return None,
            Err(at) => {
                let state = PodState {
                    pod,
                    used_at: now,
                    memory: Memory::default(),
                    records: Vec::new(),
                    in_use: Vec::new(),
                };
                self.pods.insert(at, state);
                at
            }
        };
        let state = self.pods.get_mut(at)?;
        state.used_at = now;
        Some(state)
    }

    /// Forgets pods that left the table long ago and holds the bound on remembered adapters.
    /// `incarnation` tells a pod of the table.
    fn keep_house(&mut self, now: UnixMillis, incarnation: impl Fn(PodKey) -> Option<u32>) {
        self.pods.retain_mut(|state| {
            state.memory.forget_rate(now);
            if let Some(current) = incarnation(state.pod) {
                state.used_at = now;
                state.memory.restarted(current);
                // A new poller may count from zero again.
                state.memory.incarnation = current;
            }
            !state.records.is_empty() || now.since(state.used_at) <= POD_FORGOTTEN_AFTER
        });
        let mut each = ADAPTERS_REMEMBERED;
        while self.pods.iter().map(|state| state.memory.adapters.len()).sum::<usize>() > ADAPTERS_REMEMBERED_TOTAL {
            each /= 2;
            let more = |state: &PodState| state.memory.adapters.len() > each;
            self.pods.change(more, |state| state.memory.adapters.truncate(each));
        }
    }
}

/// What a ledger knows of one pod, looked up once: a decision asks it of every pod.
#[derive(Clone, Copy, Debug)]
pub struct AtPod<'a>(Option<&'a PodState>);

impl<'a> AtPod<'a> {
    /// See [`Ledger::own`].
    #[must_use]
    pub fn own(self, sample_at: Option<UnixMillis>) -> OwnLoad {
        let mut own = OwnLoad::default();
        for record in self.0.map_or(&[][..], |state| &state.records) {
            own.add(record, sample_at);
        }
        own
    }

    /// The pod's own learned prefill rate in tokens per millisecond; `None` = too little was seen.
    #[must_use]
    pub fn rate(self) -> Option<f64> {
        self.0?.memory.rate()
    }

    /// When the latest of the requests was sent that were answered there, with 2xx, whether or not that taught a rate.
    #[must_use]
    pub fn answered_sent_at(self) -> UnixMillis {
        self.0.map_or(UnixMillis(0), |state| state.memory.answered_sent_at)
    }

    /// When an answer with 2xx last began there, or ended well.
    fn answered_at(self) -> UnixMillis {
        self.0.map_or(UnixMillis(0), |state| state.memory.answered_at)
    }

    /// KV tokens that all workers ever sent to the pod, cached ones not counted: the clock by which its
    /// cache forgets.
    #[must_use]
    pub fn filled(self) -> Tokens {
        self.0.map_or(Tokens(0), |state| state.memory.filled)
    }

    /// When the latest request was sent there.
    #[must_use]
    pub fn sent_at(self) -> UnixMillis {
        self.0.map_or(UnixMillis(0), |state| state.memory.sent_at)
    }

    /// What all workers told of its engine's steps.
    #[must_use]
    pub fn heard(self) -> Heard {
        self.0.map_or_else(Heard::default, |state| state.memory.heard)
    }

    /// Until when the pod should be avoided after failures; may lie in the past, and then the next request shows
    /// whether it works again.
    #[must_use]
    pub fn avoided_until(self) -> Option<UnixMillis> {
        self.0?.memory.avoided_until()
    }

    /// Adapters of requests in flight there, as each view says; several may say the same.
    #[must_use]
    pub fn adapters_in_use(self) -> &'a [InUse] {
        self.0.map_or(&[], |state| &state.in_use)
    }

    /// Adapters sent to this incarnation of the pod, as (xxh64 of the name, last sent), newest
    /// first.
    #[must_use]
    pub fn recent_adapters(self, incarnation: u32) -> &'a [(u64, UnixMillis)] {
        match self.0 {
            Some(state) if state.memory.incarnation >= incarnation => &state.memory.adapters,
            _ => &[],
        }
    }
}

impl OwnLoad {
    /// Requests sent and not yet over.
    #[must_use]
    pub const fn in_flight(&self) -> u32 {
        self.unanswered.saturating_add(self.generating)
    }

    /// Those of them that the sample's gauges can show.
    #[must_use]
    pub const fn in_flight_at_sample(&self) -> u32 {
        self.in_flight().saturating_sub(self.sent_since)
    }

    fn add(&mut self, record: &Record, sample_at: Option<UnixMillis>) {
        let since = sample_at.is_none_or(|at| record.sent_at >= at);
        let (in_flight, answered_at) = match record.phase {
            Phase::Unanswered { tokens, predicted } => {
                self.unanswered = self.unanswered.saturating_add(record.count);
                self.unanswered_tokens = self.unanswered_tokens + tokens;
                if self
                    .oldest_unanswered
                    .is_none_or(|(sent_at, _)| record.sent_at < sent_at)
                {
                    self.oldest_unanswered = Some((record.sent_at, predicted));
                }
                (true, None)
            }
            Phase::Generating { answered_at } => {
                self.generating = self.generating.saturating_add(record.count);
                (true, Some(answered_at))
            }
            Phase::Ended { answered_at } => (false, Some(answered_at)),
        };
        if in_flight {
            self.context_tokens = self.context_tokens + record.context;
        }
        if in_flight && since {
            self.sent_since = self.sent_since.saturating_add(record.count);
            self.sent_since_tokens = self.sent_since_tokens + record.context;
        }
        let waited = sample_at.is_some_and(|at| answered_at.is_none_or(|answered| answered >= at));
        if waited && !since {
            self.unanswered_at_sample = self.unanswered_at_sample.saturating_add(record.count);
        }
    }
}

#[cfg(test)]
mod tests;
