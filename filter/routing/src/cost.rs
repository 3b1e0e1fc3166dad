//! The cost of a pod for a request, in milliseconds until the first token.
//!
//! One physical number instead of weighted scores, so that a cold adapter, a queue and a slow pod
//! can be compared, and a person can check each part against a clock. The lowest cost wins.
//!
//! | term | formula (ms) | what it stands for |
//! |---|---|---|
//! | `queue` | (own unanswered tokens + others' x mean uncached) / rate, others' = queued when it was read + sent since (at most twice what is done by now) - what is done by now; own streams know better (`queue.rs`) | work ahead |
//! | `prefill` | u / rate, u = prompt tokens that are not in the pod's prefix cache | own work |
//! | `away` | a x prefill x 0.9 x (part of the load that others send) x (how much engines cache), except at the home of such prompts; a = 3 x (how often a token is found again), 10 at most, 1 where engines do not say | the prefix is computed once more, and kept twice |
//! | `harm` | u / rate x (waiting + 0.1 x running) + 2 x running x s | slower answers of others; s = step / the shortest of a pod, where it is 3 or more |
//! | `memory` | 150 x k / (1 - k), k = (used + sent since by others + u + output) / capacity, and more beyond 1 | preemption |
//! | `adapter` | 0 warm, 300 in host memory, else `cold_load`: x (1 - 0.9 x part of others) at its home, unless the engine says what it holds; x 1 at its second home; x (1 + 4.5 x part of others) elsewhere; + 3,000 x excess of slots | adapter load |
//! | `answer` | 0.1 x output x (step - the shortest of a pod), where that is three times as long | a slower answer, once it has begun |
//! | `overdue` | age of the oldest unanswered - 2 x its prediction - 1,000; or by how much the tokens of its streams are late - 2 x (what is ahead + an ordinary prompt) - 25 | a pod that hangs |
//! | `failed` | 1,000,000 while the ledger avoids the pod | a pod that fails |
//! | `stuck` | 300,000 | a queue with nothing running |
//! | `warming` | (1 / part - 1) x (queue + prefill + harm), part = age / `slow_start`, 0.1 to 1 | a new or restarted pod, where the config says so |
//! | `unseen` | 4 x (mean uncached, or u if that is less) / rate x (part of others) x (1 - own part at the pod / 2 own part of the pool), at least 0 | others may send there, too, and nobody sees it |
//! | `uncertainty` | 100 x (1 - weight of the reading); 10,000 when nobody answers the scrapes | not knowing |
//!
//! `rate` is learned ([`Fleet`]), and divided by how many times slower the pod is than usual, as its pages show it. `step` is
//! how long an engine takes for a token of an answer, by the same pages ([`berth_shared_state::table::Tempo`]).
//!
//! Shape and constants come from a simulation of policies on public traces (DESIGN.md); a constant
//! that does not is marked "own" with its argument. An unknown gauge counts as the mean of the
//! readable pods; a pod's own load is fact and stays. Gauges are first split into *own* and
//! *foreign* load, since only the foreign part can be guessed from other pods:
//!
//! ```text
//! foreign = max(0, gauge - own at that scrape)      now = foreign + own = max(gauge + own since, own)
//! foreign used = weight x its own + (1 - weight) x mean;   weight: fresh 1, ageing 0.5, unknown 0
//! ```
//!
//! Deliberately not here: who may serve at all ([`crate::decision`]), and who holds a prefix
//! ([`crate::prefix`]).

use berth_shared_state::sample::Status;
use berth_shared_state::snapshot::Freshness;
use berth_shared_state::table::{PodRow, ScrapeError, Trend};
use berth_shared_state::units::{Millis, Tokens, UnixMillis};
use serde::{Serialize, Serializer};

use crate::decision::PodFacts;
use crate::ledger::Heard;

mod adapter;
mod fleet;
mod foreign;
mod memory;
mod numbers;
mod queue;
mod room;
mod since;
pub use adapter::{Slots, Tier, adapter};
pub use fleet::Fleet;
use foreign::part;
pub use foreign::{Foreign, capacity};
pub use memory::free_tokens;
use memory::{half_an_answer, memory};
pub(crate) use numbers::{least, most};
use queue::Ahead;
pub use room::{Patience, Room, room};
pub use since::{OWN_MIN, Since};

#[cfg(test)]
mod tests;

/// Part of the own prefill that everybody who comes behind loses: all of it. How many that are is not known; in the
/// time in which today's queue drains, as many come as wait now (Little's law). It is what keeps an overload from
/// feeding itself, since recomputing a prefix beside its home costs most where everybody waits.
pub const HARM_PER_WAITING: f64 = 1.0;
/// Part of the own prefill that every running request loses. 0.2 has the better mean, but costs
/// p99 where prompts share no prefix; 0.1 is the cautious choice.
pub const HARM_PER_WORK: f64 = 0.1;
/// Milliseconds per running request, whose steps are longer for one sequence more: on an H100 by 65 us, over 150 tokens, at
/// the weight of [`HARM_PER_WORK`], for it and for this one. Longer steps grow by as much more.
pub const HARM_PER_REQUEST: f64 = 2.0;
/// Milliseconds at k = 0.5: the scale of the memory barrier.
pub const MEMORY_SCALE: f64 = 150.0;
/// The barrier is capped at this k: 29,850 ms.
pub const MEMORY_CAP: f64 = 0.995;
/// What others are thought to have sent takes no more than this part of the memory that is free: where a proxy sends little, a
/// burst of its own stands for fifty times as much of others, and would fill all pods but the largest.
pub const GUESSED_PART: f64 = 0.5;
/// Milliseconds on top where the request does not fit now. Own: room appears when a running answer
/// ends, and 300 tokens at 30 ms take about that long. It keeps 0.999 and 1.001 apart.
pub const NO_ROOM: f64 = 10_000.0;
/// Milliseconds on top where it would not fit into the empty pod. Own: more than the barrier of any
/// pod that it fits, yet not an exclusion, since sizes are estimates.
pub const NEVER_FITS: f64 = 60_000.0;
/// Milliseconds to copy an adapter from host memory to the GPU.
pub const HOST_LOAD: f64 = 300.0;
/// Milliseconds that an adapter's load and wait for a slot are expected to take, at most, where the config does not say
/// more: a load takes 170 ms from a local disk on an H100 (tests/simulator), seconds from a network volume.
pub const COLD_LOAD_TAKES: f64 = 2_000.0;
/// Adapters sent to a pod lately that are believed in its host memory.
pub const HOST_ADAPTERS: usize = 16;
/// Milliseconds per adapter that is ahead for a slot.
pub const SLOT_WAIT: f64 = 3_000.0;
/// How far the agreement by hash is believed, at most.
pub const BELIEF: f64 = 0.9;
/// Prefills that one copy more beside the home costs where others send, too, at most: far above its own time, since it evicts
/// another copy and founds a second home. 3 and 30 are worse in the lab.
pub const AWAY: f64 = 10.0;
/// The same for each time that a computed token is found again, found / (1 - found) times. Where most prompts are new,
/// no home is worth a wait: with [`AWAY`] for all, the Mooncake trace has 2.3 times the mean of the reference with 4 proxies. With 3
/// it has less still, but prefixes that just fit the caches may never find home again.
pub const AWAY_PER_REUSE: f64 = 5.0;
/// The same in loads of an adapter. Less, since pages show where an adapter runs, whoever sent it: 1 and 10 are
/// worse in the lab.
pub const ADAPTER_AWAY: f64 = 5.0;
/// Pods on which proxies agree for an adapter. At the second a load costs what it takes: proxies that find the slots of the
/// first full go there, and all to the same. With one, 16 proxies wait twice as long for slots; three are no better.
pub const ADAPTER_HOMES: u64 = 2;
/// A beginning of prompts that is more popular than this part of a pod's fair share says nothing of where a prompt
/// lives: a home must not be filled by one of them.
pub const HOME_SHARE: f64 = 0.5;
/// Agreement on homes counts not at all where engines find nothing in their caches now, and in full where they find one
/// in so many prompt tokens.
pub const HITS_SCALE: f64 = 20.0;
/// Nor does it count more than so many times the part of prompt tokens that engines found lately: what is at home is
/// there as often as prompts repeat. With 2 proxies stop to agree while their prefixes evict each other.
pub const FOUND_SCALE: f64 = 4.0;
/// Milliseconds per millisecond overdue. Own: of what did not come when it should have, nothing is known but how long it
/// has taken, so as long again is to be expected. With 0.3, as in the simulation, twice as many requests for adapters
/// were lost at an engine that hangs: a load elsewhere costs 20 s.
pub const OVERDUE_RATE: f64 = 1.0;
/// Overdue starts at this multiple of the prediction ...
pub const OVERDUE_FACTOR: f64 = 2.0;
/// ... plus this many milliseconds.
pub const OVERDUE_GRACE: f64 = 1_000.0;
/// Milliseconds that a token may be late for nothing: networks and frontends collect what they pass on. Own: about a step. With 100
/// what hangs is found later, and nothing is better.
pub const SILENT_GRACE: f64 = 25.0;
/// Milliseconds while the ledger avoids a pod after a failure (3 s): more than any other term, since
/// a dead pod answers fast and looks idle.
pub const FAILED: f64 = 1_000_000.0;
/// Milliseconds of a pod with a queue and nothing running. Own: it has served nobody for many
/// scrapes, so only a pod that fails is worse.
pub const STUCK: f64 = 300_000.0;
/// Ordinary requests that others may have sent, and that no page shows yet, to a pod that is all theirs; of the size of this one
/// at most, without what it has cached there: that is a fact, whatever others send. It makes proxies that do not talk share the pods
/// out: each goes first to those that it knows best, since it sends most of what they get, and others see that on
/// their pages and stay away. Two and six are hardly worse in the lab.
pub const UNSEEN: f64 = 4.0;
/// Milliseconds of not knowing a pod's load. Own: an ordinary prompt's prefill, so an unread pod
/// loses to any idle one and joins in as soon as the others have a request more.
pub const UNCERTAIN: f64 = 100.0;
/// Milliseconds of a pod that nobody reaches and that answered none of the requests in flight. Own:
/// probably dead; still a candidate, since only the metrics port may be closed.
pub const UNREACHABLE: f64 = 10_000.0;
/// Scrapes that must have failed in a row for that.
pub const UNREACHABLE_AFTER: u32 = 3;
/// A pod's own rate counts only if it differs from the pool's by more than this factor.
pub const RATE_DIFFERS: f64 = 1.7;
/// That factor grows by so much with the part of the load that others send: their queues look like slowness.
/// With four proxies and equal pods, learned rates were seen 3.5 times apart.
pub const RATE_DIFFERS_ELSEWHERE: f64 = 4.0;
/// Where a prompt is cached somewhere, queues count as equal within this part of their mean, times the
/// part of the load that others send. They are a scrape old and others act on them, too, so every
/// difference is overdone until the next scrape; what is cached is certain.
pub const QUEUES_ALIKE: f64 = 0.75;
/// Tempos of a pool's pods differ by more than this factor where their accelerators do. The load alone makes them differ by up to
/// two, between pods that are equal but for their memory.
pub const TEMPO_DIFFERS: f64 = 3.0;
/// And by no more than this between the best and the mean: an H100 reads memory about ten times as fast as an L4. One step
/// that noise or lying counters made too short must not price the pool.
pub const TEMPO_APART: f64 = 10.0;
/// A pod counts as slow when it is so many times slower than usual. Below what makes the poller say so, since part of it
/// is explained here.
pub const SLOW_COUNTS: f64 = 3.0;
/// And no slower than this: nobody is sent there anyway.
pub const SLOW_MAX: f64 = 100.0;
/// The share of a new pod grows from this part on: at nothing it would never be seen to work. Envoy's slow start begins
/// with the same tenth.
pub const WARMING_MIN: f64 = 0.1;
/// Weight of an ageing reading against the mean. Own: half-way between the two certain cases.
pub const AGEING_WEIGHT: f64 = 0.5;
/// Slowest believable prefill, tokens per millisecond: keeps every cost finite.
const RATE_MIN: f64 = 1e-3;

/// The named parts of a cost, each in milliseconds. Serialised in whole milliseconds, zeros left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Terms {
    /// Work queued ahead.
    #[serde(serialize_with = "whole", skip_serializing_if = "negligible")]
    pub queue: f64,
    /// The request's own prefill.
    #[serde(serialize_with = "whole", skip_serializing_if = "negligible")]
    pub prefill: f64,
    /// Not being where proxies that do not talk agree to send prompts that begin like this one.
    #[serde(serialize_with = "whole", skip_serializing_if = "negligible")]
    pub away: f64,
    /// What the others lose by it.
    #[serde(serialize_with = "whole", skip_serializing_if = "negligible")]
    pub harm: f64,
    /// Risk of preemption.
    #[serde(serialize_with = "whole", skip_serializing_if = "negligible")]
    pub memory: f64,
    /// Loading the adapter, or waiting for a slot.
    #[serde(serialize_with = "whole", skip_serializing_if = "negligible")]
    pub adapter: f64,
    /// A slower answer, once it has begun.
    #[serde(serialize_with = "whole", skip_serializing_if = "negligible")]
    pub answer: f64,
    /// A pod that does not answer what it was sent.
    #[serde(serialize_with = "whole", skip_serializing_if = "negligible")]
    pub overdue: f64,
    /// A pod that failed a moment ago.
    #[serde(serialize_with = "whole", skip_serializing_if = "negligible")]
    pub failed: f64,
    /// A pod that queues and runs nothing.
    #[serde(serialize_with = "whole", skip_serializing_if = "negligible")]
    pub stuck: f64,
    /// A pod that is new.
    #[serde(serialize_with = "whole", skip_serializing_if = "negligible")]
    pub warming: f64,
    /// A pod to which others send most of what it gets.
    #[serde(serialize_with = "whole", skip_serializing_if = "negligible")]
    pub unseen: f64,
    /// A pod whose load is not known.
    #[serde(serialize_with = "whole", skip_serializing_if = "negligible")]
    pub uncertainty: f64,
}

impl Terms {
    /// The cost: their sum.
    #[must_use]
    pub fn total(&self) -> f64 {
        // In the order of `named`, written out: each decision asks it of every pod.
        self.queue
            + self.prefill
            + self.away
            + self.harm
            + self.memory
            + self.adapter
            + self.answer
            + self.overdue
            + self.failed
            + self.stuck
            + self.warming
            + self.unseen
            + self.uncertainty
    }

    /// The terms that gauges blur: everything else is known exactly, or alike on all pods.
    #[must_use]
    pub fn blurred(&self) -> f64 {
        self.queue + self.harm + self.memory
    }

    /// The expected time to first token: what physically lies ahead of it. `cold_load` is the price of the load that the
    /// adapter needs there, 0 if it needs none. A load takes no longer than its price, and mostly far less. So a part of
    /// it is expected, and who takes all of it is not yet overdue; the `adapter` term would be wrong for that, since it
    /// is lower at homes and higher elsewhere, where a load takes no longer.
    #[must_use]
    pub fn first_token(&self, cold_load: f64) -> f64 {
        let adapter = most(least(self.adapter, COLD_LOAD_TAKES), cold_load / OVERDUE_FACTOR);
        self.queue + self.prefill + adapter
    }

    /// Name and value of each term, in the order in which they are shown.
    #[must_use]
    pub const fn named(&self) -> [(&'static str, f64); 13] {
        [
            ("queue", self.queue),
            ("prefill", self.prefill),
            ("away", self.away),
            ("harm", self.harm),
            ("memory", self.memory),
            ("adapter", self.adapter),
            ("answer", self.answer),
            ("overdue", self.overdue),
            ("failed", self.failed),
            ("stuck", self.stuck),
            ("warming", self.warming),
            ("unseen", self.unseen),
            ("uncertainty", self.uncertainty),
        ]
    }
}

/// Milliseconds as a whole number; saturates.
pub(crate) fn whole<S: Serializer>(millis: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(millis.round() as u64)
}

fn negligible(millis: &f64) -> bool {
    *millis < 0.5
}

/// What a request takes of a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// Prompt tokens, over all its prompts.
    pub prompt: Tokens,
    /// Those of them that are in the pod's prefix cache.
    pub cached: Tokens,
    /// Expected output tokens, over all its prompts.
    pub output: Tokens,
    /// Prompts in it, at least 1: each may go to another engine of the pod.
    pub prompts: u32,
}

impl Need {
    /// Prompt tokens to compute.
    #[must_use]
    pub const fn uncached(&self) -> Tokens {
        Tokens(self.prompt.0.saturating_sub(self.cached.0))
    }

    /// KV tokens that it takes. What is cached is there already. Where nobody has it in use it takes room that the gauge
    /// calls free, which nobody can know; counting it always is far worse (DESIGN.md).
    #[must_use]
    pub fn takes(&self) -> Tokens {
        self.uncached() + self.output
    }
}

/// How far a pod's reading is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// The gauges count.
    Fresh,
    /// Half of them, half the pool's mean; own load in full.
    Ageing,
    /// The pool's mean and the own load.
    Unknown,
}

impl Stage {
    /// The word for headers, the same as in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::Ageing => "ageing",
            Self::Unknown => "unknown",
        }
    }

    /// Judges a pod's reading. Frozen gauges are not a reading, however new the page is.
    #[must_use]
    pub fn of(pod: &PodFacts<'_>) -> Self {
        let load = &pod.row.load;
        if pod.row.scraped_at.is_none()
            || !pod.row.trend.is_believed()
            || matches!(load.status, Status::Unknown | Status::Reject)
        {
            return Self::Unknown;
        }
        match pod.freshness {
            Freshness::Fresh => Self::Fresh,
            Freshness::Ageing => Self::Ageing,
            Freshness::Unknown => Self::Unknown,
        }
    }

    /// The pod sleeps, and that is known.
    #[must_use]
    pub fn is_asleep(self, pod: &PodFacts<'_>) -> bool {
        self != Self::Unknown && pod.row.load.sleeping == Some(true)
    }

    /// The weight of the reading against the pool's mean.
    #[must_use]
    pub const fn weight(self) -> f64 {
        match self {
            Self::Fresh => 1.0,
            Self::Ageing => AGEING_WEIGHT,
            Self::Unknown => 0.0,
        }
    }
}

/// What others do with a pod, as far as it can be guessed: they do not say.
#[derive(Clone, Copy, Debug, Default)]
pub struct Others {
    /// How far it counts, 0 to 1, that they send such prompts elsewhere.
    pub away: f64,
    /// Requests that they sent there since its gauges were read.
    pub since: f64,
    /// How far it counts, 0 to 1, that they send there, too.
    pub unseen: f64,
    /// What was heard of what theirs do there.
    pub heard: Heard,
}

/// Everything a pod's terms are made of, once per decision.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The pool's means.
    pub fleet: &'a Fleet,
    /// Now.
    pub now: UnixMillis,
    /// False when more than half of the candidates would be avoided after failures.
    pub avoid: bool,
    /// Time in which the share of a new pod grows.
    pub slow_start: Millis,
}

/// The terms of one pod. `adapter` is what [`adapter`] said.
#[must_use]
pub fn terms(
    pod: &PodFacts<'_>,
    stage: Stage,
    need: &Need,
    adapter: f64,
    others: Others,
    question: &Question<'_>,
) -> Terms {
    let Question {
        fleet,
        now,
        avoid,
        slow_start,
    } = *question;
    let rate = fleet.rate(pod, stage);
    let foreign = fleet.foreign(pod, stage);
    let prefill = need.uncached().0 as f64 / rate;
    let own = pod.own.in_flight();
    let ordinary = fleet.mean_uncached(need.prompt);
    let queued = foreign.queued.unwrap_or(0.0);
    let ahead = Ahead::of(pod, fleet.read_at(pod, stage), queued, &others, ordinary / rate, now);
    let waiting = ahead.queued + f64::from(pod.own.unanswered);
    let running = foreign.running.unwrap_or(0.0) + ahead.sent + f64::from(own);
    let steps = fleet.steps(pod);
    let longer = steps.map_or(1.0, |(step, best)| step / best);
    let output = need.output.0 as f64 / f64::from(need.prompts.max(1));
    let avoided = avoid && pod.avoided_until.is_some_and(|until| until > now);
    let mut terms = Terms {
        queue: pod.own.unanswered_tokens.0 as f64 / rate + ahead.millis,
        prefill,
        away: fleet.away() * others.away * prefill,
        harm: prefill * (HARM_PER_WAITING * waiting + HARM_PER_WORK * running) + HARM_PER_REQUEST * longer * running,
        memory: memory(
            pod,
            foreign.used,
            fleet,
            need,
            others.since * (ordinary + half_an_answer(need)),
        ),
        adapter,
        answer: steps.map_or(0.0, |(step, best)| HARM_PER_WORK * output * (step - best)),
        overdue: 0.0,
        failed: if avoided { FAILED } else { 0.0 },
        stuck: if pod.row.trend == Trend::Stuck && stage != Stage::Unknown {
            STUCK
        } else {
            0.0
        },
        warming: 0.0,
        unseen: UNSEEN * others.unseen * least(ordinary, need.uncached().0 as f64) / rate,
        uncertainty: uncertainty(pod, stage),
    };
    terms.overdue = most(overdue(pod, now), silent(pod, terms.queue, ordinary / rate));
    terms.warming = (1.0 / share(pod.row, slow_start, now) - 1.0) * (terms.queue + prefill + terms.harm);
    #[cfg(feature = "lab")]
    let terms = crate::lab::masked(terms);
    terms
}

/// The part of its load that a pod should have while it is new, up to 1. What costs so many times as much fills up to
/// so small a part of the others: they are equal where their prices are.
fn share(row: &PodRow, slow_start: Millis, now: UnixMillis) -> f64 {
    // From the future: from before the clock stepped back.
    if slow_start.0 == 0 || row.since > now {
        return 1.0;
    }
    (now.since(row.since).0 as f64 / slow_start.0 as f64).clamp(WARMING_MIN, 1.0)
}

fn overdue(pod: &PodFacts<'_>, now: UnixMillis) -> f64 {
    pod.own
        .oldest_unanswered
        .map_or(0.0, |(sent, predicted)| OVERDUE_RATE * overdue_by(sent, predicted, now))
}

/// The same of an engine that owes its streams a token: it hangs, or became slow, and who is sent there now waits at least as
/// long again. What is ahead explains twice its time, and so does a prompt of others, or of an own request without a stream.
fn silent(pod: &PodFacts<'_>, queue: f64, ordinary: f64) -> f64 {
    let predicted = pod
        .own
        .oldest_unanswered
        .map_or(0.0, |(_, predicted)| predicted.0 as f64);
    let explained = OVERDUE_FACTOR * (most(predicted, queue) + ordinary) + SILENT_GRACE;
    OVERDUE_RATE * most(pod.late.0 as f64 - explained, 0.0)
}

/// Milliseconds by which a request without a first token is overdue: its pod is not merely slow.
#[must_use]
pub fn overdue_by(sent: UnixMillis, predicted: Millis, now: UnixMillis) -> f64 {
    let late = now.since(sent).0 as f64 - OVERDUE_FACTOR * predicted.0 as f64 - OVERDUE_GRACE;
    most(late, 0.0)
}

fn uncertainty(pod: &PodFacts<'_>, stage: Stage) -> f64 {
    let row = pod.row;
    // A page that is only too slow is often one of a pod under load.
    let gone = matches!(row.last_error, Some(ScrapeError::Unreachable)) && row.failures >= UNREACHABLE_AFTER;
    if gone && pod.own.generating == 0 {
        return UNREACHABLE;
    }
    // A contradictory page keeps its numbers, but not the trust in them.
    let doubt = if row.load.status == Status::Suspect {
        1.0 - AGEING_WEIGHT
    } else {
        0.0
    };
    UNCERTAIN * most(1.0 - stage.weight(), doubt)
}
