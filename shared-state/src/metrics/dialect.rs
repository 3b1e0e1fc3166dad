//! Which families of which engine are read, and what each one means.
//!
//! Names are exact: `num_requests_waiting_by_reason` is not `num_requests_waiting`.

use crate::sample::Engine;

/// What a family tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Requests in the batch.
    Running,
    /// Requests queued.
    Waiting,
    /// Requests queued, one series per `reason`; only `deferred` is kept.
    WaitingByReason,
    /// KV usage, 0..=1.
    Usage,
    /// The same under its older name.
    UsageOld,
    /// KV capacity of one engine, in tokens.
    PoolTokens,
    /// Info family with the capacity in its labels.
    CacheConfig,
    /// KV blocks, and the tokens in one of them.
    Blocks,
    /// Tokens in a KV block.
    BlockTokens,
    /// KV blocks in use; only to check the fraction.
    UsedBlocks,
    /// Triton: several gauges, told apart by `request_type`.
    TritonRequests,
    /// Triton: several gauges, told apart by `kv_cache_block_type`.
    TritonBlocks,
    /// vLLM: one series per `sleep_state`.
    Sleep,
    /// vLLM: log of adapters in flight, the value is a clock.
    LoraInfo,
    /// vLLM: 1 per adapter in memory.
    LoraLoaded,
    /// vLLM: adapters in memory.
    LoraLoadedCount,
    /// vLLM: adapter slots of the GPU.
    LoraSlots,
    /// Counter: prompt tokens.
    Prompt,
    /// Counter: prompt tokens that were found in the cache.
    Cached,
    /// The same by an older name.
    CachedOld,
    /// Counter: generated tokens.
    Generated,
    /// Counter: preemptions.
    Preemptions,
    /// Counter: finished requests.
    Requests,
    /// Unix seconds of the process start.
    Started,
}

type Families = &'static [(&'static [u8], Role)];

/// Engines in the order of detection, each with its prefix. NIM has no prefix and comes last.
pub const ENGINES: [(Engine, &[u8], Families); 9] = [
    (Engine::Vllm, b"vllm", VLLM),
    (Engine::Sglang, b"sglang", SGLANG),
    (Engine::Trtllm, b"trtllm", TRTLLM),
    (Engine::Triton, b"nv_trt_llm", TRITON),
    (Engine::Lmdeploy, b"lmdeploy", LMDEPLOY),
    (Engine::LlamaCpp, b"llamacpp", LLAMACPP),
    (Engine::Tgi, b"tgi", TGI),
    (Engine::Max, b"maxserve", MAX),
    (Engine::Nim, b"", NIM),
];

const VLLM: Families = &[
    (b"num_requests_running", Role::Running),
    (b"num_requests_waiting", Role::Waiting),
    (b"num_requests_waiting_by_reason", Role::WaitingByReason),
    (b"kv_cache_usage_perc", Role::Usage),
    (b"gpu_cache_usage_perc", Role::UsageOld),
    (b"cache_config_info", Role::CacheConfig),
    (b"engine_sleep_state", Role::Sleep),
    (b"lora_requests_info", Role::LoraInfo),
    // Open proposals (RFC 45325); read where an engine already has them.
    (b"lora_adapter_loaded", Role::LoraLoaded),
    (b"num_gpu_loaded_lora_adapters", Role::LoraLoadedCount),
    (b"num_cpu_loaded_lora_adapters", Role::LoraLoadedCount),
    (b"max_gpu_lora_adapters", Role::LoraSlots),
    (b"prompt_tokens_total", Role::Prompt),
    (b"prompt_tokens_cached_total", Role::Cached),
    // Not `gpu_prefix_cache_hits_total`: it counted blocks in some versions, tokens in others.
    (b"prefix_cache_hits_total", Role::CachedOld),
    (b"generation_tokens_total", Role::Generated),
    (b"num_preemptions_total", Role::Preemptions),
    (b"request_success_total", Role::Requests),
];

const SGLANG: Families = &[
    (b"num_running_reqs", Role::Running),
    (b"num_queue_reqs", Role::Waiting),
    (b"token_usage", Role::Usage),
    (b"max_total_num_tokens", Role::PoolTokens),
    (b"cache_config_info", Role::CacheConfig),
    (b"prompt_tokens_total", Role::Prompt),
    (b"cached_tokens_total", Role::Cached),
    (b"generation_tokens_total", Role::Generated),
    (b"num_retracted_requests_total", Role::Preemptions),
    (b"num_requests_total", Role::Requests),
];

const TRTLLM: Families = &[
    (b"num_requests_running", Role::Running),
    (b"num_requests_waiting", Role::Waiting),
    (b"kv_cache_utilization", Role::Usage),
    (b"kv_cache_max_blocks", Role::Blocks),
    (b"kv_cache_tokens_per_block", Role::BlockTokens),
    (b"prompt_tokens_total", Role::Prompt),
    (b"prompt_cached_tokens_total", Role::Cached),
    (b"generation_tokens_total", Role::Generated),
    (b"request_success_total", Role::Requests),
];

const TRITON: Families = &[
    (b"request_metrics", Role::TritonRequests),
    (b"kv_cache_block_metrics", Role::TritonBlocks),
];

const LMDEPLOY: Families = &[
    (b"num_requests_running", Role::Running),
    (b"num_requests_waiting", Role::Waiting),
    (b"gpu_cache_usage_perc", Role::Usage),
    (b"prompt_tokens_total", Role::Prompt),
    (b"generation_tokens_total", Role::Generated),
    (b"request_success_total", Role::Requests),
];

const LLAMACPP: Families = &[
    (b"requests_processing", Role::Running),
    (b"requests_deferred", Role::Waiting),
    (b"kv_cache_usage_ratio", Role::Usage),
    (b"prompt_tokens_total", Role::Prompt),
    (b"prompt_tokens_cached_total", Role::Cached),
    (b"tokens_predicted_total", Role::Generated),
];

const TGI: Families = &[
    (b"batch_current_size", Role::Running),
    (b"queue_size", Role::Waiting),
    (b"request_input_length_sum", Role::Prompt),
    (b"request_generated_tokens_sum", Role::Generated),
    (b"request_success", Role::Requests),
];

const MAX: Families = &[
    (b"num_requests_running", Role::Running),
    (b"num_requests_queued", Role::Waiting),
    (b"num_input_tokens_total", Role::Prompt),
    (b"num_output_tokens_total", Role::Generated),
    (b"cache_preemption_count_total", Role::Preemptions),
    (b"request_count_total", Role::Requests),
];

const NIM: Families = &[
    (b"num_requests_running", Role::Running),
    (b"num_requests_waiting", Role::Waiting),
    (b"gpu_cache_usage_perc", Role::Usage),
    (b"prompt_tokens_total", Role::Prompt),
    (b"generation_tokens_total", Role::Generated),
    (b"request_success_total", Role::Requests),
];

/// The engine a metric name belongs to, and its role where the family is wanted.
pub fn family(name: &[u8]) -> Option<(Engine, Option<Role>)> {
    let name = name.strip_prefix(b"ray_").unwrap_or(name);
    ENGINES.iter().find_map(|&(engine, prefix, families)| {
        let rest = name.strip_prefix(prefix)?;
        let rest = match rest.split_first()? {
            _ if prefix.is_empty() => rest,
            (b':' | b'_', rest) => rest,
            _ => return None,
        };
        let role = families
            .iter()
            .find(|&&(known, _)| known == rest)
            .map(|&(_, role)| role);
        // Without a prefix only the known names say anything.
        (role.is_some() || !prefix.is_empty()).then_some((engine, role))
    })
}

impl Engine {
    /// Has it a gauge of the KV usage, in the version that has the most?
    pub(super) const fn shows_kv(self) -> bool {
        matches!(
            self,
            Self::Vllm | Self::Sglang | Self::Trtllm | Self::Triton | Self::Lmdeploy | Self::Nim
        )
    }

    /// Does its KV usage leave out reusable cached prefixes, so that an idle pod shows zero?
    pub(super) const fn usage_is_live(self) -> bool {
        matches!(self, Self::Vllm | Self::Sglang)
    }
}
