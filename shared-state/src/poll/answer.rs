//! From an answer to a page or a failure, and what an operator can do about a failure.

use super::{Outcome, Target};
use crate::config::{Discovery, Pool};
use crate::limits::TEXT_MAX_BYTES;
use crate::sample::Engine;
use crate::table::ScrapeError;
use crate::units::Millis;

/// Why there is no page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) error: ScrapeError,
    /// What the pod added to it, fit for a log.
    pub(super) detail: Option<String>,
    /// How long the pod asks to be left alone.
    pub(super) retry_after: Option<Millis>,
}

impl Failure {
    pub(super) fn page(detail: &str) -> Self {
        Self {
            detail: Some(clip(detail)),
            ..ScrapeError::Page.into()
        }
    }

    /// The server has spoken: asking again soon gives the same answer.
    pub(super) const fn is_final(&self) -> bool {
        matches!(self.error, ScrapeError::Unauthorized | ScrapeError::Http(300..=499))
    }
}

impl From<ScrapeError> for Failure {
    fn from(error: ScrapeError) -> Self {
        Self {
            error,
            detail: None,
            retry_after: None,
        }
    }
}

/// The page of a good answer. Envoy reports its own failures as answers with a text of its own.
pub(super) fn page(outcome: Outcome<'_>, largest: usize) -> Result<&[u8], Failure> {
    let response = outcome?;
    let of_envoy = |text: &str| response.body.starts_with(text.as_bytes());
    let error = match response.status {
        200..=299 if response.body.len() <= largest => return Ok(response.body),
        200..=299 => return Err(Failure::page(&format!("more than {largest} bytes"))),
        401 | 403 => ScrapeError::Unauthorized,
        504 => ScrapeError::Timeout,
        503 if of_envoy("upstream connect error") || of_envoy("no healthy upstream") => ScrapeError::Unreachable,
        other => ScrapeError::Http(other),
    };
    Err(Failure {
        error,
        detail: response.location.map(clip),
        retry_after: response.retry_after,
    })
}

/// What happened, and the remedy.
pub(super) fn advice(target: Target, failure: &Failure, pool: &Pool) -> String {
    if target == Target::Discovery {
        return discovery_advice(failure, &pool.discovery);
    }
    let scrape = &pool.scrape;
    let detail = failure.detail.as_deref().unwrap_or("no reason given");
    match (failure.error, target) {
        (ScrapeError::NotSent, _) => format!(
            "the call could not be sent: cluster {:?} is missing, has no such host or is full; check scrape.cluster",
            scrape.cluster
        ),
        (ScrapeError::Unreachable, _) => "nobody answers; is it up, and are address and port right?".into(),
        (ScrapeError::Timeout, _) => format!(
            "no answer within {} ms; a busy engine answers slowly: raise scrape.timeout if this stays",
            scrape.timeout.0
        ),
        (ScrapeError::Unauthorized, _) => {
            "the pod wants an API key (401 or 403): add it to scrape.headers, from the VM's environment".into()
        }
        (ScrapeError::Http(status @ 300..=399), Target::Metrics(_)) => format!(
            "status {status} redirects to {detail:?}; redirects are not followed: set scrape.path to the final path"
        ),
        (ScrapeError::Http(404), Target::Metrics(_)) => format!(
            "no page at {} (404): set scrape.path, or start the engine with its metrics on",
            metrics_path(pool)
        ),
        (ScrapeError::Http(404), Target::Models(_)) => "no /v1/models (404)".into(),
        (ScrapeError::Http(status), _) => format!("status {status}"),
        (ScrapeError::Page, _) => format!("the page cannot be used: {detail}"),
    }
}

fn discovery_advice(failure: &Failure, discovery: &Discovery) -> String {
    let kubernetes = matches!(discovery, Discovery::Kubernetes { .. });
    match failure.error {
        ScrapeError::NotSent => {
            let (key, cluster) = match discovery {
                Discovery::Static(_) => return "nothing is asked".into(),
                Discovery::EnvoyAdmin { admin, .. } => ("admin", admin),
                Discovery::Kubernetes { asks, .. } | Discovery::Json { asks, .. } => ("cluster", &asks.cluster),
            };
            format!("the call could not be sent: cluster {cluster:?} is missing, has no host or is full; check discovery.{key}")
        }
        ScrapeError::Unreachable => "nobody answers; check the cluster's address, port and TLS".into(),
        ScrapeError::Timeout => "no answer in time".into(),
        ScrapeError::Unauthorized if kubernetes => {
            "the API refuses the call (401 or 403): the token in discovery.headers is missing or old, or lacks `list` on \
             endpointslices.discovery.k8s.io"
                .into()
        }
        ScrapeError::Unauthorized => "the endpoint refuses the call (401 or 403)".into(),
        ScrapeError::Http(410) if kubernetes => "the list got too old while it was read (410); it is read anew".into(),
        ScrapeError::Http(status @ 300..=399) => {
            let to = failure.detail.as_deref().unwrap_or("somewhere else");
            format!("status {status} redirects to {to:?}; redirects are not followed")
        }
        ScrapeError::Http(status) => format!("status {status}"),
        ScrapeError::Page => {
            let detail = failure.detail.as_deref().unwrap_or("no reason given");
            format!("the answer cannot be used: {detail}")
        }
    }
}

/// Path of the metrics page: configured, or the engine's usual one.
pub(super) fn metrics_path(pool: &Pool) -> &str {
    match (&pool.scrape.path, pool.engine) {
        (Some(path), _) => path,
        (None, Some(Engine::Trtllm)) => "/prometheus/metrics",
        (None, Some(Engine::Nim)) => "/v1/metrics",
        (None, _) => "/metrics",
    }
}

/// Port of the metrics page: configured, or the engine's usual one; `None` = the pod's own.
pub(super) const fn metrics_port(pool: &Pool) -> Option<u16> {
    match (pool.scrape.port, pool.engine) {
        (Some(port), _) => Some(port),
        (None, Some(Engine::Triton)) => Some(8002),
        (None, Some(Engine::Max)) => Some(8001),
        (None, _) => None,
    }
}

/// At most [`TEXT_MAX_BYTES`] of a foreign text, without control characters.
pub(super) fn clip(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars().filter(|character| !character.is_control()) {
        if out.len() + character.len_utf8() > TEXT_MAX_BYTES {
            break;
        }
        out.push(character);
    }
    out
}
