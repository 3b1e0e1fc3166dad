//! Every page in `tests/fixtures/metrics` reads as its README says.

use super::*;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

macro_rules! pages {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_bytes!(concat!("../../../../tests/fixtures/metrics/", $name)).as_slice())),*]
    };
}

const PAGES: [(&str, &[u8]); 36] = pages![
    "01-vllm-v0-lora-disabled-indented.txt",
    "02-vllm-v0-lora-three-series-newest-in-middle.txt",
    "04-vllm-v1-0.8-no-engine-label-idle.txt",
    "05-vllm-0.10-old-and-new-names-created.txt",
    "06-vllm-0.11-api-servers-pid-label.txt",
    "07-vllm-dp4-one-engine-hot.txt",
    "08-vllm-dp2-three-gauges.txt",
    "10-vllm-metal-waiting6-running0-kv0.txt",
    "11-vllm-rust-frontend-busy.txt",
    "12-vllm-rust-frontend-idle-no-lora-family.txt",
    "14-vllm-lora-running-equals-waiting-full.txt",
    "16-vllm-lora-hard-names.txt",
    "17-nan-inf-near-miss-names.txt",
    "18-sglang-0.3-name-label.txt",
    "19-sglang-0.4-unified-idle.txt",
    "21-sglang-tp4-same-pool-four-times.txt",
    "22-sglang-dp2-tp2.txt",
    "23-sglang-priority-breakdown.txt",
    "24-sglang-lora-pool-nan-page-config.txt",
    "25-smg-sidecar-underscore-names.txt",
    "27-triton-no-llm-families.txt",
    "28-trtllm-serve-json-empty-list.txt",
    "29-trtllm-serve-1.1-unprefixed-undefined.txt",
    "33-llamacpp-2025-no-kv.txt",
    "34-llamacpp-2024-kv-ratio.txt",
    "35-lmdeploy-empty-braces.txt",
    "36-nim-1-unprefixed.txt",
    "37-ray-serve-vllm-underscore.txt",
    "39-deprecation-window-both-kv-names.txt",
    "40-cut-off-mid-line.txt",
    "43-federated-two-instances.txt",
    "44a-before-restart.txt",
    "44b-after-restart.txt",
    "46-gzip-body-base64.txt",
    "47-max-serve-percent-histogram.txt",
    "50-vllm-hybrid-block-size-4.txt",
];

const EXPECTED: &str = include_str!("../../../../tests/fixtures/metrics/expected.json");
/// Adapter names of 16, the page with the hard names.
const MODELS: &str = include_str!("../../../../tests/fixtures/metrics/16-vllm-lora-hard-names.models.json");

fn known() -> Vec<String> {
    crate::models::read(MODELS.as_bytes())
        .unwrap()
        .into_iter()
        .map(|model| model.id)
        .collect()
}

pub fn named(name: &str) -> &'static [u8] {
    PAGES.iter().find(|(known, _)| *known == name).unwrap().1
}

#[cfg(not(target_arch = "wasm32"))]
pub fn texts() -> impl Iterator<Item = &'static str> {
    PAGES.iter().map(|&(_, page)| core::str::from_utf8(page).unwrap())
}

/// RFC 4648, without the checks.
fn base64(text: &[u8]) -> Vec<u8> {
    let value = |byte: &u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let digits: Vec<u32> = text.iter().filter_map(value).map(u32::from).collect();
    let bytes = |four: &[u32]| {
        let word = four
            .iter()
            .enumerate()
            .fold(0, |word, (i, digit)| word | digit << (18 - 6 * i));
        word.to_be_bytes()[1..four.len()].to_vec()
    };
    digits.chunks(4).flat_map(bytes).collect()
}

fn gunzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Read as _;
    let mut out = Vec::new();
    flate2::read::GzDecoder::new(bytes).read_to_end(&mut out).unwrap();
    out
}

fn close(got: Option<f64>, wanted: &serde_json::Value) -> bool {
    match (got, wanted.as_f64()) {
        (Some(got), Some(wanted)) => (got - wanted).abs() < 1e-9,
        (got, wanted) => got == wanted,
    }
}

fn activity(wanted: &serde_json::Value) -> Option<Activity> {
    let list = |key: &str| {
        wanted[key]
            .as_array()
            .unwrap()
            .iter()
            .map(|name| name.as_str().unwrap().to_owned())
    };
    let max = || wanted["max"].as_u64().map(|max| u32::try_from(max).unwrap());
    wanted.is_object().then(|| Activity {
        running: list("running").collect(),
        waiting: list("waiting").collect(),
        max: max(),
    })
}

#[test]
fn every_page_reads_as_expected() {
    let expected: serde_json::Value = serde_json::from_str(EXPECTED).unwrap();
    let expected = expected.as_object().unwrap();
    assert!(expected.keys().all(|name| PAGES.iter().any(|(known, _)| known == name)));
    let known = known();
    for (name, page) in PAGES {
        let page = if name.starts_with("46") {
            gunzip(&base64(page))
        } else {
            page.to_vec()
        };
        let sample = read(
            &page,
            Hints {
                known_adapters: &known,
                ..Hints::default()
            },
        );
        let wanted = &expected[name];
        let status = serde_json::to_value(sample.status).unwrap();
        assert_eq!(status, wanted["status"], "{name}: {:?}", sample.reason);
        assert_eq!(sample.reason.is_none(), sample.status == Status::Ok, "{name}");
        assert_eq!(sample.running.map(u64::from), wanted["running"].as_u64(), "{name}");
        assert_eq!(sample.waiting.map(u64::from), wanted["waiting"].as_u64(), "{name}");
        assert!(
            close(sample.kv_mean, &wanted["kv_mean"]),
            "{name}: {:?}",
            sample.kv_mean
        );
        assert!(close(sample.kv_max, &wanted["kv_max"]), "{name}: {:?}", sample.kv_max);
        assert_eq!(
            sample.kv_capacity.map(|tokens| tokens.0),
            wanted["kv_capacity_tokens"].as_u64(),
            "{name}"
        );
        assert_eq!(sample.activity, activity(&wanted["adapters"]), "{name}");
    }
}

#[test]
fn gzip_is_rejected_and_not_parsed_raw() {
    let sample = read(&base64(named("46-gzip-body-base64.txt")), Hints::default());
    assert_eq!(sample.status, Status::Reject);
}

#[test]
fn without_the_known_names_a_comma_splits_a_name() {
    let sample = read(named("16-vllm-lora-hard-names.txt"), Hints::default());
    assert_eq!(sample.activity.unwrap().running.len(), 8);
}

#[test]
fn the_rust_frontend_tells_residency_and_deferred() {
    let sample = read(named("11-vllm-rust-frontend-busy.txt"), Hints::default());
    let wanted = [("a", Level::Gpu), ("b", Level::Gpu), ("d", Level::Cpu)];
    assert_eq!(
        sample.resident.unwrap(),
        wanted.map(|(name, level)| (name.to_owned(), level))
    );
    assert_eq!(sample.deferred, Some(1));
}

#[test]
fn a_restart_shows_in_the_start_time_and_the_counters() {
    let before = read(named("44a-before-restart.txt"), Hints::default());
    let after = read(named("44b-after-restart.txt"), Hints::default());
    assert_eq!(
        (before.started_at, after.started_at),
        (Some(1_788_850_000.0), Some(1_788_859_000.0))
    );
    assert_eq!(
        (before.counters.preemptions, after.counters.preemptions),
        (Some(57.0), Some(0.0))
    );
}

#[test]
fn engines_of_a_pod_are_counted() {
    for (name, engines) in [
        ("07-vllm-dp4-one-engine-hot.txt", 4),
        ("22-sglang-dp2-tp2.txt", 2),
        ("21-sglang-tp4-same-pool-four-times.txt", 1),
        ("06-vllm-0.11-api-servers-pid-label.txt", 1),
    ] {
        assert_eq!(read(named(name), Hints::default()).engines, engines, "{name}");
    }
}

#[test]
fn a_blocks_capacity_with_small_blocks_is_unknown_without_the_token_label() {
    let text = core::str::from_utf8(named("50-vllm-hybrid-block-size-4.txt")).unwrap();
    let sample = page(&text.replace("kv_cache_size_tokens=\"286458\",", ""));
    assert_eq!((sample.status, sample.kv_capacity), (Status::Ok, None));
}
