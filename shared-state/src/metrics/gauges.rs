//! Many series of one pod -> one number per field.
//!
//! A count is the sum over engines, a fraction their mean; inside one engine ranks and processes
//! repeat the same number, so the largest counts. A summed pool would turn a usage of 0.9 on four
//! tensor ranks into 0.2.

use std::collections::BTreeMap;

use super::dialect::Role;
use super::line::number;
use super::scan::{Key, Series};
use crate::sample::{Counters, Engine, Sample};
use crate::units::Tokens;

/// Below this a `block_size` label is the smallest of several KV groups, and the product with the
/// number of blocks means nothing (vLLM issue 51163). Real attention block sizes start at 8.
const BLOCK_SIZE_MIN: f64 = 8.0;
/// Up to here an f64 counts every token.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// What [`read`] saw beside the fields of the sample.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// A load gauge was there with a value that cannot be one.
    pub bad_value: bool,
    /// KV usage by blocks in use, where it is told apart from the fraction.
    pub usage_by_blocks: Option<f64>,
}

/// One gauge over the engines of a pod.
enum Gauge<'a> {
    Absent,
    /// At least one series is not finite, negative, or too large: the whole cannot be known.
    Bad,
    Engines(BTreeMap<Key<'a>, f64>),
}

/// Fills the load fields, counters and the start time.
pub fn read(sample: &mut Sample, series: &[Series<'_>]) -> Seen {
    let count = |role| gauge(series, role, f64::from(u32::MAX));
    let usage = match gauge(series, Role::Usage, 1.0) {
        Gauge::Absent => gauge(series, Role::UsageOld, 1.0),
        newer => newer,
    };
    let gauges = [count(Role::Running), count(Role::Waiting), usage];
    let bad_value = gauges.iter().any(|gauge| matches!(gauge, Gauge::Bad));
    let [running, waiting, usage] = gauges.map(Gauge::engines);
    let pools = Pools::read(series);

    sample.running = total(running.as_ref());
    sample.waiting = total(waiting.as_ref());
    sample.deferred = total(count(Role::WaitingByReason).engines().as_ref());
    let largest = [&running, &waiting, &usage]
        .into_iter()
        .flatten()
        .map(BTreeMap::len)
        .max();
    let engines = largest.unwrap_or(0).max(pools.sizes.len());
    sample.engines = u16::try_from(engines).unwrap_or(u16::MAX);
    if let Some(usage) = &usage {
        sample.kv_mean = mean(usage, &pools);
        sample.kv_max = usage.values().copied().reduce(f64::max);
    }
    sample.kv_capacity = pools.capacity(engines);
    sample.sleeping = series
        .iter()
        .filter(|s| s.role == Role::Sleep)
        .filter_map(Series::sleeps)
        .max();
    sample.counters = counters(sample.engine, series);
    sample.started_at = series
        .iter()
        .filter(|s| s.role == Role::Started && s.value.is_finite() && s.value > 0.0)
        .map(|s| s.value)
        .reduce(f64::max);
    Seen {
        bad_value,
        usage_by_blocks: usage_by_blocks(series),
    }
}

impl<'a> Gauge<'a> {
    fn engines(self) -> Option<BTreeMap<Key<'a>, f64>> {
        match self {
            Self::Engines(engines) => Some(engines),
            Self::Absent | Self::Bad => None,
        }
    }
}

fn of<'s, 'a>(series: &'s [Series<'a>], role: Role) -> impl Iterator<Item = &'s Series<'a>> {
    let in_role = move |s: &&Series<'a>| s.role == role;
    // The series without a priority is the sum of those with one.
    let totals = series.iter().filter(in_role).any(|s| s.priority.is_empty());
    series
        .iter()
        .filter(in_role)
        .filter(move |s| !totals || s.priority.is_empty())
}

fn gauge<'a>(series: &[Series<'a>], role: Role, max: f64) -> Gauge<'a> {
    let mut parts: BTreeMap<(Key<'a>, &[u8]), f64> = BTreeMap::new();
    for s in of(series, role) {
        if !(0.0..=max).contains(&s.value) {
            return Gauge::Bad;
        }
        let largest = parts.entry((s.key, s.priority)).or_insert(0.0);
        *largest = largest.max(s.value);
    }
    let mut engines = BTreeMap::new();
    for ((key, _), value) in parts {
        *engines.entry(key).or_insert(0.0) += value;
    }
    if engines.is_empty() {
        Gauge::Absent
    } else {
        Gauge::Engines(engines)
    }
}

fn total(engines: Option<&BTreeMap<Key<'_>, f64>>) -> Option<u32> {
    let sum = engines?.values().sum::<f64>().round();
    (sum <= f64::from(u32::MAX)).then_some(sum as u32)
}

/// Mean over engines, weighted by their pools where every one is known.
fn mean(usage: &BTreeMap<Key<'_>, f64>, pools: &Pools<'_>) -> Option<f64> {
    let weights: Option<Vec<f64>> = usage.keys().map(|&key| pools.size(key)).collect();
    let weights = weights.unwrap_or_else(|| vec![1.0; usage.len()]);
    let weighted: f64 = usage.values().zip(&weights).map(|(value, weight)| value * weight).sum();
    let all: f64 = weights.iter().sum();
    // Rounding may carry a mean of ones above one.
    (all > 0.0).then(|| (weighted / all).min(1.0))
}

/// KV capacities in tokens: by engine, or only the sum of all.
#[derive(Default)]
struct Pools<'a> {
    sizes: BTreeMap<Key<'a>, f64>,
    sum: Option<f64>,
}

impl<'a> Pools<'a> {
    fn read(series: &[Series<'a>]) -> Self {
        let mut pools = Self::default();
        let gauge = |role| gauge(series, role, EXACT_MAX).engines();
        if let Some(sizes) = gauge(Role::PoolTokens) {
            sizes.into_iter().for_each(|(key, tokens)| pools.add(key, tokens));
        } else if let (Some(blocks), Some(tokens)) = (gauge(Role::Blocks), gauge(Role::BlockTokens)) {
            for (key, blocks) in blocks {
                pools.add(key, blocks * tokens.get(&key).copied().unwrap_or_default());
            }
        } else {
            of(series, Role::CacheConfig).for_each(|info| pools.config(info));
        }
        pools
    }

    fn add(&mut self, key: Key<'a>, tokens: f64) {
        if (1.0..=EXACT_MAX).contains(&tokens) {
            let size = self.sizes.entry(key).or_insert(0.0);
            *size = size.max(tokens);
        }
    }

    fn config(&mut self, info: &Series<'a>) {
        let label = |name| number(info.label(name));
        self.add(info.key, label(b"kv_cache_size_tokens"));
        // SGLang's: the pages of this rank.
        self.add(info.key, label(b"num_pages") * label(b"page_size"));
        // vLLM's: the blocks of all engines, repeated by each. A Mamba block size is a hybrid
        // model's, whose `block_size` was stale (issue 42966).
        let tokens = label(b"num_gpu_blocks") * label(b"block_size");
        let meant = label(b"block_size") >= BLOCK_SIZE_MIN && label(b"mamba_block_size").is_nan();
        if meant && tokens >= 1.0 {
            self.sum = Some(self.sum.map_or(tokens, |sum| sum.max(tokens)));
        }
    }

    /// vLLM's info family has no model label.
    fn size(&self, key: Key<'_>) -> Option<f64> {
        self.sizes
            .get(&key)
            .or_else(|| self.sizes.get(&(b"".as_slice(), key.1)))
            .copied()
    }

    /// An engine that does not tell its own capacity has as much as the largest.
    fn capacity(&self, engines: usize) -> Option<Tokens> {
        let missing = engines.saturating_sub(self.sizes.len()) as f64;
        let largest = self.sizes.values().copied().reduce(f64::max);
        let sum = largest.map(|largest| self.sizes.values().sum::<f64>() + missing * largest);
        let tokens = sum.or(self.sum)?;
        (tokens <= EXACT_MAX).then_some(Tokens(tokens as u64))
    }
}

fn usage_by_blocks(series: &[Series<'_>]) -> Option<f64> {
    let sum = |role| Some(gauge(series, role, EXACT_MAX).engines()?.values().sum::<f64>());
    let (used, blocks) = (sum(Role::UsedBlocks)?, sum(Role::Blocks)?);
    (blocks >= 1.0).then(|| used / blocks)
}

fn counters(engine: Option<Engine>, series: &[Series<'_>]) -> Counters {
    let mut counters = Counters {
        prompt_tokens: counter(series, Role::Prompt),
        cached_prompt_tokens: counter(series, Role::Cached).or_else(|| counter(series, Role::CachedOld)),
        generation_tokens: counter(series, Role::Generated),
        preemptions: counter(series, Role::Preemptions),
        requests: counter(series, Role::Requests),
    };
    if engine == Some(Engine::LlamaCpp)
        && let (Some(computed), Some(cached)) = (counters.prompt_tokens, counters.cached_prompt_tokens)
    {
        // Its prompt counter leaves the cached ones out.
        counters.prompt_tokens = Some(computed + cached);
    }
    counters
}

/// Sum over all parts, each once. A part that is no count, or too large for one, makes the sum unknown.
fn counter(series: &[Series<'_>], role: Role) -> Option<f64> {
    let mut parts: BTreeMap<u64, f64> = BTreeMap::new();
    for s in of(series, role) {
        if !(0.0..=EXACT_MAX).contains(&s.value) {
            return None;
        }
        let largest = parts.entry(s.part).or_insert(0.0);
        *largest = largest.max(s.value);
    }
    (!parts.is_empty()).then(|| parts.values().sum())
}
