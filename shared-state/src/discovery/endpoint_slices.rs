//! Kubernetes EndpointSlices (`discovery.k8s.io/v1`) of one Service, from the API's JSON list.
//!
//! A Service has several slices: of at most 100 endpoints by default, one kind per address family, and an
//! endpoint may stand in two of them while it moves. A long list comes in pages that belong together by
//! their `resourceVersion`; an older page beside a newer one could lack a pod that moved between slices,
//! so such a list is read anew.
//!
//! Deliberately not here: a watch. A callout's answer is had when it is complete, and a watch never is.

use core::net::{IpAddr, SocketAddr};
use std::collections::BTreeSet;

use serde::Deserialize;

use super::capped::Capped;
use super::{DiscoveryError, Found, label, one_per_address, shown, unreserved};
use crate::config::{Family, PortOf, Service};
use crate::limits::{
    CONTINUE_MAX_BYTES, DISCOVERED_MAX, DISCOVERY_PAGE_MAX_BYTES, ENDPOINTS_PER_SLICE_MAX, LIST_PAGES_MAX,
    PORTS_PER_SLICE_MAX, SLICES_PER_ANSWER_MAX, SLICES_PER_PAGE, TEXT_MAX_BYTES,
};
use crate::pod::PodAddress;
use crate::table::Readiness;

/// A list that comes in pages: what the pages so far say.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// Where the next page begins; `None` = at the first one.
    next: Option<String>,
    version: String,
    pages: usize,
    slices: usize,
    members: Vec<Member>,
    /// Ports of slices from which no port could be taken, for the message: the start of the name, and the number.
    unfit: BTreeSet<(String, u16)>,
    /// Such slices have endpoints.
    portless: bool,
}

/// One endpoint on one port.
#[derive(Clone, Debug)]
struct Member {
    found: Found,
    /// Which endpoint it is, to know it again in the other family.
    of: Option<String>,
}

impl Listing {
    /// Path of the next page.
    #[must_use]
    pub fn path(&self, service: &Service) -> String {
        let mut path = format!(
            "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3D{}&limit={SLICES_PER_PAGE}",
            unreserved(&service.namespace),
            unreserved(&service.name)
        );
        if let Some(next) = &self.next {
            path.push_str("&continue=");
            path.push_str(&unreserved(next));
        }
        path
    }

    /// Takes a page in. The pods, ordered by address, when it was the last one; `None` = there are more.
    /// After an error the list begins anew.
    ///
    /// # Errors
    /// See [`DiscoveryError`]. A Service whose slices are empty is an answer, not an error.
    pub fn add(&mut self, page: &[u8], service: &Service) -> Result<Option<Vec<Found>>, DiscoveryError> {
        let mut so_far = core::mem::take(self);
        let more = so_far.take_in(page, service)?;
        if more {
            *self = so_far;
            return Ok(None);
        }
        so_far.finish(service).map(Some)
    }

    /// Whether there are more pages.
    fn take_in(&mut self, page: &[u8], service: &Service) -> Result<bool, DiscoveryError> {
        if page.len() > DISCOVERY_PAGE_MAX_BYTES {
            return Err(DiscoveryError::TooLarge(page.len()));
        }
        let list: List = serde_json::from_slice(page).map_err(|_| DiscoveryError::NotSlices)?;
        if list.kind != "EndpointSliceList" {
            return Err(DiscoveryError::NotSlices);
        }
        let version = list.metadata.resource_version.unwrap_or_default();
        if self.pages > 0 && version != self.version {
            return Err(DiscoveryError::Changed);
        }
        self.version = version;
        self.pages += 1;
        let slices = list.items.unwrap_or_default();
        let mut too_many = slices.left_out > 0;
        for slice in slices.items {
            // A proxy in between that drops the selector would show every pod of the namespace.
            let labels = slice.metadata.labels.as_ref();
            if labels.and_then(|labels| labels.service.as_ref()) == Some(&service.name) {
                self.slices += 1;
                too_many |= self.slice(slice, service);
            }
        }
        self.next = list.metadata.next.filter(|next| !next.is_empty());
        let long = |next: &String| next.len() > CONTINUE_MAX_BYTES;
        if too_many || self.members.len() > DISCOVERED_MAX || self.next.as_ref().is_some_and(long) {
            return Err(DiscoveryError::TooMany);
        }
        if self.next.is_some() && self.pages >= LIST_PAGES_MAX {
            return Err(DiscoveryError::TooMany);
        }
        Ok(self.next.is_some())
    }

    /// Returns whether it had more endpoints than the API allows.
    fn slice(&mut self, slice: Slice, service: &Service) -> bool {
        let endpoints = slice.endpoints.unwrap_or_default();
        let ports = slice.ports.unwrap_or_default();
        let ports: Vec<(String, u16)> = { ports.items }.into_iter().filter_map(Port::tcp).collect();
        let wanted = wanted(&ports, &service.ports);
        if wanted.is_empty() {
            self.portless |= !endpoints.items.is_empty();
            self.remember(&ports);
        }
        for endpoint in endpoints.items {
            let first = endpoint.addresses.as_ref().and_then(|list| list.items.first());
            // Slices of the type FQDN have names here: no proxy dials a pod by one.
            let Some(ip) = first.and_then(|address| address.parse::<IpAddr>().ok()) else {
                continue;
            };
            let target = endpoint.target.unwrap_or_default();
            let readiness = endpoint.conditions.unwrap_or_default().readiness();
            let kept = |text: &String| (1..=TEXT_MAX_BYTES).contains(&text.len());
            let name = target.name.or(endpoint.hostname).filter(kept);
            let zone = endpoint.zone.as_deref().and_then(|zone| label("zone", zone));
            let node = endpoint.node.as_deref().and_then(|node| label("node", node));
            let labels: Vec<String> = zone.into_iter().chain(node).collect();
            let of = target.uid.filter(kept).or_else(|| name.clone());
            for port in &wanted {
                self.members.push(Member {
                    found: Found {
                        name: name.clone(),
                        readiness,
                        labels: labels.clone(),
                        ..Found::at(PodAddress::new(SocketAddr::new(ip, *port)))
                    },
                    of: of.clone(),
                });
            }
            if self.members.len() > DISCOVERED_MAX {
                return true;
            }
        }
        endpoints.left_out > 0
    }

    /// Keeps no more of the ports than the message may show: its start, and they stand there in order.
    fn remember(&mut self, ports: &[(String, u16)]) {
        self.unfit
            .extend(ports.iter().map(|(name, number)| (shown(name), *number)));
        while self.unfit.len() > PORTS_PER_SLICE_MAX {
            self.unfit.pop_last();
        }
    }

    fn finish(self, service: &Service) -> Result<Vec<Found>, DiscoveryError> {
        if self.slices == 0 {
            return Err(DiscoveryError::NoSuchService(shown(&format!(
                "{}/{}",
                service.namespace, service.name
            ))));
        }
        if self.members.is_empty() && self.portless {
            let ports: Vec<String> = { self.unfit }
                .into_iter()
                .map(|(name, number)| format!("{} {number}", if name.is_empty() { "(unnamed)" } else { &name }))
                .collect();
            return Err(DiscoveryError::NoPort(shown(&ports.join(", "))));
        }
        Ok(one_per_address(one_family(self.members, service.prefer)))
    }
}

/// Numbers of the ports that are pods. A name may be another number in another slice.
fn wanted(ports: &[(String, u16)], of: &[PortOf]) -> Vec<u16> {
    let numbers: BTreeSet<u16> = match of {
        [] => {
            let all: BTreeSet<u16> = ports.iter().map(|(_, number)| *number).collect();
            if all.len() == 1 { all } else { BTreeSet::new() }
        }
        of => of
            .iter()
            .filter_map(|port| match port {
                PortOf::Number(number) => Some(*number),
                PortOf::Name(name) => ports.iter().find(|(known, _)| known == name).map(|(_, number)| *number),
            })
            .collect(),
    };
    numbers.into_iter().collect()
}

/// A pod of a dual-stack Service has an address of each family, and is one pod.
fn one_family(members: Vec<Member>, prefer: Family) -> Vec<Found> {
    let preferred = |member: &Member| match prefer {
        Family::Ipv4 => member.found.address.socket().is_ipv4(),
        Family::Ipv6 => member.found.address.socket().is_ipv6(),
    };
    let chosen: BTreeSet<String> = { &members }
        .iter()
        .filter(|member| preferred(member))
        .filter_map(|member| member.of.clone())
        .collect();
    let has_better = |member: &Member| member.of.as_ref().is_some_and(|of| chosen.contains(of));
    let kept = { members }
        .into_iter()
        .filter(|member| preferred(member) || !has_better(member));
    kept.map(|member| member.found).collect()
}

#[derive(Deserialize)]
struct List {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    metadata: ListMeta,
    items: Option<Capped<Slice, SLICES_PER_ANSWER_MAX>>,
}

#[derive(Default, Deserialize)]
struct ListMeta {
    #[serde(rename = "resourceVersion")]
    resource_version: Option<String>,
    #[serde(rename = "continue")]
    next: Option<String>,
}

#[derive(Deserialize)]
struct Slice {
    #[serde(default)]
    metadata: SliceMeta,
    endpoints: Option<Capped<Endpoint, ENDPOINTS_PER_SLICE_MAX>>,
    ports: Option<Capped<Port, PORTS_PER_SLICE_MAX>>,
}

#[derive(Default, Deserialize)]
struct SliceMeta {
    labels: Option<Labels>,
}

#[derive(Default, Deserialize)]
struct Labels {
    #[serde(rename = "kubernetes.io/service-name")]
    service: Option<String>,
}

#[derive(Deserialize)]
struct Endpoint {
    /// The first counts; more are deprecated.
    addresses: Option<Capped<String, 1>>,
    conditions: Option<Conditions>,
    hostname: Option<String>,
    zone: Option<String>,
    #[serde(rename = "nodeName")]
    node: Option<String>,
    #[serde(rename = "targetRef")]
    target: Option<Target>,
}

#[derive(Default, Deserialize)]
struct Target {
    name: Option<String>,
    uid: Option<String>,
}

#[derive(Default, Deserialize)]
struct Conditions {
    ready: Option<bool>,
    serving: Option<bool>,
    terminating: Option<bool>,
}

impl Conditions {
    /// The API says that an absent `ready` means ready, and an absent `serving` what `ready` says. A pod
    /// that terminates but still serves ends what it has and should get nothing new.
    fn readiness(&self) -> Readiness {
        let ready = self.ready.unwrap_or(true);
        match (self.terminating.unwrap_or(false), self.serving.unwrap_or(ready)) {
            (true, true) => Readiness::Draining,
            (false, _) if ready => Readiness::Ready,
            _ => Readiness::NotReady,
        }
    }
}

#[derive(Deserialize)]
struct Port {
    name: Option<String>,
    port: Option<u16>,
    protocol: Option<String>,
}

impl Port {
    fn tcp(self) -> Option<(String, u16)> {
        let tcp = self.protocol.is_none_or(|protocol| protocol == "TCP");
        let number = self.port.filter(|number| *number != 0 && tcp)?;
        Some((self.name.unwrap_or_default(), number))
    }
}

#[cfg(test)]
mod tests;
