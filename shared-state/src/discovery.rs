//! From an answer about a pool's pods to the set of pods.
//!
//! A kind of discovery is a file below: how to ask (a path) and how to read the answer. When to ask,
//! and what to do with a bad answer, is the poller's part ([`crate::poll`]), the same for all kinds.
//! A static list needs neither: [`fixed`].

pub mod envoy_admin;

use core::fmt;

use crate::limits::{DISCOVERY_PAGE_MAX_BYTES, PODS_MAX};
use crate::pod::PodAddress;
use crate::table::Readiness;

/// One pod, as discovery shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// What the proxy dials.
    pub address: PodAddress,
    /// A person's name for it.
    pub name: Option<String>,
    /// May it get requests?
    pub readiness: Readiness,
    /// Requests in flight from this proxy, as the proxy counts them.
    pub proxy_active: Option<u32>,
}

impl Found {
    /// A pod of which discovery knows the address alone.
    #[must_use]
    pub const fn at(address: PodAddress) -> Self {
        Self {
            address,
            name: None,
            readiness: Readiness::Unknown,
            proxy_active: None,
        }
    }
}

/// Why an answer says nothing about the pods. The last good set stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiscoveryError {
    /// Larger than [`DISCOVERY_PAGE_MAX_BYTES`].
    TooLarge(usize),
    /// Not the JSON of `/clusters?format=json`.
    NotClusters,
    /// The proxy does not know the cluster.
    NoSuchCluster(String),
}

impl fmt::Display for DiscoveryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge(bytes) => write!(
                f,
                "the answer has {bytes} bytes, the bound is {DISCOVERY_PAGE_MAX_BYTES}; Envoy before 1.38 lists \
                 every cluster: use a static list, or fewer clusters"
            ),
            Self::NotClusters => f.write_str(
                "the answer is not the JSON of /clusters?format=json; does discovery.admin lead to the admin listener?",
            ),
            Self::NoSuchCluster(name) => write!(
                f,
                "the proxy has no cluster {name:?}; check discovery.cluster against the admin page /clusters"
            ),
        }
    }
}

/// A static list as a set of pods. It says nothing about readiness.
#[must_use]
pub fn fixed(addresses: &[PodAddress]) -> Vec<Found> {
    one_per_address(addresses.iter().copied().map(Found::at).collect())
}

/// Orders by address and folds an address that is listed several times (priorities, a cluster that
/// is being replaced) into one pod: the best readiness, the sum of its requests.
#[must_use]
pub fn one_per_address(mut pods: Vec<Found>) -> Vec<Found> {
    pods.sort_by_key(|pod| pod.address);
    pods.dedup_by(|again, first| {
        let same = again.address == first.address;
        if same {
            first.readiness = better(first.readiness, again.readiness);
            first.proxy_active = match (first.proxy_active, again.proxy_active) {
                (Some(a), Some(b)) => Some(a.saturating_add(b)),
                (a, b) => a.or(b),
            };
            first.name = first.name.take().or(again.name.take());
        }
        same
    });
    pods
}

/// The proxy may use the pod where it is in the best state.
const fn better(a: Readiness, b: Readiness) -> Readiness {
    use Readiness::{Draining, NotReady, Ready, Unknown};
    match (a, b) {
        (Ready, _) | (_, Ready) => Ready,
        (Unknown, _) | (_, Unknown) => Unknown,
        (Draining, Draining) => Draining,
        (NotReady, _) | (_, NotReady) => NotReady,
    }
}

/// Cuts a set of pods, ordered by address, to [`PODS_MAX`]. Returns how many were left out.
pub fn cut(pods: &mut Vec<Found>) -> usize {
    let left_out = pods.len().saturating_sub(PODS_MAX);
    pods.truncate(PODS_MAX);
    left_out
}

#[cfg(test)]
mod tests;
