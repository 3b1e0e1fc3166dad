//! From costs to an ordered list of pods: step 5 of a decision.
//!
//! The lowest cost wins, but costs a few milliseconds apart say nothing: the gauges are a scrape
//! old. Proxies that read the same gauges would all run to the same pod, so near-equals take turns, and of
//! those that others load more or less each proxy takes the one that it has most to itself;
//! but where one of them is the home of such prompts, or the adapter lives there, it is that one: it costs nothing, and
//! they agree from the first request on. The pod that served the session last comes before all.

use core::cmp::{Ordering, Reverse};

use berth_shared_state::limits::ENDPOINTS_MAX;
use berth_shared_state::table::Trend;
use berth_shared_state::units::UnixMillis;
use fastrand::Rng;

use super::candidates::Candidate;
use super::serving::bid;
use crate::cost::{ADAPTER_HOMES, Tier, most};

/// Costs this many milliseconds apart are equal: less than one step of a batch, so nobody can
/// notice, while one running request more (2 ms + a tenth of a prefill of 40 ms and more) still counts.
const NEAR_MILLIS: f64 = 5.0;
/// Costs are equal, too, within this part of the lower one's blurred terms: a gauge that is a second
/// old is not exact to a twentieth. Prefill and adapter load are the same fact on all pods and
/// must not widen the band, or a cold load would hide a second of queue.
const NEAR_PART: f64 = 0.05;
/// Milliseconds that a retry costs more in a failure domain that was tried before. Own: if the domain is at fault, the
/// retry is lost with the time that it takes to notice, about a second (Envoy's connect timeout in the rendered
/// clusters). Less than any pod without room costs.
const SAME_DOMAIN: f64 = 1_000.0;
/// One request in so many goes to a pod with frozen gauges and nothing of ours in flight. Gauges are
/// set after an engine step, so after a mass cancellation only a request can move them (vLLM
/// #29928). One request at a time, since the next one sees the first in flight.
pub const PROBE_ONE_IN: u32 = 50;

/// What was picked: the first `count` of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranked {
    /// How many, with distinct addresses.
    pub count: usize,
    /// The first was not the cheapest, but one to be probed.
    pub probe: bool,
}

/// The least goes first: who served the session last; where the adapter is warmest, and of these the highest bidder,
/// since each copy in use takes a slot; the home of such prompts; where others send least; who was sent nothing for the
/// longest time.
type Order = (bool, Option<(Tier, Reverse<u64>)>, bool, u64, UnixMillis);

/// Where one comes among near-equals. `adapter`: its key, where warmth counts. `popular`: the adapter is in use at more pods
/// than its homes, so all of these have a slot for it anyway.
fn order(one: &Candidate<'_>, adapter: Option<u64>, popular: bool) -> Order {
    let adapter = adapter.filter(|_| one.tier != Tier::Base);
    let bids = |key| if popular { 0 } else { bid(key, one.pod.row) };
    (
        !one.pod.session,
        adapter.map(|key| (one.tier, Reverse(bids(key)))),
        !one.is_home,
        // Not negative, so its bits are in the order of the numbers.
        one.terms.unseen.to_bits(),
        one.pod.sent_at,
    )
}

/// Brings the picks to the front of the list, best first. `adapter`: its key, where its warmth counts.
pub fn ranked(list: &mut [Candidate<'_>], adapter: Option<u64>, rng: &mut Rng) -> Ranked {
    let mut ranked = Ranked { count: 0, probe: false };
    let mut end = list.len();
    while ranked.count < ENDPOINTS_MAX {
        let (taken, rest) = list.split_at_mut_checked(ranked.count).unwrap_or_default();
        let left = rest.get(..end.saturating_sub(taken.len())).unwrap_or_default();
        let probe = if taken.is_empty() { to_probe(left, rng) } else { None };
        let Some((next, one)) = probe
            .or_else(|| near_best(taken, left, adapter, rng))
            .and_then(|at| Some((at, left.get(at)?)))
        else {
            break;
        };
        if taken.iter().any(|other| other.pod.row.address == one.pod.row.address) {
            // A table that names a pod twice.
            end -= 1;
            list.swap(ranked.count + next, end);
            continue;
        }
        ranked.probe |= probe.is_some();
        list.swap(ranked.count, ranked.count + next);
        ranked.count += 1;
    }
    ranked
}

/// One of the cheapest, in the order of [`Order`]. A pod whose load is less known never ties with a better known one.
fn near_best(taken: &[Candidate<'_>], rest: &[Candidate<'_>], adapter: Option<u64>, rng: &mut Rng) -> Option<usize> {
    let tried = |one: &Candidate<'_>| one.domain.is_some() && taken.iter().any(|other| other.domain == one.domain);
    let cost = |one: &Candidate<'_>| one.cost + if tried(one) { SAME_DOMAIN } else { 0.0 };
    let (mut best, mut least) = (rest.first()?, cost(rest.first()?));
    for one in rest {
        let cost = cost(one);
        if cost.total_cmp(&least).is_lt() {
            (best, least) = (one, cost);
        }
    }
    let bound = least + most(NEAR_PART * best.terms.blurred(), NEAR_MILLIS);
    let near = |one: &Candidate<'_>| cost(one) <= bound && one.terms.uncertainty <= best.terms.uncertainty;
    let in_use = || rest.iter().filter(|one| one.tier == Tier::Active && near(one)).count();
    let popular = adapter.is_some() && in_use() > ADAPTER_HOMES as usize;
    let (mut first, mut equal): (Option<(Order, usize)>, usize) = (None, 0);
    for (index, one) in rest.iter().enumerate().filter(|(_, one)| near(one)) {
        let order = order(one, adapter, popular);
        equal = match first.map_or(Ordering::Less, |(first, _)| order.cmp(&first)) {
            Ordering::Less => 1,
            Ordering::Equal => equal + 1,
            Ordering::Greater => continue,
        };
        // So each of them is it with the same chance.
        if rng.usize(0..equal) == 0 {
            first = Some((order, index));
        }
    }
    first.map(|(_, index)| index)
}

/// A frozen pod, now and then; not with a request that would first have to load an adapter there.
fn to_probe(list: &[Candidate<'_>], rng: &mut Rng) -> Option<usize> {
    let frozen = |one: &Candidate<'_>| {
        let idle = one.pod.own.unanswered == 0 && one.pod.own.generating == 0;
        one.pod.row.trend == Trend::Frozen && idle && one.terms.failed == 0.0 && one.terms.adapter == 0.0
    };
    let count = list.iter().filter(|one| frozen(one)).count();
    if count == 0 || rng.u32(0..PROBE_ONE_IN) != 0 {
        return None;
    }
    let nth = rng.usize(0..count);
    list.iter()
        .enumerate()
        .filter(|(_, one)| frozen(one))
        .nth(nth)
        .map(|(index, _)| index)
}
