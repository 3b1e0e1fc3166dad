//! One look at the pods of a pool: at some, and at all where some cannot speak for them.
//!
//! Whether there is room is a question to all pods: one of them is enough. So where pods are many, those that were drawn
//! are asked first, and all of them only before a request is held or sent away for want of room. Deliberately not here:
//! who is drawn ([`crate::decision`]), and what becomes of a request without room ([`super::line`]).

use berth_shared_state::config::Pool;
use berth_shared_state::units::UnixMillis;
use fastrand::Rng;

use super::pool::{PoolView, at_place};
use super::session::Joined;
use crate::decision::{self, Action, Admit, Ask, Decision, Drawn, PodFacts};
use crate::prefix::{Chains, Found};

/// A request, and what was found out for it.
pub(super) struct Look<'v, 'a> {
    pub pool: &'a Pool,
    pub view: &'v PoolView,
    pub found: &'a Found,
    pub chains: Option<&'a Chains>,
    pub joined: &'a Joined,
    pub ask: Ask<'a>,
    pub subset: Option<&'a str>,
    pub admit: Option<Admit<'a>>,
    pub now: UnixMillis,
    pub in_full: bool,
}

impl<'v> Look<'v, '_> {
    /// Decides among these, and among all when these have no room. Also what is known of those that were looked at last.
    pub fn decide(&self, drawn: Option<&Drawn>, rng: &mut Rng) -> (Decision, Vec<PodFacts<'v>>) {
        let among = self.among(drawn, rng);
        // Where others go before it, no room would change that.
        let asks = self.admit.is_some_and(|admit| !admit.closed);
        if drawn.is_some() && asks && among.0.action == Action::Hold {
            return self.among(None, rng);
        }
        among
    }

    fn among(&self, drawn: Option<&Drawn>, rng: &mut Rng) -> (Decision, Vec<PodFacts<'v>>) {
        let mut pods = self.view.pods(self.pool, drawn, self.now);
        note_cached(&mut pods, drawn, self.found, self.chains);
        self.joined.note(&mut pods, drawn);
        let input = decision::Input {
            pool: self.pool,
            snapshot: self.view.snapshot(),
            pods: &pods,
            drawn: self.view.part(drawn),
            facts: self.view.facts(),
            ask: self.ask,
            subset: self.subset,
            admit: self.admit,
            now: self.now,
            in_full: self.in_full,
        };
        let decision = decision::decide(&input, rng);
        (decision, pods)
    }
}

/// Notes what pods hold of a prompt.
fn note_cached(pods: &mut [PodFacts<'_>], drawn: Option<&Drawn>, found: &Found, chains: Option<&Chains>) {
    let Some(chains) = chains else { return };
    for (place, blocks) in &found.blocks {
        if let Some(pod) = at_place(pods, drawn, *place) {
            pod.cached = chains.part(*blocks);
        }
    }
}
