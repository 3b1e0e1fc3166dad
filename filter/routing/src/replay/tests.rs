use super::*;
use crate::ledger::Ledger;
use serde_json::{Value, json};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

const P0: &str = "10.0.0.1:8000";
const P1: &str = "10.0.0.2:8000";
const ONE: &str = r#"{"pools": [{"name": "llama", "discovery": {"static": ["10.0.0.1:8000"]}}]}"#;
const TWO: &str = r#"{"pools": [{"name": "a", "discovery": {"static": ["10.0.0.1:8000"]}},
                                {"name": "b", "discovery": {"static": ["10.0.0.2:8000"]}}]}"#;

struct Run {
    replay: Replay,
    out: Vec<Value>,
    notes: Vec<String>,
}

impl Run {
    fn new(document: &str, options: Options) -> Self {
        let config = Config::parse(document.as_bytes()).unwrap();
        Self {
            replay: Replay::new(config, options),
            out: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Two idle pods that list `m` and the adapter `a1`, read at 5 and 6.
    fn started(options: Options) -> Self {
        let mut run = Self::new(ONE, options);
        run.feed(&json!({"t": 0, "pods": [{"name": "p0", "address": P0}, {"address": P1}]}));
        for pod in [P0, P1] {
            run.feed(&json!({"t": 5.5, "scrape": {"pod": pod, "status": 200, "body": page(0, "")}}));
            run.feed(&json!({"t": 6, "models": {"pod": pod, "status": 200, "body": models(&["m"])}}));
        }
        run
    }

    fn line(&mut self, line: &str) -> usize {
        let answers = self.replay.feed(line);
        let count = answers.out.len();
        self.out.extend(
            answers
                .out
                .iter()
                .map(|line| serde_json::from_str::<Value>(line).unwrap()),
        );
        self.notes.extend(answers.notes);
        count
    }

    fn feed(&mut self, event: &Value) -> Option<Value> {
        match self.line(&event.to_string()) {
            0 => None,
            _ => self.out.last().cloned(),
        }
    }

    /// Prompts of 1,000 tokens that share no prefix.
    fn ask(&mut self, t: f64, id: &Value, model: &str, stream: bool) -> Value {
        let prompt = format!("{:04} {}", self.out.len(), "word ".repeat(799));
        let body = json!({"model": model, "stream": stream, "max_tokens": 10, "prompt": prompt});
        self.feed(&json!({"t": t, "request": {"id": id, "path": "/v1/completions", "body": body.to_string()}}))
            .unwrap()
    }

    fn ledger(&self, pool: &str) -> Ledger {
        let stored = self
            .replay
            .store
            .get(&berth_shared_state::names::ledger_key(pool))
            .unwrap();
        stored.map_or_else(Ledger::default, |stored| Ledger::decode(&stored.value).unwrap())
    }

    fn rate(&self) -> Option<f64> {
        let address = |text: &str| text.parse::<PodAddress>().unwrap().key();
        let ledger = self.ledger("llama");
        ledger.at(address(P0)).rate().or(ledger.at(address(P1)).rate())
    }

    fn in_flight(&self) -> u64 {
        let ledger = self.ledger("llama");
        let at = |text: &str| {
            ledger
                .own(text.parse::<PodAddress>().unwrap().key(), None)
                .context_tokens
                .0
        };
        at(P0) + at(P1)
    }
}

fn page(running: u32, lora: &str) -> String {
    format!(
        "# TYPE vllm:num_requests_running gauge\n\
         vllm:num_requests_running{{engine=\"0\",model_name=\"m\"}} {running}\n\
         vllm:num_requests_waiting{{engine=\"0\",model_name=\"m\"}} 0\n\
         vllm:kv_cache_usage_perc{{engine=\"0\",model_name=\"m\"}} 0.1\n\
         vllm:cache_config_info{{block_size=\"16\",num_gpu_blocks=\"1000\",engine=\"0\"}} 1.0\n{lora}"
    )
}

fn models(bases: &[&str]) -> String {
    let mut data: Vec<Value> = bases.iter().map(|id| json!({"id": id, "object": "model"})).collect();
    data.push(json!({"id": "a1", "object": "model", "parent": bases[0]}));
    json!({"object": "list", "data": data}).to_string()
}

#[test]
fn a_request_is_routed_with_its_reasons() {
    let mut run = Run::started(Options::default());
    let answer = run.ask(9.0, &json!("r1"), "m", true);
    assert_eq!((&answer["id"], &answer["action"]), (&json!("r1"), &json!("route")));
    assert_eq!(answer["endpoints"].as_array().unwrap().len(), 2);
    assert_eq!(answer["pod"], answer["endpoints"][0]);
    assert_eq!(answer["why"]["pool"], "llama");
    assert_eq!(run.notes, [""; 0]);
}

#[test]
fn the_keys_of_an_answer_stand_in_the_documented_order() {
    let mut run = Run::started(Options::default());
    let body = json!({"model": "m", "prompt": "x"}).to_string();
    let event = json!({"t": 9, "request": {"id": 1, "path": "/v1/completions", "body": body}});
    let line = run.replay.feed(&event.to_string()).out.remove(0);
    let at = |key: &str| line.find(&format!("\"{key}\":")).unwrap();
    assert!(line.starts_with("{\"id\":1,\"action\":\"route\",\"pod\":"));
    assert!(at("pod") < at("endpoints") && at("endpoints") < at("why"));
}

#[test]
fn ids_are_echoed_with_their_type() {
    let mut run = Run::started(Options::default());
    for id in [json!("7"), json!(7), json!(7.5), json!(-1), json!("")] {
        assert_eq!(run.ask(9.0, &id, "m", false)["id"], id);
    }
    // "7" and 7 are two requests.
    run.feed(&json!({"t": 10, "done": {"id": 7, "status": 200}}));
    assert_eq!(run.replay.in_flight.len(), 4);
}

#[test]
fn what_is_not_for_berth_is_passed_and_an_unknown_model_refused() {
    let mut run = Run::started(Options::default());
    let get = json!({"t": 9, "request": {"id": 1, "headers": [[":method", "GET"], [":path", "/v1/completions"]]}});
    assert_eq!(
        run.feed(&get),
        Some(json!({"id": 1, "action": "pass", "why": {"reason": "method"}}))
    );
    let refused = run.ask(9.0, &json!(2), "nowhere", false);
    assert_eq!((&refused["action"], &refused["status"]), (&json!("reply"), &json!(404)));
    assert_eq!(refused["why"]["reason"], "model-unknown");
    assert_eq!(refused.get("pod"), None);
}

#[test]
fn a_rewrite_and_a_question_for_models_are_answered_as_in_the_proxy() {
    let mut document: Value = serde_json::from_str(ONE).unwrap();
    document["rewrites"] = json!([{"from": "gpt", "to": [{"model": "m"}]}, {"from": "x", "to": [{"model": "lost"}]}]);
    let mut run = Run::new(&document.to_string(), Options::default());
    let get = |t: u32, path: &str| json!({"t": t, "request": {"id": t, "path": path, "headers": [[":method", "GET"]]}});
    let early = run.feed(&get(1, "/v1/models")).unwrap();
    assert_eq!(
        (&early["action"], &early["why"]["reason"]),
        (&json!("pass"), &json!("not-inference"))
    );
    run.feed(&json!({"t": 5, "scrape": {"pod": P0, "status": 200, "body": page(0, "")}}));
    run.feed(&json!({"t": 6, "models": {"pod": P0, "status": 200, "body": models(&["m"])}}));
    let routed = run.ask(10.0, &json!("r"), "gpt", false);
    assert_eq!(routed["action"], "route");
    let why = &routed["why"];
    assert_eq!(
        (&why["model"], &why["asked"], &why["base"]),
        (&json!("m"), &json!("gpt"), &json!("m"))
    );
    assert_eq!(run.ask(11.0, &json!("s"), "x", false)["status"], 404);
    assert_eq!(run.feed(&get(2000, "/v1/models")).unwrap()["status"], 200);
    assert_eq!(run.feed(&get(2001, "/v1/models/gpt")).unwrap()["status"], 200);
    let missing = run.feed(&get(2002, "/v1/models/x")).unwrap();
    assert_eq!((&missing["action"], &missing["status"]), (&json!("reply"), &json!(404)));
}

#[test]
fn before_any_page_a_static_list_is_routed_and_other_discovery_passed() {
    let mut run = Run::new(ONE, Options::default());
    assert_eq!(run.ask(0.0, &json!(1), "m", false)["pod"], P0);
    let admin = r#"{"pools": [{"name": "llama", "discovery": {"envoy_admin": {"cluster": "pods"}}}]}"#;
    let mut run = Run::new(admin, Options::default());
    assert_eq!(run.ask(0.0, &json!(1), "m", false)["why"]["reason"], "no-table");
    run.feed(&json!({"t": 1, "pods": [{"address": P1}]}));
    assert_eq!(run.ask(2.0, &json!(2), "m", false)["pod"], P1);
    // Events do not age: discovery is as fresh as a static list.
    run.feed(&json!({"t": 900_000, "pods": []}));
    assert_eq!(run.ask(1_000_000.0, &json!(3), "m", false)["status"], 503);
}

#[test]
fn a_stream_teaches_its_rate_and_nothing_else_does() {
    for (stream, first_token, taught) in [(true, true, true), (true, false, false), (false, true, false)] {
        let mut run = Run::started(Options::default());
        for id in 0..8 {
            let t = 1000.0 * f64::from(id);
            run.ask(t, &json!(id), "m", stream);
            if first_token {
                run.feed(&json!({"t": t + 100.0, "first_token": {"id": id}}));
            }
            assert!(run.in_flight() > 0);
            run.feed(&json!({"t": t + 200.0, "done": {"id": id, "status": 200}}));
            assert_eq!(run.in_flight(), 0);
        }
        assert_eq!(
            run.rate().is_some(),
            taught,
            "stream {stream}, first token {first_token}"
        );
    }
}

#[test]
fn tokens_tell_at_which_pod_a_prompt_is_computed() {
    for workers in [1, 2] {
        let mut run = Run::started(Options {
            workers,
            ..Options::default()
        });
        // Others run ten at each pod.
        for t in (1_000..4_000).step_by(500) {
            for pod in [P0, P1] {
                run.feed(&json!({"t": t, "scrape": {"pod": pod, "status": 200, "body": page(10, "")}}));
            }
        }
        let pods = ["of-one", "of-other"].map(|id| run.ask(4_000.0, &json!(id), "m", true)["pod"].clone());
        assert_ne!(pods[0], pods[1]);
        for id in ["of-one", "of-other"] {
            run.feed(&json!({"t": 4_100, "first_token": {"id": id}}));
        }
        let mut tokens = |id: &str, from: u64| {
            for t in (from..from + 400).step_by(40) {
                run.feed(&json!({"t": t, "token": {"id": id}}));
            }
        };
        tokens("of-one", 4_140);
        tokens("of-other", 4_540);
        assert_eq!(run.ask(4_910.0, &json!(1), "m", false)["pod"], pods[1]);
        run.feed(&json!({"t": 4_920, "done": {"id": 1, "status": 200}}));
        // Nobody knows this one.
        run.feed(&json!({"t": 4_930, "token": {"id": "nobody's"}}));
        assert_eq!(run.notes, [""; 0]);
    }
}

#[test]
fn a_failed_answer_makes_its_pod_avoided() {
    for (done, avoided) in [
        (json!({"id": 1, "status": 503}), true),
        (json!({"id": 1, "status": 429}), true),
        (json!({"id": 1, "error": "connection refused"}), true),
        (json!({"id": 1, "status": 400}), false),
        (json!({"id": 1}), false),
        (json!({"id": 1, "status": 200}), false),
    ] {
        let mut run = Run::started(Options::default());
        let pod = run.ask(9.0, &json!(1), "m", true)["pod"].clone();
        run.feed(&json!({"t": 20, "done": done}));
        let next = run.ask(30.0, &json!(2), "m", true);
        let cost = next["why"]["considered"]
            .as_array()
            .unwrap()
            .iter()
            .find(|one| one["pod"] == pod)
            .unwrap();
        assert_eq!(cost["terms"].get("failed").is_some(), avoided, "{done}");
    }
}

#[test]
fn workers_share_what_they_send() {
    for workers in [1, 2, 7] {
        let mut run = Run::started(Options {
            workers,
            ..Options::default()
        });
        let pods: Vec<Value> = (0..2)
            .map(|id| run.ask(9.0, &json!(id), "m", true)["pod"].clone())
            .collect();
        assert_ne!(pods[0], pods[1], "{workers} workers");
        let ends = [0, 1].map(|id| json!({"t": 10, "done": {"id": id}}));
        for end in &ends {
            run.feed(end);
        }
        assert_eq!(run.in_flight(), 0);
    }
}

#[test]
fn a_request_without_stream_is_released_in_time_however_long_nothing_happens() {
    let mut run = Run::started(Options {
        workers: 2,
        ..Options::default()
    });
    run.ask(9.0, &json!(1), "m", false);
    run.feed(&json!({"t": 600_000, "pods": [{"address": P0}, {"address": P1}]}));
    let ledger = run.ledger("llama");
    let own = [P0, P1].map(|pod| ledger.own(pod.parse::<PodAddress>().unwrap().key(), None));
    assert_eq!(
        (
            own[0].unanswered + own[1].unanswered,
            own[0].generating + own[1].generating
        ),
        (0, 1)
    );
}

/// Two LoRA series; the second one's clock is the sum of two processes.
fn summed() -> String {
    "vllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=\"a1\",waiting_lora_adapters=\"\"} 1700000005\n\
     vllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=\"a2\",waiting_lora_adapters=\"\"} 3400000000\n"
        .to_owned()
}

#[test]
fn lora_clocks_are_repaired_only_with_an_epoch() {
    for (epoch, tier) in [(None, "registered"), (Some(UnixMillis(1_700_000_010_000)), "active")] {
        let mut run = Run::started(Options {
            epoch,
            ..Options::default()
        });
        for pod in [P0, P1] {
            run.feed(&json!({"t": 7, "scrape": {"pod": pod, "status": 200, "body": page(1, &summed())}}));
        }
        assert_eq!(
            run.ask(9.0, &json!(1), "a1", true)["why"]["considered"][0]["tier"],
            tier,
            "{epoch:?}"
        );
    }
}

#[test]
fn pods_go_to_the_pool_that_lists_them_or_that_is_named() {
    let mut run = Run::new(TWO, Options::default());
    run.feed(&json!({"t": 0, "pods": [{"address": P0}, {"address": P1}, {"address": "10.0.0.9:8000"}]}));
    let pods = |run: &Run, pool: usize| run.replay.pools[pool].pods.len();
    assert_eq!((pods(&run, 0), pods(&run, 1)), (2, 1));
    run.feed(&json!({"t": 1, "pool": "b", "pods": [{"address": P1}, {"address": "10.0.0.9:8000"}]}));
    assert_eq!((pods(&run, 0), pods(&run, 1)), (2, 2));
    run.feed(&json!({"t": 2, "pool": "c", "pods": []}));
    assert_eq!((pods(&run, 0), pods(&run, 1)), (2, 2));
    assert!(run.notes.iter().any(|note| note == "line 3: skipped: no such pool"));
    run.feed(&json!({"t": 3, "models": {"pod": P1, "status": 200, "body": models(&["only-b"])}}));
    assert_eq!(run.ask(4.0, &json!(1), "only-b", false)["why"]["pool"], "b");
}

#[test]
fn a_body_that_is_cut_before_its_model_is_passed_where_several_pools_could_mean() {
    let hold = r#""body": {"hold": "4KiB"}, "#;
    for (document, late, action) in [(ONE, true, "route"), (TWO, true, "pass"), (TWO, false, "route")] {
        let document = document.replacen('{', &format!("{{{hold}"), 1);
        let Ok(config) = Config::parse(document.as_bytes()) else {
            panic!("{:?}", Config::parse(document.as_bytes()));
        };
        let mut replay = Replay::new(config, Options::default());
        let long = "x".repeat(5000);
        let body = match late {
            true => format!(r#"{{"prompt": "{long}", "model": "m"}}"#),
            false => format!(r#"{{"model": "m", "prompt": "{long}"}}"#),
        };
        let event = json!({"t": 0, "request": {"id": 1, "path": "/v1/completions", "body": body}});
        let answer: Value = serde_json::from_str(&replay.feed(&event.to_string()).out[0]).unwrap();
        assert_eq!(answer["action"], action, "{answer}");
    }
}

#[track_caller]
fn check_note(line: &str, expected: &str) {
    let mut run = Run::started(Options::default());
    run.notes.clear();
    assert_eq!(run.line(line), 0);
    assert_eq!(run.notes.len(), 1, "{:?}", run.notes);
    assert!(!run.notes[0].contains(char::is_control), "{:?}", run.notes[0]);
    assert!(run.notes[0].contains(expected), "{}", run.notes[0]);
    assert_eq!(run.ask(10.0, &json!(1), "m", false)["action"], "route");
}

#[test]
fn what_cannot_be_used_is_skipped_with_one_note() {
    check_note("nonsense", "not a JSON object");
    check_note("[1]", "not a JSON object");
    check_note(r#"{"t": 9}"#, "no known event");
    check_note(r#"{"t": 9, "weather": {"rain": 1}}"#, "no known event");
    check_note(
        r#"{"t": 9, "done": {"id": 1}, "first_token": {"id": 1}}"#,
        "several events",
    );
    check_note(
        r#"{"t": 9, "done": {"id": 1, "mood": "good", "x": 2}, "y": 3}"#,
        "skipped: y, mood, x",
    );
    check_note(r#"{"done": {"id": 1}}"#, "no time");
    check_note(r#"{"t": 9, "done": {"id": null}}"#, "id must be");
    check_note(r#"{"t": 9, "done": []}"#, "done must be an object");
    check_note(r#"{"t": 9, "pods": {}}"#, "pods must be an array");
    check_note(
        r#"{"t": 9, "pods": [{"address": "llama:8000"}]}"#,
        "names are not accepted",
    );
    check_note(
        r#"{"t": 9, "scrape": {"pod": "10.0.0.1:8000"}}"#,
        "neither status nor error",
    );
    check_note(
        r#"{"t": 9, "scrape": {"pod": "10.9.9.9:1", "status": 200}}"#,
        "no pod of any pool",
    );
}

#[test]
fn a_failed_call_keeps_the_last_reading() {
    let mut run = Run::started(Options::default());
    run.feed(&json!({"t": 8, "scrape": {"pod": P0, "error": "timed out"}}));
    run.feed(&json!({"t": 8, "scrape": {"pod": P1, "status": 500, "body": "oops"}}));
    let answer = run.ask(9.0, &json!(1), "m", false);
    assert_eq!(answer["why"]["rung"], "fresh");
}

#[test]
fn equal_input_and_seed_give_equal_output_and_time_never_runs_back() {
    let play = |seed| {
        let mut run = Run::started(Options {
            seed,
            ..Options::default()
        });
        for id in 0..40_u32 {
            run.ask(
                if id % 5 == 0 { 0.25 } else { 10.0 + f64::from(id) },
                &json!(id),
                "m",
                id % 2 == 0,
            );
        }
        run.out
    };
    assert_eq!(play(0), play(0));
    assert_ne!(play(0), play(1));
}

#[test]
fn a_second_request_with_the_id_of_one_in_flight_ends_the_first() {
    let mut run = Run::started(Options::default());
    run.ask(9.0, &json!("same"), "m", true);
    let one = run.in_flight();
    run.ask(10.0, &json!("same"), "m", true);
    assert_eq!(run.in_flight(), one);
}

#[test]
fn a_note_is_one_line_whatever_keys_and_values_hold() {
    check_note(r#"{"t": 1, "a\n\u001b[2Jb": 1, "done": {"id": 1}}"#, "skipped: a  [2Jb");
    check_note(r#"{"t": 1, "done": {"id": 1, "a\rb": 1}}"#, "skipped: a b");
    check_note(
        r#"{"t": 1, "pods": [{"address": "a\nb"}]}"#,
        r#"skipped: address "a\nb": must be ip:port, for example 10.0.0.1:8000 or [fd00::1]:8000; names are not accepted"#,
    );
    check_note(r#"{"t": 1, "pool": "a\nb", "pods": []}"#, "skipped: no such pool");
}

#[cfg(not(target_arch = "wasm32"))]
mod properties {
    use super::*;
    use proptest::prelude::*;

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            prop::num::f64::NORMAL.prop_map(Value::from),
            prop::sample::select(vec![P0, P1, "x", "", "/v1/completions"]).prop_map(Value::from),
        ];
        let key = prop::sample::select(vec![
            "id", "pod", "status", "body", "error", "headers", "address", "path", "?",
        ]);
        leaf.prop_recursive(3, 24, 6, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::hash_map(key.clone().prop_map(str::to_owned), inner, 0..5)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn no_line_can_stop_a_replay(
            lines in prop::collection::vec(
                (prop::sample::select(vec!["pods", "scrape", "models", "request", "first_token", "token", "done", "?"]), value(), value()),
                0..20,
            ),
            text in ".{0,40}",
        ) {
            let mut run = Run::started(Options { workers: 2, ..Options::default() });
            run.line(&text);
            for (kind, event, t) in lines {
                let id = event.get("id").cloned().unwrap_or_default();
                let count = run.line(&json!({"t": t, kind: event}).to_string());
                let asked = kind == "request" && (id.is_string() || id.is_number());
                prop_assert_eq!(count, usize::from(asked));
            }
            run.feed(&json!({"t": 1e12, "pods": [{"address": P0}]}));
            prop_assert_eq!(&run.ask(1e12, &json!("last"), "m", false)["pod"], P0);
        }
    }
}

/// One pod with room for fourteen prompts of 1,000 tokens and answers of ten: 1,600 of its 16,000 tokens are taken.
fn waiting(options: Options) -> Run {
    let mut document: Value = serde_json::from_str(ONE).unwrap();
    document["admission"] = json!({"queue": {"enabled": true, "max_wait": "5s"}});
    let mut run = Run::new(&document.to_string(), options);
    run.feed(&json!({"t": 5, "scrape": {"pod": P0, "status": 200, "body": page(1, "")}}));
    for id in 1..=14 {
        assert_eq!(run.ask(10.0, &json!(id), "m", true)["action"], "route", "{id}");
    }
    run
}

#[test]
fn a_request_that_is_held_is_answered_again_when_it_goes() {
    let mut run = waiting(Options::default());
    let held = run.ask(11.0, &json!("x"), "m", true);
    assert_eq!((&held["id"], &held["action"]), (&json!("x"), &json!("hold")));
    assert_eq!(held["why"]["reason"], "saturated");
    // Thirteen are 1,625 ms of work: nothing to spare yet.
    assert_eq!(run.feed(&json!({"t": 40, "done": {"id": 2, "status": 200}})), None);
    let went = run.feed(&json!({"t": 50, "done": {"id": 3, "status": 200}})).unwrap();
    assert_eq!(
        (&went["id"], &went["action"], &went["pod"]),
        (&json!("x"), &json!("route"), &json!(P0))
    );
    assert_eq!(went["why"]["waited"], 39);
    // It is in flight then as any other.
    run.feed(&json!({"t": 60, "first_token": {"id": "x"}}));
    run.feed(&json!({"t": 70, "done": {"id": "x", "status": 200}}));
    assert_eq!(run.replay.in_flight.len(), 12);
}

#[test]
fn one_that_is_held_goes_with_a_table_or_with_the_time_and_is_answered_at_the_end() {
    let mut run = waiting(Options::default());
    run.ask(11.0, &json!("x"), "m", true);
    run.ask(11.0, &json!("y"), "m", true);
    // The client of y left: nobody waits for its answer.
    run.feed(&json!({"t": 20, "done": {"id": "y"}}));
    // A second pod, which is idle.
    run.feed(&json!({"t": 100, "pods": [{"address": P0}, {"address": P1}]}));
    run.feed(&json!({"t": 150, "scrape": {"pod": P1, "status": 200, "body": page(0, "")}}));
    let went = run.feed(&json!({"t": 310, "first_token": {"id": "none"}})).unwrap();
    assert_eq!((&went["id"], &went["pod"]), (&json!("x"), &json!(P1)));

    let mut run = waiting(Options::default());
    run.ask(11.0, &json!("x"), "m", true);
    assert_eq!(run.feed(&json!({"t": 4_900, "first_token": {"id": "none"}})), None);
    let late = run.feed(&json!({"t": 30_000, "first_token": {"id": "none"}})).unwrap();
    assert_eq!(
        (&late["status"], &late["why"]["reason"]),
        (&json!(429), &json!("queue-timeout"))
    );
    assert_eq!(late["why"]["waited"], 5_089, "at the tick after its deadline");

    let mut run = waiting(Options::default());
    run.ask(11.0, &json!("x"), "m", true);
    let out = run.replay.finish().out;
    assert_eq!(out.len(), 1);
    assert!(
        out[0].starts_with(r#"{"id":"x","action":"reply","status":429"#),
        "{}",
        out[0]
    );
    assert_eq!(run.replay.finish().out, [""; 0]);
}

#[test]
fn workers_of_a_replay_hold_what_they_were_dealt() {
    let mut run = waiting(Options {
        workers: 3,
        ..Options::default()
    });
    for id in 20..26 {
        assert_eq!(run.ask(15.0, &json!(id), "m", true)["action"], "hold");
    }
    let mut went = Vec::new();
    for id in 1..=14 {
        run.feed(&json!({"t": 200 + 100 * id, "done": {"id": id, "status": 200}}));
    }
    run.feed(&json!({"t": 2_000, "first_token": {"id": "none"}}));
    went.extend(run.out.iter().skip(20).map(|line| line["id"].clone()));
    went.sort_by_key(Value::as_u64);
    assert_eq!(went, (20..26).map(Value::from).collect::<Vec<_>>());
    assert!(run.out.iter().skip(20).all(|line| line["action"] == "route"));
}
