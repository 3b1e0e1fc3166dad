//! Names of models: pools behind one listener, and names that are replaced on the way and come back.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use berth_shared_state::names;
use berth_tests_e2e::client::{Answer, Client, whole};
use berth_tests_e2e::envoy::{Envoy, free_port, render, scratch};
use berth_tests_e2e::rig::Setup;
use berth_tests_simulator::server::{Fault, Simulator};
use http_body_util::BodyExt;
use hyper::HeaderMap;
use hyper::body::{Bytes, Frame};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::support::{CHAT, JSON, chat, hash, pod, pods, streamed};

/// The body that a pod must get in place of the client's.
fn rewritten(body: &str) -> Vec<u8> {
    body.replace("\"model\":\"gpt\"", "\"model\":\"llama\"").into_bytes()
}

/// A chat with an image of so many bytes.
fn image(bytes: usize) -> String {
    let url = format!("data:image/png;base64,{}", "iVBORw0K".repeat(bytes / 8));
    let content = json!([{"type": "image_url", "image_url": {"url": url}}]);
    format!(r#""messages":[{{"role":"user","content":{content}}}],"max_tokens":1"#)
}

fn alias() -> Value {
    json!({"rewrites": [{"from": "gpt", "to": [{"model": "llama"}]}]})
}

#[tokio::test]
async fn a_name_is_replaced_on_the_way_and_comes_back() -> Result<()> {
    let rig = Setup::new("renamed", pods(2))
        .config(alias())
        .edit(
            "explicit_http_config: { http_protocol_options: {} }",
            "explicit_http_config: { http2_protocol_options: {} }",
        )
        .start()
        .await?;
    let bodies = [
        chat("gpt", "short", 20, 4).to_string(),
        // Many reads of the proxy, and the name stands behind them.
        format!(r#"{{{},"model":"gpt"}}"#, image(2 << 20)),
        // More than may be held, and the name stands in its start.
        format!(r#"{{"model":"gpt",{}}}"#, image(17 << 20)),
    ];
    for (client, protocol) in [(rig.client(), "HTTP/1.1"), (Client::http2(rig.envoy.gateway), "HTTP/2")] {
        for body in &bodies {
            let packed = ("accept-encoding", "gzip");
            let sent = body.clone().into_bytes();
            let answer = client.send("POST", CHAT, &[JSON, packed], sent).await?;
            arrived(&rig, protocol, body, &answer)?;
        }
    }
    // A body that ends with trailers is decided when they come.
    let (sender, frames) = mpsc::unbounded_channel();
    for piece in bodies[0].as_bytes().chunks(30) {
        sender.send(Frame::data(Bytes::copy_from_slice(piece)))?;
    }
    let mut trailers = HeaderMap::new();
    trailers.insert("x-checksum", "42".parse()?);
    sender.send(Frame::trailers(trailers))?;
    drop(sender);
    let client = Client::http2(rig.envoy.gateway);
    let answer = client.send_frames(CHAT, &[JSON, ("te", "trailers")], frames).await?;
    arrived(&rig, "with trailers", &bodies[0], &answer)?;
    // A retry sends the same body.
    for name in ["a", "b"] {
        let fault = Fault::InferenceStatus {
            status: 503,
            times: Some(1),
        };
        rig.pod(name)?.set_fault(fault).await;
    }
    let sent = bodies[0].clone().into_bytes();
    let answer = rig.client().send("POST", CHAT, &[JSON], sent).await?;
    arrived(&rig, "retried", &bodies[0], &answer)?;
    // What was not replaced stays: the answer, its length, and its coding.
    let answer = rig.client().post(CHAT, &chat("llama", "itself", 20, 1)).await?;
    assert_eq!((answer.status, &answer.json()["model"]), (200, &json!("llama")));
    ensure!(!answer.header("content-length").is_empty());
    Ok(())
}

/// The pod got the target's name and the same bytes else; the client sees its own name.
fn arrived(rig: &berth_tests_e2e::rig::Rig, case: &str, body: &str, answer: &Answer) -> Result<()> {
    ensure!(answer.status == 200, "{case}: {} {}", answer.status, answer.text());
    assert_eq!(answer.json()["model"], "gpt", "{case}: {}", answer.text());
    ensure!(!answer.text().contains("llama"), "{case}: {}", answer.text());
    let received = rig.received(answer.pod(), CHAT)?.pop().context("nothing received")?;
    let expected = rewritten(body);
    assert_eq!(
        (received.body_bytes, received.body_hash),
        (expected.len(), hash(&expected)),
        "{case}"
    );
    assert_eq!(received.header(names::MODEL_NAME), Some("gpt"), "{case}");
    assert_eq!(received.header(names::BASE_MODEL_NAME), Some("llama"), "{case}");
    assert_eq!(received.header("accept-encoding"), None, "{case}");
    Ok(())
}

#[tokio::test]
async fn the_name_comes_back_in_a_stream_that_is_not_held() -> Result<()> {
    let rig = Setup::new("renamed-stream", pods(2)).config(alias()).start().await?;
    let mut response = rig.client().stream(CHAT, &streamed("gpt", "pieces", 20, 400)).await?;
    assert_eq!(response.status(), 200);
    let name = response.headers()["x-simulator-pod"].to_str()?.to_owned();
    let first = response.body_mut().frame().await.context("no piece")??;
    let mut text = String::from_utf8(first.into_data().unwrap_or_default().to_vec())?;
    tokio::time::timeout(Duration::from_millis(1), rig.pod(&name)?.wait_in_flight(1))
        .await
        .context("the first piece came when the answer was over")?;
    let rest = whole(response).await?;
    text.push_str(&rest.text());
    ensure!(text.ends_with("data: [DONE]\n\n"), "{text}");
    let (named, events) = (
        text.matches("\"model\":\"gpt\"").count(),
        text.matches("data: {").count(),
    );
    ensure!(named == events && events > 400, "{named} of {events} events");
    ensure!(!text.contains("llama"), "{text}");
    Ok(())
}

/// A pod for each of two pools, and what `berth render` makes of them.
struct Two {
    // They live as long as this.
    _pods: [Simulator; 2],
    config: Value,
    name: &'static str,
}

impl Two {
    /// Pod a has the first model; pod b the second, and the adapter `sql`. `keys` are more of pool `two`.
    async fn start(name: &'static str, models: [&str; 2], keys: Value) -> Result<Self> {
        let (mut first, mut second) = (pod("a", &[]), pod("b", &["sql"]));
        (first.model, second.model) = (models[0].to_owned(), models[1].to_owned());
        let pods = [Simulator::start(first).await?, Simulator::start(second).await?];
        let pool = |name: &str, pod: &Simulator| json!({"name": name, "discovery": {"static": [pod.address().to_string()]}, "scrape": {"interval": "200ms"}});
        let mut two = pool("two", &pods[1]);
        for (key, value) in keys.as_object().into_iter().flatten() {
            two[key] = value.clone();
        }
        let config = json!({"pools": [pool("one", &pods[0]), two], "status": {"decision_header": true}});
        Ok(Self {
            _pods: pods,
            config,
            name,
        })
    }

    /// An Envoy in front of them, its configuration edited.
    async fn envoy(&self, edit: impl Fn(String) -> Result<String>) -> Result<Envoy> {
        let folder = scratch(self.name)?;
        let file = folder.join("berth.json");
        fs::write(&file, self.config.to_string())?;
        let (gateway, admin) = (free_port()?, free_port()?);
        let yaml = edit(render(&file, gateway, admin, &[]).await?)?;
        Envoy::start(&folder, &yaml, gateway, admin, &[]).await
    }
}

/// Waits until the adapter of the second pool is known.
async fn both_known(envoy: &Envoy) -> Result<()> {
    envoy
        .until("both pools", async || {
            let answer = envoy.client().post(CHAT, &chat("sql", "x", 2, 1)).await?;
            Ok((answer.status, answer.pod(), answer.decision("pool")) == (200, "b", "two"))
        })
        .await
}

#[tokio::test]
async fn a_route_of_the_proxy_leads_to_its_pool() -> Result<()> {
    let two = Two::start("by-route", ["llama", "llama"], json!({"routes": ["team-b"]})).await?;
    let route = "routes:
                        - name: team-b
                          match: { prefix: /, headers: [{ name: x-team, string_match: { exact: b } }] }
                          route: { cluster: two }";
    let envoy = two.envoy(|yaml| Ok(yaml.replacen("routes:", route, 1))).await?;
    both_known(&envoy).await?;
    let client = envoy.client();
    let body = || chat("llama", "x", 2, 1).to_string().into_bytes();
    for _ in 0..4 {
        let led = client.send("POST", CHAT, &[JSON, ("x-team", "b")], body()).await?;
        assert_eq!((led.pod(), led.decision("pool")), ("b", "two"));
        let free = client.send("POST", CHAT, &[JSON], body()).await?;
        assert_eq!(
            (free.pod(), free.decision("pool")),
            ("a", "one"),
            "the first that has it"
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_client_does_not_choose_the_pool() -> Result<()> {
    let two = Two::start("pools", ["llama", "large"], json!({})).await?;
    // Where the proxy does not remove the header before it chooses a route, Berth makes it choose again.
    let early = |yaml: String| {
        let (before, rest) = yaml
            .split_once("early_header_mutation_extensions:")
            .context("not rendered")?;
        let (_, after) = rest.split_once("http_filters:").context("not rendered")?;
        Ok(format!("{before}http_filters:{after}"))
    };
    chooses_no_pool(&two.envoy(Ok).await?).await?;
    chooses_no_pool(&two.envoy(early).await?).await?;
    Ok(())
}

async fn chooses_no_pool(envoy: &Envoy) -> Result<()> {
    both_known(envoy).await?;
    let client = envoy.client();
    // Also where Berth looks at nothing, so that the route is chosen by what the client sent.
    let spoofed = (names::POOL, "two");
    type Case<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], Vec<u8>);
    let cases: [Case<'_>; 3] = [
        (
            "routed",
            "POST",
            &[JSON, spoofed],
            chat("llama", "x", 2, 1).to_string().into_bytes(),
        ),
        (
            "passed",
            "POST",
            &[("content-type", "text/plain"), spoofed],
            b"{\"model\":\"large\"}".to_vec(),
        ),
        ("no body", "GET", &[spoofed], Vec::new()),
    ];
    for (case, method, headers, body) in cases {
        let answer = client.send(method, CHAT, headers, body).await?;
        assert_eq!(answer.pod(), "a", "{case}: {} {}", answer.status, answer.text());
    }
    let answer = client.post(CHAT, &chat("nobody", "x", 2, 1)).await?;
    assert_eq!(answer.status, 404, "{}", answer.text());
    Ok(())
}
