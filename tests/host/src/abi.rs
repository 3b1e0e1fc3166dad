//! The numbers and encodings of Proxy-Wasm ABI 0.2.1.
//!
//! Taken from `include/proxy-wasm/wasm.h` and `pairs_util.cc` of proxy-wasm-cpp-host. Only what the host needs; the
//! guest's side of the same numbers is the SDK's, so that the two cannot agree on a mistake.

use std::fmt;

/// Result of a host call (`WasmResult`); only what this host gives.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Ok = 0,
    NotFound = 1,
    BadArgument = 2,
    InvalidMemoryAccess = 6,
    CasMismatch = 8,
    InternalFailure = 10,
    Unimplemented = 12,
}

/// Level of a log line, in the order of the ABI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    Trace,
    Debug,
    Info,
    Warn,
    Error,
    Critical,
}

impl LogLevel {
    pub(crate) fn from_abi(level: u32) -> Option<Self> {
        use LogLevel::{Critical, Debug, Error, Info, Trace, Warn};
        [Trace, Debug, Info, Warn, Error, Critical].get(level as usize).copied()
    }
}

/// `WasmHeaderMapType`, without the gRPC ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MapKind {
    RequestHeaders,
    RequestTrailers,
    ResponseHeaders,
    ResponseTrailers,
    CalloutHeaders,
    CalloutTrailers,
}

impl MapKind {
    pub(crate) fn from_abi(kind: u32) -> Option<Self> {
        Some(match kind {
            0 => Self::RequestHeaders,
            1 => Self::RequestTrailers,
            2 => Self::ResponseHeaders,
            3 => Self::ResponseTrailers,
            6 => Self::CalloutHeaders,
            7 => Self::CalloutTrailers,
            _ => return None,
        })
    }
}

/// `WasmBufferType`, without the network and gRPC ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BufferKind {
    RequestBody,
    ResponseBody,
    CalloutBody,
    VmConfiguration,
    PluginConfiguration,
}

impl BufferKind {
    pub(crate) fn from_abi(kind: u32) -> Option<Self> {
        Some(match kind {
            0 => Self::RequestBody,
            1 => Self::ResponseBody,
            4 => Self::CalloutBody,
            6 => Self::VmConfiguration,
            7 => Self::PluginConfiguration,
            _ => return None,
        })
    }
}

/// An ordered header map with lower-case names, as Envoy keeps it. Values are bytes: a client may send any.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Headers(Vec<(String, Vec<u8>)>);

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let readable = |(name, value): &(String, Vec<u8>)| (name.clone(), String::from_utf8_lossy(value).into_owned());
        f.debug_map().entries(self.0.iter().map(readable)).finish()
    }
}

impl Headers {
    /// The first value of `name`.
    ///
    /// # Panics
    /// If the value is not UTF-8; `bytes` is for those.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.bytes(name)
            .map(|value| std::str::from_utf8(value).expect("a UTF-8 header value; use bytes()"))
    }

    /// The first value of `name`, whatever its bytes.
    pub fn bytes(&self, name: &str) -> Option<&[u8]> {
        let name = name.to_ascii_lowercase();
        let found = self.0.iter().find(|(key, _)| *key == name)?;
        Some(&found.1)
    }

    /// Appends a value; earlier ones stay.
    pub fn add(&mut self, name: &str, value: impl Into<Vec<u8>>) {
        self.0.push((name.to_ascii_lowercase(), value.into()));
    }

    /// Leaves `value` as the only one of `name`. It moves to the end, as in Envoy's `setCopy`.
    pub fn set(&mut self, name: &str, value: impl Into<Vec<u8>>) {
        self.remove(name);
        self.add(name, value);
    }

    /// Removes every value of `name`.
    pub fn remove(&mut self, name: &str) {
        let name = name.to_ascii_lowercase();
        self.0.retain(|(key, _)| *key != name);
    }

    /// Drops `:path` and its like.
    pub(crate) fn drop_pseudo(&mut self) {
        self.0.retain(|(name, _)| !name.starts_with(':'));
    }

    /// Name and value of each line, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.iter().map(|(k, v)| (k.as_str(), v.as_slice()))
    }

    /// Number of lines.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True without any line.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<const N: usize> From<[(&str, &str); N]> for Headers {
    fn from(pairs: [(&str, &str); N]) -> Self {
        Self::from(pairs.as_slice())
    }
}

impl From<&[(&str, &str)]> for Headers {
    fn from(pairs: &[(&str, &str)]) -> Self {
        let mut headers = Self::default();
        for (name, value) in pairs {
            headers.add(name, *value);
        }
        headers
    }
}

/// Pairs as the ABI carries them: count, then both sizes of each pair, then each name and value followed by a NUL.
pub(crate) fn encode_pairs(headers: &Headers) -> Vec<u8> {
    if headers.is_empty() {
        return Vec::new();
    }
    let mut bytes = (headers.len() as u32).to_le_bytes().to_vec();
    for (name, value) in headers.iter() {
        bytes.extend((name.len() as u32).to_le_bytes());
        bytes.extend((value.len() as u32).to_le_bytes());
    }
    for (name, value) in headers.iter() {
        bytes.extend(name.as_bytes());
        bytes.push(0);
        bytes.extend(value);
        bytes.push(0);
    }
    bytes
}

/// The reverse of `encode_pairs`. As in `toPairs`, bytes that do not hold together give no pairs at all.
pub(crate) fn decode_pairs(bytes: &[u8]) -> Headers {
    try_decode_pairs(bytes).unwrap_or_default()
}

fn try_decode_pairs(bytes: &[u8]) -> Option<Headers> {
    let word = |at: usize| -> Option<usize> {
        let raw = bytes.get(at..at + 4)?.try_into().ok()?;
        Some(u32::from_le_bytes(raw) as usize)
    };
    let count = word(0)?;
    let mut at = count.checked_mul(8)?.checked_add(4)?;
    let mut headers = Headers::default();
    for pair in 0..count {
        let (name_len, value_len) = (word(4 + pair * 8)?, word(8 + pair * 8)?);
        let name = bytes.get(at..at.checked_add(name_len)?)?;
        at += name_len + 1;
        let value = bytes.get(at..at.checked_add(value_len)?)?;
        at += value_len + 1;
        headers.add(&String::from_utf8_lossy(name), value);
    }
    Some(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_survive_the_round_trip_with_bytes_that_are_not_utf8() {
        let mut headers = Headers::from([(":path", "/v1"), ("empty", "")]);
        headers.add("raw", [0xff, 0x00, 0x01]);
        assert_eq!(decode_pairs(&encode_pairs(&headers)), headers);
    }

    #[test]
    fn pairs_that_claim_more_than_they_hold_are_no_pairs() {
        for bytes in [
            &b""[..],
            b"\x01",
            b"\xff\xff\xff\xff",
            b"\x01\0\0\0\x05\0\0\0\x01\0\0\0ab\0c\0",
        ] {
            assert!(decode_pairs(bytes).is_empty(), "{bytes:?}");
        }
    }

    #[test]
    fn setting_a_header_drops_its_other_values() {
        let mut headers = Headers::from([("a", "1"), ("A", "2"), ("b", "3")]);
        assert_eq!(headers.get("a"), Some("1"));
        headers.set("a", "4");
        assert_eq!(headers, Headers::from([("b", "3"), ("a", "4")]));
    }
}
