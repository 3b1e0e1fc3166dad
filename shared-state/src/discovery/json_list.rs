//! A plain JSON list of pods, from whatever HTTP endpoint has one.
//!
//! ```json
//! ["10.0.0.1:8000", {"address": "10.0.0.2:8000", "name": "pod-b", "ready": false, "labels": {"role": "decode"}}]
//! ```
//!
//! Texts and objects may be mixed; other keys of an object are left alone. An entry that is no address
//! makes the whole list unusable: to leave a pod out in silence would be worse.

use core::fmt;
use std::collections::BTreeMap;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::capped::Capped;
use super::{DiscoveryError, Found, label, one_per_address, shown};
use crate::limits::{DISCOVERED_MAX, DISCOVERY_PAGE_MAX_BYTES, LABELS_READ_MAX, TEXT_MAX_BYTES};
use crate::pod::PodAddress;
use crate::table::Readiness;

/// Reads the pods, ordered by address. An empty list is an answer.
///
/// # Errors
/// See [`DiscoveryError`].
pub fn read(page: &[u8]) -> Result<Vec<Found>, DiscoveryError> {
    if page.len() > DISCOVERY_PAGE_MAX_BYTES {
        return Err(DiscoveryError::TooLarge(page.len()));
    }
    let entries: Capped<Entry, DISCOVERED_MAX> = serde_json::from_slice(page).map_err(|_| DiscoveryError::NotAList)?;
    if entries.left_out > 0 {
        return Err(DiscoveryError::TooMany);
    }
    let pods: Result<Vec<Found>, DiscoveryError> = entries.items.into_iter().map(found).collect();
    pods.map(one_per_address)
}

/// A text or an object. Not serde's `untagged`: that one keeps all that an entry holds before it looks at it.
struct Entry(Pod);

#[derive(Deserialize)]
struct Pod {
    address: String,
    name: Option<String>,
    ready: Option<bool>,
    labels: Option<BTreeMap<String, String>>,
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrObject;
        impl<'de> Visitor<'de> for TextOrObject {
            type Value = Entry;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an address, or an object with one")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Entry, E> {
                Ok(Entry(Pod {
                    address: text.to_owned(),
                    name: None,
                    ready: None,
                    labels: None,
                }))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Entry, A::Error> {
                Pod::deserialize(MapAccessDeserializer::new(map)).map(Entry)
            }
        }
        deserializer.deserialize_any(TextOrObject)
    }
}

fn found(Entry(pod): Entry) -> Result<Found, DiscoveryError> {
    let text = pod.address;
    let address: PodAddress = text.parse().map_err(|_| DiscoveryError::NotAnAddress(shown(&text)))?;
    let labels = pod.labels.iter().flatten().take(LABELS_READ_MAX);
    let labels = labels.filter_map(|(name, value)| label(name, value));
    Ok(Found {
        name: pod.name.filter(|name| (1..=TEXT_MAX_BYTES).contains(&name.len())),
        readiness: match pod.ready {
            Some(true) => Readiness::Ready,
            Some(false) => Readiness::NotReady,
            None => Readiness::Unknown,
        },
        labels: labels.collect(),
        ..Found::at(address)
    })
}

#[cfg(test)]
mod tests;
