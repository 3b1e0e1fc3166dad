//! The rig: a real Envoy with Berth, in front of simulated or real pods.
//!
//! Used by the end-to-end tests and by `scripts/run`. Deliberately without Berth's crates on the
//! request path: what is tested is what is in `dist/`.

pub mod check;
pub mod client;
pub mod demo;
pub mod envoy;
pub mod rig;
