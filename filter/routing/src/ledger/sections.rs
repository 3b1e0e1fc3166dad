//! The pods of a ledger, each with the bytes that it was read from or written as.
//!
//! An event changes one pod, or two. So what stands in a new value in the same bytes as before is not decoded again, and what did
//! not change is copied when the next value is written: of a busy pool's ledger that is nearly all of it. Deliberately not here:
//! what the bytes mean (serde says), and who may write them.

use berth_shared_state::pod::PodKey;
use berth_shared_state::sealed::{self, Kind, Pieces, SealError};

use super::PodState;

/// Words that are compared at once.
const WORD: usize = size_of::<u64>();

/// One pod, and where the bytes of its state stand.
#[derive(Clone, Debug)]
struct Section {
    state: PodState,
    start: usize,
    /// None: it changed since.
    length: usize,
}

/// All pods of a ledger, ordered by key.
#[derive(Clone, Debug, Default)]
pub(super) struct Sections {
    list: Vec<Section>,
    /// A sealed value, in which the sections' bytes are.
    bytes: Vec<u8>,
}

impl PartialEq for Sections {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Sections {
    pub fn iter(&self) -> impl Iterator<Item = &PodState> {
        self.list.iter().map(|section| &section.state)
    }

    pub const fn len(&self) -> usize {
        self.list.len()
    }

    /// Where a pod is, or would be.
    pub fn find(&self, pod: PodKey) -> Result<usize, usize> {
        self.list.binary_search_by_key(&pod, |section| section.state.pod)
    }

    pub fn get(&self, at: usize) -> Option<&PodState> {
        self.list.get(at).map(|section| &section.state)
    }

    /// To be changed.
    pub fn get_mut(&mut self, at: usize) -> Option<&mut PodState> {
        let section = self.list.get_mut(at)?;
        section.length = 0;
        Some(&mut section.state)
    }

    /// Puts a new pod where [`Self::find`] says.
    pub fn insert(&mut self, at: usize, state: PodState) {
        let section = Section {
            state,
            start: 0,
            length: 0,
        };
        self.list.insert(at, section);
    }

    /// Changes those that are to be.
    pub fn change(&mut self, is_due: impl Fn(&PodState) -> bool, change: impl Fn(&mut PodState)) {
        for section in self.list.iter_mut().filter(|section| is_due(&section.state)) {
            section.length = 0;
            change(&mut section.state);
        }
    }

    /// Keeps records, and adapters in use, of these slots.
    pub fn keep_slots(&mut self, lives: impl Fn(u8) -> bool) {
        let dead = |slot: u8| !lives(slot);
        let is_due = |state: &PodState| {
            state.records.iter().any(|record| dead(record.slot)) || state.in_use.iter().any(|used| dead(used.slot))
        };
        self.change(is_due, |state| {
            state.records.retain(|record| lives(record.slot));
            state.in_use.retain(|used| lives(used.slot));
        });
    }

    /// Changes all, and keeps those of which `keep` says so.
    pub fn retain_mut(&mut self, mut keep: impl FnMut(&mut PodState) -> bool) {
        self.list.retain_mut(|section| {
            section.length = 0;
            keep(&mut section.state)
        });
    }

    /// Reads what stands in a sealed value from a byte to its end. Where that cannot be read, all stays as it was.
    pub fn read(&mut self, value: Vec<u8>, from: usize) -> Result<(), SealError> {
        let all = value.get(from..).ok_or(SealError::Damaged)?;
        let (count, mut rest) = sealed::take::<u32>(all)?;
        let first = value.len() - rest.len();
        let mut fresh = Vec::new();
        let mut before = None;
        for place in 0..count as usize {
            let known = self.list.get(place);
            let same = known.and_then(|known| Some((known.state.pod, strip(rest, self.bytes_of(known))?)));
            let (pod, left) = match same {
                Some(same) => same,
                None => {
                    let (state, left) = sealed::take::<PodState>(rest)?;
                    let pod = state.pod;
                    fresh.push((place, state, rest.len() - left.len()));
                    (pod, left)
                }
            };
            if before.replace(pod).is_some_and(|before| before >= pod) {
                return Err(SealError::Damaged);
            }
            rest = left;
        }
        if !rest.is_empty() {
            return Err(SealError::Damaged);
        }
        self.take_in(fresh, count as usize, first);
        self.bytes = value;
        Ok(())
    }

    /// Puts what was decoded (place, state, length) among what stayed; the first of so many begins at `start`.
    fn take_in(&mut self, fresh: Vec<(usize, PodState, usize)>, count: usize, mut start: usize) {
        self.list.truncate(count);
        let mut fresh = fresh.into_iter().peekable();
        for (place, section) in self.list.iter_mut().enumerate() {
            if let Some((_, state, length)) = fresh.next_if(|(at, ..)| *at == place) {
                section.state = state;
                section.length = length;
            }
            section.start = start;
            start += section.length;
        }
        for (_, state, length) in fresh {
            self.list.push(Section { state, start, length });
            start += length;
        }
    }

    /// Writes them behind what comes before them, and keeps the value.
    pub fn write(&mut self, kind: Kind, pieces: Pieces) -> Result<&[u8], SealError> {
        match self.sealed(kind, pieces) {
            Ok(value) => self.bytes = value,
            Err(error) => {
                // Some have their new place already, in a value that is none.
                self.list.iter_mut().for_each(|section| section.length = 0);
                return Err(error);
            }
        }
        Ok(&self.bytes)
    }

    fn sealed(&mut self, kind: Kind, mut out: Pieces) -> Result<Vec<u8>, SealError> {
        out.add(&u32::try_from(self.list.len()).map_err(|_| SealError::Damaged)?)?;
        // Neighbours that did not change are copied at once.
        let mut run = 0..0;
        for section in &mut self.list {
            if section.length == 0 || section.start != run.end {
                out.copy(self.bytes.get(run).unwrap_or_default());
                run = section.start..section.start;
            }
            let at = out.end() + run.len();
            if section.length == 0 {
                out.add(&section.state)?;
                section.length = out.end() - at;
                run = 0..0;
            } else {
                run.end += section.length;
            }
            section.start = at;
        }
        out.copy(self.bytes.get(run).unwrap_or_default());
        out.seal(kind)
    }

    fn bytes_of(&self, section: &Section) -> &[u8] {
        let bytes = self.bytes.get(section.start..section.start + section.length);
        bytes.unwrap_or_default()
    }

    /// Bytes that the next value will have, about.
    pub const fn expected(&self) -> usize {
        // One or two requests more.
        self.bytes.len() + 64
    }
}

/// What is left behind `piece`, if `bytes` begin so. Nothing is no piece.
fn strip<'a>(bytes: &'a [u8], piece: &[u8]) -> Option<&'a [u8]> {
    let (same, left) = bytes.split_at_checked(piece.len()).filter(|_| !piece.is_empty())?;
    // In words: the wasm's own comparison goes by bytes.
    let ((same, same_end), (piece, piece_end)) = (same.as_chunks::<WORD>(), piece.as_chunks::<WORD>());
    let mut words = same.iter().zip(piece);
    let equal = words.all(|(a, b)| u64::from_ne_bytes(*a) == u64::from_ne_bytes(*b))
        && same_end.iter().zip(piece_end).all(|(a, b)| a == b);
    equal.then_some(left)
}
