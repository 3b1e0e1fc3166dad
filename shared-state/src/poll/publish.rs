//! From the pods to the bytes of a table, with every bound kept: a table that does not fit loses its
//! longest lists and says so; publishing never fails.

use hashbrown::HashMap;
use std::collections::BTreeMap;

use super::pod::Pod;
use crate::limits::{ADAPTERS_PER_POD_MAX, NAME_MAX_BYTES, NAMES_MAX};
use crate::pod::PodAddress;
use crate::sealed::SealError;
use crate::table::{self, NameId, PodRow, Table};
use crate::units::UnixMillis;

/// Interned names. Ids stay until something listed changes.
#[derive(Debug, Default)]
pub(super) struct Names {
    ids: HashMap<String, NameId>,
    list: Vec<String>,
    /// Names that found no place.
    left_out: usize,
}

impl Names {
    /// Can a request ask for it?
    pub(super) const fn is_usable(name: &str) -> bool {
        !name.is_empty() && name.len() <= NAME_MAX_BYTES
    }

    /// The id of a name; `None` when there is no place left, or no request could ask for it.
    pub(super) fn id(&mut self, name: &str) -> Option<NameId> {
        if let Some(id) = self.ids.get(name) {
            return Some(*id);
        }
        if !Self::is_usable(name) {
            return None;
        }
        if self.list.len() >= NAMES_MAX {
            self.left_out += 1;
            return None;
        }
        let id = NameId(self.list.len() as u16);
        self.list.push(name.to_owned());
        self.ids.insert(name.to_owned(), id);
        Some(id)
    }
}

/// How much of a table fitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fitted {
    /// All.
    #[default]
    All,
    /// Names were left out: more than [`NAMES_MAX`].
    NotAllNames,
    /// The adapter lists of models pages were left out.
    NoAdapterLists,
    /// Everything but load was left out.
    OnlyLoad,
}

/// Makes tables.
#[derive(Debug, Default)]
pub(super) struct Publisher {
    names: Names,
    /// A list changed: names may be gone.
    pub(super) stale: bool,
}

impl Publisher {
    /// Encodes a table of these pods. `head` has all but names and pods.
    pub(super) fn encode(
        &mut self,
        head: Table,
        pods: &mut BTreeMap<PodAddress, Pod>,
    ) -> Result<(Vec<u8>, Fitted), SealError> {
        self.intern(pods);
        let mut fitted = if self.names.left_out > 0 {
            Fitted::NotAllNames
        } else {
            Fitted::All
        };
        let mut table = Table {
            names: core::mem::take(&mut self.names.list),
            pods: pods.values().map(|pod| pod.row.clone()).collect(),
            ..head
        };
        let mut sealed = table::encode(&table);
        if matches!(sealed, Err(SealError::TooLarge(_))) {
            fitted = Fitted::NoAdapterLists;
            table.pods.iter_mut().for_each(leave_out_adapter_lists);
            sealed = table::encode(&table);
        }
        if matches!(sealed, Err(SealError::TooLarge(_))) {
            fitted = Fitted::OnlyLoad;
            table.pods.iter_mut().for_each(leave_out_lists);
            let names = core::mem::take(&mut table.names);
            sealed = table::encode(&table);
            table.names = names;
        }
        self.names.list = table.names;
        sealed.map(|bytes| (bytes, fitted))
    }

    /// Fills in the ids of the pods that changed; of all pods when names may be gone.
    fn intern(&mut self, pods: &mut BTreeMap<PodAddress, Pod>) {
        let all = self.stale || self.names.left_out > 0;
        if all {
            self.names = Names::default();
        }
        let names = &mut self.names;
        for pod in pods.values_mut().filter(|pod| all || pod.changed) {
            pod.intern_used(names);
        }
        for pod in pods.values_mut().filter(|pod| all || pod.changed) {
            pod.intern_listed(names);
        }
        self.stale = false;
    }
}

fn leave_out_adapter_lists(pod: &mut PodRow) {
    if let Some(models) = &mut pod.models {
        models.adapters.clear();
        models.at = UnixMillis(0);
    }
}

fn leave_out_lists(pod: &mut PodRow) {
    pod.name = None;
    pod.models = None;
    pod.activity = None;
    pod.resident = None;
    pod.labels.clear();
}

/// The largest row without lists: what [`Fitted::OnlyLoad`] rests on.
const _: () = assert!(crate::limits::PODS_MAX * 192 < crate::limits::SEALED_MAX_BYTES);
const _: () = assert!(ADAPTERS_PER_POD_MAX <= NAMES_MAX && NAMES_MAX <= u16::MAX as usize);
