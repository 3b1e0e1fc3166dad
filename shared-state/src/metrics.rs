//! Exposition text -> [`Sample`]. Reading never fails: what cannot be read is unknown.
//!
//! One pass over the lines; a line of an unwanted family costs a few comparisons and no allocation,
//! since histograms are over nine tenths of a page. Prometheus text and OpenMetrics are read alike.
//!
//! | engine | running, waiting | KV usage | KV capacity | beside |
//! |---|---|---|---|---|
//! | vLLM | `vllm:num_requests_running`, `_waiting` | `kv_cache_usage_perc`, before 0.9.2 `gpu_cache_usage_perc` | `cache_config_info`: `kv_cache_size_tokens` per engine, else `num_gpu_blocks` (summed by the engine) x `block_size` | `num_requests_waiting_by_reason`, `engine_sleep_state`, `lora_requests_info`, `lora_adapter_loaded` |
//! | SGLang | `sglang:num_running_reqs`, `num_queue_reqs` | `token_usage` | `max_total_num_tokens` per `dp_rank`, else `cache_config_info` pages x size | |
//! | trtllm-serve | `trtllm_num_requests_running`, `_waiting` | `kv_cache_utilization` | `kv_cache_max_blocks` x `kv_cache_tokens_per_block` | |
//! | Triton | `nv_trt_llm_request_metrics` `scheduled`, `waiting` | `nv_trt_llm_kv_cache_block_metrics` `fraction` | the same, `max` x `tokens_per` | |
//! | LMDeploy | `lmdeploy:num_requests_running`, `_waiting` | `gpu_cache_usage_perc` | | |
//! | llama.cpp | `llamacpp:requests_processing`, `_deferred` | `kv_cache_usage_ratio` until 2025-05 | | |
//! | TGI | `tgi_batch_current_size`, `tgi_queue_size` | | | |
//! | MAX | `maxserve_num_requests_running`, `_queued` | only a lifetime histogram: unread | | |
//! | NIM 1.x | `num_requests_running`, `_waiting` | `gpu_cache_usage_perc` | | only all three together, or configured |
//!
//! `:` and `_` after the prefix are one, and Ray's `ray_` in front is dropped. Counters and
//! `process_start_time_seconds` are read where an engine has them. Counts are summed over
//! data-parallel engines, fractions are averaged; within one engine ranks and processes repeat the
//! same number, so the largest counts. Two names of one gauge are never added.
//!
//! What is deliberately not here: the cap on what is downloaded and gunzip (the caller), and
//! everything that needs two pages (frozen gauges, restarts, rates: the poller).

mod dialect;
mod gauges;
mod judge;
mod line;
mod lora;
mod scan;
#[cfg(test)]
mod tests;

use crate::limits::PAGE_MAX_BYTES;
use crate::sample::{Engine, Sample, Status};
use crate::units::UnixMillis;

/// What helps to read a page.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hints<'a> {
    /// The configured engine; `None` = detect. A page without its families is detected too: a NIM
    /// 2.x page is vLLM's, and a pod may change its engine in a rollout.
    pub engine: Option<Engine>,
    /// Adapter names from /v1/models: they resolve commas inside names, longest first.
    pub known_adapters: &'a [String],
    /// The time, for LoRA clocks that several processes summed; zero = unknown, newest wins.
    pub now: UnixMillis,
}

/// Reads one page.
#[must_use]
pub fn read(page: &[u8], hints: Hints<'_>) -> Sample {
    if let Err((status, reason)) = sniff(page) {
        return Sample::empty(status, Some(reason));
    }
    let Some(found) = scan::scan(page, hints.now) else {
        return Sample::empty(Status::Reject, Some("more load series than one pod can have"));
    };
    let Some(engine) = found.engine(hints.engine) else {
        return Sample::empty(Status::Unknown, Some("no family of a known model server"));
    };
    if let Some(reason) = found.origin.foreign() {
        return Sample {
            engine: Some(engine),
            ..Sample::empty(Status::Unknown, Some(reason))
        };
    }
    let mut sample = Sample {
        engine: Some(engine),
        ..Sample::empty(Status::Ok, None)
    };
    let series = found.of(engine);
    let gauges = gauges::read(&mut sample, &series);
    if engine == Engine::Vllm {
        lora::read(&mut sample, &found, &series, hints.known_adapters);
    }
    (sample.status, sample.reason) = judge::judge(engine, &sample, gauges);
    sample
}

/// Is this a whole page of text? Half a page reads as a calm pod.
fn sniff(page: &[u8]) -> Result<(), (Status, &'static str)> {
    let text = page.trim_ascii();
    match text.first() {
        None => return Err((Status::Unknown, "the page is empty")),
        Some(b'[' | b'{') => return Err((Status::Unknown, "JSON, not metrics text: is the path right?")),
        Some(b'<') => return Err((Status::Unknown, "HTML, not metrics text: is the path right?")),
        Some(_) => {}
    }
    if page.starts_with(&[0x1f, 0x8b]) {
        return Err((Status::Reject, "gzip: ask with Accept-Encoding: identity"));
    }
    if page.len() > PAGE_MAX_BYTES {
        return Err((Status::Reject, "larger than a metrics page may be"));
    }
    let last = page.rsplit(|&byte| byte == b'\n').next().unwrap_or(page);
    let whole = last.trim_ascii().is_empty() || (last.len() < page.len() && last.trim_ascii() == b"# EOF");
    if whole {
        Ok(())
    } else {
        Err((Status::Reject, "cut off: no newline at the end"))
    }
}
