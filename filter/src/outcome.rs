//! What the host tells of a stream's upstream: who served it, and how it ended.

use berth_filter_routing::ledger::Outcome;
use berth_shared_state::dialect::{Dialect, upstream_addr, upstream_answered};
use berth_shared_state::pod::PodAddress;
use berth_shared_state_glue::host;

/// The pod of the final attempt. `None`: no attempt reached one.
pub fn serving_pod(dialect: Dialect) -> Option<PodAddress> {
    if !dialect.is_envoy() {
        return nginx_upstream(dialect).map(|(pod, _)| pod);
    }
    let address = host::property(&["upstream", "address"]).ok()?;
    core::str::from_utf8(&address).ok()?.parse().ok()
}

/// Attempts so far, retries included; `None` where the host does not say.
pub fn attempts(dialect: Dialect) -> Option<u32> {
    if !dialect.is_envoy() {
        return nginx_upstream(dialect).map(|(_, attempts)| attempts);
    }
    u32::try_from(host::property_integer(&["upstream", "request_attempt_count"])?).ok()
}

fn nginx_upstream(dialect: Dialect) -> Option<(PodAddress, u32)> {
    upstream_addr(&host::variable(dialect, "upstream_addr").ok()?)
}

/// Whether nginx itself made the response that begins now, since no pod answered. To be asked with its headers: later
/// APISIX tells nothing any more.
pub fn is_unanswered(dialect: Dialect) -> bool {
    let time = host::variable(dialect, "upstream_header_time");
    time.is_ok_and(|time| !upstream_answered(&time))
}

/// Status of the response that begins now; 0 where the host does not say.
pub fn status(dialect: Dialect) -> u16 {
    let status = host::header(host::Map::Response, ":status").or_else(|_| host::variable(dialect, "status"));
    let status = status.unwrap_or_default();
    core::str::from_utf8(&status)
        .ok()
        .and_then(|status| status.parse().ok())
        .unwrap_or(0)
}

/// How a stream with this response status ended. `error` is the beginning of a 500's body.
///
/// No status means that no response was passed on: the client left.
pub fn read(dialect: Dialect, status: u16, unanswered: bool, error: &[u8]) -> Outcome {
    if unanswered {
        return Outcome::Unreachable;
    }
    let details = if dialect.is_envoy() {
        host::property(&["response", "code_details"]).unwrap_or_default()
    } else {
        Vec::new()
    };
    Outcome::of_stream(&details, status, blames_context(error))
}

/// A 500 whose text speaks of the context length is the client's fault (llama.cpp, NIM).
fn blames_context(error: &[u8]) -> bool {
    let text = error.to_ascii_lowercase();
    let has = |needle: &[u8]| text.windows(needle.len()).any(|window| window == needle);
    has(b"context size") || has(b"context length") || has(b"context_length") || has(b"maximum context")
}
