//! Load that pods report in their answers (ORCA): read by the workers, merged by the poller.
//!
//! ```text
//!  endpoint-load-metrics -> read -> Outbox of a worker --tick--> shared data --tick--> Inbox -> poller -> table
//! ```
//!
//! A pod that answers this proxy tells its queue and KV usage for nothing and at once, where a scrape
//! costs a call and is up to an interval old. vLLM does, on answers that are not streamed; Triton tells no queue.
//! Deliberately not here: when a report counts ([`crate::poll`]), and adapters, which nobody reports.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::limits::{PODS_MAX, REPORT_FORGOTTEN_AFTER, REPORT_MAX_BYTES, WAITING_MAX};
use crate::pod::PodAddress;
use crate::sealed::{self, HEADER_BYTES, Kind};
use crate::store::SharedData;
use crate::units::UnixMillis;

/// What a pod said in an answer. `None` = it did not say.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// When the answer came.
    pub at: UnixMillis,
    /// Requests queued.
    pub waiting: Option<u32>,
    /// KV usage, 0..=1.
    pub kv: Option<f32>,
}

/// Reads the value of `endpoint-load-metrics`: `TEXT name=value, ...` or `JSON {...}`, also without
/// the leading word. `None` when it says neither queue nor KV usage.
///
/// Source: vLLM #24905 and recorded answers, Triton server #7839; the names are of ORCA's
/// `named_metrics`.
#[must_use]
pub fn read(value: &[u8], at: UnixMillis) -> Option<Report> {
    let text = core::str::from_utf8(value)
        .ok()
        .filter(|text| text.len() <= REPORT_MAX_BYTES)?;
    let text = text.trim();
    let mut report = Report {
        at,
        waiting: None,
        kv: None,
    };
    let json = text.strip_prefix("JSON").unwrap_or(text).trim_start();
    if json.starts_with('{') {
        let orca: Orca = serde_json::from_str(json).ok()?;
        orca.named_metrics
            .iter()
            .for_each(|(name, value)| report.take(name, *value));
    } else {
        let fields = text.strip_prefix("TEXT").unwrap_or(text).split(',');
        for (name, value) in fields.filter_map(|field| field.split_once('=')) {
            if let (Some(name), Ok(value)) = (name.trim().strip_prefix("named_metrics."), value.trim().parse()) {
                report.take(name, value);
            }
        }
    }
    (report.waiting.is_some() || report.kv.is_some()).then_some(report)
}

#[derive(Deserialize)]
struct Orca {
    named_metrics: BTreeMap<String, f64>,
}

impl Report {
    /// One named metric; what cannot be is unknown.
    fn take(&mut self, name: &str, value: f64) {
        match name {
            "num_requests_waiting" if (0.0..=f64::from(WAITING_MAX)).contains(&value) => {
                self.waiting = Some(value as u32);
            }
            "kv_cache_usage_perc" | "kv_cache_utilization" if (0.0..=1.0).contains(&value) => {
                self.kv = Some(value as f32);
            }
            _ => {}
        }
    }

    fn is_sound(&self) -> bool {
        self.kv.is_none_or(|kv| (0.0..=1.0).contains(&kv))
    }
}

/// The latest report of each pod, as stored.
type Reports = BTreeMap<PodAddress, Report>;

fn decode(bytes: &[u8]) -> Option<Reports> {
    let reports: Reports = sealed::open(Kind::Reports, bytes).ok()?;
    (reports.len() <= PODS_MAX && reports.values().all(Report::is_sound)).then_some(reports)
}

/// Reports of one pool that a worker has read and not yet passed on.
#[derive(Debug)]
pub struct Outbox {
    key: String,
    fresh: Reports,
}

impl Outbox {
    /// Under this key ([`crate::names::Keys`]).
    #[must_use]
    pub const fn new(key: String) -> Self {
        Self {
            key,
            fresh: Reports::new(),
        }
    }

    /// A report has come; it replaces an earlier one of the pod.
    pub fn add(&mut self, pod: PodAddress, report: Report) {
        if self.fresh.len() < PODS_MAX || self.fresh.contains_key(&pod) {
            self.fresh.insert(pod, report);
        }
    }

    /// Passes on what has come since the last tick: one read and one write, or nothing. Where another
    /// worker is faster, or the host refuses, it goes with the next tick.
    pub fn tick(&mut self, store: &dyn SharedData, now: UnixMillis) {
        if self.fresh.is_empty() {
            return;
        }
        let Ok(stored) = store.get(&self.key) else { return };
        let cas = stored.as_ref().and_then(|stored| stored.cas);
        let mut all = stored.and_then(|stored| decode(&stored.value)).unwrap_or_default();
        for (pod, report) in &self.fresh {
            let known = all.entry(*pod).or_insert(*report);
            if known.at < report.at {
                *known = *report;
            }
        }
        // From before the clock stepped back, or too old to say anything.
        all.retain(|_, report| report.at <= now && now.since(report.at) < REPORT_FORGOTTEN_AFTER);
        while all.len() > PODS_MAX {
            all.pop_last();
        }
        let written = sealed::seal(Kind::Reports, &all).map(|bytes| store.set(&self.key, &bytes, cas));
        if matches!(written, Ok(Ok(()))) {
            self.fresh.clear();
        }
    }
}

/// The poller's side: sees each change once.
#[derive(Debug)]
pub struct Inbox {
    key: String,
    /// The head of the value last read: it holds the checksum of the rest. That of a torn read is the whole value's.
    head: Vec<u8>,
}

impl Inbox {
    /// Under this key ([`crate::names::Keys`]).
    #[must_use]
    pub const fn new(key: String) -> Self {
        Self { key, head: Vec::new() }
    }

    /// The reports, if anything is new.
    pub fn tick(&mut self, store: &dyn SharedData) -> Vec<(PodAddress, Report)> {
        let value = store.get(&self.key).ok().flatten().map(|stored| stored.value);
        let value = value.unwrap_or_default();
        let head = value.get(..HEADER_BYTES).unwrap_or_default();
        if head == self.head {
            return Vec::new();
        }
        let Some(reports) = decode(&value) else {
            return Vec::new();
        };
        self.head = head.to_vec();
        reports.into_iter().collect()
    }
}

#[cfg(test)]
mod tests;
