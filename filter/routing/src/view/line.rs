//! What a view does with requests that a full pool has no room for: sends them away, or lets them wait.
//!
//! ```text
//!  decide: who is ahead? --nobody--> room? --yes--> route
//!             \--somebody--\            \--no--> queue on: wait     queue off: sheddable 429, others route
//!  release (a stream ended, or a tick): deadlines, then band by band while there is room
//! ```
//!
//! Who may pass whom, at one worker and between them:
//! - The next is one of the highest band, by the queue's rule. Where it finds room it goes, and nobody has passed it.
//! - Where it finds none it *keeps* a pod, the one that would be best for it, until it goes. Others pass it, those of
//!   its own flow and of lower bands too, but not to that pod. So what is large finds its pod drained at last, and what
//!   fits one full pod only stops nobody elsewhere.
//! - Workers share a pool without a lock, and tell in the ledger what waits. One of each band tells the pod that it
//!   keeps, the one that has been without room longest. After [`BLOCKED_PATIENCE`] the other workers keep it too:
//!   from lower bands, and in its own from who is without room since later.
//! - A band of which nothing that was asked has room is *stuck* after that second; at once where all that were asked may
//!   go to some pods only (a subset, an adapter). It holds nobody back but at pods that are kept. While it is not, no
//!   lower band goes at another worker, and who comes waits behind it.
//! - In one go a worker lets go no more of a band than its part of what waits in it, those that are stuck not counted.
//!
//! Nobody starves within a band: its flow has its turn, then it keeps a pod, and who keeps one longer goes before. A
//! worker that died is forgotten with the ledger's other records of it.
//!
//! What cannot be held (its body is too large) does not wait, and passes nobody: it goes where there is room and nobody
//! ahead, and else is sent away.

mod release;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use berth_shared_state::config::Admission;
use berth_shared_state::pod::PodAddress;
use berth_shared_state::store::SharedData;
use berth_shared_state::units::{Millis, Tokens, UnixMillis};

use super::{Request, Steering, View};
use crate::admission::{Class, Item, Queue};
use crate::cost::Patience;
use crate::decision::{Action, Admit, Ask, Decision, Reason, Refusal, Why};
use crate::ledger::{Blocked, Waiting};
#[cfg(doc)]
use crate::limits::BLOCKED_PATIENCE;
use crate::limits::{ASCII_BYTES_PER_TOKEN, RETRY_AFTER_RANGE};
use crate::prefix::Blocks;
use crate::request::Facts;

/// A request that waits, with all that deciding it anew takes.
#[derive(Debug)]
pub(super) struct Queued {
    facts: Facts,
    prompt: Blocks,
    steering: Steering,
    target: Option<String>,
    class: Class,
    in_full: bool,
}

/// Who waits for one pool.
#[derive(Debug)]
pub(super) struct Line {
    /// `None`: nobody may wait.
    queue: Option<Queue<Queued>>,
    /// Of each band the one that has been without room longest, by its id.
    blocked: BTreeMap<i16, (u64, Blocked)>,
    /// Bands for which the pool was full when last asked.
    full: BTreeSet<i16>,
    /// When it was expected to have room, as a time from when it was last asked.
    drain: Millis,
    /// Requests that this worker may let go while others wait elsewhere. A stream that ends here gives its part of
    /// one, so that who has more streams gets no more; a tick gives one, so that nobody waits for nobody.
    owed: f64,
    /// A stream of the pool ended since the last release.
    ended: bool,
}

impl Line {
    pub fn new(admission: &Admission) -> Self {
        Self {
            queue: admission.queue.map(Queue::new),
            blocked: BTreeMap::new(),
            full: BTreeSet::new(),
            drain: Millis(0),
            owed: 0.0,
            ended: false,
        }
    }

    pub fn tick(&mut self) {
        self.owed = self.owed.max(1.0);
    }

    fn is_empty(&self) -> bool {
        self.queue.as_ref().is_none_or(Queue::is_empty)
    }

    /// A stream of the pool is over: its place may be free.
    pub const fn ended(&mut self) {
        self.ended = true;
    }

    fn waiting(&self) -> Vec<Waiting> {
        let all = self.queue.iter().flat_map(Queue::waiting);
        let blocked = |priority| self.blocked.get(&priority).map(|(_, blocked)| *blocked);
        all.map(|band| Waiting {
            blocked: blocked(band.priority),
            ..band
        })
        .collect()
    }

    /// Who has left is without room no more.
    fn forget_gone(&mut self) {
        if let Some(queue) = &self.queue {
            self.blocked.retain(|_, (id, _)| queue.get(*id).is_some());
        }
    }

    fn patience(&self, class: &Class) -> Patience {
        Patience {
            wait: class.patience.0 as f64,
            resumes: self.full.contains(&class.priority),
        }
    }

    /// Takes in what a decision said of the pool. That a hurried one, or one that was not to have all pods, finds no room
    /// says nothing of what others of its band would.
    fn learn(&mut self, class: &Class, all: bool, why: &Why) {
        match why.room {
            Some(0) if all && !class.hurried => {
                self.full.insert(class.priority);
                self.drain = why.drain.unwrap_or(self.drain);
            }
            Some(1..) => {
                self.full.remove(&class.priority);
            }
            _ => {}
        }
    }
}

/// On which terms a request is let go.
#[derive(Clone, Copy, Debug)]
struct Terms<'a> {
    /// Pods that others keep.
    reserved: &'a [PodAddress],
    /// The pod that it keeps itself.
    keeps: Option<PodAddress>,
    /// Its room is to be counted over all pods.
    counts: bool,
    /// Others are ahead.
    closed: bool,
}

/// Where a request goes, whatever pod it gets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way<'a> {
    /// The pool, by its place in the config.
    pub index: usize,
    /// What stands behind the name in its body.
    pub target: Option<&'a str>,
}

impl View {
    /// Decides a request of a gateway that knows objectives or a queue.
    pub(super) fn admit(
        &mut self,
        store: &dyn SharedData,
        request: &Request<'_>,
        way: Way<'_>,
        class: Class,
        now: UnixMillis,
    ) -> Decision {
        self.counts.objectives_unknown += u64::from(class.unknown);
        let queues = self.config.admission.queue.is_some();
        let mut decision = if !queues && !class.is_sheddable() {
            self.decide_at(store, request, way, None, now)
        } else {
            let closed = queues && self.must_wait(store, way.index, class.priority, now);
            let kept = self.kept_before(way.index, class.priority, now);
            let terms = Terms {
                reserved: &kept,
                closed,
                keeps: None,
                counts: false,
            };
            self.decide_with_room(store, request, way, &class, terms, now)
        };
        decision.why.priority = Some(class.priority);
        if decision.action != Action::Hold {
            return decision;
        }
        match request.body.filter(|_| queues) {
            Some(bytes) => self.wait(store, request, (way, class, bytes), decision, now),
            None => self.refuse(way.index, decision.why, Reason::Saturated),
        }
    }

    /// What waits for a pool (by its place in the config) at all workers, lowest band first; as last read, and never
    /// read for this.
    #[must_use]
    pub fn waiting(&self, pool: usize) -> Vec<Waiting> {
        let mut all = self.lines.get(pool).map(Line::waiting).unwrap_or_default();
        let elsewhere = self
            .pools
            .get(pool)
            .into_iter()
            .flat_map(|view| view.ledger.waiting_elsewhere());
        for other in elsewhere {
            match all.iter_mut().find(|band| band.priority == other.priority) {
                Some(band) => {
                    band.requests = band.requests.saturating_add(other.requests);
                    band.tokens = band.tokens + other.tokens;
                }
                None => all.push(*other),
            }
        }
        all.sort_by_key(|band| band.priority);
        all
    }

    /// Reads anew what waits at other workers, where anybody may wait.
    pub fn refresh_waiting(&mut self, store: &dyn SharedData, now: UnixMillis) {
        for (line, view) in self.lines.iter().zip(&mut self.pools) {
            if line.queue.is_some() {
                self.counts.ledger(view.ledger.refresh(store, now));
            }
        }
    }

    /// Whether any request waits at this worker.
    #[must_use]
    pub fn anybody_waits(&self) -> bool {
        !self.leaving.is_empty() || self.lines.iter().any(|line| !line.is_empty())
    }

    /// A request that waits is over: its client left.
    pub(super) fn leave(&mut self, store: &dyn SharedData, id: u64, now: UnixMillis) {
        self.leaving.retain(|(leaving, _)| *leaving != id);
        for index in 0..self.lines.len() {
            let queue = self.lines.get_mut(index).and_then(|line| line.queue.as_mut());
            if queue.and_then(|queue| queue.remove(id)).is_some() {
                self.tell(store, index, now);
            }
        }
    }

    /// Somebody is ahead who can go, here or at another worker.
    fn must_wait(&mut self, store: &dyn SharedData, index: usize, priority: i16, now: UnixMillis) -> bool {
        let ahead = |band: &Waiting| band.priority >= priority && !band.is_stuck();
        let Some((line, view)) = self.lines.get(index).zip(self.pools.get_mut(index)) else {
            return false;
        };
        if line.waiting().iter().any(ahead) {
            return true;
        }
        self.counts.ledger(view.ledger.refresh(store, now));
        view.ledger.waiting_elsewhere().any(ahead)
    }

    /// Pods that are kept from one that comes.
    fn kept_before(&self, index: usize, priority: i16, now: UnixMillis) -> Vec<PodAddress> {
        let Some((line, view)) = self.lines.get(index).zip(self.pools.get(index)) else {
            return Vec::new();
        };
        let here = line.blocked.range(priority..);
        let here = here.filter_map(|(_, (_, blocked))| blocked.pod);
        let elsewhere = view.ledger.waiting_elsewhere();
        let elsewhere = elsewhere.filter(|band| band.priority >= priority);
        here.chain(elsewhere.filter_map(|band| Some(band.keeps(now)?.0)))
            .collect()
    }

    fn decide_with_room(
        &mut self,
        store: &dyn SharedData,
        request: &Request<'_>,
        way: Way<'_>,
        class: &Class,
        terms: Terms<'_>,
        now: UnixMillis,
    ) -> Decision {
        let Some(patience) = self.lines.get(way.index).map(|line| line.patience(class)) else {
            return self.decide_at(store, request, way, None, now);
        };
        let admit = Admit {
            patience,
            reserved: terms.reserved,
            keeps: terms.keeps,
            counts: terms.counts,
            closed: terms.closed,
        };
        let decision = self.decide_at(store, request, way, Some(admit), now);
        if let Some(line) = self.lines.get_mut(way.index) {
            line.learn(class, terms.reserved.is_empty(), &decision.why);
        }
        decision
    }

    fn wait(
        &mut self,
        store: &dyn SharedData,
        request: &Request<'_>,
        (way, class, bytes): (Way<'_>, Class, usize),
        decision: Decision,
        now: UnixMillis,
    ) -> Decision {
        let config = Rc::clone(&self.config);
        let queue = self.lines.get_mut(way.index).and_then(|line| line.queue.as_mut());
        let (Some(pool), Some(bounds), Some(queue)) = (config.pools.get(way.index), config.admission.queue, queue)
        else {
            // Nobody would ever let it go.
            return self.refuse(way.index, decision.why, Reason::Saturated);
        };
        // Not by what was learned of sizes: that changes with time, and who waits longer would pay another price.
        let output = Tokens(pool.routing.expected_output_tokens.into());
        let ask = Ask::new(request.facts, ASCII_BYTES_PER_TOKEN, output);
        let steering = request.steering.to_wait(&pool.name);
        let gone = queue.offer(Item {
            id: request.id,
            priority: class.priority,
            flow: class.flow,
            tokens: ask.prompt + ask.output,
            bytes: bytes + request.memory(&steering),
            since: now,
            wait: request
                .steering
                .timeout
                .map_or(bounds.max_wait, |timeout| timeout.min(bounds.max_wait)),
            what: Queued {
                facts: request.facts.clone(),
                prompt: request.prompt.clone(),
                steering,
                target: way.target.map(str::to_owned),
                class,
                in_full: request.in_full,
            },
        });
        let mut answer = decision;
        for item in gone {
            let why = if item.id == request.id {
                core::mem::take(&mut answer.why)
            } else {
                left(&pool.name, &item, now)
            };
            let refused = self.refuse(way.index, why, Reason::QueueFull);
            if item.id == request.id {
                answer = refused;
            } else {
                self.leaving.push((item.id, refused));
            }
        }
        self.tell(store, way.index, now);
        answer
    }

    /// Sends away, with the time after which there may be room: until a pod has some, and until those who wait here
    /// have their prompts read.
    fn refuse(&self, index: usize, mut why: Why, reason: Reason) -> Decision {
        let line = self.lines.get(index);
        let drain = why.drain.or(line.map(|line| line.drain)).unwrap_or_default();
        let waiting = line.map(Line::waiting).unwrap_or_default();
        let ahead = waiting.iter().fold(Tokens(0), |sum, band| sum + band.tokens).0 as f64;
        let rate = self
            .pools
            .get(index)
            .zip(self.config.pools.get(index))
            .map_or(1.0, |(view, pool)| {
                let initial = f64::from(pool.routing.prefill_tokens_per_second) / 1_000.0;
                view.facts().rate.unwrap_or(initial)
                    * view.snapshot().map_or(1, |table| table.pods().len().max(1)) as f64
            });
        let seconds = (drain.0 as f64 + ahead / rate.max(f64::MIN_POSITIVE)) / 1_000.0;
        why.reason = Some(reason);
        Decision {
            action: Action::Reply(Refusal {
                status: 429,
                reason,
                model: why.model.clone(),
                near: None,
                retry_after: Some((seconds.ceil() as u64).clamp(*RETRY_AFTER_RANGE.start(), *RETRY_AFTER_RANGE.end())),
            }),
            refresh_models: false,
            why,
        }
    }

    /// Tells the other workers what waits here.
    fn tell(&mut self, store: &dyn SharedData, index: usize, now: UnixMillis) {
        let (Some(line), Some(view)) = (self.lines.get_mut(index), self.pools.get_mut(index)) else {
            return;
        };
        line.forget_gone();
        self.counts.ledger(view.ledger.waits(store, line.waiting(), now));
    }
}

/// Why one leaves the queue without having been asked for again.
fn left(pool: &str, item: &Item<Queued>, now: UnixMillis) -> Why {
    Why {
        pool: pool.to_owned(),
        model: item.what.facts.model.as_deref().map(crate::decision::shortened),
        priority: Some(item.priority),
        waited: Some(now.since(item.since)),
        ..Why::default()
    }
}
