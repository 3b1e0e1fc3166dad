//! One worker's view of a gateway: table copies, ledgers, requests in flight. The only thing that
//! the glue and `berth replay` talk to.
//!
//! ```text
//!  request facts -> which pool -> table copy, ledger copy -> decide -> book        decide
//!  first token, serving pod, end ------------------------> ledger                  on_*
//!  every tick ----------------------------------------> settle, heartbeat          tick
//!  prompt -> prefix index -> part cached -> decide -> noted there, taken back when it fails
//! ```
//!
//! Shared data comes in as an argument, so that nothing here holds a host. Deliberately not here:
//! reading bodies ([`crate::request`]), what becomes of a request that was routed (`view/routed.rs`), and what the
//! proxy is told of a decision ([`crate::header`]).

mod counts;
mod line;
mod look;
mod pool;
mod prefix;
mod routed;
mod seen;
mod session;
mod share;
mod sizes;
mod slow;
mod steering;

use std::collections::BTreeMap;
use std::rc::Rc;

use berth_shared_state::config::{Config, Host};
use berth_shared_state::limits::MODELS_LIST_MAX_AGE;
use berth_shared_state::snapshot::Snapshot;
use berth_shared_state::store::SharedData;
use berth_shared_state::units::{Millis, UnixMillis};
use fastrand::Rng;

use crate::admission::Class;
use crate::catalogue::{self, Catalogue};
use crate::decision::{self, Action, Admit, Ask, Decision, Naming, Note, Reason, Refusal, Why};
use crate::header;
use crate::ledger::Asked;
use crate::prefix::Blocks;
use crate::request::{Facts, ModelsQuestion};
use crate::rewrite::{self, Sender};
pub use counts::Counts;
use line::{Line, Way};
use look::Look;
use pool::PoolView;
pub use pool::TableError;
use routed::Routed;
pub use steering::Steering;

/// Stands for a model name longer than any name can be: no pod lists it, so it meets the same rules
/// as any other unknown name.
const TOO_LONG: &str = "(name longer than 256 bytes)";

/// A request to decide.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Unique among this worker's requests in flight: the stream's context id.
    pub id: u64,
    /// What its body says.
    pub facts: &'a Facts,
    /// Its prompt in hashes.
    pub prompt: &'a Blocks,
    /// What trusted headers say.
    pub steering: &'a Steering,
    /// Bytes of its body, where the host can keep it and let it go later.
    pub body: Option<usize>,
    /// Give reasons for every candidate, not only for the endpoints.
    pub in_full: bool,
}

impl Request<'_> {
    /// Bytes of this VM's memory that it takes while it waits, with this of its steering.
    fn memory(&self, steering: &Steering) -> usize {
        let facts = [&self.facts.model, &self.facts.cache_salt, &self.facts.user];
        let texts: usize = facts.into_iter().flatten().map(String::len).sum();
        size_of::<Facts>() + texts + size_of::<Blocks>() + self.prompt.bytes() + steering.memory()
    }
}

/// One worker's view of a gateway config.
#[derive(Debug)]
pub struct View {
    config: Rc<Config>,
    pools: Vec<PoolView>,
    /// Who waits for each pool; nothing where nobody can.
    lines: Vec<Line>,
    /// Those who gave way to others, until they are told.
    leaving: Vec<(u64, Decision)>,
    rng: Rng,
    routed: BTreeMap<u64, Routed>,
    counts: Counts,
    catalogue: Catalogue,
    listed_at: Option<UnixMillis>,
}

impl View {
    /// A view that has read nothing yet. `nonce` is random and tells this worker apart in the
    /// ledger; `seed` is for choices among near-equals.
    #[must_use]
    pub fn new(config: Rc<Config>, nonce: u64, seed: u64) -> Self {
        let admission = &config.admission;
        let lines = if admission.is_on() { config.pools.len() } else { 0 };
        Self {
            lines: (0..lines).map(|_| Line::new(admission)).collect(),
            leaving: Vec::new(),
            pools: config
                .pools
                .iter()
                .map(|pool| PoolView::new(pool, config.pools.len(), nonce, config.host != Host::Apisix))
                .collect(),
            config,
            rng: Rng::with_seed(seed),
            routed: BTreeMap::new(),
            counts: Counts::default(),
            catalogue: Catalogue::default(),
            listed_at: None,
        }
    }

    /// What happened to shared data.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// Why the table of a pool (by its place in the config) is not current; `None` = it is.
    #[must_use]
    pub fn table_error(&self, pool: usize) -> Option<TableError> {
        self.pools.get(pool)?.error
    }

    /// Age of the table that decisions on a pool are made on; `None` = there is none.
    #[must_use]
    pub fn table_age(&self, pool: &str, now: UnixMillis) -> Option<Millis> {
        let index = self.config.pools.iter().position(|known| known.name == pool)?;
        Some(now.since(self.pools.get(index)?.snapshot()?.table().written_at))
    }

    /// Whether nothing tells which pool a request is for: its body was cut before the model. Such
    /// a request is passed, since every pool would be a guess.
    #[must_use]
    pub fn lacks_model(&self, facts: &Facts, steering: &Steering) -> bool {
        is_model_unread(facts, steering) && steering.pool.is_none() && self.config.pools.len() > 1
    }

    /// Decides, and books the request where it is routed. One that is to wait is in the queue then, and comes out of
    /// [`Self::release`] or [`Self::release_pool`] once.
    pub fn decide(&mut self, store: &dyn SharedData, request: &Request<'_>, now: UnixMillis) -> Decision {
        let config = Rc::clone(&self.config);
        let target = rewritten(&config, request, &mut self.rng);
        let model = target.or(model_of(request));
        let index = match request.steering.pool {
            Some(pool) => pool,
            None => self.choose_pool(store, model, now),
        };
        let way = Way { index, target };
        match Class::of(&config.admission, request.steering) {
            None => self.decide_at(store, request, way, None, now),
            Some(class) => self.admit(store, request, way, class, now),
        }
    }

    /// Decides where a request of a pool goes, and books it. `admit`: only where there is room.
    fn decide_at(
        &mut self,
        store: &dyn SharedData,
        request: &Request<'_>,
        Way { index, target }: Way<'_>,
        admit: Option<Admit<'_>>,
        now: UnixMillis,
    ) -> Decision {
        let config = Rc::clone(&self.config);
        let asked = model_of(request);
        let model = target.or(asked);
        self.refresh_table(store, index, now);
        let (Some(pool), Some(view)) = (config.pools.get(index), self.pools.get_mut(index)) else {
            return nobody_decides();
        };
        self.counts.ledger(view.ledger.refresh(store, now));
        let chains = view.chains(pool, request, model);
        let start = chains.as_ref().and_then(|chains| view.beginning(chains));
        let mut ask = Ask {
            model,
            start,
            ..Ask::new(request.facts, view.bytes_per_token(), view.expected_output(pool))
        };
        let session = view.session(pool, request, &ask);
        ask.start = session.start().or(start);
        view.look_over(pool, now);
        let found = view.look_up(store, chains.as_ref());
        let joined = view.join(store, &session, now);
        let subset = request.steering.subset.as_deref();
        // Who asks for all pods, or for some by name, gets them; and where room is counted, it is all pods'.
        let drawn = if subset.is_some() || request.in_full || admit.is_some_and(|admit| admit.counts) {
            None
        } else {
            view.draw(pool, &ask, &joined.held(&found), &mut self.rng, now)
        };
        let look = Look {
            pool,
            view,
            found: &found,
            chains: chains.as_ref(),
            joined: &joined,
            ask,
            subset,
            admit,
            now,
            in_full: request.in_full,
        };
        let (mut decision, pods) = look.decide(drawn.as_ref(), &mut self.rng);
        tell(&mut decision.why, request, target);
        decision.why.base = catalogue::base_of(pool, view.snapshot(), model).map(str::to_owned);
        if let Action::Route { endpoints, booking } = &decision.action {
            let written =
                [found, joined.found].map(|found| view.write(store, found, endpoints.first(), booking.context, &pods));
            written.iter().for_each(|written| self.counts.prefix(written));
            let routed = Routed {
                pool: index,
                endpoints: endpoints.clone(),
                takes: booking.context,
                written,
                context: view.sealer.as_ref().map(|_| ask.prompt + ask.output),
                secure: request.steering.secure,
                asked: Asked::of(request.facts),
                stream: None,
                token_at: None,
            };
            self.book(store, request, routed, *booking, now);
        }
        if let Action::Reply(refusal) = &mut decision.action {
            self.told(store, refusal, decision.why.asked.as_deref(), now);
        }
        decision
    }

    /// Status and body of the answer to a question for models; `None` = the pods shall answer, or nothing is known.
    pub fn models(
        &mut self,
        store: &dyn SharedData,
        question: &ModelsQuestion,
        now: UnixMillis,
    ) -> Option<(u16, String)> {
        if !self.config.models.list {
            return None;
        }
        let catalogue = self.catalogue(store, now);
        if catalogue.is_empty() {
            return None;
        }
        let Some(name) = &question.name else {
            return Some((200, catalogue.list(question.anthropic)));
        };
        let one = catalogue.one(name, question.anthropic);
        let unknown = || (404, header::unlisted(name, question.anthropic));
        Some(one.map_or_else(unknown, |body| (200, body)))
    }

    /// The models of all pools, from tables that may be [`MODELS_LIST_MAX_AGE`] old.
    fn catalogue(&mut self, store: &dyn SharedData, now: UnixMillis) -> &Catalogue {
        let fresh = |at: UnixMillis| at <= now && now.since(at) < MODELS_LIST_MAX_AGE;
        if !self.listed_at.is_some_and(fresh) {
            for index in 0..self.pools.len() {
                self.refresh_table(store, index, now);
            }
            let views = self.pools.iter().map(PoolView::snapshot);
            self.catalogue = Catalogue::new(&self.config, self.config.pools.iter().zip(views));
            self.listed_at = Some(now);
        }
        &self.catalogue
    }

    /// A refusal in the client's own words, with the nearest name where that may be told.
    fn told(&mut self, store: &dyn SharedData, refusal: &mut Refusal, asked: Option<&str>, now: UnixMillis) {
        if let Some(asked) = asked {
            refusal.model = Some(asked.to_owned());
        }
        if refusal.reason == Reason::ModelUnknown && self.config.models.near_names {
            let model = refusal.model.as_deref().unwrap_or_default();
            refusal.near = self.catalogue(store, now).nearest(model).map(str::to_owned);
        }
    }

    /// To be called on every tick. An idle worker touches no shared data.
    pub fn tick(&mut self, store: &dyn SharedData, now: UnixMillis) {
        self.lines.iter_mut().for_each(Line::tick);
        for index in 0..self.pools.len() {
            if self.routed.values().any(|routed| routed.pool == index) {
                self.refresh_table(store, index, now);
            }
            if let Some(view) = self.pools.get_mut(index) {
                self.counts.ledger(view.ledger.tick(store, now));
            }
        }
    }

    /// The first pool that has the model, else the first that may have it: a 404 needs the consent
    /// of all. Without a model the first pool's base is meant.
    fn choose_pool(&mut self, store: &dyn SharedData, model: Option<&str>, now: UnixMillis) -> usize {
        let config = Rc::clone(&self.config);
        let Some(model) = model.filter(|_| config.pools.len() > 1) else {
            return 0;
        };
        let no_table = Snapshot::default();
        let mut may = None;
        for (index, pool) in config.pools.iter().enumerate() {
            self.refresh_table(store, index, now);
            let snapshot = self.pools.get(index).and_then(PoolView::snapshot);
            match decision::naming(pool, snapshot.unwrap_or(&no_table), model, now) {
                Naming::Named => return index,
                Naming::Unknown => may = may.or(Some(index)),
                Naming::Absent => {}
            }
        }
        may.unwrap_or(0)
    }

    fn refresh_table(&mut self, store: &dyn SharedData, index: usize, now: UnixMillis) {
        if let Some(view) = self.pools.get_mut(index) {
            let decoded = view.refresh(store, now);
            self.counts.tables_decoded += u64::from(decoded == Ok(true));
            self.counts.tables_unreadable += u64::from(decoded.is_err());
        }
    }
}

/// What the client's own words were: another name than the `target` that took its place, or none that was read.
fn tell(why: &mut Why, request: &Request<'_>, target: Option<&str>) {
    why.asked = model_of(request).filter(|_| target.is_some()).map(str::to_owned);
    if is_model_unread(request.facts, request.steering) {
        why.notes.push(Note::ModelUnread);
    }
}

/// A body was cut before its model, and nothing else tells it.
const fn is_model_unread(facts: &Facts, steering: &Steering) -> bool {
    let unread = !facts.complete && !facts.malformed && facts.model.is_none() && !facts.model_too_long;
    unread && steering.model.is_none()
}

/// The model asked for: the body's word where it was read, else a trusted header's.
fn model_of<'a>(request: &Request<'a>) -> Option<&'a str> {
    let facts = request.facts;
    let too_long = facts.model_too_long.then_some(TOO_LONG);
    facts
        .model
        .as_deref()
        .or(too_long)
        .or(request.steering.model.as_deref())
}

/// What stands behind the name in the body. What cannot be replaced there is not rewritten.
fn rewritten<'c>(config: &'c Config, request: &Request<'_>, rng: &mut Rng) -> Option<&'c str> {
    let facts = request.facts;
    let name = facts
        .model_at
        .and(facts.model.as_deref())
        .filter(|_| !config.rewrites.is_empty())?;
    let sender = Sender {
        session: request.steering.session.as_deref(),
        user: facts.user.as_deref(),
    };
    rewrite::target(&config.rewrites, name, sender, rng)
}

/// A config has at least one pool, so this is never seen.
fn nobody_decides() -> Decision {
    Decision {
        action: Action::Pass(Reason::NoTable),
        refresh_models: false,
        why: Why::default(),
    }
}

#[cfg(test)]
mod tests;
