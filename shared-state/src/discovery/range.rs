//! Which addresses may be pods. What a name server, a list or a Kubernetes API says is not believed
//! without a look: an address of the proxy's own machine, or the metadata service of a cloud, would get
//! requests and scrape headers.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;

/// Addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    base: IpAddr,
    bits: u8,
}

const fn v4(a: u8, b: u8, bits: u8) -> Range {
    Range {
        base: IpAddr::V4(Ipv4Addr::new(a, b, 0, 0)),
        bits,
    }
}

const fn v6(first: u16, last: u16, bits: u8) -> Range {
    Range {
        base: IpAddr::V6(Ipv6Addr::new(first, 0, 0, 0, 0, 0, 0, last)),
        bits,
    }
}

/// Loopback and link-local (RFC 6890): pods only where somebody says so.
const LOCAL: [Range; 4] = [v4(127, 0, 8), v4(169, 254, 16), v6(0, 1, 128), v6(0xfe80, 0, 10)];
/// "This network", multicast and broadcast (RFC 6890): never a pod.
const NEVER: [Range; 4] = [v4(0, 0, 8), v4(224, 0, 4), v6(0, 0, 128), v6(0xff00, 0, 8)];
/// Reserved (RFC 1112). Istio's name proxy makes up addresses here, one per Service.
const VIRTUAL: Range = v4(240, 0, 4);

/// Why an address is no pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Loopback or link-local, and not allowed by a range of its own.
    Local,
    /// Unspecified, multicast or broadcast.
    Never,
    /// Of the reserved range from which virtual addresses are made up.
    Virtual,
    /// In none of the allowed ranges.
    NotAllowed,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Local => {
                "loopback and link-local addresses are no pods, unless a range of `allow` is for them alone (127.0.0.0/8)"
            }
            Self::Never => "unspecified, multicast and broadcast addresses are no pods",
            Self::Virtual => {
                "240.0.0.0/4 is reserved, and what Istio's DNS proxy makes up for a Service with a virtual address, which hides the pods: use the addresses of the pods (a headless Service)"
            }
            Self::NotAllowed => "it is in no range of `allow`",
        })
    }
}

/// Why this address is no pod; `None` = it may be one. Without ranges all but the special ones may.
#[must_use]
pub fn refusal(ip: IpAddr, allow: &[Range]) -> Option<Refusal> {
    let ip = ip.to_canonical();
    let is_in = |ranges: &[Range]| ranges.iter().find(|range| range.contains(ip)).copied();
    if is_in(&NEVER).is_some() || ip == IpAddr::V4(Ipv4Addr::BROADCAST) {
        return Some(Refusal::Never);
    }
    if VIRTUAL.contains(ip) {
        return Some(Refusal::Virtual);
    }
    if let Some(local) = is_in(&LOCAL) {
        let meant = |range: &Range| range.contains(ip) && range.is_within(local);
        return (!allow.iter().any(meant)).then_some(Refusal::Local);
    }
    (!allow.is_empty() && is_in(allow).is_none()).then_some(Refusal::NotAllowed)
}

impl Range {
    /// Is the address one of these? IPv4 inside IPv6 counts as IPv4.
    #[must_use]
    pub fn contains(self, ip: IpAddr) -> bool {
        match (self.base, ip.to_canonical()) {
            (IpAddr::V4(base), IpAddr::V4(ip)) => {
                let unlike = base.to_bits() ^ ip.to_bits();
                unlike.checked_shr(32 - u32::from(self.bits)).unwrap_or(0) == 0
            }
            (IpAddr::V6(base), IpAddr::V6(ip)) => {
                let unlike = base.to_bits() ^ ip.to_bits();
                unlike.checked_shr(128 - u32::from(self.bits)).unwrap_or(0) == 0
            }
            _ => false,
        }
    }

    fn is_within(self, other: Self) -> bool {
        self.bits >= other.bits && other.contains(self.base)
    }
}

/// The text was not a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotARange;

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.bits)
    }
}

impl FromStr for Range {
    type Err = NotARange;
    /// Bits behind the prefix must be zero: 10.0.0.1/8 is a slip of the pen.
    fn from_str(text: &str) -> Result<Self, NotARange> {
        let (base, bits) = text.split_once('/').ok_or(NotARange)?;
        let base: IpAddr = base.parse().map_err(|_| NotARange)?;
        let digits = !bits.is_empty() && bits.bytes().all(|byte| byte.is_ascii_digit());
        let bits: u8 = bits.parse().map_err(|_| NotARange)?;
        let rest_is_zero = match base {
            IpAddr::V4(base) => bits <= 32 && base.to_bits().checked_shl(bits.into()).unwrap_or(0) == 0,
            IpAddr::V6(base) => {
                let mapped = base.to_ipv4_mapped().is_some();
                !mapped && bits <= 128 && base.to_bits().checked_shl(bits.into()).unwrap_or(0) == 0
            }
        };
        (digits && rest_is_zero).then_some(Self { base, bits }).ok_or(NotARange)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[track_caller]
    fn check(ip: &str, allow: &[&str], expected: Option<Refusal>) {
        let allow: Vec<Range> = allow.iter().map(|range| range.parse().unwrap()).collect();
        assert_eq!(refusal(ip.parse().unwrap(), &allow), expected, "{ip} with {allow:?}");
    }

    #[test]
    fn pods_have_ordinary_addresses() {
        for ip in [
            "10.0.0.1",
            "100.64.0.1",
            "8.8.8.8",
            "223.255.255.255",
            "fd00::1",
            "2001:db8::1",
        ] {
            check(ip, &[], None);
        }
    }

    #[test]
    fn the_own_machine_and_the_metadata_service_are_no_pods() {
        for ip in [
            "127.0.0.1",
            "127.255.255.255",
            "169.254.169.254",
            "::1",
            "fe80::1",
            "febf::1",
        ] {
            check(ip, &[], Some(Refusal::Local));
            check(ip, &["0.0.0.0/0", "::/0"], Some(Refusal::Local));
        }
        check("::ffff:127.0.0.1", &[], Some(Refusal::Local));
        check("126.255.255.255", &[], None);
        check("128.0.0.0", &[], None);
        check("fec0::1", &[], None);
    }

    #[test]
    fn a_range_for_local_addresses_alone_allows_them() {
        check("127.0.0.1", &["127.0.0.0/8"], None);
        check("127.0.0.2", &["127.0.0.2/32"], None);
        check("127.0.0.3", &["127.0.0.2/32"], Some(Refusal::Local));
        check("::1", &["::1/128"], None);
        check("fe80::1", &["fe80::/64"], None);
        check("10.0.0.1", &["127.0.0.0/8"], Some(Refusal::NotAllowed));
    }

    #[test]
    fn what_is_nobodys_address_is_never_a_pod() {
        for ip in [
            "0.0.0.0",
            "0.1.2.3",
            "224.0.0.1",
            "239.255.255.255",
            "255.255.255.255",
            "::",
            "ff02::1",
        ] {
            check(ip, &[], Some(Refusal::Never));
            check(
                ip,
                &["0.0.0.0/0", "224.0.0.0/4", "::/0", "ff00::/8"],
                Some(Refusal::Never),
            );
        }
        check("240.240.0.7", &["240.0.0.0/4"], Some(Refusal::Virtual));
    }

    #[test]
    fn ranges_end_at_their_bits() {
        check("10.1.255.255", &["10.1.0.0/16"], None);
        check("10.2.0.0", &["10.1.0.0/16"], Some(Refusal::NotAllowed));
        check("10.2.0.0", &["10.1.0.0/16", "10.2.0.0/31"], None);
        check("fd00::1", &["10.0.0.0/8"], Some(Refusal::NotAllowed));
        check("fd00::1", &["fd00::/8"], None);
        check("::ffff:10.1.0.1", &["10.1.0.0/16"], None);
    }

    #[test]
    fn a_range_is_written_as_it_is_read() {
        for text in ["0.0.0.0/0", "10.0.0.0/8", "10.0.0.1/32", "::/0", "fd00::/8", "::1/128"] {
            assert_eq!(text.parse::<Range>().unwrap().to_string(), text);
        }
        let wrong = [
            "",
            "/",
            "10.0.0.0",
            "10.0.0.0/",
            "10.0.0.0/33",
            "::/129",
            "10.0.0.1/8",
            "fd00::1/64",
            "a/8",
            "10.0.0.0/+8",
            "10.0.0.0/-1",
            " 10.0.0.0/8",
            "::ffff:10.0.0.0/104",
            "10.0.0.0/256",
        ];
        for text in wrong {
            assert_eq!(text.parse::<Range>(), Err(NotARange), "{text}");
        }
    }
}
