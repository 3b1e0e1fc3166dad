//! More than the pods can do: does the high priority keep its time to first token, do tenants get equal parts, and what
//! does that cost? Berth with its admission against Berth without; no peers, whose queues work otherwise.
//!
//! Four pods that can do about 45 such requests a second. *Priorities*: 65 a second come, a fifth of them with the
//! objective `chat`, the others `batch`, whose patience is short: what they leave to the pods' own queues is what `chat`
//! finds there. *Long answers*: the same where the KV caches are small, which have room for about 20 such requests a second.
//! *Tenants*: 30 a second of one and 300 of another, so that each could fill
//! more than its half.

use crate::arm::Arm;
use crate::client::synthetic::Plain;
use crate::client::{Job, finish};
use crate::record::{Record, quantile};
use crate::report::table::Table;
use crate::scenario::{Clients, Family, Scenario};
use crate::world::World;
use berth_tests_simulator::engine::{EngineConfig, Micros};
use berth_tests_simulator::random::{Rng, mix2};
use serde_json::{Value, json};

/// The first part of a run, in which the overload builds up, counts nowhere.
const BUILDS_UP: Micros = 10_000_000;
/// Nothing comes after this.
const ENDS: Micros = 50_000_000;

/// How Berth is configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setting {
    /// No admission.
    Off,
    /// `batch` is sheddable.
    Shed,
    /// `batch` is sheddable, and the queue is on.
    Queue,
}

impl Setting {
    /// All.
    pub const ALL: [Self; 3] = [Self::Off, Self::Shed, Self::Queue];

    /// Its name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "no admission",
            Self::Shed => "shed",
            Self::Queue => "queue",
        }
    }

    fn admission(self) -> Option<Value> {
        let objectives =
            json!([{"name": "chat", "priority": 10}, {"name": "batch", "priority": -10, "patience": "500ms"}]);
        match self {
            Self::Off => None,
            Self::Shed => Some(json!({"objectives": objectives})),
            Self::Queue => Some(json!({"objectives": objectives, "queue": {"enabled": true}})),
        }
    }
}

/// What fills the pods.
#[derive(Debug, Clone)]
struct Load {
    prompt: core::ops::Range<u32>,
    output: f64,
    blocks: u32,
}

/// Prompts: the pods' time to read them.
const PROMPTS: Load = Load {
    prompt: 300..3_000,
    output: 180.0,
    blocks: 25_000,
};
/// Long answers: the pods' KV caches, of 35,000 tokens.
const ANSWERS: Load = Load {
    prompt: 200..800,
    output: 500.0,
    blocks: 2_200,
};

/// What a class of requests got, of those that came while the overload lasted.
#[derive(Debug, Clone, Default)]
pub struct Class {
    /// Requests.
    pub count: usize,
    /// Those that were answered.
    pub answered: usize,
    /// Those that were answered well.
    pub good: usize,
    /// Tokens of prompts and answers whose first token came while the overload lasted.
    pub tokens: u64,
    /// Times to first token of those that had one, sorted, in milliseconds.
    pub ttft: Vec<f64>,
}

impl Class {
    fn add(&mut self, job: &Job, record: &Record) {
        let counts = (BUILDS_UP..ENDS).contains(&job.at);
        let during = |at: Micros| (BUILDS_UP..ENDS).contains(&at.saturating_sub(crate::world::START));
        if record.first_token_at.is_some_and(during) {
            self.tokens += u64::from(job.tokens());
        }
        if counts {
            self.count += 1;
            self.answered += usize::from(record.output_tokens > 0);
            self.good += usize::from(record.is_good());
            self.ttft
                .extend(record.ttft().filter(|_| record.first_token_at.is_some()));
        }
    }

    /// Mean time to first token in milliseconds.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.ttft.iter().sum::<f64>() / self.ttft.len().max(1) as f64
    }

    /// Its 99th percentile.
    #[must_use]
    pub fn p99(&self) -> f64 {
        quantile(&self.ttft, 0.99)
    }
}

fn jobs(load: &Load, rate: f64, seed: u64, class: impl Fn(f64, &mut Job)) -> Vec<Job> {
    let plain = Plain {
        count: (rate * ENDS as f64 / 1e6) as usize,
        rate,
        prompt: load.prompt.clone(),
        output: load.output,
        bursts: None,
        long: None,
        impatient: None,
    };
    let mut rng = Rng::new(mix2(seed, 0x0ead));
    let mut jobs = plain.jobs(seed);
    jobs.iter_mut().for_each(|job| class(rng.unit(), job));
    finish(jobs, seed)
}

fn run(load: &Load, setting: Setting, jobs: &[Job], seed: u64) -> Vec<Record> {
    let pod = EngineConfig {
        num_gpu_blocks: load.blocks,
        ..EngineConfig::h100()
    };
    let pods = vec![pod; 4];
    let clients = Clients::Plain(Plain {
        count: 0,
        rate: 1.0,
        prompt: 0..1,
        output: 1.0,
        bursts: None,
        long: None,
        impatient: None,
    });
    let scenario = Scenario {
        admission: setting.admission(),
        ..Scenario::new("overload", Family::Overload, pods, clients)
    };
    let routers = vec![Arm::Berth.router(&scenario, 0, seed)];
    World::new(jobs, scenario.fleet(), Vec::new(), routers, scenario.workers, seed)
        .run()
        .records
}

fn classes(jobs: &[Job], records: &[Record], is_first: impl Fn(&Job) -> bool) -> [Class; 2] {
    let mut classes = [Class::default(), Class::default()];
    for (job, record) in jobs.iter().zip(records) {
        classes[usize::from(!is_first(job))].add(job, record);
    }
    for class in &mut classes {
        class.ttft.sort_by(f64::total_cmp);
    }
    classes
}

fn by_objective(load: &Load, setting: Setting, seed: u64) -> [Class; 2] {
    let jobs = jobs(load, 65.0, seed, |lot, job| {
        job.objective = Some(if lot < 0.2 { "chat" } else { "batch" });
    });
    classes(&jobs, &run(load, setting, &jobs, seed), |job| {
        job.objective == Some("chat")
    })
}

/// What `chat` and `batch` get.
#[must_use]
pub fn priorities(setting: Setting, seed: u64) -> [Class; 2] {
    by_objective(&PROMPTS, setting, seed)
}

/// The same where it is not time that the pods lack, but memory.
#[must_use]
pub fn long_answers(setting: Setting, seed: u64) -> [Class; 2] {
    by_objective(&ANSWERS, setting, seed)
}

/// What the small tenant and the large one get.
#[must_use]
pub fn tenants(setting: Setting, seed: u64) -> [Class; 2] {
    let jobs = jobs(&PROMPTS, 330.0, seed, |lot, job| {
        job.tenant = Some(if lot < 1.0 / 11.0 { "small" } else { "large" });
    });
    classes(&jobs, &run(&PROMPTS, setting, &jobs, seed), |job| {
        job.tenant == Some("small")
    })
}

/// All, as tables.
#[must_use]
pub fn tables(seed: u64) -> String {
    let mut text = String::new();
    for (title, names, of, settings) in [
        (
            "Priorities",
            ["chat", "batch"],
            priorities as fn(Setting, u64) -> [Class; 2],
            &Setting::ALL[..],
        ),
        (
            "Priorities, long answers",
            ["chat", "batch"],
            long_answers,
            &Setting::ALL,
        ),
        ("Tenants", ["small", "large"], tenants, &[Setting::Off, Setting::Queue]),
    ] {
        let heads = [
            "admission",
            "class",
            "requests",
            "answered",
            "TTFT mean",
            "p99",
            "good",
            "tokens/s",
        ];
        let mut table = Table::new(heads);
        for setting in settings {
            let classes = of(*setting, seed);
            for (name, class) in names.into_iter().zip(&classes) {
                table.row(row(setting.name(), name, class));
            }
            let mut all = Class::default();
            for class in classes {
                all.count += class.count;
                all.answered += class.answered;
                all.good += class.good;
                all.tokens += class.tokens;
                all.ttft.extend(class.ttft);
            }
            all.ttft.sort_by(f64::total_cmp);
            table.row(row(setting.name(), "all", &all));
        }
        text.push_str(&format!("\n**{title}**\n\n{}", table.render()));
    }
    text
}

fn row(setting: &str, name: &str, class: &Class) -> Vec<String> {
    let part = |count: usize| format!("{:.0} %", 100.0 * count as f64 / class.count.max(1) as f64);
    vec![
        setting.to_owned(),
        name.to_owned(),
        class.count.to_string(),
        part(class.answered),
        format!("{:.0}", class.mean()),
        format!("{:.0}", class.p99()),
        part(class.good),
        format!("{:.0}", class.tokens as f64 / ((ENDS - BUILDS_UP) as f64 / 1e6)),
    ]
}
