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
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
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
