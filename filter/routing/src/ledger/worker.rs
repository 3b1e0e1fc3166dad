//! One worker's hold on a pool's ledger: get, apply, set(cas).
//!
//! Every operation first changes the worker's own truth, then tries to write. A try that fails
//! costs nothing but freshness for the others: the truth and the pending lessons go with the next
//! operation, and this worker decides by them meanwhile.

use std::collections::{BTreeMap, VecDeque};

use berth_shared_state::limits::{
    LEDGER_EXCESS_PATIENCE, LEDGER_HEARTBEAT, LEDGER_PENDING_MAX, LEDGER_TRIES, VIEW_MAX_AGE,
};
use berth_shared_state::names;
use berth_shared_state::pod::PodKey;
use berth_shared_state::sealed::HEADER_BYTES;
use berth_shared_state::store::{Cas, SharedData, StoreError};
use berth_shared_state::units::{Millis, Tokens, UnixMillis};
use xxhash_rust::xxh64::xxh64;

use crate::cost::overdue_by;

use super::lesson::Lesson;
use super::memory::{Ending, Observation};
use super::truth::{InFlight, Truth};
use super::{Asked, Ledger, Outcome, Waiting};

/// A request that is being sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sent {
    /// Unique among this worker's requests in flight.
    pub id: u64,
    /// Where it goes.
    pub pod: PodKey,
    /// xxh64 of the adapter's name.
    pub adapter: Option<u64>,
    /// Prompt tokens that are not expected in the pod's cache.
    pub uncached: Tokens,
    /// KV tokens it takes: the uncached prompt and the expected output.
    pub context: Tokens,
    /// Time to first token, as predicted.
    pub predicted: Millis,
    /// Asked for a stream: its first token will show.
    pub streams: bool,
    /// What its pod has to read first is known, so that it teaches the pod's rate.
    pub teaches: bool,
}

/// What the table says of a pod, as far as the ledger needs it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PodFact {
    /// Which pod.
    pub pod: PodKey,
    /// Restarts seen.
    pub incarnation: u32,
    /// When its gauges were read.
    pub sample_at: Option<UnixMillis>,
    /// The proxy's own count of requests in flight there, and when it was read.
    pub proxy_active: Option<(u32, UnixMillis)>,
}

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Synced {
    /// Nothing needed to be written.
    Idle,
    /// Written.
    Written,
    /// Other workers were faster each time; it goes with the next operation.
    LostRace,
    /// More than one value may hold; this worker goes on with what it knows itself.
    TooLarge,
    /// The host refused; this worker goes on with what it knows itself.
    Refused(StoreError),
}

/// One worker's view of a pool's ledger.
#[derive(Debug)]
pub struct LedgerView {
    key: String,
    nonce: u64,
    truth: Truth,
    /// What waits here, by band.
    waiting: Vec<Waiting>,
    facts: BTreeMap<PodKey, PodFact>,
    /// Since when the proxy counts fewer requests at a pod than the ledger.
    excess: BTreeMap<PodKey, UnixMillis>,
    pending: VecDeque<Lesson>,
    /// How many of `pending` are in `seen` already.
    applied: usize,
    /// The latest ledger read, with the own truth applied.
    seen: Ledger,
    /// The first bytes of the value that `seen` was made from. They hold the length and the checksum of the rest.
    stored: Option<[u8; HEADER_BYTES]>,
    read_at: Option<UnixMillis>,
    /// Token of the latest read, until a write used it.
    token: Option<Option<Cas>>,
    written_at: UnixMillis,
    cleaned_at: UnixMillis,
    /// The truth changed since it was last written.
    unwritten: bool,
    /// A band is new or gone, and the others do not know.
    untold: bool,
    /// When all of the truth was put into `seen`, and not only what changed; `None` = that is due.
    whole_at: Option<UnixMillis>,
    /// The shared value may still hold records of this view.
    on_record: bool,
}

impl LedgerView {
    /// A worker's view of a pool. `nonce` is random: nothing else tells workers apart.
    #[must_use]
    pub fn new(pool: &str, nonce: u64) -> Self {
        Self {
            key: names::ledger_key(pool),
            nonce,
            truth: Truth::default(),
            waiting: Vec::new(),
            facts: BTreeMap::new(),
            excess: BTreeMap::new(),
            pending: VecDeque::new(),
            applied: 0,
            seen: Ledger::default(),
            stored: None,
            read_at: None,
            token: None,
            written_at: UnixMillis(0),
            cleaned_at: UnixMillis(0),
            unwritten: false,
            untold: false,
            whole_at: None,
            on_record: false,
        }
    }

    /// The ledger as last read, with everything this worker did since.
    #[must_use]
    pub const fn ledger(&self) -> &Ledger {
        &self.seen
    }

    /// What waits at other workers, as last read.
    pub fn waiting_elsewhere(&self) -> impl Iterator<Item = &Waiting> {
        self.seen.waiting_elsewhere(self.nonce)
    }

    /// Tells the others what waits here, lowest band first. At once when a band is new or gone, since they act on that;
    /// how much it is goes with the next write, or the next tick.
    pub fn waits(&mut self, store: &dyn SharedData, waiting: Vec<Waiting>, now: UnixMillis) -> Synced {
        let bands = |list: &[Waiting]| list.iter().map(|band| band.priority).collect::<Vec<_>>();
        let news = bands(&self.waiting) != bands(&waiting);
        self.unwritten |= self.waiting != waiting;
        self.untold |= news;
        self.waiting = waiting;
        if news { self.write(store, now) } else { Synced::Idle }
    }

    /// Takes in what a new table says of the pods. Local: costs no shared data.
    pub fn facts(&mut self, facts: impl IntoIterator<Item = PodFact>) {
        // What the new samples show is to be folded.
        self.whole_at = None;
        self.facts = facts.into_iter().map(|fact| (fact.pod, fact)).collect();
    }

    /// Reads the ledger again if the copy is older than [`VIEW_MAX_AGE`].
    pub fn refresh(&mut self, store: &dyn SharedData, now: UnixMillis) -> Synced {
        if self.is_young(now) {
            return Synced::Idle;
        }
        let read = self.read(store, now);
        self.unwritten |= self.truth.settle(now);
        self.catch_up(now);
        if !self.is_written_down() {
            self.rewrite(now);
        }
        read.map_or_else(Synced::Refused, |()| Synced::Idle)
    }

    /// What a request was like that is about to end; written with its end.
    pub fn asked(&mut self, one: Asked) {
        self.learn(Lesson::Asked(one));
    }

    /// A request is being sent.
    pub fn sent(&mut self, store: &dyn SharedData, sent: &Sent, now: UnixMillis) -> Synced {
        let ahead = self.seen.own(sent.pod, None).unanswered_tokens;
        let request = InFlight {
            pod: sent.pod,
            sent_at: now,
            uncached: sent.uncached,
            work: ahead + sent.uncached,
            context: sent.context,
            predicted: sent.predicted,
            streams: sent.streams,
            teaches: sent.streams && sent.teaches,
            answered_at: None,
            adapter: sent.adapter,
        };
        self.truth.sent(sent.id, request);
        self.learn(Lesson::Sent {
            pod: sent.pod,
            tokens: sent.context,
            sent_at: now,
        });
        if let Some(adapter) = sent.adapter {
            self.learn(Lesson::Adapter {
                pod: sent.pod,
                incarnation: self.incarnation(sent.pod),
                adapter,
                at: now,
            });
        }
        self.write(store, now)
    }

    /// The first byte of an answer came. One that `is_good`, a 2xx, shows that the pod works: where it was avoided for its
    /// failures, it is avoided no more. Of an event stream it is the first token, and shows the pod's rate, too; any other
    /// first byte is the last one too, and costs nothing of its own where nobody waits to hear of it.
    pub fn first_token(
        &mut self,
        store: &dyn SharedData,
        id: u64,
        is_stream: bool,
        is_good: bool,
        now: UnixMillis,
    ) -> Synced {
        let Some(mut request) = self.truth.get(id).copied() else {
            return Synced::Idle;
        };
        let (pod, sent_at) = (request.pod, request.sent_at);
        if is_good {
            self.learn(Lesson::Answered { pod, sent_at, at: now });
        }
        // A body that was cut may not have told that it asks for a stream.
        let is_token = (request.streams || is_stream) && request.answered_at.is_none();
        if is_token {
            request.answered_at = Some(now);
            self.truth.replace(id, request);
        }
        if is_token && is_stream && is_good && request.teaches {
            let seen = Observation {
                work: request.work,
                took: now.since(sent_at),
            };
            self.learn(Lesson::Rate { pod, seen });
        }
        if is_token || (is_good && self.seen.at(pod).avoided_until().is_some()) {
            self.write(store, now)
        } else {
            Synced::Idle
        }
    }

    /// The proxy retried: `failed` did not answer, `pod` serves the request. Its time to first
    /// token teaches nothing any more.
    pub fn moved(
        &mut self,
        store: &dyn SharedData,
        id: u64,
        failed: &[PodKey],
        pod: PodKey,
        now: UnixMillis,
    ) -> Synced {
        let Some(mut request) = self.truth.get(id).copied() else {
            return Synced::Idle;
        };
        request.pod = pod;
        request.teaches = false;
        self.truth.replace(id, request);
        let tokens = request.context;
        let end = Ending {
            request: number(self.nonce, id),
            sent_at: request.sent_at,
            outcome: Outcome::Unreachable,
        };
        self.learn(Lesson::Sent {
            pod,
            tokens,
            sent_at: request.sent_at,
        });
        for pod in failed {
            self.learn(Lesson::End {
                pod: *pod,
                end,
                at: now,
            });
        }
        self.write(store, now)
    }

    /// A request is over.
    pub fn ended(&mut self, store: &dyn SharedData, id: u64, outcome: Outcome, now: UnixMillis) -> Synced {
        let Some(request) = self.truth.end(id, now) else {
            return Synced::Idle;
        };
        let outcome = if self.was_in_vain(store, &request, outcome, now) {
            Outcome::Unreachable
        } else {
            outcome
        };
        let end = Ending {
            request: number(self.nonce, id),
            sent_at: request.sent_at,
            outcome,
        };
        if let (Outcome::NotFound, Some(adapter)) = (outcome, request.adapter) {
            self.learn(Lesson::NoAdapter {
                pod: request.pod,
                adapter,
            });
        }
        // What says nothing of the pod matters where it was to show whether it works.
        if !outcome.is_silent() || self.seen.at(request.pod).avoided_until().is_some() {
            self.learn(Lesson::End {
                pod: request.pod,
                end,
                at: now,
            });
        }
        self.write(store, now)
    }

    /// A client left that had waited for its first token for far longer than predicted, and the pod answered nobody in
    /// all that time: an engine that hangs looks like this, and no error ever comes of it. Where it answered somebody, it
    /// is slow, or its queue long.
    fn was_in_vain(&mut self, store: &dyn SharedData, request: &InFlight, outcome: Outcome, now: UnixMillis) -> bool {
        if outcome != Outcome::Abandoned
            || !request.teaches
            || request.answered_at.is_some()
            || overdue_by(request.sent_at, request.predicted, now) <= 0.0
        {
            return false;
        }
        // It may have answered at another worker. The write that follows uses the same reading.
        self.refresh(store, now);
        self.catch_up(now);
        // One from the future is from before the clock stepped back.
        let since = request.sent_at..=now;
        !since.contains(&self.seen.at(request.pod).answered_at())
    }

    /// Settles what is due, drops what leaked, and shows that this worker lives. To be called on
    /// every tick; writes only when something changed or a heartbeat is due, and never when idle.
    pub fn tick(&mut self, store: &dyn SharedData, now: UnixMillis) -> Synced {
        let mut changed = self.truth.settle(now) || self.untold || (self.unwritten && !self.waiting.is_empty());
        if self.facts.values().any(|fact| fact.proxy_active.is_some()) && !self.truth.is_empty() {
            self.refresh(store, now);
            changed |= self.re_base(now);
        }
        let silent = now.since(self.written_at) >= LEDGER_HEARTBEAT || self.written_at > now;
        let has_news = self.on_record || !self.has_nothing() || !self.pending.is_empty();
        if changed || (silent && has_news) {
            self.write(store, now)
        } else {
            Synced::Idle
        }
    }

    /// Compares with the proxy's own count, which can only lower the ledger: what the ledger claims
    /// beyond it for several seconds leaked. The view with the oldest request drops that one, one
    /// per call.
    fn re_base(&mut self, now: UnixMillis) -> bool {
        let mut changed = false;
        for fact in self.facts.values() {
            let Some((active, read_at)) = fact.proxy_active else {
                continue;
            };
            let (claimed, oldest) = self.seen.in_flight_before(fact.pod, read_at);
            if claimed <= active {
                self.excess.remove(&fact.pod);
                continue;
            }
            let since = *self.excess.entry(fact.pod).or_insert(now);
            let mine = self
                .truth
                .oldest_at(fact.pod)
                .filter(|(_, sent_at)| Some(*sent_at) == oldest);
            if let Some((id, sent_at)) = mine
                && read_at.since(since) > LEDGER_EXCESS_PATIENCE
                && read_at.since(sent_at) > LEDGER_EXCESS_PATIENCE
            {
                self.truth.drop_leaked(id);
                changed = true;
            }
        }
        let facts = &self.facts;
        self.excess.retain(|pod, _| facts.contains_key(pod));
        changed
    }

    fn is_young(&self, now: UnixMillis) -> bool {
        self.read_at.is_some_and(|at| at <= now && now.since(at) < VIEW_MAX_AGE)
    }

    fn incarnation(&self, pod: PodKey) -> u32 {
        self.facts.get(&pod).map_or(0, |fact| fact.incarnation)
    }

    fn learn(&mut self, lesson: Lesson) {
        // Sums need no place of their own each: while writes fail, what ended must not be pushed out by them.
        let mut unapplied = self.pending.iter_mut().skip(self.applied);
        if unapplied.any(|known| known.takes_in(&lesson)) {
            return;
        }
        if self.pending.len() >= LEDGER_PENDING_MAX {
            self.pending.pop_front();
            self.applied = self.applied.saturating_sub(1);
        }
        self.pending.push_back(lesson);
    }

    /// Reads the shared value. Where it is absent or cannot be opened (foreign, torn, evicted) this
    /// worker goes on with its copy and replaces it.
    fn read(&mut self, store: &dyn SharedData, now: UnixMillis) -> Result<(), StoreError> {
        let stored = store.get(&self.key)?;
        self.read_at = Some(now);
        let (value, cas) = stored.map_or((Vec::new(), None), |stored| (stored.value, stored.cas));
        self.token = Some(cas);
        let head = value.first_chunk().copied();
        if head != self.stored && self.seen.update(value).is_ok() {
            self.stored = head;
            self.applied = 0;
            // An older writing of ours lacks what was written since, and a whole one that lost its race is not there.
            let (own, written_at) = (self.seen.head(self.nonce), self.written_at);
            let is_there = own.is_none_or(|head| head.heartbeat == written_at);
            self.whole_at = self.whole_at.filter(|at| is_there && *at <= written_at);
        }
        Ok(())
    }

    /// Puts the own truth and the pending lessons into `seen`.
    fn apply(&mut self, now: UnixMillis) {
        self.catch_up(now);
        self.rewrite(now);
    }

    fn catch_up(&mut self, now: UnixMillis) {
        self.seen.drop_silent(now);
        for lesson in self.pending.iter().skip(self.applied) {
            self.seen.learn(lesson, now);
        }
        self.applied = self.pending.len();
    }

    /// Whether `seen` holds the own truth as it stands: the truth did not change since it was last
    /// written, and that is what is there. The heartbeat tells an older writing.
    fn is_written_down(&self) -> bool {
        let mut own = self.seen.views.iter().filter(|head| head.nonce == self.nonce);
        match own.next() {
            Some(head) => !self.unwritten && head.heartbeat == self.written_at,
            None => self.has_nothing(),
        }
    }

    fn has_nothing(&self) -> bool {
        self.truth.is_empty() && self.waiting.is_empty()
    }

    /// Puts the own truth into `seen`: what changed since it was last written; or all of it, where that is not enough
    /// and once a heartbeat, since time alone folds and ends records.
    fn rewrite(&mut self, now: UnixMillis) {
        let recent = |at: UnixMillis| at <= now && now.since(at) < LEDGER_HEARTBEAT;
        if self.whole_at.is_some_and(recent) && self.rewrite_changed(now) {
            return;
        }
        let (facts, share) = (&self.facts, self.seen.share(self.nonce));
        let sample_at = |pod| facts.get(&pod).and_then(|fact: &PodFact| fact.sample_at);
        let (records, in_use) = self.truth.all(now, share, sample_at);
        self.seen.replace(self.nonce, now, &records, &in_use, &self.waiting);
        self.whole_at = Some(now);
    }

    /// False: this view is not in `seen`, has nothing to be there for any more, or more than its share.
    fn rewrite_changed(&mut self, now: UnixMillis) -> bool {
        let share = self.seen.share(self.nonce);
        let Some(head) = self.seen.head(self.nonce) else {
            return false;
        };
        head.heartbeat = now;
        head.waiting.clone_from(&self.waiting);
        let slot = head.slot;
        let changed: Vec<PodKey> = self.truth.changed().collect();
        for pod in changed {
            let sample_at = self.facts.get(&pod).and_then(|fact| fact.sample_at);
            let (records, in_use) = self.truth.at(pod, now, sample_at);
            self.seen.replace_at(slot, pod, now, &records, &in_use);
        }
        !self.has_nothing() && self.truth.size() <= share
    }

    fn write(&mut self, store: &dyn SharedData, now: UnixMillis) -> Synced {
        self.unwritten = true;
        self.truth.settle(now);
        // The token of an old reading is no use: an absent key may exist by now.
        let mut token = if self.is_young(now) { self.token.take() } else { None };
        for _ in 0..LEDGER_TRIES {
            if token.is_none() {
                let read = self.read(store, now);
                if let Err(error) = read {
                    self.apply(now);
                    return Synced::Refused(error);
                }
                token = self.token.take();
            }
            self.apply(now);
            self.clean(now);
            let Ok(bytes) = self.seen.encode() else {
                return Synced::TooLarge;
            };
            let head = bytes.first_chunk().copied();
            match store.set(&self.key, bytes, token.take().flatten()) {
                Ok(()) => {
                    self.written(head, now);
                    return Synced::Written;
                }
                Err(StoreError::CasMismatch) => {}
                Err(error) => return Synced::Refused(error),
            }
        }
        Synced::LostRace
    }

    fn written(&mut self, head: Option<[u8; HEADER_BYTES]>, now: UnixMillis) {
        self.stored = head;
        self.pending.clear();
        self.truth.written();
        self.applied = 0;
        self.written_at = now;
        self.unwritten = false;
        self.untold = false;
        self.on_record = !self.has_nothing();
    }

    /// Forgets what the table no longer knows, once per heartbeat.
    fn clean(&mut self, now: UnixMillis) {
        if self.facts.is_empty() || (self.cleaned_at <= now && now.since(self.cleaned_at) < LEDGER_HEARTBEAT) {
            return;
        }
        self.cleaned_at = now;
        let facts = &self.facts;
        self.seen
            .keep_house(now, |pod| facts.get(&pod).map(|fact| fact.incarnation));
    }
}

/// Tells a request from those of other workers. Mixed, since the nonces of a replay are neighbours.
fn number(nonce: u64, id: u64) -> u64 {
    xxh64(&id.to_le_bytes(), nonce)
}
