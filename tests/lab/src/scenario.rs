//! The scenarios: pods, clients, faults, proxies. One place to add one's own.

mod catalogue;
mod hangs;

pub use catalogue::{catalogue, load_sweep};

use crate::client::synthetic::{Adapters, Chats, Groups, Plain, adapter_name, past_proxies};
use crate::client::trace::{Cut, Traces, Which};
use crate::client::{Job, finish};
use crate::fleet::{Fault, Fleet, Pod};
use berth_tests_simulator::engine::{Adapter, EngineConfig, Micros};

/// What is aimed at together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// Shared prefixes, chats, Mooncake.
    Prefixes,
    /// Azure, bursts, long contexts.
    Plain,
    /// Pods of different speed or size.
    Unequal,
    /// Adapters.
    Lora,
    /// Something goes wrong.
    Faults,
    /// Pods that seem to serve, and do not.
    Hangs,
    /// Four proxies that do not talk to each other.
    Proxies4,
    /// Sixteen of them.
    Proxies16,
    /// Many pods.
    Pods64,
    /// 1, 2 and 8 workers of one proxy; Berth against itself.
    Workers,
    /// Scrape intervals of 0.2, 1 and 5 s; Berth against itself.
    Scrape,
    /// More than the pods can do; Berth against itself, by classes of requests ([`crate::overload`]).
    Overload,
}

impl Family {
    /// Those that are compared, in the order of the tables.
    pub const ALL: [Self; 11] = [
        Self::Prefixes,
        Self::Plain,
        Self::Unequal,
        Self::Lora,
        Self::Faults,
        Self::Hangs,
        Self::Proxies4,
        Self::Proxies16,
        Self::Pods64,
        Self::Workers,
        Self::Scrape,
    ];

    /// Its name in tables and files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Prefixes => "prefixes",
            Self::Plain => "plain",
            Self::Unequal => "unequal",
            Self::Lora => "lora",
            Self::Faults => "faults",
            Self::Hangs => "hangs",
            Self::Proxies4 => "proxies-4",
            Self::Proxies16 => "proxies-16",
            Self::Pods64 => "pods-64",
            Self::Workers => "workers",
            Self::Scrape => "scrape",
            Self::Overload => "overload",
        }
    }

    /// What Berth's ratios to the greedy reference should be at most: mean and p99 of the time to first token.
    #[must_use]
    pub const fn aim(self) -> Option<(f64, f64)> {
        match self {
            Self::Prefixes => Some((1.10, 1.25)),
            Self::Plain => Some((1.05, 1.25)),
            Self::Unequal => Some((1.25, 1.5)),
            Self::Lora => Some((1.20, 1.3)),
            Self::Faults => Some((1.05, 1.3)),
            Self::Proxies4 => Some((1.5, 1.6)),
            Self::Proxies16 => Some((1.8, 1.9)),
            Self::Pods64 => Some((1.05, 1.4)),
            Self::Hangs | Self::Workers | Self::Scrape | Self::Overload => None,
        }
    }

    /// Only Berth and the greedy reference run here.
    #[must_use]
    pub const fn is_about_berth_alone(self) -> bool {
        matches!(self, Self::Workers | Self::Scrape | Self::Overload)
    }
}

/// Who sends.
#[derive(Debug, Clone)]
pub enum Clients {
    /// Shared prefixes.
    Groups(Groups),
    /// Conversations.
    Chats(Chats),
    /// A public trace.
    Trace(Which, Cut),
    /// Adapters.
    Adapters(Adapters),
    /// Prompts that share nothing.
    Plain(Plain),
}

/// One scenario.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Short and unique.
    pub name: String,
    /// Whom it counts for.
    pub family: Family,
    /// The pods.
    pub pods: Vec<EngineConfig>,
    /// Who sends.
    pub clients: Clients,
    /// Others send so many requests a second straight to a pod: (pod, rate). They wait as long as it takes.
    pub past_proxies: Option<(usize, f64)>,
    /// All clients leave without a first token after this time.
    pub gives_up_after: Option<Micros>,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// Proxies that do not talk to each other.
    pub proxies: usize,
    /// Workers in each.
    pub workers: usize,
    /// Berth's scrape interval in milliseconds; none = its default.
    pub scrape_ms: Option<u64>,
    /// Berth's `slow_start`; none = its default, off.
    pub slow_start: Option<&'static str>,
    /// Berth's `admission`; none = its default.
    pub admission: Option<serde_json::Value>,
    /// Bytes of text that make a token.
    pub bytes_per_token: f64,
    /// The pods write the full recorded page, not the short one.
    pub full_pages: bool,
    /// The lookahead reference runs here too: it is slow.
    pub lookahead: bool,
}

impl Scenario {
    /// One proxy with two workers, nothing wrong.
    #[must_use]
    pub fn new(name: &str, family: Family, pods: Vec<EngineConfig>, clients: Clients) -> Self {
        Self {
            name: name.to_owned(),
            family,
            pods,
            clients,
            past_proxies: None,
            gives_up_after: None,
            faults: Vec::new(),
            proxies: 1,
            workers: 2,
            scrape_ms: None,
            slow_start: None,
            admission: None,
            bytes_per_token: 4.0,
            full_pages: false,
            lookahead: false,
        }
    }

    /// The same with so many proxies. The slow reference need not run again: it does not care how many there are.
    #[must_use]
    pub fn with_proxies(self, proxies: usize) -> Self {
        Self {
            proxies,
            lookahead: false,
            ..self
        }
    }

    /// Its jobs; `size` scales their number.
    #[must_use]
    pub fn jobs(&self, traces: &Traces, seed: u64, size: f64) -> Vec<Job> {
        let count = |count: usize| ((count as f64 * size) as usize).max(20);
        let mut jobs = match &self.clients {
            Clients::Groups(groups) => Groups {
                count: count(groups.count),
                ..groups.clone()
            }
            .jobs(seed),
            Clients::Chats(chats) => Chats {
                count: count(chats.count),
                ..chats.clone()
            }
            .jobs(seed),
            Clients::Trace(which, cut) => traces.jobs(
                *which,
                Cut {
                    rows: count(cut.rows),
                    ..*cut
                },
                seed,
            ),
            Clients::Adapters(adapters) => Adapters {
                count: count(adapters.count),
                rollout: adapters.rollout.map(|at| (at as f64 * size) as Micros),
                ..adapters.clone()
            }
            .jobs(seed),
            Clients::Plain(plain) => Plain {
                count: count(plain.count),
                ..plain.clone()
            }
            .jobs(seed),
        };
        jobs.iter_mut().for_each(|job| job.gives_up_after = self.gives_up_after);
        if let Some((pod, rate)) = self.past_proxies {
            let until = jobs.iter().map(|job| job.at).max().unwrap_or(0);
            jobs.extend(past_proxies(pod, rate, until, seed));
        }
        finish(jobs, seed)
    }

    /// Its pods before the first request.
    #[must_use]
    pub fn fleet(&self) -> Fleet {
        let adapters = match &self.clients {
            Clients::Adapters(Adapters { adapters, rollout, .. }) => {
                let versions = 1..=1 + u32::from(rollout.is_some());
                versions
                    .flat_map(|version| (0..*adapters).map(move |index| Adapter::from(adapter_name(index, version))))
                    .collect()
            }
            _ => Vec::new(),
        };
        let pods = self
            .pods
            .iter()
            .map(|config| Pod::new(config.clone(), self.full_pages))
            .collect();
        Fleet {
            pods,
            adapters,
            discovery: 0,
        }
    }
}
