//! A decision -> a line of the replay protocol.

use berth_shared_state::pod::PodAddress;
use serde::Serialize;

use super::event::Id;
use crate::decision::{Action, Decision, Why};
use crate::request::PassReason;

/// One line of stdout.
#[derive(Serialize)]
struct Output<'a> {
    id: &'a Id,
    action: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod: Option<PodAddress>,
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoints: Option<&'a [PodAddress]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    why: Reasons<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Reasons<'a> {
    Decided(&'a Why),
    Passed { reason: PassReason },
    Listed { reason: &'static str },
}

/// An id as a person types it: a string without its quotes.
pub(super) fn plain(id: &Id) -> String {
    id.as_str().map_or_else(|| id.to_string(), str::to_owned)
}

pub(super) fn listed(id: &Id, status: u16) -> String {
    write(&Output {
        id,
        action: "reply",
        pod: None,
        endpoints: None,
        status: Some(status),
        why: Reasons::Listed { reason: "models" },
    })
}

pub(super) fn passed(id: &Id, reason: PassReason) -> String {
    write(&Output {
        id,
        action: "pass",
        pod: None,
        endpoints: None,
        status: None,
        why: Reasons::Passed { reason },
    })
}

pub(super) fn decided(id: &Id, decision: &Decision) -> String {
    let (action, endpoints, status) = match &decision.action {
        Action::Route { endpoints, .. } => ("route", Some(endpoints.as_slice()), None),
        Action::Reply(refusal) => ("reply", None, Some(refusal.status)),
        Action::Pass(_) => ("pass", None, None),
        Action::Hold => ("hold", None, None),
    };
    let pod = endpoints.and_then(|list| list.first().copied());
    write(&Output {
        id,
        action,
        pod,
        endpoints,
        status,
        why: Reasons::Decided(&decision.why),
    })
}

/// Plain structs of numbers and text always become JSON.
fn write(output: &Output<'_>) -> String {
    serde_json::to_string(output).unwrap_or_default()
}
