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
        PodKey(xxh64(self.to_string().as_bytes(), 0))
    }
}

impl fmt::Display for PodAddress {
    /// As the socket address, in one piece: each decision writes half a dozen of them, and the
    /// standard library's nine pieces each were a tenth of its work.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SocketAddr::V4(address) = self.0 else {
            return self.0.fmt(f);
        };
        const LONGEST: usize = "255.255.255.255:65535".len();
        let mut text = [0; LONGEST];
        let mut free = text.iter_mut();
        for (octet, before) in address
            .ip()
            .octets()
            .into_iter()
            .zip([None, Some(b'.'), Some(b'.'), Some(b'.')])
        {
            put(&mut free, before, u16::from(octet));
        }
        put(&mut free, Some(b':'), address.port());
        let used = LONGEST - free.len();
        f.pad(
            text.get(..used)
                .and_then(|text| core::str::from_utf8(text).ok())
                .unwrap_or_default(),
        )
    }
}

/// Writes a separator and a number.
fn put<'a>(free: &mut impl Iterator<Item = &'a mut u8>, before: Option<u8>, number: u16) {
    let digits = [10_000, 1_000, 100, 10, 1]
        .into_iter()
        .filter(|unit| number >= *unit || *unit == 1);
    let digits = digits.map(|unit| b'0' + (number / unit % 10) as u8);
    for byte in before.into_iter().chain(digits) {
        if let Some(place) = free.next() {
            *place = byte;
        }
    }
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
        }
    }
}
