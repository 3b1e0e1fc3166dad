//! Time of a small operation: the median of many batches, since a mean believes every interruption.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// A batch is at least this long: a thousand times the clock's resolution.
const BATCH: Duration = Duration::from_micros(200);

/// Nanoseconds of one `run`, measured for about `budget`.
pub fn nanos<T>(budget: Duration, mut run: impl FnMut() -> T) -> f64 {
    nanos_prepared(budget, || (), |()| run())
}

/// The same where each run uses up a value that `prepare` makes, outside of the measured time.
pub fn nanos_prepared<V, T>(budget: Duration, mut prepare: impl FnMut() -> V, mut run: impl FnMut(V) -> T) -> f64 {
    let mut batch = |size: usize| {
        let values: Vec<V> = (0..size).map(|_| prepare()).collect();
        let began = Instant::now();
        for value in values {
            black_box(run(black_box(value)));
        }
        began.elapsed()
    };
    let mut size = 1;
    while batch(size) < BATCH && size < 1 << 20 {
        size *= 2;
    }
    let until = Instant::now() + budget;
    let mut times = Vec::new();
    while times.len() < 5 || Instant::now() < until {
        times.push(batch(size).as_nanos() as f64 / size as f64);
    }
    median(&mut times)
}

/// The middle one.
pub fn median(values: &mut [f64]) -> f64 {
    quantile(values, 0.5)
}

/// The value that a part of the values does not exceed; zero when there are none.
pub fn quantile(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1) as f64;
    values.get((last * part).round() as usize).copied().unwrap_or(0.0)
}
