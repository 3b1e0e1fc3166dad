//! The metrics page: one recorded from a real vLLM 0.32, with the numbers that an engine moves replaced.
//!
//! Families, their order, HELP texts, labels and number forms are the recording's, so no one here had to remember them.
//! What an engine does not model (Python's garbage collector, FLOP estimates, HTTP counters) keeps its recorded value.

mod histogram;
mod number;
#[cfg(test)]
mod tests;

use crate::engine::{Counters, EngineConfig, EventKind, Gauges, Micros, StepReport};
use histogram::Histogram;
use number::number;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt::Write as _;

/// Recorded before the first request, with LoRA on.
const RECORDED: &str = include_str!("../../fixtures/captures/vllm-metrics-idle.txt");

/// The real log of LoRA states grows without bound; this one stops here, far above what a test makes.
const LORA_SERIES_MAX: usize = 10_000;

/// Numbers that a test pins, whatever the engine does. Absent = the engine's.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Pinned {
    /// Requests in the batch.
    pub running: Option<f64>,
    /// Waiting requests, all reasons.
    pub waiting: Option<f64>,
    /// Of these, deferred; 0 when only `waiting` is pinned.
    pub waiting_deferred: Option<f64>,
    /// KV usage, 0 to 1.
    pub kv_usage: Option<f64>,
    /// Newest entry of the LoRA log. An empty list is an idle pod's entry.
    pub adapters_running: Option<Vec<String>>,
    /// Waiting list of that entry; the same as the running one when absent, as vLLM V1 writes it.
    pub adapters_waiting: Option<Vec<String>>,
    /// Preemptions since the start.
    pub preemptions: Option<f64>,
    /// The engine sleeps (level 1).
    pub sleeping: Option<bool>,
}

enum Line {
    /// A comment, as recorded.
    Comment(&'static str),
    Sample {
        /// Name and labels, ready to print.
        head: String,
        /// Name plus the label that tells it from its siblings, such as `vllm:…_total/local_compute`.
        key: String,
        recorded: &'static str,
    },
    LoraLog,
}

struct LoraState {
    running: String,
    waiting: String,
    /// Unix seconds when it was last true.
    at: f64,
}

/// A pod's page. It sees every step, because histograms and the LoRA log remember what gauges forget.
pub struct Page {
    lines: Vec<Line>,
    histograms: HashMap<String, Histogram>,
    lora: Vec<LoraState>,
    max_loras: u32,
    pinned: Pinned,
    /// Unix seconds of the engine's time 0.
    started: f64,
    /// Engine seconds per real second.
    speed: f64,
    stopped: u64,
    at_length: u64,
}

/// A load report as text, as vLLM writes it into `endpoint-load-metrics`.
#[must_use]
pub fn load_report(waiting: f64, kv_usage: f64) -> String {
    format!("TEXT named_metrics.num_requests_waiting={waiting:?}, named_metrics.kv_cache_usage_perc={kv_usage:?}")
}

impl Page {
    /// The page of a pod that serves `model` and has done nothing yet.
    #[must_use]
    pub fn new(config: &EngineConfig, model: &str, started: f64, speed: f64) -> Self {
        let mut page = Self {
            lines: Vec::new(),
            histograms: HashMap::new(),
            lora: Vec::new(),
            max_loras: config.max_loras,
            pinned: Pinned::default(),
            started,
            speed,
            stopped: 0,
            at_length: 0,
        };
        RECORDED.lines().for_each(|line| page.add_recorded(line, config, model));
        page
    }

    fn add_recorded(&mut self, line: &'static str, config: &EngineConfig, model: &str) {
        let lora = line.contains("vllm:lora_requests_info");
        if lora && self.max_loras == 0 {
            return;
        }
        let Some((head, recorded)) = line.rsplit_once(' ').filter(|_| !line.starts_with('#')) else {
            self.lines.push(Line::Comment(line));
            if lora && line.starts_with("# TYPE") {
                self.lines.push(Line::LoraLog);
            }
            return;
        };
        let name = head.split('{').next().unwrap_or(head);
        if let Some(family) = name.strip_suffix("_bucket")
            && let Some(bound) = label(head, "le").and_then(|bound| bound.parse().ok())
        {
            self.histograms.entry(family.to_owned()).or_default().add_bucket(bound);
        }
        let tells = ["le", "reason", "source", "sleep_state", "finished_reason"];
        let key = tells
            .iter()
            .find_map(|tell| label(head, tell))
            .map_or(name.to_owned(), |tell| format!("{name}/{tell}"));
        let mut head = with_label(head, "model_name", model);
        if name == "vllm:cache_config_info" {
            head = with_cache_config(&head, config);
        }
        self.lines.push(Line::Sample { head, key, recorded });
    }

    fn unix(&self, at: Micros) -> f64 {
        self.started + self.seconds(at)
    }

    fn seconds(&self, time: Micros) -> f64 {
        time as f64 / 1e6 / self.speed
    }

    /// Takes in what an engine did.
    pub fn observe(&mut self, report: &StepReport) {
        for event in &report.events {
            match &event.kind {
                EventKind::FirstToken { after } => {
                    self.record("vllm:time_to_first_token_seconds", self.seconds(*after));
                }
                EventKind::Token { gap } => self.record("vllm:inter_token_latency_seconds", self.seconds(*gap)),
                EventKind::Finished(done) => self.observe_end(event.at, done),
                EventKind::Rejected(_) => {}
            }
        }
        for step in &report.steps {
            self.record(
                "vllm:iteration_tokens_total",
                f64::from(step.prefill_tokens + step.decode_sequences),
            );
            if self.pinned.adapters_running.is_none() {
                let names: Vec<&str> = step.adapters.iter().map(|name| &**name).collect();
                let running = names.join(",");
                self.log_lora(running.clone(), running, self.unix(step.at));
            }
        }
    }

    fn observe_end(&mut self, at: Micros, done: &crate::engine::Done) {
        let output = f64::from(done.output_tokens);
        let decode = self.seconds(at - done.first_token);
        let per_token = if done.output_tokens > 1 {
            decode / (output - 1.0)
        } else {
            0.0
        };
        for (family, value) in [
            ("vllm:request_prompt_tokens", f64::from(done.prompt_tokens)),
            ("vllm:request_generation_tokens", output),
            ("vllm:request_max_num_generation_tokens", output),
            ("vllm:request_params_n", 1.0),
            ("vllm:request_params_max_tokens", output),
            ("vllm:request_time_per_output_token_seconds", per_token),
            ("vllm:e2e_request_latency_seconds", self.seconds(at - done.arrived)),
            (
                "vllm:request_queue_time_seconds",
                self.seconds(done.admitted - done.arrived),
            ),
            ("vllm:request_inference_time_seconds", self.seconds(at - done.admitted)),
            (
                "vllm:request_prefill_time_seconds",
                self.seconds(done.first_token - done.admitted),
            ),
            ("vllm:request_decode_time_seconds", decode),
            ("vllm:request_num_preemptions", f64::from(done.preemptions)),
            (
                "vllm:request_prefill_kv_computed_tokens",
                f64::from(done.prompt_tokens - done.cached_tokens),
            ),
        ] {
            self.record(family, value);
        }
    }

    /// Counts the end of a request: by its own choice, or at its length limit.
    pub fn count_end(&mut self, stopped: bool) {
        *(if stopped {
            &mut self.stopped
        } else {
            &mut self.at_length
        }) += 1;
    }

    fn record(&mut self, family: &str, value: f64) {
        if let Some(histogram) = self.histograms.get_mut(family) {
            histogram.record(value);
        }
    }

    /// Pins numbers; what is absent follows the engine again. A pinned LoRA state enters the log now.
    pub fn pin(&mut self, pinned: Pinned, now: Micros) {
        if let Some(running) = &pinned.adapters_running {
            let waiting = pinned.adapters_waiting.as_ref().unwrap_or(running);
            self.log_lora(running.join(","), waiting.join(","), self.unix(now));
        }
        self.pinned = pinned;
    }

    fn log_lora(&mut self, running: String, waiting: String, at: f64) {
        if let Some(state) = self
            .lora
            .iter_mut()
            .find(|state| state.running == running && state.waiting == waiting)
        {
            state.at = at;
        } else if self.lora.len() < LORA_SERIES_MAX {
            self.lora.push(LoraState { running, waiting, at });
        }
    }

    /// Waiting requests and KV usage as the page shows them; an answer's load header shows the same two.
    #[must_use]
    pub fn load(&self, gauges: &Gauges) -> (f64, f64) {
        let waiting = f64::from(gauges.waiting_capacity + gauges.waiting_deferred);
        (
            self.pinned.waiting.unwrap_or(waiting),
            self.pinned.kv_usage.unwrap_or(gauges.kv_usage),
        )
    }

    /// The page's text.
    #[must_use]
    pub fn render(&self, gauges: &Gauges, counters: &Counters) -> String {
        let mut text = String::with_capacity(64 << 10);
        for line in &self.lines {
            // Writing to a String cannot fail.
            let _ = match line {
                Line::Comment(comment) => writeln!(text, "{comment}"),
                Line::Sample { head, key, recorded } => match self.value(key, gauges, counters) {
                    Some(value) => writeln!(text, "{head} {}", number(value)),
                    None => writeln!(text, "{head} {recorded}"),
                },
                Line::LoraLog => {
                    self.render_lora(&mut text);
                    Ok(())
                }
            };
        }
        text
    }

    fn render_lora(&self, text: &mut String) {
        for state in &self.lora {
            let _ = writeln!(
                text,
                r#"vllm:lora_requests_info{{max_lora="{}",running_lora_adapters="{}",waiting_lora_adapters="{}"}} {}"#,
                self.max_loras,
                escaped(&state.running),
                escaped(&state.waiting),
                number(state.at)
            );
        }
    }

    /// The number under this key; none = as recorded.
    fn value(&self, key: &str, gauges: &Gauges, counters: &Counters) -> Option<f64> {
        let (waiting, kv_usage) = self.load(gauges);
        let deferred = match (self.pinned.waiting_deferred, self.pinned.waiting) {
            (Some(deferred), _) => deferred,
            (None, Some(_)) => 0.0,
            (None, None) => f64::from(gauges.waiting_deferred),
        };
        let sleeping = self.pinned.sleeping.unwrap_or(false);
        let count = |count: u64| Some(count as f64);
        let name = key.split('/').next().unwrap_or(key);
        match key {
            "process_start_time_seconds" => Some(self.started),
            _ if name.ends_with("_created") => Some(self.started),
            "vllm:num_requests_running" => Some(self.pinned.running.unwrap_or(f64::from(gauges.running))),
            "vllm:num_requests_waiting" => Some(waiting),
            "vllm:num_requests_waiting_by_reason/capacity" => Some(waiting - deferred),
            "vllm:num_requests_waiting_by_reason/deferred" => Some(deferred),
            "vllm:engine_sleep_state/awake" => Some(f64::from(u8::from(!sleeping))),
            "vllm:engine_sleep_state/weights_offloaded" => Some(f64::from(u8::from(sleeping))),
            "vllm:kv_cache_usage_perc" => Some(kv_usage),
            "vllm:prefix_cache_queries_total" => count(counters.prefix_queries),
            "vllm:prefix_cache_hits_total" => count(counters.prefix_hits),
            "vllm:num_preemptions_total" => self.pinned.preemptions.or(count(counters.preemptions)),
            "vllm:prompt_tokens_total" => count(counters.prompt_tokens),
            "vllm:prompt_tokens_by_source_total/local_compute" => {
                count(counters.prompt_tokens - counters.cached_prompt_tokens)
            }
            "vllm:prompt_tokens_by_source_total/local_cache_hit"
            | "vllm:prompt_tokens_cached_total"
            | "vllm:prompt_tokens_cached_by_source_total/device" => count(counters.cached_prompt_tokens),
            "vllm:generation_tokens_total" => count(counters.generation_tokens),
            "vllm:request_success_total/stop" => count(self.stopped),
            "vllm:request_success_total/length" => count(self.at_length),
            _ => self.histogram_value(key),
        }
    }

    fn histogram_value(&self, key: &str) -> Option<f64> {
        if let Some((family, bound)) = key.split_once("_bucket/") {
            return self.histograms.get(family)?.at_most(bound.parse().ok()?);
        }
        if let Some(family) = key.strip_suffix("_sum") {
            return Some(self.histograms.get(family)?.sum());
        }
        Some(self.histograms.get(key.strip_suffix("_count")?)?.count())
    }
}

/// Where a label's value stands in `name{label="value",…}`. Recorded values hold no quotes.
fn label_span(head: &str, label: &str) -> Option<(usize, usize)> {
    let start = ["{", ","].iter().find_map(|before| {
        let start = format!("{before}{label}=\"");
        head.find(&start).map(|at| at + start.len())
    })?;
    let length = head.get(start..)?.find('"')?;
    Some((start, start + length))
}

fn label<'a>(head: &'a str, label: &str) -> Option<&'a str> {
    let (start, end) = label_span(head, label)?;
    head.get(start..end)
}

/// The same head with another value of this label, if it has it.
fn with_label(head: &str, label: &str, value: &str) -> String {
    let mut head = head.to_owned();
    if let Some((start, end)) = label_span(&head, label) {
        head.replace_range(start..end, &escaped(value));
    }
    head
}

fn with_cache_config(head: &str, config: &EngineConfig) -> String {
    let tokens = u64::from(config.num_gpu_blocks) * u64::from(config.block_size);
    let concurrency = tokens as f64 / f64::from(config.max_model_len.max(1));
    let blocks = config.num_gpu_blocks.to_string();
    let block_size = config.block_size.to_string();
    [
        ("block_size", block_size.as_str()),
        ("effective_attention_block_size", &block_size),
        ("kv_cache_max_concurrency", &format!("{concurrency:?}")),
        ("kv_cache_size_tokens", &tokens.to_string()),
        ("num_gpu_blocks", &blocks),
        ("num_gpu_blocks_override", &blocks),
    ]
    .into_iter()
    .fold(head.to_owned(), |head, (label, value)| with_label(&head, label, value))
}

fn escaped(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n")
}
