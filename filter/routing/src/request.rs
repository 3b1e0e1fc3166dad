//! What a request asks for, read from its head and, chunk by chunk, from its body.

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

/// The facts of one request.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Facts {
    /// Which API; `None` for a request that Berth passes.
    pub api: Option<Api>,
    /// `model` of the body (or adapter_id, lora_path); `None` = the pool's base.
    pub model: Option<String>,
    /// Size of the prompt.
    pub prompt: PromptSize,
    /// The client's bound on the output, where it gave one.
    pub max_output: Option<Tokens>,
    /// Choices per prompt, at least 1.
    pub choices: u32,
    /// Prompts in the request, at least 1 (an array of prompts is one request each).
    pub prompts: u32,
    /// Asked for a stream.
    pub stream: bool,
    /// `cache_salt`, which separates prefixes of different tenants.
    pub cache_salt: Option<String>,
    /// The whole body was read and was well formed.
    pub complete: bool,
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
    /// History that is not in the request (`previous_response_id`): the size is a lower bound.
    pub hidden: bool,
}
