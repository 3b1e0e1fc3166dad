//! `approx-prefix-cache-producer`: which pod was sent which block, each pod with an LRU of its own.

use std::collections::{BTreeMap, HashMap};

/// The index.
#[derive(Debug)]
pub struct Index {
    pods: Vec<Lru>,
}

#[derive(Debug)]
struct Lru {
    stamps: HashMap<u64, u64>,
    order: BTreeMap<u64, u64>,
    clock: u64,
    capacity: usize,
}

impl Index {
    /// An empty one with room for `capacity` blocks a pod.
    #[must_use]
    pub fn new(pods: usize, capacity: usize) -> Self {
        let lru = || Lru {
            stamps: HashMap::new(),
            order: BTreeMap::new(),
            clock: 0,
            capacity,
        };
        Self {
            pods: (0..pods).map(|_| lru()).collect(),
        }
    }

    /// Blocks matched at each pod. The walk ends at the first block that nobody holds; until there each block counts for
    /// all its holders, also for those with a gap before it, as in the reference picker.
    #[must_use]
    pub fn matches(&self, blocks: &[u64]) -> Vec<usize> {
        let mut matches = vec![0; self.pods.len()];
        for block in blocks {
            let mut held = false;
            for (pod, lru) in self.pods.iter().enumerate() {
                if lru.stamps.contains_key(block) {
                    matches[pod] += 1;
                    held = true;
                }
            }
            if !held {
                break;
            }
        }
        matches
    }

    /// A pod was sent these blocks.
    pub fn add(&mut self, blocks: &[u64], pod: usize) {
        blocks.iter().for_each(|block| self.pods[pod].touch(*block));
    }
}

impl Lru {
    fn touch(&mut self, block: u64) {
        self.clock += 1;
        if let Some(old) = self.stamps.insert(block, self.clock) {
            self.order.remove(&old);
        }
        self.order.insert(self.clock, block);
        if self.stamps.len() > self.capacity
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.stamps.remove(&oldest);
        }
    }
}
