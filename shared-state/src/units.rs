//! Units as types, so that a duration cannot be added to a token count.

use core::ops::Add;
use core::time::Duration;
use serde::{Deserialize, Serialize};

/// A duration in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Millis(pub u64);

/// An instant: milliseconds since the Unix epoch, as the host's wall clock tells it.
///
/// Wall clocks may step back; every subtraction here saturates at zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnixMillis(pub u64);

/// A number of model tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tokens(pub u64);

impl Millis {
    /// Time passed since `earlier`, both on one steady clock; zero when `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    /// Doubled so many times, at most `most`.
    #[must_use]
    pub fn doubled(self, times: u32, most: Self) -> Self {
        let factor = 1u64.checked_shl(times).unwrap_or(u64::MAX);
        Self(self.0.saturating_mul(factor)).min(most)
    }
}

impl UnixMillis {
    /// Time passed since `earlier`; zero when the clock went back.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Millis {
        Millis(self.0.saturating_sub(earlier.0))
    }

    /// Seconds since the epoch, the unit of LoRA clocks and `process_start_time_seconds`.
    #[must_use]
    pub const fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1000.0
    }
}

impl Add<Millis> for UnixMillis {
    type Output = Self;
    fn add(self, wait: Millis) -> Self {
        Self(self.0.saturating_add(wait.0))
    }
}

impl Add for Millis {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl From<Millis> for Duration {
    fn from(millis: Millis) -> Self {
        Self::from_millis(millis.0)
    }
}

impl Add for Tokens {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn a_time_is_doubled_up_to_its_bound() {
        let doubled = |times| Millis(3).doubled(times, Millis(24));
        assert_eq!([0, 1, 3].map(doubled), [Millis(3), Millis(6), Millis(24)]);
        assert_eq!([4, 63, 64, u32::MAX].map(doubled), [Millis(24); 4]);
    }

    #[test]
    fn no_time_is_less_than_none() {
        assert_eq!(Millis(5).since(Millis(3)), Millis(2));
        assert_eq!(Millis(3).since(Millis(5)), Millis(0));
    }
}
