//! Reading an inference request, and refusing a bad one in vLLM's words.

use super::reply::Refused;
use crate::chain::{BYTES_PER_TOKEN, of_bytes, tokens_of_bytes, words};
use crate::random::{Rng, mix_bytes, mix2};
use serde_json::Value;

/// vLLM's default for completions; chat's is the rest of the context.
const COMPLETION_MAX_TOKENS: u64 = 16;
/// Tokens that stand for an image, whatever its size (a 336 px CLIP grid of 24 x 24).
const IMAGE_TOKENS: usize = 576;
/// Median of the answers' lengths and the spread of their logarithm: about what public chat traces show.
const ANSWER_MEDIAN: f64 = 120.0;
const ANSWER_SIGMA: f64 = 0.8;

/// Which of the two endpoints was called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Endpoint {
    Chat,
    Completions,
}

/// A request that can be served.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ask {
    pub(super) endpoint: Endpoint,
    /// As the client wrote it; none = the base model.
    pub(super) model: Option<String>,
    pub(super) prompt_tokens: u32,
    pub(super) output_tokens: u32,
    /// The answer ends by itself before its limit.
    pub(super) stops: bool,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    /// Four bytes per token.
    pub(super) answer: String,
    /// Hash chain of prompt and answer.
    pub(super) chain: Vec<u64>,
}

/// What the pod brings to the reading.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) max_model_len: u32,
    pub(super) block_size: u32,
    pub(super) seed: u64,
}

/// Reads a body that was declared as JSON.
pub(super) fn read(endpoint: Endpoint, body: &[u8], limits: &Limits) -> Result<Ask, Refused> {
    let body: Value = serde_json::from_slice(body).map_err(|error| Refused::json(error.column()))?;
    let prompt = match endpoint {
        Endpoint::Chat => chat_prompt(&body).ok_or_else(|| Refused::missing("messages"))?,
        Endpoint::Completions => body
            .get("prompt")
            .and_then(completion_prompt)
            .ok_or_else(|| Refused::missing("prompt"))?,
    };
    let prompt_tokens = tokens_of_bytes(prompt.len()).max(1);
    let asked = asked_tokens(endpoint, &body)?;
    check_length(prompt_tokens, asked, limits.max_model_len)?;
    let limit = asked
        .map_or(u32::MAX, |asked| asked as u32)
        .min(limits.max_model_len - prompt_tokens);
    let seed = mix2(limits.seed, mix_bytes(0, &prompt));
    let drawn = Rng::new(seed).log_normal(ANSWER_MEDIAN, ANSWER_SIGMA).max(1.0) as u32;
    let forced = body.get("ignore_eos").and_then(Value::as_bool).unwrap_or(false);
    let output_tokens = if forced { limit } else { drawn.min(limit) };
    let answer = words(seed, output_tokens);
    let mut text = prompt;
    text.extend(answer.as_bytes());
    let flag = |value: Option<&Value>| value.and_then(Value::as_bool).unwrap_or(false);
    Ok(Ask {
        endpoint,
        model: body.get("model").and_then(Value::as_str).map(str::to_owned),
        prompt_tokens,
        output_tokens,
        stops: output_tokens < limit,
        stream: flag(body.get("stream")),
        include_usage: flag(body.pointer("/stream_options/include_usage")),
        chain: of_bytes(&text, limits.block_size),
        answer,
    })
}

/// The output bound asked for; at least 1.
fn asked_tokens(endpoint: Endpoint, body: &Value) -> Result<Option<u64>, Refused> {
    let keys: &[&str] = match endpoint {
        Endpoint::Chat => &["max_completion_tokens", "max_tokens"],
        Endpoint::Completions => &["max_tokens"],
    };
    for key in keys {
        match body.get(key) {
            None | Some(Value::Null) => {}
            Some(value) => {
                let whole = value.as_f64().filter(|number| number.fract() == 0.0 && *number >= 0.0);
                return match whole {
                    Some(number) => Ok(Some((number as u64).max(1))),
                    None => Err(Refused::not_an_integer(key, value)),
                };
            }
        }
    }
    Ok((endpoint == Endpoint::Completions).then_some(COMPLETION_MAX_TOKENS))
}

fn check_length(prompt: u32, asked: Option<u64>, limit: u32) -> Result<(), Refused> {
    match asked {
        _ if prompt >= limit => Err(Refused::prompt_too_long(limit)),
        Some(asked) if asked > u64::from(limit) => Err(Refused::too_many_tokens(asked, limit)),
        Some(asked) if asked + u64::from(prompt) > u64::from(limit) => Err(Refused::total_too_long(asked, limit)),
        _ => Ok(()),
    }
}

/// Messages as a template would print them. A later turn starts with the text of the earlier one and its answer.
fn chat_prompt(body: &Value) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    if let Some(tools) = body.get("tools").filter(|tools| !tools.is_null()) {
        text.extend(format!("<|tools|>{tools}").into_bytes());
    }
    for message in body.get("messages")?.as_array()? {
        let role = message.get("role").and_then(Value::as_str).unwrap_or("user");
        text.extend(format!("<|{role}|>").into_bytes());
        match message.get("content") {
            Some(Value::String(content)) => text.extend(content.bytes()),
            Some(Value::Array(parts)) => parts.iter().for_each(|part| push_part(&mut text, part)),
            _ => {}
        }
        if let Some(calls) = message.get("tool_calls") {
            text.extend(calls.to_string().into_bytes());
        }
    }
    text.extend(b"<|assistant|>");
    Some(text)
}

fn push_part(text: &mut Vec<u8>, part: &Value) {
    match part.get("text").and_then(Value::as_str) {
        Some(content) => text.extend(content.bytes()),
        // Another image is another content, but its size in text means nothing.
        None => {
            let mark = mix_bytes(0, part.to_string().as_bytes()).to_le_bytes();
            text.extend(mark.iter().cycle().take(IMAGE_TOKENS * BYTES_PER_TOKEN));
        }
    }
}

/// A text, a list of texts (taken as one), or token ids (four bytes each, so that they count exactly).
fn completion_prompt(prompt: &Value) -> Option<Vec<u8>> {
    match prompt {
        Value::String(text) => Some(text.clone().into_bytes()),
        Value::Number(token) => Some((token.as_u64()? as u32).to_le_bytes().to_vec()),
        Value::Array(items) => items
            .iter()
            .map(completion_prompt)
            .collect::<Option<Vec<_>>>()
            .map(|all| all.concat()),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
