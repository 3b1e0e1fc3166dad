//! What one view itself has in flight: its truth, kept in the worker's own memory, and the
//! records it is written down as.

use std::collections::{BTreeMap, VecDeque};

use berth_shared_state::limits::{LEDGER_ENTRY_MAX_AGE, LEDGER_HORIZON, LEDGER_IN_FLIGHT_MAX, LEDGER_WAIT_MIN};
use berth_shared_state::pod::PodKey;
use berth_shared_state::units::{Millis, Tokens, UnixMillis};
use hashbrown::HashMap;

use super::{Phase, Record};

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
    pod: PodKey,
    sent_at: UnixMillis,
    answered_at: UnixMillis,
}

/// All of one view's requests.
#[derive(Debug, Default)]
pub(super) struct Truth {
    in_flight: BTreeMap<u64, InFlight>,
    gone: VecDeque<Gone>,
    /// Nothing is to be settled before.
    settle_at: UnixMillis,
}

impl Truth {
    pub fn is_empty(&self) -> bool {
        self.in_flight.is_empty() && self.gone.is_empty()
    }

    pub fn sent(&mut self, id: u64, request: InFlight) {
        if self.in_flight.len() >= LEDGER_IN_FLIGHT_MAX
            && let Some(oldest) = self.in_flight.iter().min_by_key(|(_, r)| r.sent_at).map(|(id, _)| *id)
        {
            self.in_flight.remove(&oldest);
        }
        self.settle_at = self.settle_at.min(request.settles_at());
        self.in_flight.insert(id, request);
    }

    pub fn get_mut(&mut self, id: u64) -> Option<&mut InFlight> {
        self.in_flight.get_mut(&id)
    }

    pub fn end(&mut self, id: u64, now: UnixMillis) -> Option<InFlight> {
        let request = self.in_flight.remove(&id)?;
        let unseen = if request.streams { now } else { now.min(request.due()) };
        let answered_at = request.answered_at.unwrap_or(unseen);
        if answered_at.since(request.sent_at) < LEDGER_WAIT_MIN {
            return Some(request);
        }
        if self.gone.len() >= LEDGER_IN_FLIGHT_MAX {
            self.gone.pop_front();
        }
        self.gone.push_back(Gone {
            pod: request.pod,
            sent_at: request.sent_at,
            answered_at,
        });
        Some(request)
    }

    /// Releases the prompt work of requests that show no first token, at the time predicted for
    /// it, and forgets what is too old to be true. True when anything changed.
    pub fn settle(&mut self, now: UnixMillis) -> bool {
        if now < self.settle_at {
            return false;
        }
        let mut changed = false;
        let mut next = UnixMillis(u64::MAX);
        self.in_flight.retain(|_, request| {
            if !request.streams && request.answered_at.is_none() && request.due() <= now {
                request.answered_at = Some(request.due());
                changed = true;
            }
            let keep = now.since(request.sent_at) <= LEDGER_ENTRY_MAX_AGE;
            changed |= !keep;
            next = next.min(request.settles_at());
            keep
        });
        self.settle_at = next;
        changed
    }

    /// The oldest request at a pod, and how many there are.
    pub fn oldest_at(&self, pod: PodKey) -> Option<(u64, UnixMillis)> {
        let at_pod = self.in_flight.iter().filter(|(_, request)| request.pod == pod);
        at_pod
            .map(|(id, request)| (*id, request.sent_at))
            .min_by_key(|(_, sent_at)| *sent_at)
    }

    pub fn drop_leaked(&mut self, id: u64) {
        self.in_flight.remove(&id);
    }

    /// Adapters of the requests in flight, each once per pod.
    pub fn adapters_in_use(&self) -> Vec<(PodKey, u64)> {
        let in_flight = self.in_flight.values();
        let mut used: Vec<_> = in_flight.filter_map(|r| Some((r.pod, r.adapter?))).collect();
        used.sort_unstable();
        used.dedup();
        used
    }

    /// The records to write, at most `bound` of them unless the pods alone are more. What happened
    /// before a pod's latest sample, or before the horizon, is folded.
    pub fn records(
        &mut self,
        now: UnixMillis,
        bound: usize,
        sample_at: impl Fn(PodKey) -> Option<UnixMillis>,
    ) -> Vec<(PodKey, Record)> {
        let keep_from = |pod| horizon(now, LEDGER_HORIZON).max(sample_at(pod).unwrap_or_default());
        self.gone.retain(|gone| gone.answered_at >= keep_from(gone.pod));
        // Most requests are old, so they are folded before anything is sorted.
        let mut all = Vec::new();
        let mut pods: HashMap<PodKey, (UnixMillis, [Option<Record>; 2])> = HashMap::new();
        for (pod, record) in self.in_flight.values().map(record) {
            let (keep_from, [unanswered, generating]) = pods.entry(pod).or_insert_with(|| (keep_from(pod), [None; 2]));
            let fold = match record.phase {
                Phase::Unanswered { .. } => unanswered,
                Phase::Generating { .. } | Phase::Ended { .. } => generating,
            };
            match fold {
                _ if last_event(&record) >= *keep_from => all.push((pod, record)),
                Some(into) => absorb(into, &record),
                None => *fold = Some(record),
            }
        }
        let folds = pods
            .into_iter()
            .flat_map(|(pod, (_, folds))| folds.map(|fold| (pod, fold)));
        all.extend(folds.filter_map(|(pod, fold)| Some((pod, fold?))));
        all.extend(self.gone.iter().map(|gone| {
            let phase = Phase::Ended {
                answered_at: gone.answered_at,
            };
            (
                gone.pod,
                Record {
                    slot: 0,
                    count: 1,
                    sent_at: gone.sent_at,
                    context: Tokens(0),
                    phase,
                },
            )
        }));
        all.sort_by_key(|(pod, record)| (*pod, kind(record), record.sent_at));
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
        all
    }
}

const fn horizon(now: UnixMillis, reach: Millis) -> UnixMillis {
    UnixMillis(now.0.saturating_sub(reach.0))
}

fn record(request: &InFlight) -> (PodKey, Record) {
    let phase = match request.answered_at {
        None => Phase::Unanswered {
            tokens: request.uncached,
            predicted: request.predicted,
        },
        Some(answered_at) => Phase::Generating { answered_at },
    };
    (
        request.pod,
        Record {
            slot: 0,
            count: 1,
            sent_at: request.sent_at,
            context: request.context,
            phase,
        },
    )
}

const fn kind(record: &Record) -> u8 {
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
