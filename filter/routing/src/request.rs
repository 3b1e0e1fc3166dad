//! What a request asks for, read from its head and, chunk by chunk, from its body.
//!
//! ```text
//!  head -> classify -> Pass(reason)                         not ours, untouched
//!                   -> Hold(BodyReader) -> feed* -> finish  whole body read
//!                                                -> facts   cut at its bound
//! ```
//!
//! Reading never fails: a body that is not what its path promises gives facts marked `malformed`,
//! and the engine tells the client what is wrong with it. Deliberately not here: rewriting a body
//! ([`crate::rewrite`]), a tokenizer (too large for a proxy), and prefix hashes (they hang
//! in at [`PromptSink`]).

mod body;
mod found;
mod head;
pub(crate) mod json;
mod kept;
mod keys;
mod multipart;
mod spans;
mod walk;

#[cfg(test)]
mod tests;

pub use body::BodyReader;
pub(crate) use head::media_type;
pub use head::{Head, HeadVerdict, ModelsQuestion, PassReason, asks_for_models, classify};

use crate::limits::{
    ASCII_BYTES_PER_TOKEN, BYTES_PER_TOKEN_RANGE, KEPT_MAX_BYTES, MEDIA_TOKENS, MESSAGE_TOKENS, OTHER_BYTES_PER_TOKEN,
};
use berth_shared_state::units::Tokens;
use serde::Serialize;

/// Which inference API a path belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Api {
    /// /v1/chat/completions
    Chat,
    /// /v1/completions
    Completions,
    /// /v1/responses
    Responses,
    /// /v1/messages (Anthropic)
    Messages,
    /// /v1/embeddings, /pooling, /classify
    Embeddings,
    /// /rerank, /score
    Rerank,
    /// /v1/audio/transcriptions, /translations
    Audio,
    /// /tokenize, /detokenize, /v1/messages/count_tokens
    Tokenize,
    /// /generate of TGI and SGLang
    Generate,
}

impl Api {
    /// Whether engines look its prompts up in their prefix caches.
    #[must_use]
    pub const fn generates(self) -> bool {
        matches!(
            self,
            Self::Chat | Self::Completions | Self::Responses | Self::Messages | Self::Generate
        )
    }
}

/// The facts of one request.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Facts {
    /// Which API; `None` for a request that Berth passes.
    pub api: Option<Api>,
    /// `model` of the body (or adapter_id, lora_path); `None` = the pool's base.
    pub model: Option<String>,
    /// Where that name stands in the body; `None` = another field decides, or there is none.
    pub model_at: Option<ModelAt>,
    /// The model name was longer than any name can be: `model` is `None`, but the base was not
    /// asked for. No pod can know it, so the caller may answer 404.
    pub model_too_long: bool,
    /// Size of the prompt.
    pub prompt: PromptSize,
    /// The client's bound on the output, where it gave one; 0 for an API without output.
    pub max_output: Option<Tokens>,
    /// Choices per prompt, at least 1.
    pub choices: u32,
    /// Prompts in the request, at least 1 (an array of prompts is one request each).
    pub prompts: u32,
    /// Asked for a stream.
    pub stream: bool,
    /// `cache_salt`, which separates prefixes of different tenants; its first 256 bytes.
    pub cache_salt: Option<String>,
    /// `user` (Anthropic: `metadata.user_id`), its first 256 bytes.
    pub user: Option<String>,
    /// The whole body was read and was well formed.
    pub complete: bool,
    /// The body is not JSON (or multipart) of the right shape, or nested too deep. The facts hold
    /// what was read before; the engine answers the client.
    pub malformed: bool,
}

/// Bytes `start..end` of a body that are the model's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ModelAt {
    /// First byte.
    pub start: usize,
    /// The byte after the last one.
    pub end: usize,
    /// A JSON string with its quotes; else the bare name.
    pub quoted: bool,
}

/// Size of a prompt, by what was found in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PromptSize {
    /// Text in ASCII, bytes.
    pub ascii_bytes: u64,
    /// Other text, UTF-8 bytes.
    pub other_bytes: u64,
    /// Tokens given as numbers: exact.
    pub tokens: u64,
    /// Images, audio clips and other parts with a fixed cost.
    pub media_parts: u32,
    /// Chat messages, each with the template around it.
    pub messages: u32,
    /// `truncate_prompt_tokens`: the engine drops what is beyond, tokens over all prompts.
    pub at_most: Option<Tokens>,
    /// History that is not in the request (`previous_response_id`): the size is a lower bound.
    pub hidden: bool,
}

impl Facts {
    /// KV tokens the request will hold when it has finished: prompts once, and the output of each
    /// choice. `expected_output` is what the caller expects per choice where the client's bound is
    /// not lower; `ascii_bytes_per_token` as in [`PromptSize::estimate`].
    #[must_use]
    pub fn need(&self, expected_output: Tokens, ascii_bytes_per_token: f64) -> Tokens {
        if self.api == Some(Api::Tokenize) {
            return Tokens(0);
        }
        let output = self
            .max_output
            .map_or(expected_output, |bound| bound.min(expected_output));
        let answers = u64::from(self.choices.max(1)).saturating_mul(u64::from(self.prompts.max(1)));
        self.prompt.estimate(ascii_bytes_per_token) + Tokens(output.0.saturating_mul(answers))
    }
}

impl Facts {
    /// Whether all of the prompt is in the request and was read, and the engine takes it from its start.
    #[must_use]
    pub const fn has_whole_prompt(&self) -> bool {
        self.complete && !self.malformed && !self.prompt.hidden && self.prompt.at_most.is_none()
    }
}

impl PromptSize {
    /// Tokens of the prompt: ASCII text by the rate given (see
    /// [`ASCII_BYTES_PER_TOKEN`]; a learned one scales other text with it), token arrays exactly,
    /// media and messages at their fixed cost.
    #[must_use]
    pub fn estimate(&self, ascii_bytes_per_token: f64) -> Tokens {
        let usable = BYTES_PER_TOKEN_RANGE.contains(&ascii_bytes_per_token);
        let rate = if usable {
            ascii_bytes_per_token
        } else {
            ASCII_BYTES_PER_TOKEN
        };
        let all = Tokens((self.text_bytes() / rate).ceil() as u64) + self.fixed();
        self.at_most.map_or(all, |bound| bound.min(all))
    }

    /// All text, in bytes as ASCII text would have them.
    #[must_use]
    pub fn text_bytes(&self) -> f64 {
        self.ascii_bytes as f64 + self.other_bytes as f64 * (ASCII_BYTES_PER_TOKEN / OTHER_BYTES_PER_TOKEN)
    }

    /// Tokens that are no text: token arrays exactly, media and messages at their fixed cost.
    #[must_use]
    pub fn fixed(&self) -> Tokens {
        let parts = u64::from(self.media_parts) * MEDIA_TOKENS + u64::from(self.messages) * MESSAGE_TOKENS;
        Tokens(self.tokens) + Tokens(parts)
    }
}

/// Takes the prompt while it is read. This is where a prefix index hangs in.
///
/// Pieces come in the order of the body and may be cut anywhere, also inside a character: only
/// their concatenation means something, and it is the same for every split of the body. The
/// reference picker hashes `tools` as JSON, then role and content of each message, without
/// separators. So does this reader, with these differences, which a streaming scan cannot avoid:
/// - Keys keep the order of the body: tools after messages come after them, and a role behind its
///   content comes behind it. One client sends one order, so its prefixes stay stable.
/// - JSON (tools, schemas) is written without spaces, its keys in the client's order and not
///   sorted, its strings decoded.
/// - A key that occurs twice reaches the sink twice, though only its last value is counted.
pub trait PromptSink {
    /// A piece of prompt text, escapes decoded; invalid UTF-8 passes as it came.
    fn text(&mut self, piece: &[u8]);
    /// One token of a prompt given as numbers.
    fn token(&mut self, token: u32);
    /// A piece of what identifies an image or another part with a fixed cost: its URL, its base64.
    /// Never text.
    fn media(&mut self, _piece: &[u8]) {}
    /// A further prompt begins: each one of an array has a prefix of its own.
    fn next_prompt(&mut self) {}
}

/// A [`PromptSink`] for tests that look at the facts alone.
#[cfg(test)]
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPrompt;

#[cfg(test)]
impl PromptSink for NoPrompt {
    fn text(&mut self, _piece: &[u8]) {}
    fn token(&mut self, _token: u32) {}
}

/// Whether a model name may become a header value: 1 to 256 visible ASCII bytes, so no client can
/// smuggle a second header or a control character through a body.
#[must_use]
pub fn valid_header_name(name: &str) -> bool {
    (1..=KEPT_MAX_BYTES).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Whether clients of this API expect errors as `{"type":"error","error":{…}}`.
#[must_use]
pub const fn prefers_anthropic_errors(api: Api) -> bool {
    matches!(api, Api::Messages)
}
