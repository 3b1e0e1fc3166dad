//! The scorers, each a plain function. Constants are the reference picker's defaults.

use berth_tests_simulator::random::Rng;

/// `queue-scorer`: (max - q) / (max - min) over the candidates; all equal = 1.
#[must_use]
pub fn queue(waiting: &[f64]) -> Vec<f64> {
    let max = waiting.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let min = waiting.iter().copied().fold(f64::INFINITY, f64::min);
    let score = |q: &f64| if max > min { (max - q) / (max - min) } else { 1.0 };
    waiting.iter().map(score).collect()
}

/// `kv-cache-utilization-scorer`.
#[must_use]
pub fn kv(usage: f64) -> f64 {
    1.0 - usage
}

/// `lora-affinity-scorer`. `max` 0 = unset.
#[must_use]
pub fn lora(target: &str, active: &[&str], waiting: &[&str], max: u32) -> f64 {
    if active.contains(&target) {
        1.0
    } else if active.len() + waiting.len() < max as usize {
        0.8
    } else if waiting.contains(&target) {
        0.6
    } else {
        0.0
    }
}

/// `load-aware-scorer` with threshold `t`.
#[must_use]
pub fn load_aware(waiting: f64, t: f64) -> f64 {
    if waiting == 0.0 {
        0.5
    } else {
        0.5 * (1.0 - waiting.min(t) / t)
    }
}

/// `token-load-scorer` with threshold `t`; `tokens` is what is in flight and what this request adds.
#[must_use]
pub fn token_load(tokens: Option<f64>, t: f64) -> f64 {
    tokens.map_or(1.0, |tokens| 1.0 - tokens.min(t) / t)
}

/// `active-request-scorer` with idle threshold 0 and busy score 1.
#[must_use]
pub fn active_requests(counts: &[f64]) -> Vec<f64> {
    let max = counts.iter().copied().fold(0.0, f64::max);
    let score = |count: &f64| if *count <= 0.0 { 1.0 } else { (max - count) / max };
    counts.iter().map(score).collect()
}

/// `prefix-cache-scorer`: w x min(1, matched tokens / scale)^2 + (1 - w) x matched / total.
#[must_use]
pub fn prefix(matched: usize, total: usize, w: f64, scale: f64, block: f64) -> f64 {
    if total == 0 {
        return 0.0;
    }
    let length = (matched as f64 * block / scale).min(1.0);
    w * length * length + (1.0 - w) * (matched as f64 / total as f64)
}

/// `max-score` picker: the place of the highest score, by lot among equals.
pub fn max_picker(scores: &[f64], rng: &mut Rng) -> usize {
    let best = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let ties: Vec<usize> = (0..scores.len()).filter(|place| scores[*place] == best).collect();
    ties.get(rng.below(ties.len() as u64) as usize).copied().unwrap_or(0)
}
