//! The poller in virtual time, against pods that are functions.

mod bounds;
mod cases;
mod cost;
mod find;
#[cfg(not(target_arch = "wasm32"))]
mod properties;
mod rules;

use super::*;
use crate::discovery::Found;
use crate::models::Model;
use crate::sample::{Counters, Engine, Sample, Status};
use crate::snapshot::tests::pool as pool_of;
use crate::table::{self, PodRow};

/// What a pod does when it is asked.
enum Reply {
    Reads(Box<Sample>),
    Lists(Vec<Model>),
    Says(u16, &'static [u8]),
    Fails(ScrapeError),
    Silence,
}

fn reads(sample: Sample) -> Reply {
    Reply::Reads(Box::new(sample))
}

/// A poller and all that came out of it.
struct Rig {
    poller: Poller,
    now: u64,
    open: Vec<Call>,
    /// (time, target) of every call.
    calls: Vec<(u64, Target)>,
    logs: Vec<(Severity, String)>,
    counts: BTreeMap<Stat, u64>,
    published: Vec<(u64, Table)>,
}

const START: u64 = 1_700_000_000_000;

impl Rig {
    fn new(pool: &Pool) -> Self {
        Self {
            poller: Poller::new(pool, 77, 5),
            now: START,
            open: Vec::new(),
            calls: Vec::new(),
            logs: Vec::new(),
            counts: BTreeMap::new(),
            published: Vec::new(),
        }
    }

    #[track_caller]
    fn send(&mut self, event: Event<'_>) {
        let publishes = self.published.len();
        let effects = self.poller.on(event, UnixMillis(self.now));
        // What was given up is over for the host too: its own timeout is shorter.
        self.open.retain(|call| self.poller.open.contains_key(&call.id));
        for effect in effects {
            match effect {
                Effect::Call(call) => {
                    assert!(
                        !self.open.iter().any(|open| open.target == call.target),
                        "second call: {call:?}"
                    );
                    self.calls.push((self.now, call.target));
                    self.open.push(call);
                }
                Effect::Publish { bytes } => self.published.push((self.now, table::decode(&bytes).unwrap())),
                Effect::Log { severity, text } => self.logs.push((severity, text)),
                Effect::Count { stat, value } if stat.is_gauge() => {
                    self.counts.insert(stat, value);
                }
                Effect::Count { stat, value } => *self.counts.entry(stat).or_default() += value,
            }
        }
        assert!(self.published.len() <= publishes + 1);
    }

    /// One tick of 100 ms, then the answers.
    #[track_caller]
    fn tick(&mut self, mut pods: impl FnMut(Target) -> Reply) {
        self.send(Event::Tick);
        for call in core::mem::take(&mut self.open) {
            match pods(call.target) {
                Reply::Silence => self.open.push(call),
                reply => self.reply(call, reply),
            }
        }
        self.now += 100;
    }

    fn reply(&mut self, call: Call, reply: Reply) {
        let outcome = match reply {
            Reply::Says(status, body) => Ok(Response {
                status,
                body,
                ..Response::default()
            }),
            Reply::Fails(error) => Err(error),
            Reply::Silence => return,
            // What `metrics::read` and `models::read` would have made of a page.
            Reply::Reads(sample) => {
                return self.read(call, |poller, pod, now| poller.settle_metrics(pod, Ok(*sample), now));
            }
            Reply::Lists(models) => {
                return self.read(call, |poller, pod, now| poller.settle_models(pod, Ok(models), now));
            }
        };
        self.send(Event::Answer { call: call.id, outcome });
    }

    fn read(&mut self, call: Call, settle: impl FnOnce(&mut Poller, PodAddress, Now)) {
        let now = self.poller.clock.read(UnixMillis(self.now));
        if let Some(Target::Metrics(pod) | Target::Models(pod)) = self.poller.close(call.id) {
            settle(&mut self.poller, pod, now);
        }
    }

    #[track_caller]
    fn run(&mut self, millis: u64, mut pods: impl FnMut(Target) -> Reply) {
        let end = self.now + millis;
        while self.now < end {
            self.tick(&mut pods);
        }
    }

    fn table(&self) -> &Table {
        &self.published.last().expect("nothing was published").1
    }

    fn row(&self, pod: &str) -> &PodRow {
        self.table()
            .pods
            .iter()
            .find(|row| row.address == address(pod))
            .expect("no such pod")
    }

    /// Times at which a target was asked, since the start.
    fn asked(&self, target: Target) -> Vec<u64> {
        self.calls
            .iter()
            .filter(|(_, asked)| *asked == target)
            .map(|(at, _)| at - START)
            .collect()
    }

    fn lines(&self, part: &str) -> usize {
        self.logs.iter().filter(|(_, text)| text.contains(part)).count()
    }

    fn count(&self, stat: Stat) -> u64 {
        self.counts.get(&stat).copied().unwrap_or_default()
    }
}

fn address(text: &str) -> PodAddress {
    text.parse().unwrap()
}

const POD: &str = "10.0.0.1:8000";

fn metrics_of(pod: &str) -> Target {
    Target::Metrics(address(pod))
}

fn models_of(pod: &str) -> Target {
    Target::Models(address(pod))
}

fn fixed_pool(pods: &[&str]) -> Pool {
    pool_of(Discovery::Static(pods.iter().map(|pod| address(pod)).collect()))
}

fn many(n: u32) -> Vec<PodAddress> {
    (0..n)
        .map(|i| PodAddress::new(((0x0a00_0000 + i).to_be_bytes(), 8000).into()))
        .collect()
}

fn admin_pool() -> Pool {
    pool_of(Discovery::EnvoyAdmin {
        cluster: "llama".into(),
        admin: "admin".into(),
        interval: Millis(1_000),
    })
}

/// A page with load.
fn busy(running: u32, waiting: u32, tokens: f64) -> Sample {
    Sample {
        engine: Some(Engine::Vllm),
        running: Some(running),
        waiting: Some(waiting),
        kv_mean: Some(0.5),
        kv_max: Some(0.5),
        engines: 1,
        counters: Counters {
            generation_tokens: Some(tokens),
            ..Counters::default()
        },
        ..Sample::empty(Status::Ok, None)
    }
}

fn model(id: &str, parent: Option<&str>) -> Model {
    Model {
        id: id.into(),
        parent: parent.map(str::to_owned),
        max_model_len: None,
    }
}

/// An idle pod with one base.
fn idle(target: Target) -> Reply {
    match target {
        Target::Models(_) => Reply::Lists(vec![model("base", None)]),
        _ => reads(busy(0, 0, 0.0)),
    }
}

fn silent(_: Target) -> Reply {
    Reply::Silence
}
