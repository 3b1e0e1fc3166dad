//! The proxy's shared data, as both halves see it.
//!
//! Two implementations exist: the host's (in the glue) and [`MemoryStore`], used by `berth replay`
//! and the tests, with Envoy's rules: compare-and-swap on a missing key always succeeds.

use core::cell::RefCell;
use core::fmt;
use hashbrown::HashMap;

use crate::limits::PUT_TRIES;

/// Compare-and-swap token of a stored value. Never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cas(pub u32);

/// Why a write or read did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// Another writer was faster: read again.
    CasMismatch,
    /// The host answered with this Proxy-Wasm status.
    Host(u32),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CasMismatch => f.write_str("another writer was faster"),
            Self::Host(status) => write!(f, "the host refused shared data with status {status}"),
        }
    }
}

/// A stored value and the token to replace it with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The bytes; a reader that does not understand them treats them as absent.
    pub value: Vec<u8>,
    /// Token for the next write; `None` where the host gave none.
    pub cas: Option<Cas>,
}

/// Key-value data shared by all VMs with one vm_id.
pub trait SharedData {
    /// Reads a value. An empty value counts as absent but still yields its token.
    ///
    /// # Errors
    /// [`StoreError::Host`] when the host refuses.
    fn get(&self, key: &str) -> Result<Option<Stored>, StoreError>;

    /// Writes a value; with `cas`, only over the value it was read with.
    ///
    /// # Errors
    /// [`StoreError::CasMismatch`] when the value changed since, [`StoreError::Host`] otherwise.
    fn set(&self, key: &str, value: &[u8], cas: Option<Cas>) -> Result<(), StoreError>;
}

/// Writes over whatever is there. WasmX reads "no token" as "only if absent", so where that is refused
/// the token is read first.
///
/// # Errors
/// [`StoreError::CasMismatch`] when others were faster each time, [`StoreError::Host`] when the host refuses.
pub fn put(store: &dyn SharedData, key: &str, value: &[u8]) -> Result<(), StoreError> {
    let mut written = store.set(key, value, None);
    for _ in 0..PUT_TRIES {
        if written != Err(StoreError::CasMismatch) {
            break;
        }
        let token = store.get(key)?.and_then(|stored| stored.cas);
        written = store.set(key, value, token);
    }
    written
}

/// Shared data in memory, with Envoy's rules.
#[derive(Debug, Default)]
pub struct MemoryStore {
    values: RefCell<HashMap<String, (Vec<u8>, u32)>>,
    last_cas: RefCell<u32>,
}

impl SharedData for MemoryStore {
    fn get(&self, key: &str) -> Result<Option<Stored>, StoreError> {
        Ok(self.values.borrow().get(key).map(|(value, cas)| Stored {
            value: value.clone(),
            cas: Some(Cas(*cas)),
        }))
    }

    fn set(&self, key: &str, value: &[u8], cas: Option<Cas>) -> Result<(), StoreError> {
        let mut values = self.values.borrow_mut();
        if let (Some((_, current)), Some(Cas(expected))) = (values.get(key), cas)
            && *current != expected
        {
            return Err(StoreError::CasMismatch);
        }
        let mut last = self.last_cas.borrow_mut();
        *last = last.wrapping_add(1).max(1);
        values.insert(key.to_owned(), (value.to_vec(), *last));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn a_stale_token_is_refused_and_the_value_stays() {
        let store = MemoryStore::default();
        store.set("k", b"one", None).unwrap();
        let first = store.get("k").unwrap().unwrap();
        store.set("k", b"two", first.cas).unwrap();
        assert_eq!(store.set("k", b"three", first.cas), Err(StoreError::CasMismatch));
        assert_eq!(store.get("k").unwrap().unwrap().value, b"two");
    }

    #[test]
    fn any_token_creates_a_missing_key_as_in_envoy() {
        let store = MemoryStore::default();
        assert_eq!(store.set("k", b"one", Some(Cas(77))), Ok(()));
    }
}
