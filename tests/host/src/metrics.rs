//! Statistics: one value per name and kind for the whole process, whichever VM defined it.
//!
//! A metric id belongs to the VM that got it; its low two bits are the kind, as in Envoy's `wasm.h`.

use crate::abi::Status;
use std::collections::BTreeMap;

/// Kind of a metric, in the order of the ABI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MetricKind {
    Counter,
    Gauge,
    Histogram,
}

impl MetricKind {
    pub(crate) fn from_abi(kind: u32) -> Option<Self> {
        [Self::Counter, Self::Gauge, Self::Histogram]
            .get(kind as usize)
            .copied()
    }
}

/// Metrics by kind and name.
#[derive(Default)]
pub(crate) struct Metrics {
    numbers: BTreeMap<(MetricKind, String), u64>,
    samples: BTreeMap<String, Vec<u64>>,
}

/// What the ids of one VM stand for.
#[derive(Default)]
pub(crate) struct MetricIds(Vec<(MetricKind, String)>);

impl MetricIds {
    fn add(&mut self, kind: MetricKind, name: &str) -> u32 {
        self.0.push((kind, name.to_owned()));
        ((self.0.len() as u32) << 2) | kind as u32
    }

    pub(crate) fn resolve(&self, id: u32) -> Option<(MetricKind, String)> {
        let index = (id >> 2).checked_sub(1)?;
        let (kind, name) = self.0.get(index as usize)?;
        (*kind as u32 == id & 3).then(|| (*kind, name.clone()))
    }
}

impl Metrics {
    pub(crate) fn define(&mut self, ids: &mut MetricIds, kind: MetricKind, name: &str) -> u32 {
        match kind {
            MetricKind::Histogram => {
                self.samples.entry(name.to_owned()).or_default();
            }
            _ => {
                self.numbers.entry((kind, name.to_owned())).or_default();
            }
        }
        ids.add(kind, name)
    }

    pub(crate) fn increment(&mut self, metric: (MetricKind, String), offset: i64) -> Result<(), Status> {
        let negative_counter = metric.0 == MetricKind::Counter && offset <= 0;
        if negative_counter || metric.0 == MetricKind::Histogram {
            return Err(Status::BadArgument);
        }
        let value = self.numbers.entry(metric).or_default();
        *value = value.wrapping_add_signed(offset);
        Ok(())
    }

    pub(crate) fn record(&mut self, metric: (MetricKind, String), value: u64) {
        match metric.0 {
            MetricKind::Counter => *self.numbers.entry(metric).or_default() += value,
            MetricKind::Gauge => *self.numbers.entry(metric).or_default() = value,
            MetricKind::Histogram => self.samples.entry(metric.1).or_default().push(value),
        }
    }

    pub(crate) fn get(&self, kind: MetricKind, name: &str) -> Option<u64> {
        self.numbers.get(&(kind, name.to_owned())).copied()
    }

    pub(crate) fn samples(&self, name: &str) -> Option<&[u64]> {
        self.samples.get(name).map(Vec::as_slice)
    }

    pub(crate) fn names(&self) -> Vec<(MetricKind, String)> {
        let numbers = self.numbers.keys().cloned();
        let samples = self.samples.keys();
        numbers
            .chain(samples.map(|name| (MetricKind::Histogram, name.clone())))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_vms_share_a_metric_by_name_under_ids_of_their_own() {
        let mut metrics = Metrics::default();
        let (mut one, mut two) = (MetricIds::default(), MetricIds::default());
        metrics.define(&mut one, MetricKind::Gauge, "other");
        let first = metrics.define(&mut one, MetricKind::Counter, "c");
        let second = metrics.define(&mut two, MetricKind::Counter, "c");
        assert_ne!(first, second);
        for metric in [one.resolve(first), two.resolve(second)] {
            metrics.increment(metric.expect("known"), 2).expect("ok");
        }
        assert_eq!(metrics.get(MetricKind::Counter, "c"), Some(4));
        assert_eq!(two.resolve(first), None);
    }

    #[test]
    fn counters_refuse_to_fall_and_gauges_do_not() {
        let mut metrics = Metrics::default();
        let counter = (MetricKind::Counter, "c".to_owned());
        assert_eq!(metrics.increment(counter.clone(), 0), Err(Status::BadArgument));
        assert_eq!(metrics.increment(counter, -1), Err(Status::BadArgument));
        let gauge = (MetricKind::Gauge, "g".to_owned());
        metrics.increment(gauge.clone(), 3).expect("ok");
        metrics.increment(gauge, -1).expect("ok");
        assert_eq!(metrics.get(MetricKind::Gauge, "g"), Some(2));
    }

    #[test]
    fn histograms_keep_every_sample() {
        let mut metrics = Metrics::default();
        let histogram = (MetricKind::Histogram, "h".to_owned());
        metrics.record(histogram.clone(), 5);
        metrics.record(histogram.clone(), 6);
        assert_eq!(metrics.increment(histogram, 1), Err(Status::BadArgument));
        assert_eq!(metrics.samples("h"), Some(&[5, 6][..]));
    }
}
