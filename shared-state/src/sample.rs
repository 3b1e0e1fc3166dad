//! What one pod said at one instant. `None` is unknown, which is neither zero nor infinite.

use serde::{Deserialize, Serialize};

use crate::units::Tokens;

/// Model servers that Berth can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// vLLM, Python or Rust frontend, V0 and V1.
    Vllm,
    /// SGLang.
    Sglang,
    /// `trtllm-serve` of TensorRT-LLM.
    Trtllm,
    /// Triton with the TensorRT-LLM backend.
    Triton,
    /// LMDeploy.
    Lmdeploy,
    /// llama.cpp server.
    LlamaCpp,
    /// Text Generation Inference.
    Tgi,
    /// Modular MAX.
    Max,
    /// NVIDIA NIM for LLMs 1.x.
    Nim,
}

impl Engine {
    /// llama.cpp answers for any model name; all others refuse an unknown one.
    #[must_use]
    pub const fn enforces_names(self) -> bool {
        !matches!(self, Self::LlamaCpp)
    }

    /// Its counter of generated tokens is known to rise with each step; others count an answer when it ends (SGLang, TGI,
    /// llama.cpp), or it is not known.
    #[must_use]
    pub const fn counts_each_token(self) -> bool {
        matches!(self, Self::Vllm)
    }
}

/// How much of a page could be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// The load can be judged: running, KV usage where the engine has such a gauge, and the queue or
    /// the capacity are known.
    Ok,
    /// Some load field is unknown.
    Partial,
    /// Frozen or contradictory.
    Suspect,
    /// No load signal.
    Unknown,
    /// The page is not usable; the last reading stays.
    Reject,
}

/// Where an adapter's weights are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// In host memory: a copy away.
    Cpu,
    /// In a GPU slot.
    Gpu,
}

/// Adapters with requests in flight, as the engine lists them. Activity, not residency.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// Sorted, distinct.
    pub running: Vec<String>,
    /// Sorted, distinct. vLLM V1 writes the running list here too.
    pub waiting: Vec<String>,
    /// Slots per batch; `Some(0)` = LoRA is off.
    pub max: Option<u32>,
}

/// Counters since the engine's start. They fall when it restarts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counters {
    /// Prompt tokens taken in.
    pub prompt_tokens: Option<f64>,
    /// Prompt tokens found in the prefix cache.
    pub cached_prompt_tokens: Option<f64>,
    /// Tokens generated.
    pub generation_tokens: Option<f64>,
    /// Requests preempted for lack of KV blocks.
    pub preemptions: Option<f64>,
    /// Requests finished.
    pub requests: Option<f64>,
}

/// One reading of one /metrics page.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Who wrote the page; `None` when no known family was found.
    pub engine: Option<Engine>,
    /// How much of it could be used.
    pub status: Status,
    /// Why the status is not [`Status::Ok`]; for people.
    pub reason: Option<&'static str>,
    /// Requests in the batch, over all data-parallel engines.
    pub running: Option<u32>,
    /// Requests queued, over all data-parallel engines.
    pub waiting: Option<u32>,
    /// Part of the queue that waits for something else than KV blocks (LoRA slot, grammar).
    pub deferred: Option<u32>,
    /// KV usage, mean over engines, 0..=1. Reusable cached prefixes do not count as used.
    pub kv_mean: Option<f64>,
    /// KV usage of the worst engine, 0..=1.
    pub kv_max: Option<f64>,
    /// KV capacity over all engines.
    pub kv_capacity: Option<Tokens>,
    /// Data-parallel engines seen on the page.
    pub engines: u16,
    /// A sleeping engine shows no load and is no candidate.
    pub sleeping: Option<bool>,
    /// Adapters in flight.
    pub activity: Option<Activity>,
    /// Adapters in memory, where the engine says so. Sorted by name.
    pub resident: Option<Vec<(String, Level)>>,
    /// Counters, for rates and restart detection.
    pub counters: Counters,
    /// Process start, Unix seconds.
    pub started_at: Option<f64>,
}

impl Sample {
    /// A reading that knows nothing.
    #[must_use]
    pub const fn empty(status: Status, reason: Option<&'static str>) -> Self {
        Self {
            engine: None,
            status,
            reason,
            running: None,
            waiting: None,
            deferred: None,
            kv_mean: None,
            kv_max: None,
            kv_capacity: None,
            engines: 0,
            sleeping: None,
            activity: None,
            resident: None,
            counters: Counters {
                prompt_tokens: None,
                cached_prompt_tokens: None,
                generation_tokens: None,
                preemptions: None,
                requests: None,
            },
            started_at: None,
        }
    }
}
