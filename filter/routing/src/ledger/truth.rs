//! What one view itself has in flight: its truth, kept in the worker's own memory, and the
//! records it is written down as.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use berth_shared_state::limits::{LEDGER_ENTRY_MAX_AGE, LEDGER_HORIZON, LEDGER_IN_FLIGHT_MAX, LEDGER_WAIT_MIN};
use berth_shared_state::pod::PodKey;
use berth_shared_state::units::{Millis, Tokens, UnixMillis};

use super::{Phase, Record};

/// Things at pods, in the order of the pods.
type AtPods<T> = Vec<(PodKey, T)>;

/// One request in flight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct InFlight {
    pub pod: PodKey,
    pub sent_at: UnixMillis,
    /// Own uncached prompt tokens.
    pub uncached: Tokens,
    /// Those, and the ones of own requests that were ahead at the pod.
    pub work: Tokens,
    pub context: Tokens,
    pub predicted: Millis,
    /// Shows its first token.
    pub streams: bool,
    /// Nothing disturbed the time to its first token.
    pub teaches: bool,
    pub answered_at: Option<UnixMillis>,
    /// xxh64 of the adapter's name.
    pub adapter: Option<u64>,
}

impl InFlight {
    /// When its first token is expected.
    fn due(&self) -> UnixMillis {
        self.sent_at + self.predicted
    }

    /// When [`Truth::settle`] next has to look at it.
    fn settles_at(&self) -> UnixMillis {
        let waits = !self.streams && self.answered_at.is_none();
        let too_old = self.sent_at + LEDGER_ENTRY_MAX_AGE;
        if waits { self.due().min(too_old) } else { too_old }
    }
}

/// A request that is gone, as long as a sample may still count it as waiting.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Gone {
    sent_at: UnixMillis,
    answered_at: UnixMillis,
}

/// What one view has at one pod.
#[derive(Debug, Default)]
struct AtPod {
    in_flight: Vec<(u64, InFlight)>,
    gone: VecDeque<Gone>,
    /// Records, or adapters in use if they are more, that were last made of it.
    size: usize,
}

impl AtPod {
    fn oldest(&self) -> Option<(u64, UnixMillis)> {
        let sent = self.in_flight.iter().map(|(id, request)| (*id, request.sent_at));
        sent.min_by_key(|(id, sent_at)| (*sent_at, *id))
    }
}

/// All of one view's requests.
#[derive(Debug, Default)]
pub(super) struct Truth {
    /// Where each request in flight is.
    places: BTreeMap<u64, PodKey>,
    pods: BTreeMap<PodKey, AtPod>,
    gone: usize,
    /// The sum of the pods' sizes.
    size: usize,
    /// Pods at which something changed since they were last written down.
    changed: BTreeSet<PodKey>,
    /// Nothing is to be settled before.
    settle_at: UnixMillis,
}

impl Truth {
    pub fn is_empty(&self) -> bool {
        self.places.is_empty() && self.gone == 0
    }

    pub fn sent(&mut self, id: u64, request: InFlight) {
        if self.places.len() >= LEDGER_IN_FLIGHT_MAX
            && let Some(oldest) = self.oldest()
        {
            self.remove(oldest.0);
        }
        self.settle_at = self.settle_at.min(request.settles_at());
        self.remove(id);
        self.put(id, request);
    }

    pub fn get(&self, id: u64) -> Option<&InFlight> {
        let at_pod = self.pods.get(self.places.get(&id)?)?;
        at_pod
            .in_flight
            .iter()
            .find(|(known, _)| *known == id)
            .map(|(_, one)| one)
    }

    /// Replaces what is known of a request in flight, which may have moved.
    pub fn replace(&mut self, id: u64, request: InFlight) {
        if self.remove(id).is_some() {
            self.put(id, request);
        }
    }

    fn put(&mut self, id: u64, request: InFlight) {
        self.places.insert(id, request.pod);
        self.changed.insert(request.pod);
        self.pods.entry(request.pod).or_default().in_flight.push((id, request));
    }

    fn remove(&mut self, id: u64) -> Option<InFlight> {
        let pod = self.places.remove(&id)?;
        self.changed.insert(pod);
        let at_pod = self.pods.get_mut(&pod)?;
        let at = at_pod.in_flight.iter().position(|(known, _)| *known == id)?;
        Some(at_pod.in_flight.swap_remove(at).1)
    }

    pub fn end(&mut self, id: u64, now: UnixMillis) -> Option<InFlight> {
        let request = self.remove(id)?;
        let unseen = if request.streams { now } else { now.min(request.due()) };
        let answered_at = request.answered_at.unwrap_or(unseen);
        if answered_at.since(request.sent_at) < LEDGER_WAIT_MIN {
            return Some(request);
        }
        let at_pod = self.pods.entry(request.pod).or_default();
        if self.gone >= LEDGER_IN_FLIGHT_MAX && at_pod.gone.pop_front().is_some() {
            self.gone -= 1;
        }
        if self.gone < LEDGER_IN_FLIGHT_MAX {
            self.gone += 1;
            at_pod.gone.push_back(Gone {
                sent_at: request.sent_at,
                answered_at,
            });
        }
        Some(request)
    }

    /// Releases the prompt work of requests that show no first token, at the time predicted for
    /// it, and forgets what is too old to be true. True when anything changed.
    pub fn settle(&mut self, now: UnixMillis) -> bool {
        if now < self.settle_at {
            return false;
        }
        let mut any = false;
        let mut next = UnixMillis(u64::MAX);
        for (pod, at_pod) in &mut self.pods {
            let mut changed = false;
            at_pod.in_flight.retain_mut(|(id, request)| {
                if !request.streams && request.answered_at.is_none() && request.due() <= now {
                    request.answered_at = Some(request.due());
                    changed = true;
                }
                let keep = now.since(request.sent_at) <= LEDGER_ENTRY_MAX_AGE;
                if keep {
                    next = next.min(request.settles_at());
                } else {
                    self.places.remove(id);
                    changed = true;
                }
                keep
            });
            if changed {
                self.changed.insert(*pod);
                any = true;
            }
        }
        self.settle_at = next;
        any
    }

    /// The oldest request at a pod.
    pub fn oldest_at(&self, pod: PodKey) -> Option<(u64, UnixMillis)> {
        self.pods.get(&pod).and_then(AtPod::oldest)
    }

    fn oldest(&self) -> Option<(u64, UnixMillis)> {
        let oldest = self.pods.values().filter_map(AtPod::oldest);
        oldest.min_by_key(|(id, sent_at)| (*sent_at, *id))
    }

    pub fn drop_leaked(&mut self, id: u64) {
        self.remove(id);
    }

    /// Pods at which something changed since [`Truth::written`].
    pub fn changed(&self) -> impl Iterator<Item = PodKey> {
        self.changed.iter().copied()
    }

    /// At least as many records, and as many adapters in use, as were last made.
    pub const fn size(&self) -> usize {
        self.size
    }

    /// All of it stands in the ledger that the workers share.
    pub fn written(&mut self) {
        self.changed.clear();
    }

    /// The records of one pod, and the adapters of its requests in flight, each once. What happened before its latest
    /// sample, or before the horizon, is folded.
    pub fn at(&mut self, pod: PodKey, now: UnixMillis, sample_at: Option<UnixMillis>) -> (Vec<Record>, Vec<u64>) {
        let Some(at_pod) = self.pods.get_mut(&pod) else {
            return Default::default();
        };
        let keep_from = horizon(now, LEDGER_HORIZON).max(sample_at.unwrap_or_default());
        let before = at_pod.gone.len();
        at_pod.gone.retain(|gone| gone.answered_at >= keep_from);
        self.gone = self.gone.saturating_sub(before - at_pod.gone.len());
        // Most requests are old, so they are folded before anything is sorted.
        let mut all = Vec::new();
        let mut folds: [Option<Record>; 2] = [None; 2];
        let [unanswered, generating] = &mut folds;
        for record in at_pod.in_flight.iter().map(|(_, request)| record(request)) {
            let fold = match record.phase {
                Phase::Unanswered { .. } => &mut *unanswered,
                Phase::Generating { .. } | Phase::Ended { .. } => &mut *generating,
            };
            match fold {
                _ if last_event(&record) >= keep_from => all.push(record),
                Some(into) => absorb(into, &record),
                None => *fold = Some(record),
            }
        }
        all.extend(folds.into_iter().flatten());
        all.extend(at_pod.gone.iter().map(|gone| Record {
            slot: 0,
            count: 1,
            sent_at: gone.sent_at,
            context: Tokens(0),
            phase: Phase::Ended {
                answered_at: gone.answered_at,
            },
        }));
        all.sort_by_key(|record| (kind(record), record.sent_at));
        let mut in_use: Vec<u64> = at_pod.in_flight.iter().filter_map(|(_, one)| one.adapter).collect();
        in_use.sort_unstable();
        in_use.dedup();
        self.size = (self.size + all.len().max(in_use.len())).saturating_sub(at_pod.size);
        at_pod.size = all.len().max(in_use.len());
        if at_pod.size == 0 {
            self.pods.remove(&pod);
        }
        (all, in_use)
    }

    /// The records to write, at most `bound` of them unless the pods alone are more, and the adapters in use.
    pub fn all(
        &mut self,
        now: UnixMillis,
        bound: usize,
        sample_at: impl Fn(PodKey) -> Option<UnixMillis>,
    ) -> (AtPods<Record>, AtPods<u64>) {
        let pods: Vec<PodKey> = self.pods.keys().copied().collect();
        let (mut all, mut in_use) = (Vec::new(), Vec::new());
        for pod in pods {
            let (records, adapters) = self.at(pod, now, sample_at(pod));
            all.extend(records.into_iter().map(|record| (pod, record)));
            in_use.extend(adapters.into_iter().map(|adapter| (pod, adapter)));
        }
        let mut reach = LEDGER_HORIZON;
        while all.len() > bound && reach.0 > 0 {
            reach = Millis(reach.0 / 2);
            fold(&mut all, |_| {
                if reach.0 == 0 {
                    UnixMillis(u64::MAX)
                } else {
                    horizon(now, reach)
                }
            });
        }
        (all, in_use)
    }
}

const fn horizon(now: UnixMillis, reach: Millis) -> UnixMillis {
    UnixMillis(now.0.saturating_sub(reach.0))
}

fn record(request: &InFlight) -> Record {
    let phase = match request.answered_at {
        None => Phase::Unanswered {
            tokens: request.uncached,
            predicted: request.predicted,
        },
        Some(answered_at) => Phase::Generating { answered_at },
    };
    Record {
        slot: 0,
        count: 1,
        sent_at: request.sent_at,
        context: request.context,
        phase,
    }
}

pub(super) const fn kind(record: &Record) -> u8 {
    match record.phase {
        Phase::Unanswered { .. } => 0,
        Phase::Generating { .. } => 1,
        Phase::Ended { .. } => 2,
    }
}

/// The last thing that happened to a record's requests.
fn last_event(record: &Record) -> UnixMillis {
    match record.phase {
        Phase::Unanswered { .. } => record.sent_at,
        Phase::Generating { answered_at } | Phase::Ended { answered_at } => record.sent_at.max(answered_at),
    }
}

/// Folds records of one pod and kind whose last event is before `keep_from` of their pod into one,
/// and drops ended ones. Expects and keeps the order (pod, kind, sent).
fn fold(all: &mut Vec<(PodKey, Record)>, keep_from: impl Fn(PodKey) -> UnixMillis) {
    let mut folded: Vec<(PodKey, Record)> = Vec::with_capacity(all.len());
    // Where the fold of the current pod and kind is.
    let mut target: Option<usize> = None;
    for (pod, record) in all.drain(..) {
        let old = last_event(&record) < keep_from(pod);
        if old && matches!(record.phase, Phase::Ended { .. }) {
            continue;
        }
        let same = target
            .and_then(|at| folded.get_mut(at))
            .filter(|(other, into)| *other == pod && kind(into) == kind(&record));
        match same {
            Some((_, into)) if old => absorb(into, &record),
            Some(_) => folded.push((pod, record)),
            None => {
                target = old.then_some(folded.len());
                folded.push((pod, record));
            }
        }
    }
    *all = folded;
}

/// Adds a record to another of its pod and kind. What only one request can have is the oldest's.
fn absorb(into: &mut Record, other: &Record) {
    into.count = into.count.saturating_add(other.count);
    into.context = into.context + other.context;
    let older = other.sent_at < into.sent_at;
    match (&mut into.phase, other.phase) {
        (
            Phase::Unanswered { tokens, predicted },
            Phase::Unanswered {
                tokens: more,
                predicted: others,
            },
        ) => {
            *tokens = *tokens + more;
            if older {
                *predicted = others;
            }
        }
        (Phase::Generating { answered_at }, Phase::Generating { answered_at: other }) => {
            *answered_at = (*answered_at).min(other);
        }
        _ => {}
    }
    into.sent_at = into.sent_at.min(other.sent_at);
}
