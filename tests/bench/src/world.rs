//! Pools, tables and bodies of a given size, alike in every benchmark.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use berth_shared_state::config::Config;
use berth_shared_state::names::Keys;
use berth_shared_state::pod::PodAddress;
use berth_shared_state::sample::{Engine, Status};
use berth_shared_state::table::{
    ActiveAdapters, Discovered, Load, Models, NameId, PodRow, Rates, Readiness, Table, Trend,
};
use berth_shared_state::units::{Millis, Tokens, UnixMillis};

/// Adapters of a pool: enough that names are a list.
const ADAPTERS: u16 = 8;
/// A sentence as prompts are made of, with what a scanner must stop at: escapes, and text that is not ASCII.
const SENTENCE: &str =
    "The berth is free, so the ship may come in; \\\"mind the tide\\\", said the pilot \u{2014} twice.\\n";

/// The clock of every benchmark at its start.
pub const START: UnixMillis = UnixMillis(1_700_000_000_000);

/// Pod number `index`.
pub fn address(index: usize) -> PodAddress {
    let text = format!("10.{}.{}.{}:8000", index / 65_536, index / 256 % 256, index % 256);
    text.parse().expect("an address")
}

/// A config of one pool of so many pods.
pub fn config(pods: usize) -> String {
    let addresses: Vec<String> = (0..pods).map(|index| address(index).to_string()).collect();
    serde_json::json!({"pools": [{"name": "llama", "discovery": {"static": addresses}}]}).to_string()
}

/// The same where somebody else reads the pods.
pub fn reader(pods: usize) -> String {
    config(pods).replacen('{', r#"{"role": "reader", "#, 1)
}

/// Where that pool's values stand in shared data.
pub fn keys(pods: usize) -> Result<Keys> {
    let config = Config::parse(config(pods).as_bytes()).map_err(|errors| anyhow::anyhow!("{errors:?}"))?;
    Ok(Keys::of(&config.pools[0]))
}

/// A table of so many pods read at `at`, unequally loaded, with two of the pool's adapters in flight on each.
pub fn table(pods: usize, at: UnixMillis) -> Table {
    let names = std::iter::once("llama-3-8b".to_owned()).chain((1..=ADAPTERS).map(|n| format!("adapter-{n}")));
    Table {
        seq: at.0,
        written_at: at,
        config_epoch: 1,
        discovery: Discovered {
            at: Some(at),
            error: None,
        },
        scrape_interval: Millis(1_000),
        names: names.collect(),
        pods: (0..pods).map(|index| row(index, at)).collect(),
    }
}

fn row(index: usize, at: UnixMillis) -> PodRow {
    let adapter = |offset: usize| NameId((index + offset) as u16 % ADAPTERS + 1);
    let part = (index % 7) as f32 / 10.0;
    PodRow {
        readiness: Readiness::Ready,
        scraped_at: Some(at),
        trend: Trend::Live,
        load: Load {
            engine: Some(Engine::Vllm),
            status: Status::Ok,
            running: Some((index % 5) as u32),
            waiting: Some((index % 3) as u32),
            kv_mean: Some(part),
            kv_max: Some(part),
            kv_capacity: Some(Tokens(200_000)),
            engines: 1,
            ..Load::UNKNOWN
        },
        rates: Rates {
            prompt_tokens: Some(900.0),
            cached_prompt_tokens: Some(300.0),
            generation_tokens: Some(400.0),
            requests: Some(2.0),
            preemptions: Some(0.0),
        },
        activity: Some(ActiveAdapters {
            running: vec![adapter(0), adapter(1)],
            waiting: Vec::new(),
            max: Some(4),
        }),
        models: Some(Models {
            at,
            bases: vec![NameId(0)],
            adapters: (1..=ADAPTERS).map(|n| (NameId(n), Some(NameId(0)))).collect(),
            max_model_len: Some(Tokens(131_072)),
        }),
        ..PodRow::unread(address(index), at)
    }
}

/// A streamed chat request of about so many bytes, for an adapter.
pub fn body(bytes: usize) -> Vec<u8> {
    let head = r#"{"model":"adapter-3","stream":true,"max_tokens":256,"messages":[{"role":"user","content":""#;
    let tail = r#""}]}"#;
    let mut text = head.to_owned();
    while text.len() + SENTENCE.len() + tail.len() < bytes {
        text.push_str(SENTENCE);
    }
    text.push_str(tail);
    text.into_bytes()
}

/// The same for the base model, with a beginning of its own.
pub fn prompt(number: usize, bytes: usize) -> Vec<u8> {
    let text = String::from_utf8_lossy(&body(bytes)).replace("adapter-3", "llama-3-8b");
    text.replacen("The berth", &format!("{number}: the berth"), 1)
        .into_bytes()
}

/// A models page that lists the base and the adapters of [`table`].
pub fn models_page() -> String {
    let base = serde_json::json!({"id": "llama-3-8b", "object": "model", "parent": null, "max_model_len": 131_072});
    let adapter = |n| serde_json::json!({"id": format!("adapter-{n}"), "object": "model", "parent": "llama-3-8b"});
    let data: Vec<_> = std::iter::once(base).chain((1..=ADAPTERS).map(adapter)).collect();
    serde_json::json!({"object": "list", "data": data}).to_string()
}

/// A recorded page, by its file name under `tests/fixtures/captures`.
pub fn capture(name: &str) -> Result<Vec<u8>> {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../fixtures/captures")
        .join(name);
    fs::read(&file).with_context(|| format!("cannot read {}", file.display()))
}

/// Milliseconds later.
pub fn later(millis: u64) -> UnixMillis {
    START + Millis(millis)
}
