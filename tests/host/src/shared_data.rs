//! Shared data: one map per vm_id for the whole process, with the compare-and-swap rules of the host imitated.
//!
//! Source: `shared_data.cc` of proxy-wasm-cpp-host. The one counter for all keys and vm_ids matters: a cas number says
//! nothing about one key's history.

use crate::abi::Status;
use std::collections::{BTreeMap, HashMap};

/// What a cas of 0 means when a value is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CasRules {
    /// Set whatever is there. With another cas, a missing key is created as well.
    #[default]
    Envoy,
    /// Set only if the key is absent. With another cas, a missing key is a mismatch. An empty value removes the key.
    WasmX,
}

#[derive(Default)]
pub(crate) struct SharedData {
    rules: CasRules,
    last_cas: u32,
    by_vm_id: HashMap<String, BTreeMap<String, (Vec<u8>, u32)>>,
    /// What each key had before it was overwritten, for torn reads.
    before: HashMap<(String, String), Vec<u8>>,
    /// One read in so many of an overwritten value is torn; 0 = none.
    torn_one_in: u32,
    reads: u32,
}

impl SharedData {
    pub(crate) fn new(rules: CasRules) -> Self {
        Self {
            rules,
            ..Self::default()
        }
    }

    /// Value and cas; an emptied key is still a key.
    pub(crate) fn get(&self, vm_id: &str, key: &str) -> Option<(&[u8], u32)> {
        let (value, cas) = self.by_vm_id.get(vm_id)?.get(key)?;
        Some((value, *cas))
    }

    /// One read in so many of an overwritten value is torn from now on, as where a host copies a value after it has let its
    /// lock go: the beginning of the new one, the end of the old one.
    pub(crate) fn tear(&mut self, one_in: u32) {
        self.torn_one_in = one_in;
    }

    /// As a guest reads it.
    pub(crate) fn read(&mut self, vm_id: &str, key: &str) -> Option<(Vec<u8>, u32)> {
        let (mut value, cas) = self.get(vm_id, key).map(|(value, cas)| (value.to_vec(), cas))?;
        let before = self.before.get(&(vm_id.to_owned(), key.to_owned()));
        if let (true, Some(before)) = (self.torn_one_in > 0, before) {
            self.reads += 1;
            let half = value.len() / 2;
            if self.reads.is_multiple_of(self.torn_one_in)
                && let (Some(end), Some(old)) = (value.get_mut(half..), before.get(half..))
            {
                let both = end.len().min(old.len());
                end[..both].copy_from_slice(&old[..both]);
            }
        }
        Some((value, cas))
    }

    pub(crate) fn set(&mut self, vm_id: &str, key: &str, value: &[u8], cas: u32) -> Result<(), Status> {
        let current = self.get(vm_id, key).map(|(_, cas)| cas);
        let allowed = match (self.rules, current) {
            (CasRules::Envoy, None) => true,
            (CasRules::Envoy, Some(current)) => cas == 0 || cas == current,
            (CasRules::WasmX, current) => cas == current.unwrap_or(0),
        };
        if !allowed {
            return Err(Status::CasMismatch);
        }
        let next = self.next_cas();
        let keys = self.by_vm_id.entry(vm_id.to_owned()).or_default();
        if self.rules == CasRules::WasmX && value.is_empty() {
            keys.remove(key);
        } else {
            let before = keys.insert(key.to_owned(), (value.to_vec(), next));
            if let Some((before, _)) = before {
                self.before.insert((vm_id.to_owned(), key.to_owned()), before);
            }
        }
        Ok(())
    }

    pub(crate) fn keys(&self, vm_id: &str) -> Vec<String> {
        self.by_vm_id
            .get(vm_id)
            .map(|keys| keys.keys().cloned().collect())
            .unwrap_or_default()
    }

    /// Envoy does this when the last plugin with this vm_id is gone.
    pub(crate) fn erase(&mut self, vm_id: &str) {
        self.by_vm_id.remove(vm_id);
    }

    fn next_cas(&mut self) -> u32 {
        self.last_cas = match self.last_cas.wrapping_add(1) {
            0 => 1,
            cas => cas,
        };
        self.last_cas
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn envoy_checks_the_cas_only_of_a_key_that_exists() {
        let mut data = SharedData::default();
        data.set("v", "k", b"a", 77).expect("missing key: any cas");
        let (_, first) = data.get("v", "k").expect("present");
        data.set("v", "k", b"b", first).expect("right cas");
        assert_eq!(data.set("v", "k", b"c", first), Err(Status::CasMismatch));
        data.set("v", "k", b"d", 0).expect("0 is unconditional");
        assert_eq!(data.get("v", "k").map(|(value, _)| value), Some(&b"d"[..]));
    }

    #[test]
    fn an_emptied_key_keeps_a_cas() {
        let mut data = SharedData::default();
        data.set("", "k", b"a", 0).expect("set");
        data.set("", "k", b"", 0).expect("set");
        assert_eq!(data.get("", "k"), Some((&b""[..], 2)));
    }

    #[test]
    fn vm_ids_do_not_see_each_other_and_share_one_counter() {
        let mut data = SharedData::default();
        data.set("a", "k", b"1", 0).expect("set");
        data.set("b", "k", b"2", 0).expect("set");
        assert_eq!(data.get("a", "k"), Some((&b"1"[..], 1)));
        assert_eq!(data.get("b", "k"), Some((&b"2"[..], 2)));
        data.erase("a");
        assert_eq!(data.get("a", "k"), None);
    }

    #[test]
    fn a_torn_read_has_the_beginning_of_one_value_and_the_end_of_another() {
        let mut data = SharedData::new(CasRules::WasmX);
        data.set("", "k", b"aaaa", 0).expect("absent");
        data.tear(2);
        assert_eq!(data.read("", "k"), Some((b"aaaa".to_vec(), 1)), "nothing to tear yet");
        data.set("", "k", b"bbbbbb", 1).expect("right cas");
        assert_eq!(data.read("", "k"), Some((b"bbbbbb".to_vec(), 2)));
        assert_eq!(data.read("", "k"), Some((b"bbbabb".to_vec(), 2)));
    }

    #[test]
    fn the_counter_skips_zero_when_it_wraps() {
        let mut data = SharedData {
            last_cas: u32::MAX,
            ..SharedData::default()
        };
        data.set("", "k", b"a", 0).expect("set");
        assert_eq!(data.get("", "k"), Some((&b"a"[..], 1)));
    }

    #[test]
    fn wasmx_reads_cas_zero_as_only_if_absent() {
        let mut data = SharedData::new(CasRules::WasmX);
        assert_eq!(data.set("", "k", b"a", 5), Err(Status::CasMismatch));
        data.set("", "k", b"a", 0).expect("absent");
        assert_eq!(data.set("", "k", b"b", 0), Err(Status::CasMismatch));
        data.set("", "k", b"", 1).expect("right cas removes");
        assert_eq!(data.get("", "k"), None);
    }
}
