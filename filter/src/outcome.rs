//! What the host can still tell about a stream when it is over: who served it, and how it ended.

use berth_filter_routing::ledger::Outcome;
use berth_shared_state::pod::PodAddress;
use berth_shared_state_glue::host;

/// The pod of the final attempt. `None`: no attempt reached one.
pub fn serving_pod() -> Option<PodAddress> {
    let address = host::property(&["upstream", "address"]).ok()?;
    core::str::from_utf8(&address).ok()?.parse().ok()
}

/// Attempts so far, retries included; `None` where the host does not say.
pub fn attempts() -> Option<u32> {
    u32::try_from(host::property_integer(&["upstream", "request_attempt_count"])?).ok()
}

/// How a stream with this response status ended. `error` is the beginning of a 500's body.
///
/// No status means that no response was passed on: the client left.
pub fn read(status: u16, error: &[u8]) -> Outcome {
    let details = host::property(&["response", "code_details"]).unwrap_or_default();
    Outcome::of_stream(&details, status, blames_context(error))
}

/// A 500 whose text speaks of the context length is the client's fault (llama.cpp, NIM).
fn blames_context(error: &[u8]) -> bool {
    let text = error.to_ascii_lowercase();
    let has = |needle: &[u8]| text.windows(needle.len()).any(|window| window == needle);
    has(b"context size") || has(b"context length") || has(b"context_length") || has(b"maximum context")
}
