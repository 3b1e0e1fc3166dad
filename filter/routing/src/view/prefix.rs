//! A pool's prefix index, as one worker sees it: whose tag is whose, and how much each pod holds.

use berth_shared_state::config::{self, Affinity};
use berth_shared_state::pod::PodKey;
use berth_shared_state::store::SharedData;
use berth_shared_state::table::PodRow;
use berth_shared_state::units::Tokens;

use crate::cost;
use crate::decision::PodFacts;
use crate::limits::{KEPT_MAX_BYTES, PREFIX_BLOCK_TOKENS, PREFIX_CAPACITY_UNKNOWN};
use crate::prefix::{Chains, Found, Index, Living, Written, tag};
use crate::request::{Api, Facts};

/// One pool's index.
#[derive(Debug)]
pub(super) struct PrefixView {
    index: Index,
    /// Tag and place of each pod of the table, ordered.
    tags: Vec<(u32, usize)>,
    /// KV tokens of a pod that does not say.
    unknown_capacity: f64,
    /// The part of the pods' load that this proxy sent: so much of their caches is its own.
    share: f64,
}

/// A pod as it is sent something: its tag, and its clock with that.
pub(super) type Stamp = (u32, u32);

impl PrefixView {
    /// `None` where the config wants none: it remembers prompts, and sessions.
    pub fn new(pool: &config::Pool, pools: usize) -> Option<Self> {
        let prefix = &pool.routing.prefix;
        (prefix.enabled || pool.routing.affinity == Affinity::Session).then(|| Self {
            index: Index::new(&pool.name, prefix.max_bytes, pools),
            tags: Vec::new(),
            unknown_capacity: PREFIX_CAPACITY_UNKNOWN as f64,
            share: 1.0,
        })
    }

    /// Takes in a new table, and this proxy's share of the load.
    pub fn facts<'a>(&mut self, pods: impl Iterator<Item = (&'a PodRow, &'a PodKey)>, share: f64) {
        self.tags.clear();
        self.share = share;
        let (mut known, mut capacity) = (0.0, 0.0);
        for (place, (row, key)) in pods.enumerate() {
            self.tags.push((tag(*key, row.incarnation), place));
            if let Some(tokens) = cost::capacity(row) {
                known += 1.0;
                capacity += tokens;
            }
        }
        self.tags.sort_unstable();
        if known > 0.0 {
            self.unknown_capacity = capacity / known;
        }
    }

    /// Who holds how much of a prompt. `pod` knows a place's row, and the KV tokens that were sent there.
    pub fn look_up<'a>(
        &self,
        store: &dyn SharedData,
        chains: &Chains,
        pod: impl Fn(usize) -> Option<(&'a PodRow, Tokens)>,
    ) -> Found {
        self.index.look_up(store, chains, |tag| self.living(tag, &pod))
    }

    /// Notes that a pod is sent a prompt that takes so many tokens there.
    pub fn write<'a>(
        &self,
        store: &dyn SharedData,
        found: Found,
        to: &PodFacts<'_>,
        takes: Tokens,
        pod: impl Fn(usize) -> Option<(&'a PodRow, Tokens)>,
    ) -> Written {
        let (tag, clock) = stamp(to.row, to.filled + takes);
        self.index.write(store, found, tag, clock, |tag| self.living(tag, &pod))
    }

    /// The prompt went to another pod, or nowhere.
    pub fn take_back(&self, store: &dyn SharedData, written: &mut Written, to: Option<Stamp>) {
        self.index.take_back(store, written, to);
    }

    fn living<'a>(&self, tag: u32, pod: impl Fn(usize) -> Option<(&'a PodRow, Tokens)>) -> Option<Living> {
        let at = self.tags.binary_search_by_key(&tag, |(tag, _)| *tag).ok()?;
        let (_, place) = *self.tags.get(at)?;
        let (row, filled) = pod(place)?;
        let capacity = cost::capacity(row).unwrap_or(self.unknown_capacity);
        Some(Living {
            pod: place,
            clock: blocks(filled),
            room: (capacity * self.share / PREFIX_BLOCK_TOKENS as f64) as u32,
        })
    }
}

/// A pod's tag, and its clock at so many tokens.
pub(super) fn stamp(row: &PodRow, filled: Tokens) -> Stamp {
    (tag(row.address.key(), row.incarnation), blocks(filled))
}

/// A clock in blocks. It wraps.
const fn blocks(tokens: Tokens) -> u32 {
    (tokens.0 / PREFIX_BLOCK_TOKENS as u64) as u32
}

/// Whether a request's prompt is one that engines look up: generation, with all of the prompt in the
/// request and taken from its start.
pub(super) fn is_cached(facts: &Facts) -> bool {
    let generates = facts.api.is_some_and(Api::generates);
    let salt = facts.cache_salt.as_ref().map_or(0, String::len);
    // A salt that was not read, or not in full, must not join what it separates.
    generates && salt < KEPT_MAX_BYTES && facts.has_whole_prompt()
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    #[track_caller]
    fn check(change: impl Fn(&mut Facts), cached: bool) {
        let mut facts = Facts {
            api: Some(Api::Chat),
            complete: true,
            ..Facts::default()
        };
        change(&mut facts);
        assert_eq!(is_cached(&facts), cached, "{facts:?}");
    }

    #[test]
    fn a_salt_that_was_not_read_in_full_joins_nobody() {
        let salt = |bytes| move |facts: &mut Facts| facts.cache_salt = Some("s".repeat(bytes));
        check(|_| {}, true);
        check(salt(KEPT_MAX_BYTES - 1), true);
        check(salt(KEPT_MAX_BYTES), false);
        check(|facts| facts.complete = false, false);
    }

    #[test]
    fn only_generation_looks_prefixes_up() {
        check(|facts| facts.api = Some(Api::Embeddings), false);
        check(|facts| facts.api = None, false);
        check(|facts| facts.prompt.hidden = true, false);
    }
}
