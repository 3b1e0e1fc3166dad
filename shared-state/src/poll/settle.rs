//! What an answer changes.

use std::collections::BTreeSet;

use super::answer::{self, Failure, advice, clip};
use super::find;
use super::pod::{News, Pod};
use super::schedule::Schedule;
use super::{Outcome, Poller, Stat, Target};
use crate::clock::Now;
use crate::discovery::{self, Found};
use crate::limits::{
    DISCOVERY_PAGE_MAX_BYTES, FROZEN_AFTER, LABELS_PER_POD_MAX, MODELS_PAGE_MAX_BYTES, PAGE_MAX_BYTES,
};
use crate::metrics::{self, Hints};
use crate::models::{self, Model};
use crate::pod::PodAddress;
use crate::sample::{Sample, Status};
use crate::table::{Discovered, PodRow, Readiness, ScrapeError, Table, Trend};

impl Poller {
    /// What an answer says, whoever asked for it.
    pub(super) fn settle(&mut self, target: Target, outcome: Outcome<'_>, now: Now) {
        if let Ok(response) = &outcome {
            self.tally.add(Stat::Bytes, response.body.len());
        }
        match target {
            Target::Discovery => self.settle_discovery(answer::page(outcome, DISCOVERY_PAGE_MAX_BYTES), now),
            Target::Metrics(address) => {
                let hints = Hints {
                    engine: self.pool.engine,
                    known_adapters: self.pods.get(&address).map_or(&[], Pod::adapters),
                    now: now.wall,
                };
                let sample = answer::page(outcome, PAGE_MAX_BYTES).map(|page| metrics::read(page, hints));
                self.settle_metrics(address, sample, now);
            }
            Target::Models(address) => {
                let read = |page: &[u8]| models::read(page).map_err(|error| Failure::page(&error.to_string()));
                self.settle_models(
                    address,
                    answer::page(outcome, MODELS_PAGE_MAX_BYTES).and_then(read),
                    now,
                );
            }
        }
    }

    pub(super) fn settle_metrics(&mut self, address: PodAddress, sample: Result<Sample, Failure>, now: Now) {
        let pace = self.pace();
        let Some(pod) = self.pods.get_mut(&address) else {
            return self.tally.add(Stat::AnswersIgnored, 1);
        };
        self.dirty = true;
        self.tally.add(Stat::Scrapes, 1);
        let sample = sample.and_then(|sample| match sample.status {
            Status::Reject => Err(Failure::page(sample.reason.unwrap_or("not a metrics page"))),
            _ => Ok(sample),
        });
        match sample {
            Ok(sample) => {
                if pod.row.failures > 0 {
                    // It may have been starting: its models page can be had now.
                    pod.models.due = now.steady;
                }
                let incomplete = sample.reason.filter(|_| sample.status != Status::Ok);
                // A page without any load, HTML for one, was had but gives no reading.
                self.tally
                    .add(Stat::ScrapeFailures, usize::from(sample.status == Status::Unknown));
                let news = pod.read(sample, now);
                pod.metrics.succeeded(pace.metrics, now);
                self.tell_reading(address, &news, incomplete, now);
            }
            Err(failure) => {
                self.tally.add(Stat::ScrapeFailures, 1);
                self.tally
                    .add(Stat::PagesRejected, usize::from(failure.error == ScrapeError::Page));
                pod.row.failures = pod.row.failures.saturating_add(1);
                pod.row.last_error = Some(failure.error);
                pod.metrics
                    .failed(pace.metrics, failure.retry_after, &mut self.rng, now);
                if pod.told_metrics.failed(failure.error) {
                    let advice = advice(Target::Metrics(address), &failure, &self.pool);
                    self.journal.warn(now, format_args!("pod {address}: metrics: {advice}"));
                }
            }
        }
    }

    /// Tells what is new about a pod whose page could be read.
    fn tell_reading(&mut self, address: PodAddress, news: &News, incomplete: Option<&'static str>, now: Now) {
        let Some(pod) = self.pods.get_mut(&address) else { return };
        let journal = &mut self.journal;
        if pod.told_metrics.succeeded() {
            journal.info(now, format_args!("pod {address}: metrics: read again"));
        }
        if news.restarted {
            pod.models.due = now.steady;
            pod.told_reason = None;
            self.tally.add(Stat::Restarts, 1);
            journal.info(now, format_args!("pod {address}: restarted"));
        }
        if let Some(reason) = incomplete.filter(|_| pod.told_reason != incomplete) {
            pod.told_reason = incomplete;
            journal.warn(now, format_args!("pod {address}: metrics: {reason}"));
        }
        match pod.row.slow {
            Some(slow) if !news.was_slow => journal.warn(
                now,
                format_args!("pod {address}: takes {:.0} times as long as usual: slow", slow.times),
            ),
            None if news.was_slow && pod.row.trend.is_believed() && !news.restarted => {
                journal.info(now, format_args!("pod {address}: as fast as usual again"))
            }
            _ => {}
        }
        let load = &pod.row.load;
        match pod.row.trend {
            trend if trend == news.trend_was => {}
            Trend::Live if news.trend_was == Trend::Several => {
                journal.info(now, format_args!("pod {address}: one pod answers again"));
            }
            Trend::Live => journal.info(now, format_args!("pod {address}: its load moves again")),
            Trend::Several => {
                let remedy = find::several(&self.pool.discovery, self.pods.len());
                self.journal.warn(
                    now,
                    format_args!(
                        "pod {address}: several pods answer by turns behind this one address: not believed; {remedy}"
                    ),
                );
            }
            Trend::Frozen => journal.warn(
                now,
                format_args!(
                    "pod {address}: shows load that has not moved for {} ms: not believed",
                    FROZEN_AFTER.0
                ),
            ),
            Trend::Stuck => journal.warn(
                now,
                format_args!(
                    "pod {address}: {} requests wait and none runs: stuck",
                    load.waiting.unwrap_or_default()
                ),
            ),
        }
    }

    pub(super) fn settle_models(&mut self, address: PodAddress, models: Result<Vec<Model>, Failure>, now: Now) {
        let pace = self.pace();
        let Some(pod) = self.pods.get_mut(&address) else {
            return self.tally.add(Stat::AnswersIgnored, 1);
        };
        self.tally.add(Stat::ModelsReads, 1);
        match models {
            Ok(models) => {
                self.dirty = true;
                self.publisher.stale |= pod.list(models, now);
                pod.models.succeeded(pace.models, now);
                if pod.told_models.succeeded() {
                    self.journal
                        .info(now, format_args!("pod {address}: models page read again"));
                }
            }
            Err(failure) => {
                self.tally.add(Stat::ModelsFailures, 1);
                let step = if failure.is_final() { pace.models } else { pace.metrics };
                pod.models.failed(step, failure.retry_after, &mut self.rng, now);
                if pod.told_models.failed(failure.error) {
                    let advice = advice(Target::Models(address), &failure, &self.pool);
                    self.journal.warn(
                        now,
                        format_args!("pod {address}: models page: {advice}; what it lists is unknown"),
                    );
                }
            }
        }
    }

    /// A good answer about the whole set. The state of pods that stay is kept.
    pub(super) fn settle_pods(&mut self, mut found: Vec<Found>, now: Now) {
        let left_out = discovery::cut(&mut found);
        let shown: BTreeSet<PodAddress> = found.iter().map(|pod| pod.address).collect();
        let gone: Vec<PodAddress> = self
            .pods
            .keys()
            .filter(|address| !shown.contains(address))
            .copied()
            .collect();
        for address in &gone {
            if let Some(pod) = self.pods.remove(address) {
                self.next_incarnation = self.next_incarnation.max(pod.row.incarnation.saturating_add(1));
                self.publisher.stale = true;
            }
        }
        let mut added = 0;
        for pod in found {
            added += usize::from(!self.pods.contains_key(&pod.address));
            self.show(pod, now);
        }
        if added + gone.len() > 0 || !self.begun {
            self.tell_pods(added, gone.len(), left_out, now);
            self.tell_pace(now);
        }
        self.discovered = Discovered {
            at: Some(now.wall),
            error: None,
        };
        self.earlier = None;
        self.begun = true;
        self.dirty = true;
    }

    /// The budget must not stretch the polling unseen.
    fn tell_pace(&mut self, now: Now) {
        let (interval, pods) = (self.pace().metrics, self.pods.len());
        let stretched = Some(interval).filter(|interval| *interval > self.pool.scrape.interval);
        if stretched == self.stretched {
            return;
        }
        self.stretched = stretched;
        self.journal.info(
            now,
            format_args!(
                "{pods} pods: each is scraped every {} ms (poll.budget_per_second)",
                interval.0
            ),
        );
    }

    /// Updates a pod, or adds it.
    fn show(&mut self, mut found: Found, now: Now) {
        found.name = found.name.as_deref().map(clip);
        let labels = self.labels_of(&found);
        let (address, scrape) = (found.address, &self.pool.scrape);
        let pod = self.pods.entry(address).or_insert_with(|| {
            let mut row = PodRow::unread(address, now.wall);
            row.incarnation = self.next_incarnation;
            let mut metrics = Schedule::of_pod(address, self.seed, scrape.interval, now);
            let mut models = Schedule::of_pod(address, self.seed, scrape.models_interval, now);
            // The address may be back before the answer to a call from its earlier life.
            metrics.open = self.open.values().any(|open| open.target == Target::Metrics(address));
            models.open = self.open.values().any(|open| open.target == Target::Models(address));
            let mut pod = Pod::new(row, metrics, models);
            if let Some(earlier) = &self.earlier
                && let Ok(index) = earlier.pods.binary_search_by_key(&address, |row| row.address)
                && let Some(row) = earlier.pods.get(index)
            {
                pod.inherit(row, &earlier.names);
            }
            pod
        });
        if pod.row.readiness == Readiness::NotReady && found.readiness != Readiness::NotReady {
            pod.row.since = now.wall;
        }
        if pod.labels != labels {
            // Labels of which no pod is any more must not fill the names.
            self.publisher.stale |= !pod.labels.is_empty();
            pod.changed = true;
            pod.labels = labels;
        }
        pod.row.name = found.name;
        pod.row.readiness = found.readiness;
        pod.row.proxy_active = found.proxy_active;
    }

    /// The labels of a pod that the config asks for: it gives some, discovery brings others.
    fn labels_of(&self, found: &Found) -> Vec<String> {
        let wanted = |label: &&String| {
            let name = label.split_once('=').map(|(name, _)| name);
            name.is_some_and(|name| self.pool.routing.label_names().any(|wanted| wanted == name))
        };
        let given = self.pool.labels.iter().filter(|given| given.has(found.address));
        let given = given.map(|given| &given.label);
        let mut labels: Vec<String> = given.chain(&found.labels).filter(wanted).cloned().collect();
        labels.sort_unstable();
        labels.dedup();
        labels.truncate(LABELS_PER_POD_MAX);
        labels
    }

    /// Goes on where another poller stopped, so that a change of poller voids no reading. Which pods there
    /// are is believed only under the same configuration.
    pub(super) fn adopt(&mut self, table: &Table, now: Now) {
        if self.published_at.is_some() {
            return;
        }
        self.seq = table.seq;
        let same = table.config_epoch == self.epoch;
        if same && self.pool.discovery.interval().is_some() && table.discovery.at.is_some() {
            for row in &table.pods {
                self.show(Found::at(row.address), now);
            }
            self.discovered = table.discovery.clone();
            self.begun = true;
        }
        for row in &table.pods {
            match self.pods.get_mut(&row.address) {
                Some(pod) => pod.inherit(row, &table.names),
                None => self.next_incarnation = self.next_incarnation.max(row.incarnation.saturating_add(1)),
            }
        }
        self.earlier = (!self.begun).then(|| table.clone());
        self.publisher.stale = true;
    }
}
