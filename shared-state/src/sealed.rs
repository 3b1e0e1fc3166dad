//! The envelope of every value in shared data: magic, schema, kind, length, checksum.
//!
//! The key space may be shared with foreign plugins, older and newer versions of Berth, and hosts
//! that can tear a read (WasmX copies after releasing its lock). A reader treats what it cannot
//! open as absent.

use core::fmt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use xxhash_rust::xxh64::xxh64;

use crate::limits::SEALED_MAX_BYTES;

const MAGIC: [u8; 4] = *b"BRTH";
/// Version of everything that is sealed. Raise it when a sealed structure changes.
pub const SCHEMA: u16 = 5;
/// magic 4, schema 2, kind 2, payload length 4, xxh64 of the payload 8.
pub const HEADER_BYTES: usize = 20;

/// What a sealed value holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// [`crate::table::Table`]
    Table = 1,
    /// The in-flight ledger of the reader half.
    Ledger = 2,
    /// A page of the reader half's prefix index.
    Prefix = 3,
    /// [`crate::lease::Lease`]
    Lease = 4,
    /// Load reports of a pool's pods ([`crate::reports`]).
    Reports = 5,
}

/// Why a sealed value cannot be read or made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SealError {
    /// Not a value of Berth, or of another kind.
    Foreign,
    /// Made by another version.
    Schema(u16),
    /// Cut, torn or damaged.
    Damaged,
    /// Larger than [`SEALED_MAX_BYTES`].
    TooLarge(usize),
}

impl fmt::Display for SealError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => f.write_str("not written by Berth"),
            Self::Schema(found) => write!(f, "schema {found}, this version reads {SCHEMA}"),
            Self::Damaged => f.write_str("cut, torn or damaged"),
            Self::TooLarge(bytes) => write!(f, "{bytes} bytes, the bound is {SEALED_MAX_BYTES}"),
        }
    }
}

/// Encodes and seals a value.
///
/// # Errors
/// [`SealError::TooLarge`] when the encoding exceeds the bound.
pub fn seal<T: Serialize>(kind: Kind, value: &T) -> Result<Vec<u8>, SealError> {
    let mut pieces = Pieces::new(0);
    pieces.add(value)?;
    pieces.seal(kind)
}

/// A value that is encoded piece by piece: what one knows the bytes of is copied.
#[derive(Debug)]
pub struct Pieces(Vec<u8>);

impl Pieces {
    /// Nothing yet; so many bytes are expected.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let mut out = Vec::with_capacity(HEADER_BYTES.max(bytes));
        out.resize(HEADER_BYTES, 0);
        Self(out)
    }

    /// Encodes a piece.
    ///
    /// # Errors
    /// When it cannot be encoded; nothing is left then.
    pub fn add<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), SealError> {
        let out = Bytes(core::mem::take(&mut self.0));
        self.0 = postcard::serialize_with_flavor(value, out).map_err(|_| SealError::Damaged)?;
        Ok(())
    }

    /// Copies a piece that was encoded before.
    pub fn copy(&mut self, piece: &[u8]) {
        self.0.extend_from_slice(piece);
    }

    /// Where the next piece will stand in the sealed value.
    #[must_use]
    pub const fn end(&self) -> usize {
        self.0.len()
    }

    /// The sealed value.
    ///
    /// # Errors
    /// [`SealError::TooLarge`] when it exceeds the bound.
    pub fn seal(self, kind: Kind) -> Result<Vec<u8>, SealError> {
        finish(kind, self.0)
    }
}

/// Where postcard writes. Almost all it writes are numbers of a few bytes, and a call to copy them costs more than they do.
struct Bytes(Vec<u8>);

/// Longer pieces are copied at once.
const PIECE_MAX: usize = 16;

impl postcard::ser_flavors::Flavor for Bytes {
    type Output = Vec<u8>;

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn try_extend(&mut self, piece: &[u8]) -> postcard::Result<()> {
        if piece.len() > PIECE_MAX {
            self.0.extend_from_slice(piece);
        } else {
            self.0.reserve(PIECE_MAX);
            for byte in piece {
                self.0.push(*byte);
            }
        }
        Ok(())
    }

    fn finalize(self) -> postcard::Result<Self::Output> {
        Ok(self.0)
    }
}

/// Seals bytes that have an encoding of their own.
///
/// # Errors
/// [`SealError::TooLarge`] when they exceed the bound.
pub fn seal_bytes(kind: Kind, payload: &[u8]) -> Result<Vec<u8>, SealError> {
    finish(kind, [&[0; HEADER_BYTES], payload].concat())
}

/// Fills in the header of a value.
fn finish(kind: Kind, mut out: Vec<u8>) -> Result<Vec<u8>, SealError> {
    if out.len() > SEALED_MAX_BYTES {
        return Err(SealError::TooLarge(out.len()));
    }
    let (header, payload) = out.split_at_mut_checked(HEADER_BYTES).ok_or(SealError::Damaged)?;
    let length = (payload.len() as u32).to_le_bytes();
    let fields = [
        &MAGIC[..],
        &SCHEMA.to_le_bytes(),
        &(kind as u16).to_le_bytes(),
        &length,
        &xxh64(payload, 0).to_le_bytes(),
    ];
    for (to, from) in header.iter_mut().zip(fields.concat()) {
        *to = from;
    }
    Ok(out)
}

/// Opens a sealed value. Never trusts a byte, never panics.
///
/// # Errors
/// See [`SealError`].
pub fn open<T: DeserializeOwned>(kind: Kind, bytes: &[u8]) -> Result<T, SealError> {
    match take(open_bytes(kind, bytes)?)? {
        (value, []) => Ok(value),
        _ => Err(SealError::Damaged),
    }
}

/// Decodes one of the [`Pieces`] of an opened value, and says what is behind it.
///
/// # Errors
/// [`SealError::Damaged`].
pub fn take<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, &[u8]), SealError> {
    postcard::take_from_bytes(bytes).map_err(|_| SealError::Damaged)
}

/// Opens what [`seal_bytes`] sealed.
///
/// # Errors
/// See [`SealError`].
pub fn open_bytes(kind: Kind, bytes: &[u8]) -> Result<&[u8], SealError> {
    if bytes.len() > SEALED_MAX_BYTES {
        return Err(SealError::TooLarge(bytes.len()));
    }
    let (magic, rest) = bytes.split_first_chunk::<4>().ok_or(SealError::Foreign)?;
    let (schema, rest) = rest.split_first_chunk::<2>().ok_or(SealError::Foreign)?;
    let (found, rest) = rest.split_first_chunk::<2>().ok_or(SealError::Foreign)?;
    let (length, rest) = rest.split_first_chunk::<4>().ok_or(SealError::Foreign)?;
    let (sum, payload) = rest.split_first_chunk::<8>().ok_or(SealError::Foreign)?;
    if *magic != MAGIC {
        return Err(SealError::Foreign);
    }
    if u16::from_le_bytes(*schema) != SCHEMA {
        return Err(SealError::Schema(u16::from_le_bytes(*schema)));
    }
    if u16::from_le_bytes(*found) != kind as u16 {
        return Err(SealError::Foreign);
    }
    if u32::from_le_bytes(*length) as usize != payload.len() || u64::from_le_bytes(*sum) != xxh64(payload, 0) {
        return Err(SealError::Damaged);
    }
    Ok(payload)
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[track_caller]
    fn check(change: impl FnOnce(&mut Vec<u8>), expected: Result<u32, SealError>) {
        let mut bytes = seal(Kind::Ledger, &300u32).unwrap();
        change(&mut bytes);
        assert_eq!(open(Kind::Ledger, &bytes), expected);
    }

    #[test]
    fn what_was_sealed_opens() {
        check(|_| (), Ok(300));
    }

    #[test]
    fn bytes_are_sealed_as_they_are() {
        let bytes = seal_bytes(Kind::Prefix, b"page").unwrap();
        assert_eq!(open_bytes(Kind::Prefix, &bytes), Ok(&b"page"[..]));
        assert_eq!(open_bytes(Kind::Ledger, &bytes), Err(SealError::Foreign));
        assert!(seal_bytes(Kind::Prefix, &vec![0; SEALED_MAX_BYTES]).is_err());
    }

    #[test]
    fn a_foreign_value_is_told_from_a_damaged_one() {
        check(|bytes| bytes.clear(), Err(SealError::Foreign));
        check(|bytes| bytes.truncate(HEADER_BYTES - 1), Err(SealError::Foreign));
        check(|bytes| bytes[0] ^= 1, Err(SealError::Foreign));
        check(|bytes| bytes[6] = Kind::Table as u8, Err(SealError::Foreign));
        check(|bytes| bytes[4] = 9, Err(SealError::Schema(9)));
        check(|bytes| bytes[8] += 1, Err(SealError::Damaged));
        check(|bytes| bytes[12] ^= 1, Err(SealError::Damaged));
        check(|bytes| bytes[HEADER_BYTES] ^= 1, Err(SealError::Damaged));
        check(|bytes| bytes.push(0), Err(SealError::Damaged));
    }

    #[test]
    fn bytes_after_the_value_are_damage_even_when_they_are_sealed_with_it() {
        let bytes = seal(Kind::Ledger, &(300u32, 1u8)).unwrap();
        assert_eq!(open::<u32>(Kind::Ledger, &bytes), Err(SealError::Damaged));
    }

    #[test]
    fn the_size_bound_holds_for_writers_and_readers() {
        let fits = |payload: usize| "x".repeat(payload - 3);
        // A length above 16,383 takes three bytes in front of the text.
        let largest = seal(Kind::Ledger, &fits(SEALED_MAX_BYTES - HEADER_BYTES)).unwrap();
        assert_eq!(largest.len(), SEALED_MAX_BYTES);
        assert!(open::<String>(Kind::Ledger, &largest).is_ok());
        let over = Err(SealError::TooLarge(SEALED_MAX_BYTES + 1));
        assert_eq!(seal(Kind::Ledger, &fits(SEALED_MAX_BYTES - HEADER_BYTES + 1)), over);
        assert_eq!(
            open::<String>(Kind::Ledger, &vec![0; SEALED_MAX_BYTES + 1]).map(|_| Vec::new()),
            over
        );
    }
}
