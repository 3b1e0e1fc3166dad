//! The routing lab: which pod should a request go to? Policies compared over simulated pods, in virtual time.
//!
//! ```text
//! client -> jobs --+
//!                  +-> world (proxies with an arm each, a fleet of pods) -> record -> study -> report, plot
//! scenario --------+
//! ```
//!
//! Everything is seeded: equal commands give equal tables. Berth's arm is the shipped code; the peers' arms are written
//! from their documentation; the references see the engines' true state. Deliberately not here: the network, several
//! engines behind one address, and the cost of deciding (tests/bench measures it).

pub mod arm;
pub mod client;
pub mod document;
pub mod fleet;
pub mod overload;
pub mod page;
pub mod plot;
pub mod record;
pub mod report;
pub mod scenario;
pub mod study;
pub mod world;
