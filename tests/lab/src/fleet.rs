//! The pods of a run: engines, and what goes wrong with them.

use berth_tests_simulator::engine::{Adapter, Counters, Engine, EngineConfig, Gauges, Micros, StepReport};
use berth_tests_simulator::page::{self, Page};

/// Discovery notices a dead pod after this time: a readiness probe every 5 s that must fail twice.
pub const DEATH_NOTICED_AFTER: Micros = 10_000_000;

/// Unix seconds at virtual time 0: LoRA clocks and start times on pages need a date.
pub const EPOCH_SECONDS: u64 = 1_790_000_000;

/// Something that goes wrong with a pod.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    /// Its number.
    pub pod: usize,
    /// When.
    pub at: Micros,
    /// What.
    pub kind: FaultKind,
}

/// What can go wrong.
#[derive(Debug, Clone, Copy)]
pub enum FaultKind {
    /// From then on every step takes so many times longer.
    Slow(f64),
    /// From then on its metrics page shows the state at that time.
    Freeze,
    /// It joins the pool then, with a metrics port that nobody answers.
    JoinUnread,
    /// It dies then and starts anew so much later. Discovery drops it after [`DEATH_NOTICED_AFTER`].
    Die(Micros),
    /// Its node is gone then, and back so much later: what is sent there gets no answer at all, not even a refusal. What
    /// was on it fails when discovery drops it.
    Lose(Micros),
    /// Its engine dies then, and all starts anew so much later. Its server goes on, answers every request with a 500 at
    /// once, and its health and metrics as before: those stay as they were.
    Break(Micros),
    /// From then on its engine computes nothing. Its server goes on, takes requests, and shows metrics that stand still.
    Hang,
    /// From then on its scheduler admits nobody, as [`Engine::jam`] says.
    Jam,
    /// From then on nobody answers at its metrics port.
    Unread,
    /// It is replaced: drained then, a new one in its place after [`REPLACED_AFTER`] that is slow at first.
    Replace,
}

/// A pod that is replaced has this time to end what it has, and the new one to load.
pub const REPLACED_AFTER: Micros = 10_000_000;
/// A new one is slow for this time, by [`COLD`]: kernels are compiled when they are first needed. Reports say 1.5 s for a
/// first prompt of 58 ms (vLLM #39790), 14 s more for one (syv-ai/qwen38-27b-rtx3090 #155), and up to 40 s until full speed.
pub const COLD_FOR: Micros = 10_000_000;
/// Its steps take so many times longer then.
pub const COLD: f64 = 8.0;
/// Steps of an engine that hangs take so many times longer: none ends within a run.
const HANGS: f64 = 1e9;

/// What one look at a pod's metrics shows.
#[derive(Debug, Clone)]
pub struct Scrape {
    /// Load.
    pub gauges: Gauges,
    /// Totals.
    pub counters: Counters,
    /// Virtual time at which this process started.
    pub started: Micros,
}

impl Scrape {
    /// Requests waiting, for whatever reason.
    #[must_use]
    pub fn waiting(&self) -> u32 {
        self.gauges.waiting_capacity + self.gauges.waiting_deferred
    }
}

/// What somebody who connects to a pod meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// It takes requests.
    Open,
    /// It refuses the connection.
    Refuses,
    /// Nothing answers.
    Silent,
    /// It takes requests and answers each with a 500.
    Broken,
}

/// One pod.
pub struct Pod {
    /// Its engine.
    pub engine: Engine,
    /// Discovery names it.
    pub listed: bool,
    /// What its port does.
    pub door: Door,
    /// Its metrics port answers.
    readable: bool,
    frozen: Option<Scrape>,
    started: Micros,
    config: EngineConfig,
    /// The full page, where the scenario asks for one.
    page: Option<Page>,
    /// Totals of its former lives.
    pub before: Counters,
    /// Adapters that were not in a slot when a step needed them, of its former lives.
    pub loads_before: u64,
}

impl Pod {
    /// An idle pod.
    #[must_use]
    pub fn new(config: EngineConfig, full_page: bool) -> Self {
        Self {
            page: full_page.then(|| Page::new(&config, BASE_MODEL, EPOCH_SECONDS as f64, 1.0)),
            engine: Engine::new(config.clone()),
            listed: true,
            door: Door::Open,
            readable: true,
            frozen: None,
            started: 0,
            config,
            before: Counters::default(),
            loads_before: 0,
        }
    }

    /// Its process or its node is gone.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(self.door, Door::Refuses | Door::Silent)
    }

    /// What a poller gets; none = nobody answers.
    pub fn scrape(&mut self, now: Micros) -> Option<Scrape> {
        (!self.is_gone() && self.readable).then(|| self.look(now))
    }

    fn look(&mut self, now: Micros) -> Scrape {
        if let Some(frozen) = &self.frozen {
            return frozen.clone();
        }
        Scrape {
            gauges: self.engine.gauges(now).clone(),
            counters: *self.engine.counters(),
            started: self.started,
        }
    }

    /// The text of a page with this reading.
    #[must_use]
    pub fn page(&self, scrape: &Scrape) -> String {
        match &self.page {
            Some(page) => page.render(&scrape.gauges, &scrape.counters),
            None => crate::page::short(&self.config, scrape),
        }
    }

    /// What an answer that is no stream says of its load, by the gauges of the page, whoever may read that; none = the engine is gone.
    pub fn report(&mut self, now: Micros) -> Option<String> {
        if self.is_gone() {
            return None;
        }
        let scrape = self.look(now);
        Some(page::load_report(scrape.waiting().into(), scrape.gauges.kv_usage))
    }

    /// Takes in what the engine did.
    pub fn observe(&mut self, report: &StepReport) {
        if let Some(page) = &mut self.page {
            page.observe(report);
            let finished = report
                .events
                .iter()
                .filter(|event| matches!(event.kind, berth_tests_simulator::engine::EventKind::Finished(_)));
            finished.for_each(|_| page.count_end(true));
        }
    }

    /// Its limits.
    #[must_use]
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Totals over all its lives.
    #[must_use]
    pub fn totals(&self) -> (Counters, u64) {
        (
            add(self.before, *self.engine.counters()),
            self.loads_before + self.engine.adapter_loads(),
        )
    }

    fn die(&mut self, door: Door) {
        self.door = door;
        (self.before, self.loads_before) = self.totals();
        self.engine = Engine::new(self.config.clone());
    }

    fn start(&mut self, now: Micros) {
        self.door = Door::Open;
        self.listed = true;
        self.frozen = None;
        self.started = now;
        if self.page.is_some() {
            let at = EPOCH_SECONDS as f64 + now as f64 / 1e6;
            self.page = Some(Page::new(&self.config, BASE_MODEL, at, 1.0));
        }
    }
}

fn add(a: Counters, b: Counters) -> Counters {
    Counters {
        prompt_tokens: a.prompt_tokens + b.prompt_tokens,
        cached_prompt_tokens: a.cached_prompt_tokens + b.cached_prompt_tokens,
        generation_tokens: a.generation_tokens + b.generation_tokens,
        prefix_queries: a.prefix_queries + b.prefix_queries,
        prefix_hits: a.prefix_hits + b.prefix_hits,
        preemptions: a.preemptions + b.preemptions,
        finished: a.finished + b.finished,
        cancelled: a.cancelled + b.cancelled,
    }
}

/// Name of the base model on all pods.
pub const BASE_MODEL: &str = "base";

/// The pods, and what may be known of them as a whole.
pub struct Fleet {
    /// All that ever exist, by number.
    pub pods: Vec<Pod>,
    /// Names on every pod's models page.
    pub adapters: Vec<Adapter>,
    /// Rises when discovery changes its mind.
    pub discovery: u64,
}

/// A step in the life of a pod.
#[derive(Debug, Clone, Copy)]
pub enum Turn {
    /// See [`FaultKind::Slow`].
    Slow(usize, f64),
    /// See [`FaultKind::Freeze`].
    Freeze(usize),
    /// Discovery shows the pod.
    Join(usize),
    /// The process, its node or its engine dies; what its port does then.
    Die(usize, Door),
    /// Discovery drops it, unless it is back.
    Drop(usize),
    /// The process is up again.
    Start(usize),
    /// See [`FaultKind::Jam`].
    Jam(usize),
    /// See [`FaultKind::Unread`].
    Unread(usize),
    /// No new requests.
    Drain(usize),
}

impl Turn {
    const fn is_seen_by_discovery(self) -> bool {
        matches!(self, Self::Join(_) | Self::Drop(_) | Self::Start(_) | Self::Drain(_))
    }
}

impl Fleet {
    /// Numbers of the pods that discovery names.
    #[must_use]
    pub fn listed(&self) -> Vec<usize> {
        (0..self.pods.len()).filter(|pod| self.pods[*pod].listed).collect()
    }

    /// When each fault does what; `scale` stretches the times. Pods that join later are hidden at once.
    pub fn turns(&mut self, faults: &[Fault], scale: f64) -> Vec<(Micros, Turn)> {
        let scaled = |time: Micros| (time as f64 * scale) as Micros;
        let mut turns = Vec::new();
        for Fault { pod, at, kind } in faults {
            let (pod, at) = (*pod, scaled(*at));
            match *kind {
                FaultKind::Slow(factor) => turns.push((at, Turn::Slow(pod, factor))),
                FaultKind::Freeze => turns.push((at, Turn::Freeze(pod))),
                FaultKind::JoinUnread => {
                    self.pods[pod].listed = false;
                    self.pods[pod].readable = false;
                    turns.push((at, Turn::Join(pod)));
                }
                FaultKind::Die(back_after) | FaultKind::Lose(back_after) => {
                    let door = if matches!(kind, FaultKind::Die(_)) {
                        Door::Refuses
                    } else {
                        Door::Silent
                    };
                    turns.push((at, Turn::Die(pod, door)));
                    turns.push((at + DEATH_NOTICED_AFTER, Turn::Drop(pod)));
                    turns.push((at + scaled(back_after), Turn::Start(pod)));
                }
                FaultKind::Break(back_after) => {
                    turns.push((at, Turn::Die(pod, Door::Broken)));
                    turns.push((at + scaled(back_after), Turn::Start(pod)));
                }
                FaultKind::Hang => turns.push((at, Turn::Slow(pod, HANGS))),
                FaultKind::Jam => turns.push((at, Turn::Jam(pod))),
                FaultKind::Unread => turns.push((at, Turn::Unread(pod))),
                FaultKind::Replace => {
                    let back = at + scaled(REPLACED_AFTER);
                    turns.push((at, Turn::Drain(pod)));
                    turns.push((back, Turn::Die(pod, Door::Refuses)));
                    turns.push((back, Turn::Slow(pod, COLD)));
                    turns.push((back, Turn::Start(pod)));
                    turns.push((back + scaled(COLD_FOR), Turn::Slow(pod, 1.0)));
                }
            }
        }
        turns
    }

    /// Makes it so.
    pub fn turn(&mut self, turn: Turn, now: Micros) {
        self.discovery += u64::from(turn.is_seen_by_discovery());
        match turn {
            Turn::Slow(pod, factor) => self.pods[pod].engine.set_slowdown(factor),
            Turn::Freeze(pod) => self.pods[pod].frozen = self.pods[pod].scrape(now),
            Turn::Join(pod) => self.pods[pod].listed = true,
            Turn::Die(pod, door) => {
                if door == Door::Broken {
                    self.pods[pod].frozen = self.pods[pod].scrape(now);
                }
                self.pods[pod].die(door);
            }
            Turn::Drop(pod) => self.pods[pod].listed = !self.pods[pod].is_gone(),
            Turn::Start(pod) => self.pods[pod].start(now),
            Turn::Jam(pod) => self.pods[pod].engine.jam(),
            Turn::Unread(pod) => self.pods[pod].readable = false,
            Turn::Drain(pod) => self.pods[pod].listed = false,
        }
    }
}

#[cfg(test)]
mod tests;
