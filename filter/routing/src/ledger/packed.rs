//! Records as bytes of a fixed length.
//!
//! A busy ledger is almost all records, and each event reads and writes all of them: as numbers one by one they take
//! four times as long.
//!
//! ```text
//!  base 8 | slot 1 | kind 1 | count 3 | sent 3 | context 4 | tokens or answered 4 | predicted 3 | slot 1 ...
//! ```
//!
//! All little-endian. Times are ages before the base, the latest time of all: three bytes are four hours, and no request
//! is followed for longer. What does not fit is cut to the largest number that does.

use berth_shared_state::units::{Millis, Tokens, UnixMillis};
use serde::de::{Error, Visitor};
use serde::{Deserializer, Serializer};

use super::truth::kind;
use super::{Phase, Record};

const BYTES: usize = 19;
const THREE_BYTES_MAX: u64 = 0xff_ffff;

/// For serde.
pub fn serialize<S: Serializer>(records: &[Record], serializer: S) -> Result<S::Ok, S::Error> {
    let base = records.iter().map(latest).max().unwrap_or_default();
    let mut bytes = Vec::with_capacity(8 + records.len() * BYTES);
    if !records.is_empty() {
        bytes.extend_from_slice(&base.0.to_le_bytes());
    }
    for record in records {
        bytes.extend_from_slice(&pack(record, base));
    }
    serializer.serialize_bytes(&bytes)
}

/// For serde. Never trusts a byte.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Record>, D::Error> {
    deserializer.deserialize_bytes(Packed)
}

struct Packed;

impl Visitor<'_> for Packed {
    type Value = Vec<Record>;

    fn expecting(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        out.write_str("records in bytes")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Self::Value, E> {
        if bytes.is_empty() {
            return Ok(Vec::new());
        }
        let (base, rest) = bytes
            .split_first_chunk()
            .ok_or_else(|| E::invalid_length(bytes.len(), &self))?;
        let base = UnixMillis(u64::from_le_bytes(*base));
        let (records, odd) = rest.as_chunks::<BYTES>();
        if !odd.is_empty() {
            return Err(E::invalid_length(bytes.len(), &self));
        }
        let unpacked = records.iter().map(|record| unpack(record, base));
        unpacked
            .collect::<Option<_>>()
            .ok_or_else(|| E::custom("no such kind of record"))
    }
}

/// The last time in a record.
fn latest(record: &Record) -> UnixMillis {
    match record.phase {
        Phase::Unanswered { .. } => record.sent_at,
        Phase::Generating { answered_at } | Phase::Ended { answered_at } => record.sent_at.max(answered_at),
    }
}

fn three(number: u64) -> [u8; 3] {
    let [a, b, c, ..] = number.min(THREE_BYTES_MAX).to_le_bytes();
    [a, b, c]
}

fn four(number: u64) -> [u8; 4] {
    u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes()
}

fn pack(record: &Record, base: UnixMillis) -> [u8; BYTES] {
    let (of_phase, predicted) = match record.phase {
        Phase::Unanswered { tokens, predicted } => (tokens.0, predicted.0),
        Phase::Generating { answered_at } | Phase::Ended { answered_at } => (base.since(answered_at).0, 0),
    };
    let ([a, b, c], [d, e, f]) = (three(record.count.into()), three(base.since(record.sent_at).0));
    let ([g, h, i, j], [k, l, m, n]) = (four(record.context.0), four(of_phase));
    let [o, p, q] = three(predicted);
    [
        record.slot,
        kind(record),
        a,
        b,
        c,
        d,
        e,
        f,
        g,
        h,
        i,
        j,
        k,
        l,
        m,
        n,
        o,
        p,
        q,
    ]
}

/// `None`: no such kind.
fn unpack(bytes: &[u8; BYTES], base: UnixMillis) -> Option<Record> {
    let [slot, kind, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q] = *bytes;
    let before = |age: u32| UnixMillis(base.0.saturating_sub(age.into()));
    let of_phase = u32::from_le_bytes([k, l, m, n]);
    let phase = match kind {
        0 => Phase::Unanswered {
            tokens: Tokens(of_phase.into()),
            predicted: Millis(u32::from_le_bytes([o, p, q, 0]).into()),
        },
        1 => Phase::Generating {
            answered_at: before(of_phase),
        },
        2 => Phase::Ended {
            answered_at: before(of_phase),
        },
        _ => return None,
    };
    Some(Record {
        slot,
        count: u32::from_le_bytes([a, b, c, 0]),
        sent_at: before(u32::from_le_bytes([d, e, f, 0])),
        context: Tokens(u32::from_le_bytes([g, h, i, j]).into()),
        phase,
    })
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    fn record(count: u32, sent: u64, context: u64, phase: Phase) -> Record {
        Record {
            slot: 200,
            count,
            sent_at: UnixMillis(sent),
            context: Tokens(context),
            phase,
        }
    }

    const fn unanswered(tokens: u64, predicted: u64) -> Phase {
        Phase::Unanswered {
            tokens: Tokens(tokens),
            predicted: Millis(predicted),
        }
    }

    #[track_caller]
    fn check(one: Record, base: u64, expected: Record) {
        let packed = pack(&one, UnixMillis(base));
        assert_eq!(unpack(&packed, UnixMillis(base)), Some(expected));
    }

    #[test]
    fn what_fits_comes_back_and_what_does_not_is_cut() {
        let answered_at = UnixMillis(69_999_999);
        let phases = [
            unanswered(u64::from(u32::MAX), THREE_BYTES_MAX),
            Phase::Generating { answered_at },
            Phase::Ended { answered_at },
        ];
        for phase in phases {
            let most = record(0xff_ffff, 70_000_000 - THREE_BYTES_MAX, u32::MAX.into(), phase);
            check(most, 70_000_000, most);
        }
        let most = record(0xff_ffff, 70_000_000 - THREE_BYTES_MAX, u32::MAX.into(), phases[0]);
        let more = record(1 << 24, 0, 1 << 32, unanswered(1 << 32, 1 << 24));
        check(more, 70_000_000, most);
    }

    #[test]
    fn another_kind_is_none() {
        let mut bytes = pack(&record(1, 0, 0, unanswered(0, 0)), UnixMillis(0));
        bytes[1] = 3;
        assert_eq!(unpack(&bytes, UnixMillis(0)), None);
    }
}
