//! The reference picker's golden rows, and what any prompt and any order of events must keep.

use core::cell::Cell;

use berth_shared_state::names::prefix_key;
use berth_shared_state::pod::PodKey;
use berth_shared_state::store::{Cas, MemoryStore, SharedData, StoreError, Stored};

use super::*;
use crate::limits::{PREFIX_BLOCKS_MAX, PREFIX_PAGE_MAX_BYTES, PREFIX_PROMPTS_MAX};
use crate::request::PromptSink;

mod golden;
mod memory;
#[cfg(not(target_arch = "wasm32"))]
mod properties;

/// Prompts of token numbers, in blocks of that size.
fn tokens(prompts: &[&[u32]], block: usize, blocks_max: usize) -> Blocks {
    let mut hasher = Hasher::new(block, blocks_max);
    for prompt in prompts {
        hasher.next_prompt();
        for token in *prompt {
            hasher.token(*token);
        }
    }
    hasher.finish()
}

/// One prompt of blocks of one token each.
fn path(words: &[u32]) -> Chains {
    tokens(&[words], 1, PREFIX_BLOCKS_MAX).chains(seed("m", ""))
}

/// Shared data whose writes lose races, as the bits of a word say.
#[derive(Default)]
struct Racing {
    inner: MemoryStore,
    luck: Cell<u64>,
    /// As in WasmX: no token means that the key must be absent.
    create_only: bool,
}

impl SharedData for Racing {
    fn get(&self, key: &str) -> Result<Option<Stored>, StoreError> {
        self.inner.get(key)
    }

    fn set(&self, key: &str, value: &[u8], cas: Option<Cas>) -> Result<(), StoreError> {
        let luck = self.luck.get();
        self.luck.set(luck.rotate_right(1));
        let refused = self.create_only && cas.is_none() && self.get(key)?.is_some();
        if luck & 1 == 1 || refused {
            return Err(StoreError::CasMismatch);
        }
        self.inner.set(key, value, cas)
    }
}

/// Pods with so much room that were sent so much: what the view knows.
struct World {
    store: Racing,
    index: Index,
    pods: Vec<(u32, u32)>,
    room: u32,
}

impl World {
    fn new(pods: usize, room: u32) -> Self {
        Self {
            store: Racing::default(),
            index: Index::new("p", 1 << 20, 1),
            pods: (0..pods).map(|pod| (tag(PodKey(pod as u64), 0), 0)).collect(),
            room,
        }
    }

    fn living(&self, tag: u32) -> Option<Living> {
        let pod = self.pods.iter().position(|(known, _)| *known == tag)?;
        Some(Living {
            pod,
            clock: self.pods[pod].1,
            room: self.room,
        })
    }

    fn look_up(&self, chains: &Chains) -> Found {
        self.index.look_up(&self.store, chains, |tag| self.living(tag))
    }

    /// Blocks that each pod holds of it.
    fn held(&self, chains: &Chains) -> Vec<u32> {
        let mut held = vec![0; self.pods.len()];
        for (pod, blocks) in self.look_up(chains).blocks {
            held[pod] = blocks;
        }
        held
    }

    /// The prompt goes there and takes so many blocks.
    fn serve(&mut self, chains: &Chains, pod: usize, takes: u32) -> Written {
        let found = self.look_up(chains);
        let (tag, clock) = (self.pods[pod].0, self.pods[pod].1 + takes);
        let written = self.index.write(&self.store, found, tag, clock, |tag| self.living(tag));
        self.pods[pod].1 = clock;
        written
    }

    fn page_bytes(&self) -> usize {
        let page = |page| self.store.get(&prefix_key("p", page)).unwrap();
        (0..128).filter_map(page).map(|stored| stored.value.len()).sum()
    }
}
