//! Decides from the head whether a body is worth holding.

use super::multipart::parameter;
use super::{Api, BodyReader};
use crate::limits::BOUNDARY_MAX_BYTES;
use berth_shared_state::limits::BODY_START_BYTES;
use serde::Serialize;

/// The head of a request.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// Names and values, pseudo headers included. A missing `:method` is POST.
    pub headers: &'a [(&'a str, &'a [u8])],
    /// No body follows. A host that says so of every request (APISIX) must not be believed.
    pub end_of_stream: bool,
}

/// What to do with the body.
#[derive(Clone, Debug)]
pub enum HeadVerdict {
    /// Hold it and read it, up to [`BodyReader::bound`].
    Hold(BodyReader),
    /// Not for Berth; goes on untouched.
    Pass(PassReason),
}

/// Why a request is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PassReason {
    /// An upgrade: a tunnel has no request to read.
    Upgrade,
    /// A tunnel asked for by CONNECT.
    Connect,
    /// gRPC frames its messages.
    Grpc,
    /// The path is no inference API.
    NotInference,
    /// Not POST.
    Method,
    /// No body follows.
    NoBody,
    /// The body is compressed; the proxy does not unpack it.
    CompressedBody,
    /// Neither JSON nor, for audio, multipart with a usable boundary.
    ContentType,
    /// Over the hold bound, and nothing but the body could tell the model; or a later filter would have to hold it.
    BodyTooLarge,
}

impl PassReason {
    /// All, in order.
    pub const ALL: [Self; 9] = [
        Self::Upgrade,
        Self::Connect,
        Self::Grpc,
        Self::NotInference,
        Self::Method,
        Self::NoBody,
        Self::CompressedBody,
        Self::ContentType,
        Self::BodyTooLarge,
    ];

    /// The reason as logs and replies show it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Upgrade => "upgrade",
            Self::Connect => "connect",
            Self::Grpc => "grpc",
            Self::NotInference => "not-inference",
            Self::Method => "method",
            Self::NoBody => "no-body",
            Self::CompressedBody => "compressed-body",
            Self::ContentType => "content-type",
            Self::BodyTooLarge => "body-too-large",
        }
    }
}

/// An inference path, as the end of a path; longer ones stand before those that end them.
struct Route {
    suffix: &'static str,
    api: Api,
    stream: bool,
}

const fn route(suffix: &'static str, api: Api) -> Route {
    Route {
        suffix,
        api,
        stream: false,
    }
}

const ROUTES: [Route; 17] = [
    route("/chat/completions", Api::Chat),
    route("/completions", Api::Completions),
    route("/responses", Api::Responses),
    route("/v1/messages/count_tokens", Api::Tokenize),
    route("/v1/messages", Api::Messages),
    route("/embeddings", Api::Embeddings),
    route("/pooling", Api::Embeddings),
    route("/classify", Api::Embeddings),
    route("/rerank", Api::Rerank),
    route("/score", Api::Rerank),
    route("/audio/transcriptions", Api::Audio),
    route("/audio/translations", Api::Audio),
    route("/detokenize", Api::Tokenize),
    route("/tokenize", Api::Tokenize),
    // vLLM's own, with its parameters in `sampling_params` too.
    route("/inference/v1/generate", Api::Generate),
    route("/generate", Api::Generate),
    Route {
        suffix: "/generate_stream",
        api: Api::Generate,
        stream: true,
    },
];

/// Decides about a body by its head. `hold_bytes` is the largest body that may be held. Of a body that is known to be
/// larger only the start is: what that does not tell, a trusted header or a single pool may.
#[must_use]
pub fn classify(head: &Head<'_>, hold_bytes: usize) -> HeadVerdict {
    let bound = if head.declares_over(hold_bytes) {
        hold_bytes.min(BODY_START_BYTES)
    } else {
        hold_bytes
    };
    match inference(head) {
        Ok(reader) => HeadVerdict::Hold(reader.bounded(bound, head.declared_length())),
        Err(reason) => HeadVerdict::Pass(reason),
    }
}

/// `GET /v1/models`, or `GET /v1/models/{name}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelsQuestion {
    /// The one asked for; `None` = all.
    pub name: Option<String>,
    /// The client is one of Anthropic's.
    pub anthropic: bool,
}

/// Whether a request asks which models there are.
#[must_use]
pub fn asks_for_models(head: &Head<'_>) -> Option<ModelsQuestion> {
    let path = head.get(":path")?.strip_prefix(b"/v1/models")?;
    if head.get(":method") != Some(b"GET") || head.is_upgrade() {
        return None;
    }
    let path = path.split(|byte| matches!(byte, b'?' | b'#')).next()?;
    let name = match path {
        b"" | b"/" => None,
        _ => Some(decoded(path.strip_prefix(b"/")?)),
    };
    Some(ModelsQuestion {
        name,
        anthropic: head.get("anthropic-version").is_some(),
    })
}

/// A part of a path, its `%2F` and the like decoded.
fn decoded(part: &[u8]) -> String {
    let mut out = Vec::with_capacity(part.len());
    let mut rest = part;
    while let Some((byte, after)) = rest.split_first() {
        let hex = after.split_at_checked(2).filter(|_| *byte == b'%');
        let code = hex.and_then(|(digits, more)| {
            let digits = core::str::from_utf8(digits)
                .ok()
                .filter(|text| !text.starts_with('+'))?;
            Some((u8::from_str_radix(digits, 16).ok()?, more))
        });
        let (byte, after) = code.unwrap_or((*byte, after));
        out.push(byte);
        rest = after;
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn inference(head: &Head<'_>) -> Result<BodyReader, PassReason> {
    let content_type = head.get("content-type").unwrap_or_default();
    let method = head.get(":method").unwrap_or(b"POST");
    if head.is_upgrade() {
        return Err(PassReason::Upgrade);
    }
    if method == b"CONNECT" {
        return Err(PassReason::Connect);
    }
    if starts_with_ignore_case(content_type, b"application/grpc") {
        return Err(PassReason::Grpc);
    }
    let route = head.get(":path").and_then(route_of).ok_or(PassReason::NotInference)?;
    if method != b"POST" {
        return Err(PassReason::Method);
    }
    if head.end_of_stream || head.declared_length() == Some(0) {
        return Err(PassReason::NoBody);
    }
    if !head
        .values("content-encoding")
        .all(|coding| coding.is_empty() || coding.eq_ignore_ascii_case(b"identity"))
    {
        return Err(PassReason::CompressedBody);
    }
    let reader = reader_for(route.api, content_type).ok_or(PassReason::ContentType)?;
    Ok(reader.streaming(route.stream))
}

/// The path without its query and trailing slash ends in one of the routes; prefixes are free, as
/// in the reference picker.
fn route_of(path: &[u8]) -> Option<&'static Route> {
    let path = path.split(|byte| matches!(byte, b'?' | b'#')).next()?;
    let path = path.strip_suffix(b"/").unwrap_or(path);
    ROUTES.iter().find(|route| path.ends_with(route.suffix.as_bytes()))
}

/// A content type without its parameters.
pub fn media_type(content_type: &[u8]) -> &[u8] {
    let end = content_type.iter().position(|byte| *byte == b';');
    content_type
        .get(..end.unwrap_or(content_type.len()))
        .unwrap_or_default()
        .trim_ascii()
}

fn reader_for(api: Api, content_type: &[u8]) -> Option<BodyReader> {
    let media_type = media_type(content_type).to_ascii_lowercase();
    if media_type.is_empty() || media_type == b"application/json" || media_type.ends_with(b"+json") {
        return Some(BodyReader::json(api));
    }
    if api != Api::Audio || media_type != b"multipart/form-data" {
        return None;
    }
    let boundary = parameter(content_type, b"boundary")?;
    let usable = (1..=BOUNDARY_MAX_BYTES).contains(&boundary.len()) && !boundary.iter().any(u8::is_ascii_control);
    usable.then(|| BodyReader::multipart(api, boundary))
}

fn starts_with_ignore_case(value: &[u8], start: &[u8]) -> bool {
    value
        .get(..start.len())
        .is_some_and(|value| value.eq_ignore_ascii_case(start))
}

impl<'a> Head<'a> {
    fn values(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        self.headers
            .iter()
            .filter(move |(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim_ascii())
    }

    fn get(&self, name: &str) -> Option<&'a [u8]> {
        self.values(name).next()
    }

    /// Whether the body is known to be larger than this.
    #[must_use]
    pub fn declares_over(&self, bytes: usize) -> bool {
        self.declared_length().is_some_and(|length| length > bytes as u64)
    }

    fn declared_length(&self) -> Option<u64> {
        core::str::from_utf8(self.get("content-length")?).ok()?.parse().ok()
    }

    /// WebSocket and the like, extended CONNECT included. The offer of HTTP/2 that some clients
    /// send with every plain request (`upgrade: h2c`) is none: proxies ignore it.
    fn is_upgrade(&self) -> bool {
        let upgrade = self.get("upgrade");
        let connection = self
            .values("connection")
            .flat_map(|value| value.split(|byte| *byte == b','));
        let asked = connection
            .map(<[u8]>::trim_ascii)
            .any(|token| token.eq_ignore_ascii_case(b"upgrade"));
        let tunnel = match upgrade {
            Some(protocol) if protocol.eq_ignore_ascii_case(b"h2c") => false,
            Some(protocol) if protocol.eq_ignore_ascii_case(b"websocket") => true,
            _ => asked,
        };
        tunnel || self.get(":protocol").is_some()
    }
}
