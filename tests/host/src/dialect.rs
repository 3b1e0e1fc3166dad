//! The proxies that can be imitated, and where they differ.
//!
//! | | Envoy | WasmX | APISIX |
//! |---|---|---|---|
//! | VMs | main thread and workers, a canary before | workers | workers, by the first request |
//! | `end_of_stream` with request headers | told | never | always |
//! | Pause with nothing pending | holds | hangs for ever | segmentation fault |
//! | body callbacks | as it arrives | once, whole; none without a body | once, whole, only if the filter asks |
//! | a call that is missing | some status | a trap | status 12 |
//! | after a trap | the plugin's policy | a new instance, the old timer stays | the instance goes on as it is |
//! | ticks, clock, shared data | yes | yes, one tick per root | none |
//! | callouts go to | a cluster | `host:port` | `host:port`, one at a time, in a request |
//!
//! WasmX is ngx_wasm_module 0.6 in nginx, OpenResty or Kong, without isolation; APISIX is its wasm-nginx-module. Sources:
//! both modules' code, and runs of both. What a real host would not survive is a *fault*: it fails the test
//! ([`crate::Host::take_faults`]).

use crate::abi::Status;
use crate::host::Thread;

/// A proxy to imitate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// Envoy, also as Istio's or Envoy Gateway's.
    #[default]
    Envoy,
    /// nginx, OpenResty or Kong with ngx_wasm_module.
    WasmX,
    /// APISIX with wasm-nginx-module.
    Apisix,
}

/// What a call does for which the host has no code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stub {
    Trap,
    Answers(Status),
}

impl Dialect {
    /// Each of them.
    pub const ALL: [Self; 3] = [Self::Envoy, Self::WasmX, Self::Apisix];

    pub(crate) fn is_nginx(self) -> bool {
        self != Self::Envoy
    }

    /// Where a filter has VMs.
    pub(crate) fn threads(self, workers: usize) -> Vec<Thread> {
        let main = (self == Self::Envoy).then_some(Thread::Main);
        main.into_iter().chain((0..workers).map(Thread::Worker)).collect()
    }

    /// Status of a request whose VM trapped.
    pub(crate) fn failure_status(self) -> u32 {
        match self {
            Self::Envoy | Self::Apisix => 503,
            Self::WasmX => 500,
        }
    }

    /// What a call does that only looks as if it were there.
    pub(crate) fn stub(self, call: &str) -> Option<Stub> {
        let missing = NOT_IMITATED.iter().any(|(name, _)| *name == call);
        match (self, call) {
            (Self::WasmX, "proxy_close_stream" | "proxy_get_log_level") => Some(Stub::Trap),
            (
                Self::Apisix,
                "proxy_set_tick_period_milliseconds"
                | "proxy_get_current_time_nanoseconds"
                | "proxy_get_shared_data"
                | "proxy_set_shared_data"
                | "proxy_set_buffer_bytes"
                | "proxy_set_header_map_pairs"
                | "proxy_call_foreign_function",
            ) => Some(Stub::Answers(Status::Unimplemented)),
            (
                Self::Apisix,
                "proxy_define_metric"
                | "proxy_increment_metric"
                | "proxy_record_metric"
                | "proxy_get_metric"
                | "proxy_continue_stream"
                | "proxy_close_stream",
            ) => Some(Stub::Answers(Status::Ok)),
            (Self::Apisix, _) if missing => Some(Stub::Answers(Status::Unimplemented)),
            _ if missing => Some(Stub::Trap),
            _ => None,
        }
    }

    /// Imports that exist and do nothing here, with the number of arguments, all of them i32.
    pub(crate) fn not_imitated(self) -> Vec<(&'static str, usize)> {
        let defined = |name: &str| self == Self::Envoy || !ONLY_ENVOY.contains(&name);
        let mut all: Vec<_> = NOT_IMITATED.into_iter().filter(|(name, _)| defined(name)).collect();
        if self == Self::WasmX {
            // With an argument more than everywhere else.
            all.push(("proxy_get_log_level", 2));
        }
        all
    }
}

const NOT_IMITATED: [(&str, usize); 14] = [
    ("proxy_done", 0),
    ("proxy_get_status", 3),
    ("proxy_get_header_map_size", 2),
    ("proxy_get_buffer_status", 3),
    ("proxy_register_shared_queue", 3),
    ("proxy_resolve_shared_queue", 5),
    ("proxy_dequeue_shared_queue", 3),
    ("proxy_enqueue_shared_queue", 3),
    ("proxy_grpc_call", 12),
    ("proxy_grpc_stream", 9),
    ("proxy_grpc_send", 4),
    ("proxy_grpc_cancel", 1),
    ("proxy_grpc_close", 1),
    ("envoy_resolve_dns", 3),
];

/// Of these, what no other host defines.
const ONLY_ENVOY: [&str; 3] = [
    "proxy_get_header_map_size",
    "proxy_get_buffer_status",
    "envoy_resolve_dns",
];
