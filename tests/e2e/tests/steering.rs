//! Nobody steers but who is trusted: on every path, whatever a client sends.

use anyhow::{Context, Result, ensure};
use berth_shared_state::names;
use berth_tests_e2e::client::Client;
use berth_tests_e2e::rig::{Rig, Setup};
use serde_json::json;

use crate::raw::RawPod;
use crate::support::{CHAT, JSON, busy, chat, full, idle, lands, once_read, pod, pods, routed};

/// What a client may not say, by its beginnings.
const OURS: [&str; 3] = ["x-gateway", "x-envoy-original-dst", "x-llm-d"];

/// Every header that could steer, in upper case and twice, each naming `target`.
fn spoofed(target: &str) -> Vec<(String, String)> {
    let twice = |name: &str| {
        [
            (name.to_ascii_uppercase(), target.to_owned()),
            (name.to_owned(), format!("{target},{target}")),
        ]
    };
    names::STRIPPED.iter().flat_map(|name| twice(name)).collect()
}

/// Sends every kind of request with the spoofed headers; the pod that answered each.
async fn all_kinds(rig: &Rig, client: &Client, target: &str) -> Result<Vec<(&'static str, String)>> {
    let spoofed = spoofed(target);
    let body = chat("llama", "spoofed", 20, 1).to_string().into_bytes();
    let kinds = [
        ("held", "POST", CHAT, JSON, body.clone()),
        ("no inference", "GET", CHAT, ("accept", "*/*"), Vec::new()),
        ("no body", "POST", CHAT, JSON, Vec::new()),
        ("compressed", "POST", CHAT, ("content-encoding", "gzip"), body.clone()),
        ("another type", "POST", CHAT, ("content-type", "text/plain"), body),
    ];
    let mut pods = Vec::new();
    for (kind, method, path, header, body) in kinds {
        let mut headers: Vec<(&str, &str)> = spoofed.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        headers.push(header);
        let answer = client.send(method, path, &headers, body).await?;
        ensure!(
            !answer.pod().is_empty(),
            "{kind}: no pod answered: {} {}",
            answer.status,
            answer.text()
        );
        let received = rig.received(answer.pod(), path)?.pop().context("nothing received")?;
        for (name, value) in &received.headers {
            let ours = OURS.iter().any(|start| name.starts_with(start))
                || name.starts_with("x-berth")
                || name == names::SESSION;
            let written = kind == "held"
                && matches!(
                    name.as_str(),
                    names::DESTINATION_ENDPOINT | names::MODEL_NAME | names::BASE_MODEL_NAME
                );
            ensure!(
                !ours || (written && !value.contains("192.0.2.1")),
                "{kind}: the pod received {name}: {value}"
            );
        }
        let copies = received
            .headers
            .iter()
            .filter(|(name, _)| name == names::DESTINATION_ENDPOINT)
            .count();
        ensure!(copies == usize::from(kind == "held"), "{kind}: {copies} destinations");
        pods.push((kind, answer.pod().to_owned()));
    }
    Ok(pods)
}

#[tokio::test]
async fn a_client_never_steers() -> Result<()> {
    let stranger = RawPod::start().await?;
    let rig = once_read("spoofed", 2).await?;
    let scrapes = async || rig.envoy.stat("cluster.berth_scrape.upstream_rq_total").await;
    rig.until("the end of the first calls", async || {
        Ok(rig.stat("calls_open").await? == 0)
    })
    .await?;
    let before = scrapes().await?;
    for client in [rig.client(), Client::http2(rig.envoy.gateway)] {
        // An address outside, one that listens and is no pod, and a pod of the pool.
        for target in ["192.0.2.1:9", &stranger.address.to_string()] {
            all_kinds(&rig, &client, target).await?;
        }
        let b = rig.pod("b")?.address().to_string();
        let mut seen = Vec::new();
        // By lot: one of the five kinds misses `a` by chance once in 30 million runs.
        for _ in 0..28 {
            seen.extend(all_kinds(&rig, &client, &b).await?);
        }
        for kind in ["held", "no inference", "no body", "compressed", "another type"] {
            ensure!(
                seen.contains(&(kind, "a".to_owned())),
                "{kind}: always the pod that the client named: {seen:?}"
            );
        }
    }
    ensure!(stranger.heads().is_empty(), "{:?}", stranger.heads());
    // Nothing but Berth's own calls goes through the scrape cluster.
    assert_eq!(scrapes().await?, before);
    Ok(())
}

#[tokio::test]
async fn a_client_does_not_steer_where_berth_is_bypassed() -> Result<()> {
    let rig = Setup::new("bypassed", pods(2))
        .edit(
            "- name: berth\n                    typed_config",
            "- name: berth\n                    disabled: true\n                    typed_config",
        )
        .start()
        .await?;
    let b = rig.pod("b")?.address().to_string();
    let headers = [
        JSON,
        (names::DESTINATION_ENDPOINT, b.as_str()),
        (names::ORIGINAL_DST_HOST, b.as_str()),
    ];
    let mut pods = Vec::new();
    for _ in 0..12 {
        let body = chat("llama", "bypassed", 2, 1).to_string().into_bytes();
        let answer = rig.client().send("POST", CHAT, &headers, body).await?;
        let received = rig.received(answer.pod(), CHAT)?.pop().context("nothing received")?;
        ensure!(
            !received.headers.iter().any(|(_, value)| *value == b && value != "host"),
            "{received:?}"
        );
        pods.push(answer.pod().to_owned());
    }
    ensure!(pods.contains(&"a".to_owned()), "always the pod that the client named");
    Ok(())
}

/// Filters that leave what two headers of the test say where no client can write.
const TELLERS: &str = "- name: metadata
                    typed_config:
                      \"@type\": type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config
                      request_rules:
                        - header: x-test-subset
                          on_header_present: { metadata_namespace: test, key: pods, type: STRING }
                          remove: true
                  - name: state
                    typed_config:
                      \"@type\": type.googleapis.com/envoy.extensions.filters.http.set_filter_state.v3.Config
                      on_request_headers:
                        - object_key: model
                          factory_key: envoy.string
                          format_string: { text_format_source: { inline_string: \"%REQ(x-test-model)%\" } }
                          skip_if_empty: true
                  - name: berth
                    typed_config";

#[tokio::test]
async fn what_an_earlier_filter_left_is_believed_and_what_a_client_says_is_not() -> Result<()> {
    let rig = Setup::new("told", vec![pod("a", &["sql"]), pod("b", &[]), pod("c", &[])])
        .config(json!({"trust": {"filters": [
            {"input": names::ENDPOINT_SUBSET, "from": {"metadata": ["test", "pods"]}},
            {"input": names::MODEL_NAME, "from": {"filter_state": "model"}},
        ]}}))
        .edit("- name: berth\n                    typed_config", TELLERS)
        .start()
        .await?;
    rig.pin(&[("a", idle()), ("b", busy()), ("c", full())]).await?;
    let (b, c) = (rig.pod("b")?.address().to_string(), rig.pod("c")?.address().to_string());
    let client = rig.client();
    let ask = async |headers: &[(&str, &str)], model: &str| {
        let body = chat(model, "told", 20, 1).to_string().into_bytes();
        client.send("POST", CHAT, &[&[JSON], headers].concat(), body).await
    };
    for (headers, expected) in [
        (&[("x-test-subset", b.as_str())][..], "b"),
        (&[("x-test-subset", c.as_str())], "c"),
        (
            &[("x-test-subset", c.as_str()), (names::ENDPOINT_SUBSET, b.as_str())],
            "c",
        ),
        (&[(names::ENDPOINT_SUBSET, b.as_str())], "a"),
        (&[], "a"),
    ] {
        let answer = ask(headers, "llama").await?;
        assert_eq!((answer.status, answer.pod()), (200, expected), "{headers:?}");
    }
    // A body without a model gets the one that was left.
    let mut nameless = chat("", "told", 20, 1);
    nameless.as_object_mut().context("an object")?.remove("model");
    let headers = [JSON, ("x-test-model", "sql")];
    let answer = client
        .send("POST", CHAT, &headers, nameless.to_string().into_bytes())
        .await?;
    assert_eq!((answer.status, answer.pod()), (200, "a"), "{}", answer.text());
    let received = rig.received("a", CHAT)?.pop().context("nothing received")?;
    assert_eq!(received.header(names::MODEL_NAME), Some("sql"));
    Ok(())
}

#[tokio::test]
async fn a_trusted_subset_is_kept_to() -> Result<()> {
    let rig = Setup::new("subset", pods(3))
        .config(json!({"trust": {"headers": [names::ENDPOINT_SUBSET]}}))
        .start()
        .await?;
    rig.pin(&[("a", idle()), ("b", busy()), ("c", full())]).await?;
    let address = |name: &str| rig.pod(name).map(|pod| pod.address().to_string());
    let (b, c) = (address("b")?, address("c")?);
    let client = rig.client();
    let ask = async |subset: &str| {
        let body = chat("llama", "subset", 20, 1).to_string().into_bytes();
        client
            .send("POST", CHAT, &[JSON, (names::ENDPOINT_SUBSET, subset)], body)
            .await
    };
    assert_eq!(lands(&client, &chat("llama", "free", 20, 1)).await?, "a");
    for (subset, expected) in [(b.clone(), "b"), (c.clone(), "c"), (format!("{c}, {b}"), "b")] {
        let answer = ask(&subset).await?;
        assert_eq!((answer.status, answer.pod()), (200, expected), "{subset}");
        let received = rig.received(expected, CHAT)?.pop().context("nothing received")?;
        ensure!(
            !received.headers.iter().any(|(name, _)| name == names::ENDPOINT_SUBSET),
            "{received:?}"
        );
    }
    for nobody in ["", "192.0.2.1:9", "b"] {
        let answer = ask(nobody).await?;
        assert_eq!(
            (answer.status, answer.header("x-berth-reason")),
            (503, "subset-no-match"),
            "{nobody:?}"
        );
        assert_eq!(answer.json()["error"]["code"], "subset-no-match", "{}", answer.text());
        ensure!(!answer.header("retry-after").is_empty());
    }
    // A retry stays in the subset as well: b fails, and there is no other.
    rig.pod("b")?
        .set_fault(berth_tests_simulator::server::Fault::InferenceStatus {
            status: 503,
            times: None,
        })
        .await;
    let before = ["a", "c"].map(|name| rig.received(name, CHAT).map_or(0, |all| all.len()));
    assert_eq!(ask(&b).await?.status, 503);
    let after = ["a", "c"].map(|name| rig.received(name, CHAT).map_or(0, |all| all.len()));
    assert_eq!(before, after, "a pod outside of the subset was tried");
    assert_eq!(routed(&client, &chat("llama", "free", 20, 1)).await?.pod(), "a");
    Ok(())
}
