//! A short string that is put together from pieces, under a bound.

/// Up to a bound of bytes, and whether there were more.
#[derive(Clone, Debug, Default)]
pub(super) struct Kept {
    bytes: Vec<u8>,
    over: bool,
}

impl Kept {
    /// Starts over; the memory is kept.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.over = false;
    }

    /// Adds what fits under `max` bytes.
    pub(super) fn push(&mut self, piece: &[u8], max: usize) {
        let room = max.saturating_sub(self.bytes.len());
        self.over |= piece.len() > room;
        self.bytes.extend_from_slice(piece.get(..room).unwrap_or(piece));
    }

    /// All of it, unless it went over the bound.
    pub(super) fn whole(&self) -> Option<&[u8]> {
        (!self.over).then_some(self.bytes.as_slice())
    }

    /// What fitted.
    pub(super) fn start(&self) -> &[u8] {
        &self.bytes
    }
}
