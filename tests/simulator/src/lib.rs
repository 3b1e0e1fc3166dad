//! A simulated model-server pod, for tests, demos and the lab.
//!
//! ```text
//! traffic -> (HTTP: server -> driver) -> engine -> page -> /metrics
//!         \-> (virtual time: the lab) --^
//! ```
//!
//! It knows nothing of Berth and shares no code with it: the metrics page is a page recorded from a real server with
//! only the numbers replaced, so the reader under test and this fake cannot agree on a mistake.
//! Deliberately not here: real tokens, a model's quality, several engines behind one page, KV transfer.

pub mod chain;
pub mod engine;
pub mod page;
pub mod random;
pub mod server;
pub mod traffic;

pub use engine::{Engine, EngineConfig, Request};
pub use server::{Fault, Pinned, Received, Simulator, SimulatorConfig};
