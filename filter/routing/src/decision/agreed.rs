//! What proxies that do not talk agree on, and what that is worth.
//!
//! All proxies hash alike and read the same pages. So each knows where the others send what is cached nowhere
//! else, or everywhere a little: to the pod that bids highest for it (rendezvous hashing), its *home*. As far
//! as others are seen to send, what is at home counts as cached there, and going elsewhere costs what one copy
//! more costs everybody. An adapter has a second home, for when the slots of the first are taken. And what lives nowhere goes
//! first where a proxy sends most of what a pod gets, so that pods are shared out. A proxy that sees no others
//! believes nothing of this.

use berth_shared_state::pod::PodAddress;
use berth_shared_state::table::PodRow;

use super::candidates::Candidate;
use super::serving::{self, Name};
use super::{Input, PodFacts};
use crate::cost::{
    self, ADAPTER_AWAY, ADAPTER_HOMES, BELIEF, Fleet, HOME_SHARE, OWN_MIN, Others, Question, Since, Slots, Stage,
    Terms, Tier, most,
};
use crate::ledger::Heard;

/// Where a key lives.
#[derive(Clone, Debug)]
pub enum Home {
    /// At the highest bidders of all pods, which bid no less than this.
    Bidders { key: u64, bid: u64 },
    /// At these, which were drawn for it.
    Drawn(Vec<PodAddress>),
}

impl Home {
    /// Of so many bidders among these.
    pub fn of<'a>(key: u64, homes: usize, pods: impl Iterator<Item = &'a PodRow>) -> Option<Self> {
        let mut bids: Vec<u64> = pods.map(|row| serving::bid(key, row)).collect();
        let last = homes.min(bids.len()).checked_sub(1)?;
        let (_, bid, _) = bids.select_nth_unstable_by(last, |a, b| b.cmp(a));
        Some(Self::Bidders { key, bid: *bid })
    }

    fn is(&self, row: &PodRow) -> bool {
        match self {
            Self::Bidders { key, bid } => serving::bid(*key, row) >= *bid,
            Self::Drawn(homes) => homes.contains(&row.address),
        }
    }
}

/// What is believed of others, for one request.
#[derive(Clone, Debug)]
pub struct Agreed {
    /// Where prompts live that begin like this one.
    prefix: Option<Home>,
    /// Where the adapter lives, and there or where else it may.
    adapter: Option<[Home; 2]>,
    /// The part of the load that others send, 0 to 1.
    elsewhere: f64,
    /// How far their prefixes count: nothing where engines find none in their caches.
    shared: f64,
    /// Engines find nothing yet.
    early: bool,
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
        let early = input.facts.elsewhere > 0.0 && fleet.is_early();
        let start = input.ask.start.filter(|_| caches > 0.0 || early);
        // Nobody else is there to agree with.
        let name = name.filter(|_| input.facts.elsewhere > 0.0);
        let (prefix, adapter, since) = match input.drawn {
            Some(part) => (
                start.map(|_| Home::Drawn(part.addresses(&part.drawn.homes, input.pods))),
                name.filter(|_| !part.drawn.adapter_homes.is_empty()).map(|_| {
                    let either = &part.drawn.adapter_homes;
                    let first = either.get(..1).unwrap_or_default();
                    [first, either].map(|homes| Home::Drawn(part.addresses(homes, input.pods)))
                }),
                part.field.since,
            ),
            None => {
                // To more pods the more popular it is.
                let homes = |share: f64| (share * list.len() as f64 / HOME_SHARE).ceil().max(1.0) as usize;
                let pods = list.iter().map(|one| (one.pod, one.stage));
                (
                    start.and_then(|start| Home::of(start.key, homes(start.share), warm())),
                    name.and_then(|name| {
                        let homes = |homes| Home::of(name.key(), homes, rows());
                        Some([homes(1)?, homes(ADAPTER_HOMES as usize)?])
                    }),
                    Since::new(fleet, input.facts.elsewhere, pods),
                )
            }
        };
        Self {
            prefix,
            adapter,
            elsewhere: input.facts.elsewhere,
            shared: BELIEF * input.facts.elsewhere * caches,
            early,
            since,
        }
    }

    /// Whether the prompt's beginning lives at a pod.
    pub fn is_home(&self, row: &PodRow) -> bool {
        self.prefix.as_ref().is_some_and(|home| home.is(row))
    }

    /// The part of a prompt, 0 to 1, that is likely cached at a candidate.
    pub fn cached(&self, one: &Candidate<'_>) -> f64 {
        let by_others = if one.is_home { self.shared } else { 0.0 };
        most(one.pod.cached_at_an_engine(), by_others)
    }

    /// What it costs, in units of a cold load, to load the adapter at a pod that nobody saw it at.
    fn cold(&self, row: &PodRow) -> f64 {
        match &self.adapter {
            None => 1.0,
            Some([_, either]) if !either.is(row) => 1.0 + ADAPTER_AWAY * BELIEF * self.elsewhere,
            // The engine says what it has in memory, and this is not in it.
            Some([first, _]) if row.resident.is_some() || !first.is(row) => 1.0,
            Some(_) => 1.0 - BELIEF * self.elsewhere,
        }
    }

    /// How far it counts, 0 to 1, that others send to a pod what this proxy does not see: in full where it sends nothing itself,
    /// and not at all where its part of the load is twice that of the whole pool's or more. Nor at the home of the prompt,
    /// as long as engines can have found nothing: else each proxy would fill its own pods with prefixes that belong elsewhere.
    fn unseen(&self, one: &Candidate<'_>) -> f64 {
        if self.elsewhere <= 0.0 || (one.is_home && self.early) {
            return 0.0;
        }
        let own = most(1.0 - self.elsewhere, OWN_MIN);
        // Gauges that stand still show nothing of others, and what old ones showed is over.
        let at_pod = match one.stage {
            Stage::Unknown if one.pod.row.trend.is_believed() => own,
            Stage::Unknown => 0.0,
            Stage::Fresh | Stage::Ageing => one.pod.own_part,
        };
        self.elsewhere * most(1.0 - at_pod / (2.0 * own), 0.0)
    }

    /// What was heard of a pod's steps, as far as it counts. A proxy does not hear all pods, and those that it hears seem
    /// emptier than they would else; so where prompts have a home it must not listen, or they would leave it. Of several
    /// engines a stream tells of one.
    fn heard(&self, pod: &PodFacts<'_>) -> Heard {
        let counts = self.elsewhere > 0.0 && self.prefix.is_none() && pod.row.load.engines <= 1;
        if counts { pod.heard } else { Heard::default() }
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
            unseen: self.unseen(one),
            heard: self.heard(one.pod),
        };
        cost::terms(one.pod, one.stage, &one.need, adapter, others, question)
    }

    fn slots(&self, pod: &PodFacts<'_>, stage: Stage, tier: Tier, name: Name<'_>, question: &Question<'_>) -> Slots {
        let shown = pod.row.activity.as_ref().and_then(|active| active.max);
        let max = shown.or(question.fleet.max_lora());
        Slots::of(pod, stage, tier, name.key(), max, self.elsewhere)
    }
}
