use super::*;
use crate::limits::SERIES_PER_PAGE_MAX;
use crate::sample::{Activity, Counters, Level};
use crate::units::Tokens;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

mod captures;
mod fixtures;
mod lora;
#[cfg(not(target_arch = "wasm32"))]
mod properties;

fn page(text: &str) -> Sample {
    read(text.as_bytes(), Hints::default())
}

/// A vLLM page with the three load gauges and whatever else is given.
fn vllm(more: &str) -> Sample {
    page(&format!(
        "vllm:num_requests_running{{engine=\"0\",model_name=\"m\"}} 1.0\n\
         vllm:num_requests_waiting{{engine=\"0\",model_name=\"m\"}} 0.0\n\
         vllm:kv_cache_usage_perc{{engine=\"0\",model_name=\"m\"}} 0.25\n{more}"
    ))
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

/// Running, waiting, KV usage (mean = max), capacity.
type Load = (Option<u32>, Option<u32>, Option<f64>, Option<u64>);

#[track_caller]
fn check(text: &str, engine: Engine, status: Status, load: Load) -> Sample {
    let sample = page(text);
    assert_eq!(
        (sample.engine, sample.status),
        (Some(engine), status),
        "{:?}",
        sample.reason
    );
    let capacity = sample.kv_capacity.map(|Tokens(tokens)| tokens);
    assert_eq!((sample.running, sample.waiting, sample.kv_mean, capacity), load);
    sample
}

#[test]
fn trtllm_serve_has_blocks_and_their_size() {
    let sample = check(
        "trtllm_num_requests_running{engine_type=\"trtllm\",model_name=\"m\"} 3.0\n\
         trtllm_num_requests_waiting{engine_type=\"trtllm\",model_name=\"m\"} 1.0\n\
         trtllm_kv_cache_utilization{engine_type=\"trtllm\",model_name=\"m\"} 0.5\n\
         trtllm_kv_cache_host_utilization{engine_type=\"trtllm\",model_name=\"m\"} 0.9\n\
         trtllm_kv_cache_max_blocks{engine_type=\"trtllm\",model_name=\"m\"} 1000.0\n\
         trtllm_kv_cache_tokens_per_block{engine_type=\"trtllm\",model_name=\"m\"} 32.0\n\
         trtllm_prompt_cached_tokens_total{engine_type=\"trtllm\",model_name=\"m\"} 7.0\n\
         trtllm_request_success_total{finished_reason=\"stop\",model_name=\"m\"} 2.0\n\
         trtllm_request_success_total{finished_reason=\"length\",model_name=\"m\"} 3.0\n",
        Engine::Trtllm,
        Status::Ok,
        (Some(3), Some(1), Some(0.5), Some(32_000)),
    );
    assert_eq!(sample.counters.cached_prompt_tokens, Some(7.0));
    assert_eq!(sample.counters.requests, Some(5.0));
}

fn triton(fraction: &str) -> String {
    format!(
        "nv_trt_llm_request_metrics{{model=\"t\",request_type=\"waiting\",version=\"1\"}} 4\n\
         nv_trt_llm_request_metrics{{model=\"t\",request_type=\"context\",version=\"1\"}} 1\n\
         nv_trt_llm_request_metrics{{model=\"t\",request_type=\"scheduled\",version=\"1\"}} 2\n\
         nv_trt_llm_request_metrics{{model=\"t\",request_type=\"active\",version=\"1\"}} 6\n\
         nv_trt_llm_request_metrics{{model=\"t\",request_type=\"max\",version=\"1\"}} 512\n\
         nv_trt_llm_kv_cache_block_metrics{{kv_cache_block_type=\"tokens_per\",model=\"t\",version=\"1\"}} 64\n\
         nv_trt_llm_kv_cache_block_metrics{{kv_cache_block_type=\"used\",model=\"t\",version=\"1\"}} 25\n\
         nv_trt_llm_kv_cache_block_metrics{{kv_cache_block_type=\"free\",model=\"t\",version=\"1\"}} 75\n\
         nv_trt_llm_kv_cache_block_metrics{{kv_cache_block_type=\"max\",model=\"t\",version=\"1\"}} 100\n\
         nv_trt_llm_kv_cache_block_metrics{{kv_cache_block_type=\"fraction\",model=\"t\",version=\"1\"}} {fraction}\n"
    )
}

#[test]
fn triton_tells_its_gauges_apart_by_a_label() {
    let load = |kv| (Some(2), Some(4), Some(kv), Some(6400));
    check(&triton("0.25"), Engine::Triton, Status::Ok, load(0.25));
    // 25 of 100 blocks cannot be 0.4875: one of the two is false, and no one knows which.
    check(&triton("0.4875"), Engine::Triton, Status::Suspect, load(0.4875));
}

#[test]
fn tgi_and_max_have_no_kv_gauge_and_are_ok_without_one() {
    let tgi = "# TYPE tgi_batch_current_size gauge\ntgi_batch_current_size 5\ntgi_queue_size 2\n\
               tgi_batch_current_max_tokens 16000\ntgi_request_generated_tokens_sum 99\n";
    let sample = check(tgi, Engine::Tgi, Status::Ok, (Some(5), Some(2), None, None));
    assert_eq!(sample.counters.generation_tokens, Some(99.0));
    let max = "maxserve_num_requests_running 1\nmaxserve_num_requests_queued 0\n";
    check(max, Engine::Max, Status::Ok, (Some(1), Some(0), None, None));
}

#[test]
fn nim_needs_all_three_names_or_a_configured_engine() {
    let two = "num_requests_running 2\nnum_requests_waiting 1\n";
    let all = format!("{two}gpu_cache_usage_perc 0.5\n");
    check(&all, Engine::Nim, Status::Ok, (Some(2), Some(1), Some(0.5), None));
    assert_eq!(page(two).status, Status::Unknown);
    let configured = read(
        two.as_bytes(),
        Hints {
            engine: Some(Engine::Nim),
            ..Hints::default()
        },
    );
    assert_eq!((configured.engine, configured.running), (Some(Engine::Nim), Some(2)));
}

#[test]
fn the_configured_engine_wins_where_its_families_are_there() {
    let both = "vllm:num_requests_running 1\nsglang:num_running_reqs 2\n";
    let with = |engine| {
        read(
            both.as_bytes(),
            Hints {
                engine,
                ..Hints::default()
            },
        )
    };
    assert_eq!(with(None).running, Some(1));
    assert_eq!(with(Some(Engine::Sglang)).running, Some(2));
    // NIM 2.x shows vLLM's families, and a rollout may change a pod's engine.
    assert_eq!(with(Some(Engine::Nim)).engine, Some(Engine::Vllm));
}

#[test]
fn a_colon_and_an_underscore_are_one() {
    check(
        "vllm_num_requests_running 1\nvllm_num_requests_waiting 2\nvllm_kv_cache_usage_perc 0.5\n",
        Engine::Vllm,
        Status::Ok,
        (Some(1), Some(2), Some(0.5), None),
    );
}

#[test]
fn one_ray_replica_is_the_pod_and_several_are_nobodys() {
    let text = |replica: &str| {
        format!(
            "ray_vllm_num_requests_running{{ReplicaId=\"r1\",WorkerId=\"w1\",engine=\"0\"}} 4\n\
             ray_vllm_num_requests_waiting{{ReplicaId=\"{replica}\",WorkerId=\"w2\",engine=\"0\"}} 1\n\
             ray_vllm_kv_cache_usage_perc{{ReplicaId=\"r1\",WorkerId=\"w1\",engine=\"0\"}} 0.5\n"
        )
    };
    check(
        &text("r1"),
        Engine::Vllm,
        Status::Ok,
        (Some(4), Some(1), Some(0.5), None),
    );
    check(&text("r2"), Engine::Vllm, Status::Unknown, (None, None, None, None));
}

#[track_caller]
fn check_foreign(one: &str, other: &str, foreign: bool) {
    let sample = page(&format!(
        "vllm:num_requests_running{{{one}}} 4\nvllm:num_requests_waiting{{{other}}} 1\n"
    ));
    assert_eq!(sample.status == Status::Unknown, foreign, "{:?}", sample.reason);
    assert_eq!(sample.running.is_none(), foreign);
}

#[test]
fn labels_of_several_servers_make_a_page_foreign() {
    for label in ["instance", "worker_addr", "ReplicaId", "WorkerId", "pod", "server"] {
        let with = |value: &str| format!("{label}=\"{value}\"");
        check_foreign(&with("a"), &with("b"), true);
        check_foreign(&with("a"), &with("a"), false);
        check_foreign(&with("a"), "", false);
        check_foreign(&with("a"), &with(""), false);
    }
    // One instance of a federation: whose, cannot be told.
    check_foreign("instance=\"a\",job=\"vllm\"", "instance=\"a\",job=\"vllm\"", true);
    check_foreign("job=\"vllm\"", "", false);
}

#[test]
fn only_an_entire_text_page_is_read() {
    let line = "vllm:num_requests_running 1";
    let status = |text: &str| page(text).status;
    assert_eq!(status(&format!("{line}\n")), Status::Partial);
    assert_eq!(status(&format!("{line}\r\n")), Status::Partial);
    assert_eq!(status(&format!("{line}\n    ")), Status::Partial);
    assert_eq!(status(&format!("{line}\n# EOF")), Status::Partial);
    assert_eq!(status(line), Status::Reject);
    assert_eq!(status(&format!("{line}\n# EO")), Status::Reject);
    assert_eq!(status(&format!("{line}\n# EOF x")), Status::Reject);
    assert_eq!(status(""), Status::Unknown);
    assert_eq!(status(" \n"), Status::Unknown);
    assert_eq!(status(" {\"error\":1}\n"), Status::Unknown);
    assert_eq!(status("[{\"a\":1}]"), Status::Unknown);
    assert_eq!(status("<html>"), Status::Unknown);
    assert_eq!(
        status("# HELP vllm:num_requests_running x\n# TYPE vllm:num_requests_running gauge\n"),
        Status::Unknown
    );
    assert_eq!(status("python_info 1\n"), Status::Unknown);
    let gzip = read(&[0x1f, 0x8b, 8, 0, b'\n'], Hints::default());
    assert_eq!(
        (gzip.status, gzip.reason),
        (Status::Reject, Some("gzip: ask with Accept-Encoding: identity"))
    );
}

#[test]
fn openmetrics_is_read_like_prometheus_text() {
    let text = "# TYPE vllm:num_requests_running gauge\r\n\
                vllm:num_requests_running{engine=\"0\"} 3 1788860000.5\r\n\
                \tvllm:num_requests_waiting{ engine = \"0\" , } 2 # {trace_id=\"x\"} 1.0 1788860000.5\r\n\
                vllm:kv_cache_usage_perc {} 5e-1\r\n\
                vllm:generation_tokens_total{} 10 1788860000 # {a=\"b\"} 1\r\n# EOF\r\n";
    let sample = check(text, Engine::Vllm, Status::Ok, (Some(3), Some(2), Some(0.5), None));
    assert_eq!(sample.counters.generation_tokens, Some(10.0));
}

#[test]
fn a_value_that_cannot_be_makes_its_field_unknown_and_no_other() {
    for bad in ["NaN", "+Inf", "-Inf", "-1", "1.01", "x", "", "0.5 y", "1e999"] {
        let text =
            format!("vllm:num_requests_running 1\nvllm:num_requests_waiting 2\nvllm:kv_cache_usage_perc {bad}\n");
        check(&text, Engine::Vllm, Status::Partial, (Some(1), Some(2), None, None));
    }
    // The sum over engines cannot be known when one of them is not.
    let text = "vllm:num_requests_running{engine=\"0\"} 1\nvllm:num_requests_running{engine=\"1\"} NaN\n";
    check(text, Engine::Vllm, Status::Partial, (None, None, None, None));
    let text = "vllm:num_requests_running 4294967295\nvllm:num_requests_waiting 4294967296\n";
    check(text, Engine::Vllm, Status::Partial, (Some(u32::MAX), None, None, None));
    let text = "vllm:num_requests_running{x=\"1} 1\nvllm:num_requests_waiting -0.0\n";
    check(text, Engine::Vllm, Status::Partial, (None, Some(0), None, None));
}

#[test]
fn both_names_of_a_gauge_are_one_and_the_new_one_wins() {
    check(
        "vllm:gpu_cache_usage_perc 0.9\nvllm:kv_cache_usage_perc 0.4\n",
        Engine::Vllm,
        Status::Partial,
        (None, None, Some(0.4), None),
    );
    check(
        "vllm:gpu_cache_usage_perc 0.9\n",
        Engine::Vllm,
        Status::Partial,
        (None, None, Some(0.9), None),
    );
}

#[test]
fn unequal_pools_weigh_in_the_mean() {
    let text = "sglang:token_usage{dp_rank=\"0\"} 0.8\nsglang:token_usage{dp_rank=\"1\"} 0.0\n\
                sglang:max_total_num_tokens{dp_rank=\"0\"} 30000\nsglang:max_total_num_tokens{dp_rank=\"1\"} 10000\n";
    let sample = page(text);
    // 24 000 of 40 000 tokens.
    assert!((sample.kv_mean.unwrap() - 0.6).abs() < 1e-9);
    assert_eq!(
        (sample.kv_max, sample.kv_capacity, sample.engines),
        (Some(0.8), Some(Tokens(40_000)), 2)
    );
}

#[test]
fn priorities_without_a_total_are_added() {
    let text = "sglang:num_running_reqs{priority=\"0\",tp_rank=\"0\"} 6\nsglang:num_running_reqs{priority=\"0\",tp_rank=\"1\"} 6\n\
                sglang:num_running_reqs{priority=\"1\",tp_rank=\"0\"} 4\n";
    assert_eq!(page(text).running, Some(10));
}

#[track_caller]
fn check_capacity(labels: &[&str], wanted: Option<u64>) {
    let lines: String = labels
        .iter()
        .map(|labels| format!("vllm:cache_config_info{{{labels}}} 1.0\n"))
        .collect();
    assert_eq!(vllm(&lines).kv_capacity.map(|tokens| tokens.0), wanted);
}

#[test]
fn vllm_capacity_prefers_tokens_per_engine_over_blocks() {
    check_capacity(&[r#"engine="0",block_size="16",num_gpu_blocks="10""#], Some(160));
    check_capacity(
        &[r#"engine="0",block_size="16",num_gpu_blocks="10",kv_cache_size_tokens="150""#],
        Some(150),
    );
    check_capacity(
        &[r#"engine="0",block_size="16",num_gpu_blocks="10",kv_cache_size_tokens="None""#],
        Some(160),
    );
    // The blocks of both engines are in each of the two labels; tokens are of one.
    let blocks = |engine: u8| format!(r#"engine="{engine}",block_size="16",num_gpu_blocks="20""#);
    check_capacity(&[&blocks(0), &blocks(1)], Some(320));
    let tokens = |engine: u8| format!(r#"engine="{engine}",kv_cache_size_tokens="160",num_gpu_blocks="20""#);
    check_capacity(&[&tokens(0), &tokens(1)], Some(320));
}

#[test]
fn an_engine_without_a_capacity_line_counts_like_the_others() {
    let more = "vllm:num_requests_running{engine=\"1\",model_name=\"m\"} 1.0\n\
                vllm:cache_config_info{engine=\"0\",kv_cache_size_tokens=\"160\"} 1.0\n";
    let sample = vllm(more);
    assert_eq!((sample.engines, sample.kv_capacity), (2, Some(Tokens(320))));
}

#[test]
fn a_capacity_that_cannot_be_computed_is_unknown() {
    check_capacity(&[r#"block_size="4",num_gpu_blocks="5000""#], None);
    check_capacity(&[r#"block_size="8",num_gpu_blocks="5000""#], Some(40_000));
    check_capacity(
        &[r#"block_size="16",num_gpu_blocks="5000",mamba_block_size="4096""#],
        None,
    );
    check_capacity(
        &[r#"block_size="16",num_gpu_blocks="5000",mamba_block_size="None""#],
        Some(80_000),
    );
    check_capacity(&[r#"block_size="None",num_gpu_blocks="5000""#], None);
    check_capacity(&[r#"block_size="16",num_gpu_blocks="None""#], None);
    check_capacity(&[r#"block_size="16",num_gpu_blocks="0""#], None);
    check_capacity(&[r#"kv_cache_size_tokens="0""#], None);
    check_capacity(&[r#"kv_cache_size_tokens="1e300""#], None);
}

#[test]
fn sglang_pages_are_the_capacity_where_tokens_are_not_shown() {
    let text = "sglang:num_running_reqs 1\nsglang:cache_config_info{num_pages=\"100\",page_size=\"64\"} 1.0\n";
    assert_eq!(page(text).kv_capacity, Some(Tokens(6400)));
}

#[track_caller]
fn check_sleep(states: &[(&str, f64)], wanted: Option<bool>) {
    let line = |(state, value): &(&str, f64)| {
        format!("vllm:engine_sleep_state{{engine=\"0\",sleep_state=\"{state}\"}} {value}\n")
    };
    assert_eq!(vllm(&states.iter().map(line).collect::<String>()).sleeping, wanted);
}

#[test]
fn a_sleeping_engine_is_seen() {
    check_sleep(&[], None);
    check_sleep(
        &[("awake", 1.0), ("weights_offloaded", 0.0), ("discard_all", 0.0)],
        Some(false),
    );
    check_sleep(
        &[("awake", 0.0), ("weights_offloaded", 1.0), ("discard_all", 0.0)],
        Some(true),
    );
    check_sleep(&[("discard_all", 1.0)], Some(true));
    check_sleep(&[("awake", f64::NAN)], None);
}

#[test]
fn a_full_cache_with_nothing_to_do_is_suspect() {
    let text = |running: u32, usage: f64| {
        format!("vllm:num_requests_running {running}\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc {usage}\n")
    };
    assert_eq!(page(&text(0, 0.99)).status, Status::Suspect);
    assert_eq!(page(&text(0, 0.9)).status, Status::Suspect);
    assert_eq!(page(&text(0, 0.89)).status, Status::Ok);
    assert_eq!(page(&text(1, 0.99)).status, Status::Ok);
    // llama.cpp keeps the prompts of idle slots.
    let llamacpp = "llamacpp:requests_processing 0\nllamacpp:requests_deferred 0\nllamacpp:kv_cache_usage_ratio 0.99\n";
    check(
        llamacpp,
        Engine::LlamaCpp,
        Status::Ok,
        (Some(0), Some(0), Some(0.99), None),
    );
}

#[test]
fn counters_are_summed_over_their_parts_and_not_over_ranks() {
    let sample = page(
        "sglang:cached_tokens_total{cache_source=\"device\",tp_rank=\"0\"} 5\n\
         sglang:cached_tokens_total{tp_rank=\"1\",cache_source=\"device\"} 5\n\
         sglang:cached_tokens_total{cache_source=\"host\",tp_rank=\"0\"} 2\n\
         sglang:prompt_tokens_total{is_streaming=\"true\"} 30\nsglang:prompt_tokens_total{is_streaming=\"false\"} 12\n\
         sglang:generation_tokens_total NaN\n",
    );
    assert_eq!(sample.counters.cached_prompt_tokens, Some(7.0));
    assert_eq!(sample.counters.prompt_tokens, Some(42.0));
    assert_eq!(sample.counters.generation_tokens, None);
    assert_eq!(sample.counters.preemptions, None);
}

#[test]
fn a_counter_too_large_to_be_one_is_unknown_and_never_infinite() {
    let of = |values: [&str; 2]| {
        let parts = ["a", "b"].into_iter().zip(values);
        vllm(
            &parts
                .map(|(part, value)| format!("vllm:prompt_tokens_total{{x=\"{part}\"}} {value}\n"))
                .collect::<String>(),
        )
        .counters
        .prompt_tokens
    };
    assert_eq!(of(["9007199254740992", "2"]), Some(9_007_199_254_740_994.0));
    assert_eq!(of(["9007199254740994", "1"]), None);
    assert_eq!(of(["1e308", "1e308"]), None);
    let llamacpp = page("llamacpp:prompt_tokens_total 1e308\nllamacpp:prompt_tokens_cached_total 1e308\n");
    assert_eq!(llamacpp.counters, Counters::default());
}

#[test]
fn vllm_counts_cached_tokens_by_the_newest_name() {
    let old = "vllm:prefix_cache_hits_total 7\n";
    assert_eq!(vllm(old).counters.cached_prompt_tokens, Some(7.0));
    let both = format!("{old}vllm:prompt_tokens_cached_total 9\n");
    assert_eq!(vllm(&both).counters.cached_prompt_tokens, Some(9.0));
}

#[test]
fn a_page_has_a_largest_size() {
    let with = |bytes: usize| {
        let mut page = b"vllm:num_requests_running 1\n".to_vec();
        page.resize(bytes - 1, b'#');
        page.push(b'\n');
        read(&page, Hints::default()).status
    };
    assert_eq!(with(PAGE_MAX_BYTES), Status::Partial);
    assert_eq!(with(PAGE_MAX_BYTES + 1), Status::Reject);
}

#[test]
fn a_page_has_a_largest_number_of_series_and_old_lora_entries_do_not_count() {
    let with = |n: usize| {
        let line = |i| format!("vllm:num_requests_running{{engine=\"{i}\"}} 1\n");
        page(&(0..n).map(line).collect::<String>())
    };
    assert_eq!(with(SERIES_PER_PAGE_MAX).running, Some(16_384));
    assert_eq!(with(SERIES_PER_PAGE_MAX + 1).status, Status::Reject);
    let log: String = (0..=SERIES_PER_PAGE_MAX)
        .map(|i| lora::both(&format!("n{i}"), &format!("{}", 1000 + i)))
        .collect();
    assert_eq!(vllm(&log).activity.unwrap().running, names(&["n16384"]));
}
