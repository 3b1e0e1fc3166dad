//! Many pods: whom a decision looks at, and what it takes of the others.
//!
//! ```text
//!  all pods --(each table, and once in a while)--> means, level, who is open, who has which adapter
//!                                                                   |
//!  request --> prefix holders + adapter holders + homes + a random few --> priced like a small pool
//! ```
//!
//! Looking at each of a thousand pods finds a pod hardly better than the best of some dozens taken at random (Mitzenmacher,
//! "The power of two choices in randomized load balancing", 2001), and proxies that see the same gauges would all find
//! the same one. What differs by more than chance is known by name: who holds the prompt's beginning or the adapter, and
//! where others send it. Where these few cannot tell what is true of all (a name that none of them lists, a subset,
//! no pod awake), nobody is left out. Deliberately not here: small pools, in which all pods are always looked at.

use berth_shared_state::config::Pool;
use berth_shared_state::pod::{PodAddress, PodKey};
use berth_shared_state::snapshot::Snapshot;
use berth_shared_state::table::{NameId, PodRow, Readiness};
use berth_shared_state::units::{Tokens, UnixMillis};
use fastrand::Rng;
use hashbrown::HashMap;
use xxhash_rust::xxh64::xxh64;

use super::candidates::longest as longest_context;
use super::labels::Required;
use super::serving::{self, is_ready};
use super::{Ask, Excluded, Part, PodFacts, PoolFacts, adapter_key};
use crate::cost::{ADAPTER_HOMES, Fleet, HOME_SHARE, HOST_ADAPTERS, Since, Stage};
use crate::limits::{
    DRAWN_ADAPTER_MAX, DRAWN_AT_RANDOM, DRAWN_HOLDERS_MAX, DRAWN_HOMES_MAX, DRAWN_MAX, HOME_PROBES, HOME_STEPS,
};

/// Pods on a ring: ordered by key, with their place in the table.
type Ring = Vec<(PodKey, u32)>;

/// What was reckoned of all pods of a pool.
#[derive(Clone, Debug)]
pub struct Field {
    pub(super) fleet: Fleet,
    pub(super) since: Since,
    /// Pods that are not in it.
    pub(super) excluded: Excluded,
    /// What was learned of the pool, then.
    pub facts: PoolFacts,
    /// Pods that are ready, with the labels that the config requires, and awake.
    open: Ring,
    /// The same by place.
    is_open: Vec<bool>,
    /// Until when those of them are avoided that failed, the soonest first.
    avoided_until: Vec<UnixMillis>,
    /// Those of them where an adapter is in use or in memory, as far as is known.
    warm: HashMap<u64, Ring>,
    /// Those that list a name; made when few that are drawn do.
    listing: HashMap<NameId, Ring>,
    /// Some pod lists its models, or answers for any name: pods differ.
    named: bool,
}

/// Some pods of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drawn {
    /// Their places in the table, each once.
    pub places: Vec<u32>,
    /// Those of them that proxies agree on for the beginning of the prompt.
    pub homes: Vec<u32>,
    /// The same for the adapter, if one of those drawn may have to load it: where it lives, and where else it may.
    pub adapter_homes: Vec<u32>,
}

/// A request, as far as it matters who is drawn.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    /// The pool.
    pub pool: &'a Pool,
    /// Its table.
    pub snapshot: &'a Snapshot,
    /// The request.
    pub ask: &'a Ask<'a>,
    /// Who holds how many blocks of the prompt.
    pub held: &'a [(usize, u32)],
}

impl Field {
    /// Of all pods, in the order of the table, with their keys.
    #[must_use]
    pub fn new(pool: &Pool, snapshot: &Snapshot, pods: &[PodFacts<'_>], keys: &[PodKey], facts: PoolFacts) -> Self {
        let mut fleet = Fleet::new(&facts, pool.routing.prefill_tokens_per_second);
        let mut excluded = Excluded::default();
        let mut open = Ring::new();
        let mut named = false;
        let required = Required::new(snapshot, &pool.routing.require);
        let best = required.best(pods.iter().map(|pod| pod.row).filter(|row| is_ready(row)));
        for ((pod, key), place) in pods.iter().zip(keys).zip(0..) {
            let stage = Stage::of(pod);
            named |= pod.row.models.is_some() || serving::enforces(pool, pod.row) == Some(false);
            if is_ready(pod.row) {
                fleet.add(pod, stage);
            }
            match pod.row.readiness {
                Readiness::NotReady => excluded.not_ready += 1,
                Readiness::Draining => excluded.draining += 1,
                Readiness::Ready | Readiness::Unknown if required.met(pod.row) < best => excluded.labels += 1,
                Readiness::Ready | Readiness::Unknown if stage.is_asleep(pod) => excluded.asleep += 1,
                Readiness::Ready | Readiness::Unknown => open.push((*key, place)),
            }
        }
        open.sort_unstable();
        let mut is_open = vec![false; pods.len()];
        let mut avoided_until = Vec::new();
        for (_, place) in &open {
            let place = *place as usize;
            if let (Some(is_open), Some(pod)) = (is_open.get_mut(place), pods.get(place)) {
                *is_open = true;
                avoided_until.extend(pod.avoided_until);
            }
        }
        avoided_until.sort_unstable();
        let ready = pods.iter().filter(|pod| is_ready(pod.row));
        let since = Since::new(&fleet, facts.elsewhere, ready.map(|pod| (pod, Stage::of(pod))));
        Self {
            fleet,
            since,
            excluded,
            facts,
            warm: warm(snapshot, pods, &open),
            open,
            is_open,
            avoided_until,
            listing: HashMap::new(),
            named,
        }
    }

    /// An adapter was sent to a pod since.
    pub fn sent(&mut self, adapter: u64, key: PodKey, place: u32) {
        let ring = self.warm.entry(adapter).or_default();
        if let Err(at) = ring.binary_search(&(key, place)) {
            ring.insert(at, (key, place));
        }
    }

    /// Of how many pods how many are avoided now. The drawn ones alone would say by chance that most are.
    pub(super) fn avoided(&self, now: UnixMillis) -> (usize, usize) {
        let over = self.avoided_until.partition_point(|until| *until <= now);
        (self.avoided_until.len().saturating_sub(over), self.open.len())
    }

    /// The pods to look at; `None` = all of them, since some cannot speak for all.
    pub fn draw(&mut self, wish: &Wish<'_>, rng: &mut Rng) -> Option<Drawn> {
        let name = wish
            .ask
            .model
            .map(|model| (wish.snapshot.id(model), adapter_key(model)));
        let fits = Fits::new(wish, self.named);
        let mut drawn = Drawn {
            places: self.some(&fits, rng)?,
            ..Drawn::default()
        };
        let warm = name
            .and_then(|(_, key)| self.warm.get(&key))
            .filter(|ring| !ring.is_empty());
        if let Some(warm) = warm {
            at_random(warm, DRAWN_ADAPTER_MAX, rng, |place| drawn.add(place));
        }
        for place in longest(wish.held, rng) {
            if self.is_open.get(place as usize) == Some(&true) {
                drawn.add(place);
            }
        }
        let is_met = |place: u32| fits.is_met(place);
        let ring = warm.unwrap_or(&self.open);
        if let Some(start) = wish.ask.start {
            let homes = (start.share * ring.len() as f64 / HOME_SHARE).ceil().max(1.0) as usize;
            for number in 0..homes.min(DRAWN_HOMES_MAX) {
                let number = if homes > DRAWN_HOMES_MAX {
                    rng.usize(0..homes)
                } else {
                    number
                };
                if let Some(home) = home(ring, start.key, number as u64, is_met) {
                    drawn.add(home);
                    drawn.homes.push(home);
                }
            }
        }
        let all_warm = warm.is_some_and(|ring| ring.len() >= self.open.len());
        let loads = !all_warm && drawn.places.iter().any(|place| fits.needs_adapter(*place));
        if let Some((_, key)) = name.filter(|_| loads) {
            let listing = fits.id.and_then(|id| self.listing.get(&id));
            let ring = listing.unwrap_or(&self.open);
            for number in 0..ADAPTER_HOMES {
                let is_other = |place: u32| !drawn.adapter_homes.contains(&place) && fits.is_met(place);
                if let Some(home) = home(ring, key, number, is_other) {
                    drawn.add(home);
                    drawn.adapter_homes.push(home);
                }
            }
        }
        Some(drawn)
    }

    /// Some at random that fit. Most pods of a pool are alike, so a few tries find them; else they are looked for.
    fn some(&mut self, fits: &Fits<'_>, rng: &mut Rng) -> Option<Vec<u32>> {
        let found = fits.some(&self.open, rng);
        if found.len() >= (DRAWN_AT_RANDOM / 2).min(self.open.len()) {
            return Some(found).filter(|found| !found.is_empty());
        }
        let open = &self.open;
        let listing = self.listing.entry(fits.id?).or_insert_with(|| {
            let lists = |(_, place): &&(PodKey, u32)| fits.row(*place).is_some_and(|row| fits.lists(row));
            open.iter().filter(lists).copied().collect()
        });
        let found = fits.some(listing, rng);
        let enough = found.len() >= (DRAWN_AT_RANDOM / 2).min(listing.len());
        (enough && !found.is_empty()).then_some(found)
    }
}

impl Part<'_> {
    /// Where these of the drawn pods are.
    pub(super) fn addresses(self, places: &[u32], pods: &[PodFacts<'_>]) -> Vec<PodAddress> {
        let at = |place: &u32| self.drawn.places.iter().position(|drawn| drawn == place);
        let these = places.iter().filter_map(|place| pods.get(at(place)?));
        these.map(|pod| pod.row.address).collect()
    }

    /// Pods that were left out before.
    pub(super) fn excluded(self) -> Excluded {
        let not_drawn = self.field.open.len().saturating_sub(self.drawn.places.len());
        Excluded {
            not_drawn: u32::try_from(not_drawn).unwrap_or(u32::MAX),
            ..self.field.excluded
        }
    }
}

impl Drawn {
    fn add(&mut self, place: u32) {
        if !self.places.contains(&place) {
            self.places.push(place);
        }
    }
}

/// What a pod's row must say for it to speak for others.
struct Fits<'a> {
    wish: &'a Wish<'a>,
    id: Option<NameId>,
    /// Whoever is awake serves it, as far as anybody knows.
    any: bool,
    configured: bool,
    least: Tokens,
}

impl<'a> Fits<'a> {
    fn new(wish: &'a Wish<'a>, named: bool) -> Self {
        let model = wish.ask.model;
        Self {
            wish,
            id: model.and_then(|model| wish.snapshot.id(model)),
            any: model.is_none() || !named,
            configured: model.is_some_and(|model| serving::configured(wish.pool, model)),
            least: wish.ask.at_least(),
        }
    }

    fn row(&self, place: u32) -> Option<&'a PodRow> {
        self.wish.snapshot.pods().get(place as usize)
    }

    fn lists(&self, row: &PodRow) -> bool {
        self.any || serving::says_so(self.wish.pool, row, self.id, self.configured)
    }

    fn needs_adapter(&self, place: u32) -> bool {
        let name_at = self.wish.ask.model.zip(self.row(place));
        name_at.is_some_and(|(name, row)| serving::needs_adapter(self.wish.pool, row, self.id, name))
    }

    fn is_met(&self, place: u32) -> bool {
        let fits = |row: &PodRow| longest_context(row) >= self.least && self.lists(row);
        self.row(place).is_some_and(fits)
    }

    /// Some of these at random that fit, after twice as many tries at most.
    fn some(&self, ring: &[(PodKey, u32)], rng: &mut Rng) -> Vec<u32> {
        let mut found = Vec::with_capacity(DRAWN_MAX);
        at_random(ring, 2 * DRAWN_AT_RANDOM, rng, |place| {
            if found.len() < DRAWN_AT_RANDOM && self.is_met(place) {
                found.push(place);
            }
        });
        found
    }
}

/// Where an adapter is in use or in memory, or was lately, among these pods.
fn warm(snapshot: &Snapshot, pods: &[PodFacts<'_>], open: &[(PodKey, u32)]) -> HashMap<u64, Ring> {
    let keys: Vec<u64> = snapshot.table().names.iter().map(|name| adapter_key(name)).collect();
    let key = |id: &NameId| keys.get(usize::from(id.0)).copied();
    let mut warm: HashMap<u64, Ring> = HashMap::new();
    for (pod_key, place) in open {
        let Some(pod) = pods.get(*place as usize) else {
            continue;
        };
        let (active, resident) = (pod.row.activity.as_ref(), pod.row.resident.as_deref());
        let in_flight = active
            .into_iter()
            .flat_map(|list| list.running.iter().chain(&list.waiting));
        let in_memory = resident.into_iter().flatten().map(|(id, _)| id);
        let lately = pod.seen_adapters.iter().take(HOST_ADAPTERS);
        let lately = lately.chain(pod.recent_adapters.iter().take(HOST_ADAPTERS));
        let own = pod.adapters_in_use.iter().map(|used| used.adapter);
        let by_name = in_flight.chain(in_memory).filter_map(key);
        for adapter in by_name.chain(lately.map(|(key, _)| *key)).chain(own) {
            let ring = warm.entry(adapter).or_default();
            if ring.last() != Some(&(*pod_key, *place)) {
                ring.push((*pod_key, *place));
            }
        }
    }
    warm
}

/// Those that hold most of the prompt; among equals by lot.
fn longest(held: &[(usize, u32)], rng: &mut Rng) -> Vec<u32> {
    let mut held: Vec<(u32, u32, u32)> = held
        .iter()
        .map(|(place, blocks)| (*blocks, rng.u32(..), u32::try_from(*place).unwrap_or(u32::MAX)))
        .collect();
    if held.len() > DRAWN_HOLDERS_MAX {
        held.select_nth_unstable_by(DRAWN_HOLDERS_MAX, |a, b| b.cmp(a));
        held.truncate(DRAWN_HOLDERS_MAX);
    }
    held.into_iter().map(|(_, _, place)| place).collect()
}

/// Calls `visit` with so many of a ring, each once: one of each of so many arcs of equal length, from a random start.
fn at_random(ring: &[(PodKey, u32)], count: usize, rng: &mut Rng, mut visit: impl FnMut(u32)) {
    let count = count.min(ring.len());
    let start = rng.usize(0..ring.len().max(1));
    for arc in 0..count {
        let (from, to) = (arc * ring.len() / count, (arc + 1) * ring.len() / count);
        let at = (start + rng.usize(from..to)) % ring.len();
        if let Some((_, place)) = ring.get(at) {
            visit(*place);
        }
    }
}

/// Where a key lives on a ring: of the pods behind some points that it is hashed to, the one closest behind its point. With
/// 21 points no pod is home to more than 1.05 times its part, and each has one place on the ring (Appleton, O'Reilly,
/// "Multi-probe consistent hashing", 2015). `number` tells several homes of a key apart.
fn home(ring: &[(PodKey, u32)], key: u64, number: u64, is_met: impl Fn(u32) -> bool) -> Option<u32> {
    let mut closest: Option<(u64, u32)> = None;
    for probe in 0..HOME_PROBES {
        let point = xxh64(&key.to_le_bytes(), number.wrapping_mul(HOME_PROBES).wrapping_add(probe));
        let behind = ring.partition_point(|(pod, _)| pod.0 < point);
        let (before, behind) = ring.split_at_checked(behind)?;
        let walk = behind.iter().chain(before).take(HOME_STEPS);
        let mut walk = walk.map(|(pod, place)| (pod.0.wrapping_sub(point), *place));
        // The way grows with each step, so who is no closer at the first need not be asked.
        let closer = |pod: &(u64, u32)| closest.is_none_or(|closest| *pod < closest);
        closest = walk
            .by_ref()
            .take_while(closer)
            .find(|(_, place)| is_met(*place))
            .or(closest);
    }
    closest.map(|(_, place)| place)
}

#[cfg(test)]
mod tests;
