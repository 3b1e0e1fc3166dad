//! Labels of pods: which ones the config requires, and which name a failure domain.

use berth_shared_state::snapshot::Snapshot;
use berth_shared_state::table::{NameId, PodRow};

/// Whether a pod has what is required.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Met {
    /// It has another value.
    No,
    /// Nobody says.
    Unknown,
    /// It has all of them.
    Yes,
}

/// Labels that pods must have.
pub struct Required<'a> {
    snapshot: &'a Snapshot,
    /// Each with its place in the table's names; `None` = no pod has it.
    labels: Vec<(&'a str, Option<NameId>)>,
}

impl<'a> Required<'a> {
    /// These, each `name=value`.
    pub fn new(snapshot: &'a Snapshot, labels: &'a [String]) -> Self {
        let labels = labels.iter().map(|label| (label.as_str(), snapshot.id(label)));
        Self {
            snapshot,
            labels: labels.collect(),
        }
    }

    /// How well any of these meets them.
    pub fn best<'b>(&self, pods: impl Iterator<Item = &'b PodRow>) -> Met {
        if self.labels.is_empty() {
            return Met::Yes;
        }
        pods.map(|row| self.met(row)).max().unwrap_or(Met::No)
    }

    /// Whether a pod has them.
    pub fn met(&self, row: &PodRow) -> Met {
        let each = self.labels.iter().map(|(label, id)| match id {
            Some(id) if row.labels.contains(id) => Met::Yes,
            _ => {
                let name = label.split_once('=').map_or(*label, |(name, _)| name);
                of_name(self.snapshot, row, name).map_or(Met::Unknown, |_| Met::No)
            }
        });
        each.min().unwrap_or(Met::Yes)
    }
}

/// The label of a pod with this name.
pub fn of_name(snapshot: &Snapshot, row: &PodRow, name: &str) -> Option<NameId> {
    let is = |id: &NameId| {
        snapshot
            .name(*id)
            .split_once('=')
            .is_some_and(|(known, _)| known == name)
    };
    row.labels.iter().copied().find(is)
}
