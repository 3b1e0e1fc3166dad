//! A small gateway: one pool, its table as a poller would have made it from fixtures, and a reader.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::LazyLock;

use berth_filter_routing::decision::{Action, Decision};
use berth_filter_routing::header;
use berth_filter_routing::ledger::{Ledger, Outcome};
use berth_filter_routing::prefix::Hasher;
use berth_filter_routing::request::{Api, Facts, PromptSink};
use berth_filter_routing::view::{Request, Steering, View};
use berth_shared_state::config::Config;
use berth_shared_state::limits::{DECISION_HEADER_MAX_BYTES, ENDPOINTS_MAX};
use berth_shared_state::names::{self, Keys, ledger_key};
use berth_shared_state::pod::PodAddress;
use berth_shared_state::poll::{Effect, Event, Poller, Response, Target};
use berth_shared_state::store::{MemoryStore, SharedData};
use berth_shared_state::table::{Readiness, Table};
use berth_shared_state::units::{Millis, UnixMillis};

/// The time of everything here.
pub const NOW: UnixMillis = UnixMillis(1_790_000_000_000);

/// The config of this gateway, as a document.
pub const CONFIG: &[u8] = br#"{"pools": [{"name": "llama", "discovery": {"static":
    ["10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000", "[fd00::4]:8000"]}}]}"#;

const METRICS: [&[u8]; 4] = [
    include_bytes!("../../fixtures/captures/vllm-metrics-busy-base.txt"),
    include_bytes!("../../fixtures/metrics/14-vllm-lora-running-equals-waiting-full.txt"),
    include_bytes!("../../fixtures/metrics/22-sglang-dp2-tp2.txt"),
    include_bytes!("../../fixtures/metrics/33-llamacpp-2025-no-kv.txt"),
];

const MODELS: [&[u8]; 4] = [
    br#"{"data": [{"id": "base", "max_model_len": 4096}, {"id": "sql", "parent": "base"}]}"#,
    include_bytes!("../../fixtures/metrics/16-vllm-lora-hard-names.models.json"),
    br#"{"data": [{"id": "base", "max_model_len": 8192}]}"#,
    br#"{"data": [{"id": "base", "meta": {"n_ctx": 4096}}]}"#,
];

/// The config of this gateway.
pub fn config() -> Config {
    static PARSED: LazyLock<Config> = LazyLock::new(|| Config::parse(CONFIG).expect("a config"));
    PARSED.clone()
}

/// The same with objectives and a small queue.
pub fn queueing() -> Config {
    let mut document: serde_json::Value = serde_json::from_slice(CONFIG).expect("JSON");
    document["trust"] = serde_json::json!({"headers": [names::OBJECTIVE[0], names::FAIRNESS_ID[0]]});
    document["admission"] = serde_json::json!({
        "objectives": [{"name": "batch", "priority": -1}, {"name": "chat", "priority": 1}],
        "patience": "100ms",
        "queue": {"enabled": true, "max_requests": 4},
    });
    Config::parse(document.to_string().as_bytes()).expect("a config")
}

/// Its pods.
pub fn pods() -> Vec<PodAddress> {
    let all = ["10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000", "[fd00::4]:8000"];
    all.map(|pod| pod.parse().expect("an address")).to_vec()
}

/// Its table, sealed.
pub fn table_bytes() -> Vec<u8> {
    static MADE: LazyLock<Vec<u8>> = LazyLock::new(make_table);
    MADE.clone()
}

fn make_table() -> Vec<u8> {
    let config = config();
    let mut poller = Poller::passive(&config.pools[0], config.epoch);
    for (index, pod) in pods().into_iter().enumerate() {
        for (target, body) in [
            (Target::Models(pod), MODELS[index]),
            (Target::Metrics(pod), METRICS[index]),
        ] {
            let outcome = Ok(Response {
                status: 200,
                body,
                ..Response::default()
            });
            poller.on(Event::Page { target, outcome }, NOW);
        }
    }
    let published = poller.on(Event::Tick, NOW).into_iter().find_map(|effect| match effect {
        Effect::Publish { bytes } => Some(bytes),
        _ => None,
    });
    published.expect("a table")
}

/// Its ledger after a few requests, sealed.
pub fn ledger_bytes() -> Vec<u8> {
    let mut world = World::new(&table_bytes(), &[]);
    for model in ["base", "sql", "base"] {
        world.decide(Some(model), None, NOW);
    }
    world.view.on_first_byte(&world.store, 1, 200, true, NOW + Millis(300));
    world
        .view
        .on_end(&world.store, 2, Outcome::Unreachable, NOW + Millis(400));
    world.view.tick(&world.store, NOW + Millis(2_000));
    world.ledger().expect("a ledger").0
}

/// One worker over a shared store.
pub struct World {
    pub store: MemoryStore,
    pub view: View,
    requests: u64,
}

/// What every request asks: two blocks of a prefix, so that the index is read and written.
const PROMPT: [u8; 600] = [b'p'; 600];

impl World {
    /// A worker that finds these values; empty = absent.
    pub fn new(table: &[u8], ledger: &[u8]) -> Self {
        let store = MemoryStore::default();
        let key = Keys::of(&config().pools[0]).table;
        store.set(&key, table, None).expect("stored");
        store.set(&ledger_key("llama"), ledger, None).expect("stored");
        Self {
            store,
            view: View::new(Rc::new(config()), 0xBE27, 1),
            requests: 0,
        }
    }

    /// Decides about a chat request for a model.
    pub fn decide(&mut self, model: Option<&str>, subset: Option<&str>, now: UnixMillis) -> Decision {
        let facts = Facts {
            api: Some(Api::Chat),
            model: model.map(str::to_owned),
            choices: 1,
            prompts: 1,
            stream: true,
            complete: true,
            ..Facts::default()
        };
        let steering = Steering {
            subset: subset.map(str::to_owned),
            ..Steering::default()
        };
        self.decide_for(&facts, &steering, now)
    }

    /// Decides about any request.
    pub fn decide_for(&mut self, facts: &Facts, steering: &Steering, now: UnixMillis) -> Decision {
        self.requests += 1;
        let mut prompt = Hasher::default();
        prompt.text(&PROMPT);
        let request = Request {
            id: self.requests,
            facts,
            prompt: &prompt.finish(),
            steering,
            body: None,
            in_full: true,
        };
        self.view.decide(&self.store, &request, now)
    }

    /// A whole life of the requests decided so far: nothing may break, whatever was in the store.
    pub fn live_on(&mut self, pods: &[PodAddress], now: UnixMillis) {
        for id in 1..=self.requests {
            self.view.on_first_byte(&self.store, id, 200, true, now + Millis(250));
            if let Some(pod) = pods.last() {
                self.view.on_upstream(&self.store, id, *pod, Some(2), now + Millis(300));
            }
        }
        self.view.tick(&self.store, now + Millis(1_500));
        for id in 1..=self.requests {
            let outcome = [Outcome::Success, Outcome::ServerError, Outcome::Overloaded][id as usize % 3];
            self.view.on_end(&self.store, id, outcome, now + Millis(2_000));
        }
        self.view.tick(&self.store, now + Millis(400_000));
        self.view.tick(&self.store, UnixMillis(0));
    }

    /// The ledger as it stands in the store, if it can be read.
    pub fn ledger(&self) -> Option<(Vec<u8>, Ledger)> {
        let value = self.store.get(&ledger_key("llama")).expect("a store")?.value;
        Ledger::decode(&value).ok().map(|ledger| (value, ledger))
    }
}

/// What holds for every decision over this table (`None` = no table).
#[track_caller]
pub fn check_decision(decision: &Decision, table: Option<&Table>, subset: Option<&str>) {
    let allowed: Option<BTreeSet<PodAddress>> =
        subset.map(|hint| hint.split(',').filter_map(|part| part.trim().parse().ok()).collect());
    let may = |pod: &PodAddress| {
        let row = table.map(|table| table.pods.iter().find(|row| row.address == *pod));
        row.is_none_or(|row| row.is_some_and(|row| matches!(row.readiness, Readiness::Ready | Readiness::Unknown)))
            && allowed.as_ref().is_none_or(|allowed| allowed.contains(pod))
    };
    match &decision.action {
        Action::Route { endpoints, booking } => {
            let distinct: BTreeSet<_> = endpoints.iter().collect();
            assert!((1..=ENDPOINTS_MAX).contains(&endpoints.len()) && distinct.len() == endpoints.len());
            assert!(endpoints.iter().all(may), "{endpoints:?} under {subset:?}");
            assert!(booking.work <= booking.context);
            let value = header::destination(endpoints);
            let read: Vec<PodAddress> = value.split(',').filter_map(|pod| pod.parse().ok()).collect();
            // Every attempt of the proxy finds a name: a short list is repeated.
            let attempts: Vec<PodAddress> = endpoints.iter().copied().cycle().take(ENDPOINTS_MAX).collect();
            assert_eq!(read, attempts, "{value}");
        }
        Action::Reply(refusal) => {
            assert!([404, 429, 503].contains(&refusal.status));
            let body: serde_json::Value = serde_json::from_str(&header::body(refusal, None)).expect("JSON");
            assert!(body["error"]["message"].is_string());
            let someone = table.is_none_or(|table| table.pods.iter().any(|row| may(&row.address)));
            assert!(
                refusal.status == 404 || table.is_none() || !someone,
                "503 beside a pod that may serve"
            );
        }
        Action::Hold => panic!("nobody may wait"),
        Action::Pass(_) => assert!(subset.is_none(), "the proxy's own choice knows no subset"),
    }
    for one in &decision.why.considered {
        assert!(one.cost.is_finite(), "{one:?}");
        assert!(
            one.terms
                .named()
                .iter()
                .all(|(_, value)| value.is_finite() && *value >= 0.0),
            "{one:?}"
        );
    }
    let value = header::decision(decision);
    assert!(value.len() <= DECISION_HEADER_MAX_BYTES && value.bytes().all(|byte| byte.is_ascii_graphic()));
    serde_json::to_string(&decision.why).expect("JSON");
}
