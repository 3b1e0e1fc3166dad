//! Which beginnings of prompts are popular: finds how much of a prompt tells where it lives.
//!
//! Proxies that do not talk agree on a pod by hashing how a prompt begins. A beginning that a large part
//! of the traffic has, such as a system prompt, says nothing of where the rest of a prompt is, and its
//! pod could not take them all. So a longer beginning is taken, until few enough have it. All proxies see
//! the same mix of prompts, so they agree on this, too.
//!
//! The most popular keys are counted by the space-saving algorithm (Metwally, Agrawal, El Abbadi 2005):
//! a new key takes the place of the rarest, and its count, which from then on is its error. Deliberately not here: which pod it is
//! ([`crate::decision`]).

use super::Chains;
use crate::limits::{PREFIX_BEGINNINGS, PREFIX_BEGINNINGS_AHEAD, PREFIX_BEGINNINGS_WINDOW};

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

/// Sightings that say nothing of a share: among a few requests any two may begin alike, and proxies that each take a few
/// for popular do not agree on where they live.
const BY_CHANCE: u32 = 1;
/// Longer beginnings that are counted along with the one that tells: when that proves popular, it is known at once how long a
/// beginning must be, and proxies soon agree again. Most of these keys never come back, so they have places of their own.
const AHEAD: usize = 4;

/// How a prompt begins, as far as it matters where it lives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Beginning {
    /// The hash of it.
    pub key: u64,
    /// The part, 0 to 1, of all requests that begin so.
    pub share: f64,
}

/// A key, and how often it was seen: at most `count`, at least `error` less.
#[derive(Clone, Copy, Debug)]
struct Seen {
    key: u64,
    count: u32,
    error: u32,
}

/// Counts of beginnings.
#[derive(Clone, Debug, Default)]
pub struct Beginnings {
    seen: Vec<Seen>,
    /// Longer ones, each at the place that its key says; a later one there takes it.
    ahead: Vec<(u64, u32)>,
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
        let (mut found, mut ahead) = (None, None);
        for (key, level) in levels(chain).zip(0..) {
            if ahead.is_some_and(|last| level > last) {
                break;
            }
            if ahead.is_some() {
                self.count_ahead(key);
                continue;
            }
            let before = self.count(key);
            self.repeated += u32::from(level == 0 && before > 0);
            let share = f64::from(before.saturating_sub(BY_CHANCE)) / f64::from(self.requests);
            found = Some(Beginning { key, share });
            if share <= part {
                ahead = Some(level + AHEAD);
            }
        }
        if self.requests >= PREFIX_BEGINNINGS_WINDOW {
            self.halve();
        }
        found
    }

    fn halve(&mut self) {
        self.requests /= 2;
        self.repeated /= 2;
        self.seen.retain_mut(|seen| {
            seen.count /= 2;
            seen.error /= 2;
            seen.count > 0
        });
        self.ahead.iter_mut().for_each(|(_, count)| *count /= 2);
    }

    /// The part, 0 to 1, of the requests that began like an earlier one. Until it is known, all are thought to.
    #[must_use]
    pub fn repeated(&self) -> f64 {
        let part = |requests: u32| f64::from(requests.saturating_add(REPEATS_PRIOR));
        part(self.repeated) / part(self.requests)
    }

    /// Counts a key; how often it was surely seen before.
    fn count(&mut self, key: u64) -> u32 {
        if let Some(seen) = self.seen.iter_mut().find(|seen| seen.key == key) {
            let before = seen.count - seen.error;
            seen.count = seen.count.saturating_add(1);
            return before;
        }
        let before = match self.ahead_of(key) {
            Some((known, count)) if *known == key => *count,
            _ => 0,
        };
        if self.seen.len() < PREFIX_BEGINNINGS {
            self.seen.push(Seen {
                key,
                count: before.saturating_add(1),
                error: 0,
            });
        } else if let Some(rarest) = self.seen.iter_mut().min_by_key(|seen| seen.count) {
            *rarest = Seen {
                key,
                count: rarest.count.saturating_add(before).saturating_add(1),
                error: rarest.count,
            };
        }
        before
    }

    /// Counts a key that does not tell yet.
    fn count_ahead(&mut self, key: u64) {
        self.ahead.resize(PREFIX_BEGINNINGS_AHEAD, (0, 0));
        if let Some(place) = self.ahead_of(key) {
            let before = if place.0 == key { place.1 } else { 0 };
            *place = (key, before.saturating_add(1));
        }
    }

    fn ahead_of(&mut self, key: u64) -> Option<&mut (u64, u32)> {
        self.ahead.get_mut(key as usize % PREFIX_BEGINNINGS_AHEAD)
    }
}

/// The keys of ever longer beginnings.
fn levels(chain: &[u64]) -> impl Iterator<Item = u64> {
    let mut blocks = BLOCKS_MIN;
    core::iter::from_fn(move || {
        let key = blocks.checked_sub(1).and_then(|last| chain.get(last))?;
        blocks += STEP_MIN.max(blocks / STEP_PART);
        Some(*key)
    })
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
    fn two_that_begin_alike_may_do_so_by_chance_and_three_do_not() {
        let mut beginnings = Beginnings::default();
        let prompt = |who| chains(1, 25, who, 40);
        check(&mut beginnings, &prompt(0), 16);
        check(&mut beginnings, &prompt(1), 16);
        // Longer ones were counted, too, so it is known at once where prompts differ.
        check(&mut beginnings, &prompt(2), 28);
    }

    #[test]
    fn what_takes_the_place_of_another_was_not_seen_as_often_as_that() {
        let mut beginnings = Beginnings::default();
        // As many prompts as there are places, three times: all are taken, and none by less.
        for turn in 0..3 * PREFIX_BEGINNINGS as u32 {
            beginnings.beginning(&chains(turn % PREFIX_BEGINNINGS as u32, 16, 0, 0), 1.0);
        }
        assert_eq!(beginnings.seen.len(), PREFIX_BEGINNINGS);
        let new = chains(1_000, 16, 0, 0);
        let mut share = || beginnings.beginning(&new, 1.0).unwrap().share;
        assert_eq!([share(), share(), share()], [0.0, 0.0, 1.0 / 771.0]);
    }

    #[test]
    fn what_is_each_prompts_own_takes_no_places_of_what_many_share() {
        let mut beginnings = Beginnings::default();
        for who in 0..1_000 {
            beginnings.beginning(&chains(who % 100, 16, who, 60), 1.0);
        }
        let share = beginnings.beginning(&chains(7, 16, 5_000, 60), 1.0).unwrap().share;
        // One in a hundred: ten were seen, of which one says nothing.
        assert!((share - 9.0 / 1_001.0).abs() < 1e-9, "{share}");
        assert!(beginnings.repeated() > 0.89);
    }

    #[test]
    fn what_is_popular_to_its_end_is_told_with_its_share() {
        let mut beginnings = Beginnings::default();
        let same = chains(1, 22, 0, 0);
        for _ in 0..99 {
            beginnings.beginning(&same, 0.25);
        }
        let found = beginnings.beginning(&same, 0.25).unwrap();
        // Seen 99 times before, of which one says nothing.
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
        assert!(beginnings.seen.len() <= PREFIX_BEGINNINGS);
        let share = beginnings.beginning(&popular, 0.25).unwrap().share;
        assert!((0.3..0.36).contains(&share), "{share}");
    }
}
