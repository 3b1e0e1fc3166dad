//! The one pass over a page: wanted series, whose page it is, and the newest LoRA clock.

use xxhash_rust::xxh64::xxh64;

use super::dialect::{self, ENGINES, Role};
use super::line;
use super::lora::Clock;
use crate::limits::SERIES_PER_PAGE_MAX;
use crate::sample::Engine;
use crate::units::UnixMillis;

/// One data-parallel engine: (model, engine or rank). Absent labels are empty.
pub type Key<'a> = (&'a [u8], &'a [u8]);

/// One sample line of a wanted family.
#[derive(Clone, Copy, Debug)]
pub struct Series<'a> {
    /// What it tells.
    pub role: Role,
    /// The engine behind it; ranks and process ids repeat an engine and are not part of it.
    pub key: Key<'a>,
    /// `priority`; empty = the total over all priorities.
    pub priority: &'a [u8],
    /// Hash of all labels but ranks and process ids: tells the parts of a counter apart.
    pub part: u64,
    /// The text after the name.
    pub rest: &'a [u8],
    /// NaN where the line is broken.
    pub value: f64,
    engine: Engine,
    state: &'a [u8],
}

impl<'a> Series<'a> {
    /// Value of one label as written; empty when absent.
    pub fn label(&self, wanted: &[u8]) -> &'a [u8] {
        let mut found: &[u8] = b"";
        line::labels(self.rest, |name, value| {
            if name == wanted {
                found = value;
            }
        });
        found
    }
}

/// What a page holds.
#[derive(Debug, Default)]
pub struct Found<'a> {
    series: Vec<Series<'a>>,
    seen: Vec<Engine>,
    /// Whose page it is.
    pub origin: Origin<'a>,
    /// The newest LoRA clock.
    pub clock: Option<Clock<'a>>,
    /// Was a residency series seen, be it at zero?
    pub residency: bool,
}

impl<'a> Found<'a> {
    /// The engine: the configured one where its families are there, else the first known prefix.
    pub fn engine(&self, configured: Option<Engine>) -> Option<Engine> {
        let nim = [Role::Running, Role::Waiting, Role::Usage]
            .iter()
            .all(|&role| self.series.iter().any(|s| s.engine == Engine::Nim && s.role == role));
        configured.filter(|engine| self.seen.contains(engine)).or_else(|| {
            ENGINES
                .iter()
                .map(|&(engine, ..)| engine)
                .find(|&engine| self.seen.contains(&engine) && (engine != Engine::Nim || nim))
        })
    }

    /// The series of one engine, and those that no engine owns.
    pub fn of(&self, engine: Engine) -> Vec<Series<'a>> {
        let wanted = |s: &&Series<'a>| s.engine == engine || s.role == Role::Started;
        self.series.iter().filter(wanted).copied().collect()
    }
}

/// Labels that name a server. Several values on a page are several servers.
const SERVERS: [&[u8]; 6] = [
    b"ReplicaId",
    b"WorkerId",
    b"worker_addr",
    b"instance",
    b"pod",
    b"server",
];

/// Whose page it is, by the labels of its wanted series.
#[derive(Debug, Default)]
pub struct Origin<'a> {
    servers: [&'a [u8]; SERVERS.len()],
    several: [bool; SERVERS.len()],
    job: bool,
}

impl<'a> Origin<'a> {
    fn label(&mut self, name: &[u8], value: &'a [u8]) {
        self.job |= name == b"job";
        let servers = SERVERS.iter().zip(&mut self.servers).zip(&mut self.several);
        for ((&known, server), several) in servers {
            if name == known && !value.is_empty() {
                *several |= !server.is_empty() && *server != value;
                *server = value;
            }
        }
    }

    /// Why this is not one pod's own page.
    pub fn foreign(&self) -> Option<&'static str> {
        let [replica, _, _, instance, ..] = self.servers;
        let [replicas, workers, others @ ..] = self.several;
        // The workers of one Ray replica are one pod.
        if replicas || (workers && replica.is_empty()) || others.contains(&true) {
            return Some("a page of several servers");
        }
        (self.job && !instance.is_empty()).then_some("a federated page: scrape the pod itself")
    }
}

/// Labels that repeat one engine's number.
const REPEATS: [&[u8]; 6] = [b"tp_rank", b"pp_rank", b"moe_ep_rank", b"ep_rank", b"pid", b"WorkerId"];

/// Scans a whole page. `None` = more series than [`SERIES_PER_PAGE_MAX`].
pub fn scan(page: &[u8], now: UnixMillis) -> Option<Found<'_>> {
    let mut found = Found::default();
    for text in page.split(|&byte| byte == b'\n') {
        let Some((name, rest)) = line::name(text) else { continue };
        let (engine, role) = if name == b"process_start_time_seconds" {
            // Any engine's: never looked up by this field.
            (Engine::Nim, Some(Role::Started))
        } else {
            let Some(family) = dialect::family(name) else { continue };
            if !found.seen.contains(&family.0) {
                found.seen.push(family.0);
            }
            family
        };
        let Some(role) = role else { continue };
        let Some(series) = refine(series(engine, role, rest, &mut found.origin)) else {
            continue;
        };
        match role {
            Role::LoraInfo => found.clock = found.clock.max(Clock::read(&series, now)),
            Role::LoraLoaded => {
                found.residency = true;
                // At zero it was evicted, and only the log of it is left.
                if series.value > 0.0 {
                    found.series.push(series);
                }
            }
            _ => found.series.push(series),
        }
        if found.series.len() > SERIES_PER_PAGE_MAX {
            return None;
        }
    }
    Some(found)
}

fn series<'a>(engine: Engine, role: Role, rest: &'a [u8], origin: &mut Origin<'a>) -> Series<'a> {
    let mut series = Series {
        role,
        key: (b"", b""),
        priority: b"",
        part: 0,
        rest,
        value: f64::NAN,
        engine,
        state: b"",
    };
    let after = line::labels(rest, |name, value| {
        match name {
            b"model_name" | b"model" | b"name" => series.key.0 = value,
            b"engine" | b"dp_rank" | b"version" => series.key.1 = value,
            b"priority" => series.priority = value,
            b"reason" | b"sleep_state" | b"request_type" | b"kv_cache_block_type" => series.state = value,
            _ => origin.label(name, value),
        }
        if !REPEATS.contains(&name) && !value.is_empty() {
            // A sum, so that the order of labels does not matter.
            series.part = series.part.wrapping_add(xxh64(value, xxh64(name, 0)));
        }
    });
    series.value = after.map_or(f64::NAN, line::value);
    series
}

/// Families that hold several gauges become the one that the series is; `None` = an unwanted one.
fn refine(mut series: Series<'_>) -> Option<Series<'_>> {
    series.role = match (series.role, series.state) {
        (Role::TritonRequests, b"scheduled") => Role::Running,
        (Role::TritonRequests, b"waiting") => Role::Waiting,
        (Role::TritonBlocks, b"fraction") => Role::Usage,
        (Role::TritonBlocks, b"max") => Role::Blocks,
        (Role::TritonBlocks, b"tokens_per") => Role::BlockTokens,
        (Role::TritonBlocks, b"used") => Role::UsedBlocks,
        (Role::TritonRequests | Role::TritonBlocks, _) => return None,
        (Role::WaitingByReason, state) if state != b"deferred" => return None,
        (role, _) => role,
    };
    Some(series)
}

impl Series<'_> {
    /// For [`Role::Sleep`]: does this series say that the engine sleeps, or that it is awake?
    pub fn sleeps(&self) -> Option<bool> {
        match self.state {
            b"awake" if self.value.is_finite() => Some(self.value == 0.0),
            b"weights_offloaded" | b"discard_all" if self.value > 0.0 => Some(true),
            _ => None,
        }
    }
}
