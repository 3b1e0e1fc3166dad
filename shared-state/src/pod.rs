//! A pod's identity: the address a proxy dials, and a short key made from it.

use core::fmt;
use core::net::SocketAddr;
use core::str::FromStr;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh64::xxh64;

/// `ip:port` of one model server. Several ports on one IP (data-parallel ranks) are several pods.
///
/// Names are not accepted: override_host looks an address up by its exact string, and a DNS name
/// never matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PodAddress(SocketAddr);

/// Eight bytes that stand for a [`PodAddress`] in the ledger: xxh64 of its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PodKey(pub u64);

/// The text was not `ip:port`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAnAddress;

impl fmt::Display for NotAnAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("must be ip:port, for example 10.0.0.1:8000 or [fd00::1]:8000; names are not accepted")
    }
}

impl PodAddress {
    /// From a parsed socket address.
    #[must_use]
    pub const fn new(address: SocketAddr) -> Self {
        Self(address)
    }

    /// The socket address.
    #[must_use]
    pub const fn socket(self) -> SocketAddr {
        self.0
    }

    /// The key of this pod in the ledger.
    #[must_use]
    pub fn key(self) -> PodKey {
        PodKey(self.with_text(|text| xxh64(text.as_bytes(), 0)))
    }

    /// Its text, for as long as it is needed: no memory is taken for that of an IPv4 pod.
    pub fn with_text<T>(self, take: impl FnOnce(&str) -> T) -> T {
        let mut text = [0; LONGEST];
        match self.short(&mut text) {
            Some(text) => take(text),
            None => take(&self.0.to_string()),
        }
    }

    /// The text of an IPv4 pod.
    fn short(self, text: &mut [u8; LONGEST]) -> Option<&str> {
        let SocketAddr::V4(address) = self.0 else {
            return None;
        };
        let mut free = text.iter_mut();
        for (octet, after) in address.ip().octets().into_iter().zip(*b"...:") {
            put(&mut free, octet.into());
            if let Some(place) = free.next() {
                *place = after;
            }
        }
        put(&mut free, address.port());
        let used = LONGEST - free.len();
        core::str::from_utf8(text.get(..used)?).ok()
    }
}

impl fmt::Display for PodAddress {
    /// As the socket address, in one piece: each decision writes half a dozen of them, and the
    /// standard library's nine pieces each were a tenth of its work.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [0; LONGEST];
        match self.short(&mut text) {
            Some(text) => f.pad(text),
            None => self.0.fmt(f),
        }
    }
}

/// Bytes of the longest text of an IPv4 pod.
const LONGEST: usize = "255.255.255.255:65535".len();

/// Writes a number without leading zeros, up to five digits.
fn put(free: &mut core::slice::IterMut<'_, u8>, number: u16) {
    let mut digit = |digit: u16| {
        if let Some(place) = free.next() {
            *place = b'0' + (digit % 10) as u8;
        }
    };
    if number >= 10_000 {
        digit(number / 10_000);
    }
    if number >= 1_000 {
        digit(number / 1_000);
    }
    if number >= 100 {
        digit(number / 100);
    }
    if number >= 10 {
        digit(number / 10);
    }
    digit(number);
}

impl FromStr for PodAddress {
    type Err = NotAnAddress;
    fn from_str(text: &str) -> Result<Self, NotAnAddress> {
        match text.parse::<SocketAddr>() {
            Ok(address) if address.port() != 0 => Ok(Self(address)),
            _ => Err(NotAnAddress),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_reads_as_the_standard_library_writes_it() {
        for text in [
            "0.0.0.0:1",
            "10.0.0.1:80",
            "9.10.99.100:8000",
            "255.255.255.255:65535",
            "[::1]:80",
            "[fd00::1]:8000",
        ] {
            let address: PodAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
            assert_eq!(format!("{address:>30}|"), format!("{:>30}|", address.socket()));
            assert_eq!(address.with_text(str::to_owned), text);
        }
    }
}
