//! A pod as a scenario describes it, and the pages it serves: vLLM's own text, with the families and label
//! forms of tests/fixtures/captures/vllm-metrics-lora-waiting.txt.
//!
//! A pod's numbers are what its page says, whatever was sent to it: a scenario decides what is seen.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use serde::Deserialize;
use serde_json::{Value, json};

/// A pod.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Pod {
    pub running: u32,
    pub waiting: u32,
    /// KV usage, 0 to 1; `null` = the page does not say.
    pub kv: Option<f64>,
    /// `null` = the page does not say.
    pub capacity_tokens: Option<u64>,
    pub max_model_len: u64,
    /// Base model.
    pub base: String,
    /// LoRA is on.
    pub adapters: Option<Adapters>,
    pub sleeping: bool,
    /// Nothing on the page moves.
    pub frozen: bool,
    /// It generates fewer tokens for a while.
    pub slow: Option<Slow>,
    /// Each starts another process.
    pub restarts: u32,
    /// Prompt tokens of an ordinary request, as the counters have it.
    pub prompt_each: u32,
    /// What /metrics answers: `ok`, `refused`, `silent`, `unauthorized`, `cut`, `comments`, `json`, or a
    /// file of tests/fixtures/metrics.
    pub page: String,
    /// What /v1/models answers: `ok`, `refused`, `silent`, `missing`.
    pub models_page: String,
    /// What a request gets: 200, another status, or 0 = no connection.
    pub serve: u16,
    /// Body of its answers.
    pub says: String,
    /// Health in Envoy's discovery.
    pub health: String,
    /// Envoy's discovery has it.
    pub listed: bool,
    /// Its labels in the answers of discovery, as far as each kind has them.
    pub labels: BTreeMap<String, String>,
    /// False = no connection for anything.
    pub up: bool,
}

/// A while, in seconds since the scenario's start, in which a pod is so many times slower.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slow {
    pub from: f64,
    pub until: f64,
    pub times: f64,
}

/// Its LoRA adapters.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Adapters {
    /// On /v1/models.
    pub registered: Vec<String>,
    /// In flight: running.
    pub active: Vec<String>,
    /// In flight: waiting. Absent = the same list as `active`, as vLLM writes it.
    pub waiting: Option<Vec<String>>,
    /// Slots.
    pub max: u32,
    /// In GPU memory; absent = the page does not say.
    pub resident: Option<Vec<String>>,
}

impl Default for Pod {
    fn default() -> Self {
        Self {
            running: 0,
            waiting: 0,
            kv: Some(0.0),
            capacity_tokens: Some(100_000),
            max_model_len: 32_768,
            base: "base".to_owned(),
            adapters: None,
            sleeping: false,
            frozen: false,
            slow: None,
            restarts: 0,
            prompt_each: 500,
            page: "ok".to_owned(),
            models_page: "ok".to_owned(),
            serve: 200,
            says: String::new(),
            health: "HEALTHY".to_owned(),
            listed: true,
            labels: BTreeMap::new(),
            up: true,
        }
    }
}

/// What a call to a pod comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Page {
    /// An answer.
    Answer(u16, String),
    /// Nobody listens.
    Refused,
    /// Nothing until the caller's patience ends.
    Silent,
}

impl Slow {
    /// Seconds in which the pod would have done as much at its usual speed.
    fn moved(self, seconds: f64) -> f64 {
        let lost = seconds.clamp(self.from, self.until.max(self.from)) - self.from;
        seconds - lost * (1.0 - 1.0 / self.times)
    }
}

impl Pod {
    /// Takes the file's keys over the present state.
    ///
    /// # Errors
    /// An unknown key or a value of another type.
    pub fn with(before: &Value, keys: &Value) -> Result<(Self, Value), String> {
        let mut merged = before.clone();
        merge(&mut merged, keys);
        let pod = serde_json::from_value(merged.clone()).map_err(|error| error.to_string())?;
        Ok((pod, merged))
    }

    /// What a GET of this path gets, `seconds` after the scenario's start at Unix time `start`.
    #[must_use]
    pub fn get(&self, path: &str, start: f64, seconds: f64) -> Page {
        if !self.up {
            return Page::Refused;
        }
        let said = if path == "/v1/models" {
            &self.models_page
        } else {
            &self.page
        };
        match said.as_str() {
            "refused" => Page::Refused,
            "silent" => Page::Silent,
            "unauthorized" => Page::Answer(401, r#"{"error":"Unauthorized"}"#.to_owned()),
            "missing" => Page::Answer(404, r#"{"detail":"Not Found"}"#.to_owned()),
            "json" => Page::Answer(200, "[]".to_owned()),
            "ok" if path == "/v1/models" => Page::Answer(200, self.models()),
            "ok" => Page::Answer(200, self.metrics(start, seconds)),
            "cut" => {
                let page = self.metrics(start, seconds);
                let end = page.find("vllm:kv_cache_usage_perc{").unwrap_or(0);
                Page::Answer(200, page[..end + 30].to_owned())
            }
            "comments" => {
                let page = self.metrics(start, seconds);
                let lines = page.lines().filter(|line| line.starts_with('#'));
                Page::Answer(200, lines.collect::<Vec<_>>().join("\n") + "\n")
            }
            file => {
                let file = crate::root().join("tests/fixtures/metrics").join(file);
                let page = fs::read_to_string(&file);
                Page::Answer(200, page.unwrap_or_else(|error| panic!("{}: {error}", file.display())))
            }
        }
    }

    fn models(&self) -> String {
        let entry = |id: &str, parent: Option<&str>| {
            let length = parent.is_none().then_some(self.max_model_len);
            json!({"id": id, "object": "model", "created": 1_796_022_789, "owned_by": "vllm", "root": "/models/tiny",
                "parent": parent, "max_model_len": length, "permission": []})
        };
        let mut data = vec![entry(&self.base, None)];
        let adapters = self.adapters.iter().flat_map(|adapters| &adapters.registered);
        data.extend(adapters.map(|name| entry(name, Some(&self.base))));
        json!({"object": "list", "data": data}).to_string()
    }

    fn metrics(&self, start: f64, seconds: f64) -> String {
        let mut page = String::new();
        let labels = format!("{{engine=\"0\",model_name=\"{}\"}}", self.base);
        let mut family = |name: &str, kind: &str, series: &[(String, f64)]| {
            let _ = writeln!(
                page,
                "# HELP vllm:{name} As the engine says.\n# TYPE vllm:{name} {kind}"
            );
            for (labels, value) in series {
                let _ = writeln!(page, "vllm:{name}{labels} {value:?}");
            }
        };
        let mut one = |name: &str, kind: &str, value: f64| family(name, kind, &[(labels.clone(), value)]);
        one("num_requests_running", "gauge", self.running.into());
        one("num_requests_waiting", "gauge", self.waiting.into());
        if let Some(kv) = self.kv {
            one("kv_cache_usage_perc", "gauge", kv);
        }
        // 30 tokens per second for each running request, and one request in 10 s.
        let moved = if self.frozen {
            0.0
        } else {
            self.slow.map_or(seconds, |slow| slow.moved(seconds)) * f64::from(self.running)
        };
        let requests = (moved / 10.0).floor();
        let earlier = f64::from(1_000 / (1 + self.restarts));
        one(
            "prompt_tokens_total",
            "counter",
            (earlier + requests) * f64::from(self.prompt_each),
        );
        one("prompt_tokens_cached_total", "counter", 0.0);
        one(
            "generation_tokens_total",
            "counter",
            earlier * 200.0 + (moved * 30.0).floor(),
        );
        one("num_preemptions_total", "counter", 0.0);
        let success = |reason| {
            format!(
                "{{engine=\"0\",finished_reason=\"{reason}\",model_name=\"{}\"}}",
                self.base
            )
        };
        let finished = [(success("stop"), earlier + requests), (success("length"), 0.0)];
        family("request_success_total", "counter", &finished);
        let sleep = |state| format!("{{engine=\"0\",model_name=\"{}\",sleep_state=\"{state}\"}}", self.base);
        let (awake, asleep) = (f64::from(u8::from(!self.sleeping)), f64::from(u8::from(self.sleeping)));
        let sleeps = [
            (sleep("awake"), awake),
            (sleep("weights_offloaded"), asleep),
            (sleep("discard_all"), 0.0),
        ];
        family("engine_sleep_state", "gauge", &sleeps);
        if let Some(adapters) = &self.adapters {
            let running = adapters.active.join(",");
            let waiting = adapters.waiting.as_ref().unwrap_or(&adapters.active).join(",");
            let of = |running: &str, waiting: &str| {
                format!(
                    "{{max_lora=\"{}\",running_lora_adapters=\"{running}\",waiting_lora_adapters=\"{waiting}\"}}",
                    adapters.max
                )
            };
            // A log: one series per state ever seen, its value is when. Only the newest counts.
            let mut log = vec![(of("", ""), start)];
            if !running.is_empty() || !waiting.is_empty() {
                log.insert(0, (of(&running, &waiting), start + seconds));
            }
            family("lora_requests_info", "gauge", &log);
            if let Some(resident) = &adapters.resident {
                let loaded = |name| (format!("{{adapter_name=\"{name}\",engine=\"0\",level=\"gpu\"}}"), 1.0);
                family(
                    "lora_adapter_loaded",
                    "gauge",
                    &resident.iter().map(loaded).collect::<Vec<_>>(),
                );
                let count = resident.len() as f64;
                family("num_gpu_loaded_lora_adapters", "gauge", &[(labels.clone(), count)]);
            }
        }
        if let Some(tokens) = self.capacity_tokens {
            let labels = format!(
                "{{block_size=\"16\",cache_dtype=\"auto\",enable_prefix_caching=\"True\",engine=\"0\",\
                 kv_cache_size_tokens=\"{tokens}\",num_gpu_blocks=\"{}\"}}",
                tokens / 16
            );
            family("cache_config_info", "gauge", &[(labels, 1.0)]);
        }
        let _ = writeln!(
            page,
            "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {:?}",
            start - 3600.0 + 100.0 * f64::from(self.restarts)
        );
        page
    }
}

/// Objects are merged, everything else is replaced.
fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPTURE: &str = include_str!("../../fixtures/captures/vllm-metrics-lora-waiting.txt");

    /// Family and names of labels of each series.
    fn series(page: &str) -> Vec<(String, Vec<String>)> {
        let lines = page.lines().filter(|line| line.starts_with("vllm:"));
        let of = |line: &str| {
            let (family, rest) = line.split_once('{').unwrap_or((line, ""));
            let (labels, _) = rest.rsplit_once('}').unwrap_or_default();
            let named = labels.split("\",").filter_map(|label| label.split_once("=\""));
            (family.to_owned(), named.map(|(name, _)| name.to_owned()).collect())
        };
        lines.map(of).collect()
    }

    #[test]
    fn a_page_has_only_families_and_labels_that_vllm_writes() {
        let (pod, _) = Pod::with(
            &json!({}),
            &json!({"running": 2, "adapters": {"active": ["sql"], "max": 2}}),
        )
        .unwrap();
        let Page::Answer(200, page) = pod.get("/metrics", 1.8e9, 5.0) else {
            panic!("no page");
        };
        let captured = series(CAPTURE);
        for (family, labels) in series(&page) {
            let same: Vec<_> = captured.iter().filter(|(name, _)| *name == family).collect();
            assert!(!same.is_empty(), "vLLM writes no {family}");
            for label in labels {
                assert!(
                    same.iter().any(|(_, names)| names.contains(&label)),
                    "{family} has no label {label}"
                );
            }
        }
    }

    #[test]
    fn a_change_keeps_what_it_does_not_name() {
        let (_, raw) = Pod::with(
            &json!({}),
            &json!({"running": 2, "adapters": {"registered": ["a"], "max": 2}}),
        )
        .unwrap();
        let (pod, _) = Pod::with(&raw, &json!({"adapters": {"active": ["a"]}})).unwrap();
        let adapters = pod.adapters.unwrap();
        assert_eq!((pod.running, adapters.max), (2, 2));
        assert_eq!(
            (adapters.registered, adapters.active),
            (vec!["a".to_owned()], vec!["a".to_owned()])
        );
    }

    #[test]
    fn an_unknown_key_of_a_pod_is_an_error() {
        assert!(Pod::with(&json!({}), &json!({"runing": 2})).is_err());
        assert!(Pod::with(&json!({}), &json!({"adapters": {"actve": []}})).is_err());
    }
}
