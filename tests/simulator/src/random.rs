//! A small deterministic random source and the mixing function under it.
//!
//! A seed gives the same numbers on every machine and in every version, because recorded scenarios depend on them.

/// SplitMix64's finaliser: a bijection whose every output bit depends on every input bit (Steele et al. 2014).
#[must_use]
pub fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Two words into one; not symmetric, so that an order of words can be hashed.
#[must_use]
pub fn mix2(first: u64, second: u64) -> u64 {
    mix(mix(first) ^ second)
}

/// Bytes into one word, eight at a time.
#[must_use]
pub fn mix_bytes(start: u64, bytes: &[u8]) -> u64 {
    let hash = bytes.chunks(8).fold(start, |hash, chunk| {
        let word = chunk.iter().rev().fold(0, |word, byte| (word << 8) | u64::from(*byte));
        mix2(hash, word)
    });
    mix2(hash, bytes.len() as u64)
}

/// SplitMix64.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// A source that depends on nothing but the seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let out = mix(self.0);
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        out
    }

    /// Uniform in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in `[0, bound)`; 0 for a bound of 0. The bias is below 2^-32 for the bounds used here.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next_u64() % bound }
    }

    /// Exponential with this mean: the gaps of a Poisson process.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// Log-normal with this median and this sigma of the logarithm: how lengths of answers are spread.
    pub fn log_normal(&mut self, median: f64, sigma: f64) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        median * (sigma * radius * (std::f64::consts::TAU * self.unit()).cos()).exp()
    }

    /// Index in `[0, n)` by Zipf's law with exponent 1: index k has weight 1/(k+1). 0 for an n of 0.
    pub fn zipf(&mut self, n: usize) -> usize {
        let total: f64 = (1..=n).map(|k| 1.0 / k as f64).sum();
        let mut left = self.unit() * total;
        for k in 1..=n {
            left -= 1.0 / k as f64;
            if left < 0.0 {
                return k - 1;
            }
        }
        n.saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::{Rng, mix_bytes};

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
        let (mut a, mut b, mut c) = (Rng::new(7), Rng::new(7), Rng::new(8));
        assert_eq!(a.next_u64(), b.next_u64());
        assert_ne!(a.next_u64(), c.next_u64());
    }

    #[test]
    fn splitmix_matches_its_published_vector() {
        // First outputs for seed 1234567, from the reference implementation's test vector.
        let mut rng = Rng::new(1_234_567);
        assert_eq!(rng.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(rng.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn bytes_of_another_length_or_order_hash_differently() {
        assert_ne!(mix_bytes(0, b"ab"), mix_bytes(0, b"ba"));
        assert_ne!(mix_bytes(0, b"a"), mix_bytes(0, b"a\0"));
        assert_ne!(mix_bytes(0, b"12345678abcdefgh"), mix_bytes(0, b"abcdefgh12345678"));
    }

    #[test]
    fn zipf_stays_in_range_and_prefers_the_first() {
        let mut rng = Rng::new(1);
        let mut seen = [0; 4];
        for _ in 0..4000 {
            seen[rng.zipf(4)] += 1;
        }
        assert!(seen[0] > seen[1] && seen[1] > seen[2] && seen[2] > seen[3], "{seen:?}");
        assert_eq!(rng.zipf(0), 0);
        assert_eq!(rng.zipf(1), 0);
    }
}
