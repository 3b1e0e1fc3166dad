use super::{Ask, Endpoint, Limits, read};
use crate::server::reply::Refused;

const LIMITS: Limits = Limits {
    max_model_len: 1000,
    block_size: 16,
    seed: 1,
};

fn ask(endpoint: Endpoint, body: &str) -> Result<Ask, Refused> {
    read(endpoint, body.as_bytes(), &LIMITS)
}

#[track_caller]
fn good(endpoint: Endpoint, body: &str) -> Ask {
    ask(endpoint, body).unwrap_or_else(|refused| panic!("{body}: {}", refused.body))
}

#[track_caller]
fn bad(endpoint: Endpoint, body: &str, part: &str) {
    let refused = ask(endpoint, body).expect_err("refused");
    assert_eq!(refused.status, 400);
    assert!(refused.body.contains(part), "{}", refused.body);
}

#[test]
fn a_prompt_counts_a_token_per_four_bytes_and_token_ids_exactly() {
    for (prompt, tokens) in [
        (r#""Hello world""#, 3),
        (r#""""#, 1),
        (r#"["Hell", "o wo"]"#, 2),
        ("[1, 2, 3, 4, 5]", 5),
        ("[[1, 2], [3]]", 3),
    ] {
        let ask = good(Endpoint::Completions, &format!(r#"{{"prompt": {prompt}}}"#));
        assert_eq!(ask.prompt_tokens, tokens, "{prompt}");
    }
}

#[test]
fn a_chat_counts_roles_texts_and_images() {
    let body = |content: &str| format!(r#"{{"messages": [{{"role": "user", "content": {content}}}]}}"#);
    // <|user|> 8 + 5 + <|assistant|> 13 = 26 bytes.
    assert_eq!(good(Endpoint::Chat, &body(r#""Hello""#)).prompt_tokens, 7);
    assert_eq!(
        good(Endpoint::Chat, &body(r#"[{"type":"text","text":"Hello"}]"#)).prompt_tokens,
        7
    );
    let image = r#"[{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]"#;
    assert_eq!(good(Endpoint::Chat, &body(image)).prompt_tokens, 576 + 6);
}

#[test]
fn an_answer_is_bounded_by_what_was_asked_and_by_the_context() {
    let completion = |rest: &str| good(Endpoint::Completions, &format!(r#"{{"prompt": "abcd"{rest}}}"#));
    assert!(completion("").output_tokens <= 16, "vLLM's default");
    assert_eq!(
        completion(r#", "max_tokens": 3.0, "ignore_eos": true"#).output_tokens,
        3
    );
    assert_eq!(
        completion(r#", "max_tokens": 999, "ignore_eos": true"#).output_tokens,
        999
    );
    let chat = |rest: &str| good(Endpoint::Chat, &format!(r#"{{"messages": []{rest}}}"#));
    // <|assistant|> is 4 tokens.
    assert_eq!(chat(r#", "ignore_eos": true, "max_tokens": null"#).output_tokens, 996);
    let both = chat(r#", "ignore_eos": true, "max_tokens": 9, "max_completion_tokens": 5"#);
    assert_eq!((both.output_tokens, both.stops), (5, false));
}

#[test]
fn the_same_prompt_gives_the_same_answer_of_four_bytes_a_token() {
    let body = r#"{"prompt": "Tell me", "max_tokens": 900, "stream": true, "model": "m"}"#;
    let (one, two) = (good(Endpoint::Completions, body), good(Endpoint::Completions, body));
    assert_eq!(one, two);
    assert_eq!(one.answer.len(), one.output_tokens as usize * 4);
    assert_eq!(
        (one.stops, one.stream, one.include_usage),
        (one.output_tokens < 900, true, false)
    );
    let other = read(Endpoint::Completions, body.as_bytes(), &Limits { seed: 2, ..LIMITS }).expect("good");
    assert_ne!(one.answer, other.answer);
}

#[test]
fn a_turn_with_its_answer_is_a_prefix_of_the_next_turn() {
    let first = good(
        Endpoint::Chat,
        r#"{"messages":[{"role":"user","content":"Hello"}],"max_tokens":100,"ignore_eos":true}"#,
    );
    let body = format!(
        r#"{{"messages":[{{"role":"user","content":"Hello"}},{{"role":"assistant","content":"{}"}},{{"role":"user","content":"And then?"}}]}}"#,
        first.answer
    );
    let second = good(Endpoint::Chat, &body);
    // 26 + 400 bytes are 6 full blocks of 64.
    assert_eq!(first.chain.len(), 6);
    assert_eq!(second.chain[..6], first.chain[..]);
}

#[test]
fn the_limits_hold_at_the_bound_and_fail_at_one_more() {
    let prompt = |tokens: usize, max: u32| format!(r#"{{"prompt": "{}", "max_tokens": {max}}}"#, "abcd".repeat(tokens));
    assert_eq!(good(Endpoint::Completions, &prompt(999, 1)).output_tokens, 1);
    bad(
        Endpoint::Completions,
        &prompt(1000, 1),
        "even without any output tokens",
    );
    bad(
        Endpoint::Completions,
        &prompt(999, 2),
        "for a total of at least 1001 tokens",
    );
    bad(
        Endpoint::Completions,
        &prompt(1, 1001),
        "cannot be greater than max_model_len=1000",
    );
    good(Endpoint::Completions, &prompt(1, 999));
}

#[test]
fn what_cannot_be_read_is_refused() {
    bad(Endpoint::Completions, r#"{"model": "#, "json_invalid");
    bad(Endpoint::Completions, "{}", "body.prompt");
    bad(Endpoint::Chat, r#"{"prompt": "x"}"#, "body.messages");
    bad(
        Endpoint::Completions,
        r#"{"prompt": "x", "max_tokens": "many"}"#,
        "int_parsing",
    );
    bad(
        Endpoint::Completions,
        r#"{"prompt": "x", "max_tokens": 1.5}"#,
        "int_parsing",
    );
}
