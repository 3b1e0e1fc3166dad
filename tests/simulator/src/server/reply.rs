//! vLLM's words: errors, the models list, answers and stream chunks. Field order is that of recorded answers.

use super::ask::{Ask, Endpoint};
use super::pod::Registered;
use crate::random::mix2;
use serde_json::Value;
use std::fmt::Write as _;

/// A refusal: status and body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) status: u16,
    pub(super) body: String,
}

impl Refused {
    pub(super) fn new(status: u16, kind: &str, message: &str, param: Option<&str>) -> Self {
        let (message, kind) = (quoted(message), quoted(kind));
        let param = param.map_or("null".to_owned(), quoted);
        let body = format!(r#"{{"error":{{"message":{message},"type":{kind},"param":{param},"code":{status}}}}}"#);
        Self { status, body }
    }

    pub(super) fn unknown_model(model: &str, base: &str) -> Self {
        let message = format!("The model `{model}` does not exist. Valid aliases: {base}.");
        Self::new(404, "NotFoundError", &message, Some("model"))
    }

    /// The prompt alone fills the context. The tokenizer stops one token past the limit, so the true length is not told.
    pub(super) fn prompt_too_long(limit: u32) -> Self {
        let least = u64::from(limit) + 1;
        let message = format!(
            "This model's maximum context length is {limit} tokens. However, your prompt contains at least {least} \
             input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the \
             input prompt. (parameter=input_tokens, value={least})"
        );
        Self::new(400, "BadRequestError", &message, Some("input_tokens"))
    }

    pub(super) fn too_many_tokens(asked: u64, limit: u32) -> Self {
        let message = format!(
            "max_tokens={asked} cannot be greater than max_model_len={limit}. Please request fewer output tokens. \
             (parameter=max_tokens, value={asked})"
        );
        Self::new(400, "BadRequestError", &message, Some("max_tokens"))
    }

    /// Prompt and output together pass the limit (as vLLM 0.2x words it; not in the recordings).
    pub(super) fn total_too_long(asked: u64, limit: u32) -> Self {
        let least = (u64::from(limit) + 1).saturating_sub(asked);
        let message = format!(
            "This model's maximum context length is {limit} tokens. However, you requested {asked} output tokens and \
             your prompt contains at least {least} input tokens, for a total of at least {} tokens. Please reduce the \
             length of the input prompt or the number of requested output tokens. (parameter=input_tokens, \
             value={least})",
            u64::from(limit) + 1
        );
        Self::new(400, "BadRequestError", &message, Some("input_tokens"))
    }

    pub(super) fn json(column: usize) -> Self {
        Self::validation(
            &format!("body.{column}"),
            &format!(
                "{{'type': 'json_invalid', 'loc': 'body.{column}', 'msg': 'JSON decode error', 'input': '<dict of 0 \
                 items>', 'ctx': {{'error': 'Expecting value'}}}}"
            ),
        )
    }

    pub(super) fn missing(field: &str) -> Self {
        Self::validation(
            &format!("body.{field}"),
            &format!(
                "{{'type': 'missing', 'loc': 'body.{field}', 'msg': 'Field required', 'input': '<dict of 0 items>'}}"
            ),
        )
    }

    pub(super) fn not_an_integer(field: &str, input: &Value) -> Self {
        let input = input
            .as_str()
            .map_or_else(|| input.to_string(), |text| format!("'{text}'"));
        Self::validation(
            &format!("body.{field}"),
            &format!(
                "{{'type': 'int_parsing', 'loc': 'body.{field}', 'msg': 'Input should be a valid integer, unable to \
                 parse string as an integer', 'input': {input}}}"
            ),
        )
    }

    fn validation(param: &str, detail: &str) -> Self {
        Self::new(
            400,
            "Bad Request",
            &format!("1 validation error:\n  {detail}"),
            Some(param),
        )
    }

    pub(super) fn media_type() -> Self {
        let message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed";
        Self::new(400, "Bad Request", message, None)
    }

    /// The web framework's own answers to an unknown path or method.
    pub(super) fn detail(status: u16, detail: &str) -> Self {
        Self {
            status,
            body: format!(r#"{{"detail":{}}}"#, quoted(detail)),
        }
    }
}

/// A JSON string.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// `GET /v1/models`.
pub(super) fn models(base: &str, max_model_len: u32, adapters: &[Registered], now: f64, seed: u64) -> String {
    let mut text = String::from(r#"{"object":"list","data":["#);
    let limit = max_model_len.to_string();
    push_model(
        &mut text,
        base,
        &format!("/models/{base}"),
        "null",
        &limit,
        now as u64,
        seed,
    );
    for adapter in adapters {
        text.push(',');
        push_model(
            &mut text,
            &adapter.name,
            &adapter.path,
            &quoted(base),
            "null",
            now as u64,
            seed,
        );
    }
    text.push_str("]}");
    text
}

fn push_model(text: &mut String, id: &str, root: &str, parent: &str, limit: &str, created: u64, seed: u64) {
    let permission = mix2(mix2(seed, created), text.len() as u64);
    let (id, root) = (quoted(id), quoted(root));
    let _ = write!(
        text,
        r#"{{"id":{id},"object":"model","created":{created},"owned_by":"vllm","root":{root},"parent":{parent},"max_model_len":{limit},"permission":[{{"id":"modelperm-{permission:016x}","object":"model_permission","created":{created},"allow_create_engine":false,"allow_sampling":true,"allow_logprobs":true,"allow_search_indices":false,"allow_view":true,"allow_fine_tuning":false,"organization":"*","group":null,"is_blocking":false}}]}}"#
    );
}

/// Makes the answer to one request, in one piece or in chunks.
pub(super) struct Writer {
    ask: Ask,
    /// `cmpl-…` or `chatcmpl-…`, quoted.
    id: String,
    created: u64,
    /// Name of the model as the answer gives it, quoted.
    model: String,
    sent: u32,
}

impl Writer {
    pub(super) fn new(ask: Ask, id: u64, created: f64, model: &str) -> Self {
        let prefix = if ask.endpoint == Endpoint::Chat {
            "chatcmpl"
        } else {
            "cmpl"
        };
        Self {
            id: format!(r#""{prefix}-{id:016x}""#),
            created: created as u64,
            model: quoted(model),
            sent: 0,
            ask,
        }
    }

    fn reason(&self) -> &'static str {
        if self.ask.stops { r#""stop""# } else { r#""length""# }
    }

    fn usage(&self, details: &str) -> String {
        let (prompt, output) = (self.ask.prompt_tokens, self.sent);
        let total = prompt + output;
        format!(
            r#""usage":{{"prompt_tokens":{prompt},"total_tokens":{total},"completion_tokens":{output},"prompt_tokens_details":{{{details}}}"#
        )
    }

    /// The whole answer of a request that does not stream.
    pub(super) fn whole(mut self, cached: u32) -> String {
        self.sent = self.ask.output_tokens;
        let (id, created, model) = (&self.id, self.created, &self.model);
        let (text, reason) = (quoted(&self.ask.answer), self.reason());
        let created_cache = if self.ask.endpoint == Endpoint::Chat {
            "0"
        } else {
            "null"
        };
        let usage = self.usage(&format!(
            r#""cached_tokens":{cached},"created_cache_tokens":{created_cache},"multimodal_tokens":null"#
        ));
        match self.ask.endpoint {
            Endpoint::Completions => format!(
                r#"{{"id":{id},"object":"text_completion","created":{created},"model":{model},"choices":[{{"index":0,"text":{text},"logprobs":null,"finish_reason":{reason},"stop_reason":null,"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null,"routed_experts":null}}],"service_tier":null,"system_fingerprint":"vllm-0.32.0-963fcecf",{usage},"completion_tokens_details":null}},"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}}"#
            ),
            Endpoint::Chat => format!(
                r#"{{"id":{id},"object":"chat.completion","created":{created},"model":{model},"choices":[{{"index":0,"message":{{"role":"assistant","content":{text},"refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null}},"logprobs":null,"finish_reason":{reason},"stop_reason":null,"token_ids":null,"routed_experts":null}}],"service_tier":null,"system_fingerprint":"vllm-0.32.0-963fcecf",{usage},"completion_tokens_details":null}},"prompt_logprobs":null,"prompt_token_ids":null,"prompt_text":null,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}}"#
            ),
        }
    }

    /// The chunks that one more token sends.
    pub(super) fn token(&mut self) -> String {
        let (id, created, model) = (self.id.clone(), self.created, self.model.clone());
        let mut text = String::new();
        if self.sent == 0 && self.ask.endpoint == Endpoint::Chat {
            let _ = write!(
                text,
                "data: {{\"id\":{id},\"object\":\"chat.completion.chunk\",\"created\":{created},\"model\":{model},\"choices\":[{{\"index\":0,\"delta\":{{\"role\":\"assistant\",\"content\":\"\"}},\"logprobs\":null,\"finish_reason\":null}}],\"prompt_token_ids\":null,\"prompt_text\":null}}\n\n"
            );
        }
        let at = self.sent as usize * crate::chain::BYTES_PER_TOKEN;
        let word = quoted(
            self.ask
                .answer
                .get(at..at + crate::chain::BYTES_PER_TOKEN)
                .unwrap_or_default(),
        );
        self.sent += 1;
        let last = self.sent == self.ask.output_tokens;
        let reason = if last { self.reason() } else { "null" };
        let _ = match self.ask.endpoint {
            Endpoint::Completions => write!(
                text,
                "data: {{\"id\":{id},\"object\":\"text_completion\",\"created\":{created},\"model\":{model},\"choices\":[{{\"index\":0,\"text\":{word},\"logprobs\":null,\"finish_reason\":{reason},\"stop_reason\":null,\"prompt_token_ids\":null,\"token_ids\":null}}]}}\n\n"
            ),
            Endpoint::Chat => {
                let stop = if last { "\"stop_reason\":null," } else { "" };
                write!(
                    text,
                    "data: {{\"id\":{id},\"object\":\"chat.completion.chunk\",\"created\":{created},\"model\":{model},\"choices\":[{{\"index\":0,\"delta\":{{\"content\":{word}}},\"logprobs\":null,\"finish_reason\":{reason},{stop}\"token_ids\":null}}]}}\n\n"
                )
            }
        };
        text
    }

    /// What follows the last token.
    pub(super) fn end(&self, cached: u32) -> String {
        let mut text = String::new();
        if self.ask.include_usage {
            let (id, created, model) = (&self.id, self.created, &self.model);
            let (object, created_cache) = match self.ask.endpoint {
                Endpoint::Chat => ("chat.completion.chunk", r#","created_cache_tokens":0"#),
                Endpoint::Completions => ("text_completion", ""),
            };
            let usage = self.usage(&format!(r#""cached_tokens":{cached}{created_cache}"#));
            let _ = write!(
                text,
                "data: {{\"id\":{id},\"object\":\"{object}\",\"created\":{created},\"model\":{model},\"choices\":[],{usage}}},\"system_fingerprint\":\"vllm-0.32.0-963fcecf\"}}\n\n"
            );
        }
        text.push_str("data: [DONE]\n\n");
        text
    }
}

#[cfg(test)]
mod tests;
