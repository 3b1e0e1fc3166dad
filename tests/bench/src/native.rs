//! The same code as a native release build, in nanoseconds, piece by piece.
//!
//! V8 runs it at perhaps half that speed. Here is where a piece that is out of proportion shows.

use std::rc::Rc;
use std::time::Duration;

use anyhow::Result;
use berth_filter_routing::decision::{self, Ask, Input, PodFacts, PoolFacts};
use berth_filter_routing::ledger::{Ledger, LedgerView, Outcome, OwnLoad, PodFact, Sent};
use berth_filter_routing::limits::ASCII_BYTES_PER_TOKEN;
use berth_filter_routing::prefix::{Blocks, Hasher};
use berth_filter_routing::request::{Api, BodyReader, Facts};
use berth_filter_routing::view::{Request, Steering, View};
use berth_shared_state::config::Config;
use berth_shared_state::limits::PODS_MAX;
use berth_shared_state::metrics::{self, Hints};
use berth_shared_state::names;
use berth_shared_state::pod::PodAddress;
use berth_shared_state::snapshot::{Freshness, Snapshot};
use berth_shared_state::store::{MemoryStore, SharedData};
use berth_shared_state::table;
use berth_shared_state::units::{Millis, Tokens, UnixMillis};
use fastrand::Rng;

use crate::report::Group;
use crate::timing::nanos;
use crate::world;

/// Recorded pages, small to large.
const PAGES: [&str; 3] = [
    "vllm-metrics-data-parallel-2.txt",
    "vllm-metrics-lora-waiting.txt",
    "vllm-metrics-idle.txt",
];

/// Every group of this part.
pub fn run(quick: bool) -> Result<Vec<Group>> {
    let budget = Duration::from_millis(if quick { 50 } else { 500 });
    Ok(vec![
        decisions(budget)?,
        snapshots(budget)?,
        ledgers(budget)?,
        pages(budget)?,
        bodies(budget),
    ])
}

fn parsed(pods: usize) -> Result<Rc<Config>> {
    Config::parse(world::config(pods).as_bytes())
        .map(Rc::new)
        .map_err(|errors| anyhow::anyhow!("{errors:?}"))
}

fn facts(bytes: usize) -> (Facts, Blocks) {
    let mut reader = BodyReader::json(Api::Chat);
    let mut prompt = Hasher::default();
    reader.feed(&world::body(bytes), &mut prompt);
    (reader.finish(), prompt.finish())
}

fn decisions(budget: Duration) -> Result<Group> {
    let mut group = Group::new("One decision, natively", "8 pods");
    for pods in [8, 100, 1_000, PODS_MAX] {
        group.add(
            format!("{pods} pods, the pure decision"),
            decide_only(budget, pods)?,
            "ns",
        );
    }
    for pods in [8, 100, 1_000, PODS_MAX] {
        group.add_against(
            format!("{pods} pods, from facts to ledger and back"),
            whole(budget, pods)?,
            "ns",
            None,
        );
    }
    Ok(group)
}

fn decide_only(budget: Duration, pods: usize) -> Result<f64> {
    let config = parsed(pods)?;
    let pool = config.pools.first().ok_or_else(|| anyhow::anyhow!("no pool"))?;
    let snapshot = Snapshot::new(world::table(pods, world::START));
    let known: Vec<PodFacts<'_>> = snapshot
        .pods()
        .iter()
        .map(|row| PodFacts {
            row,
            freshness: Freshness::Fresh,
            own: OwnLoad::default(),
            filled: Tokens(0),
            cached: 0.0,
            rate: None,
            avoided_until: None,
            adapters_in_use: &[],
            seen_adapters: &[],
            recent_adapters: &[],
        })
        .collect();
    let (facts, _) = facts(1 << 10);
    let input = Input {
        pool,
        snapshot: Some(&snapshot),
        pods: &known,
        facts: PoolFacts::default(),
        ask: Ask::new(&facts, ASCII_BYTES_PER_TOKEN, Tokens(256)),
        subset: None,
        admit: None,
        now: world::later(100),
        in_full: false,
    };
    let mut rng = Rng::with_seed(1);
    Ok(nanos(budget, || decision::decide(&input, &mut rng)))
}

/// A view's whole work on one request: decide and book, first token, end. Every step reads shared data again.
fn whole(budget: Duration, pods: usize) -> Result<f64> {
    let config = parsed(pods)?;
    let table_key = world::keys(pods)?.table;
    let mut view = View::new(config, 1, 1);
    let store = MemoryStore::default();
    let (facts, prompt) = facts(1 << 10);
    let steering = Steering::default();
    let mut id = 0;
    let mut now = world::START;
    let mut published = None;
    Ok(nanos(budget, || {
        if published.is_none_or(|at: UnixMillis| now.since(at).0 >= 1_000) {
            published = Some(now);
            if let Ok(bytes) = table::encode(&world::table(pods, now)) {
                let _ = store.set(&table_key, &bytes, None);
            }
        }
        id += 1;
        let request = Request {
            id,
            facts: &facts,
            prompt: &prompt,
            steering: &steering,
            body: None,
            in_full: false,
        };
        let decision = view.decide(&store, &request, now);
        now = now + Millis(45);
        view.on_first_byte(&store, id, 200, true, now);
        now = now + Millis(5);
        view.on_end(&store, id, Outcome::Success, now);
        decision
    }))
}

fn snapshots(budget: Duration) -> Result<Group> {
    let mut group = Group::new(
        "Taking in a new table, natively (once per publish, about once a second)",
        "8 pods",
    );
    for pods in [8, 100, 1_000, PODS_MAX] {
        let bytes = table::encode(&world::table(pods, world::START)).map_err(|error| anyhow::anyhow!("{error}"))?;
        group.add(
            format!("{pods} pods, decode and index"),
            nanos(budget, || table::decode(&bytes).map(Snapshot::new)),
            "ns",
        );
        group.add(format!("{pods} pods, size"), bytes.len() as f64, "bytes");
    }
    Ok(group)
}

/// A ledger with so many requests in flight, spread over views and 8 pods, half of them past their first token.
struct Booked {
    store: MemoryStore,
    views: Vec<LedgerView>,
    pods: Vec<PodAddress>,
    now: UnixMillis,
    id: u64,
}

impl Booked {
    fn new(in_flight: usize, views: usize) -> Self {
        let pods: Vec<PodAddress> = (0..8).map(world::address).collect();
        let mut booked = Self {
            store: MemoryStore::default(),
            views: (0..views as u64)
                .map(|nonce| LedgerView::new("llama", nonce + 1))
                .collect(),
            pods,
            now: world::START,
            id: 0,
        };
        booked.scraped();
        for request in 0..in_flight {
            booked.now = booked.now + Millis(1);
            booked.send(request % views);
            if request % 4 < 2 {
                booked.now = booked.now + Millis(1);
                let (id, now) = (booked.id, booked.now);
                booked.views[request % views].first_token(&booked.store, id, false, true, now);
            }
        }
        booked
    }

    /// A new table: what it shows is folded.
    fn scraped(&mut self) {
        let facts = self.pods.iter().map(|pod| PodFact {
            pod: pod.key(),
            incarnation: 0,
            sample_at: Some(self.now),
            proxy_active: None,
        });
        let facts: Vec<PodFact> = facts.collect();
        for view in &mut self.views {
            view.facts(facts.clone());
        }
    }

    fn send(&mut self, view: usize) {
        self.id += 1;
        let sent = Sent {
            id: self.id,
            pod: self.pods[self.id as usize % self.pods.len()].key(),
            adapter: None,
            uncached: Tokens(250),
            context: Tokens(506),
            predicted: Millis(31),
            streams: true,
        };
        self.views[view].sent(&self.store, &sent, self.now);
    }

    fn size(&self) -> usize {
        let stored = self.store.get(&names::ledger_key("llama"));
        stored.ok().flatten().map_or(0, |stored| stored.value.len())
    }
}

fn ledgers(budget: Duration) -> Result<Group> {
    let mut group = Group::new("The ledger, natively (8 pods)", "none in flight, 2 views");
    for (in_flight, views) in [(0, 2), (100, 2), (1_000, 2), (0, 16), (100, 16), (1_000, 16)] {
        let title = format!("{in_flight} in flight, {views} views");
        let mut booked = Booked::new(in_flight, views);
        group.add(format!("{title}: size"), booked.size() as f64, "bytes");
        // Another view wrote in between, so each step reads, decodes, applies, encodes and writes.
        let time = nanos(budget, || {
            booked.now = booked.now + Millis(5);
            if booked.now.0.is_multiple_of(1_000) {
                booked.scraped();
            }
            let mut view = booked.id as usize % views;
            booked.send(view);
            let id = booked.id;
            view = (view + 1) % views;
            booked.views[view].refresh(&booked.store, booked.now);
            booked.now = booked.now + Millis(5);
            let owner = (id as usize - 1) % views;
            booked.views[owner].ended(&booked.store, id, Outcome::Success, booked.now)
        });
        group.add(format!("{title}: send, another's read, end"), time, "ns");
        let bytes = booked
            .store
            .get(&names::ledger_key("llama"))
            .ok()
            .flatten()
            .map(|stored| stored.value);
        let bytes = bytes.unwrap_or_default();
        if let Ok(ledger) = Ledger::decode(&bytes) {
            group.add_against(
                format!("{title}: decode"),
                nanos(budget, || Ledger::decode(&bytes)),
                "ns",
                None,
            );
            group.add_against(
                format!("{title}: encode"),
                nanos(budget, || ledger.encode()),
                "ns",
                None,
            );
        }
    }
    Ok(group)
}

fn pages(budget: Duration) -> Result<Group> {
    let mut group = Group::new("Reading one recorded metrics page, natively", "the first page");
    for name in PAGES {
        let page = world::capture(name)?;
        let hints = Hints {
            now: world::START,
            ..Hints::default()
        };
        let time = nanos(budget, || metrics::read(&page, hints));
        group.add(format!("{name}, {} KB", page.len() / 1_000), time, "ns");
        group.add(format!("{name}, of each byte"), time / page.len() as f64, "ns/byte");
    }
    Ok(group)
}

fn bodies(budget: Duration) -> Group {
    let mut group = Group::new("Reading a request body, natively", "1 KB");
    for kib in [1, 32, 256] {
        let body = world::body(kib << 10);
        let time = nanos(budget, || {
            let mut reader = BodyReader::json(Api::Chat);
            let mut prompt = Hasher::default();
            reader.feed(&body, &mut prompt);
            (reader.finish(), prompt.finish())
        });
        group.add(format!("{kib} KB"), time, "ns");
        group.add(format!("{kib} KB, of each byte"), time / body.len() as f64, "ns/byte");
    }
    group
}
