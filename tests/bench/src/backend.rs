//! Model servers that cost nothing: they read a request and answer at once, so that the proxy is what is measured.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Result;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use crate::world;

/// A streamed answer of three events.
const ANSWER: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"Yes\"}}]}\n\n\
                      data: {\"choices\":[],\"usage\":{\"prompt_tokens\":250,\"completion_tokens\":1}}\n\n\
                      data: [DONE]\n\n";

/// Starts so many servers; they end with the runtime.
pub async fn start(count: usize) -> Result<Vec<SocketAddr>> {
    let pages = Arc::new(Pages {
        metrics: world::capture("vllm-metrics-idle.txt")?.into(),
        models: world::models_page().into(),
    });
    let mut addresses = Vec::new();
    for _ in 0..count {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        addresses.push(listener.local_addr()?);
        tokio::spawn(listen(listener, Arc::clone(&pages)));
    }
    Ok(addresses)
}

struct Pages {
    metrics: Bytes,
    models: Bytes,
}

async fn listen(listener: TcpListener, pages: Arc<Pages>) {
    while let Ok((stream, _)) = listener.accept().await {
        // Small answers must not wait for an acknowledgement.
        let _ = stream.set_nodelay(true);
        let pages = Arc::clone(&pages);
        tokio::spawn(async move {
            let service = service_fn(|request| answer(request, Arc::clone(&pages)));
            // A connection that breaks is the client's business.
            let _ = http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

async fn answer(request: Request<Incoming>, pages: Arc<Pages>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (kind, body) = match (request.method(), request.uri().path()) {
        (&Method::GET, "/metrics") => ("text/plain; version=0.0.4", pages.metrics.clone()),
        (&Method::GET, _) => ("application/json", pages.models.clone()),
        _ => ("text/event-stream", Bytes::from_static(ANSWER.as_bytes())),
    };
    let _ = request.into_body().collect().await;
    let mut response = Response::new(Full::new(body));
    if let Ok(kind) = kind.parse() {
        response.headers_mut().insert("content-type", kind);
    }
    Ok(response)
}
