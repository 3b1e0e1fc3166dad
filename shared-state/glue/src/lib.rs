//! The thin layer between Proxy-Wasm and the pure crates.
//!
//! `host` asks the host and returns `Result`; `vm` is what the host calls; `poller` drives the pure
//! poller with both. Nothing here panics: a trap costs a proxy worker all its streams.
//!
//! Deliberately not here: the `proxy-wasm` SDK. Its trait objects import every host call there is
//! (gRPC and queues too, which some hosts do not have), and its wrappers panic on any status they
//! do not expect. DESIGN.md has the measurements.

pub mod host;
pub mod memory;
pub mod poller;
pub mod stats;
pub mod vm;

mod abi;
