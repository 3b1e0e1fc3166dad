//! Cumulative buckets; their bounds come from the recorded page.

/// One histogram family.
#[derive(Debug, Clone, Default)]
pub(super) struct Histogram {
    /// Upper bound and how many values fell into this bucket and no lower one. The last bound is infinite.
    buckets: Vec<(f64, u64)>,
    sum: f64,
}

impl Histogram {
    /// The next bound, in rising order.
    pub(super) fn add_bucket(&mut self, bound: f64) {
        self.buckets.push((bound, 0));
    }

    pub(super) fn record(&mut self, value: f64) {
        if let Some(bucket) = self.buckets.iter_mut().find(|bucket| value <= bucket.0) {
            bucket.1 += 1;
            self.sum += value;
        }
    }

    /// Values up to this bound; none = no such bucket.
    pub(super) fn at_most(&self, bound: f64) -> Option<f64> {
        let last = self.buckets.iter().position(|bucket| bucket.0 == bound)?;
        Some(self.buckets.iter().take(last + 1).map(|bucket| bucket.1).sum::<u64>() as f64)
    }

    pub(super) fn sum(&self) -> f64 {
        self.sum
    }

    pub(super) fn count(&self) -> f64 {
        self.buckets.iter().map(|bucket| bucket.1).sum::<u64>() as f64
    }
}

#[cfg(test)]
mod tests {
    use super::Histogram;

    #[test]
    fn a_value_on_a_bound_belongs_to_that_bucket_and_counts_accumulate() {
        let mut histogram = Histogram::default();
        [1.0, 5.0, f64::INFINITY]
            .into_iter()
            .for_each(|bound| histogram.add_bucket(bound));
        [1.0, 1.5, 5.0, 99.0]
            .into_iter()
            .for_each(|value| histogram.record(value));
        assert_eq!(
            [1.0, 5.0, f64::INFINITY].map(|bound| histogram.at_most(bound)),
            [Some(1.0), Some(3.0), Some(4.0)]
        );
        assert_eq!(
            (histogram.count(), histogram.sum(), histogram.at_most(2.0)),
            (4.0, 106.5, None)
        );
    }
}
