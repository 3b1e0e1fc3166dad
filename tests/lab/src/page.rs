//! A short metrics page: the families of a vLLM page that mean something to a router, in its words. The full page, made
//! from a recording, is in the simulator; a test holds both against each other. Short ones keep text, and thus the real
//! reader, in every scrape of every run.

use crate::fleet::{BASE_MODEL, EPOCH_SECONDS, Scrape};
use berth_tests_simulator::engine::{Adapter, EngineConfig};
use std::fmt::Write as _;

/// The page.
#[must_use]
pub fn short(config: &EngineConfig, scrape: &Scrape) -> String {
    let (gauges, counters) = (&scrape.gauges, &scrape.counters);
    let mut text = String::with_capacity(2048);
    let labels = format!(r#"engine="0",model_name="{BASE_MODEL}""#);
    let mut line = |name: &str, more: &str, value: f64| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "vllm:{name}{{{labels}{more}}} {value:?}");
    };
    line("num_requests_running", "", gauges.running.into());
    line("num_requests_waiting", "", scrape.waiting().into());
    line(
        "num_requests_waiting_by_reason",
        r#",reason="capacity""#,
        gauges.waiting_capacity.into(),
    );
    line(
        "num_requests_waiting_by_reason",
        r#",reason="deferred""#,
        gauges.waiting_deferred.into(),
    );
    line("engine_sleep_state", r#",sleep_state="awake""#, 1.0);
    line("kv_cache_usage_perc", "", gauges.kv_usage);
    let tokens = u64::from(config.num_gpu_blocks) * u64::from(config.block_size);
    let info = format!(
        r#",block_size="{}",kv_cache_size_tokens="{tokens}",num_gpu_blocks="{}""#,
        config.block_size, config.num_gpu_blocks
    );
    line("cache_config_info", &info, 1.0);
    line("prefix_cache_queries_total", "", counters.prefix_queries as f64);
    line("prefix_cache_hits_total", "", counters.prefix_hits as f64);
    line("num_preemptions_total", "", counters.preemptions as f64);
    line("prompt_tokens_total", "", counters.prompt_tokens as f64);
    line("prompt_tokens_cached_total", "", counters.cached_prompt_tokens as f64);
    line("generation_tokens_total", "", counters.generation_tokens as f64);
    line(
        "request_success_total",
        r#",finished_reason="stop""#,
        counters.finished as f64,
    );
    let started = EPOCH_SECONDS as f64 + scrape.started as f64 / 1e6;
    let _ = writeln!(text, "process_start_time_seconds {started:?}");
    if config.max_loras > 0 && !(gauges.at == 0 && gauges.adapters.is_empty()) {
        let names = gauges.adapters.iter().map(|name| &**name).collect::<Vec<_>>().join(",");
        let at = EPOCH_SECONDS as f64 + gauges.at as f64 / 1e6;
        let _ = writeln!(
            text,
            r#"vllm:lora_requests_info{{max_lora="{}",running_lora_adapters="{names}",waiting_lora_adapters="{names}"}} {at:?}"#,
            config.max_loras
        );
    }
    text
}

/// The models page of a pod.
#[must_use]
pub fn models(adapters: &[Adapter], max_model_len: u32) -> String {
    let mut text = format!(
        r#"{{"object":"list","data":[{{"id":"{BASE_MODEL}","object":"model","root":"{BASE_MODEL}","parent":null,"max_model_len":{max_model_len}}}"#
    );
    for name in adapters {
        let _ = write!(
            text,
            r#",{{"id":"{name}","object":"model","root":"/adapters/{name}","parent":"{BASE_MODEL}","max_model_len":null}}"#
        );
    }
    text.push_str("]}");
    text
}
