//! One run: clients send jobs through proxies to pods, in virtual time.
//!
//! ```text
//! jobs -> proxy (a Router) -> ranked pods -> the first that listens: engine -> first token, end -> Router
//!                ^  every so often: Router::tick reads pages from the fleet
//! ```
//!
//! Equal seeds give equal runs. The network takes no time, so what differs between two runs is the choice of pods.

use crate::client::{Job, READING_TIME};
use crate::fleet::{Door, Fleet, Turn};
use crate::record::{Record, Run};
use berth_filter_routing::ledger::Outcome;
use berth_tests_simulator::engine::{EventKind, Micros, Request, StepReport};
use berth_tests_simulator::random::{Rng, mix2};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Pods tried for one request.
pub const ATTEMPTS: usize = 3;
/// A connection that nobody answers is given up after this time, as in the rendered clusters.
pub const CONNECT_TIMEOUT: Micros = 1_000_000;
/// A run ends this long after the last job, whatever is still under way.
const PATIENCE: Micros = 300_000_000;
/// First job: by then every poller has read every page once.
pub const START: Micros = 3_000_000;

/// One request on its way through a proxy.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// Its number.
    pub id: usize,
    /// What it is.
    pub job: &'a Job,
    /// All jobs, for those who know the future.
    pub jobs: &'a [Job],
    /// Worker of the proxy that it came to.
    pub worker: usize,
}

/// What decides in one proxy.
pub trait Router {
    /// How often [`Self::tick`] is called; none = never.
    fn tick_every(&self) -> Option<Micros> {
        None
    }

    /// Time passed.
    fn tick(&mut self, _fleet: &mut Fleet, _now: Micros) {}

    /// What becomes of a request that came.
    fn admit(&mut self, asked: &Asked<'_>, fleet: &mut Fleet, now: Micros) -> Admitted {
        Admitted::To(self.pick(asked, fleet, now))
    }

    /// Requests that waited and do not any more. Asked for after each tick and each end.
    fn released(&mut self, _fleet: &Fleet, _now: Micros) -> Vec<(usize, Admitted)> {
        Vec::new()
    }

    /// Pods in order of preference, at least one.
    fn pick(&mut self, asked: &Asked<'_>, fleet: &mut Fleet, now: Micros) -> Vec<usize>;

    /// The request was taken by this pod, after so many refused the connection.
    fn sent(&mut self, _asked: &Asked<'_>, _pod: usize, _refused: usize, _now: Micros) {}

    /// The first byte of the answer came.
    fn first_byte(&mut self, _asked: &Asked<'_>, _pod: usize, _now: Micros) {}

    /// One more token of a streamed answer came.
    fn token(&mut self, _asked: &Asked<'_>, _now: Micros) {}

    /// An answer that is no stream came, with what the pod says of its load in a header: `endpoint-load-metrics`.
    fn reported(&mut self, _asked: &Asked<'_>, _pod: usize, _report: &str, _now: Micros) {}

    /// It is over.
    fn ended(&mut self, _asked: &Asked<'_>, _pod: usize, _outcome: Outcome, _now: Micros) {}
}

/// What a proxy does with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admitted {
    /// Sends it to these pods, in order of preference.
    To(Vec<usize>),
    /// Keeps it.
    Waits,
    /// Answers it with 429.
    Shed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Wake(usize),
    Turn(usize),
    Tick(usize),
    Arrive(usize),
    Leave(usize),
    /// Leaves if no first token came.
    GiveUp(usize),
    Dial(usize),
    Go(usize),
}

/// A run under way.
pub struct World<'a> {
    jobs: &'a [Job],
    fleet: Fleet,
    proxies: Vec<Box<dyn Router>>,
    workers: usize,
    seed: u64,
    turns: Vec<(Micros, Turn)>,
    events: BinaryHeap<Reverse<(Micros, u64, What)>>,
    scheduled: u64,
    wake_at: Vec<Option<Micros>>,
    at_pod: Vec<Option<usize>>,
    /// Who waits for the end of this job.
    follower: Vec<Option<usize>>,
    held: Vec<bool>,
    /// Kept by a proxy.
    waits: Vec<bool>,
    /// Pods that it is sent to in turn, and how many of them did not answer.
    dialled: Vec<Option<(Vec<usize>, usize)>>,
    /// What became of one that was kept.
    admitted: Vec<Option<Admitted>>,
    records: Vec<Record>,
    left: usize,
    run: Run,
    rng: Rng,
}

impl<'a> World<'a> {
    /// Before the first event.
    #[must_use]
    pub fn new(
        jobs: &'a [Job],
        fleet: Fleet,
        turns: Vec<(Micros, Turn)>,
        proxies: Vec<Box<dyn Router>>,
        workers: usize,
        seed: u64,
    ) -> Self {
        let mut world = Self {
            wake_at: vec![None; fleet.pods.len()],
            at_pod: vec![None; jobs.len()],
            follower: vec![None; jobs.len()],
            held: vec![false; jobs.len()],
            waits: vec![false; jobs.len()],
            dialled: vec![None; jobs.len()],
            admitted: vec![None; jobs.len()],
            records: vec![Record::default(); jobs.len()],
            left: jobs.len(),
            events: BinaryHeap::new(),
            scheduled: 0,
            run: Run::default(),
            rng: Rng::new(mix2(seed, 0x3041d)),
            jobs,
            fleet,
            proxies,
            workers,
            seed,
            turns,
        };
        for (index, job) in jobs.iter().enumerate() {
            world.schedule(job.at + START, What::Arrive(index));
            if let Some(before) = job.after {
                world.follower[before] = Some(index);
            }
        }
        for proxy in 0..world.proxies.len() {
            // Proxies do not tick in step.
            let every = world.proxies[proxy].tick_every();
            if let Some(every) = every {
                world.schedule(mix2(seed, proxy as u64) % every, What::Tick(proxy));
            }
        }
        for turn in 0..world.turns.len() {
            world.schedule(world.turns[turn].0 + START, What::Turn(turn));
        }
        world
    }

    fn schedule(&mut self, at: Micros, what: What) {
        self.scheduled += 1;
        self.events.push(Reverse((at, self.scheduled, what)));
    }

    /// Runs to the end.
    #[must_use]
    pub fn run(mut self) -> Run {
        let end = self.jobs.last().map_or(0, |job| job.at) + START + PATIENCE;
        let mut now = 0;
        while let Some(Reverse((at, _, what))) = self.events.pop()
            && self.left > 0
            && at <= end
        {
            now = at;
            self.on(what, at);
        }
        for (record, job) in self.records.iter_mut().zip(self.jobs) {
            record.counts = job.straight_to.is_none();
            record.close(now);
        }
        for pod in &self.fleet.pods {
            let (counters, loads) = pod.totals();
            self.run.add_pod(&counters, loads);
        }
        self.run.records = self.records;
        self.run
    }

    fn on(&mut self, what: What, now: Micros) {
        match what {
            What::Wake(pod) if self.wake_at[pod] == Some(now) => self.step(pod, now),
            What::Wake(_) => {}
            What::Tick(proxy) => {
                self.proxies[proxy].tick(&mut self.fleet, now);
                self.release(proxy, now);
                if let Some(every) = self.proxies[proxy].tick_every() {
                    self.schedule(now + every, What::Tick(proxy));
                }
            }
            What::Turn(index) => self.turn(index, now),
            What::Arrive(index) => self.arrive(index, now),
            What::Leave(index) => self.leave(index, now),
            What::GiveUp(index) if self.records[index].first_token_at.is_none() => self.leave(index, now),
            What::GiveUp(_) => {}
            What::Dial(index) => self.dial(index, now),
            What::Go(index) => {
                if let Some(admitted) = self.admitted[index].take().filter(|_| self.waits[index]) {
                    self.waits[index] = false;
                    self.go(index, admitted, now);
                }
            }
        }
    }

    fn proxy_of(&self, index: usize) -> usize {
        (mix2(self.seed ^ 0x9e, index as u64) % self.proxies.len() as u64) as usize
    }

    fn asked(&self, index: usize) -> Asked<'a> {
        let worker = (mix2(self.seed ^ 0x77, index as u64) % self.workers as u64) as usize;
        Asked {
            id: index,
            job: &self.jobs[index],
            jobs: self.jobs,
            worker,
        }
    }

    fn arrive(&mut self, index: usize, now: Micros) {
        if self.jobs[index]
            .after
            .is_some_and(|before| !self.records[before].is_over())
        {
            self.held[index] = true;
            return;
        }
        self.records[index].sent_at = Some(now);
        let (proxy, asked) = (self.proxy_of(index), self.asked(index));
        if let Some(patience) = self.jobs[index].patience {
            self.schedule(now + patience, What::Leave(index));
        }
        if let Some(limit) = self.jobs[index].gives_up_after {
            self.schedule(now + limit, What::GiveUp(index));
        }
        if let Some(pod) = self.jobs[index].straight_to {
            self.at_pod[index] = Some(pod);
            return self.submit(index, pod, now);
        }
        let admitted = self.proxies[proxy].admit(&asked, &mut self.fleet, now);
        self.go(index, admitted, now);
    }

    fn release(&mut self, proxy: usize, now: Micros) {
        for (index, admitted) in self.proxies[proxy].released(&self.fleet, now) {
            self.admitted[index] = Some(admitted);
            self.schedule(now, What::Go(index));
        }
    }

    fn go(&mut self, index: usize, admitted: Admitted, now: Micros) {
        let mut ranked = match admitted {
            Admitted::To(ranked) => ranked,
            Admitted::Waits => {
                self.waits[index] = true;
                return;
            }
            Admitted::Shed => return self.end(index, 0, Outcome::Overloaded, now),
        };
        // The proxy's own load balancer takes over where the list ends.
        let listed = self.fleet.listed();
        while ranked.len() < ATTEMPTS && !listed.is_empty() {
            ranked.push(listed[self.rng.below(listed.len() as u64) as usize]);
        }
        ranked.truncate(ATTEMPTS);
        self.dialled[index] = Some((ranked, 0));
        self.dial(index, now);
    }

    /// Tries pod after pod. One that refuses costs no time; one that says nothing costs [`CONNECT_TIMEOUT`].
    fn dial(&mut self, index: usize, now: Micros) {
        let Some((ranked, tried)) = self.dialled[index].take() else {
            return;
        };
        let refuses = |pod: &usize| self.fleet.pods[*pod].door == Door::Refuses;
        let tried = tried + ranked[tried..].iter().take_while(|pod| refuses(pod)).count();
        let Some(pod) = ranked.get(tried).copied() else {
            let pod = ranked.last().copied().unwrap_or_default();
            return self.end(index, pod, Outcome::Unreachable, now);
        };
        let door = self.fleet.pods[pod].door;
        if door == Door::Silent {
            self.dialled[index] = Some((ranked, tried + 1));
            return self.schedule(now + CONNECT_TIMEOUT, What::Dial(index));
        }
        let (proxy, asked) = (self.proxy_of(index), self.asked(index));
        self.at_pod[index] = Some(pod);
        self.run.refused += tried as u64;
        self.proxies[proxy].sent(&asked, pod, tried, now);
        if door == Door::Broken {
            return self.end(index, pod, Outcome::ServerError, now);
        }
        self.submit(index, pod, now);
    }

    fn submit(&mut self, index: usize, pod: usize, now: Micros) {
        self.fleet.pods[pod]
            .engine
            .submit(request(index, &self.jobs[index]), now);
        self.step(pod, now);
    }

    /// Lets a pod go on, and hands out what it did.
    fn step(&mut self, pod: usize, now: Micros) {
        let report = self.fleet.pods[pod].engine.step(now);
        self.fleet.pods[pod].observe(&report);
        self.wake_at[pod] = report.next_wakeup;
        if let Some(at) = report.next_wakeup {
            self.schedule(at, What::Wake(pod));
        }
        self.take_in(pod, report, now);
    }

    fn take_in(&mut self, pod: usize, report: StepReport, now: Micros) {
        for event in report.events {
            let index = event.id as usize;
            let (proxy, asked) = (self.proxy_of(index), self.asked(index));
            let direct = asked.job.straight_to.is_some();
            match event.kind {
                EventKind::FirstToken { .. } => {
                    self.records[index].first_token_at = Some(event.at);
                    if self.jobs[index].streams && !direct {
                        self.proxies[proxy].first_byte(&asked, pod, now);
                    }
                }
                EventKind::Token { gap } => {
                    self.run.gaps.add(gap);
                    if self.jobs[index].streams && !direct {
                        self.proxies[proxy].token(&asked, now);
                    }
                }
                EventKind::Finished(done) => {
                    self.records[index].output_tokens = done.output_tokens;
                    if !self.jobs[index].streams && !direct {
                        if let Some(report) = self.fleet.pods[pod].report(now) {
                            self.proxies[proxy].reported(&asked, pod, &report, now);
                        }
                        self.proxies[proxy].first_byte(&asked, pod, now);
                    }
                    self.end(index, pod, Outcome::Success, now);
                }
                EventKind::Rejected(_) => self.end(index, pod, Outcome::Refused, now),
            }
        }
    }

    fn end(&mut self, index: usize, pod: usize, outcome: Outcome, now: Micros) {
        let (proxy, asked) = (self.proxy_of(index), self.asked(index));
        self.records[index].end(outcome, now);
        self.at_pod[index] = None;
        self.left -= 1;
        if asked.job.straight_to.is_none() {
            self.proxies[proxy].ended(&asked, pod, outcome, now);
            self.release(proxy, now);
        }
        if let Some(next) = self.follower[index].filter(|next| self.held[*next]) {
            self.schedule(now + READING_TIME, What::Arrive(next));
        }
    }

    fn leave(&mut self, index: usize, now: Micros) {
        if let Some(pod) = self.at_pod[index] {
            self.fleet.pods[pod].engine.cancel(index as u64, now);
            self.end(index, pod, Outcome::Abandoned, now);
            self.step(pod, now);
        } else if std::mem::take(&mut self.waits[index]) || self.dialled[index].take().is_some() {
            self.end(index, 0, Outcome::Abandoned, now);
        }
    }

    fn turn(&mut self, index: usize, now: Micros) {
        let turn = self.turns[index].1;
        self.fleet.turn(turn, now);
        // Of a node that is gone nobody hears, until discovery says so.
        let (lost_at, outcome) = match turn {
            Turn::Die(pod, Door::Silent) => {
                self.wake_at[pod] = None;
                return;
            }
            Turn::Die(pod, Door::Broken) => (Some(pod), Outcome::ServerError),
            Turn::Die(pod, _) => (Some(pod), Outcome::Unreachable),
            Turn::Drop(pod) if self.fleet.pods[pod].door == Door::Silent => (Some(pod), Outcome::Unreachable),
            _ => (None, Outcome::Unreachable),
        };
        if let Some(pod) = lost_at {
            self.wake_at[pod] = None;
            let lost: Vec<usize> = (0..self.jobs.len())
                .filter(|index| self.at_pod[*index] == Some(pod))
                .collect();
            for index in lost {
                self.end(index, pod, outcome, now);
            }
        }
    }
}

/// A job as the engine sees it.
#[must_use]
pub fn request(index: usize, job: &Job) -> Request {
    Request {
        id: index as u64,
        chain: job.chain.clone(),
        prompt_tokens: job.prompt_tokens,
        output_tokens: job.output_tokens,
        adapter: job.adapter.clone(),
    }
}
