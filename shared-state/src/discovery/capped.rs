//! A JSON list of which no more than so many items are kept: three bytes of JSON can be a hundred in
//! memory, and a VM's memory never shrinks.

use core::fmt;
use core::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, IgnoredAny, SeqAccess, Visitor};

/// The first `MAX` items; `null` is an empty list.
#[derive(Debug)]
pub(super) struct Capped<T, const MAX: usize> {
    pub(super) items: Vec<T>,
    /// How many more there were.
    pub(super) left_out: usize,
}

impl<T, const MAX: usize> Default for Capped<T, MAX> {
    fn default() -> Self {
        Self {
            items: Vec::new(),
            left_out: 0,
        }
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for Capped<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List<T, const MAX: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for List<T, MAX> {
            type Value = Capped<T, MAX>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut capped = Capped::default();
                while capped.items.len() < MAX {
                    match seq.next_element()? {
                        Some(item) => capped.items.push(item),
                        None => return Ok(capped),
                    }
                }
                while seq.next_element::<IgnoredAny>()?.is_some() {
                    capped.left_out += 1;
                }
                Ok(capped)
            }
        }
        deserializer.deserialize_seq(List(PhantomData))
    }
}
