//! What a view does with requests that a full pool has no room for: sends them away, or lets them wait.
//!
//! ```text
//!  decide: who is ahead? --nobody--> room? --yes--> route
//!             \--somebody--\            \--no--> queue on: wait     queue off: sheddable 429, others route
//!  release (a stream ended, or a tick): deadlines, then the next of the highest band while there is room
//! ```
//!
//! Workers share a pool without a lock: each tells in the ledger what waits there, lets no lower band go while a
//! higher one waits elsewhere, and in one go no more of a band than its part of what waits. A worker that died is
//! forgotten with the ledger's other records of it.

use std::collections::BTreeSet;
use std::rc::Rc;

use berth_shared_state::config::Admission;
use berth_shared_state::pod::PodAddress;
use berth_shared_state::store::SharedData;
use berth_shared_state::units::{Millis, Tokens, UnixMillis};

use super::{Request, Steering, View};
use crate::admission::{Class, Item, Queue, Waiting, deadline};
use crate::cost::Patience;
use crate::decision::{Action, Admit, Ask, Decision, Reason, Refusal, Why};
use crate::limits::{ASCII_BYTES_PER_TOKEN, RELEASE_BLOCKED_MAX, RELEASE_MAX, RETRY_AFTER_RANGE};
use crate::prefix::Blocks;
use crate::request::Facts;

/// A request that waits, with all that deciding it anew takes.
#[derive(Debug)]
pub(super) struct Held {
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
    queue: Option<Queue<Held>>,
    /// Bands for which the pool was full when last asked.
    full: BTreeSet<i16>,
    /// When it was expected to have room, as a time from when it was last asked.
    drain: Millis,
    /// Requests that this worker may let go while others wait elsewhere. A stream that ends here gives its part of
    /// one, so that who has more streams gets no more; a tick gives one, so that nobody waits for nobody.
    owed: f64,
}

impl Line {
    pub fn new(admission: &Admission) -> Self {
        Self {
            queue: admission.queue.map(Queue::new),
            full: BTreeSet::new(),
            drain: Millis(0),
            owed: 0.0,
        }
    }

    pub fn tick(&mut self) {
        self.owed = self.owed.max(1.0);
    }

    fn is_empty(&self) -> bool {
        self.queue.as_ref().is_none_or(Queue::is_empty)
    }

    fn highest(&self) -> Option<i16> {
        self.queue.as_ref()?.highest()
    }

    fn waiting(&self) -> Vec<Waiting> {
        self.queue.iter().flat_map(Queue::waiting).collect()
    }

    fn patience(&self, class: &Class) -> Patience {
        Patience {
            wait: class.patience.0 as f64,
            resumes: self.full.contains(&class.priority),
        }
    }

    /// Takes in what a decision said of the pool.
    fn learn(&mut self, priority: i16, why: &Why) {
        match why.room {
            Some(0) => {
                self.full.insert(priority);
                self.drain = why.drain.unwrap_or(self.drain);
            }
            Some(_) => {
                self.full.remove(&priority);
            }
            None => {}
        }
    }
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
        let waits = request.body.filter(|_| queues);
        let mut decision = if waits.is_none() && !class.is_sheddable() {
            self.decide_at(store, request, way, None, now)
        } else {
            let closed = waits.is_some() && self.must_wait(store, way.index, class.priority, now);
            let on = (&class, &[][..], closed);
            self.decide_with_room(store, request, way, on, now)
        };
        decision.why.priority = Some(class.priority);
        if decision.action != Action::Hold {
            return decision;
        }
        match waits {
            Some(bytes) => self.wait(store, request, (way, class, bytes), decision, now),
            None => self.refuse(way.index, decision.why, Reason::Saturated),
        }
    }

    /// Lets go what may go now, in the order in which it goes: routed, passed or answered here. To be called when a
    /// stream has ended and on every tick; where nobody waits it costs nothing.
    pub fn release(&mut self, store: &dyn SharedData, now: UnixMillis) -> Vec<(u64, Decision)> {
        if self.leaving.is_empty() && self.lines.iter().all(Line::is_empty) {
            return Vec::new();
        }
        let mut gone = core::mem::take(&mut self.leaving);
        for index in 0..self.lines.len() {
            if self.lines.get(index).is_some_and(|line| !line.is_empty()) {
                self.expire(index, now, &mut gone);
                self.refresh_table(store, index, now);
                while gone.len() < RELEASE_MAX && self.release_band(store, index, now, &mut gone) {}
                self.tell(store, index, now);
            }
        }
        gone
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

    /// Whether any request waits at this worker.
    #[must_use]
    pub fn holds(&self) -> bool {
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

    /// Somebody is ahead, here or at another worker.
    fn must_wait(&mut self, store: &dyn SharedData, index: usize, priority: i16, now: UnixMillis) -> bool {
        if self
            .lines
            .get(index)
            .and_then(Line::highest)
            .is_some_and(|highest| highest >= priority)
        {
            return true;
        }
        let Some(view) = self.pools.get_mut(index) else {
            return false;
        };
        self.counts.ledger(view.ledger.refresh(store, now));
        view.ledger.waiting_elsewhere().any(|band| band.priority >= priority)
    }

    fn decide_with_room(
        &mut self,
        store: &dyn SharedData,
        request: &Request<'_>,
        way: Way<'_>,
        (class, reserved, closed): (&Class, &[PodAddress], bool),
        now: UnixMillis,
    ) -> Decision {
        let Some(patience) = self.lines.get(way.index).map(|line| line.patience(class)) else {
            return self.decide_at(store, request, way, None, now);
        };
        let admit = Admit {
            patience,
            reserved,
            closed,
        };
        let decision = self.decide_at(store, request, way, Some(admit), now);
        if let Some(line) = self.lines.get_mut(way.index) {
            line.learn(class.priority, &decision.why);
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
        let Some(pool) = config.pools.get(way.index) else {
            return decision;
        };
        let (Some(bounds), Some(line)) = (config.admission.queue, self.lines.get_mut(way.index)) else {
            return decision;
        };
        let Some(queue) = &mut line.queue else { return decision };
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
            wait: Millis(deadline(bounds.max_wait, request.steering.timeout, now).since(now).0),
            what: Held {
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

    /// Sends away who waited as long as they may.
    fn expire(&mut self, index: usize, now: UnixMillis, gone: &mut Vec<(u64, Decision)>) {
        let queue = self.lines.get_mut(index).and_then(|line| line.queue.as_mut());
        let expired = queue.map(|queue| queue.expired(now)).unwrap_or_default();
        let config = Rc::clone(&self.config);
        let pool = config.pools.get(index).map_or("", |pool| &pool.name);
        for item in expired {
            let refused = self.refuse(index, left(pool, &item, now), Reason::QueueTimeout);
            gone.push((item.id, refused));
        }
    }

    /// Lets go what there is room for of the highest band. True: all of it went, and the next may.
    fn release_band(
        &mut self,
        store: &dyn SharedData,
        index: usize,
        now: UnixMillis,
        gone: &mut Vec<(u64, Decision)>,
    ) -> bool {
        let Some((priority, part)) = self.part(store, index, now) else {
            return false;
        };
        // Out of the line meanwhile, so that a request in it can be looked at while deciding.
        let Some(line) = self.lines.get_mut(index) else {
            return false;
        };
        let (owed, Some(mut queue)) = (line.owed, line.queue.take()) else {
            return false;
        };
        let (mut reserved, mut blocked) = (Vec::new(), Vec::new());
        let (mut owed, mut asked) = (owed + part, false);
        let mut all = false;
        while gone.len() < RELEASE_MAX && owed >= 1.0 {
            let Some(item) = queue.next(priority, &blocked) else {
                all = blocked.is_empty();
                break;
            };
            let id = item.id;
            let decision = self.decide_held(store, index, item, &reserved, now);
            if decision.action != Action::Hold {
                // Its part of the room there is, which is all of it for one that is alone.
                let room = decision.why.room.map_or(f64::INFINITY, f64::from);
                owed += if asked { 0.0 } else { part * room };
                owed -= if part < 1.0 { 1.0 } else { 0.0 };
                asked = true;
                queue.go(id);
                gone.push((id, decision));
                continue;
            }
            // The pod that it waits for is not taken from it by others of its band.
            let pod = decision.why.considered.first().map(|one| one.pod);
            blocked.push(item.flow);
            reserved.extend(pod);
            if pod.is_none() || blocked.len() >= RELEASE_BLOCKED_MAX {
                break;
            }
        }
        if let Some(line) = self.lines.get_mut(index) {
            line.queue = Some(queue);
            line.owed = owed.min(1.0);
        }
        all
    }

    /// The highest band that waits here, and which part of all that waits in it does; `None`: a higher one waits at
    /// another worker, or nobody does here.
    fn part(&mut self, store: &dyn SharedData, index: usize, now: UnixMillis) -> Option<(i16, f64)> {
        let line = self.lines.get(index)?;
        let priority = line.highest()?;
        let tokens = |waiting: &Waiting| waiting.tokens.0.max(1) as f64;
        let own = line
            .waiting()
            .iter()
            .filter(|band| band.priority == priority)
            .map(tokens)
            .sum::<f64>();
        let view = self.pools.get_mut(index)?;
        self.counts.ledger(view.ledger.refresh(store, now));
        let elsewhere = || view.ledger.waiting_elsewhere();
        if elsewhere().any(|band| band.priority > priority) {
            return None;
        }
        let others = elsewhere()
            .filter(|band| band.priority == priority)
            .map(tokens)
            .sum::<f64>();
        Some((priority, own / (own + others)))
    }

    fn decide_held(
        &mut self,
        store: &dyn SharedData,
        index: usize,
        item: &Item<Held>,
        reserved: &[PodAddress],
        now: UnixMillis,
    ) -> Decision {
        let held = &item.what;
        let request = Request {
            id: item.id,
            facts: &held.facts,
            prompt: &held.prompt,
            steering: &held.steering,
            body: Some(item.bytes),
            in_full: held.in_full,
        };
        let way = Way {
            index,
            target: held.target.as_deref(),
        };
        let mut decision = self.decide_with_room(store, &request, way, (&held.class, reserved, false), now);
        decision.why.priority = Some(held.class.priority);
        decision.why.waited = Some(now.since(item.since));
        decision
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
        let (Some(line), Some(view)) = (self.lines.get(index), self.pools.get_mut(index)) else {
            return;
        };
        self.counts.ledger(view.ledger.waits(store, line.waiting(), now));
    }
}

/// Why one leaves the queue without having been asked for again.
fn left(pool: &str, item: &Item<Held>, now: UnixMillis) -> Why {
    Why {
        pool: pool.to_owned(),
        model: item.what.facts.model.as_deref().map(crate::decision::shortened),
        priority: Some(item.priority),
        waited: Some(now.since(item.since)),
        ..Why::default()
    }
}
