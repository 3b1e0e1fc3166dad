//! Pods that seem to serve, and do not: each has been seen with real engines. What went wrong with the pods of the family
//! `faults` shows in what they serve or in discovery; here it shows late, elsewhere, or not at all.

use super::catalogue::{SECOND, groups, h100, lora, plain};
use super::{Clients, Family, Scenario};
use crate::client::synthetic::Plain;
use crate::fleet::{Fault, FaultKind};
use berth_tests_simulator::engine::Micros;

/// A client without a first token leaves after this time. Without such a bound one request at a pod that hangs
/// would weigh as much as all others.
const GIVES_UP: Micros = 15 * SECOND;

pub(super) fn hangs() -> Vec<Scenario> {
    let of = |name: &str, clients, faults: Vec<Fault>| Scenario {
        faults,
        gives_up_after: Some(GIVES_UP),
        ..Scenario::new(name, Family::Hangs, h100(8), clients)
    };
    let new = |name: &str, faults| of(name, Clients::Plain(plain()), faults);
    let at = |seconds, pod, kind| Fault {
        pod,
        at: seconds * SECOND,
        kind,
    };
    let jam = || vec![at(20, 3, FaultKind::Jam)];
    let lost = || vec![at(20, 3, FaultKind::Lose(30 * SECOND))];
    let replaced = (0..4)
        .map(|pod| at(8 + 12 * pod as u64, pod, FaultKind::Replace))
        .collect();
    let others = Plain {
        rate: 44.0,
        count: 2800,
        ..plain()
    };
    vec![
        new("engine-hangs", vec![at(20, 3, FaultKind::Hang)]),
        of(
            "engine-hangs-groups",
            Clients::Groups(groups()),
            vec![at(20, 3, FaultKind::Hang)],
        ),
        of(
            "engine-hangs-lora",
            Clients::Adapters(lora()),
            vec![at(20, 3, FaultKind::Hang)],
        ),
        new("scheduler-jams", jam()),
        Scenario {
            past_proxies: Some((3, 1.0)),
            ..of("scheduler-jams-lora", Clients::Adapters(lora()), jam())
        },
        new("engine-dies", vec![at(20, 3, FaultKind::Break(30 * SECOND))]),
        new("node-lost", lost()),
        of("node-lost-groups", Clients::Groups(groups()), lost()),
        Scenario {
            past_proxies: Some((2, 14.0)),
            ..of(
                "unread-busy",
                Clients::Plain(others),
                vec![at(10, 2, FaultKind::Unread)],
            )
        },
        Scenario {
            slow_start: Some("20s"),
            ..new("rolling-restart", replaced)
        },
    ]
}
