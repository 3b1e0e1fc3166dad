//! The pods of a run: engines, and what goes wrong with them.

use berth_tests_simulator::engine::{Adapter, Counters, Engine, EngineConfig, Gauges, Micros, StepReport};
use berth_tests_simulator::page::Page;

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
}

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

/// One pod.
pub struct Pod {
    /// Its engine.
    pub engine: Engine,
    /// Discovery names it.
    pub listed: bool,
    /// Nobody listens.
    pub down: bool,
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
            down: false,
            readable: true,
            frozen: None,
            started: 0,
            config,
            before: Counters::default(),
            loads_before: 0,
        }
    }

    /// What a poller gets; none = nobody answers.
    pub fn scrape(&mut self, now: Micros) -> Option<Scrape> {
        if self.down || !self.readable {
            return None;
        }
        if let Some(frozen) = &self.frozen {
            return Some(frozen.clone());
        }
        let gauges = self.engine.gauges(now).clone();
        Some(Scrape {
            gauges,
            counters: *self.engine.counters(),
            started: self.started,
        })
    }

    /// The text of a page with this reading.
    #[must_use]
    pub fn page(&self, scrape: &Scrape) -> String {
        match &self.page {
            Some(page) => page.render(&scrape.gauges, &scrape.counters),
            None => crate::page::short(&self.config, scrape),
        }
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

    fn die(&mut self) {
        self.down = true;
        (self.before, self.loads_before) = self.totals();
        self.engine = Engine::new(self.config.clone());
    }

    fn start(&mut self, now: Micros) {
        self.down = false;
        self.listed = true;
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
    /// The process dies.
    Die(usize),
    /// Discovery drops it, unless it is back.
    Drop(usize),
    /// The process is up again.
    Start(usize),
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
                FaultKind::Die(back_after) => {
                    turns.push((at, Turn::Die(pod)));
                    turns.push((at + DEATH_NOTICED_AFTER, Turn::Drop(pod)));
                    turns.push((at + scaled(back_after), Turn::Start(pod)));
                }
            }
        }
        turns
    }

    /// Makes it so.
    pub fn turn(&mut self, turn: Turn, now: Micros) {
        self.discovery += u64::from(!matches!(turn, Turn::Slow(..) | Turn::Freeze(_)));
        match turn {
            Turn::Slow(pod, factor) => self.pods[pod].engine.set_slowdown(factor),
            Turn::Freeze(pod) => self.pods[pod].frozen = self.pods[pod].scrape(now),
            Turn::Join(pod) => self.pods[pod].listed = true,
            Turn::Die(pod) => self.pods[pod].die(),
            Turn::Drop(pod) => self.pods[pod].listed = !self.pods[pod].down,
            Turn::Start(pod) => self.pods[pod].start(now),
        }
    }
}
