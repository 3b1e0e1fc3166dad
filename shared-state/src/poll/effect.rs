//! What goes into the poller and what comes out of it, as values.

use crate::discovery::Found;
use crate::pod::PodAddress;
use crate::reports::Report;
use crate::table::{ScrapeError, Table};
use crate::units::Millis;

/// Something happened.
#[derive(Clone, Debug)]
pub enum Event<'a> {
    /// Time passed. At most one [`Effect::Publish`] comes out of each.
    Tick,
    /// A call that the poller asked for has ended.
    Answer {
        /// Its id.
        call: CallId,
        /// How it ended.
        outcome: Outcome<'a>,
    },
    /// A reader met a model that no pod lists: read the models pages now.
    RefreshModels,
    /// A page that nobody asked for (replay).
    Page {
        /// Whose page it is.
        target: Target,
        /// What came.
        outcome: Outcome<'a>,
    },
    /// What pods said of their load in answers to requests.
    Reports(&'a [(PodAddress, Report)]),
    /// The table of a former poller, before the first tick: what it knew of pods stays until they are read
    /// again, also under another configuration.
    Adopt(&'a Table),
    /// The whole set of pods, from outside (replay). Replaces what was configured.
    Pods(Vec<Found>),
}

/// How a call ended. Envoy's own 503 and 504 may be passed as they are.
pub type Outcome<'a> = Result<Response<'a>, ScrapeError>;

/// An answer with an HTTP status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Response<'a> {
    /// `:status`.
    pub status: u16,
    /// The whole body.
    pub body: &'a [u8],
    /// `retry-after`, when it is a number of seconds.
    pub retry_after: Option<Millis>,
    /// `location`, for the remedy against a redirect.
    pub location: Option<&'a str>,
}

/// One call. Rises, and is never used twice by one poller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// What is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// The set of pods.
    Discovery,
    /// A pod's metrics page.
    Metrics(PodAddress),
    /// A pod's /v1/models.
    Models(PodAddress),
}

/// Something the glue has to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Send a GET. When it cannot be sent, answer at once with [`ScrapeError::NotSent`].
    Call(Call),
    /// Store the pool's table.
    Publish {
        /// A sealed [`crate::table::Table`].
        bytes: Vec<u8>,
    },
    /// Tell an operator.
    Log {
        /// How bad it is.
        severity: Severity,
        /// One line, without secrets.
        text: String,
    },
    /// Add to a counter or set a gauge, see [`Stat::is_gauge`].
    Count {
        /// Which.
        stat: Stat,
        /// The increment of a counter, never zero; the value of a gauge.
        value: u64,
    },
}

/// One GET.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Goes back with the answer.
    pub id: CallId,
    /// What is read.
    pub target: Target,
    /// The cluster to send it to.
    pub cluster: String,
    /// `:path`.
    pub path: String,
    /// `:authority`.
    pub authority: String,
    /// All other headers, with the one that names the pod.
    pub headers: Vec<(String, HeaderValue)>,
    /// Patience for the answer.
    pub timeout: Millis,
}

/// The value of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderValue {
    /// As it stands.
    Text(String),
    /// The value of this variable of the VM's environment. Leave the header out when it is not set.
    Variable(String),
}

/// How bad a log line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Good to know.
    Info,
    /// Somebody should look.
    Warn,
}

/// What the poller costs and meets, per pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stat {
    /// Answers to scrapes, good or bad.
    Scrapes,
    /// Scrapes that gave no reading: no answer, an error, a page that cannot be read or has no load in it.
    ScrapeFailures,
    /// Scrapes whose page could not be read.
    PagesRejected,
    /// Bytes of all pages of all kinds.
    Bytes,
    /// Answers for models pages, good or bad.
    ModelsReads,
    /// Models pages that could not be had or read.
    ModelsFailures,
    /// Answers of the discovery, good or bad.
    DiscoveryReads,
    /// Answers that said nothing about the pods.
    DiscoveryFailures,
    /// Calls that were given up because no answer came at all.
    CallsExpired,
    /// Answers to calls that are unknown or were given up.
    AnswersIgnored,
    /// Restarts of pods.
    Restarts,
    /// Tables published.
    Publishes,
    /// Their bytes.
    PublishedBytes,
    /// Load reports in answers that were newer than the last page.
    LoadReports,
    /// Log lines left out for their number.
    LogLinesLeftOut,
    /// Gauge: calls without an answer.
    CallsOpen,
    /// Gauge: pods.
    Pods,
    /// Gauge: addresses that discovery brought and that may not be pods.
    AddressesRefused,
    /// Gauge: milliseconds between two scrapes of one pod, stretched where the budget asks for it.
    ScrapeInterval,
}

impl Stat {
    /// All, in order.
    pub const ALL: [Self; 19] = [
        Self::Scrapes,
        Self::ScrapeFailures,
        Self::PagesRejected,
        Self::Bytes,
        Self::ModelsReads,
        Self::ModelsFailures,
        Self::DiscoveryReads,
        Self::DiscoveryFailures,
        Self::CallsExpired,
        Self::AnswersIgnored,
        Self::Restarts,
        Self::Publishes,
        Self::PublishedBytes,
        Self::LoadReports,
        Self::LogLinesLeftOut,
        Self::CallsOpen,
        Self::Pods,
        Self::AddressesRefused,
        Self::ScrapeInterval,
    ];

    /// Last part of the stat's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scrapes => "scrapes",
            Self::ScrapeFailures => "scrape_failures",
            Self::PagesRejected => "pages_rejected",
            Self::Bytes => "page_bytes",
            Self::ModelsReads => "models_reads",
            Self::ModelsFailures => "models_failures",
            Self::DiscoveryReads => "discovery_reads",
            Self::DiscoveryFailures => "discovery_failures",
            Self::CallsExpired => "calls_expired",
            Self::AnswersIgnored => "answers_ignored",
            Self::Restarts => "pod_restarts",
            Self::Publishes => "publishes",
            Self::PublishedBytes => "published_bytes",
            Self::LoadReports => "load_reports",
            Self::LogLinesLeftOut => "log_lines_left_out",
            Self::CallsOpen => "calls_open",
            Self::Pods => "pods",
            Self::AddressesRefused => "addresses_refused",
            Self::ScrapeInterval => "scrape_interval_ms",
        }
    }

    /// A gauge is set, a counter is added to.
    #[must_use]
    pub const fn is_gauge(self) -> bool {
        matches!(
            self,
            Self::CallsOpen | Self::Pods | Self::AddressesRefused | Self::ScrapeInterval
        )
    }
}

/// Counts between two ticks, so that a tick costs a handful of effects and an answer none.
#[derive(Debug, Default)]
pub(super) struct Tally {
    counts: [u64; Stat::ALL.len()],
    gauges: [Gauge; Stat::ALL.len()],
}

#[derive(Clone, Copy, Debug, Default)]
struct Gauge {
    now: Option<u64>,
    told: Option<u64>,
}

impl Tally {
    pub(super) fn add(&mut self, stat: Stat, value: usize) {
        if let Some(count) = self.counts.get_mut(stat as usize) {
            *count = count.saturating_add(value as u64);
        }
    }

    /// Sets a gauge.
    pub(super) fn set(&mut self, stat: Stat, value: u64) {
        if let Some(gauge) = self.gauges.get_mut(stat as usize) {
            gauge.now = Some(value);
        }
    }

    /// What changed since the last call.
    pub(super) fn flush(&mut self, out: &mut Vec<Effect>) {
        for stat in Stat::ALL {
            let (Some(count), Some(gauge)) = (self.counts.get_mut(stat as usize), self.gauges.get_mut(stat as usize))
            else {
                continue;
            };
            let value = if stat.is_gauge() {
                gauge.now.filter(|now| gauge.told.replace(*now) != Some(*now))
            } else {
                Some(core::mem::take(count)).filter(|count| *count > 0)
            };
            out.extend(value.map(|value| Effect::Count { stat, value }));
        }
    }
}
