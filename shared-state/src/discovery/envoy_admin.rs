//! Envoy's admin page `/clusters?format=json`: every cluster with its hosts, their health and the
//! requests in flight on them.
//!
//! The filter came with Envoy 1.38; an older one ignores it and lists all clusters. So the answer is
//! read without keeping what is not needed. Proto3 JSON: zeros are left out, u64 are strings.

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use hashbrown::HashMap;
use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};
use std::borrow::Cow;

use super::{DiscoveryError, Found, label, one_per_address, unreserved};
use crate::limits::{DISCOVERY_PAGE_MAX_BYTES, TEXT_MAX_BYTES};
use crate::pod::PodAddress;
use crate::table::Readiness;

/// Path of the request for one cluster. The filter is a regular expression (RE2) on its name.
#[must_use]
pub fn path(cluster: &str) -> String {
    let exactly = ["^", &escaped(cluster), "$"].concat();
    ["/clusters?format=json&filter=", &unreserved(&exactly)].concat()
}

/// A regular expression that matches just this text.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars() {
        if r"\.+*?()|[]{}^$".contains(character) {
            out.push('\\');
        }
        out.push(character);
    }
    out
}

/// Reads the pods of one cluster, ordered by address.
///
/// # Errors
/// See [`DiscoveryError`]. A cluster without hosts is an answer, not an error.
pub fn read(page: &[u8], cluster: &str) -> Result<Vec<Found>, DiscoveryError> {
    if page.len() > DISCOVERY_PAGE_MAX_BYTES {
        return Err(DiscoveryError::TooLarge(page.len()));
    }
    if page.trim_ascii_start().first() != Some(&b'{') {
        return Err(DiscoveryError::NotClusters);
    }
    let page: Clusters<'_> = serde_json::from_slice(page).map_err(|_| DiscoveryError::NotClusters)?;
    let mut of_name = page
        .cluster_statuses
        .iter()
        .filter(|status| status.name == cluster)
        .peekable();
    if of_name.peek().is_none() {
        return Err(DiscoveryError::NoSuchCluster(cluster.chars().take(64).collect()));
    }
    let hosts: Vec<&Host<'_>> = of_name.flat_map(|status| &status.host_statuses).collect();
    let mut bearers: HashMap<&str, usize> = HashMap::new();
    for host in &hosts {
        *bearers.entry(&host.hostname).or_default() += 1;
    }
    // A DNS cluster gives all hosts the service's name, which tells no pod from another.
    let telling = |name: &str| !name.is_empty() && name.len() <= TEXT_MAX_BYTES && bearers.get(name) == Some(&1);
    let pods = hosts.iter().filter_map(|host| {
        let name = telling(&host.hostname).then(|| host.hostname.clone().into_owned());
        host.address().map(|address| Found {
            address,
            name,
            readiness: host.health_status.readiness(),
            proxy_active: Some(host.stats.rq_active),
            given: host.is_given(),
            labels: label("zone", &host.locality.zone).into_iter().collect(),
        })
    });
    Ok(one_per_address(pods.collect()))
}

#[derive(Deserialize)]
struct Clusters<'a> {
    #[serde(borrow, default)]
    cluster_statuses: Vec<Cluster<'a>>,
}

#[derive(Deserialize)]
struct Cluster<'a> {
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    host_statuses: Vec<Host<'a>>,
}

#[derive(Deserialize)]
struct Host<'a> {
    #[serde(borrow, default)]
    address: Address<'a>,
    #[serde(borrow, default)]
    hostname: Cow<'a, str>,
    #[serde(borrow, default)]
    health_status: Health<'a>,
    #[serde(default)]
    stats: Stats,
    #[serde(borrow, default)]
    locality: Locality<'a>,
}

#[derive(Default, Deserialize)]
struct Locality<'a> {
    #[serde(borrow, default)]
    zone: Cow<'a, str>,
}

/// Pipes and internal listeners have another field, and are no pods.
#[derive(Default, Deserialize)]
struct Address<'a> {
    #[serde(borrow)]
    socket_address: Option<Socket<'a>>,
}

#[derive(Deserialize)]
struct Socket<'a> {
    #[serde(borrow, default)]
    address: Cow<'a, str>,
    #[serde(default)]
    port_value: u16,
}

/// `envoy.admin.v3.HostHealthStatus`. The flags for degraded hosts are left out: such a host works.
#[derive(Default, Deserialize)]
struct Health<'a> {
    #[serde(borrow, default)]
    eds_health_status: Cow<'a, str>,
    #[serde(default)]
    failed_active_health_check: bool,
    #[serde(default)]
    failed_outlier_check: bool,
    #[serde(default)]
    active_hc_timeout: bool,
    #[serde(default)]
    excluded_via_immediate_hc_fail: bool,
    #[serde(default)]
    pending_dynamic_removal: bool,
}

impl Host<'_> {
    /// Hosts that came of a name carry it. Those of EDS and of a list in the configuration do not, unless somebody
    /// gave them one; a configured address is its own name.
    fn is_given(&self) -> bool {
        let address = self.address.socket_address.as_ref();
        self.hostname.is_empty() || address.is_some_and(|socket| socket.address == self.hostname)
    }

    fn address(&self) -> Option<PodAddress> {
        let socket = self.address.socket_address.as_ref()?;
        let ip: IpAddr = socket.address.parse().ok()?;
        (socket.port_value != 0).then(|| PodAddress::new(SocketAddr::new(ip, socket.port_value)))
    }
}

impl Health<'_> {
    fn readiness(&self) -> Readiness {
        let failed = self.failed_active_health_check
            || self.failed_outlier_check
            || self.active_hc_timeout
            || self.excluded_via_immediate_hc_fail;
        match self.eds_health_status.as_ref() {
            "DRAINING" => Readiness::Draining,
            _ if self.pending_dynamic_removal => Readiness::Draining,
            "UNHEALTHY" | "TIMEOUT" => Readiness::NotReady,
            _ if failed => Readiness::NotReady,
            "HEALTHY" | "DEGRADED" => Readiness::Ready,
            _ => Readiness::Unknown,
        }
    }
}

/// Of a dozen statistics per host, the one that is needed. Left out = zero.
#[derive(Default)]
struct Stats {
    rq_active: u32,
}

impl<'de> Deserialize<'de> for Stats {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Stats;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of statistics")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Stats, A::Error> {
                let mut stats = Stats::default();
                while let Some(stat) = seq.next_element::<Stat<'_>>()? {
                    if stat.name == "rq_active" {
                        stats.rq_active = stat.value.parse().unwrap_or(u32::MAX);
                    }
                }
                Ok(stats)
            }
        }
        deserializer.deserialize_seq(List)
    }
}

#[derive(Deserialize)]
struct Stat<'a> {
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    #[serde(borrow, default = "zero")]
    value: Cow<'a, str>,
}

const fn zero<'a>() -> Cow<'a, str> {
    Cow::Borrowed("0")
}
