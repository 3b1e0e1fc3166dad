//! Byte runs, eight bytes at a time: nearly all of a body is plain text inside strings.

const LOW: u64 = u64::from_le_bytes([0x01; 8]);
const HIGH: u64 = u64::from_le_bytes([0x80; 8]);
const QUOTES: u64 = u64::from_le_bytes([b'"'; 8]);
const BACKSLASHES: u64 = u64::from_le_bytes([b'\\'; 8]);

/// The high bit of every zero byte; bits above the lowest one may be wrong
/// ("Bit Twiddling Hacks", determine if a word has a zero byte).
const fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(LOW) & !word & HIGH
}

/// Length of the run before the first `"` or `\`, and how many of its bytes are not ASCII.
pub(super) fn plain_run(bytes: &[u8]) -> (usize, usize) {
    let (mut len, mut other) = (0, 0);
    let (words, tail) = bytes.as_chunks::<8>();
    for word in words {
        let word = u64::from_le_bytes(*word);
        let stop = zero_bytes(word ^ QUOTES) | zero_bytes(word ^ BACKSLASHES);
        if stop != 0 {
            let before = (1_u64 << (stop.trailing_zeros() & !7)) - 1;
            len += stop.trailing_zeros() as usize / 8;
            return (len, other + (word & HIGH & before).count_ones() as usize);
        }
        len += 8;
        other += (word & HIGH).count_ones() as usize;
    }
    for byte in tail.iter().take_while(|byte| !matches!(byte, b'"' | b'\\')) {
        len += 1;
        other += usize::from(!byte.is_ascii());
    }
    (len, other)
}

/// Length of the run before the first `stop`.
pub(super) fn run_before(stop: u8, bytes: &[u8]) -> usize {
    let pattern = u64::from_le_bytes([stop; 8]);
    let (words, tail) = bytes.as_chunks::<8>();
    let mut len = 0;
    for word in words {
        let found = zero_bytes(u64::from_le_bytes(*word) ^ pattern);
        if found != 0 {
            return len + found.trailing_zeros() as usize / 8;
        }
        len += 8;
    }
    len + tail.iter().take_while(|byte| **byte != stop).count()
}

/// How many bytes are not ASCII.
pub(super) fn other_bytes(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| !byte.is_ascii()).count()
}
