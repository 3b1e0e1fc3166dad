//! Which scenarios there are. Rates are set so that the better policies see 55 to 75 % of what the pods can do.

use super::{Clients, Family, Scenario};
use crate::client::synthetic::{Adapters, Chats, Groups, Plain, Popularity};
use crate::client::trace::{Cut, Which};
use crate::fleet::{Fault, FaultKind};
use berth_tests_simulator::engine::{EngineConfig, Micros, StepCost};

pub(super) const SECOND: Micros = 1_000_000;

pub(super) fn h100(pods: usize) -> Vec<EngineConfig> {
    vec![EngineConfig::h100(); pods]
}

/// LoRA off, so that a page says so.
fn l4(pods: usize) -> Vec<EngineConfig> {
    vec![EngineConfig::l4(); pods]
}

/// The same GPU with room for the longest prompts of the Mooncake trace.
fn long_h100(pods: usize) -> Vec<EngineConfig> {
    vec![
        EngineConfig {
            max_model_len: 131_072,
            ..EngineConfig::h100()
        };
        pods
    ]
}

fn slower(config: EngineConfig, factor: u64) -> EngineConfig {
    let StepCost {
        base_ns,
        prefill_token_ns,
        decode_sequence_ns,
        ..
    } = config.cost;
    let cost = StepCost {
        base_ns: base_ns * factor,
        prefill_token_ns: prefill_token_ns * factor,
        decode_sequence_ns: decode_sequence_ns * factor,
        ..config.cost
    };
    EngineConfig { cost, ..config }
}

pub(super) fn groups() -> Groups {
    Groups {
        count: 3000,
        rate: 48.0,
        groups: 160,
        prefix: 4_000..12_000,
        own: 200..1_500,
        output: 150.0,
        popularity: Popularity::Even,
    }
}

pub(super) fn plain() -> Plain {
    Plain {
        count: 3600,
        rate: 56.0,
        prompt: 300..3_000,
        output: 180.0,
        bursts: None,
        long: None,
        impatient: None,
    }
}

pub(super) fn lora() -> Adapters {
    Adapters {
        count: 2800,
        rate: 40.0,
        adapters: 48,
        base: 0.1,
        prompt: 100..800,
        output: 120.0,
        rollout: None,
    }
}

fn chats() -> Chats {
    Chats {
        count: 500,
        rate: 5.5,
        systems: 4,
        system: 800..2_000,
        turns: 3..10,
        user: 50..800,
        output: 220.0,
        pause: 9.0,
    }
}

fn cut(rows: usize, speed: f64) -> Cut {
    Cut {
        rows,
        speed,
        prompt_max: u32::MAX,
        output_max: 2_000,
    }
}

fn prefixes() -> Vec<Scenario> {
    let new = |name: &str, pods, clients| Scenario::new(name, Family::Prefixes, pods, clients);
    let wide = Groups {
        groups: 380,
        rate: 38.0,
        count: 2600,
        ..groups()
    };
    let hot = Groups {
        groups: 120,
        popularity: Popularity::Hot(0.35),
        ..groups()
    };
    let zipf = Groups {
        groups: 300,
        popularity: Popularity::Zipf,
        ..groups()
    };
    let documents = Chats {
        count: 280,
        rate: 3.0,
        user: 500..5_000,
        turns: 3..8,
        output: 200.0,
        ..chats()
    };
    vec![
        Scenario {
            lookahead: true,
            ..new("groups", h100(8), Clients::Groups(groups()))
        },
        new("groups-wide", h100(8), Clients::Groups(wide)),
        new("groups-hot", h100(8), Clients::Groups(hot)),
        new("groups-zipf", h100(8), Clients::Groups(zipf)),
        Scenario {
            bytes_per_token: 3.1,
            full_pages: true,
            ..new("chats", h100(8), Clients::Chats(chats()))
        },
        new("chats-documents", h100(8), Clients::Chats(documents)),
        new("mooncake", long_h100(8), Clients::Trace(Which::Mooncake, cut(900, 3.5))),
        new(
            "mooncake-busy",
            long_h100(8),
            Clients::Trace(Which::Mooncake, cut(1000, 4.5)),
        ),
    ]
}

fn plains() -> Vec<Scenario> {
    let new = |name: &str, pods, clients| Scenario::new(name, Family::Plain, pods, clients);
    let small = Cut {
        prompt_max: 6_000,
        ..cut(420, 0.6)
    };
    let bursts = Plain {
        count: 2600,
        rate: 16.0,
        output: 150.0,
        bursts: Some((240, 90)),
        ..plain()
    };
    let long = Plain {
        count: 850,
        rate: 10.5,
        prompt: 500..3_000,
        output: 250.0,
        long: Some((0.08, 16_000..30_000)),
        ..plain()
    };
    let tight = vec![
        EngineConfig {
            num_gpu_blocks: 6_000,
            ..EngineConfig::h100()
        };
        4
    ];
    vec![
        Scenario {
            lookahead: true,
            ..new("azure-code", h100(4), Clients::Trace(Which::AzureCode, cut(1900, 6.0)))
        },
        new("azure-conv", h100(4), Clients::Trace(Which::AzureConv, cut(2800, 7.0))),
        new("azure-conv-l4", l4(8), Clients::Trace(Which::AzureConv, small)),
        new("bursts", h100(4), Clients::Plain(bursts)),
        new("long-contexts", tight.clone(), Clients::Plain(long.clone())),
        Scenario {
            bytes_per_token: 2.0,
            ..new("long-contexts-2-bytes", tight, Clients::Plain(long))
        },
    ]
}

fn unequal() -> Vec<Scenario> {
    let new = |name: &str, pods, clients| Scenario::new(name, Family::Unequal, pods, clients);
    let mixed = || [h100(4), l4(4)].concat();
    let halves = [h100(4), vec![slower(EngineConfig::h100(), 2); 4]].concat();
    let small = vec![
        EngineConfig {
            num_gpu_blocks: 2_500,
            ..EngineConfig::h100()
        };
        4
    ];
    let groups = Groups {
        count: 2000,
        rate: 30.0,
        groups: 120,
        prefix: 1_000..4_000,
        own: 100..1_000,
        ..groups()
    };
    let azure = Cut {
        prompt_max: 6_000,
        ..cut(2200, 5.5)
    };
    vec![
        Scenario {
            lookahead: true,
            ..new("h100-and-l4", mixed(), Clients::Trace(Which::AzureConv, azure))
        },
        new("h100-and-l4-groups", mixed(), Clients::Groups(groups)),
        new(
            "half-speed",
            halves,
            Clients::Plain(Plain {
                rate: 40.0,
                count: 2800,
                ..plain()
            }),
        ),
        new(
            "small-kv",
            [h100(4), small].concat(),
            Clients::Plain(Plain {
                rate: 28.0,
                count: 2200,
                prompt: 500..6_000,
                output: 250.0,
                ..plain()
            }),
        ),
    ]
}

fn loras() -> Vec<Scenario> {
    let new = |name: &str, adapters| Scenario::new(name, Family::Lora, h100(8), Clients::Adapters(adapters));
    vec![
        Scenario {
            lookahead: true,
            ..new("lora-zipf", lora())
        },
        new(
            "lora-many",
            Adapters {
                adapters: 200,
                rate: 26.0,
                count: 2000,
                ..lora()
            },
        ),
        new(
            "lora-rollout",
            Adapters {
                adapters: 32,
                rollout: Some(35 * SECOND),
                ..lora()
            },
        ),
    ]
}

fn faults() -> Vec<Scenario> {
    let new = |name: &str, faults| Scenario {
        faults,
        ..Scenario::new(name, Family::Faults, h100(8), Clients::Plain(plain()))
    };
    let at_20s = |pod, kind| {
        vec![Fault {
            pod,
            at: 20 * SECOND,
            kind,
        }]
    };
    let frozen_at_once = vec![Fault {
        pod: 2,
        at: 0,
        kind: FaultKind::Freeze,
    }];
    let impatient = Plain {
        impatient: Some((0.25, 1.5)),
        ..plain()
    };
    vec![
        new("frozen-empty", frozen_at_once),
        new("frozen-busy", at_20s(2, FaultKind::Freeze)),
        Scenario {
            lookahead: true,
            ..new("slow-pod", at_20s(1, FaultKind::Slow(10.0)))
        },
        new("dead-slow-pod", at_20s(1, FaultKind::Slow(100.0))),
        new("unread-joiner", at_20s(7, FaultKind::JoinUnread)),
        new("death", at_20s(3, FaultKind::Die(30 * SECOND))),
        Scenario {
            clients: Clients::Plain(impatient),
            ..new("cancels", Vec::new())
        },
    ]
}

/// What runs with several proxies, too, beside the scenarios that are made for it: of each family those that
/// differ in what proxies must know of each other.
const WITH_PROXIES: [&str; 18] = [
    "groups-wide",
    "groups-zipf",
    "chats-documents",
    "mooncake",
    "azure-code",
    "azure-conv",
    "long-contexts",
    "h100-and-l4",
    "h100-and-l4-groups",
    "half-speed",
    "small-kv",
    "lora-many",
    "lora-rollout",
    "slow-pod",
    "unread-joiner",
    "death",
    "groups-64",
    "plain-64",
];

fn proxies(family: Family, proxies: usize) -> Vec<Scenario> {
    let new = |name: &str, clients| Scenario::new(name, family, h100(8), clients);
    let made = vec![
        new("groups", Clients::Groups(groups())),
        new("chats", Clients::Chats(chats())),
        new("plain", Clients::Plain(plain())),
        new("lora", Clients::Adapters(lora())),
    ];
    let others = [prefixes(), plains(), unequal(), loras(), faults(), many_pods()].concat();
    let too = others
        .into_iter()
        .filter(|scenario| WITH_PROXIES.contains(&scenario.name.as_str()));
    let with = |scenario: Scenario| Scenario {
        name: format!("{}-{proxies}-proxies", scenario.name),
        family,
        ..scenario.with_proxies(proxies)
    };
    made.into_iter().chain(too).map(with).collect()
}

fn many_pods() -> Vec<Scenario> {
    let new = |name: &str, clients| Scenario::new(name, Family::Pods64, l4(64), clients);
    let groups = Groups {
        count: 3000,
        rate: 44.0,
        groups: 500,
        prefix: 800..3_000,
        own: 50..400,
        output: 100.0,
        ..groups()
    };
    let plain = Plain {
        count: 2000,
        rate: 30.0,
        prompt: 300..2_000,
        output: 150.0,
        ..plain()
    };
    let lora = Adapters {
        count: 2000,
        rate: 26.0,
        adapters: 300,
        prompt: 100..600,
        output: 100.0,
        ..lora()
    };
    vec![
        new("groups-64", Clients::Groups(groups)),
        new("plain-64", Clients::Plain(plain)),
        new("lora-64", Clients::Adapters(lora)),
    ]
}

fn workers() -> Vec<Scenario> {
    let mut all = Vec::new();
    for workers in [1, 2, 8] {
        let new = |name: &str, clients| Scenario {
            workers,
            ..Scenario::new(&format!("{name}-{workers}-workers"), Family::Workers, h100(8), clients)
        };
        all.push(new("groups", Clients::Groups(groups())));
        all.push(new("plain", Clients::Plain(plain())));
        all.push(new("lora", Clients::Adapters(lora())));
    }
    all
}

fn scrapes() -> Vec<Scenario> {
    let mut all = Vec::new();
    for scrape_ms in [200, 1000, 5000] {
        let new = |name: &str, clients| Scenario {
            scrape_ms: Some(scrape_ms),
            ..Scenario::new(&format!("{name}-{scrape_ms}ms"), Family::Scrape, h100(8), clients)
        };
        all.push(new("groups", Clients::Groups(groups())));
        all.push(new("plain", Clients::Plain(plain())));
        all.push(new("lora", Clients::Adapters(lora())));
    }
    all
}

/// All scenarios, family by family.
#[must_use]
pub fn catalogue() -> Vec<Scenario> {
    [
        prefixes(),
        plains(),
        unequal(),
        loras(),
        faults(),
        super::hangs::hangs(),
        proxies(Family::Proxies4, 4),
        proxies(Family::Proxies16, 16),
        many_pods(),
        workers(),
        scrapes(),
    ]
    .concat()
}

/// The same clients at rising rates, for the plot of time against load: (part of the usual rate, scenario).
#[must_use]
pub fn load_sweep() -> Vec<(&'static str, f64, Scenario)> {
    let mut all = Vec::new();
    for load in [0.4, 0.7, 1.0, 1.2, 1.4] {
        let groups = Groups {
            rate: groups().rate * load,
            count: 1800,
            ..groups()
        };
        let plain = Plain {
            rate: plain().rate * load,
            count: 1500,
            ..plain()
        };
        let scenario = |clients| Scenario::new("sweep", Family::Plain, h100(8), clients);
        all.push(("groups", load, scenario(Clients::Groups(groups))));
        all.push(("plain", load, scenario(Clients::Plain(plain))));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn what_runs_with_several_proxies_exists() {
        for (family, proxies) in [(Family::Proxies4, 4), (Family::Proxies16, 16)] {
            let all = super::proxies(family, proxies);
            assert_eq!(all.len(), 4 + WITH_PROXIES.len());
            assert!(all.iter().all(|scenario| scenario.proxies == proxies));
        }
    }

    #[test]
    fn names_are_unique_and_every_family_has_a_scenario() {
        let all = catalogue();
        let names: BTreeSet<&str> = all.iter().map(|scenario| scenario.name.as_str()).collect();
        assert_eq!(names.len(), all.len());
        for family in Family::ALL {
            assert!(
                all.iter().any(|scenario| scenario.family == family),
                "{}",
                family.name()
            );
        }
    }
}
