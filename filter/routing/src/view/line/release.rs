//! Lets go those of a line who may go now.

use std::rc::Rc;

use berth_shared_state::pod::PodAddress;
use berth_shared_state::store::SharedData;
use berth_shared_state::units::UnixMillis;

use super::super::{Request, View};
use super::{Queued, Terms, Way, left};
use crate::admission::{Item, Queue};
use crate::decision::{Action, Decision, Reason, Why};
use crate::ledger::{Blocked, Waiting};
use crate::limits::{RELEASE_BLOCKED_FLOW_MAX, RELEASE_BLOCKED_MAX, RELEASE_MAX};

/// One release of one line.
#[derive(Debug, Default)]
struct Round {
    /// See [`super::Line`].
    owed: f64,
    ended: bool,
    went: usize,
    /// Pods that are kept by who was asked before, of higher bands too.
    kept: Vec<PodAddress>,
    gone: Vec<(u64, Decision)>,
}

/// What was asked of one band, and found no room.
#[derive(Debug, Default)]
struct Asked {
    ids: Vec<u64>,
    flows: Vec<u64>,
    shut: Vec<u64>,
    /// How many of them may go to some of the pods only.
    pinned: usize,
}

impl Asked {
    fn add(&mut self, item: &Item<Queued>, why: &Why) {
        let excluded = &why.excluded;
        self.pinned += usize::from(excluded.subset > 0 || excluded.model > 0);
        self.ids.push(item.id);
        self.flows.push(item.flow);
        if self.flows.iter().filter(|flow| **flow == item.flow).count() >= RELEASE_BLOCKED_FLOW_MAX {
            self.shut.push(item.flow);
        }
    }
}

impl View {
    /// Lets go what may go now, in the order in which it goes: routed, passed or answered here. To be called on every
    /// tick; where nobody waits it costs nothing.
    pub fn release(&mut self, store: &dyn SharedData, now: UnixMillis) -> Vec<(u64, Decision)> {
        let mut gone = core::mem::take(&mut self.leaving);
        for index in 0..self.lines.len() {
            gone.extend(self.release_line(store, index, now));
        }
        gone
    }

    /// The same of one pool (by its place in the config): a stream of it has ended.
    pub fn release_pool(&mut self, store: &dyn SharedData, index: usize, now: UnixMillis) -> Vec<(u64, Decision)> {
        let mut gone = core::mem::take(&mut self.leaving);
        gone.extend(self.release_line(store, index, now));
        gone
    }

    fn release_line(&mut self, store: &dyn SharedData, index: usize, now: UnixMillis) -> Vec<(u64, Decision)> {
        let Some(line) = self.lines.get_mut(index) else {
            return Vec::new();
        };
        let ended = core::mem::take(&mut line.ended);
        if line.is_empty() {
            return Vec::new();
        }
        for (_, blocked) in line.blocked.values_mut() {
            // A clock that stepped back.
            blocked.since = blocked.since.min(now);
        }
        let mut round = Round {
            owed: line.owed,
            ended,
            ..Round::default()
        };
        self.expire(index, now, &mut round.gone);
        self.refresh_table(store, index, now);
        if let Some(view) = self.pools.get_mut(index) {
            self.counts.ledger(view.ledger.refresh(store, now));
        }
        // Out of the line meanwhile, so that a request in it can be looked at while deciding.
        let Some(line) = self.lines.get_mut(index) else {
            return round.gone;
        };
        line.forget_gone();
        let waiting = line.waiting();
        if let Some(mut queue) = line.queue.take() {
            for band in waiting.iter().rev() {
                if !self.release_band(store, index, band, &mut queue, &mut round, now) {
                    break;
                }
            }
            if let Some(line) = self.lines.get_mut(index) {
                line.queue = Some(queue);
                line.owed = round.owed.min(1.0);
            }
        }
        self.tell(store, index, now);
        round.gone
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

    /// Lets go what there is room for of a band. True: the rest has none, and the next band may.
    fn release_band(
        &mut self,
        store: &dyn SharedData,
        index: usize,
        band: &Waiting,
        queue: &mut Queue<Queued>,
        round: &mut Round,
        now: UnixMillis,
    ) -> bool {
        let priority = band.priority;
        let Some(part) = self.part(index, band) else {
            return false;
        };
        round.owed += if core::mem::take(&mut round.ended) { part } else { 0.0 };
        let (mut asked, mut sized) = (Asked::default(), false);
        let mut first = self.blocked(index, priority).map(|(id, _)| id);
        while asked.ids.len() < RELEASE_BLOCKED_MAX {
            let next = || queue.next(priority, &asked.ids, &asked.shut);
            let Some(item) = first.take().and_then(|id| queue.get(id)).or_else(next) else {
                break;
            };
            if round.went >= RELEASE_MAX || (part < 1.0 && round.owed < 1.0) {
                self.found(index, priority, |blocked| blocked.stuck = false);
                return false;
            }
            let id = item.id;
            // What a worker may let go while others wait elsewhere is a part of all the room there is.
            let counts = part < 1.0 && !sized;
            let decision = self.decide_queued(store, index, item, (&round.kept, counts), now);
            if decision.action == Action::Hold {
                let pod = decision.why.considered.first().map(|one| one.pod);
                asked.add(item, &decision.why);
                queue.passed(id);
                round.kept.extend(pod);
                self.no_room(index, priority, id, pod, now);
                continue;
            }
            // Its part of the room there is, which is all of it for one that is alone.
            let room = decision.why.room.map_or(f64::INFINITY, f64::from);
            round.owed += if sized { 0.0 } else { part * room };
            round.owed = if part < 1.0 { round.owed - 1.0 } else { round.owed };
            sized = true;
            round.went += 1;
            queue.go(id);
            if self.blocked(index, priority).is_some_and(|(blocked, _)| blocked == id)
                && let Some(line) = self.lines.get_mut(index)
            {
                line.blocked.remove(&priority);
            }
            round.gone.push((id, decision));
        }
        let pinned = asked.pinned == asked.ids.len();
        self.found(index, priority, |blocked| {
            blocked.stuck = pinned || blocked.is_long(now)
        });
        true
    }

    /// The part of all that waits in a band and can go which waits here; `None`: a higher one is ahead at another worker.
    fn part(&self, index: usize, band: &Waiting) -> Option<f64> {
        let ledger = &self.pools.get(index)?.ledger;
        let ahead = || ledger.waiting_elsewhere().filter(|other| !other.is_stuck());
        if ahead().any(|other| other.priority > band.priority) {
            return None;
        }
        let tokens = |waiting: &Waiting| waiting.tokens.0.max(1) as f64;
        let same = ahead().filter(|other| other.priority == band.priority);
        let own = tokens(band);
        Some(own / (own + same.map(tokens).sum::<f64>()))
    }

    fn blocked(&self, index: usize, priority: i16) -> Option<(u64, Blocked)> {
        self.lines.get(index)?.blocked.get(&priority).copied()
    }

    fn found(&mut self, index: usize, priority: i16, change: impl FnOnce(&mut Blocked)) {
        let line = self.lines.get_mut(index);
        if let Some((_, blocked)) = line.and_then(|line| line.blocked.get_mut(&priority)) {
            change(blocked);
        }
    }

    /// One found no room. The first of its band that does so keeps its pod until it goes.
    fn no_room(&mut self, index: usize, priority: i16, id: u64, pod: Option<PodAddress>, now: UnixMillis) {
        let Some(line) = self.lines.get_mut(index) else { return };
        let fresh = Blocked {
            pod,
            since: now,
            stuck: false,
        };
        let (blocked, known) = line.blocked.entry(priority).or_insert((id, fresh));
        if *blocked == id {
            known.pod = pod.or(known.pod);
        }
    }

    fn decide_queued(
        &mut self,
        store: &dyn SharedData,
        index: usize,
        item: &Item<Queued>,
        (kept, counts): (&[PodAddress], bool),
        now: UnixMillis,
    ) -> Decision {
        let own = self.blocked(index, item.priority).filter(|(id, _)| *id == item.id);
        let own = own.map(|(_, blocked)| blocked);
        let mut reserved = kept.to_vec();
        if let Some(view) = self.pools.get(index) {
            let before = |other: &Waiting, since: UnixMillis| {
                let longer = own.is_none_or(|own| since < own.since);
                other.priority > item.priority || (other.priority == item.priority && longer)
            };
            let elsewhere = view.ledger.waiting_elsewhere();
            let elsewhere = elsewhere.filter_map(|other| Some((other, other.keeps(now)?)));
            reserved.extend(
                elsewhere
                    .filter(|(other, (_, since))| before(other, *since))
                    .map(|(_, (pod, _))| pod),
            );
        }
        let queued = &item.what;
        let request = Request {
            id: item.id,
            facts: &queued.facts,
            prompt: &queued.prompt,
            steering: &queued.steering,
            body: Some(item.bytes),
            in_full: queued.in_full,
        };
        let way = Way {
            index,
            target: queued.target.as_deref(),
        };
        let terms = Terms {
            reserved: &reserved,
            keeps: own.and_then(|own| own.pod),
            counts,
            closed: false,
        };
        let mut decision = self.decide_with_room(store, &request, way, &queued.class, terms, now);
        decision.why.priority = Some(item.priority);
        decision.why.waited = Some(now.since(item.since));
        decision
    }
}
