//! The requests of one pool and worker that wait.
//!
//! ```text
//!  bands, highest first -> flows, each with credit -> requests, oldest first
//! ```
//! Deficit round robin with the smallest quantum: when no flow can pay its next request in tokens, all get
//! the same credit, as much as the first needs that then can. So flows that wait side by side are served equal
//! tokens, but for one request each. A flow that is empty is forgotten with its credit.
//!
//! Every request that came in goes out once: by [`Queue::go`], [`Queue::remove`], [`Queue::expired`], or as one
//! that gives way to another ([`Queue::offer`]). Deliberately not here: whether there is room for one.

use std::collections::{BTreeMap, VecDeque};

use berth_shared_state::config::Queue as Bounds;
use berth_shared_state::units::{Millis, Tokens, UnixMillis};
use hashbrown::HashMap;

use crate::ledger::Waiting;
use crate::limits::QUEUE_FLOWS_MAX;

#[cfg(test)]
mod tests;

/// The flow that those share who come when a band has its full number of flows.
const OTHERS: u64 = u64::MAX;

/// One that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item<T> {
    /// Unique among this worker's requests.
    pub id: u64,
    /// Its band.
    pub priority: i16,
    /// Its flow.
    pub flow: u64,
    /// What it costs its flow: tokens of prompt and expected output.
    pub tokens: Tokens,
    /// Bytes of its body, which the host keeps.
    pub bytes: usize,
    /// When it came.
    pub since: UnixMillis,
    /// How long it waits at most.
    pub wait: Millis,
    /// The request.
    pub what: T,
}

#[derive(Debug)]
struct Flow<T> {
    key: u64,
    /// Tokens that it was given and has not spent; never more than its first request costs.
    credit: u64,
    tokens: u64,
    bytes: usize,
    waiting: VecDeque<Item<T>>,
    /// Where to look on behind a first that has no room.
    turn: usize,
}

impl<T> Flow<T> {
    /// Its first; or where that is named, the next in turn that is not.
    fn next(&self, but: &[u64]) -> Option<&Item<T>> {
        let open = |item: &&Item<T>| !but.contains(&item.id);
        let first = self.waiting.front().filter(open);
        let behind = || self.waiting.iter().cycle().skip(self.turn).take(self.waiting.len());
        first.or_else(|| behind().find(open))
    }

    /// Credit that it lacks for one of its requests.
    const fn lacks(&self, item: &Item<T>) -> u64 {
        item.tokens.0.saturating_sub(self.credit)
    }

    fn take(&mut self, at: usize) -> Option<Item<T>> {
        let item = self.waiting.remove(at)?;
        self.tokens = self.tokens.saturating_sub(item.tokens.0);
        self.bytes = self.bytes.saturating_sub(item.bytes);
        if at < self.turn {
            self.turn -= 1;
        }
        Some(item)
    }
}

#[derive(Debug)]
struct Band<T> {
    /// None is empty. Who was served last is last.
    flows: VecDeque<Flow<T>>,
    requests: usize,
    bytes: usize,
}

/// See above.
#[derive(Debug)]
pub struct Queue<T> {
    bounds: Bounds,
    /// None is empty.
    bands: BTreeMap<i16, Band<T>>,
    /// Band and flow of each.
    places: HashMap<u64, (i16, u64)>,
    bytes: usize,
    /// Nobody's wait is over between these: when they were last looked at, and the first end of a wait.
    quiet: (UnixMillis, UnixMillis),
}

impl<T> Queue<T> {
    /// An empty one.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            bands: BTreeMap::new(),
            places: HashMap::new(),
            bytes: 0,
            quiet: (UnixMillis(0), UnixMillis(0)),
        }
    }

    /// Nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Requests that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// The bands where somebody waits, highest first.
    pub fn priorities(&self) -> impl Iterator<Item = i16> {
        self.bands.keys().rev().copied()
    }

    /// One that waits.
    #[must_use]
    pub fn get(&self, id: u64) -> Option<&Item<T>> {
        let (priority, key) = self.places.get(&id)?;
        let flow = self.bands.get(priority)?.flows.iter().find(|flow| flow.key == *key)?;
        flow.waiting.iter().find(|item| item.id == id)
    }

    /// How much waits in each band, lowest first.
    pub fn waiting(&self) -> impl Iterator<Item = Waiting> {
        self.bands.iter().map(|(priority, band)| Waiting {
            priority: *priority,
            requests: u32::try_from(band.requests).unwrap_or(u32::MAX),
            tokens: Tokens(
                band.flows
                    .iter()
                    .fold(0, |sum: u64, flow| sum.saturating_add(flow.tokens)),
            ),
            blocked: None,
        })
    }

    /// Takes one in. Returned are those that give way, perhaps itself: while its band is over a bound, the youngest
    /// of the flow that has most of it, tokens or bytes; while the whole is, the same of the lowest band.
    pub fn offer(&mut self, item: Item<T>) -> Vec<Item<T>> {
        if item.bytes > self.bounds.band_bytes || self.places.contains_key(&item.id) {
            return vec![item];
        }
        let priority = item.priority;
        self.quiet.1 = self.quiet.1.min(item.since + item.wait);
        self.push(item);
        let mut gone = Vec::new();
        while let Some(band) = self.bands.get(&priority) {
            let by_bytes = band.bytes > self.bounds.band_bytes;
            if !by_bytes && band.requests <= self.bounds.band_requests {
                break;
            }
            gone.extend(self.give_way(priority, by_bytes));
        }
        while let Some(lowest) = self.bands.keys().next().copied() {
            let by_bytes = self.bytes > self.bounds.max_bytes;
            if !by_bytes && self.len() <= self.bounds.max_requests {
                break;
            }
            gone.extend(self.give_way(lowest, by_bytes));
        }
        gone
    }

    /// Who goes next of a band, but of the requests and the flows named: one of the flow that can pay, or that first
    /// could.
    #[must_use]
    pub fn next(&self, priority: i16, but: &[u64], shut: &[u64]) -> Option<&Item<T>> {
        let flows = self.bands.get(&priority)?.flows.iter();
        let open = flows.filter(|flow| !shut.contains(&flow.key));
        open.filter_map(|flow| flow.next(but).map(|item| (flow.lacks(item), item)))
            .min_by_key(|(lacks, _)| *lacks)
            .map(|(_, item)| item)
    }

    /// There was no room for one: another of its flow is the next to be asked behind the first.
    pub fn passed(&mut self, id: u64) {
        let at = |flow: &Flow<T>| flow.waiting.iter().position(|item| item.id == id);
        let place = self.places.get(&id);
        let band = place.and_then(|(priority, key)| Some((self.bands.get_mut(priority)?, *key)));
        if let Some(flow) = band.and_then(|(band, key)| band.flows.iter_mut().find(|flow| flow.key == key))
            && let Some(at) = at(flow)
        {
            flow.turn = (at + 1) % flow.waiting.len().max(1);
        }
    }

    /// Lets one go. Where its flow cannot pay, all of its band are given what it lacks; so who is passed by, because
    /// there is no room for it yet, can pay before the others can again.
    pub fn go(&mut self, id: u64) -> Option<Item<T>> {
        let (priority, key) = *self.places.get(&id)?;
        let band = self.bands.get_mut(&priority)?;
        let at = band.flows.iter().position(|flow| flow.key == key)?;
        let flow = band.flows.get(at)?;
        let place = flow.waiting.iter().position(|item| item.id == id)?;
        let (credit, lacks) = (flow.credit, flow.lacks(flow.waiting.get(place)?));
        for flow in &mut band.flows {
            let first = flow.waiting.front().map_or(0, |item| item.tokens.0);
            flow.credit = flow.credit.saturating_add(lacks).min(first);
        }
        let mut flow = band.flows.remove(at)?;
        let item = flow.take(place);
        if let Some(item) = &item {
            flow.credit = (credit + lacks).saturating_sub(item.tokens.0);
        }
        if !flow.waiting.is_empty() {
            band.flows.push_back(flow);
        }
        self.forget(item)
    }

    /// Takes one out: its client left.
    pub fn remove(&mut self, id: u64) -> Option<Item<T>> {
        let (priority, key) = *self.places.get(&id)?;
        self.take(priority, key, |waiting| waiting.iter().position(|item| item.id == id))
    }

    /// Takes out those that waited long enough. Where the clock stepped back, they begin anew.
    pub fn expired(&mut self, now: UnixMillis) -> Vec<Item<T>> {
        if (self.quiet.0..self.quiet.1).contains(&now) {
            return Vec::new();
        }
        let mut first = UnixMillis(u64::MAX);
        let mut due = Vec::new();
        let flows = self.bands.values_mut().flat_map(|band| band.flows.iter_mut());
        for item in flows.flat_map(|flow| flow.waiting.iter_mut()) {
            item.since = item.since.min(now);
            if now.since(item.since) >= item.wait {
                due.push(item.id);
            } else {
                first = first.min(item.since + item.wait);
            }
        }
        self.quiet = (now, first);
        due.into_iter().filter_map(|id| self.remove(id)).collect()
    }

    fn push(&mut self, mut item: Item<T>) {
        self.bytes += item.bytes;
        let band = self.bands.entry(item.priority).or_insert_with(|| Band {
            flows: VecDeque::new(),
            requests: 0,
            bytes: 0,
        });
        band.requests += 1;
        band.bytes += item.bytes;
        let of = |key: u64| move |flow: &Flow<T>| flow.key == key;
        let mut at = band.flows.iter().position(of(item.flow));
        if at.is_none() && band.flows.len() >= QUEUE_FLOWS_MAX {
            item.flow = OTHERS;
            at = band.flows.iter().position(of(OTHERS));
        }
        self.places.insert(item.id, (item.priority, item.flow));
        if let Some(flow) = at.and_then(|at| band.flows.get_mut(at)) {
            flow.tokens = flow.tokens.saturating_add(item.tokens.0);
            flow.bytes += item.bytes;
            return flow.waiting.push_back(item);
        }
        band.flows.push_back(Flow {
            key: item.flow,
            credit: 0,
            tokens: item.tokens.0,
            bytes: item.bytes,
            waiting: VecDeque::from([item]),
            turn: 0,
        });
    }

    /// Takes out the youngest of the flow that has most tokens, or bytes where these are over their bound.
    fn give_way(&mut self, priority: i16, by_bytes: bool) -> Option<Item<T>> {
        let band = self.bands.get(&priority)?;
        let has = |flow: &&Flow<T>| if by_bytes { flow.bytes as u64 } else { flow.tokens };
        let key = band.flows.iter().max_by_key(has)?.key;
        self.take(priority, key, |waiting| waiting.len().checked_sub(1))
    }

    fn take(
        &mut self,
        priority: i16,
        key: u64,
        which: impl FnOnce(&VecDeque<Item<T>>) -> Option<usize>,
    ) -> Option<Item<T>> {
        let band = self.bands.get_mut(&priority)?;
        let at = band.flows.iter().position(|flow| flow.key == key)?;
        let flow = band.flows.get_mut(at)?;
        let item = which(&flow.waiting).and_then(|which| flow.take(which));
        if flow.waiting.is_empty() {
            band.flows.remove(at);
        }
        self.forget(item)
    }

    /// One is out of its flow: neither the sums nor the places have it any more.
    fn forget(&mut self, item: Option<Item<T>>) -> Option<Item<T>> {
        let item = item?;
        self.places.remove(&item.id);
        self.bytes = self.bytes.saturating_sub(item.bytes);
        if let Some(band) = self.bands.get_mut(&item.priority) {
            band.requests = band.requests.saturating_sub(1);
            band.bytes = band.bytes.saturating_sub(item.bytes);
            if band.requests == 0 {
                self.bands.remove(&item.priority);
            }
        }
        Some(item)
    }
}
