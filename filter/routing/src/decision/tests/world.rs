//! A pool of idle, freshly read pods, to be bent by each test.

use berth_shared_state::config::{Config, Discovery, Pool, Routing};
use berth_shared_state::pod::PodAddress;
use berth_shared_state::sample::{Engine, Level, Status};
use berth_shared_state::snapshot::Snapshot;
use berth_shared_state::table::{ActiveAdapters, Discovered, Load, Models, NameId, PodRow, Readiness, Slow, Table};
use berth_shared_state::units::{Millis, Tokens, UnixMillis};

use crate::decision::{Action, Ask, Decision, Input, PodFacts, PoolFacts, adapter_key, decide};
use crate::ledger::{Heard, InUse, OwnLoad};

pub const NOW: UnixMillis = UnixMillis(10_000_000);
/// Names of every table here.
pub const BASE: NameId = NameId(0);
pub const SQL: NameId = NameId(1);
pub const FR: NameId = NameId(2);
/// Labels.
pub const DECODE: NameId = NameId(3);
pub const PREFILL: NameId = NameId(4);
pub const ZONE_A: NameId = NameId(5);
pub const ZONE_B: NameId = NameId(6);
const NAMES: [&str; 7] = ["llama", "sql", "fr", "role=decode", "role=prefill", "zone=a", "zone=b"];

/// A pod's row and what the ledger has of it.
#[derive(Clone, Debug)]
pub struct Pod {
    pub row: PodRow,
    pub own: OwnLoad,
    pub own_part: f64,
    pub heard: Heard,
    pub late: Millis,
    pub sent_at: UnixMillis,
    pub cached: f64,
    pub claimed: f64,
    pub session: bool,
    pub rate: Option<f64>,
    pub slow: Option<Slow>,
    pub avoided_until: Option<UnixMillis>,
    pub recent: Vec<(u64, UnixMillis)>,
    pub seen: Vec<(u64, UnixMillis)>,
    pub in_use: Vec<InUse>,
}

#[derive(Clone, Debug)]
pub struct World {
    pub pool: Pool,
    pub discovery: Discovered,
    pub pods: Vec<Pod>,
    pub subset: Option<String>,
    pub elsewhere: f64,
    pub found: Option<f64>,
    pub early: bool,
}

pub fn ago(millis: u64) -> UnixMillis {
    UnixMillis(NOW.0 - millis)
}

pub fn address(index: usize) -> PodAddress {
    format!("10.0.{}.{}:8000", index / 250, index % 250 + 1)
        .parse()
        .unwrap()
}

/// 8,000 tokens per second: 8 tokens are a millisecond.
pub fn pool() -> Pool {
    let mut pool = Config::minimal(&[address(0)]).unwrap().pools.remove(0);
    pool.name = "main".to_owned();
    pool.discovery = Discovery::EnvoyAdmin {
        cluster: "pods".to_owned(),
        admin: "admin".to_owned(),
        interval: Millis(1_000),
    };
    pool.scrape.interval = Millis(1_000);
    pool.scrape.models_interval = Millis(10_000);
    pool.adapters.cold_load = Millis(20_000);
    pool.routing = Routing {
        prefill_tokens_per_second: 8_000,
        expected_output_tokens: 200,
        stale_after: Millis(10_000),
        ..pool.routing
    };
    pool
}

/// Idle, ready, read 500 ms ago, 100,000 KV tokens, a models page of 5 s ago that lists the base.
pub fn idle(index: usize) -> Pod {
    let load = Load {
        engine: Some(Engine::Vllm),
        status: Status::Ok,
        running: Some(0),
        waiting: Some(0),
        deferred: None,
        kv_mean: Some(0.0),
        kv_max: Some(0.0),
        kv_capacity: Some(Tokens(100_000)),
        engines: 1,
        sleeping: None,
    };
    let row = PodRow {
        readiness: Readiness::Ready,
        scraped_at: Some(ago(500)),
        load,
        models: Some(Models {
            at: ago(5_000),
            bases: vec![BASE],
            adapters: Vec::new(),
            max_model_len: None,
        }),
        ..PodRow::unread(address(index), UnixMillis(0))
    };
    Pod {
        row,
        own: OwnLoad::default(),
        own_part: 0.0,
        heard: Heard::default(),
        late: Millis(0),
        cached: 0.0,
        session: false,
        sent_at: UnixMillis(0),
        claimed: 0.0,
        rate: None,
        slow: None,
        avoided_until: None,
        recent: Vec::new(),
        seen: Vec::new(),
        in_use: Vec::new(),
    }
}

impl Pod {
    pub fn load(&mut self, running: u32, waiting: u32, kv: f32) -> &mut Self {
        self.row.load.running = Some(running);
        self.row.load.waiting = Some(waiting);
        self.row.load.kv_mean = Some(kv);
        self
    }

    pub fn lists(&mut self, adapter: NameId) -> &mut Self {
        self.row.models.as_mut().unwrap().adapters.push((adapter, Some(BASE)));
        self
    }

    pub fn active(&mut self, adapters: &[NameId], max: u32) -> &mut Self {
        self.row.activity = Some(ActiveAdapters {
            running: adapters.to_vec(),
            waiting: adapters.to_vec(),
            max: Some(max),
        });
        let read = self.row.scraped_at.unwrap_or_default();
        for id in adapters {
            let name = NAMES.get(usize::from(id.0));
            self.seen
                .insert(0, (name.map_or(u64::from(id.0), |name| adapter_key(name)), read));
        }
        self
    }

    pub fn resident(&mut self, adapters: &[(NameId, Level)]) -> &mut Self {
        self.row.resident = Some(adapters.to_vec());
        self
    }

    pub fn sent(&mut self, adapter: &str, at: UnixMillis) -> &mut Self {
        self.recent.retain(|(known, _)| *known != adapter_key(adapter));
        self.recent.insert(0, (adapter_key(adapter), at));
        self
    }

    pub fn saw(&mut self, adapter: &str, at: UnixMillis) -> &mut Self {
        self.seen.retain(|(known, _)| *known != adapter_key(adapter));
        self.seen.insert(0, (adapter_key(adapter), at));
        self
    }

    /// Requests of ours without a first token, sent since the sample.
    pub fn unanswered(&mut self, requests: u32, tokens: u64) -> &mut Self {
        self.own.unanswered += requests;
        self.own.unanswered_tokens = self.own.unanswered_tokens + Tokens(tokens);
        self.own.context_tokens = self.own.context_tokens + Tokens(tokens);
        self.own.sent_since += requests;
        self.own.sent_since_tokens = self.own.sent_since_tokens + Tokens(tokens);
        self
    }

    pub fn never_read(&mut self) -> &mut Self {
        self.row.scraped_at = None;
        let load = &mut self.row.load;
        (load.running, load.waiting, load.kv_mean, load.kv_capacity) = (None, None, None, None);
        load.status = Status::Unknown;
        self
    }

    pub fn read_at(&mut self, at: UnixMillis) -> &mut Self {
        self.row.scraped_at = Some(at);
        self
    }
}

/// 800 tokens of prompt (100 ms) and 200 of output: k = 0.01 on an idle pod.
pub const ASK: Ask<'static> = Ask {
    model: None,
    prompt: Tokens(800),
    exact: Tokens(0),
    output: Tokens(200),
    prompts: 1,
    start: None,
};

pub fn ask_for(model: &str) -> Ask<'_> {
    Ask {
        model: Some(model),
        ..ASK
    }
}

impl World {
    pub fn of(pods: usize) -> Self {
        Self {
            pool: pool(),
            discovery: Discovered {
                at: Some(ago(500)),
                error: None,
            },
            pods: (0..pods).map(idle).collect(),
            subset: None,
            elsewhere: 0.0,
            found: None,
            early: false,
        }
    }

    pub fn snapshot(&self) -> Snapshot {
        Snapshot::new(Table {
            seq: 1,
            written_at: ago(100),
            config_epoch: 0,
            discovery: self.discovery.clone(),
            scrape_interval: Millis(1_000),
            names: NAMES.map(str::to_owned).to_vec(),
            pods: self.pods.iter().map(|pod| pod.row.clone()).collect(),
        })
    }

    pub fn facts<'a>(&'a self, snapshot: &'a Snapshot) -> Vec<PodFacts<'a>> {
        let facts = |(pod, row): (&'a Pod, &'a PodRow)| PodFacts {
            row,
            freshness: snapshot.freshness(row, &self.pool, NOW),
            own: pod.own,
            shown: pod.own.in_flight_at_sample(),
            context_then: Tokens(0),
            own_part: pod.own_part,
            heard: pod.heard,
            late: pod.late,
            filled: Tokens(0),
            sent_at: pod.sent_at,
            cached: pod.cached,
            session: pod.session,
            claimed: pod.claimed,
            rate: pod.rate,
            slow: pod.slow,
            avoided_until: pod.avoided_until,
            adapters_in_use: &pod.in_use,
            seen_adapters: &pod.seen,
            recent_adapters: &pod.recent,
        };
        self.pods.iter().zip(snapshot.pods()).map(facts).collect()
    }

    /// All reasons, with a seed.
    pub fn decide_with(&self, ask: Ask<'_>, seed: u64) -> Decision {
        let snapshot = self.snapshot();
        let input = Input {
            pool: &self.pool,
            snapshot: Some(&snapshot),
            pods: &self.facts(&snapshot),
            drawn: None,
            facts: PoolFacts {
                elsewhere: self.elsewhere,
                found: self.found,
                early: self.early,
                ..PoolFacts::default()
            },
            ask,
            subset: self.subset.as_deref(),
            admit: None,
            now: NOW,
            in_full: true,
        };
        decide(&input, &mut fastrand::Rng::with_seed(seed))
    }

    pub fn decide(&self, ask: Ask<'_>) -> Decision {
        self.decide_with(ask, 7)
    }

    /// How often each pod is first over many seeds.
    pub fn tally(&self, ask: Ask<'_>, seeds: u64) -> Vec<u32> {
        let mut tally = vec![0; self.pods.len()];
        for seed in 0..seeds {
            tally[first(&self.decide_with(ask, seed))] += 1;
        }
        tally
    }

    /// Sends so many at once, none of which is answered; how many each pod got.
    pub fn burst(&mut self, ask: Ask<'_>, requests: u64) -> Vec<u32> {
        let mut sent = vec![0; self.pods.len()];
        for seed in 0..requests {
            let decision = self.decide_with(ask, seed);
            let Action::Route { booking, .. } = decision.action else {
                panic!("not routed: {:?}", decision.why);
            };
            let pod = first(&decision);
            sent[pod] += 1;
            self.pods[pod].unanswered(1, booking.work.0);
            self.pods[pod].sent_at = UnixMillis(ago(1_000).0 + seed);
        }
        sent
    }

    /// The pod goes first whatever the lot says.
    #[track_caller]
    pub fn always(&self, ask: Ask<'_>, pod: usize) -> Decision {
        let tally = self.tally(ask, 30);
        assert_eq!(
            tally[pod],
            30,
            "{tally:?}\n{}",
            super::explain::table(&self.decide(ask).why)
        );
        self.decide(ask)
    }
}

/// Index of the pod that goes first.
#[track_caller]
pub fn first(decision: &Decision) -> usize {
    endpoints(decision)[0]
}

#[track_caller]
pub fn endpoints(decision: &Decision) -> Vec<usize> {
    let Action::Route { endpoints, .. } = &decision.action else {
        panic!("not routed: {:?}", decision.why);
    };
    let index = |pod: &PodAddress| (0..5_000).find(|index| address(*index) == *pod).unwrap();
    endpoints.iter().map(index).collect()
}
