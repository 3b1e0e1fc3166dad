//! Properties: a body cut anywhere gives the same facts, and no bytes at all make the reader panic.

use super::*;
use crate::request::spans::{other_bytes, plain_run, run_before};
use proptest::prelude::*;
use serde_json::{Value, json};

fn any_api() -> impl Strategy<Value = Api> {
    use Api::*;
    prop::sample::select(vec![
        Chat,
        Completions,
        Responses,
        Messages,
        Embeddings,
        Rerank,
        Audio,
        Tokenize,
        Generate,
    ])
}

/// Keys that mean something somewhere, and others.
fn any_key() -> impl Strategy<Value = String> {
    const KEYS: [&str; 36] = [
        "model",
        "user",
        "metadata",
        "messages",
        "prompt",
        "input",
        "role",
        "content",
        "text",
        "tools",
        "n",
        "stream",
        "system",
        "source",
        "type",
        "data",
        "image_url",
        "tool_calls",
        "function",
        "arguments",
        "documents",
        "query",
        "text_1",
        "text_2",
        "inputs",
        "input_ids",
        "parameters",
        "sampling_params",
        "max_tokens",
        "lora_path",
        "image_data",
        "output",
        "previous_response_id",
        "truncate_prompt_tokens",
        "prompt_embeds",
        "url",
    ];
    prop_oneof![4 => prop::sample::select(&KEYS[..]).prop_map(str::to_owned), 1 => any::<String>()]
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z\"\\\\\n\u{e9}\u{6f22}\u{1f600}]{0,20}".prop_map(Value::from),
    ];
    let tree = leaf.prop_recursive(5, 60, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec((any_key(), inner), 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    });
    prop::collection::vec((any_key(), tree), 0..8).prop_map(|members| Value::Object(members.into_iter().collect()))
}

/// Cuts a body where the numbers say.
fn cut<'a>(body: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(body.len() + 1)).collect();
    places.sort_unstable();
    let mut chunks = Vec::new();
    let mut start = 0;
    for place in places.into_iter().chain([body.len()]) {
        chunks.push(&body[start..place]);
        start = place;
    }
    chunks
}

/// Writes all text as escapes, as Python's `json.dumps` does.
fn in_ascii(json: &str) -> String {
    let mut units = [0; 2];
    json.chars()
        .map(|c| match c {
            c if c.is_ascii() => c.to_string(),
            c => c
                .encode_utf16(&mut units)
                .iter()
                .map(|unit| format!("\\u{unit:04x}"))
                .collect(),
        })
        .collect()
}

proptest! {
    #[test]
    fn any_split_of_json_gives_the_same_facts(api in any_api(), body in any_json(), cuts: [prop::sample::Index; 6]) {
        let reader = BodyReader::json(api);
        for body in [body.to_string(), serde_json::to_string_pretty(&body).unwrap(), in_ascii(&body.to_string())] {
            let whole = feed_all(&reader, [body.as_bytes()]);
            prop_assert!(whole.0.complete, "{}", body);
            prop_assert_eq!(&whole, &feed_all(&reader, cut(body.as_bytes(), &cuts)));
            prop_assert_eq!(&whole, &feed_all(&reader, body.as_bytes().chunks(1)));
        }
    }

    #[test]
    fn spaces_and_escapes_do_not_change_facts(api in any_api(), body in any_json()) {
        let reader = BodyReader::json(api);
        // The place of the model differs; what stands there does not.
        let read = |text: &str| {
            let mut all = feed_all(&reader, [text.as_bytes()]);
            let at = all.0.model_at.take();
            let name = at.map(|at| serde_json::from_slice::<String>(&text.as_bytes()[at.start..at.end]).unwrap());
            (all, name)
        };
        let plain = read(&body.to_string());
        prop_assert!(plain.1.is_none() || plain.1 == plain.0.0.model);
        prop_assert_eq!(&plain, &read(&serde_json::to_string_pretty(&body).unwrap()));
        prop_assert_eq!(&plain, &read(&in_ascii(&body.to_string())));
    }

    #[test]
    fn json_as_prompt_is_what_another_parser_writes(tools in any_json()) {
        // Without strings that need escapes, compact JSON is the same text.
        let tools: Value = serde_json::from_str(&tools.to_string().replace("\\\"", "").replace("\\", "")).unwrap_or_default();
        prop_assume!(tools.is_object() && !tools.to_string().contains('\\'));
        let body = json!({ "tools": tools }).to_string();
        let (facts, heard) = feed_all(&BodyReader::json(Api::Chat), [body.as_bytes()]);
        prop_assert_eq!(heard.prompt.len() as u64, facts.prompt.ascii_bytes + facts.prompt.other_bytes);
        prop_assert_eq!(String::from_utf8(heard.prompt).unwrap(), tools.to_string());
    }

    #[test]
    fn any_split_of_garbage_gives_the_same_facts(
        api in any_api(),
        body in prop::collection::vec(prop_oneof![
            4 => prop::sample::select(&b"{}[]\",:\\u0d8c-ern \r\n"[..]),
            1 => any::<u8>(),
        ], 0..300),
        cuts: [prop::sample::Index; 3],
    ) {
        for start in [&b""[..], b"{\"messages\":[{\"content\":\"", b"--b\r\nContent-Disposition: form-data; name=model\r\n\r\n"] {
            let body = [start, &body].concat();
            for reader in [BodyReader::json(api), BodyReader::multipart(api, b"b")] {
                let whole = feed_all(&reader, [body.as_slice()]);
                prop_assert_eq!(&whole, &feed_all(&reader, cut(&body, &cuts)));
                prop_assert!(whole.0.complete != whole.0.malformed);
            }
        }
    }

    #[test]
    fn any_split_of_multipart_gives_the_same_facts(
        file in prop::collection::vec(prop::sample::select(&b"\r\n-bX"[..]), 0..100),
        cuts: [prop::sample::Index; 4],
    ) {
        prop_assume!(!file.windows(5).any(|window| window == b"\r\n--b"));
        let body = [
            b"--bX\r\nContent-Disposition: form-data; name=file; filename=f\r\n\r\n".as_slice(),
            &file,
            b"\r\n--bX\r\nContent-Disposition: form-data; name=model\r\n\r\nwhisper\r\n--bX--",
        ].concat();
        let reader = BodyReader::multipart(Api::Audio, b"bX");
        let whole = feed_all(&reader, [body.as_slice()]);
        prop_assert_eq!(whole.0.model.as_deref(), Some("whisper"));
        prop_assert_eq!(&whole, &feed_all(&reader, cut(&body, &cuts)));
    }

    #[test]
    fn runs_end_where_a_plain_search_ends_them(bytes in prop::collection::vec(prop_oneof![
        3 => prop::sample::select(&b"\"\\!#[]\r\x8d\xa2\xdc\0\x01"[..]), 4 => 0x40..=0x5b_u8, 1 => any::<u8>(),
    ], 0..60)) {
        let len = bytes.iter().take_while(|byte| !matches!(byte, b'"' | b'\\')).count();
        prop_assert_eq!(plain_run(&bytes), (len, other_bytes(&bytes[..len])));
        let line = bytes.iter().take_while(|byte| **byte != b'\r').count();
        prop_assert_eq!(run_before(b'\r', &bytes), line);
    }

    #[test]
    fn any_head_is_classified(headers in prop::collection::vec(("[:a-z-]{0,12}", prop::collection::vec(any::<u8>(), 0..40)), 0..6), end_of_stream: bool) {
        let headers: Vec<(&str, &[u8])> = headers.iter().map(|(name, value)| (name.as_str(), value.as_slice())).collect();
        let _ = classify(&Head { headers: &headers, end_of_stream }, 1000);
    }
}
