//! The single integration binary. `scenarios` is the heart: the same files run on the core and
//! through the wasm; a subset runs again in a real Envoy (tests/e2e).

mod admission;
mod chaos;
mod contract;
mod dependencies;
mod docs;
mod golden;
mod hand_over;
mod manifests;
mod nginx;
mod package;
mod scenarios;
mod wasm;
