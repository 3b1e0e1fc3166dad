//! `berth replay` as another program drives it.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

fn config(name: &str, document: &str) -> PathBuf {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&file, document).unwrap();
    file
}

fn start(config: &PathBuf, more: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_berth"))
        .args(["replay", "--config"])
        .arg(config)
        .args(more)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn each_answer_comes_before_the_next_event_is_needed() {
    let file = config(
        "replay.json",
        r#"{"pools": [{"name": "llama", "discovery": {"static": ["10.0.0.1:8000"]}}]}"#,
    );
    let mut child = start(&file, &["--seed", "3", "--epoch", "1700000000.5", "--workers", "2"]);
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    for id in 0..3 {
        let body = r#"{\"model\":\"m\",\"prompt\":\"hello\"}"#;
        let event = format!(r#"{{"t":{id}.5,"request":{{"id":{id},"path":"/v1/completions","body":"{body}"}}}}"#);
        writeln!(input, "{event}").unwrap();
        let line = output.next().unwrap().unwrap();
        let start =
            format!(r#"{{"id":{id},"action":"route","pod":"10.0.0.1:8000","endpoints":["10.0.0.1:8000"],"why":"#);
        assert!(line.starts_with(&start), "{line}");
    }
    input.write_all(b"\xff\xfe not text\n{\"t\":9,\"weather\":{}}").unwrap();
    drop(input);
    assert!(output.next().is_none());
    let end = child.wait_with_output().unwrap();
    assert_eq!(end.status.code(), Some(0));
    let notes = String::from_utf8_lossy(&end.stderr);
    assert_eq!(notes.lines().count(), 2, "{notes}");
    assert!(notes.starts_with("line 4: ") && notes.contains("\nline 5: "), "{notes}");
}

#[test]
fn a_config_that_is_not_valid_or_not_there_ends_before_the_first_event() {
    let file = config("replay-bad.json", r#"{"pools": []}"#);
    let end = start(&file, &[]).wait_with_output().unwrap();
    assert_eq!(end.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&end.stderr).starts_with("pools: "));
    let end = start(&PathBuf::from("/nonexistent.json"), &[])
        .wait_with_output()
        .unwrap();
    assert_eq!(end.status.code(), Some(2));
}
