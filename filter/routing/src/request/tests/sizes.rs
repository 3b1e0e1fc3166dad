use super::*;
use crate::limits::KEPT_MAX_BYTES;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

const RATE: f64 = ASCII_BYTES_PER_TOKEN;

fn text(ascii_bytes: u64, other_bytes: u64) -> PromptSize {
    PromptSize {
        ascii_bytes,
        other_bytes,
        ..PromptSize::default()
    }
}

#[test]
fn text_is_estimated_by_its_bytes() {
    for (size, rate, expected) in [
        (text(0, 0), RATE, 0),
        (text(400, 0), RATE, 100),
        (text(401, 0), RATE, 101),
        (text(0, 300), RATE, 100),
        (text(400, 300), RATE, 200),
        // Learned: twice as many tokens as thought.
        (text(400, 300), 2.0, 400),
    ] {
        assert_eq!(size.estimate(rate), Tokens(expected), "{size:?} at {rate}");
    }
}

#[test]
fn what_is_no_text_adds_its_fixed_cost() {
    for (size, expected) in [
        (
            PromptSize {
                tokens: 7,
                ..text(0, 0)
            },
            7,
        ),
        (
            PromptSize {
                media_parts: 2,
                ..text(0, 0)
            },
            2048,
        ),
        (
            PromptSize {
                messages: 3,
                ..text(400, 0)
            },
            112,
        ),
        (
            PromptSize {
                at_most: Some(Tokens(60)),
                ..text(400, 0)
            },
            60,
        ),
        (
            PromptSize {
                at_most: Some(Tokens(600)),
                ..text(400, 0)
            },
            100,
        ),
        (
            PromptSize {
                tokens: u64::MAX,
                ..text(u64::MAX, u64::MAX)
            },
            u64::MAX,
        ),
    ] {
        assert_eq!(size.estimate(RATE), Tokens(expected), "{size:?}");
    }
}

#[test]
fn the_shared_prompt_of_the_reference_picker_has_its_90_words() {
    let prompt = "Hello, world! This is a shared system prompt.".repeat(8);
    let facts = read(
        Api::Completions,
        &format!(r#"{{"model":"test-model","prompt":"{prompt}"}}"#),
    );
    assert_eq!(facts.prompt.estimate(RATE), Tokens(90));
}

#[test]
fn a_rate_that_cannot_be_is_not_used() {
    let size = PromptSize {
        ascii_bytes: 400,
        ..PromptSize::default()
    };
    for rate in [f64::NAN, f64::INFINITY, 0.0, -4.0, 0.99, 16.01] {
        assert_eq!(size.estimate(rate), Tokens(100), "{rate}");
    }
    assert_eq!(size.estimate(1.0), Tokens(400));
    assert_eq!(size.estimate(16.0), Tokens(25));
}

#[test]
fn need_counts_the_prompt_once_and_each_output() {
    let size = PromptSize {
        ascii_bytes: 400,
        ..PromptSize::default()
    };
    let facts = Facts {
        api: Some(Api::Chat),
        prompt: size,
        choices: 1,
        prompts: 1,
        ..Facts::default()
    };
    assert_eq!(facts.need(Tokens(50), RATE), Tokens(150));
    let bounded = |bound| Facts {
        max_output: Some(Tokens(bound)),
        ..facts.clone()
    };
    assert_eq!(bounded(10).need(Tokens(50), RATE), Tokens(110));
    assert_eq!(bounded(1_000_000).need(Tokens(50), RATE), Tokens(150));
    assert_eq!(
        Facts {
            choices: 3,
            ..facts.clone()
        }
        .need(Tokens(50), RATE),
        Tokens(250)
    );
    assert_eq!(
        Facts {
            choices: 3,
            prompts: 2,
            ..facts.clone()
        }
        .need(Tokens(50), RATE),
        Tokens(400)
    );
    assert_eq!(
        Facts {
            choices: 0,
            prompts: 0,
            ..facts.clone()
        }
        .need(Tokens(50), RATE),
        Tokens(150)
    );
    assert_eq!(
        Facts {
            api: Some(Api::Tokenize),
            ..facts
        }
        .need(Tokens(50), RATE),
        Tokens(0)
    );
    let huge = Facts {
        choices: u32::MAX,
        prompts: u32::MAX,
        ..Facts::default()
    };
    assert_eq!(huge.need(Tokens(u64::MAX), RATE), Tokens(u64::MAX));
}

#[test]
fn header_names_are_visible_ascii_of_bounded_length() {
    assert!(valid_header_name("meta-llama/Llama-3.1-8B:adapter"));
    assert!(valid_header_name(&"m".repeat(KEPT_MAX_BYTES)));
    for name in [
        "",
        "a b",
        "a\r\nx: y",
        "a\0",
        "\u{7f}",
        "modèle",
        "\t",
        &"m".repeat(KEPT_MAX_BYTES + 1),
    ] {
        assert!(!valid_header_name(name), "{name:?}");
    }
}

#[test]
fn only_the_messages_api_has_its_own_error_shape() {
    assert!(prefers_anthropic_errors(Api::Messages));
    assert!(!prefers_anthropic_errors(Api::Chat));
}
