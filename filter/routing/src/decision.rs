//! One decision with its reasons as data.
//!
//! ```text
//! pods -> ready, in the subset, with the labels -> can serve the name -> awake -> long enough -> below the caps
//!      -> cost each -> pick three
//! ```
//!
//! Deciding is total and pure: facts, `now` and the random numbers come in, an answer comes out, and
//! it is never an error of ours. What is not known makes a pod dearer, not impossible; only two things are
//! refused, a name that nobody has and a set of pods without a ready one. Where room is asked for and there is
//! none, the answer is to hold; who waits or is sent away then is the view's to say. Deliberately not here: which
//! pool decides (see [`naming`]), queues ([`crate::admission`]), and what becomes of the answer ([`crate::header`]).

use berth_shared_state::config::Pool;
use berth_shared_state::limits::ENDPOINTS_MAX;
use berth_shared_state::pod::PodAddress;
use berth_shared_state::snapshot::{Freshness, Snapshot};
use berth_shared_state::table::{PodRow, Slow};
use berth_shared_state::units::{Millis, Tokens, UnixMillis};
use fastrand::Rng;

use crate::cost::{Need, Patience};
use crate::ledger::{Heard, InUse, OwnLoad};
use crate::prefix::Beginning;
use crate::request::Facts;

mod agreed;
mod candidates;
mod caps;
pub mod explain;
mod field;
mod labels;
mod pick;
mod serving;
mod why;

use candidates::{Candidates, Subset};
pub use caps::at_cap;
pub use field::{Drawn, Field, Wish};
pub(crate) use serving::is_ready;
pub use serving::{Naming, adapter_key, naming};
pub(crate) use why::shortened;
pub use why::{Considered, Excluded, Note, Reason, Rung, Why};

#[cfg(test)]
pub(crate) mod tests;

/// A bound on the output is believed up to this multiple of the expected output: clients ask for
/// thousands of tokens and take hundreds, and booking them all would make every pod look full.
const OUTPUT_BELIEVED: u64 = 4;

/// All that a decision depends on, apart from the random numbers.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// The pool that decides.
    pub pool: &'a Pool,
    /// Its table; `None` = no poller has written one.
    pub snapshot: Option<&'a Snapshot>,
    /// The pods of that table, or some of them.
    pub pods: &'a [PodFacts<'a>],
    /// Why these; `None` = they are all.
    pub drawn: Option<Part<'a>>,
    /// What was learned of the pool.
    pub facts: PoolFacts,
    /// The request.
    pub ask: Ask<'a>,
    /// Value of the subset hint, from a trusted source: the request may only go to these `ip:port`.
    pub subset: Option<&'a str>,
    /// Only where there is room; `None` = wherever it costs least.
    pub admit: Option<Admit<'a>>,
    /// Now.
    pub now: UnixMillis,
    /// Give reasons for every candidate, not only for the endpoints.
    pub in_full: bool,
}

/// What a decision that sees some pods is told of all of them.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// What was reckoned of all.
    pub field: &'a Field,
    /// Who was drawn: the same pods, in the same order.
    pub drawn: &'a Drawn,
}

/// On which terms a request is let go.
#[derive(Clone, Copy, Debug)]
pub struct Admit<'a> {
    /// What it bears.
    pub patience: Patience,
    /// Pods that others keep who go before it.
    pub reserved: &'a [PodAddress],
    /// The pod that it keeps, which it goes on to wait for.
    pub keeps: Option<PodAddress>,
    /// What the answer says of room must be of all pods, and not of those drawn alone.
    pub counts: bool,
    /// Others go before it, whatever room there is: it is not let go, but refused where anybody would be.
    pub closed: bool,
}

/// What is known of one pod.
#[derive(Clone, Copy, Debug)]
pub struct PodFacts<'a> {
    /// Its row of the table.
    pub row: &'a PodRow,
    /// How far its reading can be believed.
    pub freshness: Freshness,
    /// What this proxy has there.
    pub own: OwnLoad,
    /// Own requests in flight that the page's count of running ones can show: the page may be older than what the pod
    /// has reported since, and `own` is as of the newer.
    pub shown: u32,
    /// KV tokens of what this proxy had in flight there when its gauges were read.
    pub context_then: Tokens,
    /// The part, 0 to 1, of its load lately that this proxy sent.
    pub own_part: f64,
    /// What was heard of its engine's steps.
    pub heard: Heard,
    /// By how much its tokens are late here.
    pub late: Millis,
    /// KV tokens that this proxy ever sent there, cached ones not counted.
    pub filled: Tokens,
    /// When this proxy last sent it a request.
    pub sent_at: UnixMillis,
    /// The part, 0 to 1, of this request's prompt that it was sent before and still has room for.
    pub cached: f64,
    /// It served the session last; what that left there is in `cached`, or in `claimed`.
    pub session: bool,
    /// The part, 0 to 1, of the prompt that it holds by what the client claims: makes it cheaper, and takes nothing off
    /// what the request is booked with and must find room for.
    pub claimed: f64,
    /// Prefill rate learned of it, tokens per millisecond.
    pub rate: Option<f64>,
    /// It is slower than usual, and not to be tried by this request.
    pub slow: Option<Slow>,
    /// It failed a moment ago; avoided until then.
    pub avoided_until: Option<UnixMillis>,
    /// Adapters of own requests in flight there.
    pub adapters_in_use: &'a [InUse],
    /// Adapters that the gauges showed in flight there: [`adapter_key`] and when last, newest first.
    pub seen_adapters: &'a [(u64, UnixMillis)],
    /// Adapters sent there in its present incarnation: [`adapter_key`] and when last, newest first.
    pub recent_adapters: &'a [(u64, UnixMillis)],
}

impl PodFacts<'_> {
    /// The part of the prompt that is likely in the cache of the engine that gets it: each engine of a pod has one of its
    /// own, and nobody knows which one was asked before.
    fn cached_at_an_engine(&self) -> f64 {
        self.at_an_engine(self.cached)
    }

    fn at_an_engine(&self, part: f64) -> f64 {
        part / f64::from(self.row.load.engines.max(1))
    }
}

/// What is known of the pool as a whole.
#[derive(Clone, Copy, Debug, Default)]
pub struct PoolFacts {
    /// Prefill rate learned, tokens per millisecond.
    pub rate: Option<f64>,
    /// Prompt tokens of a request on average, as the engines count.
    pub prompt: Option<f64>,
    /// The part, 0 to 1, of the pods' load that other proxies send.
    pub elsewhere: f64,
    /// The part, 0 to 1, of this proxy's requests that began like an earlier one.
    pub repeated: f64,
    /// The part, 0 to 1, of prompt tokens that the engines found in their caches lately; `None` = they do not say.
    pub found: Option<f64>,
    /// It is too early to tell whether they find anything.
    pub early: bool,
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ask<'a> {
    /// Model or adapter; `None` = the pool's base.
    pub model: Option<&'a str>,
    /// Prompt tokens, estimated, over all prompts.
    pub prompt: Tokens,
    /// Part of them that was given as token numbers: exact.
    pub exact: Tokens,
    /// Output tokens expected, over all prompts and choices.
    pub output: Tokens,
    /// Prompts, at least 1.
    pub prompts: u32,
    /// How the prompt begins, on which proxies agree; `None` = too short, or nothing engines cache.
    pub start: Option<Beginning>,
}

impl<'a> Ask<'a> {
    /// From the request's facts; `ascii_bytes_per_token` as in [`crate::request::PromptSize::estimate`],
    /// `expected_output` for each answer where the client's bound is not lower.
    /// A count of tokens needs no GPU, so it takes nothing.
    #[must_use]
    pub fn new(facts: &'a Facts, ascii_bytes_per_token: f64, expected_output: Tokens) -> Self {
        let believed = facts.max_output.map_or(1, |_| OUTPUT_BELIEVED);
        let context = facts.need(
            Tokens(expected_output.0.saturating_mul(believed)),
            ascii_bytes_per_token,
        );
        let prompt = facts.prompt.estimate(ascii_bytes_per_token).min(context);
        Self {
            model: facts.model.as_deref(),
            prompt,
            exact: Tokens(facts.prompt.tokens).min(prompt),
            output: Tokens(context.0 - prompt.0),
            prompts: facts.prompts.max(1),
            start: None,
        }
    }

    /// Tokens of one prompt that are certain. The estimate may be double the truth, so only half of it counts.
    fn at_least(&self) -> Tokens {
        Tokens(self.exact.0.max(self.prompt.0 / 2) / u64::from(self.prompts.max(1)))
    }

    /// What it takes of a pod that has this part, 0 to 1, of its prompt cached.
    fn need(&self, cached: f64) -> Need {
        Need {
            prompt: self.prompt,
            cached: Tokens((self.prompt.0 as f64 * cached.clamp(0.0, 1.0)) as u64),
            output: self.output,
            prompts: self.prompts.max(1),
        }
    }
}

/// What to do with a request, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// What to do.
    pub action: Action,
    /// Ask the poller for the models pages at once: the name is on none of them.
    pub refresh_models: bool,
    /// Why.
    pub why: Why,
}

/// What to do with a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Send it to the first of these; a retry takes the next.
    Route {
        /// One to [`ENDPOINTS_MAX`] distinct pods.
        endpoints: Vec<PodAddress>,
        /// What the ledger books for the first.
        booking: Booking,
    },
    /// Answer it here.
    Reply(Refusal),
    /// Let the proxy's own load balancer decide.
    Pass(Reason),
    /// Keep it until a pod has room. Only where room was asked for.
    Hold,
}

/// What a routed request takes of its pod, for the ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Booking {
    /// Uncached prompt tokens: work until the first token.
    pub work: Tokens,
    /// KV tokens it takes: the uncached prompt and the expected output.
    pub context: Tokens,
    /// Predicted time to first token.
    pub predicted: Millis,
    /// The adapter it loads or uses.
    pub adapter: Option<u64>,
    /// When its first token comes shows nothing of the pod's rate: the client claims that less is to be computed, or the
    /// pod is known to be slower than usual.
    pub misleads: bool,
}

/// An answer that Berth gives itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP status: 404, 429 or 503.
    pub status: u16,
    /// Why.
    pub reason: Reason,
    /// The model asked for, shortened to what fits an answer.
    pub model: Option<String>,
    /// The nearest name that the client may know, where the config lets it be told.
    pub near: Option<String>,
    /// Seconds after which there may be room; `None` = nobody can say.
    pub retry_after: Option<u64>,
}

/// Decides. Equal input and seed give an equal decision.
#[must_use]
pub fn decide(input: &Input<'_>, rng: &mut Rng) -> Decision {
    let mut why = Why::new(input);
    let subset = input.subset.map(Subset::parse);
    let Some(snapshot) = input.snapshot else {
        return without_table(input, subset.as_ref(), why, rng);
    };
    let mut candidates = Candidates::new(input);
    if !candidates.keep_ready(subset.as_ref(), &mut why) {
        return match subset {
            Some(_) => why.refuse(503, Reason::SubsetNoMatch),
            None if snapshot.discovery_fresh(input.pool, input.now) => why.refuse(503, Reason::NoReadyPod),
            None => why.pass(Reason::DiscoveryStale),
        };
    }
    if !candidates.keep_labelled(snapshot, &mut why) {
        return why.refuse(503, Reason::LabelsNoMatch);
    }
    if !candidates.keep_serving(snapshot, &mut why) {
        return why.refuse(404, Reason::ModelUnknown);
    }
    candidates.keep_awake(&mut why);
    candidates.keep_long_enough(&mut why);
    candidates.keep_below_caps(&mut why);
    candidates.price(&mut why);
    if let Some(admit) = &input.admit
        && !candidates.have_room(admit, &mut why)
    {
        return why.hold();
    }
    candidates.route(why, rng)
}

/// No poller has written a table yet: the proxy's own load balancer decides. It knows nothing of a
/// subset, though, so that one is taken as it stands.
fn without_table(input: &Input<'_>, subset: Option<&Subset>, mut why: Why, rng: &mut Rng) -> Decision {
    let Some(subset) = subset else {
        return why.pass(Reason::NoTable);
    };
    let endpoints = subset.some(ENDPOINTS_MAX, rng);
    if endpoints.is_empty() {
        return why.refuse(503, Reason::SubsetNoMatch);
    }
    why.notes.push(Note::SubsetAsGiven);
    let need = input.ask.need(0.0);
    let booking = Booking {
        work: need.uncached(),
        context: need.takes(),
        ..Booking::default()
    };
    Decision {
        action: Action::Route { endpoints, booking },
        refresh_models: false,
        why,
    }
}
