//! What a pod is: its limits and how long its steps take.

/// Time in microseconds since some start. Virtual in the lab, scaled real time in the server.
pub type Micros = u64;

/// How long one engine step takes, and what an adapter costs.
///
/// A step reads all weights once (`base`), multiplies each prefill token through them (`prefill_token`, compute bound)
/// and reads each decoding sequence's KV cache (`decode_sequence`, bandwidth bound).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepCost {
    /// Nanoseconds per step, whatever is in it.
    pub base_ns: u64,
    /// Nanoseconds per prompt token computed.
    pub prefill_token_ns: u64,
    /// Nanoseconds per sequence that decodes one token.
    pub decode_sequence_ns: u64,
    /// Microseconds to copy an adapter from the CPU cache into a GPU slot. The whole batch waits.
    pub adapter_from_cpu: Micros,
    /// Microseconds to read an adapter from disk into the CPU cache. The whole batch waits.
    pub adapter_from_disk: Micros,
}

impl StepCost {
    /// Llama-3.1-8B in bf16 on one H100 SXM (3.35 TB/s, 989 TFLOP/s dense bf16, data sheet).
    ///
    /// base: 16.1 GB of weights at 80 % of bandwidth = 6.0 ms, plus 1 ms of launch and sampling.
    /// prefill: 2 x 8.0e9 FLOP a token at 50 % of peak = 32 µs.
    /// decode: 1,000 tokens of context x 128 KiB of KV a token (2 x 32 layers x 8 heads x 128 x 2 bytes) at 80 % = 49 µs,
    /// plus the 16 µs that its own multiplication takes beyond memory time.
    /// adapter: rank 16 on all linear layers is 42 M parameters = 84 MB: 448 slice copies at about 40 µs = 18 ms from CPU
    /// memory; reading and parsing at about 0.5 GB/s = 170 ms from disk.
    pub const H100: Self = Self {
        base_ns: 7_000_000,
        prefill_token_ns: 32_000,
        decode_sequence_ns: 65_000,
        adapter_from_cpu: 18_000,
        adapter_from_disk: 170_000,
    };

    /// The same model on one L4 (300 GB/s, 121 TFLOP/s dense bf16, data sheet), derived in the same way.
    ///
    /// base: 16.1 GB at 85 % = 63 ms. prefill: 16 GFLOP at 50 % = 264 µs. decode: 131 MB at 85 % = 514 µs.
    /// adapter: half the PCIe lanes and a slower disk.
    pub const L4: Self = Self {
        base_ns: 64_000_000,
        prefill_token_ns: 264_000,
        decode_sequence_ns: 530_000,
        adapter_from_cpu: 36_000,
        adapter_from_disk: 340_000,
    };
}

/// The limits of one engine; the names are vLLM's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineConfig {
    /// Most requests in the batch.
    pub max_num_seqs: u32,
    /// Token budget of one step; longer prompts are computed in chunks.
    pub max_num_batched_tokens: u32,
    /// Tokens in a KV block.
    pub block_size: u32,
    /// KV blocks on the GPU, one of which is reserved.
    pub num_gpu_blocks: u32,
    /// Longest prompt plus output, in tokens. Never more than the pool holds (vLLM refuses to start then).
    pub max_model_len: u32,
    /// Different adapters in one batch; 0 = LoRA off.
    pub max_loras: u32,
    /// Adapters kept in CPU memory; at least `max_loras`.
    pub max_cpu_loras: u32,
    /// Admit a waiting request only if its whole prompt fits the free blocks, not just its first chunk
    /// (`scheduler_reserve_full_isl`, on by default since 2026).
    pub reserve_full_prompt: bool,
    /// How long things take.
    pub cost: StepCost,
}

impl EngineConfig {
    /// vLLM's defaults on an H100. Blocks: 80 GB x 0.92 - 16 GB weights - 5 GB activations and graphs = 52 GB of KV.
    #[must_use]
    pub fn h100() -> Self {
        Self {
            max_num_seqs: 1024,
            max_num_batched_tokens: 8192,
            block_size: 16,
            num_gpu_blocks: 25_000,
            max_model_len: 32_768,
            max_loras: 4,
            max_cpu_loras: 16,
            reserve_full_prompt: true,
            cost: StepCost::H100,
        }
    }

    /// vLLM's defaults on an L4. Blocks: 24 GB x 0.92 - 16 GB - 1.5 GB = 4.6 GB of KV.
    #[must_use]
    pub fn l4() -> Self {
        Self {
            max_num_seqs: 256,
            max_num_batched_tokens: 2048,
            num_gpu_blocks: 2_200,
            max_model_len: 8192,
            cost: StepCost::L4,
            ..Self::h100()
        }
    }

    /// Blocks that requests can use.
    #[must_use]
    pub fn usable_blocks(&self) -> u32 {
        self.num_gpu_blocks.saturating_sub(1)
    }

    /// The same limits with the impossible ones corrected: zeros become ones, and a request of full length fits the pool.
    pub(super) fn corrected(mut self) -> Self {
        self.max_num_seqs = self.max_num_seqs.max(1);
        self.max_num_batched_tokens = self.max_num_batched_tokens.max(1);
        self.block_size = self.block_size.max(1);
        self.num_gpu_blocks = self.num_gpu_blocks.max(2);
        self.max_cpu_loras = self.max_cpu_loras.max(self.max_loras);
        self.max_model_len = self
            .max_model_len
            .min(self.usable_blocks().saturating_mul(self.block_size));
        self
    }
}
