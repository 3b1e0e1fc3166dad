//! The paged KV pool: blocks in use, free blocks, and what the free ones still hold.
//!
//! A freed block keeps its content until it is handed out again, and a prompt with the same prefix revives it. Free
//! blocks are handed out oldest first, so the pool is an LRU cache of prefixes at no cost. When two blocks hold the same
//! content, the newer one is found (vLLM remembers both; that matters only when the newer one goes first).

use std::collections::HashMap;

/// Index of a block in the pool.
pub(super) type BlockId = u32;

#[derive(Debug, Clone, Copy, Default)]
struct Block {
    /// Requests that use it. 0 = it is in the free list.
    users: u32,
    /// Key of its content, when it is full and known.
    key: Option<u64>,
    /// Neighbours in the free list, oldest first.
    before: BlockId,
    after: BlockId,
}

/// Blocks in use plus a free list in the order of freeing (doubly linked, so that a revived block leaves in O(1)).
#[derive(Debug, Clone)]
pub(super) struct BlockPool {
    /// The last entry is the list's anchor and no block.
    blocks: Vec<Block>,
    free: u32,
    by_key: HashMap<u64, BlockId>,
}

impl BlockPool {
    pub(super) fn new(usable: u32) -> Self {
        let mut pool = Self {
            blocks: vec![Block::default(); usable as usize + 1],
            free: 0,
            by_key: HashMap::new(),
        };
        let anchor = pool.anchor();
        pool.blocks[anchor as usize] = Block {
            before: anchor,
            after: anchor,
            ..Block::default()
        };
        (0..usable).for_each(|id| pool.push_free(id));
        pool
    }

    fn anchor(&self) -> BlockId {
        (self.blocks.len() - 1) as BlockId
    }

    /// Blocks no request uses, whether or not they hold a prefix.
    pub(super) fn free(&self) -> u32 {
        self.free
    }

    pub(super) fn used(&self) -> u32 {
        self.anchor() - self.free
    }

    /// The blocks that hold the longest known start of this chain.
    pub(super) fn find(&self, keys: impl Iterator<Item = u64>) -> Vec<BlockId> {
        keys.map_while(|key| self.by_key.get(&key).copied()).collect()
    }

    /// How many of these are free: using them takes them out of the free list, too.
    pub(super) fn free_among(&self, ids: &[BlockId]) -> u32 {
        ids.iter().filter(|id| self.blocks[**id as usize].users == 0).count() as u32
    }

    /// One more request uses these blocks as they are.
    pub(super) fn share(&mut self, ids: &[BlockId]) {
        for &id in ids {
            if self.blocks[id as usize].users == 0 {
                self.unlink(id);
            }
            self.blocks[id as usize].users += 1;
        }
    }

    /// Takes `count` blocks that were free longest and forgets their content. The caller has checked [`Self::free`].
    pub(super) fn take(&mut self, count: u32, into: &mut Vec<BlockId>) {
        for _ in 0..count.min(self.free) {
            let id = self.blocks[self.anchor() as usize].after;
            self.unlink(id);
            let block = &mut self.blocks[id as usize];
            block.users = 1;
            if let Some(key) = block.key.take()
                && self.by_key.get(&key) == Some(&id)
            {
                self.by_key.remove(&key);
            }
            into.push(id);
        }
    }

    /// From now on this block can be found under `key`.
    pub(super) fn remember(&mut self, id: BlockId, key: u64) {
        self.blocks[id as usize].key = Some(key);
        self.by_key.insert(key, id);
    }

    /// One request less uses these blocks. The last block is freed first, so that a prefix is lost from its end.
    pub(super) fn release(&mut self, ids: &[BlockId]) {
        for &id in ids.iter().rev() {
            let block = &mut self.blocks[id as usize];
            block.users = block.users.saturating_sub(1);
            if block.users == 0 {
                self.push_free(id);
            }
        }
    }

    fn push_free(&mut self, id: BlockId) {
        let anchor = self.anchor();
        let last = self.blocks[anchor as usize].before;
        self.blocks[id as usize].before = last;
        self.blocks[id as usize].after = anchor;
        self.blocks[last as usize].after = id;
        self.blocks[anchor as usize].before = id;
        self.free += 1;
    }

    fn unlink(&mut self, id: BlockId) {
        let Block { before, after, .. } = self.blocks[id as usize];
        self.blocks[before as usize].after = after;
        self.blocks[after as usize].before = before;
        self.free -= 1;
    }

    /// Uses of all blocks together, and the length of the free list counted link by link.
    #[cfg(test)]
    pub(super) fn audit(&self) -> (u64, u32) {
        let anchor = self.anchor();
        let (mut listed, mut id) = (0, self.blocks[anchor as usize].after);
        while id != anchor {
            assert_eq!(self.blocks[id as usize].users, 0, "a used block in the free list");
            listed += 1;
            id = self.blocks[id as usize].after;
        }
        (
            self.blocks[..anchor as usize]
                .iter()
                .map(|block| u64::from(block.users))
                .sum(),
            listed,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::BlockPool;

    fn taken(pool: &mut BlockPool, count: u32) -> Vec<u32> {
        let mut ids = Vec::new();
        pool.take(count, &mut ids);
        ids
    }

    #[test]
    fn free_blocks_are_handed_out_oldest_first_and_a_prefix_is_lost_from_its_end() {
        let mut pool = BlockPool::new(4);
        let first = taken(&mut pool, 3);
        assert_eq!(first, [0, 1, 2]);
        pool.release(&first);
        assert_eq!(taken(&mut pool, 4), [3, 2, 1, 0]);
    }

    #[test]
    fn a_freed_block_can_be_revived_until_it_is_taken() {
        let mut pool = BlockPool::new(2);
        let ids = taken(&mut pool, 2);
        pool.remember(ids[0], 70);
        pool.remember(ids[1], 71);
        pool.release(&ids);
        assert_eq!(pool.find([70, 71, 72].into_iter()), ids);
        assert_eq!(pool.free_among(&ids), 2);
        pool.share(&ids[..1]);
        assert_eq!((pool.free(), pool.used()), (1, 1));
        // The free one is taken for something else: only the revived one is still known.
        assert_eq!(taken(&mut pool, 1), [ids[1]]);
        assert_eq!(pool.find([70, 71].into_iter()), [ids[0]]);
    }

    #[test]
    fn a_shared_block_is_free_after_its_last_user_left() {
        let mut pool = BlockPool::new(1);
        let ids = taken(&mut pool, 1);
        pool.share(&ids);
        pool.release(&ids);
        assert_eq!(pool.free(), 0);
        pool.release(&ids);
        assert_eq!(pool.free(), 1);
    }

    #[test]
    fn the_newer_of_two_equal_blocks_is_found_and_losing_the_older_changes_nothing() {
        let mut pool = BlockPool::new(2);
        let ids = taken(&mut pool, 2);
        pool.remember(ids[0], 7);
        pool.remember(ids[1], 7);
        pool.release(&ids[..1]);
        assert_eq!(taken(&mut pool, 1), [ids[0]]);
        assert_eq!(pool.find([7].into_iter()), [ids[1]]);
    }
}
