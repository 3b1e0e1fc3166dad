//! Lines of the replay protocol, through the whole of Berth.

use berth_filter_routing::replay::{Answers, Options, Replay};
use berth_shared_state::config::Config;
use serde_json::Value;

use crate::world;

/// The input is lines of events.
pub fn replay(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let run = |config: Config| {
        let options = Options {
            workers: 2,
            ..Options::default()
        };
        let mut replay = Replay::new(config, options);
        let mut answers: Vec<Answers> = text.lines().take(200).map(|line| replay.feed(line)).collect();
        answers.push(replay.finish());
        answers
    };
    let answers = run(world::config());
    for (line, answers) in text.lines().zip(&answers) {
        check(line, answers);
    }
    assert_eq!(answers, run(world::config()), "equal input, equal seed");
    let answers = run(world::queueing());
    assert_eq!(answers, run(world::queueing()), "equal input, equal seed");
    let lines = answers.iter().flat_map(|answers| &answers.out);
    let (mut held, mut left) = (0, 0);
    for line in lines {
        let line: Value = serde_json::from_str(line).expect("JSON");
        held += u32::from(line["action"] == "hold");
        left += u32::from(line["why"].get("waited").is_some());
    }
    assert!(left <= held, "{left} answers to {held} that waited");
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
