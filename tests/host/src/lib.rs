//! A Proxy-Wasm host for tests: ABI 0.2.1 on wasmtime, imitating Envoy closely, or one of two nginx modules
//! ([`Dialect`]), and knowing nothing of Berth.
//!
//! ```text
//! Host (process: virtual time, shared data, metrics, callouts, log)
//!   main thread   service VM, and the filter's own VM there
//!   worker 0..n   one filter VM each -> Stream: headers, body, response, end, step by step
//! ```
//! It exists so that several VMs can be run against each other in milliseconds, without sleeping and the same way each
//! time. It is not a mock: no test says which host calls come in which order, only what happens to the proxy.
//!
//! Deliberately absent: networking, routing and load balancing, other filters in the chain, gRPC, network filters, shared
//! queues, DNS, response trailers of callouts, real parallelism (events run one after another, in order of virtual time).

mod abi;
mod callouts;
mod clock;
mod dialect;
mod engine;
mod host;
mod hostcalls;
mod metrics;
mod process;
mod property;
mod shared_data;
mod stream;
mod vm;
mod wasi;

pub use abi::{Headers, LogLevel};
pub use callouts::{Answer, Callout, RESPONSE_LIMIT, Responder};
pub use dialect::Dialect;
pub use engine::imports;
pub use host::{FailurePolicy, Host, Plugin, PluginId, Settings, Thread, loads};
pub use metrics::MetricKind;
pub use process::LogLine;
pub use shared_data::CasRules;
pub use stream::{End, Message, Step, Stream};
