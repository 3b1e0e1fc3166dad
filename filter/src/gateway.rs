//! A configured root: the worker's view of the gateway, and its stats.

use std::rc::Rc;

use berth_filter_routing::decision::{Action, Decision};
use berth_filter_routing::hold::Hold;
use berth_filter_routing::ledger::{Outcome, Synced};
use berth_filter_routing::request::Facts;
use berth_filter_routing::view::View;
use berth_shared_state::config::Config;
use berth_shared_state::limits::TICK;
use berth_shared_state::names;
use berth_shared_state::pod::PodAddress;
use berth_shared_state::store::SharedData;
use berth_shared_state_glue::host::{self, HostStore};
use berth_shared_state_glue::poller::{parse, seed};
use berth_shared_state_glue::stats::Stats;
use berth_shared_state_glue::vm::Resume;
use hashbrown::HashMap;

use crate::stream::Stream;

/// One root context of the filter.
pub struct Gateway {
    config: Rc<Config>,
    view: View,
    stats: Stats,
    /// Whether the host delivers bodies while headers are held.
    pub hold: Hold,
}

impl Gateway {
    /// Reads the document; `None` (and a log line for each mistake) when it is not valid.
    pub fn configure(document: &[u8]) -> Option<Self> {
        let config = Rc::new(parse(document)?);
        if let Err(error) = host::set_tick(TICK) {
            log::warn!("this host has no timers ({error}): a worker that dies is forgotten later");
        }
        let view = View::new(Rc::clone(&config), seed(), seed());
        Some(Self { config, view, stats: Stats::default(), hold: Hold::default() })
    }

    /// Bytes of a body that may be held.
    pub fn hold_bytes(&self) -> usize {
        self.config.body.hold_bytes
    }

    /// May clients see why?
    pub fn shows_decisions(&self) -> bool {
        self.config.status.decision_header
    }

    /// Steering inputs that the config trusts.
    pub fn steering(&self, headers: &[(Vec<u8>, Vec<u8>)]) -> Vec<(&'static str, String)> {
        let trusted = |name: &&&str| self.config.trust.headers.iter().any(|trusted| trusted == **name);
        let value = |name: &'static str| {
            let (_, value) = headers.iter().find(|(key, _)| key == name.as_bytes())?;
            Some((name, String::from_utf8(value.clone()).ok()?))
        };
        names::STRIPPED.iter().filter(trusted).filter_map(|name| value(name)).collect()
    }

    /// Decides one request and books it.
    pub fn decide(&mut self, id: u32, facts: &Facts, steering: &[(&'static str, String)]) -> Decision {
        let began = host::now_nanos();
        let decision = self.view.decide(&HostStore, id, facts, steering, host::now());
        if decision.refresh_models {
            let asked = host::now().0.to_le_bytes();
            let _ = HostStore.set(&names::refresh_key(&decision.why.pool), &asked, None);
        }
        let stat = match &decision.action {
            Action::Route { .. } => "routed".to_owned(),
            Action::Reply(refusal) => ["replied.", refusal.reason.as_str()].concat(),
            Action::Pass(reason) => ["passed.", reason.as_str()].concat(),
        };
        self.stats.count(&names::pool_stat(&decision.why.pool, &stat), 1);
        self.stats.observe("berth.decision_us", host::now_nanos().saturating_sub(began) / 1000);
        decision
    }

    /// A request that is none of Berth's business, or that it cannot hold.
    pub fn passed(&mut self, reason: &'static str) {
        self.stats.count(&["berth.passed.", reason].concat(), 1);
    }

    /// The pod that really serves, after the proxy's retries.
    pub fn served(&mut self, id: u32, pod: Option<PodAddress>, attempts: u32) {
        let synced = self.view.on_upstream(&HostStore, id, pod, attempts, host::now());
        self.synced(synced);
    }

    /// The first bytes of the answer.
    pub fn first_bytes(&mut self, id: u32, status: u16, streams: bool) {
        let synced = self.view.on_first_byte(&HostStore, id, status, streams, host::now());
        self.synced(synced);
    }

    /// The request is over.
    pub fn ended(&mut self, id: u32, outcome: Outcome) {
        let synced = self.view.on_end(&HostStore, id, outcome, host::now());
        self.synced(synced);
    }

    fn synced(&mut self, synced: Synced) {
        match synced {
            Synced::Ok => {}
            Synced::LostRace => self.stats.count("berth.ledger.lost_races", 1),
            Synced::Failed(_) => self.stats.count("berth.ledger.store_errors", 1),
        }
    }

    /// The root's timer.
    pub fn tick(&mut self) {
        let now = host::now();
        self.view.tick(&HostStore, now);
        for (pool, age) in self.view.table_ages(now) {
            self.stats.gauge(&names::pool_stat(pool, "table_age_ms"), age.0);
        }
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
            self.passed("no-body-hold");
            if let Some(stream) = streams.get_mut(stream) {
                stream.let_go();
            }
        }
        overdue.into_iter().map(Resume).collect()
    }
}
