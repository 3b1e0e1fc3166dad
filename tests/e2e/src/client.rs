//! A small HTTP client: whole answers, or piece by piece for streams.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::{Request, Response};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use tokio::sync::mpsc;

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// Talks to one address.
#[derive(Clone)]
pub struct Client {
    pool: Pool<HttpConnector, Body>,
    address: SocketAddr,
}

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Body bytes.
    pub body: Vec<u8>,
}

impl Answer {
    /// A header's value; empty when it is absent.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        self.headers
            .iter()
            .find(|(key, _)| key == name)
            .map_or("", |(_, value)| value)
    }

    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON; null when it is none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// Which simulated pod answered.
    #[must_use]
    pub fn pod(&self) -> &str {
        self.header("x-simulator-pod")
    }

    /// A part of `x-berth-decision`, such as `pod` or `cost`; empty when it is absent.
    #[must_use]
    pub fn decision(&self, key: &str) -> &str {
        decision(self.header("x-berth-decision"), key)
    }
}

/// A part of a decision, such as `pod` or `cost`; empty when it is absent.
#[must_use]
pub fn decision<'a>(header: &'a str, key: &str) -> &'a str {
    header
        .split(';')
        .filter_map(|part| part.split_once('='))
        .find_map(|(name, value)| (name == key).then_some(value))
        .unwrap_or("")
}

impl Client {
    /// A client over HTTP/1.1.
    #[must_use]
    pub fn new(address: SocketAddr) -> Self {
        Self {
            pool: Pool::builder(TokioExecutor::new()).build_http(),
            address,
        }
    }

    /// A client over HTTP/2 without TLS.
    #[must_use]
    pub fn http2(address: SocketAddr) -> Self {
        Self {
            pool: Pool::builder(TokioExecutor::new()).http2_only(true).build_http(),
            address,
        }
    }

    /// GET.
    ///
    /// # Errors
    /// When nobody answers.
    pub async fn get(&self, path: &str) -> Result<Answer> {
        self.send("GET", path, &[], Vec::new()).await
    }

    /// POST of a JSON value.
    ///
    /// # Errors
    /// When nobody answers.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Answer> {
        self.send(
            "POST",
            path,
            &[("content-type", "application/json")],
            body.to_string().into_bytes(),
        )
        .await
    }

    /// Any request with a whole body.
    ///
    /// # Errors
    /// When nobody answers.
    pub async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Vec<u8>) -> Result<Answer> {
        let body = Full::new(Bytes::from(body))
            .map_err(|never| match never {})
            .boxed_unsync();
        let response = self.start(method, path, headers, body).await?;
        whole(response).await
    }

    /// A request whose body comes piece by piece from `pieces`.
    ///
    /// # Errors
    /// When nobody answers.
    pub async fn send_frames(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        frames: mpsc::UnboundedReceiver<Frame<Bytes>>,
    ) -> Result<Answer> {
        let stream = futures_util::stream::unfold(frames, |mut frames| async move {
            frames
                .recv()
                .await
                .map(|frame| (Ok::<_, std::io::Error>(frame), frames))
        });
        let body = BodyExt::boxed_unsync(StreamBody::new(Box::pin(stream)));
        let response = self.start("POST", path, headers, body).await?;
        whole(response).await
    }

    /// Sends, and gives the response back as soon as its headers are here.
    ///
    /// # Errors
    /// When nobody answers.
    pub async fn stream(&self, path: &str, body: &Value) -> Result<Response<Incoming>> {
        let body = Full::new(Bytes::from(body.to_string()))
            .map_err(|never| match never {})
            .boxed_unsync();
        self.start("POST", path, &[("content-type", "application/json")], body)
            .await
    }

    async fn start(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Body,
    ) -> Result<Response<Incoming>> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(body)?;
        self.pool
            .request(request)
            .await
            .with_context(|| format!("{method} {path} at {}", self.address))
    }
}

/// Reads the rest of a response.
///
/// # Errors
/// When it is cut off.
pub async fn whole(response: Response<Incoming>) -> Result<Answer> {
    let (head, body) = response.into_parts();
    let body = body
        .collect()
        .await
        .context("the answer was cut off")?
        .to_bytes()
        .to_vec();
    let headers = head
        .headers
        .iter()
        .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
        .collect();
    Ok(Answer {
        status: head.status.as_u16(),
        headers,
        body,
    })
}
