use serde_json::{Value, json};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use super::*;
use crate::decision::tests::world::{ASK, World, ago, ask_for};

#[track_caller]
fn refused(world: &World, model: &str) -> Refusal {
    match world.decide(ask_for(model)).action {
        Action::Reply(refusal) => refusal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn endpoints_are_listed_in_order_and_ipv6_keeps_its_brackets() {
    let endpoints = ["10.0.0.1:8000", "[fd00::1]:80", "10.0.0.2:80"].map(|text| text.parse().unwrap());
    assert_eq!(destination(&endpoints), "10.0.0.1:8000,[fd00::1]:80,10.0.0.2:80");
    assert_eq!(destination(&[]), "");
}

#[test]
fn retries_never_leave_the_list() {
    let endpoints = ["10.0.0.1:80", "10.0.0.2:80"].map(|text| text.parse().unwrap());
    assert_eq!(destination(&endpoints), "10.0.0.1:80,10.0.0.2:80,10.0.0.1:80");
    assert_eq!(destination(&endpoints[..1]), "10.0.0.1:80,10.0.0.1:80,10.0.0.1:80");
}

#[test]
fn a_model_becomes_a_header_only_as_visible_ascii_of_bounded_length() {
    assert_eq!(model("meta/Llama-3:x"), Some("meta/Llama-3:x"));
    assert_eq!(model(&"m".repeat(256)).map(str::len), Some(256));
    for bad in ["", "a b", "a\r\nx: y", "ü", "\u{7f}", &"m".repeat(257)] {
        assert_eq!(model(bad), None, "{bad:?}");
    }
}

#[test]
fn a_decision_is_one_short_line_without_anything_of_the_client() {
    let world = World::of(1);
    assert_eq!(
        decision(&world.decide(ask_for("llama"))),
        "pod=10.0.0.1:8000;predicted=100;cost=102;prefill=100;memory=2;adapter-is=base;reading=fresh;candidates=1;pool=main"
    );
    assert_eq!(
        decision(&world.decide(ask_for("x;pod=1\r\ny"))),
        "reply=404;reason=model-unknown;candidates=0;pool=main"
    );
    let mut old = World::of(0);
    old.discovery.at = Some(ago(60_000));
    assert_eq!(
        decision(&old.decide(ASK)),
        "pass=discovery-stale;candidates=0;pool=main"
    );
}

#[test]
fn a_rewrite_shows_its_target_and_not_what_the_client_said() {
    let mut decided = World::of(1).decide(ask_for("llama"));
    decided.why.asked = Some("gpt;x=1".to_owned());
    let line = decision(&decided);
    assert!(line.contains(";target=llama;cost=") && !line.contains("gpt"), "{line}");
    for (name, why_not) in [
        ("a;b", "it would read as two"),
        ("lläma", "no header can hold it"),
        ("", "it says nothing"),
    ] {
        decided.why.model = Some(name.to_owned());
        let line = decision(&decided);
        assert!(!line.contains("target=") && line.is_ascii(), "{why_not}: {line}");
    }
}

#[test]
fn a_near_name_is_told_with_the_unknown_one() {
    let mut refusal = refused(&World::of(1), "llame");
    assert!(body(&refusal, None).contains("The model `llame` does not exist.\""));
    refusal.near = Some("llama".to_owned());
    assert!(body(&refusal, None).contains("does not exist. Did you mean `llama`?\""));
}

#[test]
fn the_runners_up_stand_behind_the_first() {
    let mut world = World::of(2);
    world.pods[1].unanswered(0, 800);
    let text = decision(&world.decide(ASK));
    // 100 of queue, 100 of prefill, 150 x 0.018 / 0.982 of memory.
    assert!(text.contains(";next=10.0.0.2:8000@203;"), "{text}");
}

#[test]
fn a_refusal_speaks_the_clients_dialect() {
    let refusal = refused(&World::of(1), "gh\"ost");
    let read = |api| serde_json::from_str::<Value>(&body(&refusal, api)).unwrap();
    let message = "The model `gh\"ost` does not exist.";
    let openai = json!({"error": {"message": message, "type": "invalid_request_error", "param": "model", "code": "model_not_found"}});
    assert_eq!(read(Some(Api::Chat)), openai);
    assert_eq!(read(None), openai);
    let anthropic = json!({"type": "error", "error": {"type": "not_found_error", "message": message}});
    assert_eq!(read(Some(Api::Messages)), anthropic);
}

#[test]
fn who_is_sent_away_from_full_pods_is_told_when_to_ask_again() {
    let shed = Refusal {
        status: 429,
        reason: Reason::Saturated,
        model: None,
        near: None,
        retry_after: Some(7),
    };
    let expected = [
        ("content-type", "application/json".into()),
        ("x-berth-reason", "saturated".into()),
        ("retry-after", "7".into()),
    ];
    assert_eq!(refusal(&shed), expected);
    let read = |api| serde_json::from_str::<Value>(&body(&shed, api)).unwrap();
    let error = &read(Some(Api::Chat))["error"];
    assert_eq!(
        (&error["type"], &error["code"]),
        (&json!("rate_limit_error"), &json!("saturated"))
    );
    let error = &read(Some(Api::Messages))["error"];
    assert_eq!(
        (&error["type"], &error["code"]),
        (&json!("rate_limit_error"), &Value::Null)
    );
}

#[test]
fn only_what_may_pass_says_when_to_retry() {
    let unknown = refused(&World::of(1), "ghost");
    assert_eq!(
        refusal(&unknown),
        [
            ("content-type", "application/json".into()),
            ("x-berth-reason", "model-unknown".into())
        ]
    );
    let gone = refused(&World::of(0), "ghost");
    assert_eq!(gone.status, 503);
    assert_eq!(refusal(&gone).last(), Some(&("retry-after", "2".into())));
    let text: Value = serde_json::from_str(&body(&gone, None)).unwrap();
    assert_eq!(text["error"]["type"], "service_unavailable");
    assert_eq!(text["error"]["code"], "no-ready-pod");
    assert_eq!(text["error"]["param"], Value::Null);
}
