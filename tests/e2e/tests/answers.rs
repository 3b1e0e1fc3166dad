//! What clients and operators are told: refusals, reasons, access logs, stats.

use std::fs;

use anyhow::{Context, Result, ensure};
use berth_tests_e2e::client::Client;
use berth_tests_e2e::envoy::root;
use berth_tests_e2e::rig::{POOL, Setup};
use serde_json::json;

use crate::support::{CHAT, chat, pod, pods, routed};

const ACCESS_LOG: &str = r#"stat_prefix: gateway
                access_log:
                  - name: envoy.access_loggers.file
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog
                      path: "@folder@/access.log"
                      log_format: { text_format_source: { inline_string: "%RESPONSE_CODE% %REQ(:METHOD)% %FILTER_STATE(wasm.berth:PLAIN)%\n" } }
"#;

#[tokio::test]
async fn an_unknown_model_is_refused_in_the_clients_own_words() -> Result<()> {
    let rig = Setup::new("refused", vec![pod("a", &["sql"]), pod("b", &[])])
        .config(json!({"status": {"decision_header": false}}))
        .edit("stat_prefix: gateway\n", ACCESS_LOG)
        .start()
        .await?;
    let client = rig.client();
    let answer = client.post(CHAT, &chat("nobody", "x", 2, 1)).await?;
    assert_eq!((answer.status, answer.header("x-berth-reason")), (404, "model-unknown"));
    assert_eq!(answer.header("content-type"), "application/json");
    let error = answer.json()["error"].clone();
    assert_eq!(error["code"], "model_not_found");
    assert_eq!(error["type"], "invalid_request_error");
    assert_eq!(error["param"], "model");
    ensure!(
        error["message"].as_str().is_some_and(|text| text.contains("nobody")),
        "{error}"
    );

    let body = json!({"model": "nobody", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]});
    let answer = client.post("/v1/messages", &body).await?;
    assert_eq!((answer.status, answer.header("x-berth-reason")), (404, "model-unknown"));
    assert_eq!(answer.json()["type"], "error", "{}", answer.text());
    assert_eq!(answer.json()["error"]["type"], "not_found_error");
    assert_eq!(rig.stat("replied.model-unknown").await?, 2);
    assert_eq!(
        rig.pod("a")?.requests().iter().filter(|r| r.method == "POST").count(),
        0
    );

    // An adapter that is loaded now is found, without waiting for the next round.
    let loaded = json!({"lora_name": "late", "lora_path": "/models/late"});
    let pod = Client::new(rig.pod("b")?.address());
    assert_eq!(pod.post("/v1/load_lora_adapter", &loaded).await?.status, 200);
    rig.until("the new adapter", async || {
        let answer = client.post(CHAT, &chat("late", "x", 2, 1)).await?;
        Ok(answer.status == 200 && answer.pod() == "b")
    })
    .await?;

    // Not told unless configured.
    let answer = client.post(CHAT, &chat("llama", "quiet", 2, 1)).await?;
    assert_eq!((answer.status, answer.header("x-berth-decision")), (200, ""));
    client.get("/v1/models").await?;
    let log = rig.folder.join("access.log");
    rig.until("the access log", async || {
        Ok(fs::read_to_string(&log).is_ok_and(|text| text.contains("200 GET")))
    })
    .await?;
    let log = fs::read_to_string(log)?;
    let line = |start: &str| {
        log.lines()
            .rfind(|line| line.starts_with(start))
            .unwrap_or_default()
            .to_owned()
    };
    ensure!(line("404 POST").contains("reply=404;reason=model-unknown;"), "{log}");
    ensure!(line("200 POST").contains("pod=127.0.0.1:"), "{log}");
    assert_eq!(line("200 GET"), "200 GET reply=200;reason=models", "{log}");
    Ok(())
}

/// The stable stats of the README: name as it is written there, and kind.
fn documented() -> Result<Vec<(String, String)>> {
    let readme = fs::read_to_string(root().join("README.md"))?;
    let (_, table) = readme
        .split_once("| stable | kind | meaning |")
        .context("README has no table of stats")?;
    let mut stats = Vec::new();
    for line in table.lines().skip(2).take_while(|line| line.starts_with('|')) {
        let columns: Vec<&str> = line.split('|').map(str::trim).collect();
        let mut before = String::new();
        for name in columns[1].split('`').skip(1).step_by(2) {
            // `.passed` after `berth.pool.<pool>.replied` is its neighbour.
            let full = match name.strip_prefix('.') {
                Some(last) => {
                    let parent = before.strip_suffix(".<reason>").unwrap_or(&before);
                    format!(
                        "{}.{last}",
                        parent.rsplit_once('.').context("a short name comes first")?.0
                    )
                }
                None => name.to_owned(),
            };
            before.clone_from(&full);
            stats.push((full.replace("<pool>", POOL), columns[2].to_owned()));
        }
    }
    Ok(stats)
}

#[tokio::test]
async fn the_stats_of_the_readme_are_there_from_the_start() -> Result<()> {
    let rig = Setup::new("stats", pods(2))
        .config(json!({"admission": {"queue": {"enabled": true}}}))
        .start()
        .await?;
    routed(&rig.client(), &chat("llama", "stats", 2, 1)).await?;
    let page = Client::new(rig.envoy.admin).get("/stats/prometheus").await?.text();
    let stats = documented()?;
    ensure!(stats.len() >= 13, "{stats:?}");
    for (name, kind) in stats {
        let prometheus = name.replace("<priority>", "0").replace(['.', '-'], "_");
        let (start, exact) = match prometheus.split_once("<reason>") {
            Some((start, _)) => (start.to_owned(), false),
            None => (prometheus, true),
        };
        let found = page
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE "))
            .any(|line| {
                let (known, its_kind) = line.split_once(' ').unwrap_or_default();
                its_kind == kind
                    && if exact {
                        known == start
                    } else {
                        known.starts_with(&start)
                    }
            });
        ensure!(
            found,
            "README names {name} ({kind}), /stats/prometheus does not:\n{}",
            lines_of(&page, "berth")
        );
    }
    // The admin page has the names as they are written.
    ensure!(
        rig.envoy
            .stats("berth")
            .await?
            .contains(&format!("wasmcustom.berth.pool.{POOL}.routed: 1"))
    );
    Ok(())
}

fn lines_of(page: &str, part: &str) -> String {
    page.lines()
        .filter(|line| line.contains(part))
        .collect::<Vec<_>>()
        .join("\n")
}
