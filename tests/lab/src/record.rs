//! What happened in a run, and the numbers made from it.

use berth_filter_routing::ledger::Outcome;
use berth_tests_simulator::engine::{Counters, Micros};

/// Goodput counts answers whose first token came within this time ...
pub const GOOD_TTFT: Micros = 2_000_000;
/// ... and whose further tokens came within this time each, on average.
pub const GOOD_ITL: Micros = 50_000;
/// This part of the requests, the first ones, only warms the caches and counts nowhere.
const WARM_UP: f64 = 0.1;

/// One request.
#[derive(Debug, Clone, Copy, Default)]
pub struct Record {
    /// When it was sent.
    pub sent_at: Option<Micros>,
    /// When the engine's first token came. Clients without a stream do not see it; it counts all the same.
    pub first_token_at: Option<Micros>,
    /// Tokens of the answer.
    pub output_tokens: u32,
    /// It came through a proxy.
    pub counts: bool,
    ended: Option<(Micros, End)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Answered,
    Failed,
    Left,
    /// The run ended first.
    Unfinished,
}

impl Record {
    /// It is over.
    pub fn end(&mut self, outcome: Outcome, now: Micros) {
        let end = match outcome {
            Outcome::Success => End::Answered,
            Outcome::Abandoned => End::Left,
            _ => End::Failed,
        };
        self.ended = Some((now, end));
    }

    /// Whether it is over.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.ended.is_some()
    }

    /// The run is over.
    pub fn close(&mut self, now: Micros) {
        if self.sent_at.is_some() && self.ended.is_none() {
            self.ended = Some((now, End::Unfinished));
        }
    }

    /// Time to the first token in milliseconds. Who waited in vain counts with the time waited; a failure counts not at
    /// all.
    #[must_use]
    pub fn ttft(&self) -> Option<f64> {
        let sent_at = self.sent_at?;
        match (self.first_token_at, self.ended?) {
            (Some(at), _) => Some((at - sent_at) as f64 / 1e3),
            (None, (at, End::Left | End::Unfinished)) => Some((at - sent_at) as f64 / 1e3),
            (None, _) => None,
        }
    }

    fn was_in_vain(&self) -> bool {
        self.first_token_at.is_none() && matches!(self.ended, Some((_, End::Left | End::Unfinished)))
    }

    fn e2e(&self) -> Option<f64> {
        match self.ended? {
            (at, End::Answered | End::Unfinished) => Some((at - self.sent_at?) as f64 / 1e3),
            _ => None,
        }
    }

    /// Answered within [`GOOD_TTFT`] and [`GOOD_ITL`].
    #[must_use]
    pub fn is_good(&self) -> bool {
        let (Some(sent), Some(first), Some((end, End::Answered))) = (self.sent_at, self.first_token_at, self.ended)
        else {
            return false;
        };
        let gaps = u64::from(self.output_tokens.max(2) - 1);
        first - sent <= GOOD_TTFT && end - first <= GOOD_ITL * gaps
    }
}

/// Counts of durations, in steps of 2 %.
#[derive(Debug, Clone, Default)]
pub struct Histogram {
    counts: Vec<u64>,
    all: u64,
}

impl Histogram {
    /// One more.
    pub fn add(&mut self, time: Micros) {
        let index = ((time.max(1) as f64).ln() / 1.02f64.ln()) as usize;
        if self.counts.len() <= index {
            self.counts.resize(index + 1, 0);
        }
        self.counts[index] += 1;
        self.all += 1;
    }

    /// The upper end of the step that holds this quantile, in milliseconds.
    #[must_use]
    pub fn quantile(&self, quantile: f64) -> f64 {
        let mut left = (self.all as f64 * quantile).ceil() as u64;
        for (index, count) in self.counts.iter().enumerate() {
            if *count >= left {
                return 1.02f64.powi(index as i32 + 1) / 1e3;
            }
            left -= count;
        }
        0.0
    }
}

/// A run's raw outcome.
#[derive(Debug, Clone, Default)]
pub struct Run {
    /// By number.
    pub records: Vec<Record>,
    /// Times between tokens.
    pub gaps: Histogram,
    /// Connections refused by dead pods.
    pub refused: u64,
    counters: Counters,
    loads: u64,
}

/// What is shown of a run.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    /// Times to first token in milliseconds, sorted.
    pub ttft: Vec<f64>,
    /// Their mean.
    pub ttft_mean: f64,
    /// Median.
    pub ttft_p50: f64,
    /// 90 %.
    pub ttft_p90: f64,
    /// 99 %.
    pub ttft_p99: f64,
    /// Times to the last token.
    pub e2e_p50: f64,
    /// 99 %.
    pub e2e_p99: f64,
    /// Times between tokens.
    pub itl_p99: f64,
    /// Part of the looked-up prompt tokens that the engines' prefix caches held.
    pub hits: f64,
    /// Adapters copied into a slot.
    pub loads: f64,
    /// Requests that lost their blocks.
    pub preemptions: f64,
    /// Part of all requests answered well.
    pub goodput: f64,
    /// Requests that failed.
    pub failed: f64,
    /// Requests whose client left before their first token, or that had none when the run ended.
    pub in_vain: f64,
}

/// Of sorted values; the nearest rank.
#[must_use]
pub fn quantile(sorted: &[f64], quantile: f64) -> f64 {
    let rank = (sorted.len() as f64 * quantile).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied().unwrap_or(0.0)
}

/// Of any values; the lower one of the two in the middle.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    quantile(&sorted, 0.5)
}

impl Run {
    /// Adds a pod's totals.
    pub fn add_pod(&mut self, counters: &Counters, loads: u64) {
        self.counters.prefix_queries += counters.prefix_queries;
        self.counters.prefix_hits += counters.prefix_hits;
        self.counters.preemptions += counters.preemptions;
        self.loads += loads;
    }

    /// The numbers.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let late = self.records.iter().skip((self.records.len() as f64 * WARM_UP) as usize);
        let counted: Vec<&Record> = late.filter(|record| record.counts).collect();
        let sorted = |of: fn(&Record) -> Option<f64>| {
            let mut values: Vec<f64> = counted.iter().copied().filter_map(of).collect();
            values.sort_by(f64::total_cmp);
            values
        };
        let (ttft, e2e) = (sorted(Record::ttft), sorted(Record::e2e));
        let part = |count: usize| count as f64 / counted.len().max(1) as f64;
        Figures {
            ttft_mean: ttft.iter().sum::<f64>() / ttft.len().max(1) as f64,
            ttft_p50: quantile(&ttft, 0.5),
            ttft_p90: quantile(&ttft, 0.9),
            ttft_p99: quantile(&ttft, 0.99),
            e2e_p50: quantile(&e2e, 0.5),
            e2e_p99: quantile(&e2e, 0.99),
            itl_p99: self.gaps.quantile(0.99),
            hits: self.counters.prefix_hits as f64 / self.counters.prefix_queries.max(1) as f64,
            loads: self.loads as f64,
            preemptions: self.counters.preemptions as f64,
            goodput: part(counted.iter().filter(|record| record.is_good()).count()),
            failed: counted
                .iter()
                .filter(|record| matches!(record.ended, Some((_, End::Failed))))
                .count() as f64,
            in_vain: counted.iter().filter(|record| record.was_in_vain()).count() as f64,
            ttft,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_nearest_ranks() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(
            [0.5, 0.9, 0.99, 1.0].map(|q| quantile(&values, q)),
            [50.0, 90.0, 99.0, 100.0]
        );
        assert_eq!(quantile(&[], 0.5), 0.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
    }

    #[test]
    fn a_histogram_is_right_to_two_percent() {
        let mut histogram = Histogram::default();
        (1..=1000).for_each(|n| histogram.add(n * 1000));
        for quantile in [0.5, 0.99] {
            let found = histogram.quantile(quantile) / 1000.0;
            assert!((found / quantile - 1.0).abs() < 0.021, "{found}");
        }
    }

    #[test]
    fn who_leaves_before_the_first_token_counts_with_the_wait() {
        let mut record = Record {
            sent_at: Some(1_000_000),
            ..Record::default()
        };
        record.end(Outcome::Abandoned, 4_000_000);
        assert_eq!(
            (record.ttft(), record.e2e(), record.is_good()),
            (Some(3000.0), None, false)
        );
    }

    #[test]
    fn good_is_two_seconds_and_fifty_milliseconds_a_token() {
        let record = |first: Micros, end: Micros| {
            let mut record = Record {
                sent_at: Some(0),
                first_token_at: Some(first),
                output_tokens: 11,
                ..Record::default()
            };
            record.end(Outcome::Success, end);
            record.is_good()
        };
        assert!(record(2_000_000, 2_500_000));
        assert!(!record(2_000_001, 2_500_000));
        assert!(!record(2_000_000, 2_500_001));
    }
}
