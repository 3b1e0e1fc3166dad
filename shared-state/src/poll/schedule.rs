//! When the next call is due: spread over the interval, slower after failures.

use xxhash_rust::xxh64::xxh64;

use crate::clock::Now;
use crate::limits::{BACKOFF_INTERVALS_MAX, BACKOFF_MAX, FIRST_READ_WITHIN};
use crate::pod::PodAddress;
use crate::units::Millis;

/// The calls of one kind to one place.
#[derive(Debug)]
pub(super) struct Schedule {
    /// When the next call may start, on the steady clock.
    pub(super) due: Millis,
    /// A call has no answer yet: there is never a second one.
    pub(super) open: bool,
    /// Failures in a row.
    pub(super) failures: u32,
    hash: u64,
}

impl Schedule {
    /// Due within [`FIRST_READ_WITHIN`], afterwards at this place's own phase of the interval.
    pub(super) fn of_pod(pod: PodAddress, seed: u64, interval: Millis, now: Now) -> Self {
        let hash = xxh64(&pod.key().0.to_le_bytes(), seed);
        let within = interval.0.min(FIRST_READ_WITHIN.0);
        Self {
            due: now.steady + Millis(remainder(hash, within)),
            open: false,
            failures: 0,
            hash,
        }
    }

    /// Due at once.
    pub(super) const fn at_once() -> Self {
        Self {
            due: Millis(0),
            open: false,
            failures: 0,
            hash: 0,
        }
    }

    pub(super) fn is_due(&self, now: Now) -> bool {
        !self.open && self.due <= now.steady
    }

    /// The next slot of this place in intervals of this length, but not before a quarter of the interval: a pod that answers
    /// slowly is busy.
    pub(super) fn succeeded(&mut self, interval: Millis, now: Now) {
        self.failures = 0;
        let phase = remainder(self.hash, interval.0);
        let earliest = now.steady.0.saturating_add(interval.0 / 4);
        let into_slot = remainder(earliest.saturating_add(interval.0 - phase), interval.0);
        self.due = Millis(earliest.saturating_add(interval.0 - into_slot));
    }

    /// Backs off from `step`, doubled with every further failure.
    pub(super) fn failed(&mut self, step: Millis, asked: Option<Millis>, rng: &mut fastrand::Rng, now: Now) {
        self.failures = self.failures.saturating_add(1);
        let wait = back_off(step, self.failures, rng);
        self.due = now.steady + wait.max(asked.unwrap_or_default().min(BACKOFF_MAX));
    }
}

/// `step` x 2^(failures - 1), at most [`BACKOFF_INTERVALS_MAX`] steps and [`BACKOFF_MAX`] (but at
/// least one step), less up to a quarter at random so that pods which failed together part.
pub(super) fn back_off(step: Millis, failures: u32, rng: &mut fastrand::Rng) -> Millis {
    let longest = Millis(step.0.saturating_mul(BACKOFF_INTERVALS_MAX));
    let longest = longest.min(BACKOFF_MAX).max(step);
    let full = step.doubled(failures.saturating_sub(1), longest).0;
    Millis(full - rng.u64(0..=full / 4))
}

const fn remainder(value: u64, of: u64) -> u64 {
    match value.checked_rem(of) {
        Some(rest) => rest,
        None => 0,
    }
}
