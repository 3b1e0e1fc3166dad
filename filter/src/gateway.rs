//! A configured root: the worker's view of the gateway, and its stats.

use std::rc::Rc;

use berth_filter_routing::admission;
use berth_filter_routing::decision::{Action, Decision, Note};
use berth_filter_routing::hold::Hold;
use berth_filter_routing::ledger::Outcome;
use berth_filter_routing::prefix::{Blocks, Hasher};
use berth_filter_routing::request::{Api, Facts, ModelsQuestion};
use berth_filter_routing::view::{Counts, Request, Steering, View};
use berth_shared_state::config::{Affinity, BodyMode, Config, Host, Pool};
use berth_shared_state::dialect::Dialect;
use berth_shared_state::limits::{AFFINITY_KEY_MIN_BYTES, TICK};
use berth_shared_state::names::{self, Keys};
use berth_shared_state::pod::PodAddress;
use berth_shared_state::reports::{self, Outbox};
use berth_shared_state::store::{self, MemoryStore, SharedData};
use berth_shared_state::units::UnixMillis;
use berth_shared_state::unpolled::Unpolled;
use berth_shared_state_glue::host::{self, HostStore};
use berth_shared_state_glue::poller::{Part, PollerRoot, parse, seed};
use berth_shared_state_glue::stats::Stats;
use berth_shared_state_glue::vm::Resume;
use hashbrown::HashMap;

use crate::known::{BODY_UNREADABLE, MODELS_ANSWERED, NO_BODY_HOLD, OBJECTIVES_UNKNOWN, known};
use crate::stream::Stream;

mod waiting;

/// One root context of the filter.
pub struct Gateway {
    config: Rc<Config>,
    /// How the proxy is spoken to.
    pub dialect: Dialect,
    /// What all workers share; where they share nothing, this worker's own.
    store: Box<dyn SharedData>,
    /// Tables of the pools, where nobody polls.
    unpolled: Vec<Unpolled>,
    /// Last tick of the view where requests bring it about.
    ticked: UnixMillis,
    told_unreadable: bool,
    told_no_variable: bool,
    view: View,
    stats: Stats,
    /// What was already added to the stats.
    counted: Counts,
    /// The stats may say that something waits.
    showed_waiting: bool,
    /// Load reports of each pool's pods, on their way to the poller.
    outboxes: Vec<Outbox>,
    /// Key of each pool by which its poller is asked for the models pages.
    refresh: Vec<String>,
    /// Polls where no companion service does.
    pub poller: PollerRoot,
    /// Whether the host delivers bodies while headers are held.
    pub hold: Hold,
}

impl Gateway {
    /// Reads the document; `None` (and a log line for each mistake) when it is not valid.
    pub fn configure(document: &[u8]) -> Option<Self> {
        let mut config = parse(document)?;
        let dialect = Dialect::of(config.host, host::probe);
        if config.host == Host::Auto && !dialect.is_envoy() {
            config.settle(dialect.host());
            log::warn!(
                "this proxy speaks like the host {:?}: name it in the config, and let `berth validate` say what it cannot do",
                config.host
            );
        }
        let config = Rc::new(config);
        if dialect.shares()
            && let Err(error) = host::set_tick(TICK)
        {
            log::warn!(
                "this host has no timers ({error}): pods cannot be polled, and a worker that dies is forgotten later"
            );
        }
        let store: Box<dyn SharedData> = if dialect.shares() {
            Box::new(HostStore)
        } else {
            Box::new(MemoryStore::default())
        };
        let unpolled = config.pools.iter().filter(|_| !dialect.shares());
        let unpolled = unpolled.map(|pool| Unpolled::new(pool, config.epoch)).collect();
        let mut view = View::new(Rc::clone(&config), seed(), seed());
        seal(&config, &mut view);
        let keys = config.pools.iter().map(Keys::of);
        let (outboxes, refresh) = keys.map(|keys| (Outbox::new(keys.reports), keys.refresh)).unzip();
        Some(Self {
            stats: known(&config),
            // One before may have said so, and died.
            showed_waiting: config.admission.queue.is_some(),
            outboxes,
            refresh,
            poller: PollerRoot::new(Rc::clone(&config), Part::Filter, dialect),
            config,
            dialect,
            store,
            unpolled,
            ticked: UnixMillis(0),
            told_unreadable: false,
            told_no_variable: false,
            view,
            counted: Counts::default(),
            hold: Hold::default(),
        })
    }

    /// Bytes of a body that may be held.
    pub fn hold_bytes(&self) -> usize {
        self.config.body.hold_bytes
    }

    /// Whether a later filter holds the headers, and takes the choice from filter state.
    pub fn hands_over(&self) -> bool {
        self.config.body.mode == BodyMode::HandOver
    }

    /// Takes a prompt while its body is read.
    pub fn hasher(&self, api: Api) -> Hasher {
        if api.generates() && self.config.pools.iter().any(|pool| pool.routing.prefix.enabled) {
            Hasher::default()
        } else {
            Hasher::off()
        }
    }

    /// May clients see why?
    pub fn shows_decisions(&self) -> bool {
        self.config.status.decision_header
    }

    /// Steering inputs from the sources that the config trusts.
    pub fn steering(&self, headers: &[(&str, &[u8])]) -> Steering {
        let trust = &self.config.trust;
        let told = trust.filters.iter().filter_map(|told| {
            let path: Vec<&str> = told.path.iter().map(String::as_str).collect();
            Some((told.input.as_str(), host::property(&path).ok()?))
        });
        let mut steering = Steering {
            pool: self.pool_by_route(),
            ..Steering::from_headers(trust, headers.iter().copied()).told(told)
        };
        let by_cookie = |pool: &Pool| matches!(pool.routing.affinity, Affinity::Cookie { .. });
        if self.config.pools.iter().any(by_cookie) {
            steering.take_cookies(headers.iter().copied());
        }
        steering
    }

    /// The cookie by which the client's session finds this pod again.
    pub fn cookie(&self, id: u32, pod: PodAddress) -> Option<String> {
        self.view.cookie(id.into(), pod, host::now())
    }

    /// The pool to which the proxy's own route leads, by its name.
    fn pool_by_route(&self) -> Option<usize> {
        if !self.dialect.is_envoy() || self.config.pools.iter().all(|pool| pool.routes.is_empty()) {
            return None;
        }
        let route = host::property(&["xds", "route_name"]).ok()?;
        let leads = |pool: &Pool| pool.routes.iter().any(|name| name.as_bytes() == route);
        self.config.pools.iter().position(leads)
    }

    /// Whether the proxy's routes lead by the pool.
    pub fn has_pools(&self) -> bool {
        self.config.pools.len() > 1
    }

    /// Status and body of the answer to a question for models; `None` = it passes.
    pub fn models(&mut self, question: &ModelsQuestion) -> Option<(u16, String)> {
        let answer = self.view.models(&*self.store, question, host::now())?;
        self.stats.count(MODELS_ANSWERED, 1);
        Some(answer)
    }

    /// Decides one request and books it. `body`: its bytes, where all of it is held here. `None`: nothing tells which
    /// pool it is for.
    pub fn decide(
        &mut self,
        id: u32,
        facts: &Facts,
        prompt: &Blocks,
        steering: &Steering,
        body: Option<usize>,
    ) -> Option<Decision> {
        self.catch_up();
        if self.view.lacks_model(facts, steering) {
            return None;
        }
        let began = host::now_nanos();
        let request = Request {
            id: id.into(),
            facts,
            prompt,
            steering,
            body: body.filter(|_| !self.hands_over()),
            in_full: false,
        };
        let now = host::now();
        let decision = self.view.decide(&*self.store, &request, now);
        if decision.why.notes.contains(&Note::ModelUnread) {
            self.stats
                .count(&names::pool_stat(&decision.why.pool, names::MODEL_UNREAD), 1);
        }
        if let Some(age) = self.view.table_age(&decision.why.pool, now) {
            self.stats
                .observe(&names::pool_stat(&decision.why.pool, "table_age_ms"), age.0);
        }
        if decision.refresh_models {
            self.ask_for_models(&decision.why.pool);
        }
        self.count(&decision);
        self.stats
            .observe("berth.decision_us", host::now_nanos().saturating_sub(began) / 1000);
        Some(decision)
    }

    fn count(&mut self, decision: &Decision) {
        let pool = &decision.why.pool;
        let stat = match &decision.action {
            Action::Route { .. } => names::pool_stat(pool, "routed"),
            Action::Reply(refusal) => {
                if let (429, Some(priority)) = (refusal.status, decision.why.priority) {
                    self.stats.count(&admission::stat(pool, priority, "refused"), 1);
                }
                names::pool_stat(pool, &["replied.", refusal.reason.as_str()].concat())
            }
            Action::Pass(reason) => names::pool_stat(pool, &["passed.", reason.as_str()].concat()),
            Action::Hold => admission::stat(pool, decision.why.priority.unwrap_or_default(), "held"),
        };
        self.stats.count(&stat, 1);
        if let Some(waited) = decision.why.waited {
            self.stats.observe(&names::pool_stat(pool, "waited_ms"), waited.0);
        }
    }

    /// A model that no pod lists was asked for: the poller shall look.
    fn ask_for_models(&self, pool: &str) {
        let index = self.config.pools.iter().position(|known| known.name == pool);
        if let Some(key) = index.and_then(|index| self.refresh.get(index)) {
            let asked = host::now().0.to_le_bytes();
            let _ = store::put(&*self.store, key, &asked);
        }
    }

    /// Without timers requests bring about what ticks would.
    fn catch_up(&mut self) {
        if self.dialect.shares() {
            return;
        }
        let now = host::now();
        for unpolled in &mut self.unpolled {
            // Memory takes any write.
            let _ = unpolled.publish(&*self.store, now);
        }
        if now.since(self.ticked) >= TICK {
            self.ticked = now;
            self.view.tick(&*self.store, now);
        }
    }

    /// Notes for the proxy's own log why a request goes where it goes.
    pub fn note(&self, why: &str) {
        let _ = match self.dialect {
            Dialect::Envoy => host::set_state(names::STATE_DECISION, why.as_bytes()),
            Dialect::WasmX => host::set_variable(self.dialect, names::VARIABLE_DECISION, why.as_bytes()),
            Dialect::Apisix => Ok(()),
        };
    }

    /// Tells nginx whom to dial. Kong takes the header.
    pub fn dial(&mut self, pod: PodAddress) {
        if self.dialect != Dialect::WasmX || self.hops() {
            return;
        }
        let told = host::set_variable(self.dialect, names::VARIABLE_TARGET, pod.to_string().as_bytes());
        if told.is_err() && !core::mem::replace(&mut self.told_no_variable, true) {
            log::error!(
                "there is no variable ${0} to write the chosen pod to: put `set ${0} \"\";` in the location, and proxy_pass to it",
                names::VARIABLE_TARGET
            );
        }
    }

    /// Whether the proxy goes on to itself before it dials the pod, so that it knows of no pod here. It dials the first.
    pub fn hops(&self) -> bool {
        self.config.host == Host::Kong
    }

    /// A body was announced that the host does not show.
    pub fn body_unreadable(&mut self, size: usize) {
        self.stats.count(BODY_UNREADABLE, 1);
        if !core::mem::replace(&mut self.told_unreadable, true) {
            log::error!(
                "a body of {size} bytes cannot be read, so its request is routed by load alone: it is longer than \
                 client_body_buffer_size (Kong: nginx_http_client_body_buffer_size), and nginx put it into a file"
            );
        }
    }

    /// A request that is none of Berth's business, or that it cannot hold.
    pub fn passed(&mut self, reason: &'static str) {
        self.stats.count(&["berth.passed.", reason].concat(), 1);
    }

    /// The pod that really serves, after the proxy's retries. Nearly always the one picked, and then
    /// `attempts` is not asked.
    pub fn served(&mut self, id: u32, pod: PodAddress, attempts: impl FnOnce() -> Option<u32>) {
        if !self.view.is_at(id.into(), pod) {
            let attempts = attempts();
            if attempts == Some(1) && !self.view.is_first(id.into(), pod) {
                self.count_elsewhere(id);
            }
            self.view
                .on_upstream(&*self.store, id.into(), pod, attempts, host::now());
        }
    }

    /// Whether this is a pod of the pool that the request was routed to.
    pub fn knows(&self, id: u32, pod: PodAddress) -> bool {
        self.view.knows(id.into(), pod)
    }

    fn count_elsewhere(&mut self, id: u32) {
        let stat = self.pool(id).map(|pool| names::pool_stat(&pool.name, names::ELSEWHERE));
        if let Some(stat) = stat {
            self.stats.count(&stat, 1);
        }
    }

    /// Whether pods are asked to report their load in the answer to this request.
    pub fn wants_report(&self, id: u32) -> bool {
        self.pool(id).is_some_and(|pool| pool.scrape.in_band)
    }

    /// The pool that a request in flight was routed to.
    fn pool(&self, id: u32) -> Option<&Pool> {
        self.config.pools.get(self.pool_of(id)?)
    }

    /// Its place in the config.
    pub fn pool_of(&self, id: u32) -> Option<usize> {
        self.view.pool_of(id.into())
    }

    /// A pod reported its load.
    pub fn reported(&mut self, id: u32, pod: PodAddress, value: &[u8]) {
        let (Some(index), Some(report)) = (self.view.pool_of(id.into()), reports::read(value, host::now())) else {
            return;
        };
        match (self.unpolled.get_mut(index), self.outboxes.get_mut(index)) {
            (Some(unpolled), _) => unpolled.add(pod, report),
            (None, Some(outbox)) => outbox.add(pod, report),
            (None, None) => {}
        }
    }

    /// The first bytes of the answer.
    pub fn first_bytes(&mut self, id: u32, status: u16, streams: bool) {
        self.view
            .on_first_byte(&*self.store, id.into(), status, streams, host::now());
    }

    /// Something more of an event stream.
    pub fn token(&mut self, id: u32) {
        self.view.on_token(&*self.store, id.into(), host::now());
    }

    /// The request is over.
    pub fn ended(&mut self, id: u32, outcome: Outcome) {
        self.view.on_end(&*self.store, id.into(), outcome, host::now());
    }

    /// The root's timer.
    pub fn tick(&mut self) {
        for outbox in &mut self.outboxes {
            outbox.tick(&*self.store, host::now());
        }
        self.poller.tick();
        self.view.tick(&*self.store, host::now());
        let (before, now) = (self.counted, self.view.counts());
        let counted = [
            (
                "berth.tables_unreadable",
                now.tables_unreadable,
                before.tables_unreadable,
            ),
            ("berth.ledger.writes", now.ledger_writes, before.ledger_writes),
            (
                "berth.ledger.lost_races",
                now.ledger_lost_races,
                before.ledger_lost_races,
            ),
            ("berth.ledger.refusals", now.ledger_refusals, before.ledger_refusals),
            (OBJECTIVES_UNKNOWN, now.objectives_unknown, before.objectives_unknown),
            ("berth.prefix.writes", now.prefix_writes, before.prefix_writes),
            ("berth.prefix.lost", now.prefix_lost, before.prefix_lost),
        ];
        for (stat, now, before) in counted {
            self.stats.count(stat, now.saturating_sub(before));
        }
        self.counted = now;
        self.show_waiting();
    }

    /// The flag is set after all.
    pub fn body_hold_proven(&mut self) {
        self.stats.gauge("berth.no_body_hold", 0);
    }

    /// Lets go what will never get its body.
    pub fn release_unheld(&mut self, streams: &mut HashMap<u32, Stream>) -> Vec<Resume> {
        let overdue = self.hold.overdue(host::now());
        if overdue.is_empty() {
            return Vec::new();
        }
        log::error!(
            "request bodies do not arrive while headers are held, so requests pass unrouted: set \
             allow_on_headers_stop_iteration: true in the plugin's config (Envoy 1.35 or newer)"
        );
        self.stats.gauge("berth.no_body_hold", 1);
        for stream in &overdue {
            self.passed(NO_BODY_HOLD);
            if let Some(stream) = streams.get_mut(stream) {
                stream.let_go();
            }
        }
        overdue.into_iter().map(Resume).collect()
    }
}

/// Gives the view the secrets that seal cookies. A pool without one has no affinity, rather than one that can be forged.
#[allow(
    clippy::disallowed_methods,
    reason = "the VM's environment is where secrets come from"
)]
fn seal(config: &Config, view: &mut View) {
    for (index, pool) in config.pools.iter().enumerate() {
        let Affinity::Cookie { key, .. } = &pool.routing.affinity else {
            continue;
        };
        let secret = std::env::var(key).unwrap_or_default();
        if !view.seal(index, secret.as_bytes()) {
            log::warn!(
                "pool {}: the variable {key} holds no secret of {AFFINITY_KEY_MIN_BYTES} bytes: no cookies are set \
                 or believed; does the plugin's configuration pass it to the VM?",
                pool.name
            );
        }
    }
}
