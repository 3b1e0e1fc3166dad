use super::{Page, Pinned, RECORDED};
use crate::engine::{Engine, EngineConfig, Micros, Request};

/// Unix seconds of engine time 0; the fraction is exact in binary.
const STARTED: f64 = 1_796_022_000.5;

/// The recorded server's limits.
fn config() -> EngineConfig {
    EngineConfig {
        max_num_seqs: 4,
        block_size: 32,
        num_gpu_blocks: 200,
        max_model_len: 4096,
        max_loras: 2,
        max_cpu_loras: 4,
        ..EngineConfig::h100()
    }
}

fn request(id: u64, prompt_tokens: u32, output_tokens: u32, adapter: Option<&str>) -> Request {
    Request {
        id,
        chain: Vec::new(),
        prompt_tokens,
        output_tokens,
        adapter: adapter.map(Into::into),
    }
}

struct Pod {
    engine: Engine,
    page: Page,
}

impl Pod {
    fn new(config: EngineConfig) -> Self {
        Self {
            page: Page::new(&config, "base", STARTED, 1.0),
            engine: Engine::new(config),
        }
    }

    /// Submits now, then runs until `until` or the end.
    fn run(&mut self, requests: Vec<Request>, now: Micros, until: Micros) {
        requests
            .into_iter()
            .for_each(|request| self.engine.submit(request, now));
        let mut next = Some(now);
        while let Some(now) = next.filter(|now| *now <= until) {
            let report = self.engine.step(now);
            self.page.observe(&report);
            next = report.next_wakeup;
        }
    }

    fn text(&mut self) -> String {
        let gauges = self.engine.gauges(0).clone();
        self.page.render(&gauges, self.engine.counters())
    }

    /// The value of the only sample whose head is this.
    #[track_caller]
    fn value(&mut self, head: &str) -> f64 {
        let text = self.text();
        let mut values = text
            .lines()
            .filter_map(|line| line.strip_prefix(head)?.strip_prefix(' '));
        let value = values.next().unwrap_or_else(|| panic!("no sample {head}"));
        assert_eq!(values.next(), None);
        value.parse().expect("a number")
    }

    #[track_caller]
    fn gauges(&mut self, running: f64, waiting: f64, deferred: f64) {
        assert_eq!(
            self.value(r#"vllm:num_requests_running{engine="0",model_name="base"}"#),
            running
        );
        assert_eq!(
            self.value(r#"vllm:num_requests_waiting{engine="0",model_name="base"}"#),
            waiting
        );
        let by_reason = |reason: &str| {
            format!(r#"vllm:num_requests_waiting_by_reason{{engine="0",model_name="base",reason="{reason}"}}"#)
        };
        assert_eq!(self.value(&by_reason("deferred")), deferred);
        assert_eq!(self.value(&by_reason("capacity")), waiting - deferred);
    }

    fn lora_log(&mut self) -> Vec<(String, f64)> {
        let text = self.text();
        let lines = text
            .lines()
            .filter_map(|line| line.strip_prefix("vllm:lora_requests_info")?.rsplit_once(' '));
        lines
            .map(|(head, at)| (head.to_owned(), at.parse().expect("a number")))
            .collect()
    }
}

#[test]
fn an_idle_page_is_the_recorded_one_but_for_its_clocks() {
    let text = Pod::new(config()).text();
    assert_eq!(text.lines().count(), RECORDED.lines().count());
    for (ours, recorded) in text.lines().zip(RECORDED.lines()) {
        let clock = |line: &str| {
            let name = line.split(['{', ' ']).next().unwrap_or_default().to_owned();
            name.ends_with("_created") || name == "process_start_time_seconds"
        };
        let cut = |line: &str| match line.rsplit_once(' ') {
            Some((head, _)) if clock(line) => head.to_owned(),
            _ => line.to_owned(),
        };
        assert_eq!(cut(ours), cut(recorded));
    }
    assert!(text.ends_with('\n'));
    assert!(text.contains("process_start_time_seconds 1.7960220005e+09\n"));
}

#[test]
fn another_pod_has_its_own_name_and_size() {
    let small = EngineConfig {
        block_size: 16,
        num_gpu_blocks: 1000,
        max_model_len: 4000,
        max_loras: 0,
        ..config()
    };
    let mut page = Page::new(&small, "a \"b\"", STARTED, 1.0);
    let text = page.render(
        &Engine::new(small.clone()).gauges(0).clone(),
        Engine::new(small).counters(),
    );
    assert!(text.contains(r#"vllm:num_requests_running{engine="0",model_name="a \"b\""} 0.0"#));
    for label in [
        r#",block_size="16","#,
        r#",effective_attention_block_size="16","#,
        r#",kv_cache_size_tokens="16000","#,
        r#",num_gpu_blocks="1000","#,
        r#",kv_cache_max_concurrency="4.0","#,
    ] {
        assert!(text.contains(label), "{label}");
    }
    assert!(!text.contains("lora"), "without LoRA there is no LoRA family at all");
    page.pin(Pinned::default(), 0);
}

#[test]
fn a_busy_pod_shows_batch_queue_and_blocks() {
    let mut pod = Pod::new(config());
    // Five prompts of 320 tokens = 10 blocks each; four places. Each has its first token after the first step.
    let requests = (1..=5).map(|id| request(id, 320, 100, None)).collect();
    pod.run(requests, 0, 100_000);
    pod.gauges(4.0, 1.0, 0.0);
    // After a few decodes each holds 11 blocks of the 199 usable.
    let usage = pod.value(r#"vllm:kv_cache_usage_perc{engine="0",model_name="base"}"#);
    assert_eq!(usage, 44.0 / 199.0);
    assert_eq!(
        pod.value(r#"vllm:prompt_tokens_total{engine="0",model_name="base"}"#),
        1280.0
    );
}

#[test]
fn a_finished_request_is_counted_and_timed() {
    let mut pod = Pod::new(config());
    // 7 ms + 10 x 32 µs, then two decodes of 7.065 ms.
    pod.run(vec![request(1, 10, 3, None)], 0, Micros::MAX);
    pod.page.count_end(false);
    pod.page.count_end(true);
    let success = |reason: &str| {
        format!(r#"vllm:request_success_total{{engine="0",finished_reason="{reason}",model_name="base"}}"#)
    };
    assert_eq!(pod.value(&success("length")), 1.0);
    assert_eq!(pod.value(&success("stop")), 1.0);
    assert_eq!(
        pod.value(r#"vllm:generation_tokens_total{engine="0",model_name="base"}"#),
        3.0
    );
    let ttft =
        |le: &str| format!(r#"vllm:time_to_first_token_seconds_bucket{{engine="0",le="{le}",model_name="base"}}"#);
    assert_eq!(pod.value(&ttft("0.005")), 0.0);
    assert_eq!(pod.value(&ttft("0.01")), 1.0);
    assert_eq!(pod.value(&ttft("+Inf")), 1.0);
    assert_eq!(
        pod.value(r#"vllm:time_to_first_token_seconds_sum{engine="0",model_name="base"}"#),
        0.00732
    );
    assert_eq!(
        pod.value(r#"vllm:inter_token_latency_seconds_count{engine="0",model_name="base"}"#),
        2.0
    );
    assert_eq!(
        pod.value(r#"vllm:request_prompt_tokens_bucket{engine="0",le="10.0",model_name="base"}"#),
        1.0
    );
    // Three steps: 10 tokens, 1 and 1.
    assert_eq!(
        pod.value(r#"vllm:iteration_tokens_total_sum{engine="0",model_name="base"}"#),
        12.0
    );
    pod.gauges(0.0, 0.0, 0.0);
}

#[test]
fn the_lora_log_keeps_every_state_with_both_lists_alike_and_the_newest_is_the_latest() {
    let mut pod = Pod::new(config());
    assert!(pod.lora_log().is_empty(), "nothing before the first step");
    let adapters = [(1, "sql", 40), (2, "ch\"at", 2), (3, "fr", 2)];
    let requests = adapters
        .map(|(id, name, output)| request(id, 32, output, Some(name)))
        .to_vec();
    pod.run(requests, 0, Micros::MAX);
    let state =
        |names: &str| format!(r#"{{max_lora="2",running_lora_adapters="{names}",waiting_lora_adapters="{names}"}}"#);
    let log = pod.lora_log();
    let heads: Vec<_> = log.iter().map(|entry| entry.0.clone()).collect();
    // fr waits for a slot and is not listed before its first token.
    assert_eq!(
        heads,
        [state(r#"sql,ch\"at"#), state("sql"), state("sql,fr"), state("")]
    );
    assert!(
        log.iter().all(|entry| entry.1 <= log[3].1),
        "the idle state is the newest: {log:?}"
    );
    assert!(log[1].1 > log[2].1, "sql alone was true again after fr");
}

#[test]
fn pinned_numbers_win_until_they_are_let_go() {
    let mut pod = Pod::new(config());
    let pinned = Pinned {
        running: Some(7.0),
        waiting: Some(3.0),
        kv_usage: Some(0.97),
        adapters_running: Some(vec!["sql".into()]),
        adapters_waiting: Some(vec!["fr".into(), "de".into()]),
        sleeping: Some(true),
        ..Pinned::default()
    };
    pod.page.pin(pinned, 2_000_000);
    pod.run(vec![request(1, 32, 2, Some("chat"))], 2_000_000, Micros::MAX);
    pod.gauges(7.0, 3.0, 0.0);
    let log = [(
        r#"{max_lora="2",running_lora_adapters="sql",waiting_lora_adapters="fr,de"}"#.to_owned(),
        STARTED + 2.0,
    )];
    assert_eq!(pod.lora_log(), log);
    let sleep = r#"vllm:engine_sleep_state{engine="0",model_name="base",sleep_state="awake"}"#;
    assert_eq!(pod.value(sleep), 0.0);
    pod.page.pin(Pinned::default(), 3_000_000);
    pod.gauges(0.0, 0.0, 0.0);
    assert_eq!(pod.value(sleep), 1.0);
}

#[test]
fn a_misspelt_pin_is_an_error() {
    assert!(serde_json::from_str::<Pinned>(r#"{"runing": 1}"#).is_err());
}
