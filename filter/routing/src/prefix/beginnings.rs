//! Which beginnings of prompts are popular: finds how much of a prompt tells where it lives.
//!
//! Proxies that do not talk agree on a pod by hashing how a prompt begins. A beginning that a large part
//! of the traffic has, such as a system prompt, says nothing of where the rest of a prompt is, and its
//! pod could not take them all. So a longer beginning is taken, until few enough have it. All proxies see
//! the same mix of prompts, so they agree on this, too.
//!
//! The most popular keys are counted by the space-saving algorithm (Metwally, Agrawal, El Abbadi 2005):
//! a new key takes the place of the rarest, and its count. Deliberately not here: which pod it is
//! ([`crate::decision`]).

use super::Chains;
use crate::limits::{PREFIX_BEGINNINGS, PREFIX_BEGINNINGS_WINDOW};

/// Blocks from which on a beginning is told from others: about 1,024 tokens. A shorter prefix is cheap to compute
/// anywhere.
const BLOCKS_MIN: usize = 16;
/// Blocks by which a beginning grows at least when it is too popular ...
const STEP_MIN: usize = 4;
/// ... or by this part of it.
const STEP_PART: usize = 8;

/// Requests that are assumed to have repeated before any was seen. In a pool that caches, going elsewhere in the first
/// seconds fills its caches twice; where nothing repeats, forty requests show it.
const REPEATS_PRIOR: u32 = 2;

/// How a prompt begins, as far as it matters where it lives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Beginning {
    /// The hash of it.
    pub key: u64,
    /// The part, 0 to 1, of all requests that begin so.
    pub share: f64,
}

/// Counts of beginnings.
#[derive(Clone, Debug, Default)]
pub struct Beginnings {
    counts: Vec<(u64, u32)>,
    requests: u32,
    /// Those that began like an earlier one.
    repeated: u32,
}

impl Beginnings {
    /// Counts a prompt and tells the shortest beginning of it that at most this part of the requests has; where
    /// all are more popular, the longest. `None` where it is too short.
    pub fn beginning(&mut self, chains: &Chains, part: f64) -> Option<Beginning> {
        let chain = chains.full().next()?;
        self.requests = self.requests.saturating_add(1);
        let (mut blocks, mut found) = (BLOCKS_MIN, None);
        while let Some(key) = blocks.checked_sub(1).and_then(|last| chain.get(last)) {
            let before = self.count(*key);
            self.repeated += u32::from(found.is_none() && before > 0);
            let share = f64::from(before) / f64::from(self.requests);
            found = Some(Beginning { key: *key, share });
            if share <= part {
                break;
            }
            blocks += STEP_MIN.max(blocks / STEP_PART);
        }
        if self.requests >= PREFIX_BEGINNINGS_WINDOW {
            self.requests /= 2;
            self.repeated /= 2;
            self.counts.retain_mut(|(_, count)| {
                *count /= 2;
                *count > 0
            });
        }
        found
    }

    /// The part, 0 to 1, of the requests that began like an earlier one. Until it is known, all are thought to.
    #[must_use]
    pub fn repeated(&self) -> f64 {
        let part = |requests: u32| f64::from(requests.saturating_add(REPEATS_PRIOR));
        part(self.repeated) / part(self.requests)
    }

    /// Counts a key; how often it was seen before.
    fn count(&mut self, key: u64) -> u32 {
        if let Some((_, count)) = self.counts.iter_mut().find(|(known, _)| *known == key) {
            *count = count.saturating_add(1);
            return *count - 1;
        }
        if self.counts.len() < PREFIX_BEGINNINGS {
            self.counts.push((key, 1));
        } else if let Some(rarest) = self.counts.iter_mut().min_by_key(|(_, count)| *count) {
            *rarest = (key, rarest.1 + 1);
        }
        0
    }
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;
    use crate::prefix::{Hasher, seed};
    use crate::request::PromptSink;

    /// A prompt of one token a block: `common` blocks of `group`, then `own` blocks of `who`.
    fn chains(group: u32, common: usize, who: u32, own: usize) -> Chains {
        let mut hasher = Hasher::new(1, 1_000);
        for _ in 0..common {
            hasher.token(group);
        }
        for _ in 0..own {
            hasher.token(1_000_000 + who);
        }
        hasher.finish().chains(seed("m", ""))
    }

    fn key(chains: &Chains, blocks: usize) -> Option<u64> {
        chains.full().next()?.get(blocks - 1).copied()
    }

    #[track_caller]
    fn check(beginnings: &mut Beginnings, prompt: &Chains, blocks: usize) {
        let found = beginnings.beginning(prompt, 0.25).map(|beginning| beginning.key);
        assert_eq!(found, key(prompt, blocks));
    }

    #[test]
    fn a_short_prompt_has_none_and_a_rare_one_lives_by_its_first_sixteen_blocks() {
        let mut beginnings = Beginnings::default();
        assert_eq!(beginnings.beginning(&chains(1, 15, 1, 0), 0.25), None);
        assert_eq!(beginnings.beginning(&Chains::default(), 0.25), None);
        check(&mut beginnings, &chains(2, 16, 1, 0), 16);
        check(&mut beginnings, &chains(3, 100, 1, 0), 16);
    }

    #[test]
    fn behind_a_system_prompt_of_all_the_first_blocks_that_differ_tell() {
        let mut beginnings = Beginnings::default();
        for who in 0..20 {
            beginnings.beginning(&chains(1, 25, who, 40), 0.25);
        }
        // 16, 20 and 24 blocks are everybody's; 28 are one's own, and stay so as the conversation grows.
        check(&mut beginnings, &chains(1, 25, 7, 40), 28);
        check(&mut beginnings, &chains(1, 25, 7, 60), 28);
    }

    #[test]
    fn what_is_popular_to_its_end_is_told_with_its_share() {
        let mut beginnings = Beginnings::default();
        let same = chains(1, 22, 0, 0);
        for _ in 0..99 {
            beginnings.beginning(&same, 0.25);
        }
        let found = beginnings.beginning(&same, 0.25).unwrap();
        // Seen 99 times before, and taken for a rare one the first time.
        assert_eq!((Some(found.key), found.share), (key(&same, 20), 0.98));
    }

    #[test]
    fn prompts_are_thought_to_repeat_until_they_do_not() {
        let mut beginnings = Beginnings::default();
        assert_eq!(beginnings.repeated(), 1.0);
        for who in 0..38 {
            beginnings.beginning(&chains(who, 16, 0, 0), 0.25);
        }
        assert_eq!(beginnings.repeated(), 2.0 / 40.0);
        for _ in 0..38 {
            beginnings.beginning(&chains(7, 16, 0, 0), 0.25);
        }
        assert_eq!(beginnings.repeated(), 40.0 / 78.0);
    }

    #[test]
    fn shares_follow_the_traffic_and_the_counts_are_bounded() {
        let mut beginnings = Beginnings::default();
        let popular = chains(1, 16, 0, 0);
        for who in 0..10_000 {
            beginnings.beginning(&chains(2 + who, 16, 0, 0), 0.25);
            if who % 2 == 0 {
                beginnings.beginning(&popular, 0.25);
            }
        }
        assert!(beginnings.counts.len() <= PREFIX_BEGINNINGS);
        let share = beginnings.beginning(&popular, 0.25).unwrap().share;
        assert!((0.3..0.36).contains(&share), "{share}");
    }
}
