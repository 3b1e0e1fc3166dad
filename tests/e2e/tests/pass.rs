//! What is none of Berth's business goes through unchanged, and is counted.

use anyhow::{Context, Result, ensure};
use berth_tests_e2e::client::Client;
use berth_tests_e2e::rig::Setup;
use serde_json::json;
use tokio::net::TcpStream;

use crate::raw::{RawPod, exchange};
use crate::support::{CHAT, JSON, hash, pods};

/// Method, path, headers, body, and the reason that is counted.
type Case = (
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str)],
    &'static [u8],
    &'static str,
);

const CASES: [Case; 9] = [
    ("GET", "/v1/models", &[], b"", "not-inference"),
    ("POST", "/health", &[JSON], b"{\"model\":\"llama\"}", "not-inference"),
    ("GET", CHAT, &[], b"", "method"),
    ("PUT", CHAT, &[JSON], b"{\"model\":\"llama\"}", "method"),
    ("POST", CHAT, &[JSON], b"", "no-body"),
    // Not gzip at all: nobody looks inside.
    (
        "POST",
        CHAT,
        &[JSON, ("content-encoding", "gzip")],
        b"\x1f\x8b\x08\x00\xff\xfe\x00rest",
        "compressed-body",
    ),
    (
        "POST",
        CHAT,
        &[("content-type", "text/plain")],
        b"{\"model\":\"llama\"}",
        "content-type",
    ),
    (
        "POST",
        CHAT,
        &[("content-type", "multipart/form-data; boundary=x")],
        b"--x--\r\n",
        "content-type",
    ),
    (
        "POST",
        CHAT,
        &[("content-type", "application/grpc")],
        b"\0\0\0\0\x04\x08\x96\x01\xff",
        "grpc",
    ),
];

#[tokio::test]
async fn what_is_no_inference_passes_untouched() -> Result<()> {
    let rig = Setup::new("pass", pods(2))
        .config(json!({"models": {"list": false}}))
        .render(&["--forward", "/health"])
        .start()
        .await?;
    for (client, protocol) in [(rig.client(), "HTTP/1.1"), (Client::http2(rig.envoy.gateway), "HTTP/2")] {
        for (method, path, headers, body, reason) in CASES {
            let case = format!("{protocol} {method} {path} ({reason})");
            let before = rig.count(&format!("passed.{reason}")).await?;
            let answer = client
                .send(method, path, headers, body.to_vec())
                .await
                .context(case.clone())?;
            ensure!(["a", "b"].contains(&answer.pod()), "{case}: {answer:?}");
            ensure!(answer.header("x-berth-decision").is_empty(), "{case}: {answer:?}");
            assert_eq!(rig.count(&format!("passed.{reason}")).await?, before + 1, "{case}");
            let received = rig.received(answer.pod(), path)?.pop().context(case.clone())?;
            assert_eq!(
                (received.method.as_str(), received.body_hash),
                (method, hash(body)),
                "{case}"
            );
            for (name, value) in headers {
                ensure!(
                    received.headers.contains(&((*name).to_owned(), (*value).to_owned())),
                    "{case}: {received:?}"
                );
            }
            ensure!(
                !received.headers.iter().any(|(name, _)| name.starts_with("x-gateway")),
                "{case}: {received:?}"
            );
        }
    }
    // A path that is not forwarded ends in the gateway.
    let answer = rig
        .client()
        .send("POST", "/update_weights", &[JSON], b"{}".to_vec())
        .await?;
    assert_eq!((answer.status, answer.pod()), (404, ""));
    Ok(())
}

#[tokio::test]
async fn tunnels_pass_untouched() -> Result<()> {
    let pod = RawPod::start().await?;
    let rig = Setup::new("tunnels", Vec::new())
        .address(pod.address)
        .edit(
            "stat_prefix: gateway\n",
            "stat_prefix: gateway\n                upgrade_configs: [{ upgrade_type: websocket }, { upgrade_type: CONNECT }]\n",
        )
        .edit(
            "                      routes:\n",
            "                      routes:\n                        - match: { connect_matcher: {} }\n                          route: { cluster: demo, upgrade_configs: [{ upgrade_type: CONNECT, connect_config: {} }] }\n",
        )
        .unread()
        .start()
        .await?;
    let before = rig.count("passed.upgrade").await?;
    let mut socket = TcpStream::connect(rig.envoy.gateway).await?;
    let request = format!(
        "GET {CHAT} HTTP/1.1\r\nhost: x\r\nconnection: keep-alive, Upgrade\r\nupgrade: websocket\r\nx-gateway-destination-endpoint: 192.0.2.1:9\r\n\r\n"
    );
    let answer = exchange(&mut socket, &request).await?;
    ensure!(answer.starts_with("HTTP/1.1 101"), "{answer}");
    let echo = exchange(&mut socket, "bytes \u{0} over the tunnel\r\n\r\n").await?;
    assert_eq!(echo, "bytes \u{0} over the tunnel\r\n\r\n");
    assert_eq!(rig.count("passed.upgrade").await?, before + 1);
    let heads = pod.heads();
    ensure!(heads.len() == 1 && !heads[0].contains("192.0.2.1"), "{heads:?}");

    let before = rig.count("passed.connect").await?;
    let mut socket = TcpStream::connect(rig.envoy.gateway).await?;
    let answer = exchange(&mut socket, "CONNECT pod:80 HTTP/1.1\r\nhost: pod:80\r\n\r\n").await?;
    ensure!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let inside = exchange(&mut socket, "GET /inside HTTP/1.1\r\nhost: x\r\n\r\n").await?;
    ensure!(
        inside.starts_with("HTTP/1.1 404") && pod.heads()[1].starts_with("GET /inside "),
        "{inside}"
    );
    assert_eq!(rig.count("passed.connect").await?, before + 1);
    Ok(())
}
