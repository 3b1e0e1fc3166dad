//! The pods: how they are asked for, and what an answer about all of them changes.

use super::answer::{Failure, advice, clip};
use super::schedule::Schedule;
use super::{Call, CallId, Poller, Stat, Target, from_environment, text};
use crate::clock::Now;
use crate::config::{Asks, Discovery};
use crate::discovery::endpoint_slices::Listing;
use crate::discovery::{self, Found, Refused, envoy_admin, json_list};
use crate::limits::{DISCOVERY_TIMEOUT, PODS_MAX};

/// Where the reading of the pods stands.
#[derive(Debug)]
pub(super) struct Finder {
    pub(super) schedule: Schedule,
    /// A list that comes in pages.
    listing: Listing,
    /// What was refused, as it was told last.
    refused: Option<Refused>,
}

impl Default for Finder {
    fn default() -> Self {
        Self {
            schedule: Schedule::at_once(),
            listing: Listing::default(),
            refused: None,
        }
    }
}

impl Finder {
    /// The next call.
    pub(super) fn call(&self, id: CallId, discovery: &Discovery) -> Call {
        let asked = |asks: &Asks| {
            let headers = [text("accept", "application/json"), text("accept-encoding", "identity")];
            { headers }.into_iter().chain(from_environment(&asks.headers)).collect()
        };
        let (cluster, authority, path, headers) = match discovery {
            Discovery::Kubernetes { asks, service } => {
                (&asks.cluster, &asks.authority, self.listing.path(service), asked(asks))
            }
            Discovery::Json { asks, path } => (&asks.cluster, &asks.authority, path.clone(), asked(asks)),
            Discovery::EnvoyAdmin { cluster, admin, .. } => {
                let headers = vec![text("accept", "application/json")];
                (admin, admin, envoy_admin::path(cluster), headers)
            }
            // Never due.
            Discovery::Static(_) => (&String::new(), &String::new(), "/".to_owned(), Vec::new()),
        };
        Call {
            id,
            target: Target::Discovery,
            cluster: cluster.clone(),
            path,
            authority: authority.clone(),
            headers,
            timeout: DISCOVERY_TIMEOUT,
        }
    }
}

/// All pods.
struct Set {
    found: Vec<Found>,
    /// What may not be a pod.
    refused: Option<Refused>,
}

impl Poller {
    pub(super) fn settle_discovery(&mut self, page: Result<&[u8], Failure>, now: Now) {
        let Some(interval) = self.pool.discovery.interval() else {
            return self.tally.add(Stat::AnswersIgnored, 1);
        };
        self.tally.add(Stat::DiscoveryReads, 1);
        let page = page.map_err(|failure| (failure.retry_after, advice(Target::Discovery, &failure, &self.pool)));
        match page.and_then(|page| self.read_pods(page).map_err(|error| (None, error))) {
            Ok(None) => self.finder.schedule.due = now.steady,
            Ok(Some(Set { found, refused })) => {
                self.finder.schedule.succeeded(interval, now);
                if self.discovered.error.is_some() {
                    self.journal.info(now, format_args!("discovery works again"));
                }
                self.tell_refused(refused, now);
                self.settle_pods(found, now);
            }
            Err((retry_after, error)) => {
                self.finder.listing = Listing::default();
                self.tally.add(Stat::DiscoveryFailures, 1);
                self.finder.schedule.failed(interval, retry_after, &mut self.rng, now);
                let error = Some(clip(&error));
                if self.discovered.error != error {
                    let (text, known) = (error.as_deref().unwrap_or_default(), self.pods.len());
                    self.journal.warn(
                        now,
                        format_args!("discovery: {text}; the {known} pods known so far stay"),
                    );
                }
                self.discovered.error = error;
                self.begun = true;
                self.dirty = true;
            }
        }
    }

    /// What an answer says; `None` = there is another page.
    fn read_pods(&mut self, page: &[u8]) -> Result<Option<Set>, String> {
        let found = match &self.pool.discovery {
            Discovery::Static(_) => Ok(None),
            Discovery::EnvoyAdmin { cluster, .. } => envoy_admin::read(page, cluster).map(Some),
            Discovery::Json { .. } => json_list::read(page).map(Some),
            Discovery::Kubernetes { service, .. } => self.finder.listing.add(page, service),
        };
        let Some(mut found) = found.map_err(|error| error.to_string())? else {
            return Ok(None);
        };
        let refused = discovery::admit(&mut found, &self.pool.allow).map_err(|error| error.to_string())?;
        Ok(Some(Set { found, refused }))
    }

    /// Addresses that are left out must not be left out unseen.
    fn tell_refused(&mut self, refused: Option<Refused>, now: Now) {
        let count = refused.as_ref().map_or(0, |refused| refused.count as u64);
        self.tally.set(Stat::AddressesRefused, count);
        if let Some(refused) = refused.as_ref().filter(|_| self.finder.refused != refused) {
            self.journal.warn(now, format_args!("discovery: {refused}"));
        }
        self.finder.refused = refused;
    }

    pub(super) fn tell_pods(&mut self, added: usize, gone: usize, left_out: usize, now: Now) {
        let journal = &mut self.journal;
        match self.pods.len() {
            0 => journal.warn(
                now,
                format_args!("discovery: the pool has no pods; are there endpoints, and is what is asked the pool's?"),
            ),
            pods => journal.info(now, format_args!("{pods} pods: {added} new, {gone} gone")),
        }
        if left_out > 0 {
            self.journal.warn(
                now,
                format_args!("discovery: {left_out} pods above {PODS_MAX} get no requests from Berth; split the pool"),
            );
        }
        if let Some(hint) = self.lone_service() {
            self.journal.info(now, format_args!("discovery: {hint}"));
        }
    }

    /// The only host of a cluster, where its name is that of a Kubernetes Service, may be no pod.
    fn lone_service(&self) -> Option<String> {
        let of_envoy = matches!(self.pool.discovery, Discovery::EnvoyAdmin { .. });
        let (address, pod) = self
            .pods
            .first_key_value()
            .filter(|_| of_envoy && self.pods.len() == 1)?;
        let name = pod.row.name.as_deref()?;
        let service = name.ends_with(".svc") || name.contains(".svc.");
        service.then(|| {
            format!(
                "{name} has one address, {address}; if the pool has more pods, it is the Service's own address \
                 (clusterIP), which hides them: make the Service headless (clusterIP: None)"
            )
        })
    }
}

/// What to do about several pods behind one address.
pub(super) fn several(discovery: &Discovery, pods: usize) -> String {
    match discovery {
        Discovery::EnvoyAdmin { cluster, .. } if pods == 1 => format!(
            "it is the only host of cluster {cluster:?}: a Service with a virtual address (make it headless, \
             clusterIP: None), or a cluster that takes one address of many (make it STRICT_DNS)"
        ),
        Discovery::EnvoyAdmin { .. } | Discovery::Static(_) => {
            "give the pool the pods' own addresses (a headless Service)".to_owned()
        }
        Discovery::Kubernetes { .. } => {
            "a Service does not list such addresses by itself: are its EndpointSlices written by hand?".to_owned()
        }
        Discovery::Json { .. } => {
            "the list must have the pods' own addresses, not a Service's or a balancer's".to_owned()
        }
    }
}
