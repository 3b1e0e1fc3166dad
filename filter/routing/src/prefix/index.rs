//! The memory of who was sent which prefix: pages in shared data.

use berth_shared_state::limits::PREFIX_TOTAL_MAX_BYTES;
use berth_shared_state::names;
use berth_shared_state::pod::PodKey;
use berth_shared_state::store::{Cas, SharedData, StoreError};
use xxhash_rust::xxh64::xxh64;

use super::Chains;
use super::page::{Holder, Page, fingerprints, search};
use crate::limits::{PREFIX_PAGE_MAX_BYTES, PREFIX_RENEW_PART, PREFIX_SPANS_MAX, PREFIX_TRIES};

/// Blocks of each span, from the start of a chain. Doubling keeps the pages of a long prompt few, and
/// what diverges inside of one span meets again in the next at the latest.
pub const SPANS: [usize; 6] = [32, 64, 128, 256, 512, 1024];

/// What stands for a pod in the pages: a restarted one is another.
#[must_use]
pub fn tag(pod: PodKey, incarnation: u32) -> u32 {
    xxh64(&pod.0.to_le_bytes(), u64::from(incarnation)) as u32
}

/// A pod as far as the index needs to know it. Clocks and sizes are in blocks; clocks wrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Living {
    /// Its place among the pods.
    pub pod: usize,
    /// Blocks that it was sent so far.
    pub clock: u32,
    /// Blocks that its cache holds.
    pub room: u32,
}

impl Living {
    /// Blocks sent there since. Another worker may have sent something that this one's copy of the
    /// clock does not show yet.
    const fn age(self, holder: Holder) -> u32 {
        let ahead = holder.clock.wrapping_sub(self.clock);
        if ahead < self.room {
            0
        } else {
            self.clock.wrapping_sub(holder.clock)
        }
    }

    const fn holds(self, holder: Holder) -> bool {
        self.age(holder) < self.room
    }
}

/// Where the prefixes of a pool are remembered.
#[derive(Clone, Debug)]
pub struct Index {
    pool: String,
    pages: u64,
}

/// One span of a prompt, and its page as it was read.
#[derive(Clone, Debug)]
struct Span {
    page: u64,
    check: u32,
    path: Vec<u8>,
    value: Vec<u8>,
    cas: Option<Cas>,
}

/// What was found of a prompt.
#[derive(Clone, Debug, Default)]
pub struct Found {
    spans: Vec<Span>,
    /// Blocks that each pod holds, over all prompts: (its place among the pods, blocks).
    pub blocks: Vec<(usize, u32)>,
}

/// What was written for one request, so that it can be taken back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    holder: Option<(u32, u32)>,
    spans: Vec<(u64, u32)>,
    /// Pages written.
    pub pages: u32,
    /// Pages left unwritten: others were faster each time, or the host refused.
    pub lost: u32,
}

impl Index {
    /// For one of so many pools of a process, in at most `max_bytes`. Sizes of different configs do not mix
    /// up: what a page holds says what it belongs to.
    #[must_use]
    pub fn new(pool: &str, max_bytes: usize, pools: usize) -> Self {
        let bytes = max_bytes.min(PREFIX_TOTAL_MAX_BYTES / pools.max(1));
        Self {
            pool: pool.to_owned(),
            pages: (bytes / PREFIX_PAGE_MAX_BYTES).max(1) as u64,
        }
    }

    /// Pages that there may be.
    #[cfg(test)]
    pub const fn pages(&self) -> u64 {
        self.pages
    }

    fn key(&self, page: u64) -> String {
        names::prefix_key(&self.pool, page)
    }

    /// Who holds how much of these chains. `living` knows the pod of a tag.
    #[must_use]
    pub fn look_up(&self, store: &dyn SharedData, chains: &Chains, living: impl Fn(u32) -> Option<Living>) -> Found {
        let mut found = Found::default();
        for chain in chains.full() {
            let mut best: Vec<(usize, u32)> = Vec::new();
            let (mut rest, mut before) = (chain, 0);
            for size in SPANS {
                let (now, later) = rest.split_at_checked(size).unwrap_or((rest, &[]));
                rest = later;
                let Some(first) = now.first().filter(|_| found.spans.len() < PREFIX_SPANS_MAX) else {
                    break;
                };
                let mut span = Span {
                    page: first % self.pages,
                    check: (first >> 32) as u32,
                    path: fingerprints(now),
                    value: Vec::new(),
                    cas: None,
                };
                span.read(store, &self.key(span.page));
                search(&span.value, span.check, &span.path, |holder, blocks| {
                    if let Some(pod) = living(holder.tag).filter(|pod| pod.holds(holder)) {
                        merge(&mut best, pod.pod, before + u32::from(blocks), u32::max);
                    }
                });
                before += now.len() as u32;
                found.spans.push(span);
            }
            for (pod, blocks) in best {
                merge(&mut found.blocks, pod, blocks, u32::saturating_add);
            }
        }
        found
    }

    /// Notes that a pod is sent these chains, of which `found` was found. Its clock is what it will
    /// be with them. Pages that say so already, and not too long ago, are left alone.
    pub fn write(
        &self,
        store: &dyn SharedData,
        found: Found,
        tag: u32,
        clock: u32,
        living: impl Fn(u32) -> Option<Living>,
    ) -> Written {
        let mut written = Written {
            holder: Some((tag, clock)),
            ..Written::default()
        };
        for mut span in found.spans {
            let holder = Holder {
                tag,
                blocks: (span.path.len() / 2) as u16,
                clock,
            };
            if living(tag).is_some_and(|pod| span.is_fresh(holder, pod)) {
                continue;
            }
            if written.spans.iter().any(|(page, _)| *page == span.page) {
                // Two spans met in one page: what the first wrote must stay.
                span.read(store, &self.key(span.page));
            }
            let lives = |holder: &Holder| living(holder.tag).is_some_and(|pod| pod.holds(*holder));
            let result = span.change(store, &self.key(span.page), |value, span| {
                let mut page = Page::open(value, lives);
                page.insert(span.check, &span.path, holder);
                Some(page.seal())
            });
            match result {
                Ok(()) => {
                    written.pages += 1;
                    written.spans.push((span.page, span.check));
                }
                Err(_) => written.lost += 1,
            }
        }
        written
    }

    /// The request went to another pod, or failed: what was noted for the first is noted for that
    /// one (tag and clock), or for nobody.
    pub fn take_back(&self, store: &dyn SharedData, written: &mut Written, to: Option<(u32, u32)>) {
        let Some((tag, clock)) = core::mem::replace(&mut written.holder, to) else {
            return;
        };
        let holder = |(tag, clock)| Holder { tag, blocks: 0, clock };
        for (page, check) in &written.spans {
            let mut span = Span {
                page: *page,
                check: *check,
                path: Vec::new(),
                value: Vec::new(),
                cas: None,
            };
            let key = self.key(*page);
            span.read(store, &key);
            // Losing here leaves a hope that the next look-up of that pod disappoints.
            let _ = span.change(store, &key, |value, span| {
                let mut page = Page::open(value, |_| true);
                let moved = page.move_holder(span.check, holder((tag, clock)), to.map(holder));
                moved.then(|| page.seal())
            });
        }
    }
}

impl Span {
    /// What cannot be read is empty.
    fn read(&mut self, store: &dyn SharedData, key: &str) {
        let stored = store.get(key).ok().flatten();
        (self.value, self.cas) = stored.map_or((Vec::new(), None), |stored| (stored.value, stored.cas));
    }

    /// Whether the page says so already.
    fn is_fresh(&self, new: Holder, pod: Living) -> bool {
        let mut fresh = false;
        search(&self.value, self.check, &self.path, |old, blocks| {
            let young = pod.age(old) <= pod.room / PREFIX_RENEW_PART;
            fresh |= old.tag == new.tag && blocks == new.blocks && young;
        });
        fresh
    }

    /// Writes what `change` makes of the page; `None` = it stays.
    fn change(
        &mut self,
        store: &dyn SharedData,
        key: &str,
        change: impl Fn(&[u8], &Self) -> Option<Vec<u8>>,
    ) -> Result<(), StoreError> {
        for _ in 1..PREFIX_TRIES {
            match self.try_change(store, key, &change) {
                Err(StoreError::CasMismatch) => self.read(store, key),
                done => return done,
            }
        }
        self.try_change(store, key, &change)
    }

    fn try_change(
        &self,
        store: &dyn SharedData,
        key: &str,
        change: impl Fn(&[u8], &Self) -> Option<Vec<u8>>,
    ) -> Result<(), StoreError> {
        change(&self.value, self).map_or(Ok(()), |value| store.set(key, &value, self.cas))
    }
}

/// Joins a pod's blocks with those that it is known to have.
fn merge(all: &mut Vec<(usize, u32)>, pod: usize, blocks: u32, with: fn(u32, u32) -> u32) {
    match all.iter_mut().find(|(known, _)| *known == pod) {
        Some((_, known)) => *known = with(*known, blocks),
        None => all.push((pod, blocks)),
    }
}
