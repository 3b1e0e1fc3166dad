//! Recordings of real servers. The expectations were read off the pages by eye.

use super::*;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

const IDLE: &str = include_str!("../../../../tests/fixtures/captures/vllm-metrics-idle.txt");
const BUSY: &str = include_str!("../../../../tests/fixtures/captures/vllm-metrics-busy-base.txt");
const LORA_WAITING: &str = include_str!("../../../../tests/fixtures/captures/vllm-metrics-lora-waiting.txt");
const KV_FULL: &str = include_str!("../../../../tests/fixtures/captures/vllm-metrics-kvfull.txt");
const IDLE_AFTER: &str = include_str!("../../../../tests/fixtures/captures/vllm-metrics-idle-after.txt");
const API_SERVERS: &str = include_str!("../../../../tests/fixtures/captures/vllm-metrics-api-server-count-2.txt");
const DATA_PARALLEL: &str = include_str!("../../../../tests/fixtures/captures/vllm-metrics-data-parallel-2.txt");
const LLAMACPP_IDLE: &str = include_str!("../../../../tests/fixtures/captures/llamacpp-metrics-idle.txt");
const LLAMACPP_TWO: &str = include_str!("../../../../tests/fixtures/captures/llamacpp-load-2running.txt");
const LLAMACPP_FULL: &str = include_str!("../../../../tests/fixtures/captures/llamacpp-load-4running-3deferred.txt");

#[cfg(not(target_arch = "wasm32"))]
pub const VLLM: [&str; 5] = [IDLE, BUSY, LORA_WAITING, KV_FULL, IDLE_AFTER];

/// The body of the first `GET /metrics` of a recording, by its own Content-Length.
fn body(recording: &str) -> &str {
    let (_, from) = recording.split_once("> GET /metrics").unwrap();
    let (head, body) = from.split_once("\n\n").unwrap();
    let (_, length) = head.split_once("Content-Length: ").unwrap();
    let length: usize = length.lines().next().unwrap().parse().unwrap();
    body.get(..length).unwrap()
}

/// The page below the heading that begins with `##### <name>`, and the time it was taken.
fn phase<'a>(recording: &'a str, name: &str) -> (&'a str, UnixMillis) {
    let (_, from) = recording.split_once(&format!("##### {name}")).unwrap();
    let (head, from) = from.split_once('\n').unwrap();
    let (_, time) = head.split_once("unix=").unwrap();
    let seconds: f64 = time.split(' ').next().unwrap().parse().unwrap();
    let end = from.find("\n#####").unwrap_or(from.len() - 1);
    (from.get(..=end).unwrap(), UnixMillis((seconds * 1000.0) as u64))
}

#[track_caller]
fn check_at(text: &str, now: UnixMillis, load: Load, running: Option<&[&str]>) -> Sample {
    let known = names(&["a,b \"c\" d", "sql", "chat"]);
    let sample = read(
        text.as_bytes(),
        Hints {
            now,
            known_adapters: &known,
            ..Hints::default()
        },
    );
    let capacity = sample.kv_capacity.map(|tokens| tokens.0);
    assert_eq!((sample.running, sample.waiting, sample.kv_mean, capacity), load);
    // Both lists of the Python frontend come from one dict.
    let wanted = running.map(|list| Activity {
        running: names(list),
        waiting: names(list),
        max: Some(2),
    });
    assert_eq!(sample.activity, wanted);
    sample
}

/// 200 blocks of 32 tokens.
const POOL: Option<u64> = Some(6400);
const NOW: UnixMillis = UnixMillis(0);

#[test]
fn an_idle_vllm_has_no_lora_entry() {
    let sample = check_at(IDLE, NOW, (Some(0), Some(0), Some(0.0), POOL), None);
    assert_eq!(
        (sample.status, sample.deferred, sample.sleeping, sample.engines),
        (Status::Ok, Some(0), Some(false), 1)
    );
    assert_eq!(sample.started_at, Some(1_796_022_742.72));
    assert_eq!(sample.counters.prompt_tokens, Some(0.0));
}

#[test]
fn a_busy_vllm_shows_its_base_requests_and_no_adapter() {
    // The newest entry is the empty one (…796.16), not the ones of earlier requests (…789).
    let sample = check_at(
        BUSY,
        NOW,
        (Some(4), Some(4), Some(0.582_914_572_864_321_7), POOL),
        Some(&[]),
    );
    assert_eq!(sample.status, Status::Ok);
    assert_eq!(sample.counters.prompt_tokens, Some(5156.0));
    // Left out of the recording for size.
    assert_eq!(sample.started_at, None);
}

#[test]
fn an_adapter_that_only_waits_is_not_listed_but_deferred() {
    let kv = Some(0.261_306_532_663_316_6);
    let sample = check_at(LORA_WAITING, NOW, (Some(2), Some(1), kv, POOL), Some(&["chat", "sql"]));
    assert_eq!(sample.deferred, Some(1));
    // 29 finished by length, nothing else; three preemptions; no cache hit.
    assert_eq!(sample.counters.requests, Some(29.0));
    assert_eq!(sample.counters.preemptions, Some(3.0));
    assert_eq!(sample.counters.cached_prompt_tokens, Some(0.0));
    assert_eq!(sample.counters.generation_tokens, Some(14718.0));
}

#[test]
fn a_full_cache_with_work_is_no_contradiction() {
    let kv = Some(0.979_899_497_487_437_2);
    let sample = check_at(KV_FULL, NOW, (Some(2), Some(4), kv, POOL), Some(&[]));
    assert_eq!((sample.status, sample.deferred), (Status::Ok, Some(0)));
}

#[test]
fn old_lora_entries_stay_and_do_not_count() {
    let sample = check_at(IDLE_AFTER, NOW, (Some(0), Some(0), Some(0.0), POOL), Some(&[]));
    assert_eq!(sample.counters.requests, Some(57.0));
}

/// 400 blocks of 32 tokens.
const LARGE_POOL: Option<u64> = Some(12_800);

#[test]
fn two_api_servers_sum_their_clocks() {
    // No load gauge has a sample before the first request.
    let (page, now) = phase(API_SERVERS, "idle, before any request");
    let sample = check_at(page, now, (None, None, None, LARGE_POOL), None);
    assert_eq!((sample.status, sample.sleeping), (Status::Partial, Some(false)));
    // Halved, "sql" was last seen 0.75 s after the empty set.
    let (page, now) = phase(API_SERVERS, "9 mixed");
    check_at(
        page,
        now,
        (Some(4), Some(5), Some(0.130_325_814_536_340_84), LARGE_POOL),
        Some(&["sql"]),
    );
    // Halved, the empty set was last seen at …250.63; "sql" at …247.05; "chat" is of one process, at …249.23.
    let (page, now) = phase(API_SERVERS, "done");
    check_at(page, now, (Some(0), Some(0), Some(0.0), LARGE_POOL), Some(&[]));
}

#[test]
fn without_the_time_a_live_clock_of_one_process_loses_to_a_sum() {
    let (page, now) = phase(API_SERVERS, "done");
    let live = page.replace("1.7960232492321444e+09", "1.7960232512321444e+09");
    let load = (Some(0), Some(0), Some(0.0), LARGE_POOL);
    check_at(&live, now, load, Some(&["chat"]));
    check_at(&live, NOW, load, Some(&[]));
}

#[test]
fn two_data_parallel_engines_are_one_pod() {
    let (page, now) = phase(DATA_PARALLEL, "9 mixed");
    // (22 + 24) / 399 / 2; each engine has 12 800 tokens, and the block label has the sum, 800.
    let kv = Some((0.110_275_689_223_057_64 + 0.120_300_751_879_699_24) / 2.0);
    let sample = check_at(page, now, (Some(8), Some(1), kv, Some(25_600)), Some(&["chat", "sql"]));
    assert_eq!(
        (sample.engines, sample.kv_max, sample.status),
        (2, Some(0.120_300_751_879_699_24), Status::Ok)
    );
}

#[test]
fn llamacpp_has_no_labels_and_no_kv() {
    let llamacpp = |text, running, waiting| {
        check(
            body(text),
            Engine::LlamaCpp,
            Status::Ok,
            (Some(running), Some(waiting), None, None),
        )
    };
    llamacpp(LLAMACPP_IDLE, 0, 0);
    llamacpp(LLAMACPP_TWO, 2, 0);
    let sample = llamacpp(LLAMACPP_FULL, 4, 3);
    // 3536 computed and 708 from the cache.
    assert_eq!(sample.counters.prompt_tokens, Some(4244.0));
    assert_eq!(sample.counters.cached_prompt_tokens, Some(708.0));
    assert_eq!(sample.counters.generation_tokens, Some(3017.0));
}

#[test]
fn a_recording_cut_anywhere_inside_a_line_is_rejected() {
    let page = body(LLAMACPP_FULL).as_bytes();
    for end in (1..page.len()).filter(|&end| page[end - 1] != b'\n') {
        assert_eq!(read(&page[..end], Hints::default()).status, Status::Reject, "{end}");
    }
}
