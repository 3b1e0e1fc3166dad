//! The pods that can serve a request, and what each would cost.
//!
//! One list, filled once and narrowed in place: a pool of a thousand pods costs one allocation.
//! A filter that would leave nobody gives way with a note, so that the engine answers, not we.

use berth_shared_state::config::Caps;
use berth_shared_state::limits::SUBSET_MAX;
use berth_shared_state::pod::PodAddress;
use berth_shared_state::snapshot::Snapshot;
use berth_shared_state::table::{NameId, PodRow, Readiness};
use berth_shared_state::units::{Millis, Tokens};
use fastrand::Rng;

use super::agreed::Agreed;
use super::caps::at_cap;
use super::labels::{self, Met, Required};
use super::serving::{self, Can, Name, Naming, Serving};
use super::{Action, Admit, Booking, Considered, Decision, Input, Note, PodFacts, Reason, Rung, Why, pick};
use crate::cost::{self, Fleet, Need, QUEUES_ALIKE, Question, Stage, Terms, Tier};

/// The addresses of a subset hint.
#[derive(Debug)]
pub struct Subset(Vec<PodAddress>);

impl Subset {
    /// Reads `ip:port,ip:port`. What is no address matches no pod, and is skipped.
    pub fn parse(hint: &str) -> Self {
        let parts = hint.split(',').take(SUBSET_MAX);
        let mut addresses: Vec<_> = parts.filter_map(|part| part.trim().parse().ok()).collect();
        addresses.sort_unstable();
        addresses.dedup();
        Self(addresses)
    }

    /// Up to `count` of them, in random order.
    pub fn some(&self, count: usize, rng: &mut Rng) -> Vec<PodAddress> {
        let mut addresses = self.0.clone();
        rng.shuffle(&mut addresses);
        addresses.truncate(count);
        addresses
    }

    fn has(&self, address: PodAddress) -> bool {
        self.0.binary_search(&address).is_ok()
    }
}

/// One pod in the race.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    pub pod: &'a PodFacts<'a>,
    pub stage: Stage,
    pub can: Can,
    pub tier: Tier,
    /// What it takes, and its price.
    pub need: Need,
    pub terms: Terms,
    pub cost: f64,
    /// What it takes, and its prefill, if what only the client claims is not so.
    pub surely: (Need, f64),
    /// Proxies agree on it for prompts that begin like this one.
    pub is_home: bool,
    /// Its failure domain, where retries stay apart.
    pub domain: Option<NameId>,
}

impl Candidate<'_> {
    /// Prompt tokens that it was sent before, and not only believed to have.
    fn known_cached(&self) -> Tokens {
        self.need.cached.min(Tokens(
            (self.need.prompt.0 as f64 * self.pod.at_an_engine(self.pod.cached.max(self.pod.claimed))) as u64,
        ))
    }

    /// The terms, if what only the client claims is not so.
    fn sure_terms(&self) -> Terms {
        Terms {
            prefill: self.surely.1,
            ..self.terms
        }
    }
}

/// The race.
pub struct Candidates<'a> {
    input: &'a Input<'a>,
    list: Vec<Candidate<'a>>,
    fleet: Fleet,
    name: Option<Name<'a>>,
    /// Nobody knows the name as an adapter: temperature says nothing.
    by_load: bool,
    refresh_models: bool,
}

impl<'a> Candidates<'a> {
    /// Nobody yet.
    pub fn new(input: &'a Input<'a>) -> Self {
        let id = |model| input.snapshot.and_then(|snapshot| snapshot.id(model));
        Self {
            input,
            list: Vec::with_capacity(input.pods.len()),
            fleet: input.drawn.map_or_else(
                || {
                    let initial = input.pool.routing.prefill_tokens_per_second;
                    Fleet::new(&input.facts, initial)
                },
                |drawn| drawn.field.fleet,
            ),
            name: input.ask.model.map(|model| Name::new(model, id(model))),
            by_load: false,
            refresh_models: false,
        }
    }

    /// Takes in the pods that discovery does not rule out. False: there is none.
    pub fn keep_ready(&mut self, subset: Option<&Subset>, why: &mut Why) -> bool {
        for pod in self.input.pods {
            let stage = Stage::of(pod);
            let excluded = match pod.row.readiness {
                Readiness::NotReady => Some(&mut why.excluded.not_ready),
                Readiness::Draining => Some(&mut why.excluded.draining),
                Readiness::Ready | Readiness::Unknown => {
                    if self.input.drawn.is_none() {
                        self.fleet.add(pod, stage);
                    }
                    let outside = subset.is_some_and(|subset| !subset.has(pod.row.address));
                    outside.then_some(&mut why.excluded.subset)
                }
            };
            match excluded {
                Some(count) => *count = count.saturating_add(1),
                None => self.list.push(Candidate {
                    pod,
                    stage,
                    can: Can::Yes,
                    tier: Tier::Base,
                    need: Need::default(),
                    terms: Terms::default(),
                    cost: 0.0,
                    surely: (Need::default(), 0.0),
                    is_home: false,
                    domain: None,
                }),
            }
        }
        !self.list.is_empty()
    }

    /// Keeps the pods with the labels that the config requires; where none is known to have them, those that say
    /// nothing of one. False: all say that they have others. Also notes failure domains.
    pub fn keep_labelled(&mut self, snapshot: &Snapshot, why: &mut Why) -> bool {
        let routing = &self.input.pool.routing;
        if let Some(name) = &routing.retry_apart {
            for one in &mut self.list {
                one.domain = labels::of_name(snapshot, one.pod.row, name);
            }
        }
        if routing.require.is_empty() {
            return true;
        }
        let required = Required::new(snapshot, &routing.require);
        let best = required.best(self.list.iter().map(|one| one.pod.row));
        if best == Met::No {
            return false;
        }
        if best == Met::Unknown {
            why.notes.push(Note::LabelsUnknown);
        }
        let before = self.list.len();
        self.list.retain(|one| required.met(one.pod.row) == best);
        why.excluded.labels += count(before - self.list.len());
        true
    }

    /// Keeps the pods that are below what the config allows each, unless none is.
    pub fn keep_below_caps(&mut self, why: &mut Why) {
        let caps = &self.input.pool.routing.caps;
        if *caps == Caps::default() {
            return;
        }
        let full = |one: &Candidate<'_>| at_cap(one.pod, caps);
        if self.list.iter().all(full) {
            why.notes.push(Note::AllAtCap);
            return;
        }
        let before = self.list.len();
        self.list.retain(|one| !full(one));
        why.excluded.at_cap = count(before - self.list.len());
    }

    /// Keeps the pods that have the model; where no pod is known to, those that may have it; where
    /// none may, all of them, unless it is certain that nobody has it. False: it is.
    pub fn keep_serving(&mut self, snapshot: &Snapshot, why: &mut Why) -> bool {
        let Some(name) = self.name else {
            return true;
        };
        let (pool, now) = (self.input.pool, self.input.now);
        let mut best = Can::AnyName;
        for one in &mut self.list {
            let Serving { can, tier } = serving::serving(pool, one.pod, one.stage, &name, &self.fleet, now);
            (one.can, one.tier) = (can, tier);
            best = best.max(can);
        }
        let least = match best {
            Can::Yes => Can::Likely,
            Can::Likely | Can::Maybe => Can::Maybe,
            Can::No if serving::naming(pool, snapshot, name.text(), now) == Naming::Absent => return false,
            Can::No | Can::AnyName => best,
        };
        let before = self.list.len();
        self.list.retain(|one| one.can >= least);
        why.excluded.model = count(before - self.list.len());
        if best == Can::AnyName {
            return true;
        }
        if best < Can::Yes {
            let seen = |one: &Candidate<'_>| matches!(one.tier, Tier::Active | Tier::Resident);
            self.by_load = !self.list.iter().any(seen);
            self.refresh_models = !serving::configured(pool, name.text());
        }
        if self.refresh_models {
            why.notes.push(if best == Can::No {
                Note::ModelUnlisted
            } else {
                Note::ModelUnconfirmed
            });
        }
        true
    }

    /// Keeps the pods that are awake. A sleeping engine shows no load and would win.
    pub fn keep_awake(&mut self, why: &mut Why) {
        let asleep = |one: &Candidate<'_>| one.stage.is_asleep(one.pod);
        if self.list.iter().all(asleep) {
            why.notes.push(Note::AllAsleep);
            return;
        }
        let before = self.list.len();
        self.list.retain(|one| !asleep(one));
        why.excluded.asleep += count(before - self.list.len());
    }

    /// Keeps the pods whose `max_model_len` the prompt can meet; if none, those with the longest.
    pub fn keep_long_enough(&mut self, why: &mut Why) {
        let least = self.input.ask.at_least();
        let limit = |one: &Candidate<'_>| longest(one.pod.row);
        if self.list.iter().all(|one| limit(one) >= least) {
            return;
        }
        let longest = self.list.iter().map(limit).max().unwrap_or_default();
        if longest < least {
            why.notes.push(Note::LongerThanAllowed);
        }
        let before = self.list.len();
        self.list.retain(|one| limit(one) >= least.min(longest));
        why.excluded.too_long = count(before - self.list.len());
    }

    /// Prices everybody who is left.
    pub fn price(&mut self, why: &mut Why) {
        let now = self.input.now;
        let is_avoided = |one: &&Candidate<'_>| one.pod.avoided_until.is_some_and(|until| until > now);
        let (avoided, of) = self.input.drawn.map_or_else(
            || (self.list.iter().filter(is_avoided).count(), self.list.len()),
            |part| part.field.avoided(now),
        );
        // When most of them fail, the fault is more likely on the way there (Envoy's panic rule).
        let avoid = avoided.saturating_mul(2) <= of;
        if !avoid {
            why.notes.push(Note::AvoidanceWaived);
        }
        let question = Question {
            fleet: &self.fleet,
            now,
            avoid,
            slow_start: self.input.pool.routing.slow_start,
        };
        let name = self.name.filter(|_| !self.by_load);
        let cold = self.list.iter().any(|one| one.tier >= Tier::Registered);
        let agreed = Agreed::new(self.input, &self.fleet, &self.list, name.filter(|_| cold));
        for one in &mut self.list {
            one.is_home = one.tier < Tier::Registered && agreed.is_home(one.pod.row);
            let cached = agreed.cached(one);
            one.need = self.input.ask.need(cached);
            one.terms = agreed.terms(self.input, one, name, &question);
            one.surely = (one.need, one.terms.prefill);
            let claimed = one.pod.at_an_engine(one.pod.claimed);
            if claimed > cached {
                one.need = self.input.ask.need(claimed);
                one.terms = agreed.terms(self.input, one, name, &question);
            }
            one.cost = one.terms.total();
        }
        self.even_out();
        why.candidates = count(self.list.len());
        why.rung = Some(match self.list.iter().map(|one| one.stage).min() {
            Some(Stage::Fresh) => Rung::Fresh,
            Some(Stage::Ageing) => Rung::Ageing,
            Some(Stage::Unknown) | None => Rung::OwnLoad,
        });
    }

    /// Leaves out the pods that others keep, and asks the rest for room. False: there is none, and the one that it keeps,
    /// or else the cheapest, is the first considered. Where no gauge can be believed, nobody can say that a pool is full, unless it is at its caps;
    /// but of some such pods nothing follows for the others.
    pub fn have_room(&mut self, admit: &Admit<'_>, why: &mut Why) -> bool {
        if admit.closed {
            return false;
        }
        self.list.retain(|one| !admit.reserved.contains(&one.pod.row.address));
        let full = why.notes.contains(&Note::AllAtCap);
        if why.rung == Some(Rung::OwnLoad) && !self.list.is_empty() && !full {
            return self.input.drawn.is_none();
        }
        let (mut requests, mut drain) = (0.0, f64::INFINITY);
        for one in self.list.iter().filter(|_| !full) {
            let (fleet, patience) = (&self.fleet, admit.patience);
            let room = cost::room(
                one.pod,
                one.stage,
                &one.surely.0,
                &one.sure_terms(),
                fleet,
                patience,
                self.input.now,
            );
            requests += room.requests;
            drain = room.drain.min(drain);
        }
        why.room = Some(requests as u32);
        if requests >= 1.0 {
            return true;
        }
        why.drain = drain.is_finite().then_some(Millis(drain as u64));
        let kept = |one: &&Candidate<'_>| Some(one.pod.row.address) == admit.keeps;
        let cheapest = || self.list.iter().min_by(|a, b| a.cost.total_cmp(&b.cost));
        let best = self.list.iter().find(kept).or_else(cheapest);
        why.considered = best.map(|one| considered(one, &self.fleet)).into_iter().collect();
        false
    }

    /// Brings queues nearer to their mean, as far as other proxies make them doubtful: only where it matters
    /// against what is cached.
    fn even_out(&mut self) {
        let width = QUEUES_ALIKE * self.input.facts.elsewhere;
        if width <= 0.0
            || self
                .list
                .iter()
                .all(|one| one.need.cached.0 == 0 && one.terms.away <= 0.0)
        {
            return;
        }
        let sum: f64 = self.list.iter().map(|one| one.terms.queue).sum();
        let mean = sum / self.list.len().max(1) as f64;
        for one in &mut self.list {
            let off = one.terms.queue - mean;
            one.terms.queue = mean + off.signum() * (off.abs() - width * mean).max(0.0);
            one.cost = one.terms.total();
        }
    }

    /// Picks, and says why.
    pub fn route(mut self, mut why: Why, rng: &mut Rng) -> Decision {
        let name = self.name.filter(|_| !self.by_load);
        let adapter = name.map(|name| name.key());
        let ranked = pick::ranked(&mut self.list, adapter, rng);
        let (chosen, rest) = self.list.split_at_mut_checked(ranked.count).unwrap_or_default();
        let Some(first) = chosen.first() else {
            return why.pass(Reason::DiscoveryStale);
        };
        let booking = self
            .input
            .ask
            .booking(first, name, self.input.pool.adapters.cold_load, &self.fleet);
        if ranked.probe {
            why.notes.push(Note::Probe);
        }
        if first.pod.session {
            why.notes.push(Note::Session);
        }
        why.predicted = Some(booking.predicted);
        if self.input.in_full {
            rest.sort_by(|a, b| a.cost.total_cmp(&b.cost));
        } else {
            self.list.truncate(ranked.count);
        }
        why.considered = self.list.iter().map(|one| considered(one, &self.fleet)).collect();
        let endpoints = self
            .list
            .iter()
            .take(ranked.count)
            .map(|one| one.pod.row.address)
            .collect();
        Decision {
            action: Action::Route { endpoints, booking },
            refresh_models: self.refresh_models,
            why,
        }
    }
}

impl super::Ask<'_> {
    fn booking(&self, pod: &Candidate<'_>, name: Option<Name<'_>>, cold_load: Millis, fleet: &Fleet) -> Booking {
        let need = pod.surely.0;
        let cold_load = name
            .filter(|_| pod.tier >= Tier::Registered)
            .map_or(0.0, |_| cold_load.0 as f64);
        Booking {
            work: need.uncached(),
            context: need.takes(),
            predicted: Millis(pod.sure_terms().first_token(cold_load) as u64),
            adapter: name.filter(|_| pod.tier != Tier::Base).map(|name| name.key()),
            misleads: pod.need != need || fleet.slowness(pod.pod) > 1.0,
        }
    }
}

fn considered(one: &Candidate<'_>, fleet: &Fleet) -> Considered {
    Considered {
        pod: one.pod.row.address,
        name: one.pod.row.name.clone(),
        tier: one.tier,
        stage: one.stage,
        cost: one.cost,
        terms: one.terms,
        cached: one.known_cached(),
        free: cost::free_tokens(one.pod, one.stage, fleet),
    }
}

/// The longest context that a pod allows.
pub(super) fn longest(row: &PodRow) -> Tokens {
    let page = row.models.as_ref();
    page.and_then(|page| page.max_model_len).unwrap_or(Tokens(u64::MAX))
}

fn count(pods: usize) -> u32 {
    u32::try_from(pods).unwrap_or(u32::MAX)
}
