//! Bodies of every size and in every manner: what the pod gets is what the client sent.

use std::fmt::Write as _;

use anyhow::{Context, Result, ensure};
use berth_tests_e2e::client::{Answer, Client};
use berth_tests_e2e::rig::{Rig, Setup};
use berth_tests_simulator::server::SimulatorConfig;
use http_body_util::BodyExt;
use hyper::HeaderMap;
use hyper::body::{Bytes, Frame};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::raw::{exchange, head};
use crate::support::{CHAT, JSON, chat, hash, pod, routed};

const AUDIO: &str = "/v1/audio/transcriptions";

/// `a` serves the adapter, `b` does not.
fn two() -> Vec<SimulatorConfig> {
    vec![pod("a", &["sql"]), pod("b", &[])]
}

/// A chat request for the adapter with an image of so many bytes, the model behind it. Images cost the same whatever
/// their size, so it fits the context.
fn image(bytes: usize) -> Vec<u8> {
    let url = format!("data:image/png;base64,{}", "iVBORw0K".repeat(bytes / 8));
    let parts = json!([{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": url}}]);
    format!(r#"{{"messages":[{{"role":"user","content":{parts}}}],"max_tokens":2,"model":"sql"}}"#).into_bytes()
}

const FORM: (&str, &str) = ("content-type", "multipart/form-data; boundary=frontier");

/// A form with a file of so many bytes, the model behind it. The file is full of what is nearly a boundary.
fn form(bytes: usize) -> Vec<u8> {
    let mut body = b"--frontier\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\nContent-Type: audio/wav\r\n\r\n".to_vec();
    body.extend(b"\r\n--frontie\0\xff".repeat(bytes / 12));
    body.extend(b"\r\n--frontier\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nsql\r\n--frontier--\r\n");
    body
}

/// It was routed to the pod with the adapter, and the pod got these very bytes.
#[track_caller]
fn arrived_whole(rig: &Rig, what: &str, path: &str, answer: &Answer, body: &[u8]) -> Result<()> {
    ensure!(
        !answer.decision("pod").is_empty(),
        "{what}: not routed: {} {}",
        answer.status,
        answer.text()
    );
    assert_eq!(answer.pod(), "a", "{what}");
    let received = rig.received("a", path)?.pop().context("nothing received")?;
    assert_eq!(
        (received.body_bytes, received.body_hash),
        (body.len(), hash(body)),
        "{what}"
    );
    Ok(())
}

/// Sends a body in pieces of so many bytes, without a declared length; HTTP/1.1 makes chunks of them.
async fn pieces(client: &Client, body: &[u8], size: usize) -> Result<Answer> {
    let (sender, frames) = mpsc::unbounded_channel();
    for piece in body.chunks(size) {
        sender.send(Frame::data(Bytes::copy_from_slice(piece)))?;
    }
    drop(sender);
    client.send_frames(CHAT, &[JSON], frames).await
}

#[tokio::test]
async fn large_and_chunked_bodies_are_held_and_routed() -> Result<()> {
    let rig = Setup::new("bodies", two()).start().await?;
    let (one, two) = (rig.client(), Client::http2(rig.envoy.gateway));
    // One piece per byte; beyond Envoy's default buffer; just under the rendered bound.
    let bodies = [image(0), image(1 << 20), image((16 << 20) - 4096)];
    for (body, size) in bodies.iter().zip([1, 10_000, 1 << 20]) {
        for (client, protocol) in [(&one, "HTTP/1.1"), (&two, "HTTP/2")] {
            let what = format!("{} bytes over {protocol}", body.len());
            let answer = client.send("POST", CHAT, &[JSON], body.clone()).await?;
            assert_eq!(answer.status, 200, "{what}: {}", answer.text());
            arrived_whole(&rig, &what, CHAT, &answer, body)?;
            let what = format!("{what} in pieces");
            let answer = pieces(client, body, size).await?;
            assert_eq!(answer.status, 200, "{what}: {}", answer.text());
            arrived_whole(&rig, &what, CHAT, &answer, body)?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn beyond_the_bound_the_single_pool_is_still_routed() -> Result<()> {
    // No adapter can be read, so any pod of the pool may be chosen: both serve it.
    let pods = vec![pod("a", &["sql"]), pod("b", &["sql"])];
    let rig = Setup::new("beyond", pods).start().await?;
    let body = image(20 << 20);
    for answer in [
        rig.client().send("POST", CHAT, &[JSON], body.clone()).await?,
        pieces(&rig.client(), &body, 1 << 20).await?,
        Client::http2(rig.envoy.gateway)
            .send("POST", CHAT, &[JSON], body.clone())
            .await?,
    ] {
        assert_eq!(answer.status, 200, "{}", answer.text());
        ensure!(!answer.decision("pod").is_empty(), "not routed: {:?}", answer.headers);
        let received = rig.received(answer.pod(), CHAT)?.pop().context("nothing received")?;
        assert_eq!((received.body_bytes, received.body_hash), (body.len(), hash(&body)));
    }
    Ok(())
}

#[tokio::test]
async fn beyond_the_bound_several_pools_pass_to_the_balancer() -> Result<()> {
    let pods = vec![pod("a", &["sql"]), pod("b", &["sql"])];
    let other = r#"\"pools\":[{\"name\":\"other\",\"discovery\":{\"static\":[\"127.0.0.2:1\"]}},"#;
    let rig = Setup::new("pools", pods).edit(r#"\"pools\":["#, other).start().await?;
    let body = image(20 << 20);
    let answer = rig.client().send("POST", CHAT, &[JSON], body.clone()).await?;
    assert_eq!((answer.status, answer.decision("pod")), (200, ""), "{}", answer.text());
    assert_eq!(rig.count("passed.body-too-large").await?, 1);
    let received = rig.received(answer.pod(), CHAT)?.pop().context("nothing received")?;
    assert_eq!(received.body_hash, hash(&body));
    let body = form(20 << 20);
    let answer = rig.client().send("POST", AUDIO, &[FORM], body.clone()).await?;
    assert_eq!(answer.decision("pod"), "", "a form is read as a form");
    assert_eq!(rig.count("passed.body-too-large").await?, 2);
    let received = rig.received(answer.pod(), AUDIO)?.pop().context("nothing received")?;
    assert_eq!(received.body_hash, hash(&body));
    // A body that can be read tells its pool.
    assert_eq!(routed(&rig.client(), &chat("sql", "small", 2, 2)).await?.status, 200);
    Ok(())
}

#[tokio::test]
async fn a_form_names_its_model_behind_the_file() -> Result<()> {
    let rig = Setup::new("form", two()).start().await?;
    let body = form(1_200_000);
    for client in [rig.client(), Client::http2(rig.envoy.gateway)] {
        let answer = client.send("POST", AUDIO, &[FORM], body.clone()).await?;
        arrived_whole(&rig, "a form", AUDIO, &answer, &body)?;
        let received = rig.received("a", AUDIO)?.pop().context("nothing received")?;
        ensure!(
            received
                .headers
                .contains(&("x-gateway-model-name".to_owned(), "sql".to_owned())),
            "{received:?}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_body_that_ends_with_trailers_is_routed_with_them() -> Result<()> {
    // Pods over HTTP/2, since HTTP/1.1 drops trailers on the way.
    let rig = Setup::new("trailers", two())
        .edit(
            "explicit_http_config: { http_protocol_options: {} }",
            "explicit_http_config: { http2_protocol_options: {} }",
        )
        .start()
        .await?;
    let body = image(100_000);
    let (sender, frames) = mpsc::unbounded_channel();
    for piece in body.chunks(30_000) {
        sender.send(Frame::data(Bytes::copy_from_slice(piece)))?;
    }
    let mut trailers = HeaderMap::new();
    trailers.insert("x-checksum", "42".parse()?);
    sender.send(Frame::trailers(trailers))?;
    drop(sender);
    let client = Client::http2(rig.envoy.gateway);
    let answer = client.send_frames(CHAT, &[JSON, ("te", "trailers")], frames).await?;
    assert_eq!(answer.status, 200, "{}", answer.text());
    arrived_whole(&rig, "with trailers", CHAT, &answer, &body)?;
    let received = rig.received("a", CHAT)?.pop().context("nothing received")?;
    assert_eq!(received.trailers, [("x-checksum".to_owned(), "42".to_owned())]);
    assert_eq!(rig.stat("routed").await?, 1);
    Ok(())
}

#[tokio::test]
async fn a_slow_upload_is_waited_for() -> Result<()> {
    let rig = Setup::new("slow", two()).start().await?;
    // Both workers know that bodies arrive.
    for _ in 0..20 {
        routed(&Client::new(rig.envoy.gateway), &chat("llama", "proof", 2, 1)).await?;
    }
    let later = async || -> Result<()> {
        // Two pods every 200 ms: a second passes, as Envoy counts it.
        let scrapes = rig.stat("scrapes").await? + 10;
        rig.until(
            "a second of scrapes",
            async || Ok(rig.stat("scrapes").await? >= scrapes),
        )
        .await
    };
    let (sender, frames) = mpsc::unbounded_channel();
    let body = image(1_000);
    let client = rig.client();
    let upload = tokio::spawn(async move { client.send_frames(CHAT, &[JSON], frames).await });
    let active = "http.gateway.downstream_rq_active";
    rig.until("the head at the gateway", async || {
        Ok(rig.envoy.stat(active).await? == Some(1))
    })
    .await?;
    for piece in body.chunks(400) {
        // Longer than a VM without the flag would wait.
        later().await?;
        sender.send(Frame::data(Bytes::copy_from_slice(piece)))?;
    }
    drop(sender);
    let answer = upload.await??;
    assert_eq!(answer.status, 200, "{}", answer.text());
    arrived_whole(&rig, "slowly", CHAT, &answer, &body)?;
    assert_eq!(rig.count("passed.no-body-hold").await?, 0);

    // A client that waits to be asked for its body.
    let body = String::from_utf8(image(1_000))?;
    let mut socket = TcpStream::connect(rig.envoy.gateway).await?;
    let mut request = format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n");
    write!(
        request,
        "expect: 100-continue\r\ncontent-length: {}\r\n\r\n",
        body.len()
    )?;
    let interim = exchange(&mut socket, &request).await?;
    ensure!(interim.starts_with("HTTP/1.1 100"), "{interim}");
    socket.write_all(body.as_bytes()).await?;
    let answer = head(&mut socket).await?;
    ensure!(
        answer.starts_with("HTTP/1.1 200") && answer.contains("x-simulator-pod: a\r\n"),
        "{answer}"
    );

    // A client that leaves in the middle of its upload leaves nothing held.
    let (sender, frames) = mpsc::unbounded_channel();
    sender.send(Frame::data(Bytes::from_static(b"{\"messages\":")))?;
    let client = rig.client();
    let upload = tokio::spawn(async move { client.send_frames(CHAT, &[JSON], frames).await });
    rig.until("the upload at the gateway", async || {
        Ok(rig.envoy.stat(active).await? == Some(1))
    })
    .await?;
    upload.abort();
    rig.until("its end", async || Ok(rig.envoy.stat(active).await? == Some(0)))
        .await?;
    let mut response = rig.client().stream(CHAT, &chat("sql", "after", 2, 2)).await?;
    assert_eq!(response.status(), 200);
    while let Some(frame) = response.body_mut().frame().await {
        frame?;
    }
    Ok(())
}
