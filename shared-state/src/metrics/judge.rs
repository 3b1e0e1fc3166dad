//! How much of a page could be used, and why not more.

use super::gauges::Seen;
use crate::sample::{Engine, Sample, Status};

/// KV usage that a pod without any request cannot have, where cached prefixes do not count. Lower
/// ones occur for a moment: the gauges are not set together, and a finished request may still hand
/// its blocks to another pod.
const USAGE_WITHOUT_REQUESTS: f64 = 0.9;
/// Two gauges of one usage may lie a scheduler step apart, not more.
const USAGE_DIFFERENCE: f64 = 0.05;

/// The status of a page of a known engine, and its reason.
///
/// `ok` means: running is known, the KV usage too where the engine has such a gauge, and the room
/// that is left can be told, from the queue or from the capacity.
pub fn judge(engine: Engine, sample: &Sample, seen: Seen) -> (Status, Option<&'static str>) {
    let kv = sample.kv_mean.is_some();
    let room = sample.waiting.is_some() || (kv && sample.kv_capacity.is_some());
    let reason = if let Some(reason) = contradiction(engine, sample, seen) {
        return (Status::Suspect, Some(reason));
    } else if sample.running.is_some() && room && (kv || !engine.shows_kv()) {
        return (Status::Ok, None);
    } else if seen.bad_value {
        "a load gauge is not finite, negative or out of range"
    } else if sample.running.is_none() {
        "no gauge of running requests"
    } else if engine.shows_kv() && !kv {
        "no gauge of KV usage"
    } else {
        "no gauge of waiting requests"
    };
    (Status::Partial, Some(reason))
}

/// Two readings of one page that cannot both be true. Few are: three running requests with an empty
/// cache are only odd, and a queue with nothing running may be a stuck pod.
fn contradiction(engine: Engine, sample: &Sample, seen: Seen) -> Option<&'static str> {
    let idle = sample.running == Some(0) && sample.waiting == Some(0);
    if engine.usage_is_live() && idle && sample.kv_mean? >= USAGE_WITHOUT_REQUESTS {
        return Some("the KV cache is nearly full, yet nothing runs or waits");
    }
    let difference = (sample.kv_mean? - seen.usage_by_blocks?).abs();
    (difference > USAGE_DIFFERENCE).then_some("KV usage and used blocks disagree")
}
