//! From the bytes of a prompt to its chain of block hashes.
//!
//! The reference picker's rules: the prompt is cut into words of 4 bytes (no tokenizer), the last
//! one padded with zeros; a block is 64 words, and the last one of a prompt may be shorter;
//! `id = xxh64(words)`, `h(i) = xxh64(id(i), h(i-1))`, `h(0) = xxh64(model, cache_salt)`. In a body the
//! model may stand behind the prompt, so what is hashed while reading are the ids, and the chain is
//! made at the end.

use core::fmt;

use berth_shared_state::units::Tokens;
use xxhash_rust::xxh64::{Xxh64, xxh64};

use crate::limits::{MEDIA_TOKENS, PREFIX_BLOCK_TOKENS, PREFIX_BLOCKS_MAX, PREFIX_PROMPTS_MAX};
use crate::request::PromptSink;

/// Bytes of a word: a token number, or about a token of English text.
const WORD_BYTES: usize = 4;

/// Hashes a prompt while its body is read. Bounded: 8 bytes for a block, and no block is kept
/// beyond the bound; the length counts on.
#[derive(Clone)]
pub struct Hasher {
    block_bytes: usize,
    blocks_max: usize,
    ids: Vec<u64>,
    prompts: Vec<Prompt>,
    /// Bytes of the prompts that were closed, in whole words.
    closed_bytes: u64,
    /// Bytes of the prompt being read.
    bytes: u64,
    /// The block being read, as far as it came.
    open: Vec<u8>,
    last: Piece,
    media: Xxh64,
}

/// What came last: words start anew where the kind changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    Text,
    Token,
    Media,
}

/// One prompt: the end of its blocks in `ids`, and how many of them are full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Prompt {
    end: usize,
    full: usize,
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hasher")
            .field("blocks", &self.ids.len())
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl Default for Hasher {
    fn default() -> Self {
        Self::new(PREFIX_BLOCK_TOKENS, PREFIX_BLOCKS_MAX)
    }
}

impl Hasher {
    /// For blocks of `block_tokens` words, and at most `blocks_max` of them.
    #[must_use]
    pub fn new(block_tokens: usize, blocks_max: usize) -> Self {
        Self {
            block_bytes: block_tokens.max(1).saturating_mul(WORD_BYTES),
            blocks_max,
            ids: Vec::new(),
            prompts: Vec::new(),
            closed_bytes: 0,
            bytes: 0,
            open: Vec::new(),
            last: Piece::Text,
            media: Xxh64::new(0),
        }
    }

    /// One that hashes nothing, where no pool wants it.
    #[must_use]
    pub fn off() -> Self {
        Self::new(PREFIX_BLOCK_TOKENS, 0)
    }

    /// The blocks of everything read.
    #[must_use]
    pub fn finish(mut self) -> Blocks {
        self.close_prompt();
        Blocks {
            block_words: (self.block_bytes / WORD_BYTES) as u64,
            words: self.closed_bytes / WORD_BYTES as u64,
            ids: self.ids,
            prompts: self.prompts,
        }
    }

    fn is_full(&self) -> bool {
        self.ids.len() >= self.blocks_max || self.prompts.len() >= PREFIX_PROMPTS_MAX
    }

    /// Ends what came before, if it was of another kind.
    fn begin(&mut self, kind: Piece) {
        if self.last != kind {
            self.close_piece();
            self.last = kind;
        }
    }

    fn close_piece(&mut self) {
        match self.last {
            Piece::Text => {
                let odd = (self.bytes % WORD_BYTES as u64) as usize;
                if odd > 0 {
                    self.push([0; WORD_BYTES].split_at(odd).1);
                }
            }
            Piece::Token => {}
            // As many words as it is tokens, all made of what identifies it.
            Piece::Media => {
                let identity = self.media.digest().to_le_bytes();
                self.media.reset(0);
                for _ in 0..MEDIA_TOKENS / 2 {
                    self.push(&identity);
                }
            }
        }
    }

    fn push(&mut self, mut bytes: &[u8]) {
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
        while !bytes.is_empty() && !self.is_full() {
            let room = self.block_bytes.saturating_sub(self.open.len());
            let (now, rest) = bytes.split_at_checked(room).unwrap_or((bytes, &[]));
            bytes = rest;
            if now.len() == self.block_bytes {
                self.ids.push(xxh64(now, 0));
                continue;
            }
            self.open.extend_from_slice(now);
            if self.open.len() == self.block_bytes {
                self.close_open();
            }
        }
    }

    fn close_open(&mut self) {
        self.ids.push(xxh64(&self.open, 0));
        self.open.clear();
    }

    fn close_prompt(&mut self) {
        self.close_piece();
        self.last = Piece::Text;
        if self.bytes == 0 {
            return;
        }
        let start = self.prompts.last().map_or(0, |prompt| prompt.end);
        let full = self.ids.len().saturating_sub(start);
        if !self.open.is_empty() && !self.is_full() {
            self.close_open();
        }
        self.open.clear();
        if self.prompts.len() < PREFIX_PROMPTS_MAX {
            let end = self.ids.len();
            self.prompts.push(Prompt { end, full });
        }
        self.closed_bytes = self.closed_bytes.saturating_add(self.bytes);
        self.bytes = 0;
    }
}

impl PromptSink for Hasher {
    fn text(&mut self, piece: &[u8]) {
        if !piece.is_empty() {
            self.begin(Piece::Text);
            self.push(piece);
        }
    }

    fn token(&mut self, token: u32) {
        self.begin(Piece::Token);
        self.push(&token.to_le_bytes());
    }

    fn media(&mut self, piece: &[u8]) {
        if !piece.is_empty() {
            self.begin(Piece::Media);
            if !self.is_full() {
                self.media.update(piece);
            }
        }
    }

    fn next_prompt(&mut self) {
        self.close_prompt();
    }
}

/// A prompt, or several, as hashes of their blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blocks {
    block_words: u64,
    /// Words in all prompts, whether or not their blocks are here.
    words: u64,
    ids: Vec<u64>,
    prompts: Vec<Prompt>,
}

/// h(0) of every chain of a model; `cache_salt` tells tenants apart.
#[must_use]
pub fn seed(model: &str, cache_salt: &str) -> u64 {
    xxh64(&[model.as_bytes(), cache_salt.as_bytes()].concat(), 0)
}

impl Blocks {
    /// Bytes of memory that its lists take.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        size_of::<u64>() * self.ids.len() + size_of::<Prompt>() * self.prompts.len()
    }

    /// The chains under a [`seed`].
    #[must_use]
    pub fn chains(&self, seed: u64) -> Chains {
        let mut hashes = Vec::with_capacity(self.ids.len());
        let mut ids = self.ids.iter();
        for prompt in &self.prompts {
            let mut before = seed;
            for id in ids.by_ref().take(prompt.end.saturating_sub(hashes.len())) {
                let both = u128::from(before) << 64 | u128::from(*id);
                before = xxh64(&both.to_le_bytes(), 0);
                hashes.push(before);
            }
        }
        Chains {
            block_words: self.block_words,
            words: self.words,
            prompts: self.prompts.clone(),
            hashes,
        }
    }
}

/// Chains of block hashes, one for each prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chains {
    block_words: u64,
    words: u64,
    prompts: Vec<Prompt>,
    hashes: Vec<u64>,
}

impl Chains {
    /// What stands for the context of a session instead of its prompt: a chain of its own that every request of the
    /// session goes along, as far as its context reaches. Of that, `prompt` tokens are what the request asks with.
    #[must_use]
    pub fn of_session(key: u64, prompt: Tokens, context: Tokens) -> Self {
        let words = PREFIX_BLOCK_TOKENS as u64;
        // A short question is a block, too: its answer should come from the same pod.
        let blocks = (context.0 / words).clamp(1, PREFIX_BLOCKS_MAX as u64);
        let hashes: Vec<u64> = (0..blocks).map(|block| xxh64(&block.to_le_bytes(), key)).collect();
        let end = hashes.len();
        Self {
            block_words: words,
            words: prompt.0.max(1),
            prompts: vec![Prompt { end, full: end }],
            hashes,
        }
    }

    /// Each prompt's chain with its last block, which may be shorter than the others.
    pub fn whole(&self) -> impl Iterator<Item = &[u64]> {
        self.slices(|prompt, start| prompt.end.saturating_sub(start))
    }

    /// Each prompt's chain of full blocks: what a longer prompt can share.
    pub fn full(&self) -> impl Iterator<Item = &[u64]> {
        self.slices(|prompt, _| prompt.full)
    }

    fn slices(&self, take: impl Fn(&Prompt, usize) -> usize) -> impl Iterator<Item = &[u64]> {
        let mut start = 0;
        self.prompts.iter().map(move |prompt| {
            let blocks = take(prompt, start);
            let chain = self.hashes.get(start..).and_then(|rest| rest.get(..blocks));
            start = prompt.end;
            chain.unwrap_or_default()
        })
    }

    /// The part, 0 to 1, that so many full blocks are of all prompts.
    #[must_use]
    pub fn part(&self, blocks: u32) -> f64 {
        if self.words == 0 {
            return 0.0;
        }
        (u64::from(blocks).saturating_mul(self.block_words) as f64 / self.words as f64).min(1.0)
    }
}
