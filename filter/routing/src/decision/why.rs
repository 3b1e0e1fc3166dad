//! The reasons of a decision: one value that the header, the access log, replay and explain print.

use berth_shared_state::limits::NAME_MAX_BYTES;
use berth_shared_state::pod::PodAddress;
use berth_shared_state::units::{Millis, Tokens};
use serde::Serialize;

use super::{Action, Decision, Input, Part, Refusal};
use crate::cost::{Stage, Terms, Tier, whole};

/// Why a request was not routed by Berth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// No poller has written a table yet.
    NoTable,
    /// No pod is known to be ready, and the set of pods is not current.
    DiscoveryStale,
    /// The set of pods is current and holds no ready one.
    NoReadyPod,
    /// No ready pod is in the subset that was asked for.
    SubsetNoMatch,
    /// All ready pods say that they lack a label that the config requires.
    LabelsNoMatch,
    /// No pod has the model, and all of them said so a moment ago.
    ModelUnknown,
    /// No pod has room for it within its patience.
    Saturated,
    /// No pod had room, and the queue has none either, or none left when others came who go before it.
    QueueFull,
    /// It waited as long as it may.
    QueueTimeout,
}

impl Reason {
    /// Those with which a request is answered by Berth.
    pub const REPLIES: [Self; 7] = [
        Self::NoReadyPod,
        Self::SubsetNoMatch,
        Self::LabelsNoMatch,
        Self::ModelUnknown,
        Self::Saturated,
        Self::QueueFull,
        Self::QueueTimeout,
    ];
    /// Those with which it is left to the proxy's balancer.
    pub const PASSES: [Self; 2] = [Self::NoTable, Self::DiscoveryStale];

    /// The word for headers and stats.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoTable => "no-table",
            Self::DiscoveryStale => "discovery-stale",
            Self::NoReadyPod => "no-ready-pod",
            Self::SubsetNoMatch => "subset-no-match",
            Self::LabelsNoMatch => "labels-no-match",
            Self::ModelUnknown => "model-unknown",
            Self::Saturated => "saturated",
            Self::QueueFull => "queue-full",
            Self::QueueTimeout => "queue-timeout",
        }
    }
}

/// A rule that gave way, or a rule that decided beside the costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Note {
    /// More than half of the candidates failed a moment ago: none is avoided for it.
    AvoidanceWaived,
    /// Every pod that serves the model sleeps.
    AllAsleep,
    /// The prompt is longer than any pod's limit: the engine will say so.
    LongerThanAllowed,
    /// No pod is known to have the model; those that may have it are asked.
    ModelUnconfirmed,
    /// No pod has the model as far as known, but that is not certain: the engine will say so.
    ModelUnlisted,
    /// The body was cut before its model: the pool's base is thought to be meant.
    ModelUnread,
    /// A pod with frozen gauges gets one request, to see it move.
    Probe,
    /// There is no table: the subset is taken as it stands.
    SubsetAsGiven,
    /// No pod is known to have the labels that the config requires; those that say nothing are asked.
    LabelsUnknown,
    /// Every pod has as much as the config allows.
    AllAtCap,
    /// The pod served the session last.
    Session,
}

impl Note {
    /// The word for headers, the same as in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AvoidanceWaived => "avoidance-waived",
            Self::AllAsleep => "all-asleep",
            Self::LongerThanAllowed => "longer-than-allowed",
            Self::ModelUnconfirmed => "model-unconfirmed",
            Self::ModelUnlisted => "model-unlisted",
            Self::ModelUnread => "model-unread",
            Self::Probe => "probe",
            Self::SubsetAsGiven => "subset-as-given",
            Self::LabelsUnknown => "labels-unknown",
            Self::AllAtCap => "all-at-cap",
            Self::Session => "session",
        }
    }

    /// A sentence for people.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::AvoidanceWaived => "more than half of the candidates failed a moment ago, so none is avoided for it",
            Self::AllAsleep => "every pod that serves the model sleeps",
            Self::LongerThanAllowed => "the prompt is longer than any pod allows; the engine will say so",
            Self::ModelUnconfirmed => "no pod is known to have the model; those that may have it are asked",
            Self::ModelUnlisted => "no pod lists the model, but not all were asked lately; the engine will say so",
            Self::ModelUnread => "the body was cut before its model, so the pool's base is thought to be meant",
            Self::Probe => "a pod with frozen gauges gets one request, to see it move",
            Self::SubsetAsGiven => "there is no table, so the subset is taken as it stands",
            Self::LabelsUnknown => "no pod is known to have the required labels; those that say nothing are asked",
            Self::AllAtCap => "every pod has as much as the config allows",
            Self::Session => "the pod served the session last",
        }
    }
}

/// The rung of the staleness ladder that the decision stands on: the best reading of any candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rung {
    /// Some gauges are fresh.
    Fresh,
    /// The best ones are ageing.
    Ageing,
    /// No gauge can be believed: the pod with the least of our own work.
    OwnLoad,
    /// No table.
    NoTable,
}

impl Rung {
    /// The word for people, the same as in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::Ageing => "ageing",
            Self::OwnLoad => "own-load",
            Self::NoTable => "no-table",
        }
    }
}

/// Pods left out, by the first rule that did it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Excluded {
    /// Discovery says not ready.
    #[serde(skip_serializing_if = "none")]
    pub not_ready: u32,
    /// Going away.
    #[serde(skip_serializing_if = "none")]
    pub draining: u32,
    /// Outside the subset.
    #[serde(skip_serializing_if = "none")]
    pub subset: u32,
    /// Without a label that the config requires.
    #[serde(skip_serializing_if = "none")]
    pub labels: u32,
    /// Without the model, or less certain to have it than others.
    #[serde(skip_serializing_if = "none")]
    pub model: u32,
    /// Asleep.
    #[serde(skip_serializing_if = "none")]
    pub asleep: u32,
    /// The prompt is longer than they allow.
    #[serde(skip_serializing_if = "none")]
    pub too_long: u32,
    /// With as much as the config allows.
    #[serde(skip_serializing_if = "none")]
    pub at_cap: u32,
    /// Of many pods some are looked at, and not these.
    #[serde(skip_serializing_if = "none")]
    pub not_drawn: u32,
}

fn no_tokens(tokens: &Tokens) -> bool {
    tokens.0 == 0
}

fn none(count: &u32) -> bool {
    *count == 0
}

impl Excluded {
    /// Name and count of each rule.
    #[must_use]
    pub const fn named(&self) -> [(&'static str, u32); 9] {
        [
            ("not ready", self.not_ready),
            ("draining", self.draining),
            ("outside the subset", self.subset),
            ("without the labels", self.labels),
            ("without the model", self.model),
            ("asleep", self.asleep),
            ("too short for the prompt", self.too_long),
            ("at their cap", self.at_cap),
            ("not drawn", self.not_drawn),
        ]
    }
}

/// One candidate with its cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Considered {
    /// Its address.
    pub pod: PodAddress,
    /// A person's name for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// How warm the adapter is.
    pub tier: Tier,
    /// How far its reading is believed.
    pub stage: Stage,
    /// The sum of the terms, in milliseconds.
    #[serde(serialize_with = "whole")]
    pub cost: f64,
    /// The terms.
    pub terms: Terms,
    /// Prompt tokens thought to be in its prefix cache.
    #[serde(skip_serializing_if = "no_tokens")]
    pub cached: Tokens,
    /// KV tokens free in one engine; negative when overbooked, `None` = unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free: Option<i64>,
}

/// The reasons. Bounded: as many candidates as endpoints, unless all were asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Why {
    /// The pool.
    pub pool: String,
    /// The model asked for, shortened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The name that the client used, where a rewrite put `model` in its place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked: Option<String>,
    /// The base model behind it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// Prompt tokens, estimated.
    pub prompt: Tokens,
    /// Tokens of prompt and expected output.
    pub need: Tokens,
    /// Why it was not routed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// Predicted time to first token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted: Option<Millis>,
    /// Priority, where the config knows objectives or a queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i16>,
    /// Requests like this one that the pool has room for, at least: where some pods were drawn and have some, the others were
    /// not asked. `None` = nobody was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub room: Option<u32>,
    /// Where there is none: predicted time until there is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<Millis>,
    /// How long it waited in the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited: Option<Millis>,
    /// Rung of the staleness ladder; `None` = it did not come to that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rung: Option<Rung>,
    /// Candidates that were priced.
    pub candidates: u32,
    /// Pods left out.
    pub excluded: Excluded,
    /// What else mattered.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
    /// The endpoints in their order, then, where asked for, the other candidates by cost.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub considered: Vec<Considered>,
}

impl Why {
    pub(super) fn new(input: &Input<'_>) -> Self {
        Self {
            pool: input.pool.name.clone(),
            model: input.ask.model.map(shortened),
            asked: None,
            base: None,
            prompt: input.ask.prompt,
            need: input.ask.prompt + input.ask.output,
            reason: None,
            predicted: None,
            priority: None,
            room: None,
            drain: None,
            waited: None,
            rung: None,
            candidates: 0,
            excluded: input.drawn.map_or_else(Excluded::default, Part::excluded),
            notes: Vec::new(),
            considered: Vec::new(),
        }
    }

    pub(super) fn pass(mut self, reason: Reason) -> Decision {
        self.reason = Some(reason);
        if reason == Reason::NoTable {
            self.rung = Some(Rung::NoTable);
        }
        Decision {
            action: Action::Pass(reason),
            refresh_models: false,
            why: self,
        }
    }

    pub(super) fn hold(mut self) -> Decision {
        self.reason = Some(Reason::Saturated);
        Decision {
            action: Action::Hold,
            refresh_models: false,
            why: self,
        }
    }

    pub(super) fn refuse(mut self, status: u16, reason: Reason) -> Decision {
        self.reason = Some(reason);
        let refusal = Refusal {
            status,
            reason,
            model: self.model.clone(),
            near: None,
            retry_after: None,
        };
        Decision {
            action: Action::Reply(refusal),
            // The next page may name it: an adapter that is being rolled out must not wait.
            refresh_models: reason == Reason::ModelUnknown,
            why: self,
        }
    }
}

/// A client's text, cut to the bound of a name.
pub fn shortened(text: &str) -> String {
    let end = text.floor_char_boundary(NAME_MAX_BYTES);
    text.get(..end).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    #[track_caller]
    fn check<T: Copy + Serialize>(all: &[T], as_str: fn(T) -> &'static str) {
        for one in all {
            assert_eq!(serde_json::to_value(one).unwrap(), as_str(*one));
        }
    }

    #[test]
    fn texts_and_json_have_the_same_words() {
        check(&[Stage::Fresh, Stage::Ageing, Stage::Unknown], Stage::as_str);
        check(&[Rung::Fresh, Rung::Ageing, Rung::OwnLoad, Rung::NoTable], Rung::as_str);
        let tiers = [Tier::Base, Tier::Active, Tier::Resident, Tier::Recent];
        check(&tiers, Tier::as_str);
        let tiers = [Tier::Host, Tier::Registered, Tier::Loadable, Tier::Unlisted];
        check(&tiers, Tier::as_str);
        let notes = [
            Note::AvoidanceWaived,
            Note::AllAsleep,
            Note::LongerThanAllowed,
            Note::ModelUnconfirmed,
            Note::ModelUnlisted,
            Note::ModelUnread,
            Note::Probe,
            Note::SubsetAsGiven,
            Note::LabelsUnknown,
            Note::AllAtCap,
            Note::Session,
        ];
        check(&notes, Note::as_str);
    }
}
