//! A page: the runs of one slot, as bytes.
//!
//! ```text
//!  run    = check 4 | blocks 2 | holders 2 | holder ... | fingerprint 2 ...
//!  holder = tag 4 | blocks 2 | clock 4                                     all little-endian
//! ```
//!
//! Runs and holders stand newest first. A look-up reads the bytes where they lie; a write decodes,
//! changes and encodes them. What does not parse ends the page: it is a memory, not a truth.

use std::collections::BTreeMap;

use berth_shared_state::sealed::{self, Kind};

use crate::limits::{PREFIX_HOLDERS_MAX, PREFIX_PAGE_MAX_BYTES};

/// Bytes in front of a run's holders.
const RUN_BYTES: usize = 8;
const HOLDER_BYTES: usize = 10;
const FINGERPRINT_BYTES: usize = 2;
const PAYLOAD_MAX: usize = PREFIX_PAGE_MAX_BYTES - sealed::HEADER_BYTES;

/// Who was sent how many of a run's blocks, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    /// See [`super::tag`].
    pub tag: u32,
    /// Blocks of the run, from its start.
    pub blocks: u16,
    /// The pod's clock then.
    pub clock: u32,
}

/// Two bytes of each block's hash. The hashes are a chain, so comparing two runs from their start can only
/// err behind the block where they part: by one block once in 65,536.
pub(super) fn fingerprints(hashes: &[u64]) -> Vec<u8> {
    hashes.iter().flat_map(|hash| (*hash as u16).to_le_bytes()).collect()
}

/// Blocks that two runs have in common.
fn common(one: &[u8], other: &[u8]) -> usize {
    let pairs = one
        .chunks_exact(FINGERPRINT_BYTES)
        .zip(other.chunks_exact(FINGERPRINT_BYTES));
    pairs.take_while(|(one, other)| one == other).count()
}

/// A run where it lies.
#[derive(Clone, Copy, Debug)]
struct Raw<'a> {
    check: u32,
    holders: &'a [u8],
    path: &'a [u8],
}

impl<'a> Raw<'a> {
    fn split(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (head, rest) = bytes.split_first_chunk::<RUN_BYTES>()?;
        let [a, b, c, d, e, f, g, h] = *head;
        let blocks = usize::from(u16::from_le_bytes([e, f]));
        let holders = usize::from(u16::from_le_bytes([g, h]));
        let (holders, rest) = rest.split_at_checked(holders * HOLDER_BYTES)?;
        let (path, rest) = rest.split_at_checked(blocks * FINGERPRINT_BYTES)?;
        let check = u32::from_le_bytes([a, b, c, d]);
        Some((Self { check, holders, path }, rest))
    }

    fn all(mut bytes: &'a [u8]) -> impl Iterator<Item = Self> {
        core::iter::from_fn(move || {
            let (run, rest) = Self::split(bytes)?;
            bytes = rest;
            Some(run)
        })
    }

    fn holders(self) -> impl Iterator<Item = Holder> + use<'a> {
        self.holders.chunks_exact(HOLDER_BYTES).filter_map(|bytes| {
            let [a, b, c, d, e, f, g, h, i, j] = *bytes.first_chunk::<HOLDER_BYTES>()?;
            Some(Holder {
                tag: u32::from_le_bytes([a, b, c, d]),
                blocks: u16::from_le_bytes([e, f]),
                clock: u32::from_le_bytes([g, h, i, j]),
            })
        })
    }
}

/// The runs of a sealed page. What is larger than any page is none: work on it would have no bound.
fn payload(sealed: &[u8]) -> &[u8] {
    if sealed.len() > PREFIX_PAGE_MAX_BYTES {
        return &[];
    }
    sealed::open_bytes(Kind::Prefix, sealed).unwrap_or_default()
}

/// Calls `found` with the holders of what `path` has in common with each run of that check, and
/// how many blocks that is.
pub(super) fn search(sealed: &[u8], check: u32, path: &[u8], mut found: impl FnMut(Holder, u16)) {
    for run in Raw::all(payload(sealed)).filter(|run| run.check == check) {
        let shared = common(run.path, path);
        for holder in run.holders() {
            let blocks = usize::from(holder.blocks).min(shared);
            if blocks > 0 {
                found(holder, u16::try_from(blocks).unwrap_or(u16::MAX));
            }
        }
    }
}

/// One run, to be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Run {
    check: u32,
    path: Vec<u8>,
    holders: Vec<Holder>,
}

impl Run {
    fn bytes(&self) -> usize {
        RUN_BYTES + self.holders.len() * HOLDER_BYTES + self.path.len()
    }

    /// A holder's newest word stands first; what it says of no more blocks, older, is void.
    fn hold(&mut self, new: Holder) {
        self.holders.retain(|old| old.tag != new.tag || old.blocks > new.blocks);
        self.holders.insert(0, new);
        self.holders.truncate(PREFIX_HOLDERS_MAX);
    }
}

/// The runs of a page, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Page {
    runs: Vec<Run>,
}

impl Page {
    /// Of what cannot be opened: none. `lives` says whether a holder still counts.
    pub fn open(sealed: &[u8], lives: impl Fn(&Holder) -> bool) -> Self {
        let run = |raw: Raw<'_>| Run {
            check: raw.check,
            path: raw.path.to_vec(),
            holders: raw.holders().filter(&lives).collect(),
        };
        let runs = Raw::all(payload(sealed)).map(run).filter(|run| !run.holders.is_empty());
        Self { runs: runs.collect() }
    }

    /// Notes that a holder was sent this path. A run that is a start of it grows.
    pub fn insert(&mut self, check: u32, path: &[u8], holder: Holder) {
        let fits = |run: &Run| run.check == check && (run.path.starts_with(path) || path.starts_with(&run.path));
        let mut run = match self.runs.iter().position(fits) {
            Some(at) => self.runs.remove(at),
            None => Run {
                check,
                path: Vec::new(),
                holders: Vec::new(),
            },
        };
        if run.path.len() < path.len() {
            run.path = path.to_vec();
        }
        run.hold(holder);
        self.runs.insert(0, run);
    }

    /// Gives what `from` holds since that very clock to another tag, or to nobody. False: it holds nothing.
    pub fn move_holder(&mut self, check: u32, from: Holder, to: Option<Holder>) -> bool {
        let mut moved = false;
        let same = |holder: &Holder| holder.tag == from.tag && holder.clock == from.clock;
        for run in self.runs.iter_mut().filter(|run| run.check == check) {
            let Some(at) = run.holders.iter().position(same) else {
                continue;
            };
            let blocks = run.holders.remove(at).blocks;
            moved = true;
            if let Some(to) = to {
                run.hold(Holder { blocks, ..to });
            }
        }
        self.runs.retain(|run| !run.holders.is_empty());
        moved
    }

    /// The bytes, with the oldest runs left out until they fit. Whoever has the most loses first: one pod's
    /// many endings of a prompt must not push out the one by which another is known to hold it.
    pub fn seal(mut self) -> Vec<u8> {
        let mut bytes: usize = self.runs.iter().map(Run::bytes).sum();
        if bytes > PAYLOAD_MAX {
            // A bit more, so that the next ones need not look.
            self.forget(bytes - (PAYLOAD_MAX - PAYLOAD_MAX / 8));
            bytes = self.runs.iter().map(Run::bytes).sum();
        }
        let mut payload = Vec::with_capacity(bytes);
        for run in &self.runs {
            let blocks = (run.path.len() / FINGERPRINT_BYTES) as u16;
            payload.extend(run.check.to_le_bytes());
            payload.extend(blocks.to_le_bytes());
            payload.extend((run.holders.len() as u16).to_le_bytes());
            for holder in &run.holders {
                payload.extend(holder.tag.to_le_bytes());
                payload.extend(holder.blocks.to_le_bytes());
                payload.extend(holder.clock.to_le_bytes());
            }
            payload.extend(&run.path);
        }
        sealed::seal_bytes(Kind::Prefix, &payload).unwrap_or_default()
    }

    /// Drops at least so many bytes: each time the oldest run of the prefix and newest holder that have the most.
    /// A client may fill a page with its smallest runs, so runs are counted once and not for each other.
    fn forget(&mut self, bytes: usize) {
        let owner = |run: &Run| (run.check, run.holders.first().map(|holder| holder.tag));
        let mut counts: BTreeMap<_, usize> = BTreeMap::new();
        for run in &self.runs {
            *counts.entry(owner(run)).or_default() += 1;
        }
        let mut dropped = 0;
        while dropped < bytes {
            let count = |at: &usize| self.runs.get(*at).and_then(|run| counts.get(&owner(run)));
            // The last of equals is the oldest.
            let Some(at) = (0..self.runs.len()).max_by_key(count) else {
                return;
            };
            let run = self.runs.remove(at);
            dropped += run.bytes();
            counts.entry(owner(&run)).and_modify(|count| *count -= 1);
        }
    }
}
