//! vLLM's adapters: which have requests in flight, and which are in memory.
//!
//! `lora_requests_info` is a log, not a state: every set of adapters that was ever in flight keeps
//! its series, whose value is the Unix time it was last seen. The newest is the state. Of equal ones
//! the longer wins, then the text, so that the order of lines never matters.

use core::cmp::Ordering;
use std::collections::BTreeMap;

use super::dialect::Role;
use super::line;
use super::scan::{Found, Series};
use crate::limits::{ADAPTERS_PER_POD_MAX, NAME_MAX_BYTES};
use crate::sample::{Activity, Level, Sample};
use crate::units::UnixMillis;

/// Clocks above this many times `now` were summed over processes. Wrong host clocks are not that
/// wrong.
const SUMMED: f64 = 1.5;

/// One entry of the log.
#[derive(Clone, Copy, Debug)]
pub struct Clock<'a> {
    /// Unix seconds. f64: an f32 step is two minutes at this size.
    at: f64,
    running: &'a [u8],
    waiting: &'a [u8],
    max: &'a [u8],
}

impl<'a> Clock<'a> {
    /// `None` when the value is no time.
    pub fn read(series: &Series<'a>, now: UnixMillis) -> Option<Self> {
        if !series.value.is_finite() || series.value <= 0.0 {
            return None;
        }
        Some(Self {
            at: one_process(series.value, now.as_secs_f64()),
            running: series.label(b"running_lora_adapters"),
            waiting: series.label(b"waiting_lora_adapters"),
            max: series.label(b"max_lora"),
        })
    }

    fn rank(&self) -> (usize, &'a [u8], &'a [u8], &'a [u8]) {
        (
            names(self.running) + names(self.waiting),
            self.running,
            self.waiting,
            self.max,
        )
    }
}

/// Several API servers write one series, and the client library adds their clocks up.
fn one_process(value: f64, now: f64) -> f64 {
    if now > 0.0 && value > SUMMED * now {
        value / (value / now).round()
    } else {
        value
    }
}

fn names(list: &[u8]) -> usize {
    if list.is_empty() {
        0
    } else {
        list.iter().filter(|&&byte| byte == b',').count() + 1
    }
}

impl Ord for Clock<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at
            .total_cmp(&other.at)
            .then_with(|| self.rank().cmp(&other.rank()))
    }
}

impl PartialOrd for Clock<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Clock<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Clock<'_> {}

/// Fills activity and residency.
pub fn read(sample: &mut Sample, found: &Found<'_>, series: &[Series<'_>], known: &[String]) {
    sample.activity = found.clock.map(|clock| Activity {
        running: split(clock.running, known),
        waiting: split(clock.waiting, known),
        max: slots(line::number(clock.max)).or_else(|| {
            let slots_of = |s: &Series<'_>| (s.role == Role::LoraSlots).then(|| slots(s.value))?;
            series.iter().filter_map(slots_of).max()
        }),
    });
    sample.resident = resident(found, series);
}

fn slots(value: f64) -> Option<u32> {
    (0.0..=f64::from(u32::MAX)).contains(&value).then_some(value as u32)
}

fn usable(name: &str) -> bool {
    !name.is_empty() && name.len() <= NAME_MAX_BYTES
}

/// The names of a list. The engine joins them with commas and escapes none, so a comma may also be
/// part of a name: the longest known name that fits wins.
fn split(list: &[u8], known: &[String]) -> Vec<String> {
    let list = line::unescape(list);
    let with_comma: Vec<&str> = known
        .iter()
        .map(String::as_str)
        .filter(|name| name.contains(','))
        .collect();
    let mut out = Vec::new();
    let mut rest = Some(list.as_str());
    // A list longer than any pod has is cut here, not after it was walked.
    while let Some(text) = rest.filter(|_| out.len() < ADAPTERS_PER_POD_MAX) {
        let text = text.trim_start();
        let fits = |name: &&str| text.strip_prefix(*name).is_some_and(ends_here);
        let name = with_comma.iter().copied().filter(fits).max_by_key(|name| name.len());
        let name = name.unwrap_or_else(|| text.split(',').next().unwrap_or(text));
        rest = text
            .strip_prefix(name)
            .and_then(|after| after.trim_start().strip_prefix(','));
        if usable(name.trim()) {
            out.push(name.trim().to_owned());
        }
    }
    out.sort_unstable();
    out.dedup();
    out
}

fn ends_here(after: &str) -> bool {
    let after = after.trim_start();
    after.is_empty() || after.starts_with(',')
}

/// `None` where the engine does not tell.
fn resident(found: &Found<'_>, series: &[Series<'_>]) -> Option<Vec<(String, Level)>> {
    let mut levels: BTreeMap<String, Level> = BTreeMap::new();
    for s in series.iter().filter(|s| s.role == Role::LoraLoaded) {
        let name = line::unescape(s.label(b"adapter_name"));
        let level = match s.label(b"level") {
            b"gpu" => Level::Gpu,
            b"cpu" => Level::Cpu,
            _ => continue,
        };
        if usable(&name) {
            let best = levels.entry(name).or_insert(level);
            *best = level.max(*best);
        }
    }
    let mut counts = series.iter().filter(|s| s.role == Role::LoraLoadedCount).peekable();
    let none_loaded = counts.peek().is_some() && counts.all(|s| s.value == 0.0);
    (found.residency || none_loaded).then(|| levels.into_iter().take(ADAPTERS_PER_POD_MAX).collect())
}
