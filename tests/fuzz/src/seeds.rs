//! Good and nearly good inputs to start from, made from `tests/fixtures` where it has some.

use std::fs;
use std::path::Path;

use berth_shared_state::sealed::{self, Kind};
use serde_json::json;

use crate::{poll, world};

/// A seed: its name and its bytes.
pub type Seed = (String, Vec<u8>);

/// The seeds of a target.
#[must_use]
pub fn of(target: &str) -> Vec<Seed> {
    match target {
        "metrics" => pages().into_iter().flat_map(metrics).collect(),
        "models" => models(),
        "discovery" => numbered(&DISCOVERIES.map(|page| [b"llama\n", page.as_bytes()].concat())),
        "slices" => slices(),
        "pod_list" => numbered(&LISTS),
        "poll" => polls(),
        "table" => sealed_seeds(Kind::Table, world::table_bytes()),
        "ledger" => sealed_seeds(Kind::Ledger, world::ledger_bytes()),
        "head" => numbered(&HEADS.map(|head| [b"\x00\x14", head.as_bytes()].concat())),
        "body" => bodies(),
        "subset" => subsets(),
        "config" => configs(),
        "replay" => replays(),
        other => panic!("no seeds for {other}"),
    }
}

fn numbered<T: AsRef<[u8]>>(all: &[T]) -> Vec<Seed> {
    let seed = |(index, bytes): (usize, &T)| (index.to_string(), bytes.as_ref().to_vec());
    all.iter().enumerate().map(seed).collect()
}

/// Every file of the fixtures that is no page about them.
fn pages() -> Vec<Seed> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures");
    let mut pages = Vec::new();
    for folder in ["metrics", "captures"] {
        for entry in fs::read_dir(fixtures.join(folder)).expect("fixtures") {
            let path = entry.expect("a file").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.ends_with(".txt") {
                pages.push((name, fs::read(&path).expect("a fixture")));
            }
        }
    }
    pages.sort();
    pages
}

/// A page with no engine configured, and as llama.cpp's.
fn metrics((name, page): Seed) -> [Seed; 2] {
    let with = |how: u8| (format!("{how}-{name}"), [&[how], &page[..]].concat());
    [with(48), with(6)]
}

/// The JSON lines of the captures, and the models page of a fixture.
fn models() -> Vec<Seed> {
    let hard = include_bytes!("../../fixtures/metrics/16-vllm-lora-hard-names.models.json");
    let mut seeds = vec![("hard-names".to_owned(), hard.to_vec())];
    for (name, capture) in pages() {
        let text = String::from_utf8_lossy(&capture).into_owned();
        let lists = text
            .lines()
            .filter(|line| line.starts_with('{') && line.contains("\"data\""));
        seeds.extend(
            lists
                .enumerate()
                .map(|(index, line)| (format!("{index}-{name}"), line.as_bytes().to_vec())),
        );
    }
    seeds
}

const DISCOVERIES: [&str; 3] = [
    r#"{"cluster_statuses":[{"name":"llama","added_via_api":true,"host_statuses":[
{"address":{"socket_address":{"address":"10.0.0.1","port_value":8000}},"stats":[{"name":"cx_connect_fail"},{"value":"7","name":"rq_active"}],"health_status":{"eds_health_status":"HEALTHY"},"weight":1,"hostname":"pod-a"},
{"address":{"socket_address":{"address":"fd00::4","port_value":8000}},"stats":[],"health_status":{"failed_active_health_check":true},"hostname":"pod-b"}]}]}"#,
    r#"{"cluster_statuses":[{"name":"other"},{"name":"llama","host_statuses":[
{"address":{"socket_address":{"address":"10.0.0.1","port_value":8000}},"health_status":{"eds_health_status":"DRAINING"}},
{"address":{"pipe":{"path":"/tmp/x"}}},{"address":{"socket_address":{"address":"10.0.0.1","port_value":8000}}}]}]}"#,
    r#"{"cluster_statuses":[{"name":"llama"}]}"#,
];

const SLICES: [&str; 3] = [
    r#"{"kind":"EndpointSliceList","apiVersion":"discovery.k8s.io/v1","metadata":{"resourceVersion":"41","continue":"eyJ2Ijo","remainingItemCount":1},"items":[
{"metadata":{"name":"llama-a","labels":{"kubernetes.io/service-name":"llama"}},"addressType":"IPv4","endpoints":[
{"addresses":["10.0.0.1"],"conditions":{"ready":true,"serving":true,"terminating":false},"targetRef":{"kind":"Pod","name":"llama-0","uid":"u0"},"nodeName":"n"},
{"addresses":["10.0.0.2"],"conditions":{"ready":false,"serving":true,"terminating":true},"targetRef":{"kind":"Pod","name":"llama-1","uid":"u1"}},
{"addresses":["127.0.0.1"],"conditions":{}}],"ports":[{"name":"http","port":8000,"protocol":"TCP"}]}]}"#,
    r#"{"kind":"EndpointSliceList","metadata":{"resourceVersion":"41"},"items":[
{"metadata":{"labels":{"kubernetes.io/service-name":"llama"}},"addressType":"IPv6","endpoints":[{"addresses":["fd00::1"],"targetRef":{"uid":"u0"}}],
"ports":[{"name":"http","port":8000},{"name":"metrics","port":9000},{"name":"dns","port":53,"protocol":"UDP"}]},
{"metadata":{"labels":{"kubernetes.io/service-name":"llama"}},"endpoints":null,"ports":null},
{"metadata":{"labels":{"kubernetes.io/service-name":"other"}},"endpoints":[{"addresses":["10.9.0.1"]}],"ports":[{"port":8000}]}]}"#,
    r#"{"kind":"EndpointSliceList","metadata":{"resourceVersion":"42"},"items":[]}"#,
];

const LISTS: [&str; 3] = [
    r#"["10.0.0.1:8000", {"address": "[fd00::1]:8000", "name": "pod-b", "ready": false}, "127.0.0.1:80"]"#,
    r#"[{"address": "10.0.0.2:8000", "name": null, "ready": true, "zone": "a"}, "10.0.0.2:8000"]"#,
    "[]",
];

/// One page, and two or three as one list.
fn slices() -> Vec<Seed> {
    let [first, last, other] = SLICES.map(str::as_bytes);
    let lists = [
        vec![last],
        vec![first, last],
        vec![first, other, last],
        vec![first, b"x", last],
    ];
    let seeds = lists.iter().enumerate();
    let seeds = seeds.map(|(how, pages)| [&[how as u8][..], &pages.join(&0)].concat());
    numbered(&seeds.collect::<Vec<_>>())
}

/// Pages of one pod, one after the other, in the steps of the `poll` target.
fn polls() -> Vec<Seed> {
    let step = |what: u8, wait: u8, body: &[u8]| [&[what, wait], body, b"\0"].concat();
    let list = br#"{"data": [{"id": "base"}, {"id": "a,b", "parent": "base"}]}"#;
    let mut seeds: Vec<Seed> = pages()
        .into_iter()
        .map(|(name, page)| {
            let steps = [
                step(2, 1, list),
                step(1, 25, &page),
                step(1, 25, &page),
                step(0x68, 25, b"x"),
            ];
            (name, steps.concat())
        })
        .collect();
    let found = DISCOVERIES.map(|page| [step(0x83, 1, page.as_bytes()), step(0x46, 30, b"\x94/x")].concat());
    seeds.extend(numbered(&found));
    // The last byte chooses how pods are found.
    let all = SLICES.map(|page| step(0x83, 1, page.as_bytes())).concat();
    seeds.push(("slices".to_owned(), [all, vec![2]].concat()));
    let all = LISTS.map(|page| step(0x83, 1, page.as_bytes())).concat();
    seeds.push(("lists".to_owned(), [all, vec![4]].concat()));
    seeds.push((
        "adopted".to_owned(),
        [step(5, 1, b""), step(2, 100, list), step(0, 255, b"")].concat(),
    ));
    seeds
}

/// The payload alone, which the target seals, and the whole value.
fn sealed_seeds(kind: Kind, value: Vec<u8>) -> Vec<Seed> {
    let header = sealed::seal(kind, &()).expect("an empty value").len();
    let payload = value[header..].to_vec();
    vec![("payload".to_owned(), payload), ("sealed".to_owned(), value)]
}

const HEADS: [&str; 5] = [
    ":method: POST\n:path: /v1/chat/completions\ncontent-type: application/json\ncontent-length: 2000",
    ":path: /v1/audio/transcriptions/?a=b\ncontent-type: multipart/form-data; boundary=\"a;b\"\nexpect: 100-continue",
    ":method: GET\n:path: /v1/models\nconnection: keep-alive, Upgrade\nupgrade: websocket",
    ":path: /generate_stream\ncontent-encoding: identity\ncontent-length: 9999999",
    ":method: CONNECT\n:protocol: websocket\ncontent-type: application/grpc+proto\n:path: /x/v1/messages",
];

/// One body per API, each with a split of its own, and a multipart one.
fn bodies() -> Vec<Seed> {
    let bodies = [
        r#"{"model":"sql","messages":[{"role":"user","content":"h\u00e9 \ud83d\ude00"},{"role":"user","content":[{"type":"text","text":"漢"},{"type":"image_url","image_url":{"url":"data:x"}}]}],"max_tokens":64,"stream":true,"n":2,"tools":[{"type":"function","function":{"name":"f","parameters":{"a":[1,2.5e3,null]}}}]}"#,
        r#"{"model":"base","prompt":[[1,2,3],[4]],"best_of":3,"suffix":"end","truncate_prompt_tokens":7}"#,
        r#"{"model":"base","input":[{"role":"user","content":"x"}],"instructions":"y","previous_response_id":"r","max_output_tokens":5}"#,
        r#"{"model":"base","system":"s","max_tokens":9,"messages":[{"role":"user","content":[{"type":"document","source":{"type":"text","data":"d"}}]}]}"#,
        r#"{"model":"base","input":["a","b"]}"#,
        r#"{"model":"base","query":"q","documents":["a","b",{"text":"c"}]}"#,
        r#"{"model":"whisper","stream":false}"#,
        r#"{"prompt":"a \"b\" \\ c","cache_salt":"t"}"#,
        r#"{"text":["a","b"],"lora_path":["x",null],"sampling_params":{"max_new_tokens":5,"n":2},"image_data":"u"}"#,
    ];
    let json = (0_u8..)
        .zip(bodies)
        .map(|(api, body)| [&[api, api * 29, 1], body.as_bytes()].concat());
    let form = "--xYz\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nwhisper\r\n--xYz\r\nContent-Disposition: \
                form-data; name=\"prompt\"\r\n\r\nhello\r\n--xY\r\n--xYz\r\nContent-Disposition: form-data; \
                name=\"file\"; filename=\"a.wav\"\r\n\r\nRIFF\r\n--xYz--\r\n";
    let form = [&[128 + 6, 3, 1], form.as_bytes()].concat();
    numbered(&json.chain([form]).collect::<Vec<_>>())
}

fn subsets() -> Vec<Seed> {
    let hint = "x-gateway-destination-endpoint-subset: ";
    let lists = [
        "10.0.0.1:8000,10.0.0.3:8000",
        "[fd00::4]:8000 , x",
        "",
        "10.9.9.9:1,[::ffff:10.0.0.1]:8000",
    ];
    let all = lists.iter().flat_map(|list| {
        [1_u8, 2, 3, 5].map(|how| format!("{}{hint}{list}\nx-gateway-model-name: sql", char::from(how)))
    });
    numbered(&all.collect::<Vec<_>>())
}

fn configs() -> Vec<Seed> {
    let full = json!({
        "pools": [
            {"name": "llama", "models": ["base", "alias"], "engine": "vllm",
             "discovery": {"static": ["10.0.0.1:8000", "[fd00::1]:8000"]},
             "scrape": {"path": "/m", "port": 9000, "interval": "500ms", "timeout": "1s", "models_interval": "10s",
                        "cluster": "c", "tls": true, "headers": {"authorization": {"env": "KEY"}}},
             "adapters": {"resolver": true, "cold_load": "20s"},
             "routing": {"prefill_tokens_per_second": 9000, "expected_output_tokens": 128, "stale_after": "5s"}},
            {"name": "qwen", "discovery": {"envoy_admin": {"cluster": "q", "admin": "a", "interval": "2s"}}}],
        "trust": {"headers": ["x-gateway-destination-endpoint-subset"]},
        "body": {"hold": "768KiB"}, "status": {"decision_header": true}, "role": "auto", "host": "envoy"});
    let wrong = json!({"pools": [{"name": "A", "discovery": {"static": ["localhost:1"]}, "scrape": {"interval": 5,
        "headers": {"authorization": "Bearer x"}}}], "polls": [], "body": null});
    numbered(&[
        full.to_string().into_bytes(),
        wrong.to_string().into_bytes(),
        world::CONFIG.to_vec(),
        poll::DISCOVERED[0].to_vec(),
        poll::DISCOVERED[1].to_vec(),
        poll::DISCOVERED[2].to_vec(),
    ])
}

/// A short story about each page.
fn replays() -> Vec<Seed> {
    let story = |page: &[u8]| {
        let pod = "10.0.0.1:8000";
        let ask = |id, model: &str| {
            let body = json!({"model": model, "messages": [{"role": "user", "content": "x"}], "stream": true});
            json!({"t": 9, "request": {"id": id, "path": "/v1/chat/completions",
                "headers": [["content-type", "application/json"]], "body": body.to_string()}})
        };
        let events = [
            json!({"t": 0, "pods": [{"name": "p0", "address": pod}, {"name": "p1", "address": "10.0.0.2:8000"}]}),
            json!({"t": 5, "scrape": {"pod": pod, "status": 200, "body": String::from_utf8_lossy(page)}}),
            json!({"t": 6.5, "models": {"pod": pod, "status": 200, "body": r#"{"data":[{"id":"base"}]}"#}}),
            json!({"t": 7, "scrape": {"pod": "10.0.0.2:8000", "error": "timeout"}}),
            ask(1, "base"),
            ask(2, "sql"),
            json!({"t": 80, "first_token": {"id": 1}}),
            json!({"t": 900, "done": {"id": 1, "status": 200}}),
            json!({"t": 901, "done": {"id": 2, "error": "reset"}}),
            json!({"t": 902, "other": {}}),
        ];
        events.map(|event| event.to_string()).join("\n").into_bytes()
    };
    let short = pages().into_iter().filter(|(_, page)| page.len() < 2_500);
    short.map(|(name, page)| (name, story(&page))).collect()
}
