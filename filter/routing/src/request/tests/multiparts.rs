use super::*;
use crate::limits::{KEPT_MAX_BYTES, PART_LINE_MAX_BYTES};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

fn reader() -> BodyReader {
    BodyReader::multipart(Api::Audio, b"XyZ")
}

fn field(name: &str, value: &str) -> String {
    format!("--XyZ\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
}

const FILE: &str = "--XyZ\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a;b.wav\"\r\n\
    Content-Type: audio/wav\r\n\r\n\r\r\n\r\n--Xy\r\n--model\r\n\0\u{1}--XyZ\r\n";

#[track_caller]
fn read_parts(body: &str) -> (Facts, Heard) {
    read_by(&reader(), body.as_bytes())
}

#[test]
fn fields_are_found_before_and_behind_the_file() {
    let body = [
        &field("stream", "true"),
        FILE,
        &field("model", "whisper"),
        &field("max_completion_tokens", "50"),
        "--XyZ--\r\n",
    ]
    .concat();
    let facts = read_parts(&body).0;
    let start = body.find("whisper").unwrap();
    let expected = Facts {
        api: Some(Api::Audio),
        model: Some("whisper".into()),
        model_at: Some(ModelAt {
            start,
            end: start + "whisper".len(),
            quoted: false,
        }),
        prompt: PromptSize {
            media_parts: 1,
            ..PromptSize::default()
        },
        max_output: Some(Tokens(50)),
        choices: 1,
        prompts: 1,
        stream: true,
        complete: true,
        ..Facts::default()
    };
    assert_eq!(facts, expected);
}

#[test]
fn the_prompt_field_is_text() {
    let (facts, heard) = read_parts(&[&field("prompt", "Grüße"), "--XyZ--"].concat());
    assert_eq!(
        (
            facts.prompt.ascii_bytes,
            facts.prompt.other_bytes,
            facts.prompt.media_parts
        ),
        (3, 4, 1)
    );
    assert_eq!(heard.prompt, "Grüße".as_bytes());
}

#[test]
fn what_only_begins_like_a_delimiter_is_content() {
    let text = "a\rb\r\n\r\n--Xy\r\r\n-c";
    let (facts, heard) = read_parts(&[&field("prompt", text), "--XyZ--"].concat());
    assert_eq!(String::from_utf8(heard.prompt).as_deref(), Ok(text));
    assert_eq!(facts.prompt.ascii_bytes, text.len() as u64);
}

#[test]
fn preamble_and_epilogue_are_skipped() {
    let body = ["skip\r\n", &field("model", "m"), "--XyZ--\r\nepilogue\r\n--XyZ\r\n"].concat();
    let facts = read_parts(&body).0;
    assert_eq!((facts.model.as_deref(), facts.complete), (Some("m"), true));
}

#[test]
fn names_may_be_bare_and_values_empty() {
    let body = "--XyZ  \r\nContent-Disposition:form-data;name=model\r\n\r\nm\r\n--XyZ\r\n\r\n\r\n--XyZ--";
    assert_eq!(read_parts(body).0.model.as_deref(), Some("m"));
    assert_eq!(read_parts(&[&field("model", ""), "--XyZ--"].concat()).0.model, None);
}

#[test]
fn a_file_called_model_is_a_file() {
    let body = "--XyZ\r\nContent-Disposition: form-data; name=\"model\"; filename=\"x\"\r\n\r\nm\r\n--XyZ--";
    assert_eq!(read_parts(body).0.model, None);
}

#[test]
fn model_at_the_bound_is_kept_and_beyond_it_told() {
    let name = "m".repeat(KEPT_MAX_BYTES);
    let facts = read_parts(&[&field("model", &name), "--XyZ--"].concat()).0;
    assert_eq!(
        (facts.model.as_deref(), facts.model_too_long),
        (Some(name.as_str()), false)
    );
    let facts = read_parts(&[&field("model", &(name + "m")), "--XyZ--"].concat()).0;
    assert_eq!((facts.model, facts.model_too_long), (None, true));
}

#[test]
fn a_header_line_is_cut_at_its_bound() {
    let start = "Content-Disposition: form-data; x=";
    let fitting = |extra: usize| {
        let filler = "x".repeat(PART_LINE_MAX_BYTES - start.len() - "; name=model".len() + extra);
        format!("--XyZ\r\n{start}{filler}; name=model\r\n\r\nm\r\n--XyZ--")
    };
    assert_eq!(read_parts(&fitting(0)).0.model.as_deref(), Some("m"));
    let facts = read_parts(&fitting(1)).0;
    assert_eq!((facts.model, facts.complete), (None, true));
}

#[test]
fn an_open_or_foreign_body_is_malformed() {
    for body in [
        "",
        "--other\r\n\r\n--other--",
        "--XyZ",
        "--XyZjunk\r\n\r\n",
        &field("model", "m"),
        "{\"model\":\"m\"}",
    ] {
        let facts = read_parts(body).0;
        assert_eq!((facts.complete, facts.malformed), (false, true), "{body}");
    }
    // The delimiter that ends the field is seen.
    assert_eq!(
        read_parts(&[&field("model", "m"), "--XyZ"].concat()).0.model.as_deref(),
        Some("m")
    );
}
