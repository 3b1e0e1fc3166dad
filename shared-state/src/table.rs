//! The table: what the poller knows of a pool, as one value in shared data.
//!
//! One writer (the poller), many readers. Names are interned, since forty adapters on a thousand
//! pods would otherwise be most of the bytes. Every list has a bound in [`crate::limits`].

use serde::{Deserialize, Serialize};

use crate::limits::{ADAPTERS_PER_POD_MAX, LABELS_PER_POD_MAX, NAME_MAX_BYTES, NAMES_MAX, PODS_MAX, TEXT_MAX_BYTES};
use crate::pod::PodAddress;
use crate::sample::{Engine, Level, Status};
use crate::sealed::{self, Kind, SealError};
use crate::units::{Millis, Tokens, UnixMillis};

/// Index into [`Table::names`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NameId(pub u16);

/// All that is known of one pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// Rises with every publish of one writer.
    pub seq: u64,
    /// When it was published.
    pub written_at: UnixMillis,
    /// xxh64 of the config document it was made under.
    pub config_epoch: u64,
    /// How the pods were found.
    pub discovery: Discovered,
    /// Time between two scrapes of one pod: the configured one, or longer where the budget asks for it.
    pub scrape_interval: Millis,
    /// Names of models and adapters, and labels, interned.
    pub names: Vec<String>,
    /// The pods, ordered by address.
    pub pods: Vec<PodRow>,
}

/// State of the discovery.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Discovered {
    /// Last good answer; `None` = none yet. A static list is always good.
    pub at: Option<UnixMillis>,
    /// Why the latest answer was not good; the last good set stays.
    pub error: Option<String>,
}

/// May a pod get requests, as discovery says?
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Readiness {
    /// Discovery does not say.
    #[default]
    Unknown,
    /// Yes.
    Ready,
    /// No: failed health checks or ejected.
    NotReady,
    /// Going away: no new requests.
    Draining,
}

/// What the gauges of a pod look like over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Trend {
    /// They move, or there is nothing to move.
    #[default]
    Live,
    /// Load is shown but nothing changed for many scrapes: not to be believed.
    Frozen,
    /// A queue with nothing running for many scrapes: the pod is stuck.
    Stuck,
    /// Several pods answer at this address by turns: what one shows says nothing of the next.
    Several,
}

impl Trend {
    /// Are the gauges a reading at all, however new the page is?
    #[must_use]
    pub const fn is_believed(self) -> bool {
        matches!(self, Self::Live | Self::Stuck)
    }
}

/// One pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PodRow {
    /// What the proxy dials.
    pub address: PodAddress,
    /// A person's name for it, where discovery has one.
    pub name: Option<String>,
    /// What discovery says.
    pub readiness: Readiness,
    /// Since when it can serve, as far as it was seen: first shown, first read, restarted, or ready again.
    pub since: UnixMillis,
    /// Rises with every restart that was seen; own memory of an older one is void.
    pub incarnation: u32,
    /// Last page that could be used; `None` = never.
    pub scraped_at: Option<UnixMillis>,
    /// Scrapes that failed in a row.
    pub failures: u32,
    /// Why the last one failed.
    pub last_error: Option<ScrapeError>,
    /// What the gauges look like over time.
    pub trend: Trend,
    /// The last usable page.
    pub load: Load,
    /// Counters as rates.
    pub rates: Rates,
    /// How long its engine usually takes; `None` = not enough pages, or it does not count tokens as they come.
    pub tempo: Option<Tempo>,
    /// It takes many times as long now; `None` = it does not, or nobody can say.
    pub slow: Option<Slow>,
    /// Its labels, as `name=value`: those that the config asks for.
    pub labels: Vec<NameId>,
    /// Adapters in flight; `None` = unknown.
    pub activity: Option<ActiveAdapters>,
    /// Adapters in memory, where the engine says so.
    pub resident: Option<Vec<(NameId, Level)>>,
    /// What the pod may be asked for; `None` = its models page was never read.
    pub models: Option<Models>,
    /// Requests in flight from this proxy as Envoy counts them (`rq_active`), where discovery shows
    /// it. Only checks the ledger, never added to it.
    pub proxy_active: Option<u32>,
    /// When the pod last told `waiting` and KV usage in an answer, if that was after the page; the other
    /// gauges are the page's.
    pub reported_at: Option<UnixMillis>,
    /// When the pod's process started, Unix seconds, as the last page had it. With [`Self::generated`] it shows the
    /// next poller a restart.
    pub started_at: Option<f64>,
    /// Tokens that the process had generated, as the last page had it.
    pub generated: Option<f64>,
}

/// Load gauges. `None` = unknown.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Who wrote the page.
    pub engine: Option<Engine>,
    /// How much of it could be used.
    pub status: Status,
    /// Requests in the batch.
    pub running: Option<u32>,
    /// Requests queued.
    pub waiting: Option<u32>,
    /// Part of the queue waiting for something else than KV blocks.
    pub deferred: Option<u32>,
    /// KV usage, mean over engines, 0..=1.
    pub kv_mean: Option<f32>,
    /// KV usage of the worst engine, 0..=1.
    pub kv_max: Option<f32>,
    /// KV capacity over all engines.
    pub kv_capacity: Option<Tokens>,
    /// Data-parallel engines behind the address; a request's context must fit one of them.
    pub engines: u16,
    /// Asleep: no candidate.
    pub sleeping: Option<bool>,
}

impl Load {
    /// Nothing was read yet.
    pub const UNKNOWN: Self = Self {
        engine: None,
        status: Status::Unknown,
        running: None,
        waiting: None,
        deferred: None,
        kv_mean: None,
        kv_max: None,
        kv_capacity: None,
        engines: 0,
        sleeping: None,
    };
}

/// Rates over the last scrapes, per second. `None` = not enough scrapes, or no counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Prompt tokens.
    pub prompt_tokens: Option<f32>,
    /// Prompt tokens found in the prefix cache.
    pub cached_prompt_tokens: Option<f32>,
    /// Generated tokens.
    pub generation_tokens: Option<f32>,
    /// Finished requests.
    pub requests: Option<f32>,
    /// Preemptions.
    pub preemptions: Option<f32>,
}

/// How long an engine takes, in milliseconds: fitted to what its pages show that it did.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tempo {
    /// For a step, which generates one token for each request that runs.
    pub step: f32,
    /// More for each prompt token that is computed in it.
    pub token: f32,
}

impl Tempo {
    /// Both can be divided by.
    #[must_use]
    pub fn is_sound(self) -> bool {
        let usable = |millis: f32| millis.is_normal() && millis > 0.0;
        usable(self.step) && usable(self.token)
    }

    /// Seconds for so many steps and prompt tokens.
    pub(crate) fn seconds(self, steps: f64, tokens: f64) -> f64 {
        (f64::from(self.step) * steps + f64::from(self.token) * tokens) / 1_000.0
    }
}

/// A pod that is slower than usual, as its pages show it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slow {
    /// So many times.
    pub times: f32,
    /// Nothing on its pages has moved since: it hangs, or what writes the pages does.
    pub still_since: Option<UnixMillis>,
    /// From then on a request may try whether it still is.
    pub again: UnixMillis,
}

impl PodRow {
    /// A pod of which only the address is known.
    #[must_use]
    pub const fn unread(address: PodAddress, since: UnixMillis) -> Self {
        Self {
            address,
            name: None,
            readiness: Readiness::Unknown,
            since,
            incarnation: 0,
            scraped_at: None,
            failures: 0,
            last_error: None,
            trend: Trend::Live,
            load: Load::UNKNOWN,
            rates: Rates {
                prompt_tokens: None,
                cached_prompt_tokens: None,
                generation_tokens: None,
                requests: None,
                preemptions: None,
            },
            tempo: None,
            slow: None,
            labels: Vec::new(),
            activity: None,
            resident: None,
            models: None,
            proxy_active: None,
            reported_at: None,
            started_at: None,
            generated: None,
        }
    }

    /// When the queue and KV usage were read: from the page, or from an answer after it. `None` = never.
    #[must_use]
    pub fn gauges_at(&self) -> Option<UnixMillis> {
        self.scraped_at.max(self.reported_at)
    }
}

/// Adapters in flight.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActiveAdapters {
    /// Running.
    pub running: Vec<NameId>,
    /// Waiting.
    pub waiting: Vec<NameId>,
    /// Slots per batch; `Some(0)` = LoRA is off.
    pub max: Option<u32>,
}

/// A pod's models page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Models {
    /// When it was read. `UnixMillis(0)` = the list was cut to fit: what it names is there, but what
    /// it does not name may be there too, so it is too old to prove an absence.
    pub at: UnixMillis,
    /// Base models and their aliases.
    pub bases: Vec<NameId>,
    /// Adapters that may be asked for, each with its base where the page says so.
    pub adapters: Vec<(NameId, Option<NameId>)>,
    /// Longest context of prompt and output, over the bases (the smallest).
    pub max_model_len: Option<Tokens>,
}

/// Why a scrape failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScrapeError {
    /// The callout could not be started: the scrape cluster is missing or full.
    NotSent,
    /// Nobody answered.
    Unreachable,
    /// No answer in time.
    Timeout,
    /// 401 or 403: the pod wants an API key (`scrape.headers`).
    Unauthorized,
    /// Another HTTP status.
    Http(u16),
    /// The page was cut, foreign, or no metrics page.
    Page,
}

/// Encodes a table for shared data.
///
/// # Errors
/// [`SealError::TooLarge`] when the pool is too big for one value.
pub fn encode(table: &Table) -> Result<Vec<u8>, SealError> {
    sealed::seal(Kind::Table, table)
}

/// Decodes a table. Never trusts a byte: indices, bounds, order and fractions are checked too.
///
/// # Errors
/// See [`SealError`].
pub fn decode(bytes: &[u8]) -> Result<Table, SealError> {
    let table: Table = sealed::open(Kind::Table, bytes)?;
    if is_sound(&table) {
        Ok(table)
    } else {
        Err(SealError::Damaged)
    }
}

/// What readers rely on without looking again.
fn is_sound(table: &Table) -> bool {
    let texts = table
        .pods
        .iter()
        .filter_map(|pod| pod.name.as_ref())
        .chain(&table.discovery.error);
    table.names.len() <= NAMES_MAX
        && table.pods.len() <= PODS_MAX
        && table.names.iter().all(|name| name.len() <= NAME_MAX_BYTES)
        && { texts }.all(|text| text.len() <= TEXT_MAX_BYTES)
        && table.pods.is_sorted_by(|a, b| a.address < b.address)
        && table.pods.iter().all(|pod| is_sound_pod(pod, table.names.len()))
}

fn is_sound_pod(pod: &PodRow, names: usize) -> bool {
    let known = |id: &NameId| usize::from(id.0) < names;
    let listed = |ids: &[NameId]| ids.len() <= ADAPTERS_PER_POD_MAX && ids.iter().all(known);
    let fraction = |kv: Option<f32>| kv.is_none_or(|kv| (0.0..=1.0).contains(&kv));
    let rate = |rate: Option<f32>| rate.is_none_or(|rate| rate.is_finite() && rate >= 0.0);
    let active = |active: &ActiveAdapters| listed(&active.running) && listed(&active.waiting);
    let resident =
        |ids: &Vec<(NameId, Level)>| ids.len() <= ADAPTERS_PER_POD_MAX && ids.iter().all(|(id, _)| known(id));
    let models = |models: &Models| {
        listed(&models.bases)
            && models.adapters.len() <= ADAPTERS_PER_POD_MAX
            && models
                .adapters
                .iter()
                .all(|(id, base)| known(id) && base.as_ref().is_none_or(known))
    };
    let told = |number: Option<f64>| number.is_none_or(f64::is_finite);
    pod.address.socket().port() != 0
        && told(pod.started_at)
        && told(pod.generated)
        && fraction(pod.load.kv_mean)
        && fraction(pod.load.kv_max)
        && rate(pod.rates.prompt_tokens)
        && rate(pod.rates.cached_prompt_tokens)
        && rate(pod.rates.generation_tokens)
        && rate(pod.rates.requests)
        && rate(pod.rates.preemptions)
        && pod.tempo.is_none_or(Tempo::is_sound)
        && rate(pod.slow.map(|slow| slow.times))
        && pod.labels.len() <= LABELS_PER_POD_MAX
        && pod.labels.iter().all(known)
        && pod.activity.as_ref().is_none_or(active)
        && pod.resident.as_ref().is_none_or(resident)
        && pod.models.as_ref().is_none_or(models)
}

#[cfg(test)]
mod tests;
