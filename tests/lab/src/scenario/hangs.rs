//! Pods that seem to serve, and do not: each has been seen with real engines. What went wrong with the pods of the family
//! `faults` shows in what they serve or in discovery; here it shows late, elsewhere, or not at all.

use super::catalogue::{SECOND, h100, plain};
use super::{Clients, Family, Scenario};
use crate::client::synthetic::Plain;
use crate::fleet::{Fault, FaultKind};

/// Seconds after which a client without a first token leaves. Without such a bound one request at a pod that hangs
/// would weigh as much as all others.
const GIVES_UP: f64 = 15.0;

pub(super) fn hangs() -> Vec<Scenario> {
    let clients = Plain {
        gives_up: Some(GIVES_UP),
        ..plain()
    };
    let new = |name: &str, faults: Vec<Fault>| Scenario {
        faults,
        ..Scenario::new(name, Family::Hangs, h100(8), Clients::Plain(clients.clone()))
    };
    let at = |seconds, pod, kind| Fault {
        pod,
        at: seconds * SECOND,
        kind,
    };
    let replaced = (0..4).map(|pod| at(8 + 12 * pod as u64, pod, FaultKind::Replace)).collect();
    let others = Plain {
        rate: 44.0,
        count: 2800,
        past_proxies: Some((2, 14.0)),
        ..clients.clone()
    };
    vec![
        new("engine-hangs", vec![at(20, 3, FaultKind::Hang)]),
        new("scheduler-jams", vec![at(20, 3, FaultKind::Jam)]),
        new("engine-dies", vec![at(20, 3, FaultKind::Break(30 * SECOND))]),
        new("node-lost", vec![at(20, 3, FaultKind::Lose(30 * SECOND))]),
        Scenario {
            clients: Clients::Plain(others),
            ..new("unread-busy", vec![at(10, 2, FaultKind::Unread)])
        },
        Scenario {
            slow_start: Some("20s"),
            ..new("rolling-restart", replaced)
        },
    ]
}
