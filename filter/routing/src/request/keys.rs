//! What each key of each API means. One table per kind of object; a key that is not here is
//! skipped, however large its value is.

use super::Api;

/// What a value means, by where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Nothing.
    Skip,
    /// The body itself.
    Root,
    /// Sampling parameters in an object of their own (TGI, SGLang), or a list of them.
    Params,
    /// One value of interest.
    Keep(Field),
    /// Prompt text. Arrays and objects are text as JSON.
    Text,
    /// Inside of such JSON.
    Json,
    /// Content of a message: text, one part, or a list of parts.
    Content,
    /// A list of messages, or text in place of it.
    Turns,
    /// One message.
    Turn,
    /// A part of a message, or a list of them.
    Block,
    /// One prompt, or a list of prompts, or a list of tokens.
    Prompt,
    /// An item of such a list.
    PromptItem,
    /// An item of a prompt.
    Token,
    /// An image or another part with a fixed cost, or a list of them.
    Media,
    /// Inside of one.
    MediaInner,
    /// Anthropic's `source` of an image or document.
    Source,
    /// Its data: media, unless its type was said to be text.
    SourceData,
    /// Refers to history that is not in the request.
    Hidden,
    /// Anthropic's `metadata`.
    Metadata,
}

/// Values of interest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Model,
    Adapter,
    CacheSalt,
    User,
    Stream,
    /// `max_tokens` and what other APIs call it.
    MaxOutput,
    /// `max_completion_tokens`, which wins over `max_tokens`.
    MaxCompletion,
    Choices,
    BestOf,
    TruncatePrompt,
    SourceType,
}

/// The parts of a prompt, told apart so that the last value of a repeated key wins, and so that a
/// query can be counted once per document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Prompt,
    Turns,
    System,
    Tools,
    Functions,
    Format,
    Suffix,
    Documents,
    Query,
    Images,
    Videos,
    Audios,
}

/// One more than the last [`Part`].
pub(super) const PARTS: usize = Part::Audios as usize + 1;

/// Meaning of a key at the top, and which part of the prompt its value is.
pub(super) fn root(api: Api, key: &[u8]) -> (Place, Option<Part>) {
    let field = match key {
        b"model" => Field::Model,
        // SGLang takes the adapter beside the model on every path.
        b"adapter_id" | b"lora_path" => Field::Adapter,
        b"cache_salt" => Field::CacheSalt,
        b"user" => Field::User,
        b"stream" => Field::Stream,
        b"n" => Field::Choices,
        b"best_of" => Field::BestOf,
        b"truncate_prompt_tokens" => Field::TruncatePrompt,
        b"max_completion_tokens" => Field::MaxCompletion,
        b"max_output_tokens" if api == Api::Responses => Field::MaxOutput,
        b"max_tokens" if api != Api::Responses => Field::MaxOutput,
        _ => {
            return match prompt_part(api, key) {
                Some((place, part)) => (place, Some(part)),
                None => (other(api, key), None),
            };
        }
    };
    (Place::Keep(field), None)
}

fn prompt_part(api: Api, key: &[u8]) -> Option<(Place, Part)> {
    Some(match (api, key) {
        (Api::Responses, b"input") => (Place::Turns, Part::Turns),
        (Api::Responses, b"instructions") => (Place::Content, Part::System),
        (Api::Responses, b"tools") => (Place::Text, Part::Tools),
        // `text.format` holds the schema.
        (Api::Responses, b"text") => (Place::Text, Part::Format),
        (Api::Responses, _) => return None,

        (Api::Generate, b"inputs" | b"text" | b"input_ids" | b"token_ids") => (Place::Prompt, Part::Prompt),
        (Api::Generate, b"image_data") => (Place::Media, Part::Images),
        (Api::Generate, b"video_data") => (Place::Media, Part::Videos),
        (Api::Generate, b"audio_data") => (Place::Media, Part::Audios),
        (Api::Generate, _) => return None,

        (Api::Rerank, b"query" | b"queries" | b"text_1" | b"data_1") => (Place::Prompt, Part::Query),
        (Api::Rerank, b"documents" | b"text_2" | b"data_2") => (Place::Prompt, Part::Documents),
        (Api::Rerank, _) => return None,

        (Api::Completions, b"suffix") => (Place::Text, Part::Suffix),
        (Api::Completions, b"prompt_embeds") => (Place::Media, Part::Images),
        (Api::Completions | Api::Tokenize, b"prompt") => (Place::Prompt, Part::Prompt),
        (Api::Completions, _) => return None,
        (Api::Embeddings, b"input") => (Place::Prompt, Part::Prompt),

        // Chat and Messages, and the other APIs that take messages as well.
        (_, b"messages") => (Place::Turns, Part::Turns),
        (_, b"system") => (Place::Content, Part::System),
        (_, b"tools") => (Place::Text, Part::Tools),
        (_, b"functions") => (Place::Text, Part::Functions),
        (_, b"response_format") => (Place::Text, Part::Format),
        (_, b"documents") => (Place::Text, Part::Documents),
        _ => return None,
    })
}

/// Keys at the top that are no value of interest and no part of the prompt, but say something.
fn other(api: Api, key: &[u8]) -> Place {
    match (api, key) {
        (Api::Generate, b"parameters" | b"sampling_params") => Place::Params,
        // `prompt` names a stored template.
        (Api::Responses, b"previous_response_id" | b"conversation" | b"prompt") => Place::Hidden,
        (Api::Messages, b"metadata") => Place::Metadata,
        _ => Place::Skip,
    }
}

/// Meaning of a key in Anthropic's `metadata`.
pub(super) fn metadata(key: &[u8]) -> Place {
    match key {
        b"user_id" => Place::Keep(Field::User),
        _ => Place::Skip,
    }
}

/// Meaning of a key in sampling parameters of their own.
pub(super) fn params(key: &[u8]) -> Place {
    Place::Keep(match key {
        b"max_new_tokens" | b"max_tokens" => Field::MaxOutput,
        b"n" => Field::Choices,
        b"best_of" => Field::BestOf,
        b"adapter_id" => Field::Adapter,
        b"truncate" | b"truncate_prompt_tokens" => Field::TruncatePrompt,
        _ => return Place::Skip,
    })
}

/// Meaning of a key in a message, a part of its content, a tool call or an item of a response.
/// Identifiers, signatures and encrypted reasoning are not in the prompt.
pub(super) fn block(key: &[u8]) -> Place {
    match key {
        b"role" | b"text" | b"name" | b"arguments" | b"refusal" | b"thinking" | b"reasoning" | b"reasoning_content" => {
            Place::Text
        }
        b"content" | b"output" | b"summary" => Place::Content,
        // Of a tool_use block.
        b"input" => Place::Text,
        b"tool_calls" | b"function_call" | b"function" => Place::Block,
        b"image_url" | b"video_url" | b"audio_url" | b"input_audio" | b"image" | b"video" | b"audio"
        | b"image_embeds" | b"audio_embeds" | b"image_pil" | b"file" | b"file_data" | b"file_id" | b"file_url" => {
            Place::Media
        }
        b"source" => Place::Source,
        _ => Place::Skip,
    }
}

/// Meaning of a key in Anthropic's `source`.
pub(super) fn source(key: &[u8]) -> Place {
    match key {
        b"type" => Place::Keep(Field::SourceType),
        b"data" | b"url" | b"file_id" => Place::SourceData,
        b"content" => Place::Content,
        _ => Place::Skip,
    }
}

/// Meaning of a multipart field. The file itself is none.
pub(super) fn form(name: &[u8]) -> Place {
    Place::Keep(match name {
        b"model" => Field::Model,
        b"stream" => Field::Stream,
        b"max_completion_tokens" => Field::MaxCompletion,
        b"max_tokens" => Field::MaxOutput,
        b"prompt" => return Place::Text,
        _ => return Place::Skip,
    })
}
