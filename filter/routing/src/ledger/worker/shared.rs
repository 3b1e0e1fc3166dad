//! The shared value of a ledger: reading it, bringing it up to date with what this worker knows, writing it.
//!
//! `seen` is the last value read, with the worker's own truth and its pending lessons in it. Whatever is read or written,
//! that stays so, and neither is ever undone. Deliberately not here: what happens to requests ([`super::LedgerView`]
//! itself), what is known of those in flight ([`crate::ledger::truth`]), and the bytes ([`crate::ledger::sections`]).

use berth_shared_state::limits::{LEDGER_HEARTBEAT, LEDGER_TRIES, VIEW_MAX_AGE};
use berth_shared_state::pod::PodKey;
use berth_shared_state::sealed::HEADER_BYTES;
use berth_shared_state::store::{SharedData, StoreError};
use berth_shared_state::units::UnixMillis;

use super::{LedgerView, PodFact, Synced};

impl LedgerView {
    pub(super) fn is_young(&self, now: UnixMillis) -> bool {
        self.read_at.is_some_and(|at| at <= now && now.since(at) < VIEW_MAX_AGE)
    }

    /// Reads the shared value. Where it is absent or cannot be opened (foreign, torn, evicted) this
    /// worker goes on with its copy and replaces it.
    pub(super) fn read(&mut self, store: &dyn SharedData, now: UnixMillis) -> Result<(), StoreError> {
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

    pub(super) fn catch_up(&mut self, now: UnixMillis) {
        self.seen.drop_silent(now);
        for lesson in self.pending.iter().skip(self.applied) {
            self.seen.learn(lesson, now);
        }
        self.applied = self.pending.len();
    }

    /// Whether `seen` holds the own truth as it stands: the truth did not change since it was last
    /// written, and that is what is there. The heartbeat tells an older writing.
    pub(super) fn is_written_down(&self) -> bool {
        let mut own = self.seen.views.iter().filter(|head| head.nonce == self.nonce);
        match own.next() {
            Some(head) => !self.unwritten && head.heartbeat == self.written_at,
            None => self.has_nothing(),
        }
    }

    pub(super) fn has_nothing(&self) -> bool {
        self.truth.is_empty() && self.waiting.is_empty()
    }

    /// Puts the own truth into `seen`: what changed since it was last written; or all of it, where that is not enough
    /// and once a heartbeat, since time alone folds and ends records.
    pub(super) fn rewrite(&mut self, now: UnixMillis) {
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

    pub(super) fn write(&mut self, store: &dyn SharedData, now: UnixMillis) -> Synced {
        self.unwritten = true;
        self.truth.settle(now);
        // The token of an old reading is no use: an absent key may exist by now.
        let mut token = if self.is_young(now) { self.token.take() } else { None };
        let tells = self.tells(now);
        if tells {
            self.told_at = now;
        }
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
            if tells {
                self.heard
                    .iter()
                    .for_each(|(pod, heard)| self.seen.heard(*pod, *heard, now));
            }
            self.clean(now);
            let Ok(bytes) = self.seen.encode() else {
                return Synced::TooLarge;
            };
            let head = bytes.first_chunk().copied();
            match store.set(&self.key, bytes, token.take().flatten()) {
                Ok(()) => {
                    self.written(head, now);
                    if tells {
                        self.heard.clear();
                    }
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
