//! Every form against the recorded one.

use super::{Refused, Registered, Writer, models};
use crate::server::ask::{Ask, Endpoint};
use serde_json::json;

const RESPONSES: &str = include_str!("../../../../fixtures/captures/vllm-responses.txt");
const ERRORS: &str = include_str!("../../../../fixtures/captures/vllm-errors.txt");
const LORA: &str = include_str!("../../../../fixtures/captures/vllm-lora-endpoints.txt");

/// The bodies recorded under a heading.
fn recorded(file: &'static str, heading: &str) -> &'static str {
    let (_, section) = file
        .split_once(&format!("### {heading}\n"))
        .expect("the heading exists");
    let section = section.split("\n### ").next().expect("a first part");
    section.split_once("\n\n").expect("a body").1.trim_end()
}

/// The text with the value of each string field of this name replaced by `…`.
fn masked(text: &str, field: &str) -> String {
    let start = format!("\"{field}\":\"");
    let mut parts = text.split(&start);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let mut escaped = false;
        let end = part.find(|c| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        out += &start;
        out += "…";
        out += &part[end.expect("a closing quote")..];
    }
    out
}

fn writer(endpoint: Endpoint, id: &str, model: &str, prompt_tokens: u32, answer: &str, output_tokens: u32) -> Writer {
    let ask = Ask {
        endpoint,
        model: None,
        prompt_tokens,
        output_tokens,
        stops: false,
        stream: true,
        include_usage: true,
        answer: answer.to_owned(),
        chain: Vec::new(),
    };
    Writer {
        ask,
        id: format!("\"{id}\""),
        created: 1_796_022_789,
        model: format!("\"{model}\""),
        sent: 0,
    }
}

#[test]
fn an_unstreamed_completion() {
    let body = recorded(RESPONSES, "completion");
    let writer = writer(Endpoint::Completions, "cmpl-a9b26dd6987d046e", "base", 7, "", 8);
    assert_eq!(masked(&writer.whole(0), "text"), masked(body, "text"));
}

#[test]
fn an_unstreamed_chat_answer() {
    let body = recorded(RESPONSES, "chat");
    let writer = writer(Endpoint::Chat, "chatcmpl-85aa40425be7808e", "sql", 15, "", 8);
    assert_eq!(masked(&writer.whole(0), "content"), masked(body, "content"));
}

#[test]
fn a_streamed_chat_answer_with_usage() {
    let body = recorded(RESPONSES, "stream, include_usage");
    let mut writer = writer(
        Endpoint::Chat,
        "chatcmpl-bb3ff4186d2ff6ca",
        "base",
        15,
        &" abc".repeat(6),
        6,
    );
    let mut text: String = (0..6).map(|_| writer.token()).collect();
    text += &writer.end(0);
    assert_eq!(masked(text.trim_end(), "content"), masked(body, "content"));
}

#[test]
fn a_streamed_completion_differs_from_the_recorded_one_by_the_running_usage_only() {
    let body = recorded(RESPONSES, "stream, continuous_usage_stats");
    let without_usage: Vec<String> = body
        .lines()
        .map(|line| match line.split_once(",\"usage\"") {
            Some((start, _)) if !line.contains("\"choices\":[]") => format!("{start}}}"),
            _ => line.to_owned(),
        })
        .collect();
    let mut writer = writer(
        Endpoint::Completions,
        "cmpl-800c0f8fcf2d01bf",
        "sql",
        121,
        &" abc".repeat(4),
        4,
    );
    let mut text: String = (0..4).map(|_| writer.token()).collect();
    text += &writer.end(0);
    assert_eq!(
        masked(text.trim_end(), "text"),
        masked(&without_usage.join("\n"), "text")
    );
}

#[test]
fn the_models_list() {
    let (_, body) = LORA.split_once("### models after").expect("the list after loading");
    let body = body.lines().find(|line| line.starts_with('{')).expect("a body");
    let adapters = [
        ("sql", "sql"),
        ("chat", "chat"),
        ("fr", "fr"),
        ("code", "code"),
        ("a,b \"c\" d", "sql"),
    ];
    let adapters = adapters.map(|(name, path)| Registered {
        name: name.to_owned(),
        path: format!("/models/lora-{path}"),
    });
    let ours = models("base", 4096, &adapters, 1_796_022_789.7, 0).replace("/models/base", "/models/tiny");
    let without_ids = |text: &str| {
        let mut parts = text.split("modelperm-");
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |text, part| text + "modelperm-…" + &part[16..])
    };
    assert_eq!(without_ids(&ours), without_ids(body));
}

#[track_caller]
fn refuses(refused: Refused, heading: &str) {
    assert_eq!(refused.body, recorded(ERRORS, heading).lines().last().expect("a body"));
    let code = serde_json::from_str::<serde_json::Value>(&refused.body).expect("JSON")["error"]["code"].clone();
    assert_eq!(code, json!(refused.status));
}

#[test]
fn refusals() {
    refuses(Refused::unknown_model("nope", "base"), "unknown model");
    refuses(
        Refused::prompt_too_long(4096),
        "prompt too long (prompt shortened in this file)",
    );
    refuses(Refused::too_many_tokens(5000, 4096), "max_tokens beyond");
    refuses(Refused::json(9), "bad json");
    refuses(Refused::not_an_integer("max_tokens", &json!("many")), "wrong types");
    refuses(Refused::media_type(), "wrong content type");
    assert_eq!(
        Refused::detail(404, "Not Found").body,
        recorded(ERRORS, "method / path").lines().last().expect("one")
    );
}

#[test]
fn a_total_above_the_context_names_the_least_prompt_that_would_be_too_long() {
    let body = Refused::total_too_long(64_000, 65_536).body;
    for part in [
        "you requested 64000 output tokens",
        "at least 1537 input tokens",
        "total of at least 65537 tokens",
    ] {
        assert!(body.contains(part), "{body}");
    }
}
