//! Berth itself: the shipped crates with the shipped defaults, wired as the glue of the filter wires them.
//!
//! ```text
//! pod -> page text, reports in answers -> Poller -> sealed table -> MemoryStore -> View (one per worker) -> endpoints
//! job -> body -> BodyReader -> facts ------------------------^   first byte, end ---> ledger
//! ```
//!
//! One store and one poller a proxy, on the glue's tick. The only setting is the scrape interval, where a scenario asks
//! for another than the default. Nothing here knows more than a proxy does.

use crate::fleet::{BASE_MODEL, Door, EPOCH_SECONDS, Fleet};
use crate::page;
use crate::scenario::Scenario;
use crate::world::{Admitted, Asked, Router};
use berth_filter_routing::decision::{Action, Decision};
use berth_filter_routing::ledger::Outcome;
use berth_filter_routing::prefix::Hasher;
use berth_filter_routing::request::{Api, BodyReader};
use berth_filter_routing::view::{self, Steering, View};
use berth_shared_state::config::Config;
use berth_shared_state::discovery::Found;
use berth_shared_state::limits::TICK;
use berth_shared_state::names::{FAIRNESS_ID, Keys, OBJECTIVE};
use berth_shared_state::pod::PodAddress;
use berth_shared_state::poll::{Call, Effect, Event, Poller, Response, Target};
use berth_shared_state::reports::{self, Inbox, Outbox};
use berth_shared_state::store::{MemoryStore, SharedData};
use berth_shared_state::table::ScrapeError;
use berth_shared_state::units::UnixMillis;
use berth_tests_simulator::engine::Micros;
use berth_tests_simulator::random::{Rng, mix2};
use std::collections::HashMap;
use std::rc::Rc;

/// One proxy with Berth in it.
pub struct Berth {
    config: Rc<Config>,
    store: MemoryStore,
    poller: Poller,
    views: Vec<View>,
    /// Of each worker: what pods reported to it.
    outboxes: Vec<Outbox>,
    inbox: Inbox,
    addresses: Vec<PodAddress>,
    numbers: HashMap<PodAddress, usize>,
    /// Version of the discovery that the poller knows.
    discovery: Option<u64>,
    bytes_per_token: f64,
    /// Pods that refused a request, until its answer tells the filter who served it.
    refused: HashMap<usize, usize>,
    rng: Rng,
}

fn unix(now: Micros) -> UnixMillis {
    UnixMillis(EPOCH_SECONDS * 1000 + now / 1000)
}

/// Address of a pod.
#[must_use]
pub fn address(pod: usize) -> PodAddress {
    let text = format!("10.0.{}.{}:8000", pod / 250, pod % 250 + 1);
    text.parse().expect("an address")
}

impl Berth {
    /// Before the first tick.
    ///
    /// # Panics
    /// When the config made here is not a valid one.
    #[must_use]
    pub fn new(scenario: &Scenario, proxy: usize, seed: u64) -> Self {
        let addresses: Vec<PodAddress> = (0..scenario.pods.len()).map(address).collect();
        let listed: Vec<String> = addresses.iter().map(PodAddress::to_string).collect();
        let mut pool = serde_json::json!({"name": "lab", "discovery": {"static": listed}});
        if let Some(interval) = scenario.scrape_ms {
            pool["scrape"] = serde_json::json!({"interval": format!("{interval}ms")});
        }
        if let Some(slow_start) = scenario.slow_start {
            pool["routing"] = serde_json::json!({"slow_start": slow_start});
        }
        let mut document = serde_json::json!({"pools": [pool]});
        if let Some(admission) = &scenario.admission {
            document["admission"] = admission.clone();
            document["trust"] = serde_json::json!({"headers": [OBJECTIVE[0], FAIRNESS_ID[0]]});
        }
        let document = document.to_string();
        let config = Rc::new(Config::parse(document.as_bytes()).expect("a valid config"));
        let view = |worker: usize| {
            View::new(
                Rc::clone(&config),
                mix2(seed, worker as u64 + 1),
                mix2(seed, worker as u64 + 1000),
            )
        };
        let keys = Keys::of(&config.pools[0]);
        let outbox = |_| Outbox::new(keys.reports.clone());
        Self {
            outboxes: (0..scenario.workers).map(outbox).collect(),
            inbox: Inbox::new(keys.reports.clone()),
            poller: Poller::new(&config.pools[0], config.epoch, mix2(seed, proxy as u64)),
            views: (0..scenario.workers).map(view).collect(),
            store: MemoryStore::default(),
            numbers: addresses
                .iter()
                .enumerate()
                .map(|(number, address)| (*address, number))
                .collect(),
            addresses,
            discovery: None,
            bytes_per_token: scenario.bytes_per_token,
            refused: HashMap::new(),
            rng: Rng::new(seed),
            config,
        }
    }

    fn poll(&mut self, event: Event<'_>, fleet: &mut Fleet, now: Micros) {
        let effects = self.poller.on(event, unix(now));
        for effect in effects {
            match effect {
                Effect::Publish { bytes } => {
                    let key = Keys::of(&self.config.pools[0]).table;
                    self.store
                        .set(&key, &bytes, None)
                        .expect("the store in memory takes any write");
                }
                Effect::Call(call) => self.answer(&call, fleet, now),
                Effect::Log { .. } | Effect::Count { .. } => {}
            }
        }
    }

    /// Answers a call of the poller at once.
    fn answer(&mut self, call: &Call, fleet: &mut Fleet, now: Micros) {
        let body = match call.target {
            Target::Metrics(address) => {
                let pod = &mut fleet.pods[self.numbers[&address]];
                pod.scrape(now).map(|scrape| pod.page(&scrape))
            }
            Target::Models(address) => {
                let pod = &fleet.pods[self.numbers[&address]];
                (!pod.is_gone()).then(|| page::models(&fleet.adapters, pod.config().max_model_len))
            }
            Target::Discovery => None,
        };
        let silence = self.silence(&call.target, fleet);
        let outcome = body.as_ref().map(|body| Response {
            status: 200,
            body: body.as_bytes(),
            ..Response::default()
        });
        let outcome = outcome.ok_or(silence);
        self.poll(Event::Answer { call: call.id, outcome }, fleet, now);
    }

    /// What it means that nobody answers: a closed port says so, a node that is gone says nothing.
    fn silence(&self, target: &Target, fleet: &Fleet) -> ScrapeError {
        match target {
            Target::Metrics(address) | Target::Models(address)
                if fleet.pods[self.numbers[address]].door == Door::Silent =>
            {
                ScrapeError::Timeout
            }
            _ => ScrapeError::Unreachable,
        }
    }

    fn tell_refused(&mut self, asked: &Asked<'_>, pod: usize, now: Micros) {
        if let Some(refused) = self.refused.remove(&asked.id) {
            let attempts = u32::try_from(refused + 1).ok();
            self.views[asked.worker].on_upstream(
                &self.store,
                asked.id as u64,
                self.addresses[pod],
                attempts,
                unix(now),
            );
        }
    }
}

impl Berth {
    fn admitted(&mut self, decision: Decision, fleet: &Fleet) -> Admitted {
        match decision.action {
            Action::Route { endpoints, .. } => {
                Admitted::To(endpoints.iter().map(|address| self.numbers[address]).collect())
            }
            Action::Hold => Admitted::Waits,
            Action::Reply(refusal) if refusal.status == 429 => Admitted::Shed,
            // The proxy's own load balancer decides.
            Action::Pass(_) | Action::Reply(_) => {
                let listed = fleet.listed();
                Admitted::To(vec![listed[self.rng.below(listed.len() as u64) as usize]])
            }
        }
    }
}

impl Router for Berth {
    fn tick_every(&self) -> Option<Micros> {
        Some(TICK.0 * 1000)
    }

    fn tick(&mut self, fleet: &mut Fleet, now: Micros) {
        if self.discovery != Some(fleet.discovery) {
            self.discovery = Some(fleet.discovery);
            let found = fleet
                .listed()
                .into_iter()
                .map(|pod| Found::at(self.addresses[pod]))
                .collect();
            self.poll(Event::Pods(found), fleet, now);
        }
        for outbox in &mut self.outboxes {
            outbox.tick(&self.store, unix(now));
        }
        let reports = self.inbox.tick(&self.store);
        if !reports.is_empty() {
            self.poll(Event::Reports(&reports), fleet, now);
        }
        self.poll(Event::Tick, fleet, now);
        for view in &mut self.views {
            view.tick(&self.store, unix(now));
        }
    }

    fn admit(&mut self, asked: &Asked<'_>, fleet: &mut Fleet, now: Micros) -> Admitted {
        let mut reader = BodyReader::json(Api::Chat);
        let mut prompt = Hasher::default();
        let body = asked.job.body(BASE_MODEL, self.bytes_per_token);
        reader.feed(&body, &mut prompt);
        let facts = reader.finish();
        let steering = Steering {
            objective: asked.job.objective.map(str::to_owned),
            flow: asked.job.tenant.map(str::to_owned),
            ..Steering::default()
        };
        let request = view::Request {
            id: asked.id as u64,
            facts: &facts,
            prompt: &prompt.finish(),
            steering: &steering,
            body: Some(body.len()),
            in_full: false,
        };
        let decision = self.views[asked.worker].decide(&self.store, &request, unix(now));
        if decision.refresh_models {
            self.poll(Event::RefreshModels, fleet, now);
        }
        self.admitted(decision, fleet)
    }

    fn released(&mut self, fleet: &Fleet, now: Micros) -> Vec<(usize, Admitted)> {
        let mut released = Vec::new();
        for worker in 0..self.views.len() {
            for (id, decision) in self.views[worker].release(&self.store, unix(now)) {
                released.push((id as usize, self.admitted(decision, fleet)));
            }
        }
        released
    }

    fn pick(&mut self, asked: &Asked<'_>, fleet: &mut Fleet, now: Micros) -> Vec<usize> {
        match self.admit(asked, fleet, now) {
            Admitted::To(pods) => pods,
            Admitted::Waits | Admitted::Shed => Vec::new(),
        }
    }

    fn sent(&mut self, asked: &Asked<'_>, _pod: usize, refused: usize, _now: Micros) {
        if refused > 0 {
            self.refused.insert(asked.id, refused);
        }
    }

    fn first_byte(&mut self, asked: &Asked<'_>, pod: usize, now: Micros) {
        self.tell_refused(asked, pod, now);
        self.views[asked.worker].on_first_byte(&self.store, asked.id as u64, 200, asked.job.streams, unix(now));
    }

    fn token(&mut self, asked: &Asked<'_>, now: Micros) {
        self.views[asked.worker].on_token(&self.store, asked.id as u64, unix(now));
    }

    fn reported(&mut self, asked: &Asked<'_>, pod: usize, report: &str, now: Micros) {
        if let Some(report) = reports::read(report.as_bytes(), unix(now)) {
            self.outboxes[asked.worker].add(self.addresses[pod], report);
        }
    }

    fn ended(&mut self, asked: &Asked<'_>, pod: usize, outcome: Outcome, now: Micros) {
        self.tell_refused(asked, pod, now);
        self.views[asked.worker].on_end(&self.store, asked.id as u64, outcome, unix(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::trace::Traces;
    use crate::scenario::catalogue;
    use berth_shared_state::table;
    use std::path::Path;

    #[test]
    fn what_a_pod_reports_to_one_worker_is_in_the_table_with_the_next_tick() {
        let traces = Traces::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("traces")).unwrap();
        let scenario = catalogue()
            .into_iter()
            .find(|scenario| scenario.name == "half-speed")
            .unwrap();
        let (jobs, mut fleet) = (scenario.jobs(&traces, 1, 0.02), scenario.fleet());
        let mut berth = Berth::new(&scenario, 0, 1);
        let mut now = 0;
        let mut tick = |berth: &mut Berth| {
            now += TICK.0 * 1000;
            berth.tick(&mut fleet, now);
            now
        };
        // Long enough for all pages to be read.
        let read_until = (0..30).map(|_| tick(&mut berth)).last().unwrap_or_default();
        let asked = Asked {
            id: 0,
            job: &jobs[0],
            jobs: &jobs,
            worker: 1,
        };
        let report = "TEXT named_metrics.num_requests_waiting=7.0, named_metrics.kv_cache_usage_perc=0.25";
        berth.reported(&asked, 3, report, read_until + 1_000);
        tick(&mut berth);
        let key = Keys::of(&berth.config.pools[0]).table;
        let stored = berth.store.get(&key).unwrap().unwrap();
        let table = table::decode(&stored.value).unwrap();
        let row = table.pods.iter().find(|row| row.address == address(3)).unwrap();
        assert_eq!((row.load.waiting, row.load.kv_mean), (Some(7), Some(0.25)));
        assert_eq!(row.reported_at, Some(unix(read_until + 1_000)));
    }
}
