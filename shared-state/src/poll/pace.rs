//! How often pods are read: as configured, or as far apart as the budget asks for.

use crate::clock::Now;
use crate::config::Scrape;
use crate::limits::{POLL_BUDGET_MODELS_PART, POLL_BURST};
use crate::units::Millis;

/// Calls per 1,000 seconds, so that whole numbers are fine enough.
const PER_KILOSECOND: u64 = 1_000;

/// Times between two reads of one pod's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pace {
    pub(super) metrics: Millis,
    pub(super) models: Millis,
}

impl Pace {
    /// The configured intervals for so many pods, stretched until both kinds of pages together stay
    /// within the budget. Models pages go first, as they are few, but get only a part of it.
    pub(super) fn of(scrape: &Scrape, pods: usize) -> Self {
        let budget = u64::from(scrape.per_second) * PER_KILOSECOND;
        let calls = pods as u64 * 1_000 * PER_KILOSECOND;
        let every = |budget: u64| calls.div_ceil(budget.max(1));
        let models = scrape.models_interval.0.max(every(budget / POLL_BUDGET_MODELS_PART));
        let left = budget.saturating_sub(calls / models.max(1));
        Self {
            metrics: Millis(scrape.interval.0.max(every(left))),
            models: Millis(models),
        }
    }
}

/// Calls that may be sent now. Holds the budget where schedules meet: at the start, after failures, and
/// when models pages are asked for at once.
#[derive(Debug, Default)]
pub(super) struct Bucket {
    /// Thousandths of calls.
    left: u64,
    filled: Option<Millis>,
}

impl Bucket {
    /// Fills up to now.
    pub(super) fn fill(&mut self, per_second: u32, now: Now) {
        let rate = u64::from(per_second);
        let most = (rate * POLL_BURST.0).max(1_000);
        self.left = match self.filled {
            None => most,
            Some(at) => {
                let passed = now.steady.since(at).0;
                self.left.saturating_add(rate.saturating_mul(passed)).min(most)
            }
        };
        self.filled = Some(now.steady);
    }

    /// Takes one call out; `false` = it holds no whole one.
    pub(super) const fn take(&mut self) -> bool {
        let rest = self.left.checked_sub(1_000);
        if let Some(rest) = rest {
            self.left = rest;
        }
        rest.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::config::Discovery;
    use crate::snapshot::tests::pool;
    use crate::units::UnixMillis;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    /// Pods, budget -> metrics and models intervals; 1 s and 10 s are configured.
    #[track_caller]
    fn check(pods: usize, per_second: u32, metrics: u64, models: u64) {
        let mut scrape = pool(Discovery::Static(Vec::new())).scrape;
        scrape.per_second = per_second;
        let pace = Pace::of(&scrape, pods);
        assert_eq!(
            (pace.metrics.0, pace.models.0),
            (metrics, models),
            "{pods} pods, {per_second} per second"
        );
    }

    #[test]
    fn intervals_are_the_configured_ones_while_the_budget_lasts() {
        check(0, 500, 1_000, 10_000);
        check(1, 500, 1_000, 10_000);
        // 440 + 44 calls a second.
        check(440, 500, 1_000, 10_000);
    }

    #[test]
    fn metrics_are_stretched_first_and_models_only_at_half_of_the_budget() {
        // 100 a second for models leave 400 for 1,000 pods.
        check(1_000, 500, 2_500, 10_000);
        // 250 a second each: 4,000 pods every 16 s.
        check(4_000, 500, 16_000, 16_000);
        check(10, 1, 20_000, 20_000);
    }

    #[test]
    fn a_bucket_gives_its_rate_and_a_short_burst() {
        let mut clock = Clock::default();
        // Fills the bucket and empties it.
        let mut calls = |bucket: &mut Bucket, per_second: u32, millis: u64| {
            bucket.fill(per_second, clock.read(UnixMillis(1_000_000 + millis)));
            core::iter::from_fn(|| bucket.take().then_some(())).count()
        };
        let mut bucket = Bucket::default();
        assert_eq!(calls(&mut bucket, 10, 0), 5);
        assert_eq!(calls(&mut bucket, 10, 99), 0);
        assert_eq!(calls(&mut bucket, 10, 100), 1);
        assert_eq!(calls(&mut bucket, 10, 100_000), 5);
        assert_eq!(calls(&mut Bucket::default(), 1, 100_000), 1, "never less than one");
    }
}
