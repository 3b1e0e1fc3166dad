//! How the proxy around the wasm wants to be spoken to.
//!
//! | | Envoy | WasmX | APISIX |
//! |---|---|---|---|
//! | the headers wait for the body | if the filter pauses | by themselves; Pause hangs | by themselves; Pause crashes |
//! | the body comes | in pieces | once, whole | once, whole, if it is asked for |
//! | the choice is taken from | a header | a variable, a header | a header |
//! | calls go to | a cluster | `ip:port` | - |
//! | clock, ticks, shared data | yes | yes, a tick is set once | no |
//!
//! One value answers questions; who asks does the call. Deliberately not here: host calls
//! (`berth-shared-state-glue`), and how long anything takes.

use crate::config::Host;
use crate::pod::PodAddress;

/// Proxy-Wasm status: done.
const OK: u32 = 0;
/// Proxy-Wasm status: the host failed. WasmX says so of a variable that is read outside of a request; Envoy of every call
/// that its capability restrictions leave out.
const INTERNAL_FAILURE: u32 = 10;
/// Proxy-Wasm status: the host has no such call. APISIX says so of the clock.
const UNIMPLEMENTED: u32 = 12;

/// A kind of proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// Envoy.
    #[default]
    Envoy,
    /// nginx, OpenResty or Kong with ngx_wasm_module.
    WasmX,
    /// APISIX with wasm-nginx-module.
    Apisix,
}

/// What a host answered while a root was configured, as Proxy-Wasm statuses. All calls are harmless everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Of the clock.
    pub clock: u32,
    /// Of the property `ngx.pid`.
    pub variable: u32,
    /// Of a property that no host has, and whose name is no variable's: WasmX finds none, in a request or outside of it.
    pub absent: u32,
}

impl Dialect {
    /// As the config says; where it does not, by what the host answers.
    #[must_use]
    pub fn of(host: Host, probe: impl FnOnce() -> Probe) -> Self {
        match host {
            Host::Envoy => Self::Envoy,
            Host::Nginx | Host::Kong => Self::WasmX,
            Host::Apisix => Self::Apisix,
            Host::Auto => match probe() {
                Probe {
                    clock: UNIMPLEMENTED, ..
                } => Self::Apisix,
                // No property may be read at all: that tells nothing of nginx.
                Probe {
                    variable: INTERNAL_FAILURE,
                    absent: INTERNAL_FAILURE,
                    ..
                } => Self::Envoy,
                Probe {
                    variable: OK | INTERNAL_FAILURE,
                    ..
                } => Self::WasmX,
                Probe { .. } => Self::Envoy,
            },
        }
    }

    /// The host that a config without one is taken to be for.
    #[must_use]
    pub const fn host(self) -> Host {
        match self {
            Self::Envoy => Host::Envoy,
            Self::WasmX => Host::Nginx,
            Self::Apisix => Host::Apisix,
        }
    }

    /// Whether this is Envoy: filter state, routes, response details, and Pause until the body is there.
    #[must_use]
    pub const fn is_envoy(self) -> bool {
        matches!(self, Self::Envoy)
    }

    /// Whether there are ticks, a clock, and data that workers share.
    #[must_use]
    pub const fn shares(self) -> bool {
        !matches!(self, Self::Apisix)
    }

    /// Property that asks for the body, in the headers callback.
    #[must_use]
    pub const fn body_property(self) -> Option<&'static str> {
        match self {
            Self::Envoy | Self::WasmX => None,
            Self::Apisix => Some("wasm_process_req_body"),
        }
    }

    /// Path of a variable of nginx. `None` = there are none.
    #[must_use]
    pub fn variable(self, name: &str) -> Option<Vec<&str>> {
        match self {
            Self::Envoy => None,
            Self::WasmX => Some(vec!["ngx", name]),
            Self::Apisix => Some(vec![name]),
        }
    }

    /// Whether no body follows the headers. Only Envoy's `end_of_stream` tells; else the headers do, and where they do not,
    /// `protocol`, nginx's `$server_protocol`: by HTTP/2 a body need not be declared.
    #[must_use]
    pub fn ends(self, end_of_stream: bool, headers: &[(&str, &[u8])], protocol: impl FnOnce() -> Vec<u8>) -> bool {
        if self.is_envoy() {
            return end_of_stream;
        }
        let header = |name: &str| {
            headers
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| *value)
        };
        match (header("content-length"), header("transfer-encoding"), header(":method")) {
            (Some(length), None, _) => length.trim_ascii() == b"0",
            (_, Some(_), _) => false,
            (None, None, Some(b"GET" | b"HEAD" | b"OPTIONS" | b"DELETE" | b"TRACE")) => true,
            (None, None, _) => protocol().starts_with(b"HTTP/1"),
        }
    }

    /// Bytes that a write replaces so that the whole body, or the whole piece, becomes another one of any length. WasmX
    /// takes no more new bytes than that, and forgets all behind them.
    #[must_use]
    pub const fn whole(self, length: usize) -> usize {
        match self {
            Self::Envoy => length,
            Self::WasmX | Self::Apisix => u32::MAX as usize,
        }
    }
}

/// What nginx's `$upstream_addr` says: the pod of the last attempt, if it reached one, and the number of attempts.
/// Several stand apart by commas, and by colons where the request was sent on to another group.
#[must_use]
pub fn upstream_addr(value: &[u8]) -> Option<(PodAddress, u32)> {
    let value = core::str::from_utf8(value).ok()?;
    let tried = || value.split(", ").flat_map(|group| group.split(" : "));
    let last = tried().last()?.trim().parse().ok()?;
    Some((last, u32::try_from(tried().count()).unwrap_or(u32::MAX)))
}

/// Whether a pod's answer was seen, by nginx's `$upstream_header_time`: of an attempt without one it is `-`.
#[must_use]
pub fn upstream_answered(header_time: &[u8]) -> bool {
    let last = header_time
        .rsplit(|byte| b",: ".contains(byte))
        .next()
        .unwrap_or_default();
    !last.is_empty() && last != b"-"
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    #[test]
    fn the_config_says_which_proxy_it_is_and_else_its_answers_do() {
        #[track_caller]
        fn check(host: Host, clock: u32, variable: u32, absent: u32, dialect: Dialect) {
            let probe = Probe {
                clock,
                variable,
                absent,
            };
            assert_eq!(Dialect::of(host, || probe), dialect);
        }
        check(Host::Auto, OK, 1, 1, Dialect::Envoy);
        check(Host::Auto, OK, INTERNAL_FAILURE, 1, Dialect::WasmX);
        check(Host::Auto, OK, OK, 1, Dialect::WasmX);
        check(Host::Auto, UNIMPLEMENTED, 2, 2, Dialect::Apisix);
        check(Host::Auto, 7, 7, 7, Dialect::Envoy);
        // Envoy with capability restrictions: no property may be read, nor perhaps the clock.
        for clock in [OK, INTERNAL_FAILURE] {
            check(Host::Auto, clock, INTERNAL_FAILURE, INTERNAL_FAILURE, Dialect::Envoy);
        }
        for host in [Host::Nginx, Host::Kong] {
            check(host, UNIMPLEMENTED, 1, 1, Dialect::WasmX);
        }
        check(Host::Envoy, UNIMPLEMENTED, OK, 1, Dialect::Envoy);
        check(Host::Apisix, OK, 1, 1, Dialect::Apisix);
    }

    #[test]
    fn nginx_tells_by_headers_whether_a_body_follows() {
        #[track_caller]
        fn check(headers: &[(&str, &str)], protocol: &str, ends: bool) {
            let headers: Vec<(&str, &[u8])> = headers.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
            // WasmX always says that it goes on, APISIX that it ends.
            for (dialect, told) in [(Dialect::WasmX, false), (Dialect::Apisix, true)] {
                let found = dialect.ends(told, &headers, || protocol.into());
                assert_eq!(found, ends, "{dialect:?} {headers:?}");
            }
            for told in [true, false] {
                assert_eq!(Dialect::Envoy.ends(told, &headers, Vec::new), told);
            }
        }
        check(&[(":method", "GET")], "HTTP/2.0", true);
        check(&[(":method", "DELETE")], "HTTP/1.1", true);
        check(&[(":method", "POST")], "HTTP/1.1", true);
        check(&[(":method", "POST")], "HTTP/2.0", false);
        check(&[], "", false);
        check(&[(":method", "POST"), ("content-length", "0")], "HTTP/2.0", true);
        check(&[(":method", "POST"), ("content-length", "1")], "HTTP/1.1", false);
        check(&[(":method", "GET"), ("content-length", "1")], "HTTP/1.1", false);
        let chunked = ("transfer-encoding", "chunked");
        check(&[(":method", "POST"), chunked], "HTTP/1.1", false);
        check(
            &[(":method", "POST"), ("content-length", "0"), chunked],
            "HTTP/1.1",
            false,
        );
    }

    #[test]
    fn the_last_of_several_attempts_served() {
        #[track_caller]
        fn check(value: &str, expected: Option<(&str, u32)>) {
            let expected = expected.map(|(pod, attempts)| (pod.parse().unwrap(), attempts));
            assert_eq!(upstream_addr(value.as_bytes()), expected, "{value:?}");
        }
        check("10.0.0.1:8000", Some(("10.0.0.1:8000", 1)));
        check("10.0.0.1:8000, 10.0.0.2:8000", Some(("10.0.0.2:8000", 2)));
        check("10.0.0.1:8000 : 10.0.0.3:8000", Some(("10.0.0.3:8000", 2)));
        check("[fd00::1]:8000", Some(("[fd00::1]:8000", 1)));
        check("berth_pods", None);
        check("unix:/run/pod.sock", None);
        check("", None);
        check("-", None);
    }

    #[test]
    fn an_attempt_without_an_answer_has_no_time() {
        for (value, answered) in [
            ("0.004", true),
            ("-, 0.004", true),
            ("0.004, -", false),
            ("0.004 : -", false),
            ("-", false),
            ("", false),
        ] {
            assert_eq!(upstream_answered(value.as_bytes()), answered, "{value:?}");
        }
    }
}
