//! Plausible traffic from a seed: conversations that share system prompts, grow turn by turn, and prefer few adapters.
//!
//! Open loop: a turn comes when its time has come, whether or not the one before was answered; that is how overload
//! looks from outside. The same items serve as JSON bodies for HTTP and as requests for an engine in virtual time.

use crate::chain::{Segment, of_segments, words};
use crate::engine::{Micros, Request, RequestId};
use crate::random::{Rng, mix2};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Where the bodies go.
pub const PATH: &str = "/v1/chat/completions";

/// Answers are asked for with a bound in multiples of this, as people do not know the length beforehand.
const MAX_TOKENS_STEP: u32 = 64;

/// The shape of the traffic.
#[derive(Debug, Clone, PartialEq)]
pub struct TrafficConfig {
    /// Base model's name.
    pub model: String,
    /// New conversations per second; Poisson.
    pub conversations_per_second: f64,
    /// Different system prompts; conversations prefer the first ones by Zipf's law. 0 counts as 1.
    pub system_prompts: usize,
    /// Tokens in a system prompt.
    pub system_tokens: u32,
    /// Most turns of a conversation; each number from 1 is equally likely.
    pub max_turns: u32,
    /// Mean pause between turns, seconds; exponential.
    pub pause_seconds: f64,
    /// Median tokens of a user's turn; log-normal with sigma 1.
    pub user_tokens: f64,
    /// Median tokens of an answer; log-normal with sigma 0.8.
    pub answer_tokens: f64,
    /// Longest user's turn and longest answer, tokens.
    pub max_part_tokens: u32,
    /// Adapters, preferred in this order by Zipf's law.
    pub adapters: Vec<String>,
    /// Share of conversations that use an adapter, if there are any.
    pub adapter_share: f64,
    /// Share of requests with `stream`.
    pub stream_share: f64,
}

impl Default for TrafficConfig {
    /// A chat service: lengths after the medians of public conversation traces.
    fn default() -> Self {
        Self {
            model: "base".to_owned(),
            conversations_per_second: 2.0,
            system_prompts: 8,
            system_tokens: 600,
            max_turns: 5,
            pause_seconds: 15.0,
            user_tokens: 80.0,
            answer_tokens: 150.0,
            max_part_tokens: 1500,
            adapters: Vec::new(),
            adapter_share: 0.5,
            stream_share: 0.6,
        }
    }
}

/// One request of the traffic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// When it is sent.
    pub at: Micros,
    /// Which conversation it belongs to.
    pub conversation: u64,
    /// Base model or adapter, as the client writes it.
    pub model: String,
    /// The adapter, if that is one.
    pub adapter: Option<String>,
    /// System prompt, then user's and model's turns, ending with a user's.
    pub prompt: Vec<Segment>,
    /// What will be answered.
    pub answer: Segment,
    /// It asks for a stream.
    pub stream: bool,
}

impl Item {
    /// Tokens of the prompt, a template's own tokens apart.
    #[must_use]
    pub fn prompt_tokens(&self) -> u32 {
        self.prompt.iter().map(|segment| segment.tokens).sum()
    }

    /// For an engine.
    #[must_use]
    pub fn request(&self, id: RequestId, block_size: u32) -> Request {
        let mut segments = self.prompt.clone();
        segments.push(self.answer);
        Request {
            id,
            chain: of_segments(&segments, block_size),
            prompt_tokens: self.prompt_tokens(),
            output_tokens: self.answer.tokens,
            adapter: self.adapter.as_deref().map(Into::into),
        }
    }

    /// For a server.
    #[must_use]
    pub fn body(&self) -> String {
        let role = |index: usize| match index {
            0 => "system",
            _ if index % 2 == 1 => "user",
            _ => "assistant",
        };
        let messages: Vec<Value> = self
            .prompt
            .iter()
            .enumerate()
            .map(|(index, segment)| json!({"role": role(index), "content": words(segment.id, segment.tokens)}))
            .collect();
        let max_tokens = self.answer.tokens.next_multiple_of(MAX_TOKENS_STEP);
        let mut body = json!({"model": self.model, "messages": messages, "max_tokens": max_tokens});
        if self.stream {
            body["stream"] = Value::Bool(true);
        }
        body.to_string()
    }
}

/// A conversation and when it speaks next.
#[derive(Debug, PartialEq, Eq)]
struct Conversation {
    id: u64,
    adapter: Option<String>,
    /// All that was said.
    said: Vec<Segment>,
    turns_left: u32,
}

/// Endless traffic in order of time.
#[derive(Debug)]
pub struct Traffic {
    config: TrafficConfig,
    seed: u64,
    rng: Rng,
    /// Next turns, the earliest first; ties by number.
    next: BinaryHeap<Reverse<(Micros, u64)>>,
    open: std::collections::HashMap<u64, Conversation>,
    next_start: Micros,
    started: u64,
}

impl Traffic {
    /// Traffic that depends on nothing but these.
    #[must_use]
    pub fn new(config: TrafficConfig, seed: u64) -> Self {
        let mut traffic = Self {
            config,
            seed,
            rng: Rng::new(seed),
            next: BinaryHeap::new(),
            open: std::collections::HashMap::new(),
            next_start: 0,
            started: 0,
        };
        traffic.next_start = traffic.gap(1.0 / traffic.config.conversations_per_second);
        traffic
    }

    fn gap(&mut self, mean_seconds: f64) -> Micros {
        (self.rng.exponential(mean_seconds) * 1e6) as Micros
    }

    fn start_conversation(&mut self) {
        self.started += 1;
        let system = self.rng.zipf(self.config.system_prompts.max(1));
        let uses_adapter = self.rng.unit() < self.config.adapter_share;
        let adapter = self.rng.zipf(self.config.adapters.len());
        let conversation = Conversation {
            id: self.started,
            adapter: self.config.adapters.get(adapter).filter(|_| uses_adapter).cloned(),
            said: vec![Segment {
                id: mix2(self.seed, system as u64),
                tokens: self.config.system_tokens,
            }],
            turns_left: 1 + self.rng.below(u64::from(self.config.max_turns.max(1))) as u32,
        };
        self.open.insert(self.started, conversation);
        self.next.push(Reverse((self.next_start, self.started)));
        self.next_start += self.gap(1.0 / self.config.conversations_per_second);
    }

    /// A part that nobody said before.
    fn part(&mut self, median: f64, sigma: f64) -> Segment {
        let tokens = self
            .rng
            .log_normal(median, sigma)
            .clamp(1.0, f64::from(self.config.max_part_tokens.max(1)));
        Segment {
            id: self.rng.next_u64(),
            tokens: tokens as u32,
        }
    }
}

impl Iterator for Traffic {
    type Item = Item;

    fn next(&mut self) -> Option<Item> {
        while self.next.peek().is_none_or(|turn| turn.0.0 > self.next_start) {
            self.start_conversation();
        }
        let Reverse((at, id)) = self.next.pop()?;
        let mut conversation = self.open.remove(&id)?;
        let user = self.part(self.config.user_tokens, 1.0);
        let answer = self.part(self.config.answer_tokens, 0.8);
        conversation.said.push(user);
        let item = Item {
            at,
            conversation: id,
            model: conversation
                .adapter
                .clone()
                .unwrap_or_else(|| self.config.model.clone()),
            adapter: conversation.adapter.clone(),
            prompt: conversation.said.clone(),
            answer,
            stream: self.rng.unit() < self.config.stream_share,
        };
        conversation.said.push(answer);
        conversation.turns_left -= 1;
        if conversation.turns_left > 0 {
            let pause = self.gap(self.config.pause_seconds);
            self.next.push(Reverse((at + pause, id)));
            self.open.insert(id, conversation);
        }
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::{Item, Traffic, TrafficConfig};
    use crate::engine::{Engine, EngineConfig, EventKind};
    use serde_json::Value;
    use std::collections::HashMap;

    fn items(seed: u64, count: usize) -> Vec<Item> {
        let adapters = ["sql", "chat", "fr"].map(str::to_owned).to_vec();
        Traffic::new(
            TrafficConfig {
                adapters,
                ..TrafficConfig::default()
            },
            seed,
        )
        .take(count)
        .collect()
    }

    #[test]
    fn a_seed_decides_everything_and_time_never_goes_back() {
        let traffic = items(3, 500);
        assert_eq!(traffic, items(3, 500));
        assert_ne!(traffic, items(4, 500));
        assert!(traffic.is_sorted_by_key(|item| item.at));
    }

    #[test]
    fn conversations_grow_and_keep_their_model() {
        let mut last: HashMap<u64, Item> = HashMap::new();
        let mut continued = 0;
        for item in items(1, 500) {
            if let Some(before) = last.get(&item.conversation) {
                let mut expected = before.prompt.clone();
                expected.push(before.answer);
                assert_eq!(item.prompt[..expected.len()], expected);
                assert_eq!((item.prompt.len(), &item.model), (expected.len() + 1, &before.model));
                continued += 1;
            }
            last.insert(item.conversation, item);
        }
        assert!(continued > 100, "{continued}");
    }

    #[test]
    fn shares_are_as_configured() {
        let traffic = items(2, 10_000);
        let share = |test: &dyn Fn(&Item) -> bool| traffic.iter().filter(|item| test(item)).count() as f64 / 10_000.0;
        assert!((share(&|item| !item.stream) - 0.4).abs() < 0.02);
        assert!((share(&|item| item.adapter.is_some()) - 0.5).abs() < 0.05);
        assert!(share(&|item| item.model == "sql") > share(&|item| item.model == "fr"));
        // Two conversations a second of three turns on average.
        let seconds = traffic.last().expect("some").at as f64 / 1e6;
        assert!((10_000.0 / seconds - 6.0).abs() < 0.6, "{seconds}");
    }

    #[test]
    fn a_body_has_the_roles_in_turn_and_four_bytes_a_token() {
        for item in items(5, 50) {
            let body: Value = serde_json::from_str(&item.body()).expect("JSON");
            assert_eq!(body["model"], item.model.as_str());
            assert_eq!(body.get("stream").is_some(), item.stream);
            assert!(body["max_tokens"].as_u64() >= Some(u64::from(item.answer.tokens)));
            let messages = body["messages"].as_array().expect("messages");
            let bytes: usize = messages
                .iter()
                .filter_map(|message| message["content"].as_str())
                .map(str::len)
                .sum();
            assert_eq!(bytes, item.prompt_tokens() as usize * 4);
            assert_eq!(
                (&messages[0]["role"], &messages[1]["role"]),
                (&Value::from("system"), &Value::from("user"))
            );
            assert_eq!(messages.last().expect("some")["role"], "user");
        }
    }

    #[test]
    fn an_engine_serves_it_and_finds_the_shared_parts() {
        let mut engine = Engine::new(EngineConfig::h100());
        let (mut finished, mut requests) = (0, (0..).zip(items(6, 300)).peekable());
        let mut wakeup = Some(0);
        while wakeup.is_some() || requests.peek().is_some() {
            let arrival = requests.peek().map(|(_, item)| item.at);
            let now = wakeup.into_iter().chain(arrival).min().expect("one of both");
            if arrival == Some(now)
                && let Some((id, item)) = requests.next()
            {
                engine.submit(item.request(id, 16), now);
            }
            let report = engine.step(now);
            finished += report
                .events
                .iter()
                .filter(|event| matches!(event.kind, EventKind::Finished(_)))
                .count();
            wakeup = report.next_wakeup;
        }
        assert_eq!(finished, 300);
        let counters = engine.counters();
        assert!(counters.prefix_hits * 2 > counters.prefix_queries, "{counters:?}");
    }
}
