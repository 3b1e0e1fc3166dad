//! `berth validate` as a person or a pipeline runs it.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::io::Write;
use std::process::{Command, Output, Stdio};

fn validate(document: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_berth"))
        .args(["validate", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(document).unwrap();
    child.wait_with_output().unwrap()
}

#[track_caller]
fn check(document: &str, code: i32, printed: &str) {
    let output = validate(document.as_bytes());
    assert_eq!(String::from_utf8_lossy(&output.stdout), printed);
    assert_eq!(output.status.code(), Some(code));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn a_valid_config_is_summed_up() {
    check(
        r#"{"pools": [{"name": "llama", "discovery": {"static": ["10.0.0.1:8000", "10.0.0.2:8000"]}}]}"#,
        0,
        "\
valid: 1 pool
pool llama: 2 pods; engine detected; models learned from the pods
  scraped every 1s (patience 1s), models every 10s, a reading counts for 5s
bodies:  up to 768KiB of a request are held
trusted: no steering header; every copy is removed
",
    );
    check(
        r#"{
          "pools": [
            {"name": "a", "engine": "llama-cpp", "models": ["m", "n"], "discovery": {"static": ["10.0.0.1:8000"]}},
            {"name": "b", "discovery": {"envoy_admin": {"cluster": "c"}}, 
             "scrape": {"interval": "2500ms", "headers": {"authorization": {"env": "KEY_HEADER"}}}}
          ],
          "models": {"near_names": true, "hidden": ["n"]},
          "rewrites": [{"from": "gpt", "to": [{"model": "m", "weight": 9}, {"model": "n", "weight": 1}], "sticky": "user"},
                       {"from": "*", "to": [{"model": "m"}]}],
          "trust": {"headers": ["x-session-id"]}, "body": {"hold": "16MiB"}, "status": {"decision_header": true}
        }"#,
        0,
        "\
valid: 2 pools
pool a: 1 pod; engine llama-cpp; models m, n and what the pods list
  scraped every 1s (patience 1s), models every 10s, a reading counts for 5s
pool b: the hosts of cluster c, listed every 1s; engine detected; models learned from the pods
  scraped every 2500ms (patience 1s), models every 10s, a reading counts for 12500ms
  scrapes send authorization from the variable KEY_HEADER
pools:   the proxy's routes must lead by the header x-berth-pool; without it to pool a
rewrite: gpt -> m (9/10), n (1/10), the same for all requests of a user
rewrite: every other name -> m
models:  near names are suggested, 1 name hidden
bodies:  up to 16MiB of a request are held
trusted: x-session-id; every other steering header is removed
shown:   every response has x-berth-decision
",
    );
}

#[test]
fn a_config_for_nginx_says_what_is_lost_there() {
    #[track_caller]
    fn check(host: &str, lost: &str) {
        let pool = r#"{"name": "p", "discovery": {"static": ["10.0.0.1:8000"]}}"#;
        let output = validate(format!(r#"{{"host": "{host}", "pools": [{pool}]}}"#).as_bytes());
        let printed = String::from_utf8_lossy(&output.stdout);
        let line = printed.lines().find(|line| line.starts_with("host:"));
        assert_eq!(
            line.is_some_and(|line| line.contains(lost)),
            !lost.is_empty(),
            "{printed}"
        );
    }
    check("envoy", "");
    check("nginx", "no prefix index");
    check("kong", "at the second failure");
    check("apisix", "no pod is read");
}

#[test]
fn what_an_operator_asks_of_a_pool_is_summed_up() {
    check(
        r#"{"pools": [{"name": "llama", "discovery": {"static": ["10.0.0.1:8000"]}, "routing": {
             "affinity": {"by": "cookie", "key": {"env": "SECRET"}}, "require": ["role=decode", "tier=gold"],
             "retry_apart": "zone", "max_requests": 8, "max_tokens": 4000, "slow_start": "1m"}}]}"#,
        0,
        "\
valid: 1 pool
pool llama: 1 pod; engine detected; models learned from the pods
  scraped every 1s (patience 1s), models every 10s, a reading counts for 5s
  sessions stay by a cookie for 5m, sealed with the variable SECRET
  only pods with role=decode, tier=gold
  retries go to another zone
  a pod has at most 8 requests, 4000 KV tokens
  a new pod gets its share within 1m
bodies:  up to 768KiB of a request are held
trusted: no steering header; every copy is removed
",
    );
}

#[test]
fn a_config_that_hands_over_says_what_it_needs() {
    let output = validate(
        br#"{"pools": [{"name": "p", "discovery": {"static": ["10.0.0.1:8000"]}}], "body": {"mode": "hand-over"}}"#,
    );
    let printed = String::from_utf8_lossy(&output.stdout);
    let line = "up to 768KiB of a request are read as they pass; a filter behind Berth must hold the headers";
    assert!(printed.contains(line), "{printed}");
}

#[test]
fn every_error_has_a_line() {
    check(
        r#"{"pools": [{"name": "A", "discovery": {"static": ["pod:80"]}}]}"#,
        1,
        "\
pools[0].name: \"A\": must be 1 to 63 of `a-z`, `0-9` and `-`, not starting with `-`
pools[0].discovery.static[0]: \"pod:80\": must be ip:port, for example 10.0.0.1:8000 or [fd00::1]:8000; names are not accepted
",
    );
    check(
        "{\"pools\": [],}",
        1,
        "line 1 column 14: '}': not JSON (trailing comma): remove the comma before the closing bracket\n",
    );
}

#[test]
fn a_file_that_cannot_be_read_is_told_apart_from_a_wrong_one() {
    let output = Command::new(env!("CARGO_BIN_EXE_berth"))
        .args(["validate", "no-such-file.json"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot read no-such-file.json"));
    assert!(output.stdout.is_empty());
}

#[test]
fn a_file_is_read_by_its_name() {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("validate-empty.json");
    std::fs::write(&path, "{}").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_berth"))
        .arg("validate")
        .arg(&path)
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(
        printed,
        "pools: absent: required, must be a list of 1 to 64 pools with different names\n"
    );
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn what_is_asked_for_pods_is_told_and_no_secret() {
    let output = validate(
        br#"{"pools": [
            {"name": "a", "discovery": {"kubernetes": {"cluster": "api", "namespace": "prod", "service": "llama",
                "headers": {"authorization": {"env": "TOKEN"}}}}},
            {"name": "b", "discovery": {"json": {"cluster": "inventory", "path": "/pods", "interval": "5s"}}}]}"#,
    );
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    for line in [
        "pool a: the EndpointSlices of prod/llama, asked of cluster api every 2s;",
        "  discovery sends authorization from the variable TOKEN\n",
        "pool b: the list at /pods of cluster inventory, read every 5s;",
    ] {
        assert!(printed.contains(line), "{printed}");
    }
}

#[test]
fn help_has_an_example() {
    let output = Command::new(env!("CARGO_BIN_EXE_berth"))
        .args(["validate", "--help"])
        .output()
        .unwrap();
    let help = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        help.contains("| berth validate -") && help.contains("Exit codes"),
        "{help}"
    );
}
