use super::*;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

fn all(format: Format, target: &str, asked: &str, pieces: &[&[u8]]) -> String {
    let mut restorer = Restorer::new(format, target, asked);
    let mut out: Vec<u8> = pieces.iter().flat_map(|piece| restorer.feed(piece)).collect();
    out.extend(restorer.finish());
    String::from_utf8(out).unwrap()
}

/// Whole, byte by byte, and cut in two at each place: all must agree.
#[track_caller]
fn check(format: Format, answer: &str, expected: &str) {
    let bytes = answer.as_bytes();
    let of = |pieces: &[&[u8]]| all(format, "llama-v2", "gpt", pieces);
    assert_eq!(of(&[bytes]), expected);
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(of(&single), expected, "byte by byte");
    for cut in 0..=bytes.len() {
        let (left, right) = bytes.split_at(cut);
        assert_eq!(of(&[left, right]), expected, "cut at {cut}");
    }
}

#[track_caller]
fn json(answer: &str, expected: &str) {
    check(Format::Json, answer, expected);
}

#[track_caller]
fn same(answer: &str) {
    check(Format::Json, answer, answer);
    check(Format::Events, answer, answer);
}

#[test]
fn the_name_of_a_document_becomes_the_clients() {
    json(
        r#"{"id":"x","model":"llama-v2","choices":[{"text":"hi"}]}"#,
        r#"{"id":"x","model":"gpt","choices":[{"text":"hi"}]}"#,
    );
    json(r#"{ "model" : "llama-v2" }"#, r#"{ "model" : "gpt" }"#);
    json(r#"{"mod\u0065l":"llama\u002dv2"}"#, r#"{"mod\u0065l":"gpt"}"#);
    json(
        r#"{"model":"llama-v2","model":"llama-v2"}"#,
        r#"{"model":"gpt","model":"gpt"}"#,
    );
}

#[test]
fn the_name_in_a_response_or_a_message_becomes_the_clients() {
    json(
        r#"{"type":"message_start","message":{"id":"m","model":"llama-v2","content":[]}}"#,
        r#"{"type":"message_start","message":{"id":"m","model":"gpt","content":[]}}"#,
    );
    json(
        r#"{"type":"response.created","response":{"a":{"b":1},"model":"llama-v2"}}"#,
        r#"{"type":"response.created","response":{"a":{"b":1},"model":"gpt"}}"#,
    );
}

#[test]
fn other_values_stay() {
    same(r#"{"model":"llama-v3","id":"llama-v2"}"#);
    same(r#"{"model":"llama-v"}"#);
    same(r#"{"model":"llama-v22"}"#);
    same(r#"{"model":""}"#);
    same(r#"{"model":null,"x":"llama-v2"}"#);
    same(r#"{"model":["llama-v2"]}"#);
    same(r#"{"modell":"llama-v2","xmodel":"llama-v2"}"#);
    same(r#"{"choices":[{"model":"llama-v2"}],"message":["model","llama-v2"]}"#);
    same(r#"{"content":[{"type":"tool_use","input":{"model":"llama-v2"}}]}"#);
    same(r#"{"message":{"input":{"model":"llama-v2"}}}"#);
    same(r#"{"text":"say \"model\":\"llama-v2\" now"}"#);
}

#[test]
fn what_is_no_json_passes_as_it_is() {
    same("");
    same("model: llama-v2");
    same(r#"["model","llama-v2"]"#);
    same(r#"{"model":"llama-\q"}"#);
    same(r#"{"model":"llama-v2"#);
    json(
        r#"{"model":"llama-v2"} {"model":"llama-v2"}"#,
        r#"{"model":"gpt"} {"model":"llama-v2"}"#,
    );
}

#[test]
fn each_event_of_a_stream_is_a_document() {
    let answer = "event: message\r\ndata: {\"model\":\"llama-v2\",\"n\":1}\r\n\r\n: model\ndata:{\"model\": \"llama-v2\"}\n\n\
                  data: {\"broken\ndata: {\"message\":{\"model\":\"llama-v2\"}}\rdatas: {\"model\":\"llama-v2\"}\ndata: [DONE]\n\n";
    let expected = "event: message\r\ndata: {\"model\":\"gpt\",\"n\":1}\r\n\r\n: model\ndata:{\"model\": \"gpt\"}\n\n\
                    data: {\"broken\ndata: {\"message\":{\"model\":\"gpt\"}}\rdatas: {\"model\":\"llama-v2\"}\ndata: [DONE]\n\n";
    check(Format::Events, answer, expected);
}

#[test]
fn a_stream_is_not_held() {
    let mut restorer = Restorer::new(Format::Events, "llama-v2", "gpt");
    assert_eq!(restorer.feed(b"data: {\"id\":1,"), b"data: {\"id\":1,");
    assert_eq!(restorer.feed(b"\"model\":\"lla"), b"\"model\":");
    assert_eq!(restorer.feed(b"ma-v2\",\"x\""), b"\"gpt\",\"x\"");
    assert_eq!(restorer.feed(b":1}\n\n"), b":1}\n\n");
}

#[test]
fn a_name_is_written_as_json() {
    let out = all(Format::Json, "t", "a\"b\\c", &[br#"{"model":"t"}"#]);
    assert_eq!(out, r#"{"model":"a\"b\\c"}"#);
}

#[test]
fn only_json_and_event_streams_are_read() {
    assert_eq!(Format::of(b"application/json; charset=utf-8"), Some(Format::Json));
    assert_eq!(Format::of(b"Text/Event-Stream"), Some(Format::Events));
    for other in ["", "text/plain", "application/octet-stream", "audio/mpeg"] {
        assert_eq!(Format::of(other.as_bytes()), None, "{other}");
    }
}

#[cfg(not(target_arch = "wasm32"))]
mod native {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn value() -> impl Strategy<Value = Value> {
        let name = prop::sample::select(vec!["llama-v2", "llama", "model", "é\"\\\n"]);
        let leaf = prop_oneof![
            name.prop_map(Value::from),
            any::<u32>().prop_map(Value::from),
            Just(Value::Null)
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            let key = prop::sample::select(vec!["model", "response", "message", "x", "mo\\del"]);
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
                prop::collection::vec((key.prop_map(str::to_owned), inner), 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    /// What must become of a document, said without a scanner.
    fn renamed(mut document: Value) -> Value {
        let rename = |object: &mut Value| {
            if object.is_object() && object["model"] == "llama-v2" {
                object["model"] = json!("gpt");
            }
        };
        rename(&mut document);
        for inner in ["response", "message"] {
            if document[inner].is_object() {
                rename(&mut document[inner]);
            }
        }
        document
    }

    fn cut<'a>(bytes: &'a [u8], cuts: &[usize]) -> Vec<&'a [u8]> {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect()
    }

    proptest! {
        #[test]
        fn any_split_of_any_document_restores_the_same_names(
            members in prop::collection::btree_map(
                prop::sample::select(vec!["model", "response", "message", "y"]).prop_map(str::to_owned), value(), 0..4),
            cuts in prop::collection::vec(any::<usize>(), 0..6),
        ) {
            let document = Value::Object(members.into_iter().collect());
            let (text, expected) = (document.to_string(), renamed(document.clone()).to_string());
            prop_assert_eq!(all(Format::Json, "llama-v2", "gpt", &cut(text.as_bytes(), &cuts)), expected.clone());
            let (text, expected) = (format!("data: {text}\n\n").repeat(2), format!("data: {expected}\n\n").repeat(2));
            prop_assert_eq!(all(Format::Events, "llama-v2", "gpt", &cut(text.as_bytes(), &cuts)), expected);
        }

        #[test]
        fn any_split_of_any_bytes_gives_the_same_bytes(
            parts in prop::collection::vec(prop::sample::select(vec![
                &b"{"[..], b"}", b"\"model\"", b":", b"\"llama-v2\"", b"\"lla", b"ma-v2\"", b"\n", b"\r", b"data:", b" ",
                b"\\", b"\xff", b"[", b"]", b",", b"\"response\":{", b"1",
            ]), 0..24),
            cuts in prop::collection::vec(any::<usize>(), 0..6),
        ) {
            let bytes = parts.concat();
            for format in [Format::Json, Format::Events] {
                let mut whole = Restorer::new(format, "llama-v2", "gpt");
                let mut expected = whole.feed(&bytes);
                expected.extend(whole.finish());
                let mut restorer = Restorer::new(format, "llama-v2", "gpt");
                let mut out: Vec<u8> = cut(&bytes, &cuts).iter().flat_map(|piece| restorer.feed(piece)).collect();
                out.extend(restorer.finish());
                prop_assert_eq!(out, expected);
            }
        }
    }
}
