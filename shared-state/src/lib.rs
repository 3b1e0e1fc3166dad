//! The writer half of Berth, and the contract between both halves.
//!
//! ```text
//!  pods' /metrics, /v1/models -> sample -> table (shared data) -> snapshot ---+
//!  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^    |
//!  this crate                                                                +-> decision -> upstream host header
//!  client's request -> model, adapter, prompt prefix, tokens needed ---------+
//!                                                       `berth-filter-routing`
//! ```
//!
//! Everything here is pure: no clock, no randomness, no host call. Facts, `now` and the random
//! numbers come in as arguments; what should happen goes out as values. What is deliberately not
//! here: how a pod is chosen (`berth-filter-routing`), and how the host is asked
//! (`berth-shared-state-glue`).

pub mod limits;
pub mod names;
pub mod pod;
pub mod units;

pub mod config;
pub mod dialect;

pub mod discovery;
pub mod lease;
pub mod metrics;
pub mod models;
pub mod poll;
pub mod reports;
pub mod sample;
pub mod snapshot;
pub mod table;
pub mod unpolled;

mod clock;
pub mod sealed;
pub mod store;
