//! The same code as a native release build, in nanoseconds, piece by piece.
//!
//! V8 runs it at perhaps half that speed. Here is where a piece that is out of proportion shows.

use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Result;
use berth_filter_routing::cost::Patience;
use berth_filter_routing::decision::{self, Admit, Ask, Field, Input, Part, PodFacts, PoolFacts, Wish};
use berth_filter_routing::ledger::{Heard, Ledger, LedgerView, Outcome, OwnLoad, PodFact, Sent, Synced};
use berth_filter_routing::limits::{ASCII_BYTES_PER_TOKEN, DRAW_ABOVE};
use berth_filter_routing::prefix::{Beginning, Blocks, Chains, Hasher, Index, Living, seed};
use berth_filter_routing::request::{Api, BodyReader, Facts};
use berth_filter_routing::view::{Request, Steering, View};
use berth_shared_state::config::Config;
use berth_shared_state::limits::PODS_MAX;
use berth_shared_state::metrics::{self, Hints};
use berth_shared_state::names;
use berth_shared_state::pod::{PodAddress, PodKey};
use berth_shared_state::snapshot::{Freshness, Snapshot};
use berth_shared_state::store::{MemoryStore, SharedData};
use berth_shared_state::table;
use berth_shared_state::units::{Millis, Tokens, UnixMillis};
use fastrand::Rng;

use crate::report::Group;
use crate::timing::{median, nanos, quantile};
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
        prefixes(budget)?,
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

/// Pools from the smallest to one that is more than a table holds.
const POOLS: [usize; 5] = [8, 100, 1_000, PODS_MAX, 10_000];

fn decisions(budget: Duration) -> Result<Group> {
    let mut group = Group::new("One decision, natively", "8 pods");
    for pods in POOLS {
        group.add(
            format!("{pods} pods, the pure decision"),
            decide_only(budget, pods, false)?,
            "ns",
        );
    }
    for pods in [1_000, 10_000] {
        let title = format!("{pods} pods with admission, the pure decision while there is room");
        group.add(title, decide_only(budget, pods, true)?, "ns");
    }
    for pods in POOLS.into_iter().filter(|pods| *pods <= PODS_MAX) {
        let mut times = whole(budget, pods)?;
        let title = format!("{pods} pods, from facts to the booked ledger");
        group.add_against(format!("{title}, median"), median(&mut times), "ns", None);
        group.add_against(format!("{title}, p99"), quantile(&mut times, 0.99), "ns", None);
    }
    Ok(group)
}

/// A pool whose pods were read a moment ago, and to which this proxy has nothing sent.
struct Pool {
    config: Rc<Config>,
    snapshot: Snapshot,
    keys: Vec<PodKey>,
}

impl Pool {
    fn new(pods: usize) -> Result<Self> {
        let snapshot = Snapshot::new(world::table(pods, world::START));
        Ok(Self {
            // The bound on a pool's pods is one of the table's size, and the decision knows none.
            config: parsed(pods.min(PODS_MAX))?,
            keys: snapshot.pods().iter().map(|row| row.address.key()).collect(),
            snapshot,
        })
    }

    fn pods(&self) -> Vec<PodFacts<'_>> {
        let known = |row| PodFacts {
            row,
            freshness: Freshness::Fresh,
            own: OwnLoad::default(),
            shown: 0,
            context_then: Tokens(0),
            own_part: 0.0,
            heard: Heard::default(),
            late: Millis(0),
            filled: Tokens(0),
            sent_at: UnixMillis(0),
            cached: 0.0,
            session: false,
            claimed: 0.0,
            rate: None,
            slow: None,
            avoided_until: None,
            adapters_in_use: &[],
            seen_adapters: &[],
            recent_adapters: &[],
        };
        self.snapshot.pods().iter().map(known).collect()
    }

    fn field(&self) -> Field {
        let pool = &self.config.pools[0];
        Field::new(pool, &self.snapshot, &self.pods(), &self.keys, PoolFacts::default())
    }
}

/// Drawing, where pods are many, and deciding; `admits`: only where there is room.
fn decide_only(budget: Duration, pods: usize, admits: bool) -> Result<f64> {
    let pool = Pool::new(pods)?;
    let all = pool.pods();
    let (facts, prompt) = facts(1 << 10);
    let mut ask = Ask::new(&facts, ASCII_BYTES_PER_TOKEN, Tokens(256));
    ask.start = prompt
        .chains(1)
        .whole()
        .next()
        .and_then(|chain| chain.first())
        .map(|key| Beginning { key: *key, share: 0.0 });
    let mut field = (pods > DRAW_ABOVE).then(|| pool.field());
    let mut rng = Rng::with_seed(1);
    let admit = admits.then_some(Admit {
        patience: Patience {
            wait: 2_000.0,
            resumes: false,
        },
        reserved: &[],
        keeps: None,
        counts: false,
        closed: false,
    });
    Ok(nanos(budget, || {
        let wish = Wish {
            pool: &pool.config.pools[0],
            snapshot: &pool.snapshot,
            ask: &ask,
            held: &[(3, 2), (5, 2)],
        };
        let drawn = field.as_mut().and_then(|field| field.draw(&wish, &mut rng));
        let some: Option<Vec<PodFacts<'_>>> = drawn
            .as_ref()
            .map(|drawn| drawn.places.iter().map(|place| all[*place as usize]).collect());
        let part = drawn.as_ref().zip(field.as_ref());
        let input = Input {
            pool: wish.pool,
            snapshot: Some(wish.snapshot),
            pods: some.as_deref().unwrap_or(&all),
            drawn: part.map(|(drawn, field)| Part { field, drawn }),
            facts: PoolFacts::default(),
            ask,
            subset: None,
            admit,
            now: world::later(100),
            in_full: false,
        };
        decision::decide(&input, &mut rng)
    }))
}

/// Requests in flight while a view decides.
const IN_FLIGHT: u64 = 16;

/// What a view takes for one decision, from facts to the booked ledger; each reads shared data again. 200 requests a
/// second, and a table once a second: the time for a new table is among the longest ones.
fn whole(budget: Duration, pods: usize) -> Result<Vec<f64>> {
    let config = parsed(pods)?;
    let table_key = world::keys(pods)?.table;
    let mut view = View::new(config, 1, 1);
    let store = MemoryStore::default();
    let (facts, prompt) = facts(1 << 10);
    let steering = Steering::default();
    let mut now = world::START;
    let mut times = Vec::new();
    let until = Instant::now() + 4 * budget;
    for id in 1.. {
        if id % 200 == 1 {
            let bytes = table::encode(&world::table(pods, now)).map_err(|error| anyhow::anyhow!("{error}"))?;
            store
                .set(&table_key, &bytes, None)
                .map_err(|error| anyhow::anyhow!("{error:?}"))?;
            if Instant::now() > until && id > 1_000 {
                break;
            }
        }
        let request = Request {
            id,
            facts: &facts,
            prompt: &prompt,
            steering: &steering,
            body: None,
            in_full: false,
        };
        let began = Instant::now();
        std::hint::black_box(view.decide(&store, &request, now));
        times.push(began.elapsed().as_nanos() as f64);
        now = now + Millis(5);
        view.on_first_byte(&store, id.saturating_sub(IN_FLIGHT / 2), 200, true, now);
        view.on_end(&store, id.saturating_sub(IN_FLIGHT), Outcome::Success, now);
    }
    Ok(times)
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
    for pods in POOLS.into_iter().filter(|pods| *pods > DRAW_ABOVE) {
        let pool = Pool::new(pods)?;
        let title = format!("{pods} pods, reckon what they have in common");
        group.add_against(title, nanos(budget, || pool.field()), "ns", None);
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
            generated: None,
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
            teaches: true,
        };
        self.views[view].sent(&self.store, &sent, self.now);
    }

    /// One view sends, another reads, the first ends what it sent.
    fn turn(&mut self, views: usize) -> Synced {
        self.now = self.now + Millis(5);
        if self.now.0.is_multiple_of(1_000) {
            self.scraped();
        }
        let owner = self.id as usize % views;
        self.send(owner);
        let id = self.id;
        self.views[(owner + 1) % views].refresh(&self.store, self.now);
        self.now = self.now + Millis(5);
        self.views[owner].ended(&self.store, id, Outcome::Success, self.now)
    }

    fn stored(&self) -> Vec<u8> {
        let stored = self.store.get(&names::ledger_key("llama"));
        stored.ok().flatten().map(|stored| stored.value).unwrap_or_default()
    }
}

fn ledgers(budget: Duration) -> Result<Group> {
    let mut group = Group::new("The ledger, natively (8 pods)", "none in flight, 2 views");
    for (in_flight, views) in [(0, 2), (100, 2), (1_000, 2), (0, 16), (100, 16), (1_000, 16)] {
        let title = format!("{in_flight} in flight, {views} views");
        let booked = Booked::new(in_flight, views);
        if in_flight > 0 && views == 2 {
            let bytes = booked.stored();
            group.add_against(
                format!("{title}, none scraped: size"),
                bytes.len() as f64,
                "bytes",
                None,
            );
            group.add_against(
                format!("{title}, none scraped: decode all of it"),
                nanos(budget, || Ledger::decode(&bytes)),
                "ns",
                None,
            );
        }
        let mut booked = Booked::new(in_flight, views);
        booked.scraped();
        // Another view wrote in between, so each step reads, applies and writes, and decodes and encodes what changed.
        let time = nanos(budget, || booked.turn(views));
        group.add(format!("{title}: send, another's read, end"), time, "ns");
        group.add(format!("{title}: size"), booked.stored().len() as f64, "bytes");
    }
    Ok(group)
}

/// Prompts of 100 KB in an index that others fill, too.
fn prefixes(budget: Duration) -> Result<Group> {
    let mut group = Group::new("The prefix index, natively (100 prompts of each size, 8 pods)", "1 KB");
    let index = Index::new("llama", 64 << 20, 1);
    let store = MemoryStore::default();
    let living = |tag: u32| {
        let pod = tag as usize;
        (pod < 8).then_some(Living {
            pod,
            clock: 0,
            room: 10_000,
        })
    };
    for kib in [1, 32, 100] {
        let chains: Vec<Chains> = (0..100)
            .map(|number| {
                let mut reader = BodyReader::json(Api::Chat);
                let mut prompt = Hasher::default();
                reader.feed(&world::prompt(number, kib << 10), &mut prompt);
                prompt.finish().chains(seed("llama-3-8b", ""))
            })
            .collect();
        for (chain, pod) in chains.iter().zip((0..8).cycle()) {
            let found = index.look_up(&store, chain, living);
            index.write(&store, found, pod, 0, living);
        }
        let mut next = (0..chains.len()).cycle();
        let time = nanos(budget, || {
            index.look_up(&store, &chains[next.next().unwrap_or(0)], living)
        });
        group.add(format!("{kib} KB, look up"), time, "ns");
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
