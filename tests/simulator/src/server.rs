//! A pod on a loopback port: vLLM's endpoints in front of the engine, and `/sim/…` to steer and question it.
//!
//! Every answer names the pod in `x-simulator-pod`. A client's disconnect cancels its request in the engine.
//! Deliberately not here: TLS, authentication of requests, the Responses and Anthropic APIs, embeddings.

mod ask;
mod fault;
mod listen;
mod pod;
mod reply;
mod routes;
mod stream;
#[cfg(test)]
mod tests;

pub use crate::page::Pinned;
pub use fault::Fault;
pub use pod::Received;

use crate::engine::EngineConfig;
use pod::Pod;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Response header with the pod's name.
pub const POD_HEADER: &str = "x-simulator-pod";

/// What a pod is.
#[derive(Debug, Clone, PartialEq)]
pub struct SimulatorConfig {
    /// Its name in [`POD_HEADER`]; visible ASCII.
    pub name: String,
    /// Served base model.
    pub model: String,
    /// Adapters registered and loaded at start, in this order.
    pub adapters: Vec<String>,
    /// The engine's limits and costs.
    pub engine: EngineConfig,
    /// Engine seconds per real second. Not positive or not finite = 1.
    pub speed: f64,
    /// Decides lengths and texts of answers.
    pub seed: u64,
    /// Where it listens.
    pub ip: Ipv4Addr,
    /// Port there; 0 = any.
    pub port: u16,
    /// The metrics and models pages are answered with 401 unless `authorization` has this value.
    pub authorization: Option<String>,
}

impl Default for SimulatorConfig {
    fn default() -> Self {
        Self {
            name: "pod".to_owned(),
            model: "base".to_owned(),
            adapters: Vec::new(),
            engine: EngineConfig::h100(),
            speed: 1.0,
            seed: 0,
            ip: Ipv4Addr::LOCALHOST,
            port: 0,
            authorization: None,
        }
    }
}

/// A running pod. Dropping it stops it.
pub struct Simulator {
    pod: Arc<Pod>,
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Simulator {
    /// Starts a pod; it listens when this returns.
    ///
    /// # Errors
    /// The port cannot be bound.
    pub async fn start(config: SimulatorConfig) -> std::io::Result<Self> {
        let listener = TcpListener::bind((config.ip, config.port)).await?;
        let address = listener.local_addr()?;
        let pod = Arc::new(Pod::new(config));
        let serving = Arc::clone(&pod);
        let task = tokio::spawn(async move {
            let router = routes::router(&serving);
            tokio::select! {
                () = serving.drive() => {}
                () = listen::serve(&serving, listener, address, router) => {}
            }
        });
        Ok(Self { pod, address, task })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets a fault; it is in force when this returns.
    pub async fn set_fault(&self, fault: Fault) {
        self.pod.set_fault(fault).await;
    }

    /// Pins numbers of the metrics page; absent ones follow the engine again.
    pub fn pin(&self, pinned: Pinned) {
        self.pod.pin(pinned);
    }

    /// The last requests received, `/sim/…` apart, oldest first.
    #[must_use]
    pub fn requests(&self) -> Vec<Received> {
        self.pod.state().received.iter().cloned().collect()
    }

    /// Returns when the engine holds exactly this many requests, waiting ones included.
    pub async fn wait_in_flight(&self, count: usize) {
        // Fails only when the pod is gone, and this handle keeps it.
        let _ = self.pod.in_flight.subscribe().wait_for(|now| *now == count).await;
    }

    /// Stops listening and drops all connections.
    pub async fn stop(mut self) {
        self.task.abort();
        // The task's end is an error by design: it was aborted.
        let _ = (&mut self.task).await;
    }

    /// Serves until the process ends.
    pub async fn run(mut self) {
        let _ = (&mut self.task).await;
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        self.task.abort();
    }
}
