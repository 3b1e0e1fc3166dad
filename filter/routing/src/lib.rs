//! The reader half of Berth: from a request and a snapshot to the pod that serves it.
//!
//! ```text
//!  pods' /metrics, /v1/models -> sample -> table (shared data) -> snapshot ---+
//!                 `berth-shared-state`                                        |
//!                                                                             +-> decision -> upstream host header
//!  client's request -> model, adapter, prompt prefix, tokens needed ----------+
//!  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this crate ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
//! ```
//!
//! Everything here is pure. Deciding is total: it never fails, it answers with its reasons.
//! Deliberately not here: host calls.

pub mod limits;

pub mod request;

pub mod prefix;

pub mod admission;
pub mod catalogue;
pub mod cookie;
pub mod cost;
pub mod decision;
pub mod header;
pub mod hold;
#[cfg(feature = "lab")]
pub mod lab;
pub mod ledger;
pub mod replay;
pub mod restore;
pub mod rewrite;
pub mod view;
