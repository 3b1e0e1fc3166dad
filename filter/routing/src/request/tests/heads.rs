use super::*;
use crate::limits::BOUNDARY_MAX_BYTES;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

const HOLD: usize = 1000;

fn verdict(headers: &[(&str, &str)], end_of_stream: bool) -> HeadVerdict {
    let headers: Vec<(&str, &[u8])> = headers.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
    classify(
        &Head {
            headers: &headers,
            end_of_stream,
        },
        HOLD,
    )
}

fn shown(verdict: &HeadVerdict) -> String {
    match verdict {
        HeadVerdict::Hold(reader) => format!("hold {:?}", reader.api()),
        HeadVerdict::Pass(reason) => format!("pass {}", reason.as_str()),
    }
}

/// A POST of JSON to a path.
#[track_caller]
fn check_path(path: &str, expected: &str) {
    let headers = [
        (":method", "POST"),
        (":path", path),
        ("content-type", "application/json"),
    ];
    assert_eq!(shown(&verdict(&headers, false)), expected, "{path}");
}

/// A POST to the chat path with further headers.
#[track_caller]
fn check_headers(more: &[(&str, &str)], expected: &str) {
    let headers = [&[(":path", "/v1/chat/completions")], more].concat();
    assert_eq!(shown(&verdict(&headers, false)), expected, "{more:?}");
}

#[test]
fn every_inference_path_is_held() {
    for (path, api) in [
        ("/v1/chat/completions", Api::Chat),
        ("/v1/completions", Api::Completions),
        ("/v1/responses", Api::Responses),
        ("/v1/messages", Api::Messages),
        ("/v1/messages/count_tokens", Api::Tokenize),
        ("/v1/embeddings", Api::Embeddings),
        ("/pooling", Api::Embeddings),
        ("/classify", Api::Embeddings),
        ("/rerank", Api::Rerank),
        ("/v1/rerank", Api::Rerank),
        ("/v2/rerank", Api::Rerank),
        ("/score", Api::Rerank),
        ("/v1/score", Api::Rerank),
        ("/v1/audio/transcriptions", Api::Audio),
        ("/v1/audio/translations", Api::Audio),
        ("/tokenize", Api::Tokenize),
        ("/detokenize", Api::Tokenize),
        ("/generate", Api::Generate),
        ("/generate_stream", Api::Generate),
        ("/a/inference/v1/generate", Api::Generate),
    ] {
        check_path(path, &format!("hold {api:?}"));
    }
}

#[test]
fn prefix_query_and_slash_do_not_matter() {
    check_path("/openai/v1/chat/completions/", "hold Chat");
    check_path("/v1/completions?x=1/chat/completions", "hold Completions");
    check_path("/x/v1/chat/completions/?a=/", "hold Chat");
}

#[test]
fn other_paths_pass() {
    for path in [
        "/",
        "/v1/models",
        "/health",
        "/v1/xcompletions",
        "/v1/completions/x",
        "/messages",
        "",
        "/v1/chat",
    ] {
        check_path(path, "pass not-inference");
    }
    assert_eq!(shown(&verdict(&[], false)), "pass not-inference");
}

#[test]
fn the_path_alone_can_ask_for_a_stream() {
    let HeadVerdict::Hold(mut reader) = verdict(&[(":path", "/generate_stream")], false) else {
        panic!("held")
    };
    reader.feed(b"{}", &mut NoPrompt);
    assert!(reader.finish().stream);
}

#[test]
fn other_methods_pass() {
    check_headers(&[(":method", "GET")], "pass method");
    check_headers(&[(":method", "OPTIONS")], "pass method");
    check_headers(&[(":method", "CONNECT")], "pass connect");
    check_headers(&[], "hold Chat");
}

#[test]
fn upgrades_pass() {
    check_headers(
        &[("connection", "keep-alive, Upgrade"), ("upgrade", "foo")],
        "pass upgrade",
    );
    check_headers(&[("upgrade", "WebSocket")], "pass upgrade");
    check_headers(&[(":method", "CONNECT"), (":protocol", "websocket")], "pass upgrade");
    check_headers(&[("connection", "keep-alive")], "hold Chat");
    // Java's client offers HTTP/2 with every plain request.
    check_headers(
        &[("connection", "Upgrade, HTTP2-Settings"), ("upgrade", "h2c")],
        "hold Chat",
    );
}

#[test]
fn only_readable_bodies_are_held() {
    check_headers(&[("content-type", "application/json; charset=utf-8")], "hold Chat");
    check_headers(&[("Content-Type", "Application/JSON")], "hold Chat");
    check_headers(&[("content-type", "application/vnd.x+json")], "hold Chat");
    check_headers(&[("content-type", "text/plain")], "pass content-type");
    check_headers(
        &[("content-type", "application/x-www-form-urlencoded")],
        "pass content-type",
    );
    check_headers(
        &[("content-type", "multipart/form-data; boundary=x")],
        "pass content-type",
    );
    check_headers(&[("content-type", "application/grpc-web+proto")], "pass grpc");
    check_headers(&[("content-encoding", "gzip")], "pass compressed-body");
    check_headers(
        &[("content-encoding", "identity"), ("content-encoding", "br")],
        "pass compressed-body",
    );
    check_headers(&[("content-encoding", "Identity")], "hold Chat");
}

#[test]
fn a_request_without_body_passes() {
    let headers = [(":path", "/v1/chat/completions")];
    assert_eq!(shown(&verdict(&headers, true)), "pass no-body");
    check_headers(&[("content-length", "0")], "pass no-body");
}

#[test]
fn of_a_declared_length_over_the_hold_bound_only_the_start_is_held() {
    #[track_caller]
    fn check(hold: usize, length: &str, bound: usize) {
        let headers: [(&str, &[u8]); 2] = [
            (":path", b"/v1/chat/completions"),
            ("content-length", length.as_bytes()),
        ];
        let head = Head {
            headers: &headers,
            end_of_stream: false,
        };
        let HeadVerdict::Hold(reader) = classify(&head, hold) else {
            panic!("passed");
        };
        assert_eq!(reader.bound(), bound, "{hold}, {length}");
    }
    check(1 << 20, "1048576", 1 << 20);
    check(1 << 20, "1048577", 64 << 10);
    check(1 << 20, "many", 1 << 20);
    check(1000, "1000", 1000);
    check(1000, "1001", 1000);
    check_headers(
        &[("content-length", "1001"), ("content-type", "text/plain")],
        "pass content-type",
    );
}

/// The reader of a body that declares this length, while 100,000 bytes may be held.
fn classify_completion(length: &str) -> BodyReader {
    let head = Head {
        headers: &[
            (":path", b"/v1/completions"),
            ("content-type", b"application/json"),
            ("content-length", length.as_bytes()),
        ],
        end_of_stream: false,
    };
    let HeadVerdict::Hold(reader) = classify(&head, 100_000) else {
        panic!("passed");
    };
    reader
}

#[test]
fn what_was_not_read_of_a_declared_length_counts_like_what_was() {
    let start = br#"{"model":"m","prompt":""#;
    let mut reader = classify_completion(&(start.len() + 1_000_000 + 2).to_string());
    reader.feed(start, &mut NoPrompt);
    reader.feed(&vec![b'x'; reader.bound() - start.len()], &mut NoPrompt);
    let tokens = reader.facts().prompt.estimate(4.0).0;
    // The frame of JSON counts, too, but it is small.
    assert!((249_000..=250_010).contains(&tokens), "{tokens}");
    // A length that nothing can have is no reason to count from zero again.
    let mut endless = classify_completion(u64::MAX.to_string().as_str());
    endless.feed(start, &mut NoPrompt);
    endless.feed(&[b'x'; 1_000], &mut NoPrompt);
    assert!(endless.facts().prompt.ascii_bytes > u64::MAX / 2);
    // A body that comes whole after all is what was read of it.
    reader.feed(b"\"}", &mut NoPrompt);
    assert_eq!(reader.finish().prompt.ascii_bytes, 65_536 - start.len() as u64);
}

#[test]
fn a_form_that_is_too_large_is_read_as_a_form() {
    #[track_caller]
    fn check(start: &str, model: Option<&str>) {
        let headers = [
            (":path", "/v1/audio/transcriptions"),
            ("content-type", "multipart/form-data; boundary=b"),
            ("content-length", "1001"),
        ];
        let HeadVerdict::Hold(mut reader) = verdict(&headers, false) else {
            panic!("passed");
        };
        reader.feed(start.as_bytes(), &mut NoPrompt);
        let facts = reader.facts();
        assert_eq!(facts.model.as_deref(), model, "{start}");
        assert!(!facts.malformed && !facts.complete, "{start}");
    }
    let model = "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nsql\r\n";
    let file = "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\nRIFF";
    check(&format!("{model}{file}"), Some("sql"));
    check(file, None);
}

#[test]
fn audio_may_be_multipart_with_a_usable_boundary() {
    #[track_caller]
    fn check(content_type: &str, expected: &str) {
        let headers = [(":path", "/v1/audio/transcriptions"), ("content-type", content_type)];
        assert_eq!(shown(&verdict(&headers, false)), expected, "{content_type}");
    }
    check("multipart/form-data; boundary=abc", "hold Audio");
    check("Multipart/Form-Data; charset=utf-8; Boundary=\"a b;c\"", "hold Audio");
    check("multipart/form-data", "pass content-type");
    check("multipart/form-data; boundary=", "pass content-type");
    check(
        &format!("multipart/form-data; boundary={}", "b".repeat(BOUNDARY_MAX_BYTES)),
        "hold Audio",
    );
    check(
        &format!("multipart/form-data; boundary={}", "b".repeat(BOUNDARY_MAX_BYTES + 1)),
        "pass content-type",
    );
    check("application/json", "hold Audio");
}

#[test]
fn reasons_are_serialized_as_they_are_shown() {
    use PassReason::*;
    for reason in [
        Upgrade,
        Connect,
        Grpc,
        NotInference,
        Method,
        NoBody,
        CompressedBody,
        ContentType,
        BodyTooLarge,
    ] {
        let json = serde_json::to_string(&reason).expect("serializes");
        assert_eq!(json, format!("\"{}\"", reason.as_str()));
    }
}

#[test]
fn a_question_for_models_is_told_from_other_requests() {
    #[track_caller]
    fn check(more: &[(&str, &str)], expected: Option<(Option<&str>, bool)>) {
        let headers: Vec<(&str, &[u8])> = more.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
        let asked = asks_for_models(&Head {
            headers: &headers,
            end_of_stream: true,
        });
        let asked = asked.as_ref().map(|asked| (asked.name.as_deref(), asked.anthropic));
        assert_eq!(asked, expected, "{more:?}");
    }
    let get = |path| [(":method", "GET"), (":path", path)];
    check(&get("/v1/models"), Some((None, false)));
    check(&get("/v1/models/?limit=20"), Some((None, false)));
    check(&get("/v1/models/sql"), Some((Some("sql"), false)));
    check(
        &get("/v1/models/meta-llama/Llama-3?x"),
        Some((Some("meta-llama/Llama-3"), false)),
    );
    check(
        &get("/v1/models/a%2Fb%c3%A9%zz%4"),
        Some((Some("a/b\u{e9}%zz%4"), false)),
    );
    check(&get("/v1/models/%+1"), Some((Some("%+1"), false)));
    check(&get("/v1/modelsx"), None);
    check(&get("/v1/model"), None);
    check(&[(":method", "POST"), (":path", "/v1/models")], None);
    check(&[(":path", "/v1/models")], None);
    let anthropic = [
        (":method", "GET"),
        (":path", "/v1/models"),
        ("anthropic-version", "2023-06-01"),
    ];
    check(&anthropic, Some((None, true)));
    check(
        &[(":method", "GET"), (":path", "/v1/models"), ("upgrade", "websocket")],
        None,
    );
}
