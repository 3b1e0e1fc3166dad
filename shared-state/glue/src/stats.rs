//! Counters, gauges and histograms by name, each defined on first use.
//!
//! Names are made of fixed words and of configured pool names, never of what a request says: the
//! host keeps a stat for ever.

use hashbrown::HashMap;

use crate::host::{self, Metric, MetricKind};

/// The metrics of one VM.
#[derive(Default)]
pub struct Stats {
    known: HashMap<String, Option<Metric>>,
}

impl Stats {
    /// Makes a stat known at 0: an alert on a counter that does not exist yet never fires.
    pub fn define(&mut self, kind: MetricKind, name: &str) {
        self.metric(kind, name);
    }

    /// Adds to a counter.
    pub fn count(&mut self, name: &str, by: u64) {
        if let Some(metric) = self.metric(MetricKind::Counter, name) {
            metric.add(by);
        }
    }

    /// Sets a gauge.
    pub fn gauge(&mut self, name: &str, value: u64) {
        if let Some(metric) = self.metric(MetricKind::Gauge, name) {
            metric.record(value);
        }
    }

    /// Records a value of a histogram.
    pub fn observe(&mut self, name: &str, value: u64) {
        if let Some(metric) = self.metric(MetricKind::Histogram, name) {
            metric.record(value);
        }
    }

    /// A host without metrics answers with an error once; it is not asked again.
    fn metric(&mut self, kind: MetricKind, name: &str) -> Option<Metric> {
        if let Some(known) = self.known.get(name) {
            return *known;
        }
        let made = host::define_metric(kind, name).ok();
        self.known.insert(name.to_owned(), made);
        made
    }
}
