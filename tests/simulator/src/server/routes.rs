//! The endpoints.

use super::POD_HEADER;
use super::ask::{Ask, Endpoint, Limits, read};
use super::fault::{Fault, InferenceFault, MetricsFault};
use super::pod::{Pod, Received, Registered};
use super::reply::{Refused, Writer, models};
use super::stream::TokenStream;
use crate::engine::{EventKind, Request as EngineRequest};
use crate::page::{Pinned, load_report};
use crate::random::mix_bytes;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http_body_util::{BodyExt, Limited};
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;

/// Longest request body, bytes: eight times a million-token prompt in text.
const BODY_MAX: usize = 32 << 20;
/// Adapter paths with this word in them do not exist.
const MISSING_PATH: &str = "missing";

type Shared = State<Arc<Pod>>;

pub(super) fn router(pod: &Arc<Pod>) -> Router {
    let lora = Router::new()
        .route("/v1/load_lora_adapter", post(load_adapter))
        .route("/v1/unload_lora_adapter", post(unload_adapter));
    let pages = Router::new()
        .route("/metrics", get(metrics))
        .route("/metrics/", get(metrics))
        .route("/v1/models", get(list_models))
        .route_layer(middleware::from_fn_with_state(Arc::clone(pod), authorized));
    let router = pages
        .route("/health", get(async || ""))
        .route("/ping", get(async || "").post(async || ""))
        .route(
            "/version",
            get(async || json(200, r#"{"version":"0.32.0"}"#.to_owned())),
        )
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(completions))
        .route("/sim/fault", post(set_fault))
        .route("/sim/state", post(set_state))
        .route("/sim/requests", get(list_requests));
    let router = if pod.config.engine.max_loras > 0 {
        router.merge(lora)
    } else {
        router
    };
    router
        .fallback(async || Refused::detail(404, "Not Found"))
        .method_not_allowed_fallback(async || Refused::detail(405, "Method Not Allowed"))
        .layer(DefaultBodyLimit::disable())
        .layer(middleware::from_fn_with_state(Arc::clone(pod), note_and_stamp))
        .with_state(Arc::clone(pod))
}

fn json(status: u16, body: String) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        json(self.status, self.body)
    }
}

/// Header lines as text; bytes that are not UTF-8 are replaced.
fn texts(headers: &HeaderMap) -> Vec<(String, String)> {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    headers
        .iter()
        .map(|(name, value)| (name.as_str().to_owned(), text(value)))
        .collect()
}

/// Remembers the request and names the pod in the answer.
async fn note_and_stamp(State(pod): Shared, request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    let Ok(whole) = Limited::new(body, BODY_MAX).collect().await else {
        return Refused::detail(413, "Request body too large or cut off").into_response();
    };
    let trailers = whole.trailers().cloned().unwrap_or_default();
    let body = whole.to_bytes();
    if !head.uri.path().starts_with("/sim/") {
        pod.note(Received {
            method: head.method.to_string(),
            path: head.uri.path_and_query().map_or_else(String::new, ToString::to_string),
            headers: texts(&head.headers),
            body_bytes: body.len(),
            body_hash: mix_bytes(0, &body),
            trailers: texts(&trailers),
        });
    }
    let mut response = next.run(Request::from_parts(head, Body::from(body))).await;
    if let Ok(name) = HeaderValue::from_str(&pod.config.name) {
        response.headers_mut().insert(POD_HEADER, name);
    }
    response
}

/// Asks for the key, if the pod has one.
async fn authorized(State(pod): Shared, request: Request, next: Next) -> Response {
    let given = request.headers().get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
    match &pod.config.authorization {
        Some(key) if given != Some(key.as_bytes()) => json(401, r#"{"error":"Unauthorized"}"#.to_owned()),
        _ => next.run(request).await,
    }
}

async fn metrics(State(pod): Shared) -> Response {
    let fault = pod.state().faults.metrics.clone();
    let page = || pod.state().render_page(pod.now());
    let body = match fault {
        None => page(),
        Some(MetricsFault::Frozen(page)) => page,
        Some(MetricsFault::Delay(ms)) => {
            tokio::time::sleep(Duration::from_millis(ms)).await;
            page()
        }
        Some(MetricsFault::Hang) => std::future::pending().await,
        Some(MetricsFault::Status(status)) => return json(status, r#"{"error":"Unauthorized"}"#.to_owned()),
        Some(MetricsFault::Garbage) => "<html><body>It works!</body></html>\n".to_owned(),
        Some(MetricsFault::Cut(bytes)) => {
            let mut page = page().into_bytes();
            page.truncate(bytes);
            String::from_utf8_lossy(&page).into_owned()
        }
    };
    (
        [(header::CONTENT_TYPE, "text/plain; version=1.0.0; charset=utf-8")],
        body,
    )
        .into_response()
}

async fn list_models(State(pod): Shared) -> Response {
    let state = pod.state();
    let limit = state.engine.config().max_model_len;
    json(
        200,
        models(&pod.config.model, limit, &state.adapters, pod.unix(), pod.config.seed),
    )
}

async fn chat(State(pod): Shared, headers: HeaderMap, body: Bytes) -> Response {
    infer(&pod, Endpoint::Chat, &headers, &body)
        .await
        .unwrap_or_else(IntoResponse::into_response)
}

async fn completions(State(pod): Shared, headers: HeaderMap, body: Bytes) -> Response {
    infer(&pod, Endpoint::Completions, &headers, &body)
        .await
        .unwrap_or_else(IntoResponse::into_response)
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers
        .get(header::CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok())
        .unwrap_or_default();
    kind.split(';')
        .next()
        .is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}

async fn infer(pod: &Arc<Pod>, endpoint: Endpoint, headers: &HeaderMap, body: &[u8]) -> Result<Response, Refused> {
    let fault = pod.state().faults.meet_inference();
    match fault {
        None => {}
        Some(InferenceFault::Hang) => std::future::pending().await,
        Some(InferenceFault::Status { status, .. }) => return Err(failure(status)),
        Some(InferenceFault::Context) => {
            return Err(Refused::new(
                500,
                "server_error",
                "Context size has been exceeded.",
                None,
            ));
        }
    }
    if !is_json(headers) {
        return Err(Refused::media_type());
    }
    let limits = {
        let state = pod.state();
        let config = state.engine.config();
        Limits {
            max_model_len: config.max_model_len,
            block_size: config.block_size,
            seed: pod.config.seed,
        }
    };
    let ask = read(endpoint, body, &limits)?;
    let (model, adapter) = resolve(pod, ask.model.as_deref())?;
    answer(pod, ask, &model, adapter, headers).await
}

fn failure(status: u16) -> Refused {
    match status {
        429 => Refused::new(429, "RateLimitError", "The engine's queue is full.", None),
        503 => Refused::new(503, "ServiceUnavailableError", "The engine is not ready.", None),
        _ => Refused::new(status, "InternalServerError", "EngineCore encountered an issue.", None),
    }
}

/// The model's name in the answer, and the adapter behind it if it is one.
fn resolve(pod: &Pod, model: Option<&str>) -> Result<(String, Option<String>), Refused> {
    let base = &pod.config.model;
    match model {
        None => Ok((base.clone(), None)),
        Some(model) if model == base => Ok((base.clone(), None)),
        Some(model) if pod.state().adapters.iter().any(|adapter| adapter.name == model) => {
            Ok((model.to_owned(), Some(model.to_owned())))
        }
        Some(model) => Err(Refused::unknown_model(model, base)),
    }
}

async fn answer(
    pod: &Arc<Pod>,
    mut ask: Ask,
    model: &str,
    adapter: Option<String>,
    headers: &HeaderMap,
) -> Result<Response, Refused> {
    let request = EngineRequest {
        id: 0,
        chain: std::mem::take(&mut ask.chain),
        prompt_tokens: ask.prompt_tokens,
        output_tokens: ask.output_tokens,
        adapter: adapter.map(Into::into),
    };
    let stream = ask.stream;
    let mut ticket = pod.submit(request, ask.stops);
    let writer = Writer::new(ask, ticket.id, pod.unix(), model);
    if stream {
        // The real server, too, sends its head with the first token.
        let first = ticket.events.recv().await.ok_or_else(|| failure(500))?;
        let body = Body::new(TokenStream::new(ticket, writer, first));
        return Ok(([(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")], body).into_response());
    }
    loop {
        match ticket.events.recv().await {
            Some(EventKind::FirstToken { .. } | EventKind::Token { .. }) => {}
            Some(EventKind::Finished(done)) => {
                let mut response = json(200, writer.whole(done.cached_tokens));
                add_load_header(pod, headers, &mut response);
                return Ok(response);
            }
            Some(EventKind::Rejected(_)) | None => return Err(failure(500)),
        }
    }
}

/// The load report that vLLM adds to an unstreamed answer when the client asks for it (ORCA).
fn add_load_header(pod: &Pod, headers: &HeaderMap, response: &mut Response) {
    let format = headers
        .get("endpoint-load-metrics-format")
        .and_then(|format| format.to_str().ok());
    let (waiting, kv_usage) = {
        let mut state = pod.state();
        let gauges = state.engine.gauges(pod.now()).clone();
        state.page.load(&gauges)
    };
    let value = match format {
        Some("TEXT" | "text") => load_report(waiting, kv_usage),
        Some("JSON" | "json") => format!(
            r#"JSON {{"named_metrics": {{"num_requests_waiting": {waiting:?}, "kv_cache_usage_perc": {kv_usage:?}}}}}"#
        ),
        _ => return,
    };
    if let Ok(value) = HeaderValue::from_str(&value) {
        response.headers_mut().insert("endpoint-load-metrics", value);
    }
}

#[derive(Deserialize)]
struct AdapterCall {
    lora_name: Option<String>,
    lora_path: Option<String>,
    #[serde(default)]
    load_inplace: bool,
}

/// Success is plain text without a content type.
fn success(name: &str, done: &str) -> Response {
    Response::new(Body::from(format!(
        "Success: LoRA adapter '{name}' {done} successfully."
    )))
}

async fn load_adapter(State(pod): Shared, body: Bytes) -> Result<Response, Refused> {
    let call: AdapterCall = serde_json::from_slice(&body).map_err(|error| Refused::json(error.column()))?;
    let name = call.lora_name.ok_or_else(|| Refused::missing("lora_name"))?;
    let path = call.lora_path.ok_or_else(|| Refused::missing("lora_path"))?;
    if name.is_empty() || path.is_empty() {
        let message = "Both 'lora_name' and 'lora_path' must be provided.";
        return Err(Refused::new(400, "InvalidUserInput", message, None));
    }
    if name == pod.config.model {
        let message = format!("The lora adapter '{name}' conflicts with a served base model.");
        return Err(Refused::new(400, "InvalidUserInput", &message, None));
    }
    if !call.load_inplace && pod.state().adapters.iter().any(|adapter| adapter.name == name) {
        let message = format!(
            "The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set \
             'load_inplace' to True."
        );
        return Err(Refused::new(400, "InvalidUserInput", &message, None));
    }
    if path.contains(MISSING_PATH) {
        let message = format!("Loading lora {name} failed: No adapter found for {path}");
        return Err(Refused::new(404, "NotFoundError", &message, None));
    }
    pod.register(Registered {
        name: name.clone(),
        path,
    })
    .await;
    Ok(success(&name, "added"))
}

async fn unload_adapter(State(pod): Shared, body: Bytes) -> Result<Response, Refused> {
    let call: AdapterCall = serde_json::from_slice(&body).map_err(|error| Refused::json(error.column()))?;
    let name = call.lora_name.ok_or_else(|| Refused::missing("lora_name"))?;
    let now = pod.now();
    let mut state = pod.state();
    let before = state.adapters.len();
    state.adapters.retain(|adapter| adapter.name != name);
    if state.adapters.len() == before {
        let message = format!("The lora adapter '{name}' cannot be found.");
        return Err(Refused::new(404, "NotFoundError", &message, None));
    }
    state.engine.unload_adapter(&name, now);
    Ok(success(&name, "removed"))
}

async fn set_fault(State(pod): Shared, body: Bytes) -> Result<Response, Refused> {
    let fault: Fault = serde_json::from_slice(&body).map_err(|error| Refused::detail(400, &error.to_string()))?;
    pod.set_fault(fault).await;
    Ok(json(200, "{}".to_owned()))
}

async fn set_state(State(pod): Shared, body: Bytes) -> Result<Response, Refused> {
    let pinned: Pinned = serde_json::from_slice(&body).map_err(|error| Refused::detail(400, &error.to_string()))?;
    pod.pin(pinned);
    Ok(json(200, "{}".to_owned()))
}

async fn list_requests(State(pod): Shared) -> Response {
    match serde_json::to_string(&pod.state().received) {
        Ok(body) => json(200, body),
        Err(error) => Refused::detail(500, &error.to_string()).into_response(),
    }
}
