//! Made-up clients: shared prefixes, chats, adapters, bursts, long contexts, impatience.

use super::Job;
use berth_tests_simulator::chain::Segment;
use berth_tests_simulator::engine::{Adapter, Micros};
use berth_tests_simulator::random::{Rng, mix2};
use std::ops::Range;

const SECOND: f64 = 1e6;

/// A Poisson stream: `count` times, on average `rate` a second.
fn poisson(rng: &mut Rng, count: usize, rate: f64) -> Vec<Micros> {
    let mut at = 0.0;
    let next = |_| {
        at += rng.exponential(SECOND / rate);
        at as Micros
    };
    (0..count).map(next).collect()
}

fn between(rng: &mut Rng, range: &Range<u32>) -> u32 {
    range.start + rng.below(u64::from(range.end - range.start)) as u32
}

/// An answer's length: log-normal, between a tenth and eight times its median.
fn answer(rng: &mut Rng, median: f64) -> u32 {
    rng.log_normal(median, 0.7).clamp(median / 10.0, median * 8.0) as u32
}

/// A text that nobody else has.
fn fresh(rng: &mut Rng, tokens: u32) -> Segment {
    Segment {
        id: rng.next_u64(),
        tokens,
    }
}

/// How often members of a set are asked for.
#[derive(Debug, Clone, Copy)]
pub enum Popularity {
    /// All alike.
    Even,
    /// The k-th most popular with weight 1/k.
    Zipf,
    /// This part of the requests goes to one, the rest evenly.
    Hot(f64),
}

impl Popularity {
    fn draw(self, rng: &mut Rng, of: usize) -> usize {
        match self {
            Self::Zipf => rng.zipf(of),
            Self::Hot(part) if rng.unit() < part => 0,
            Self::Even | Self::Hot(_) => rng.below(of as u64) as usize,
        }
    }
}

/// Groups with a common prefix each: system prompts, tools, documents.
#[derive(Debug, Clone)]
pub struct Groups {
    /// Requests.
    pub count: usize,
    /// Requests per second.
    pub rate: f64,
    /// Groups.
    pub groups: usize,
    /// Tokens of a group's prefix; each has one length.
    pub prefix: Range<u32>,
    /// Tokens of a request's own part.
    pub own: Range<u32>,
    /// Median tokens of an answer.
    pub output: f64,
    /// Which group asks.
    pub popularity: Popularity,
}

impl Groups {
    /// The jobs.
    #[must_use]
    pub fn jobs(&self, seed: u64) -> Vec<Job> {
        let mut rng = Rng::new(mix2(seed, 0x6007));
        let prefixes: Vec<Segment> = (0..self.groups)
            .map(|_| {
                let tokens = between(&mut rng, &self.prefix);
                fresh(&mut rng, tokens)
            })
            .collect();
        let times = poisson(&mut rng, self.count, self.rate);
        let job = |at| {
            let group = self.popularity.draw(&mut rng, self.groups);
            let tokens = between(&mut rng, &self.own);
            let prompt = vec![prefixes[group], fresh(&mut rng, tokens)];
            Job {
                at,
                prompt,
                output_tokens: answer(&mut rng, self.output),
                ..Job::default()
            }
        };
        times.into_iter().map(job).collect()
    }
}

/// Conversations: each prompt repeats all that was said before.
#[derive(Debug, Clone)]
pub struct Chats {
    /// Conversations.
    pub count: usize,
    /// Conversations begun per second.
    pub rate: f64,
    /// Different system prompts.
    pub systems: usize,
    /// Tokens of a system prompt.
    pub system: Range<u32>,
    /// Prompts in a conversation.
    pub turns: Range<u32>,
    /// Tokens a user adds.
    pub user: Range<u32>,
    /// Median tokens of an answer.
    pub output: f64,
    /// Mean seconds between two prompts.
    pub pause: f64,
}

impl Chats {
    /// The jobs.
    #[must_use]
    pub fn jobs(&self, seed: u64) -> Vec<Job> {
        let mut rng = Rng::new(mix2(seed, 0xc4a7));
        let systems: Vec<Segment> = (0..self.systems)
            .map(|_| {
                let tokens = between(&mut rng, &self.system);
                fresh(&mut rng, tokens)
            })
            .collect();
        let mut jobs: Vec<Job> = Vec::new();
        for start in poisson(&mut rng, self.count, self.rate) {
            let system = systems[rng.below(systems.len() as u64) as usize];
            let (mut at, mut said, mut after) = (start, vec![system], None);
            for _ in 0..between(&mut rng, &self.turns) {
                let tokens = between(&mut rng, &self.user);
                said.push(fresh(&mut rng, tokens));
                let output = Segment {
                    id: rng.next_u64(),
                    tokens: answer(&mut rng, self.output).max(1),
                };
                let (prompt, id) = (said.clone(), Some(output.id));
                jobs.push(Job {
                    at,
                    after,
                    prompt,
                    answer: id,
                    output_tokens: output.tokens,
                    ..Job::default()
                });
                said.push(output);
                after = Some(jobs.len() - 1);
                at += (rng.exponential(self.pause) * SECOND) as Micros;
            }
        }
        jobs
    }
}

/// Requests that each name an adapter.
#[derive(Debug, Clone)]
pub struct Adapters {
    /// Requests.
    pub count: usize,
    /// Requests per second.
    pub rate: f64,
    /// Adapters; the k-th is asked for with weight 1/k.
    pub adapters: usize,
    /// Part of the requests that asks for the base instead.
    pub base: f64,
    /// Tokens of a prompt.
    pub prompt: Range<u32>,
    /// Median tokens of an answer.
    pub output: f64,
    /// From here on each adapter is asked for under the name of its next version.
    pub rollout: Option<Micros>,
}

/// The name of an adapter; versions count from 1.
#[must_use]
pub fn adapter_name(index: usize, version: u32) -> String {
    format!("adapter-{index}-v{version}")
}

impl Adapters {
    /// The jobs.
    #[must_use]
    pub fn jobs(&self, seed: u64) -> Vec<Job> {
        let mut rng = Rng::new(mix2(seed, 0x10ca));
        let times = poisson(&mut rng, self.count, self.rate);
        let job = |at| {
            let version = 1 + u32::from(self.rollout.is_some_and(|rollout| at >= rollout));
            let index = rng.zipf(self.adapters);
            let adapter = (rng.unit() >= self.base).then(|| Adapter::from(adapter_name(index, version)));
            let tokens = between(&mut rng, &self.prompt);
            Job {
                at,
                prompt: vec![fresh(&mut rng, tokens)],
                output_tokens: answer(&mut rng, self.output),
                adapter,
                ..Job::default()
            }
        };
        times.into_iter().map(job).collect()
    }
}

/// What others send to a pod past all proxies, until then.
#[must_use]
pub fn past_proxies(pod: usize, rate: f64, until: Micros, seed: u64) -> Vec<Job> {
    let plain = Plain {
        count: (until as f64 / SECOND * rate) as usize,
        rate,
        prompt: 300..3_000,
        output: 180.0,
        bursts: None,
        long: None,
        impatient: None,
    };
    let mut jobs = plain.jobs(mix2(seed, 0x57a1));
    jobs.iter_mut().for_each(|job| job.straight_to = Some(pod));
    jobs
}

/// Prompts that share nothing.
#[derive(Debug, Clone)]
pub struct Plain {
    /// Requests.
    pub count: usize,
    /// Requests per second, without the bursts.
    pub rate: f64,
    /// Tokens of a prompt.
    pub prompt: Range<u32>,
    /// Median tokens of an answer.
    pub output: f64,
    /// Every so many requests, that many come within half a second more.
    pub bursts: Option<(usize, usize)>,
    /// This part of the prompts is as long as this instead.
    pub long: Option<(f64, Range<u32>)>,
    /// This part of the clients leaves, after so many seconds on average.
    pub impatient: Option<(f64, f64)>,
}

impl Plain {
    /// The jobs.
    #[must_use]
    pub fn jobs(&self, seed: u64) -> Vec<Job> {
        let mut rng = Rng::new(mix2(seed, 0x91a1));
        let mut jobs = Vec::new();
        let mut at = 0.0;
        while jobs.len() < self.count {
            at += rng.exponential(SECOND / self.rate);
            jobs.push(self.job(&mut rng, at));
            if let Some((every, size)) = self.bursts
                && jobs.len() % (every + size) == every
            {
                for _ in 0..size {
                    let shift = rng.unit() * SECOND / 2.0;
                    jobs.push(self.job(&mut rng, at + shift));
                }
            }
        }
        jobs
    }

    fn job(&self, rng: &mut Rng, at: f64) -> Job {
        let long = self.long.as_ref().filter(|(part, _)| rng.unit() < *part);
        let tokens = between(rng, long.map_or(&self.prompt, |(_, range)| range));
        let leaves = self.impatient.filter(|(part, _)| rng.unit() < *part);
        Job {
            at: at as Micros,
            prompt: vec![fresh(rng, tokens)],
            output_tokens: answer(rng, self.output),
            patience: leaves.map(|(_, mean)| (rng.exponential(mean) * SECOND) as Micros + 1),
            ..Job::default()
        }
    }
}
