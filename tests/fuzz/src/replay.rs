//! Lines of the replay protocol, through the whole of Berth.

use berth_filter_routing::replay::{Answers, Options, Replay};
use serde_json::Value;

use crate::world;

/// The input is lines of events.
pub fn replay(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let run = || {
        let options = Options {
            workers: 2,
            ..Options::default()
        };
        let mut replay = Replay::new(world::config(), options);
        let answers: Vec<Answers> = text.lines().take(200).map(|line| replay.feed(line)).collect();
        answers
    };
    let answers = run();
    for (line, answers) in text.lines().zip(&answers) {
        check(line, answers);
    }
    assert_eq!(answers, run(), "equal input, equal seed");
}

fn check(line: &str, answers: &Answers) {
    for note in &answers.notes {
        assert!(!note.contains(char::is_control), "a note is one line: {note:?}");
    }
    let asked: Option<Value> = serde_json::from_str(line).ok();
    let id = asked.as_ref().and_then(|line| line.get("request")?.get("id"));
    match answers.out.as_slice() {
        [] => assert!(!answers.notes.is_empty() || id.is_none(), "a request without an answer"),
        [one] => {
            let out: Value = serde_json::from_str(one).expect("JSON");
            assert_eq!(out.get("id"), id, "the id goes back as it came");
            let action = out["action"].as_str().expect("an action");
            assert!(["route", "reply", "pass"].contains(&action), "{action}");
            assert_eq!(action == "route", out.get("pod").is_some());
            assert_eq!(out.get("pod"), out.get("endpoints").and_then(|list| list.get(0)));
            assert_eq!(action == "reply", out.get("status").is_some());
            assert!(!one.contains('\n'));
        }
        many => panic!("{} answers to one line", many.len()),
    }
}
