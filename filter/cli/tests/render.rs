//! `berth render istio` and `envoy-gateway`: the folders hold what is rendered for their configs.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn render(config: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
    command.arg("render").args(args).arg("--config").arg(config);
    command.output().unwrap()
}

#[track_caller]
fn check(folder: &str, args: &[&str]) {
    let folder = root().join(folder);
    let output = render(&folder.join("berth.json"), args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rendered = String::from_utf8(output.stdout).unwrap();
    let file = folder.join("berth.yaml");
    if std::env::var_os("BERTH_BLESS").is_some() {
        fs::write(&file, &rendered).unwrap();
    }
    assert!(
        fs::read_to_string(&file).unwrap_or_default() == rendered,
        "{} differs from what is rendered; write it anew with\n    BERTH_BLESS=1 cargo test -p berth-filter-cli --test render",
        file.display()
    );
    assert!(!has_place(&rendered), "a place was not filled");
}

/// Whether a place of a template is left, such as `@CLUSTER@`.
fn has_place(text: &str) -> bool {
    let place = |word: &str| word.chars().all(|c| c.is_ascii_uppercase() || c == '_') && !word.is_empty();
    text.split('@').skip(1).any(place)
}

#[test]
fn the_folders_hold_what_is_rendered() {
    check("istio/hand-over", &["istio", "--gateway", "llama"]);
    check("istio/hold", &["istio", "--gateway", "llama", "--way", "hold"]);
    check("istio/mesh", &["istio", "--gateway", "llama"]);
    check("istio/plugins", &["istio", "--gateway", "llama", "--way", "plugins"]);
    check("envoy-gateway", &["envoy-gateway", "--gateway", "llama"]);
}

/// Renders a document from a file of its own.
fn render_text(document: &str, args: &[&str]) -> Output {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let file = std::env::temp_dir().join(format!("berth-render-{}-{number}.json", std::process::id()));
    fs::write(&file, document).unwrap();
    let output = render(&file, args);
    fs::remove_file(&file).unwrap();
    output
}

#[track_caller]
fn refuses(document: &str, args: &[&str], why: &str) {
    let output = render_text(document, args);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains(why), "{error}");
}

#[test]
fn what_cannot_work_there_is_refused_with_the_remedy() {
    let found = |cluster: &str, more: &str| {
        format!(
            r#"{{"pools": [{{"name": "p", "discovery": {{"envoy_admin": {{"cluster": "{cluster}", "admin": "prometheus_stats"}}}}}}]{more}}}"#
        )
    };
    let istio = ["istio", "--gateway", "llama"];
    let eg = ["envoy-gateway", "--gateway", "llama"];
    let fixed = r#"{"pools": [{"name": "p", "discovery": {"static": ["10.0.0.1:8000"]}}]}"#;
    refuses(fixed, &istio, "use discovery.envoy_admin");
    refuses(fixed, &eg, "use discovery.envoy_admin");
    refuses(&found("llama", ""), &istio, "named outbound|8000||");
    refuses(&found("llama", ""), &eg, "named httproute/default/llama/rule/0");
    refuses(
        &found("httproute/models/llama/rule/0", ""),
        &eg,
        "say --namespace models",
    );
    let over = [fixed.trim_end_matches('}'), r#", "body": {"mode": "hand-over"}}"#].concat();
    refuses(&over, &["envoy"], "leave it out");
    let service = "outbound|8000||llama.default.svc.cluster.local";
    refuses(
        &found(service, r#", "body": {"mode": "hold"}"#),
        &istio,
        "body.mode is another than these resources are for",
    );
    refuses(
        &found(service, "").replace("prometheus_stats", "other"),
        &istio,
        r#"is "prometheus_stats""#,
    );
    let scrape = |scrape: &str| found(service, "").replace("\"p\",", &format!("\"p\", \"scrape\": {scrape},"));
    refuses(
        &scrape(r#"{"cluster": "outbound|8000|x|llama.default.svc.cluster.local"}"#),
        &istio,
        "the subset that is made here is \"outbound|8000|berth-scrape|",
    );
    refuses(
        &scrape(r#"{"address_header": "x-gateway-destination-endpoint"}"#),
        &["istio", "--gateway", "llama", "--way", "plugins"],
        "the one that is made here is \"outbound|8000||*.berth.internal\"",
    );
    refuses(
        &scrape(r#"{"address_header": "x-gateway-destination-endpoint"}"#),
        &istio,
        "address_header must be \"x-envoy-original-dst-host\"",
    );
}

/// Envoy refuses a key that stands twice.
#[test]
fn two_uses_of_one_variable_are_one_key() {
    #[track_caller]
    fn check(cluster: &str, args: &[&str], keys: &str, times: usize) {
        let document = format!(
            r#"{{"pools": [{{"name": "p",
                "discovery": {{"envoy_admin": {{"cluster": "{cluster}", "admin": "prometheus_stats"}}}},
                "routing": {{"affinity": {{"by": "cookie", "key": {{"env": "A"}}}}}},
                "scrape": {{"headers": {{"authorization": {{"env": "B"}}, "x-key": {{"env": "B"}}}}}}}}]}}"#
        );
        let output = render_text(&document, args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let rendered = String::from_utf8(output.stdout).unwrap();
        assert_eq!(rendered.matches(keys).count(), times, "{rendered}");
    }
    let service = "outbound|8000||llama.default.svc.cluster.local";
    let plugin =
        "    env:\n      - { name: \"A\", valueFrom: HOST }\n      - { name: \"B\", valueFrom: HOST }\n  pluginConfig:";
    check(service, &["istio", "--gateway", "llama"], plugin, 1);
    let keys = r#"{ host_env_keys: ["A", "B"] }"#;
    check(service, &["istio", "--gateway", "llama", "--way", "hold"], keys, 1);
    let policy = r#"        hostKeys: ["A", "B"]"#;
    let route = "httproute/default/llama/rule/0";
    check(route, &["envoy-gateway", "--gateway", "llama"], policy, 1);
    // Service and filter.
    check("llama", &["envoy", "--dns", "llama:8000"], keys, 2);
}
