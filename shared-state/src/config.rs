//! The one configuration document: JSON -> [`Config`], all errors at once.
//!
//! ```text
//!  bytes -> json.rs -> check.rs + relations.rs -> extract.rs -> Config
//!                          ^ walks
//!                      options.rs (written in the words of schema.rs)
//!                          v prints
//!                      reference.rs -> docs/configuration.md, config.schema.json
//! ```
//!
//! Every option stands once, in `options.rs`. Deliberately not here: reading a file, the
//! environment, or anything else of the host; a document is checked the same everywhere.

mod check;
mod extract;
mod json;
mod options;
mod reference;
mod relations;
mod schema;
mod values;

#[cfg(test)]
mod tests;

use core::fmt;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh64::xxh64;

pub use reference::{json_schema, reference_markdown};
pub(crate) use values::label_byte;
pub use values::{duration_text, nearest, size_text};

use crate::discovery::range::Range;
use crate::pod::PodAddress;
use crate::sample::Engine;
use crate::units::{Millis, Tokens};

/// The whole document, valid by construction.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// At least one; names are unique.
    pub pools: Vec<Pool>,
    /// Which steering inputs are believed, and from whom.
    pub trust: Trust,
    /// What clients are told about models.
    pub models: ModelNames,
    /// Names that clients use for others. Their names differ.
    pub rewrites: Vec<Rewrite>,
    /// Who goes first when the pods are full.
    pub admission: Admission,
    /// How much of a request body is held.
    pub body: Body,
    /// What may be shown to clients and operators.
    pub status: StatusPage,
    /// Who scrapes.
    pub role: Role,
    /// The proxy around the wasm.
    pub host: Host,
    /// xxh64 of the document's bytes: tells tables of different configs apart.
    pub epoch: u64,
}

/// Who scrapes the pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// One context of the process, whoever holds the lease: the companion service, or without one a
    /// root context of the filter.
    #[default]
    Auto,
    /// The companion service alone.
    Service,
    /// As `Auto`, but this context comes before the others.
    Poller,
    /// This context never does.
    Reader,
}

/// The proxy around the wasm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Host {
    /// Not named: found out by what the host answers.
    #[default]
    Auto,
    /// Envoy, also as Istio's or Envoy Gateway's.
    Envoy,
    /// nginx or OpenResty with WasmX.
    Nginx,
    /// Kong with WasmX.
    Kong,
    /// APISIX with wasm-nginx-module.
    Apisix,
}

/// One pool: pods that serve the same base models.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// Unique, `[a-z0-9][a-z0-9-]{0,62}`.
    pub name: String,
    /// Base names this pool serves, in addition to what its pods list.
    pub models: Vec<String>,
    /// Names of the proxy's routes that lead here whatever the model. No other pool has them.
    pub routes: Vec<String>,
    /// The engine; `None` = detect per scrape.
    pub engine: Option<Engine>,
    /// How the pods are found.
    pub discovery: Discovery,
    /// Addresses that may be pods; empty = all but those that are nobody's, or the own machine's.
    pub allow: Vec<Range>,
    /// How they are read.
    pub scrape: Scrape,
    /// Adapter behaviour.
    pub adapters: Adapters,
    /// Decision behaviour.
    pub routing: Routing,
    /// Labels that the config gives to pods.
    pub labels: Vec<Labelled>,
}

impl Pool {
    /// Tells apart which pods are read and how: the engine, the discovery, what it may bring, and where the pages
    /// are. Not how often: a table means the same then, and a config that changes only that goes on with it.
    /// xxh64, equal in all artifacts of one version.
    #[must_use]
    pub fn source(&self) -> u64 {
        let scrape = &self.scrape;
        let pages = (&scrape.path, scrape.port, &scrape.cluster, &scrape.address_header);
        let read = (self.engine, pages, &scrape.headers, scrape.tls);
        let labels: Vec<&str> = self.routing.label_names().collect();
        let labelled = (labels, &self.labels);
        // Nothing of this can fail to be written.
        let bytes = postcard::to_extend(&(&self.discovery, &self.allow, read, labelled), Vec::new());
        xxh64(&bytes.unwrap_or_default(), 0)
    }
}

/// How the pods of a pool are found. Serialized for [`Pool::source`] alone, hence without times.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Discovery {
    /// A fixed list. At least one, no duplicates.
    Static(Vec<PodAddress>),
    /// Envoy's admin page `/clusters?format=json&filter=…`.
    EnvoyAdmin {
        /// Name of the cluster whose hosts are the pods.
        cluster: String,
        /// Cluster that reaches the admin listener.
        admin: String,
        /// Time between two reads.
        #[serde(skip)]
        interval: Millis,
    },
    /// EndpointSlices of a Kubernetes Service.
    Kubernetes {
        /// How the API is asked.
        asks: Asks,
        /// Which slices, and what of them.
        service: Service,
    },
    /// A JSON list from any HTTP endpoint.
    Json {
        /// How it is asked.
        asks: Asks,
        /// `:path`.
        path: String,
    },
}

impl Discovery {
    /// Time between two reads; `None` = nothing is read.
    #[must_use]
    pub const fn interval(&self) -> Option<Millis> {
        match self {
            Self::Static(_) => None,
            Self::EnvoyAdmin { interval, .. } => Some(*interval),
            Self::Kubernetes { asks, .. } | Self::Json { asks, .. } => Some(asks.interval),
        }
    }

    /// Headers of its calls whose values come from the VM's environment: (header, variable).
    #[must_use]
    pub fn headers(&self) -> &[(String, String)] {
        match self {
            Self::Static(_) | Self::EnvoyAdmin { .. } => &[],
            Self::Kubernetes { asks, .. } | Self::Json { asks, .. } => &asks.headers,
        }
    }
}

/// How an HTTP endpoint is asked for pods.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Asks {
    /// Callout cluster that reaches it.
    pub cluster: String,
    /// `:authority`.
    pub authority: String,
    /// Headers whose values come from the VM's environment: (header, variable). Never printed.
    pub headers: Vec<(String, String)>,
    /// Time between two reads.
    #[serde(skip)]
    pub interval: Millis,
}

/// What is taken from the EndpointSlices of a namespace.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Service {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Ports of an endpoint that are pods; empty = the only one.
    pub ports: Vec<PortOf>,
    /// Which address counts of a pod that has both.
    pub prefer: Family,
}

/// A port of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum PortOf {
    /// By the name it has in the slice.
    Name(String),
    /// By its number, whether the slice has it or not.
    Number(u16),
}

/// A kind of addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// 10.0.0.1
    #[default]
    Ipv4,
    /// fd00::1
    Ipv6,
}

/// How a pod is read.
#[derive(Clone, Debug, PartialEq)]
pub struct Scrape {
    /// Path of the metrics page; `None` = the engine's usual one.
    pub path: Option<String>,
    /// Port of the metrics page; `None` = the pod's own.
    pub port: Option<u16>,
    /// Time between two scrapes of one pod.
    pub interval: Millis,
    /// Patience for one answer.
    pub timeout: Millis,
    /// Time between two reads of /v1/models.
    pub models_interval: Millis,
    /// Callout cluster that dials an exact pod.
    pub cluster: String,
    /// Header of the callout that names the pod, read by that cluster.
    pub address_header: String,
    /// Headers whose values come from the VM's environment: (header, variable). Never printed.
    pub headers: Vec<(String, String)>,
    /// `:scheme` of the callout is https.
    pub tls: bool,
    /// Ask pods to report their load in answers, and believe it.
    pub in_band: bool,
    /// Reads of pages of this pool per second at most: its share of `poll.budget_per_second`.
    pub per_second: u32,
}

/// Adapter behaviour of a pool.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapters {
    /// The engines load adapters on first use (a resolver plugin): an unlisted name is routed by
    /// load instead of answered with 404.
    pub resolver: bool,
    /// Adapters besides those that the pods list, each with its base where the config says so.
    pub known: Vec<(String, Option<String>)>,
    /// Milliseconds a pod needs to load an adapter that is not in its memory.
    pub cold_load: Millis,
}

/// Decision behaviour of a pool.
#[derive(Clone, Debug, PartialEq)]
pub struct Routing {
    /// Prefill rate of a pod before anything was observed, in tokens per second.
    pub prefill_tokens_per_second: u32,
    /// Output tokens expected of a request that names no bound.
    pub expected_output_tokens: u32,
    /// A reading older than this says nothing: at least three scrape intervals.
    pub stale_after: Millis,
    /// Memory of what was sent where.
    pub prefix: Prefix,
    /// Whose requests cost less where they were served last.
    pub affinity: Affinity,
    /// Labels, `name=value`, that a pod must have.
    pub require: Vec<String>,
    /// The label by whose value retries stay apart.
    pub retry_apart: Option<String>,
    /// What one pod may have.
    pub caps: Caps,
    /// Time in which the share of a new pod grows; zero = it is whole at once.
    pub slow_start: Millis,
}

impl Routing {
    /// Names of the labels that a decision looks at: no others are kept.
    pub fn label_names(&self) -> impl Iterator<Item = &str> {
        let required = self.require.iter().filter_map(|label| label.split_once('='));
        required.map(|(name, _)| name).chain(self.retry_apart.as_deref())
    }
}

/// What tells the sessions of a pool apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Affinity {
    /// Nothing.
    #[default]
    None,
    /// The trusted header [`crate::names::SESSION`].
    Session,
    /// A cookie that Berth sets.
    Cookie {
        /// The variable with the secret that seals it.
        key: String,
        /// How long it counts.
        max_age: Millis,
    },
}

/// What one pod may have; `None` = as much as comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caps {
    /// Requests, running and queued.
    pub requests: Option<u32>,
    /// KV tokens in use.
    pub tokens: Option<Tokens>,
}

/// A label, `name=value`, and the pods that the config gives it to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Labelled {
    /// The label.
    pub label: String,
    /// By their addresses ...
    pub pods: Vec<PodAddress>,
    /// ... or by ranges of them.
    pub ranges: Vec<Range>,
}

impl Labelled {
    /// Whether a pod has it.
    #[must_use]
    pub fn has(&self, pod: PodAddress) -> bool {
        self.pods.contains(&pod) || self.ranges.iter().any(|range| range.contains(pod.socket().ip()))
    }
}

/// The prefix index of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// Keep one.
    pub enabled: bool,
    /// Bytes of shared data it may take.
    pub max_bytes: usize,
}

/// Which steering inputs are believed. Nothing by default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trust {
    /// Headers of a declared trusted hop, in lower case. Only names in
    /// [`crate::names::TRUSTABLE`].
    pub headers: Vec<String>,
    /// What filters before Berth tell. They win over headers.
    pub filters: Vec<Told>,
}

/// A steering input that a filter before Berth tells.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    /// Which one: a name in [`crate::names::TELLABLE`].
    pub input: String,
    /// The path of the property that has its value, as Envoy spells it.
    pub path: Vec<String>,
}

/// What clients are told about models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelNames {
    /// Answer GET /v1/models here.
    pub list: bool,
    /// Suggest the nearest listed name in a 404.
    pub near_names: bool,
    /// Neither listed nor suggested.
    pub hidden: Vec<String>,
}

/// A name that clients use, and what stands behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewrite {
    /// The name; `None` = every name without a rewrite of its own.
    pub from: Option<String>,
    /// At least one.
    pub to: Vec<Target>,
    /// Whose requests stay with one target.
    pub sticky: Sticky,
}

/// A target of a rewrite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The model or adapter.
    pub model: String,
    /// Its part of the requests, at least 1; equal where the config names none.
    pub weight: u32,
}

/// Whose requests get the same target of a rewrite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sticky {
    /// Nobody's: chance decides for each.
    #[default]
    None,
    /// Those of one session, by a trusted header.
    Session,
    /// Those of one user, by the body's `user`.
    User,
}

/// Who goes first when the pods are full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Named priorities. Their names differ.
    pub objectives: Vec<Objective>,
    /// Predicted time until a pod begins with a prompt, beyond which it is full.
    pub patience: Millis,
    /// Where requests wait; `None` = nobody does.
    pub queue: Option<Queue>,
}

impl Admission {
    /// Anything is configured that could treat one request other than the rest.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.queue.is_some() || !self.objectives.is_empty()
    }
}

/// A named priority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Objective {
    /// Unique, `[a-z0-9][a-z0-9-]{0,62}`.
    pub name: String,
    /// The higher goes first; below 0 is sheddable.
    pub priority: i16,
    /// See [`Admission::patience`].
    pub patience: Millis,
}

/// Bounds of the queue of one pool and worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Requests over all priorities.
    pub max_requests: usize,
    /// Bytes of their bodies.
    pub max_bytes: usize,
    /// Requests of one priority, at most as many.
    pub band_requests: usize,
    /// Bytes of their bodies.
    pub band_bytes: usize,
    /// Longest wait.
    pub max_wait: Millis,
}

/// Body handling.
#[derive(Clone, Debug, PartialEq)]
pub struct Body {
    /// Who holds the headers meanwhile.
    pub mode: BodyMode,
    /// Bytes held at most before the request is decided without the rest.
    pub hold_bytes: usize,
}

/// Who holds the headers until the pod is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BodyMode {
    /// The filter itself.
    #[default]
    Hold,
    /// A later filter, which takes the choice from filter state.
    HandOver,
}

/// What may be shown.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusPage {
    /// Add `x-berth-decision` to responses.
    pub decision_header: bool,
}

/// One thing wrong with a document. Values that may be secrets are not in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// For example `pools[0].scrape.interval`, or `line 3 column 5` where the JSON itself is broken.
    pub path: String,
    /// The value found, shortened.
    pub value: String,
    /// What is allowed instead.
    pub rule: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.path, self.value, self.rule)
    }
}

impl core::error::Error for ConfigError {}

impl Config {
    /// Parses and checks a document.
    ///
    /// # Errors
    /// Every mistake in it, in its order, not only the first; a document that is not JSON has one.
    pub fn parse(document: &[u8]) -> Result<Self, Vec<ConfigError>> {
        let json = json::parse(document).map_err(|error| vec![error])?;
        let (checked, mut report) = check::document(&json);
        let check::Is::Record(record) = &checked.is else {
            return Err(report.finish());
        };
        relations::check(record, &mut report);
        let errors = report.finish();
        if errors.is_empty() {
            Ok(extract::config(record, xxh64(document, 0)))
        } else {
            Err(errors)
        }
    }

    /// The proxy is this one, by the config's word or because it was found out: what it cannot do is off.
    pub fn settle(&mut self, host: Host) {
        self.host = host;
        if matches!(host, Host::Auto | Host::Envoy) {
            return;
        }
        // What a document that names its host may not ask for.
        self.admission.queue = None;
        self.trust.filters.clear();
        self.body.mode = BodyMode::Hold;
        if host == Host::Apisix {
            // There a filter cannot write bodies: the pod would get the name that the rule took away.
            self.rewrites.clear();
        } else {
            // Megabytes of pages would push the table out of a small zone of shared memory.
            self.pools
                .iter_mut()
                .for_each(|pool| pool.routing.prefix.enabled = false);
        }
    }

    /// The config of one pool, `pods`, of these pods, with every default.
    ///
    /// # Errors
    /// As [`Self::parse`], for example without a pod.
    pub fn minimal(pods: &[PodAddress]) -> Result<Self, Vec<ConfigError>> {
        let pods: Vec<String> = pods.iter().map(PodAddress::to_string).collect();
        let pool = serde_json::json!({"name": "pods", "discovery": {"static": pods}});
        let document = serde_json::json!({"pools": [pool]});
        Self::parse(document.to_string().as_bytes())
    }
}
