//! The policies that are compared. Each is a [`Router`], one for each proxy.

pub mod berth;
pub mod clairvoyant;
pub mod epp;
pub mod simple;
pub mod smg;

use crate::scenario::Scenario;
use crate::world::Router;
use berth_tests_simulator::engine::Micros;
use berth_tests_simulator::random::mix2;

/// How often the reference picker reads metrics: its own default, whatever the scenario says for Berth.
pub const EPP_SCRAPE: Micros = 50_000;

/// One policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arm {
    /// The engines' true state: the least time to the request's own first token.
    Greedy,
    /// The same, with what the next requests would find.
    Lookahead,
    /// The shipped crates with shipped defaults.
    Berth,
    /// Any pod.
    Random,
    /// One after the other.
    RoundRobin,
    /// The better one of two, by own requests in flight (Envoy's least request).
    LeastP2c,
    /// The best of all, by own requests in flight.
    LeastFull,
    /// Reference picker, default profile: queue 2, KV 2, prefix 3.
    EppDefault,
    /// Reference picker: prefix-affinity filter, then token load.
    EppTokens,
    /// Reference picker: default profile and LoRA affinity 1.
    EppLora,
    /// SGLang model gateway, `cache_aware`.
    Smg,
    /// Consistent hashing with bounded loads, 125 % (KubeAI's `PrefixHash`).
    Chwbl,
}

impl Arm {
    /// All, in the order of the tables.
    pub const ALL: [Self; 12] = [
        Self::Greedy,
        Self::Lookahead,
        Self::Berth,
        Self::EppDefault,
        Self::EppTokens,
        Self::EppLora,
        Self::Smg,
        Self::Chwbl,
        Self::LeastFull,
        Self::LeastP2c,
        Self::RoundRobin,
        Self::Random,
    ];

    /// Its name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Greedy => "clairvoyant greedy",
            Self::Lookahead => "clairvoyant lookahead",
            Self::Berth => "berth",
            Self::Random => "random",
            Self::RoundRobin => "round robin",
            Self::LeastP2c => "least request (of two)",
            Self::LeastFull => "least request (of all)",
            Self::EppDefault => "EPP default",
            Self::EppTokens => "EPP affinity + token load",
            Self::EppLora => "EPP default + LoRA",
            Self::Smg => "SMG cache_aware",
            Self::Chwbl => "CHWBL 125 %",
        }
    }

    /// A reference knows what no router can.
    #[must_use]
    pub const fn is_reference(self) -> bool {
        matches!(self, Self::Greedy | Self::Lookahead)
    }

    /// Somebody else's policy.
    #[must_use]
    pub fn is_peer(self) -> bool {
        !self.is_reference() && self != Self::Berth
    }

    /// A router of this policy for one proxy.
    #[must_use]
    pub fn router(self, scenario: &Scenario, proxy: usize, seed: u64) -> Box<dyn Router> {
        let (pods, seed) = (scenario.pods.len(), mix2(mix2(seed, self as u64), proxy as u64));
        match self {
            Self::Greedy => Box::new(clairvoyant::Clairvoyant::greedy(seed)),
            Self::Lookahead => Box::new(clairvoyant::Clairvoyant::lookahead(seed)),
            Self::Berth => Box::new(berth::Berth::new(scenario, proxy, seed)),
            Self::Random => Box::new(simple::Simple::new(simple::Rule::Random, pods, seed)),
            Self::RoundRobin => Box::new(simple::Simple::new(simple::Rule::RoundRobin, pods, seed)),
            Self::LeastP2c => Box::new(simple::Simple::new(simple::Rule::LeastOfTwo, pods, seed)),
            Self::LeastFull => Box::new(simple::Simple::new(simple::Rule::LeastOfAll, pods, seed)),
            Self::EppDefault => Box::new(epp::Epp::new(epp::Profile::Default, &scenario.pods, seed)),
            Self::EppTokens => Box::new(epp::Epp::new(epp::Profile::AffinityAndTokens, &scenario.pods, seed)),
            Self::EppLora => Box::new(epp::Epp::new(epp::Profile::Lora, &scenario.pods, seed)),
            Self::Smg => Box::new(smg::Smg::new(pods, seed)),
            Self::Chwbl => Box::new(simple::Chwbl::new(pods)),
        }
    }
}
