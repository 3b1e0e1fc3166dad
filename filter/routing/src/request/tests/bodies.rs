use super::*;
use crate::limits::{BODY_DEPTH_MAX, KEPT_MAX_BYTES, KEY_MAX_BYTES, SCALAR_MAX_BYTES};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

fn model(api: Api, body: &str) -> Option<String> {
    read(api, body).model
}

#[test]
fn chat_gives_model_prompt_and_bound() {
    let body = r#"{"model":"sql","messages":[{"role":"user","content":"Hello"}],"max_tokens":8,"stream":true}"#;
    let facts = read(Api::Chat, body);
    let expected = Facts {
        api: Some(Api::Chat),
        model: Some("sql".into()),
        model_at: Some(ModelAt {
            start: 9,
            end: 14,
            quoted: true,
        }),
        prompt: PromptSize {
            ascii_bytes: 9,
            messages: 1,
            ..PromptSize::default()
        },
        max_output: Some(Tokens(8)),
        choices: 1,
        prompts: 1,
        stream: true,
        complete: true,
        ..Facts::default()
    };
    assert_eq!(facts, expected);
    assert_eq!(heard(Api::Chat, body), "userHello");
}

#[test]
fn model_behind_a_megabyte_of_text_is_found() {
    let text = "x".repeat(1 << 20);
    let body = format!(r#"{{"messages":[{{"role":"user","content":"{text}"}}],"model":"late"}}"#);
    let (facts, _) = feed_all(&BodyReader::json(Api::Chat), body.as_bytes().chunks(16 << 10));
    assert_eq!(facts.model.as_deref(), Some("late"));
    assert_eq!(facts.prompt.ascii_bytes, (1 << 20) + 4);
}

#[test]
fn the_place_of_the_model_is_the_value_that_counts() {
    let place = |api, body: &str| {
        let at = read(api, body).model_at?;
        assert!(at.quoted);
        body.get(at.start..at.end).map(str::to_owned)
    };
    let chat = |body| place(Api::Chat, body);
    assert_eq!(
        chat(r#" { "x":1, "model" :  "a\u0062" }"#).as_deref(),
        Some(r#""a\u0062""#)
    );
    assert_eq!(chat(r#"{"model":"a","model":"bc"}"#).as_deref(), Some(r#""bc""#));
    assert_eq!(
        chat(r#"{"metadata":{"model":"a"},"model":"bc","x":{"model":"d"}}"#).as_deref(),
        Some(r#""bc""#)
    );
    assert_eq!(chat(r#"{"model":"a","model":null}"#), None);
    assert_eq!(chat(r#"{"model":""}"#), None);
    assert_eq!(chat(r#"{"messages":[{"model":"a"}]}"#), None);
    assert_eq!(chat(r#"{"model":"a","lora_path":"b"}"#), None, "another field decides");
    let long = "x".repeat(KEPT_MAX_BYTES + 1);
    assert_eq!(chat(&format!(r#"{{"model":"{long}"}}"#)), None);
}

#[test]
fn a_user_is_named_by_each_api_in_its_own_way() {
    let user = |api, body| read(api, body).user;
    assert_eq!(
        user(Api::Chat, r#"{"user":"u1","metadata":{"user_id":"u2"}}"#).as_deref(),
        Some("u1")
    );
    assert_eq!(
        user(Api::Messages, r#"{"metadata":{"user_id":"u2","x":"y"}}"#).as_deref(),
        Some("u2")
    );
    assert_eq!(user(Api::Chat, r#"{"user":"u1","user":null}"#), None);
    assert_eq!(user(Api::Chat, r#"{"messages":[{"user":"u1"}]}"#), None);
    let long = format!(r#"{{"user":"{}"}}"#, "u".repeat(KEPT_MAX_BYTES + 1));
    assert_eq!(user(Api::Chat, &long).map(|user| user.len()), Some(KEPT_MAX_BYTES));
}

#[test]
fn keys_may_be_escaped_and_spaced() {
    assert_eq!(
        model(Api::Chat, " {\n\t\"mod\\u0065l\" : \"a\\/b\" }\r\n").as_deref(),
        Some("a/b")
    );
    assert_eq!(model(Api::Chat, "\u{feff}{\"model\":\"bom\"}").as_deref(), Some("bom"));
}

#[test]
fn last_of_repeated_keys_wins() {
    let body = r#"{"model":"a","max_tokens":1,"messages":[{"content":"long text"}],
        "model":"b","max_tokens":2,"messages":[{"content":"x"}]}"#;
    let facts = read(Api::Chat, body);
    assert_eq!((facts.model.as_deref(), facts.max_output), (Some("b"), Some(Tokens(2))));
    assert_eq!((facts.prompt.ascii_bytes, facts.prompt.messages), (1, 1));
    assert_eq!(model(Api::Chat, r#"{"model":"a","model":null}"#), None);
}

#[test]
fn only_the_top_level_names_the_model() {
    let body = r#"{"metadata":{"model":"no","x":[{"model":"no"}]},"messages":[{"model":"no"}],"stop":["model"]}"#;
    assert_eq!(model(Api::Chat, body), None);
}

#[test]
fn an_empty_model_or_one_of_another_type_is_absent() {
    for body in [
        r#"{"model":""}"#,
        r#"{"model":7}"#,
        r#"{"model":["a"]}"#,
        r#"{"model":{"id":"a"}}"#,
        "{}",
    ] {
        let facts = read(Api::Chat, body);
        assert_eq!(
            (facts.model, facts.complete, facts.malformed),
            (None, true, false),
            "{body}"
        );
    }
}

#[test]
fn model_at_the_bound_is_kept_and_beyond_it_told() {
    let name = "m".repeat(KEPT_MAX_BYTES);
    let facts = read(Api::Chat, &format!(r#"{{"model":"{name}"}}"#));
    assert_eq!((facts.model, facts.model_too_long), (Some(name.clone()), false));
    let facts = read(Api::Chat, &format!(r#"{{"model":"{name}m"}}"#));
    assert_eq!((facts.model, facts.model_too_long, facts.complete), (None, true, true));
    let facts = read(Api::Chat, &format!(r#"{{"model":"{name}m","model":"short"}}"#));
    assert_eq!((facts.model.as_deref(), facts.model_too_long), (Some("short"), false));
}

#[test]
fn a_key_over_its_bound_means_nothing_and_hurts_nothing() {
    let long = "k".repeat(KEY_MAX_BYTES + 1);
    let body = format!(r#"{{"{long}":"x","model":"a"}}"#);
    assert_eq!(model(Api::Chat, &body).as_deref(), Some("a"));
}

#[test]
fn output_bounds_are_read_in_all_their_forms() {
    #[track_caller]
    fn check(api: Api, members: &str, expected: Option<u64>) {
        assert_eq!(
            read(api, &format!("{{{members}}}")).max_output,
            expected.map(Tokens),
            "{members}"
        );
    }
    check(Api::Chat, "", None);
    check(Api::Chat, r#""max_tokens":null"#, None);
    check(Api::Chat, r#""max_tokens":16.0"#, Some(16));
    check(Api::Chat, r#""max_tokens":16.9"#, Some(16));
    check(Api::Chat, r#""max_tokens":1e3"#, Some(1000));
    check(Api::Chat, r#""max_tokens":-1"#, None);
    check(Api::Chat, r#""max_tokens":"16""#, Some(16));
    check(Api::Chat, r#""max_tokens":0"#, Some(0));
    check(Api::Chat, r#""max_tokens":99999999999999999999"#, Some(u64::MAX));
    check(Api::Chat, r#""max_tokens":[5]"#, None);
    check(Api::Chat, r#""max_completion_tokens":7,"max_tokens":9"#, Some(7));
    check(Api::Chat, r#""max_tokens":9,"max_completion_tokens":7"#, Some(7));
    check(Api::Chat, r#""max_tokens":9,"max_completion_tokens":null"#, Some(9));
    check(Api::Completions, "", Some(16));
    check(Api::Completions, r#""max_tokens":200"#, Some(200));
    check(Api::Responses, r#""max_output_tokens":5,"max_tokens":6"#, Some(5));
    check(Api::Messages, r#""max_tokens":1024"#, Some(1024));
    check(Api::Embeddings, r#""max_tokens":9"#, Some(0));
    check(Api::Rerank, "", Some(0));
    check(Api::Tokenize, "", Some(0));
    check(Api::Generate, r#""parameters":{"max_new_tokens":20}"#, Some(20));
    check(Api::Generate, r#""sampling_params":{"max_new_tokens":30}"#, Some(30));
    check(
        Api::Generate,
        r#""sampling_params":[{"max_new_tokens":40},{"max_new_tokens":40}]"#,
        Some(40),
    );
    check(Api::Generate, r#""max_new_tokens":9"#, None);
}

#[test]
fn a_number_beyond_its_bound_is_absent() {
    let digits = "1".repeat(SCALAR_MAX_BYTES);
    assert_eq!(
        read(Api::Chat, &format!(r#"{{"max_tokens":{digits}}}"#)).max_output,
        Some(Tokens(u64::MAX))
    );
    let facts = read(Api::Chat, &format!(r#"{{"max_tokens":{digits}1,"model":"a"}}"#));
    assert_eq!(
        (facts.max_output, facts.model.as_deref(), facts.complete),
        (None, Some("a"), true)
    );
}

#[test]
fn choices_are_the_larger_of_n_and_best_of() {
    for (members, expected) in [
        ("", 1),
        (r#""n":3"#, 3),
        (r#""n":2,"best_of":5"#, 5),
        (r#""n":0"#, 1),
        (r#""n":null"#, 1),
    ] {
        assert_eq!(
            read(Api::Completions, &format!("{{{members}}}")).choices,
            expected,
            "{members}"
        );
    }
    assert_eq!(read(Api::Chat, r#"{"n":9999999999}"#).choices, u32::MAX);
}

#[test]
fn stream_and_salt_are_read() {
    let facts = read(Api::Chat, r#"{"stream":true,"cache_salt":"tenant-1"}"#);
    assert_eq!((facts.stream, facts.cache_salt.as_deref()), (true, Some("tenant-1")));
    let facts = read(
        Api::Chat,
        r#"{"stream":false,"stream_options":{"stream":true},"cache_salt":null}"#,
    );
    assert_eq!((facts.stream, facts.cache_salt), (false, None));
    let long = "s".repeat(KEPT_MAX_BYTES + 1);
    let salt = read(Api::Chat, &format!(r#"{{"cache_salt":"{long}"}}"#)).cache_salt;
    assert_eq!(salt.map(|salt| salt.len()), Some(KEPT_MAX_BYTES));
}

#[test]
fn chat_text_is_all_that_enters_the_prompt() {
    let body = r#"{"model":"m","tools":[{"type":"function", "function": {"name":"f","strict":true,"parameters":{"n":1}}}],
        "tool_choice":"auto","user":"nobody",
        "messages":[{"role":"system","content":"S"},
          {"role":"user","content":[{"type":"text","text":"A"},{"type":"text","text":"B"}]},
          {"role":"assistant","content":null,"reasoning_content":"R","tool_calls":[
             {"id":"call_1","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}}]},
          {"role":"tool","tool_call_id":"call_1","content":"42"}],
        "response_format":{"type":"json_object"}}"#;
    assert_eq!(
        heard(Api::Chat, body),
        concat!(
            r#"[{"type":"function","function":{"name":"f","strict":true,"parameters":{"n":1}}}]"#,
            "systemS",
            "userAB",
            r#"assistantRf{"x":1}"#,
            "tool42",
            r#"{"type":"json_object"}"#
        )
    );
    assert_eq!(read(Api::Chat, body).prompt.messages, 4);
}

#[test]
fn media_has_a_fixed_cost_and_is_no_text() {
    let body = r#"{"messages":[{"role":"user","content":[
        {"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA","detail":"low"}},
        {"type":"text","text":"what"},
        {"type":"image_url","image_url":"http://x/y"},
        {"type":"input_audio","input_audio":{"data":"BBBB"}},
        {"type":"video_url","video_url":null}]}]}"#;
    let (facts, heard) = read_by(&BodyReader::json(Api::Chat), body.as_bytes());
    assert_eq!((facts.prompt.media_parts, facts.prompt.ascii_bytes), (3, 8));
    assert_eq!(heard.prompt, b"userwhat");
    assert_eq!(heard.media, b"data:image/png;base64,AAAAlowhttp://x/yBBBB");
}

#[test]
fn text_outside_of_ascii_is_counted_apart() {
    // é has 2 bytes, 漢 3, 😀 4: raw and escaped alike.
    for text in ["aé漢😀", r"a\u00e9\u6f22\uD83D\uDE00"] {
        let size = read(Api::Completions, &format!(r#"{{"prompt":"{text}"}}"#)).prompt;
        assert_eq!((size.ascii_bytes, size.other_bytes), (1, 9), "{text}");
    }
}

#[test]
fn lone_surrogates_become_replacement_characters() {
    for text in [r"\ud800", r"\udc00"] {
        assert_eq!(
            heard(Api::Completions, &format!(r#"{{"prompt":"{text}"}}"#)),
            "<>\u{fffd}",
            "{text}"
        );
    }
    for text in [r"\ud83dx", r"\ud83d\n", r"\ud83d\u0041", r"\ud83d\ud83d"] {
        let heard = heard(Api::Completions, &format!(r#"{{"prompt":"{text}"}}"#));
        assert!(
            heard.starts_with("<>\u{fffd}") && heard.chars().count() == 4,
            "{text} {heard}"
        );
    }
    assert_eq!(
        heard(Api::Completions, r#"{"prompt":"\ud83d\ud83d\ude00"}"#),
        "<>\u{fffd}😀"
    );
}

#[test]
fn escapes_are_decoded() {
    assert_eq!(
        heard(Api::Completions, r#"{"prompt":"\"\\\/\b\f\n\r\t"}"#),
        "<>\"\\/\u{8}\u{c}\n\r\t"
    );
}

#[test]
fn invalid_utf8_passes() {
    let (facts, heard) = read_by(&BodyReader::json(Api::Completions), b"{\"prompt\":\"a\xff\xfe\"}");
    assert!(facts.complete);
    assert_eq!((facts.prompt.ascii_bytes, facts.prompt.other_bytes), (1, 2));
    assert_eq!(heard.prompt, b"<>a\xff\xfe");
}

#[test]
fn completions_prompts_in_all_their_forms() {
    #[track_caller]
    fn check(prompt: &str, prompts: u32, expected: &str) {
        let body = format!(r#"{{"prompt":{prompt}}}"#);
        assert_eq!(heard(Api::Completions, &body), expected);
        let facts = read(Api::Completions, &body);
        assert_eq!(facts.prompts, prompts, "{prompt}");
        assert_eq!(
            facts.prompt.tokens,
            expected.matches('<').count() as u64 - expected.matches("<>").count() as u64
        );
    }
    check(r#""a""#, 1, "<>a");
    check(r#"["a","b"]"#, 2, "<>a<>b");
    check("[1,2,3]", 1, "<><1><2><3>");
    check("[[1,2],[3]]", 2, "<><1><2><><3>");
    check("[]", 1, "");
    check("null", 1, "");
    check("[[]]", 1, "<>");
    let facts = read(
        Api::Completions,
        r#"{"prompt":[9,9],"suffix":"end","prompt_embeds":"AAAA"}"#,
    );
    assert_eq!(
        (facts.prompt.ascii_bytes, facts.prompt.media_parts, facts.prompt.tokens),
        (3, 1, 2)
    );
}

#[test]
fn responses_items_are_read() {
    assert_eq!(
        heard(Api::Responses, r#"{"input":"Hi","instructions":"Be kind"}"#),
        "HiBe kind"
    );
    let body = r#"{"input":[{"role":"user","content":[{"type":"input_text","text":"Q"},
          {"type":"input_image","image_url":"data:xx"},{"type":"input_file","filename":"a.pdf","file_data":"yy"}]},
        {"type":"function_call","call_id":"c","name":"f","arguments":"{}"},
        {"type":"function_call_output","call_id":"c","output":"O"},
        {"type":"reasoning","id":"r","summary":[{"type":"summary_text","text":"T"}],"encrypted_content":"zzzz"}],
      "tools":[{"type":"web"}],"text":{"format":{"type":"text"}},"stream":true}"#;
    assert_eq!(
        heard(Api::Responses, body),
        r#"userQf{}OT[{"type":"web"}]{"format":{"type":"text"}}"#
    );
    let facts = read(Api::Responses, body);
    assert_eq!(
        (facts.prompt.media_parts, facts.prompt.messages, facts.prompt.hidden),
        (2, 4, false)
    );
}

#[test]
fn history_kept_by_the_server_is_hidden() {
    for member in [
        r#""previous_response_id":"resp_1""#,
        r#""conversation":{"id":"c"}"#,
        r#""prompt":{"id":"p"}"#,
    ] {
        assert!(
            read(Api::Responses, &format!(r#"{{{member},"input":"x"}}"#))
                .prompt
                .hidden,
            "{member}"
        );
    }
    assert!(!read(Api::Responses, r#"{"previous_response_id":null}"#).prompt.hidden);
    assert!(!read(Api::Chat, r#"{"previous_response_id":"x"}"#).prompt.hidden);
}

#[test]
fn anthropic_messages_are_read() {
    let body = r#"{"model":"c","max_tokens":100,"system":[{"type":"text","text":"S","cache_control":{"type":"ephemeral"}}],
      "messages":[{"role":"user","content":"U"},
        {"role":"assistant","content":[{"type":"thinking","thinking":"T","signature":"sig"},
          {"type":"tool_use","id":"t1","name":"f","input":{"a":[1,"b"]}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"R"},
           {"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}}]},
          {"type":"document","source":{"type":"text","media_type":"text/plain","data":"D"}},
          {"type":"image","source":{"type":"url","url":"http://x"}}]}],
      "tools":[{"name":"f"}]}"#;
    assert_eq!(
        heard(Api::Messages, body),
        r#"SuserUassistantTf{"a":[1,"b"]}userRD[{"name":"f"}]"#
    );
    let facts = read(Api::Messages, body);
    assert_eq!((facts.prompt.media_parts, facts.prompt.messages), (2, 3));
    assert_eq!(heard(Api::Messages, r#"{"system":"S","messages":[]}"#), "S");
}

#[test]
fn embeddings_take_prompts_or_messages() {
    assert_eq!(read(Api::Embeddings, r#"{"input":["ab","c"]}"#).prompts, 2);
    assert_eq!(read(Api::Embeddings, r#"{"input":[[1,2,3],[4]]}"#).prompt.tokens, 4);
    assert_eq!(
        heard(Api::Embeddings, r#"{"messages":[{"role":"user","content":"q"}]}"#),
        "userq"
    );
    let facts = read(Api::Embeddings, r#"{"input":"x","truncate_prompt_tokens":-1}"#);
    assert_eq!(facts.prompt.at_most, None);
}

#[test]
fn a_query_is_counted_once_per_document() {
    let facts = read(Api::Rerank, r#"{"query":"qq","documents":["a","bb",{"text":"ccc"}]}"#);
    assert_eq!((facts.prompts, facts.prompt.ascii_bytes), (3, 3 * 2 + 6));
    let facts = read(Api::Rerank, r#"{"text_2":["a","b"],"text_1":"qqq"}"#);
    assert_eq!((facts.prompts, facts.prompt.ascii_bytes), (2, 2 * 3 + 2));
    // Two lists are pairs.
    let facts = read(Api::Rerank, r#"{"text_1":["aa","bb"],"text_2":["c","d"]}"#);
    assert_eq!((facts.prompts, facts.prompt.ascii_bytes), (2, 6));
    assert_eq!(read(Api::Rerank, r#"{"query":"q","documents":"d"}"#).prompts, 1);
}

#[test]
fn truncation_bounds_each_prompt() {
    let facts = read(Api::Completions, r#"{"truncate_prompt_tokens":10,"prompt":["a","b"]}"#);
    assert_eq!(facts.prompt.at_most, Some(Tokens(20)));
}

#[test]
fn generate_of_tgi_and_sglang() {
    let body = r#"{"inputs":"Hi","parameters":{"adapter_id":"lora-a","max_new_tokens":20,"best_of":2,"truncate":50}}"#;
    let facts = read(Api::Generate, body);
    assert_eq!((facts.model.as_deref(), facts.choices), (Some("lora-a"), 2));
    assert_eq!((facts.prompt.ascii_bytes, facts.prompt.at_most), (2, Some(Tokens(50))));
    let facts = read(
        Api::Generate,
        r#"{"input_ids":[[1,2],[3]],"text":null,"lora_path":["a","a"],"image_data":["x","y"]}"#,
    );
    assert_eq!(
        (facts.model.as_deref(), facts.prompts, facts.prompt.tokens),
        (Some("a"), 2, 3)
    );
    assert_eq!(facts.prompt.media_parts, 2);
    // The adapter says more than the model; without one the model counts.
    assert_eq!(
        model(Api::Generate, r#"{"lora_path":"a","model":"base"}"#).as_deref(),
        Some("a")
    );
    assert_eq!(
        model(Api::Chat, r#"{"lora_path":null,"model":"base:a"}"#).as_deref(),
        Some("base:a")
    );
}

#[test]
fn tokenize_reads_the_model() {
    assert_eq!(
        read(Api::Tokenize, r#"{"prompt":"abc","model":"m"}"#).model.as_deref(),
        Some("m")
    );
}

#[test]
fn what_the_engine_will_refuse_is_still_routed() {
    // Bodies a picker answers with 400: no model, no prompt, no messages, null input.
    for (api, body) in [
        (Api::Chat, r#"{"messages":[]}"#),
        (Api::Completions, r#"{"model":"m"}"#),
        (Api::Chat, r#"{"model":"m","messages":{"role":"user"}}"#),
        (Api::Embeddings, r#"{"model":"m","input":null}"#),
        (Api::Chat, r#"{"model":"m","messages":"text"}"#),
    ] {
        let facts = read(api, body);
        assert!(facts.complete && !facts.malformed, "{body}");
    }
}

#[test]
fn broken_bodies_are_malformed_but_keep_what_was_read() {
    for body in [
        "",
        "hello",
        "[]",
        "\"model\"",
        "nul",
        "{",
        r#"{"model":"a""#,
        r#"{"model":"a"]"#,
        r#"{"model":"a"}}"#,
        r#"{"model":"a"} x"#,
        r#"{"model" "a"}"#,
        r#"{"model":"a",}"#,
        r#"{"stop":[1,]}"#,
        r#"{"stop":[1 2]}"#,
        r#"{"stop":nope}"#,
        r#"{"stop":1.2.3}"#,
        r#"{"stop":"\x"}"#,
        r#"{"stop":"\u12g4"}"#,
        r#"{model:"a"}"#,
        "{,}",
        r#"{"a":}"#,
        "--boundary",
    ] {
        let facts = read(Api::Chat, body);
        assert_eq!((facts.complete, facts.malformed), (false, true), "{body}");
    }
    let facts = read(Api::Chat, r#"{"model":"kept","messages":[{"content":"abc"}, oops"#);
    assert_eq!((facts.model.as_deref(), facts.prompt.ascii_bytes), (Some("kept"), 3));
}

#[test]
fn python_literals_pass() {
    assert!(
        read(
            Api::Chat,
            r#"{"temperature":NaN,"top_p":-Infinity,"model":"a","x":-1.5E-3}"#
        )
        .complete
    );
}

#[test]
fn nesting_is_bounded() {
    let nested = |depth: usize| {
        // The body itself is one level.
        format!(
            r#"{{"x":{}{},"model":"a"}}"#,
            "[".repeat(depth - 1),
            "]".repeat(depth - 1)
        )
    };
    let facts = read(Api::Chat, &nested(BODY_DEPTH_MAX as usize));
    assert_eq!((facts.model.as_deref(), facts.complete), (Some("a"), true));
    let facts = read(Api::Chat, &nested(BODY_DEPTH_MAX as usize + 1));
    assert_eq!((facts.model, facts.malformed), (None, true));
    let bomb = format!(r#"{{"messages":{}"#, "[{\"content\":".repeat(1 << 17));
    let (facts, _) = feed_all(&BodyReader::json(Api::Chat), [bomb.as_bytes()]);
    assert!(facts.malformed);
}

#[test]
fn a_cut_body_is_incomplete_but_not_malformed() {
    let mut reader = BodyReader::json(Api::Chat);
    reader.feed(
        br#"{"model":"a","messages":[{"role":"user","content":"abc"#,
        &mut NoPrompt,
    );
    let facts = reader.facts();
    assert_eq!((facts.complete, facts.malformed), (false, false));
    assert_eq!((facts.model.as_deref(), facts.prompt.ascii_bytes), (Some("a"), 7));
    assert!(!BodyReader::json(Api::Chat).facts().complete);
}
