//! From an answer about a pool's pods to the set of pods.
//!
//! A kind of discovery is a file below: how to ask (a path) and how to read the answer. When to ask,
//! and what to do with a bad answer, is the poller's part ([`crate::poll`]), the same for all kinds.
//! A static list needs neither: [`fixed`].

mod capped;
pub mod endpoint_slices;
pub mod envoy_admin;
pub mod json_list;
pub mod range;

use core::fmt;

use crate::limits::{DISCOVERED_MAX, DISCOVERY_PAGE_MAX_BYTES, LABEL_PART_MAX_BYTES, PODS_MAX, SHOWN_VALUE_MAX_CHARS};
use crate::pod::PodAddress;
use crate::table::Readiness;

use range::{Range, Refusal};

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
    /// The proxy was given this very address: no name was resolved, no list was asked for.
    pub given: bool,
    /// Labels, each `name=value`.
    pub labels: Vec<String>,
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
            given: false,
            labels: Vec::new(),
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
    /// Not a list of EndpointSlices.
    NotSlices,
    /// No slice is of this service.
    NoSuchService(String),
    /// There are endpoints, but none of these ports is the one.
    NoPort(String),
    /// The pages are of different versions of the list.
    Changed,
    /// Not a JSON list of pods.
    NotAList,
    /// An entry of the list that is no address.
    NotAnAddress(String),
    /// More than [`DISCOVERED_MAX`] addresses, or a list beyond another bound: of its pages, its slices, the endpoints
    /// of a slice, or the token that leads on.
    TooMany,
    /// Not one of the addresses may be a pod.
    AllRefused(Refused),
}

impl fmt::Display for DiscoveryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge(bytes) => write!(
                f,
                "the answer has {bytes} bytes, the bound is {DISCOVERY_PAGE_MAX_BYTES}; Envoy before 1.38 lists \
                 every cluster: use a static list, or fewer clusters"
            ),
            Self::NotSlices => f.write_str(
                "the answer is not a list of EndpointSlices; does discovery.cluster lead to the Kubernetes API?",
            ),
            Self::NoSuchService(name) => write!(
                f,
                "no EndpointSlice belongs to the service {name:?}; check discovery.namespace and discovery.service"
            ),
            Self::NoPort(ports) => write!(
                f,
                "it is not clear which port serves requests: there are [{ports}]; name it in discovery.ports"
            ),
            Self::Changed => f.write_str("the list changed while it was read; it is read anew"),
            Self::NotAList => f.write_str(
                "the answer is not a JSON list of pods such as [\"10.0.0.1:8000\"]; check discovery.cluster and discovery.path",
            ),
            Self::NotAnAddress(text) => write!(f, "{text:?} is not ip:port; names are not accepted"),
            Self::TooMany => write!(
                f,
                "more than {DISCOVERED_MAX} addresses, or more pages, slices or endpoints than are read; split the pool"
            ),
            Self::AllRefused(refused) => refused.fmt(f),
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

/// Addresses that may not be pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// How many.
    pub count: usize,
    /// One of them, and why.
    pub example: (PodAddress, Refusal),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (address, why) = self.example;
        write!(f, "{} addresses are refused, {address} for example: {why}", self.count)
    }
}

/// Takes out what may not be a pod ([`range::refusal`]). What the proxy was given may be at the own machine.
///
/// # Errors
/// When nothing is left of what was there.
pub fn admit(found: &mut Vec<Found>, allow: &[Range]) -> Result<Option<Refused>, DiscoveryError> {
    let mut refused: Option<Refused> = None;
    found.retain(|pod| {
        let why = range::refusal(pod.address.socket().ip(), allow);
        let why = why.filter(|why| *why != Refusal::Local || !pod.given || !allow.is_empty());
        if let Some(why) = why {
            let example = (pod.address, why);
            refused.get_or_insert(Refused { count: 0, example }).count += 1;
        }
        why.is_none()
    });
    match refused {
        Some(refused) if found.is_empty() => Err(DiscoveryError::AllRefused(refused)),
        refused => Ok(refused),
    }
}

/// A label as the table has it; `None` for one that no config can name.
fn label(name: &str, value: &str) -> Option<String> {
    let plain =
        |part: &str| (1..=LABEL_PART_MAX_BYTES).contains(&part.len()) && part.bytes().all(crate::config::label_byte);
    (plain(name) && plain(value)).then(|| [name, "=", value].concat())
}

/// The start of a foreign text, for a message.
fn shown(text: &str) -> String {
    let visible = text.chars().filter(|character| !character.is_control());
    visible.take(SHOWN_VALUE_MAX_CHARS).collect()
}

/// A text as part of a query: what is reserved there is written by its number.
fn unreserved(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
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
            first.given |= again.given;
            first.labels.append(&mut again.labels);
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
