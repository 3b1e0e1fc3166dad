//! What must hold in a real Envoy, with two workers and simulated pods.
//!
//! One file per theme; a rig takes some seconds to start, so one test sees several things of one rig.

mod admission;
mod answers;
mod bodies;
mod conformance;
mod discovery;
mod envoy_gateway;
mod failures;
mod istio;
mod kubernetes;
mod lease;
mod ledger;
mod lists;
mod models;
mod pages;
mod pass;
mod platform;
mod raw;
mod rendered;
mod reports;
mod retry;
mod routing;
mod scenarios;
mod scrape;
mod sessions;
mod steering;
mod streaming;
mod support;
