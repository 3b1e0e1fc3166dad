//! Hash chains: what two prompts share, block by block.
//!
//! As in vLLM, a block's hash covers its own content and the hash of the block before it, so equal hashes mean equal
//! prefixes. Only full blocks have a hash. The engine adds the adapter to each hash itself.

use crate::random::{Rng, mix_bytes, mix2};

/// How many bytes stand for one token; the usual rule of thumb for English text.
pub const BYTES_PER_TOKEN: usize = 4;

/// A run of tokens with one identity: a system prompt, a user's turn, an earlier answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Equal ids mean equal text.
    pub id: u64,
    /// Length in tokens.
    pub tokens: u32,
}

/// Tokens in a text of this many bytes; 0 only for an empty text.
#[must_use]
pub fn tokens_of_bytes(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(BYTES_PER_TOKEN)).unwrap_or(u32::MAX)
}

/// A text of this many tokens: words of three letters, the same for the same seed.
#[must_use]
pub fn words(seed: u64, tokens: u32) -> String {
    let mut rng = Rng::new(seed);
    let mut text = String::with_capacity(tokens as usize * BYTES_PER_TOKEN);
    for _ in 0..tokens {
        text.push(' ');
        (0..BYTES_PER_TOKEN - 1).for_each(|_| text.push((b'a' + rng.below(26) as u8) as char));
    }
    text
}

/// The chain of a text, [`BYTES_PER_TOKEN`] bytes to a token.
#[must_use]
pub fn of_bytes(text: &[u8], block_size: u32) -> Vec<u64> {
    let mut hash = 0;
    text.chunks_exact((block_size as usize).max(1) * BYTES_PER_TOKEN)
        .map(|block| {
            hash = mix_bytes(hash, block);
            hash
        })
        .collect()
}

/// The chain of a sequence of segments.
#[must_use]
pub fn of_segments(segments: &[Segment], block_size: u32) -> Vec<u64> {
    let block_size = block_size.max(1);
    let (mut chain, mut hash, mut filled) = (Vec::new(), 0, 0);
    for segment in segments {
        let mut offset = 0;
        while offset < segment.tokens {
            let part = (block_size - filled).min(segment.tokens - offset);
            // A block's content is the list of (id, from, length) in it.
            hash = mix2(mix2(hash, segment.id), (u64::from(offset) << 32) | u64::from(part));
            offset += part;
            filled += part;
            if filled == block_size {
                chain.push(hash);
                filled = 0;
            }
        }
    }
    chain
}

#[cfg(test)]
mod tests {
    use super::{Segment, of_bytes, of_segments, tokens_of_bytes};

    fn segments(list: &[(u64, u32)]) -> Vec<u64> {
        let list: Vec<_> = list.iter().map(|&(id, tokens)| Segment { id, tokens }).collect();
        of_segments(&list, 16)
    }

    #[track_caller]
    fn shared(a: &[u64], b: &[u64], blocks: usize) {
        assert_eq!(a.iter().zip(b).take_while(|(a, b)| a == b).count(), blocks);
    }

    #[test]
    fn only_full_blocks_have_a_hash() {
        assert_eq!(segments(&[(1, 15)]).len(), 0);
        assert_eq!(segments(&[(1, 16)]).len(), 1);
        assert_eq!(segments(&[(1, 10), (2, 21)]).len(), 1);
        assert_eq!(segments(&[(1, 10), (2, 22)]).len(), 2);
        assert_eq!(of_bytes(&[b'a'; 63], 16).len(), 0);
        assert_eq!(of_bytes(&[b'a'; 64], 16).len(), 1);
    }

    #[test]
    fn a_shared_prefix_is_shared_up_to_its_last_full_block() {
        shared(&segments(&[(1, 40), (2, 40)]), &segments(&[(1, 40), (3, 40)]), 2);
        shared(&segments(&[(1, 32), (2, 40)]), &segments(&[(1, 32), (3, 40)]), 2);
        shared(&segments(&[(1, 40)]), &segments(&[(1, 80)]), 2);
        shared(&segments(&[(9, 1), (1, 64)]), &segments(&[(1, 64)]), 0);
    }

    #[test]
    fn equal_text_after_another_start_is_another_chain() {
        let (mut a, mut b) = (vec![b'a'; 64], vec![b'b'; 64]);
        a.extend([b'c'; 64]);
        b.extend([b'c'; 64]);
        shared(&of_bytes(&a, 16), &of_bytes(&b, 16), 0);
        assert_ne!(of_bytes(&a, 16)[1], of_bytes(&b, 16)[1]);
    }

    #[test]
    fn a_token_is_four_bytes_rounded_up() {
        assert_eq!([0, 1, 4, 5].map(tokens_of_bytes), [0, 1, 1, 2]);
    }
}
