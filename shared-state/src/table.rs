//! The table: what the poller knows of a pool, as one value in shared data.
//!
//! One writer (the poller), many readers. Names are interned, since forty adapters on a thousand
//! pods would otherwise be most of the bytes. Every list has a bound in [`crate::limits`].

use serde::{Deserialize, Serialize};

use crate::pod::PodAddress;
use crate::sample::{Engine, Level, Status};
use crate::sealed::{self, Kind, SealError};
use crate::units::{Tokens, UnixMillis};

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
    /// Model and adapter names, interned.
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
    /// When discovery first showed it.
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
    /// Adapters in flight; `None` = unknown.
    pub activity: Option<ActiveAdapters>,
    /// Adapters in memory, where the engine says so.
    pub resident: Option<Vec<(NameId, Level)>>,
    /// What the pod may be asked for; `None` = its models page was never read.
    pub models: Option<Models>,
    /// Requests in flight from this proxy as Envoy counts them (`rq_active`), where discovery shows
    /// it. Only checks the ledger, never added to it.
    pub proxy_active: Option<u32>,
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
    /// When it was read.
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

/// Decodes a table. Never trusts a byte: indices into the name list are checked too.
///
/// # Errors
/// See [`SealError`].
pub fn decode(bytes: &[u8]) -> Result<Table, SealError> {
    sealed::open(Kind::Table, bytes)
}
