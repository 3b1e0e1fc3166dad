//! What proxies that do not talk agree on, and what that is worth.
//!
//! All proxies hash alike and read the same pages. So each knows where the others send what is cached nowhere
//! else, or everywhere a little: to the pod that bids highest for it (rendezvous hashing), its *home*. As far
//! as others are seen to send, what is at home counts as cached there, and going elsewhere costs what one copy
//! more costs everybody. A proxy that sees no others believes nothing of this.

use berth_shared_state::table::PodRow;

use super::candidates::Candidate;
use super::serving::{self, Name};
use super::{Input, PodFacts};
use crate::cost::{self, ADAPTER_AWAY, BELIEF, Fleet, HOME_SHARE, Others, Question, Since, Slots, Stage, Terms, Tier};

/// The highest bidders for a key.
#[derive(Clone, Copy, Debug)]
pub struct Home {
    key: u64,
    /// The lowest bid of them.
    bid: u64,
}

impl Home {
    /// Of so many bidders among these.
    pub fn of<'a>(key: u64, homes: usize, pods: impl Iterator<Item = &'a PodRow>) -> Option<Self> {
        let mut bids: Vec<u64> = pods.map(|row| serving::bid(key, row)).collect();
        let last = homes.min(bids.len()).checked_sub(1)?;
        let (_, bid, _) = bids.select_nth_unstable_by(last, |a, b| b.cmp(a));
        Some(Self { key, bid: *bid })
    }

    fn is(self, row: &PodRow) -> bool {
        serving::bid(self.key, row) >= self.bid
    }
}

/// What is believed of others, for one request.
#[derive(Clone, Copy, Debug)]
pub struct Agreed {
    /// Where prompts live that begin like this one.
    prefix: Option<Home>,
    /// Where the adapter lives.
    adapter: Option<Home>,
    /// The part of the load that others send, 0 to 1.
    elsewhere: f64,
    /// How far their prefixes count: nothing where engines find none in their caches.
    shared: f64,
    since: Since,
}

impl Agreed {
    /// For a request with these candidates. `name`: the adapter's, if somebody would have to load it.
    pub fn new(input: &Input<'_>, fleet: &Fleet, list: &[Candidate<'_>], name: Option<Name<'_>>) -> Self {
        let rows = || list.iter().map(|one| one.pod.row);
        // A prefix lives where its adapter does.
        let warm = || {
            list.iter()
                .filter(|one| one.tier < Tier::Registered)
                .map(|one| one.pod.row)
        };
        let caches = fleet.caches(input.facts.repeated);
        let start = input.ask.start.filter(|_| caches > 0.0);
        // To more pods the more popular it is.
        let homes = start.map_or(0.0, |start| (start.share * list.len() as f64 / HOME_SHARE).ceil());
        let seen = input.facts.elsewhere > 0.0;
        let pods = list.iter().map(|one| (one.pod, one.stage));
        let elsewhere = input.facts.elsewhere;
        Self {
            prefix: start.and_then(|start| Home::of(start.key, (homes as usize).max(1), warm())),
            adapter: name.filter(|_| seen).and_then(|name| Home::of(name.key(), 1, rows())),
            elsewhere,
            shared: BELIEF * elsewhere * caches,
            since: Since::new(fleet, elsewhere, pods),
        }
    }

    /// Whether the prompt's beginning lives at a pod.
    pub fn is_home(&self, row: &PodRow) -> bool {
        self.prefix.is_some_and(|home| home.is(row))
    }

    /// The part of a prompt, 0 to 1, that is likely cached at a candidate.
    pub fn cached(&self, one: &Candidate<'_>) -> f64 {
        let by_others = if one.is_home { self.shared } else { 0.0 };
        one.pod.cached_at_an_engine().max(by_others)
    }

    /// What it costs, in units of a cold load, to load the adapter at a pod that nobody saw it at.
    fn cold(&self, row: &PodRow) -> f64 {
        match self.adapter {
            None => 1.0,
            Some(home) if !home.is(row) => 1.0 + ADAPTER_AWAY * BELIEF * self.elsewhere,
            // The engine says what it has in memory, and this is not in it.
            Some(_) if row.resident.is_some() => 1.0,
            Some(_) => 1.0 - BELIEF * self.elsewhere,
        }
    }

    /// The terms of a candidate whose need and home are known. `name`: the adapter's, if warmth counts.
    pub fn terms(
        &self,
        input: &Input<'_>,
        one: &Candidate<'_>,
        name: Option<Name<'_>>,
        question: &Question<'_>,
    ) -> Terms {
        let row = one.pod.row;
        let cold_load = input.pool.adapters.cold_load.0 as f64 * self.cold(row);
        let adapter = name.map_or(0.0, |name| {
            cost::adapter(
                one.tier,
                cold_load,
                self.slots(one.pod, one.stage, one.tier, name, question),
            )
        });
        let away = self.prefix.is_some() && !one.is_home;
        let others = Others {
            away: if away { self.shared } else { 0.0 },
            since: self.since.at(question.fleet, one.pod, one.stage),
        };
        cost::terms(one.pod, one.stage, &one.need, adapter, others, question)
    }

    fn slots(&self, pod: &PodFacts<'_>, stage: Stage, tier: Tier, name: Name<'_>, question: &Question<'_>) -> Slots {
        let shown = pod.row.activity.as_ref().and_then(|active| active.max);
        let max = shown.or(question.fleet.max_lora());
        Slots::of(pod, stage, tier, name.key(), max, self.elsewhere)
    }
}
