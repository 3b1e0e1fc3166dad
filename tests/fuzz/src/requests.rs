//! What clients send: heads, bodies, and the hints of a trusted hop.

use berth_filter_routing::limits::{BODY_DEPTH_MAX, BOUNDARY_MAX_BYTES, KEPT_MAX_BYTES};
use berth_filter_routing::request::{
    Api, BodyReader, Facts, Head, HeadVerdict, PromptSink, classify, valid_header_name,
};
use berth_filter_routing::view::Steering;
use berth_shared_state::config::Trust;
use berth_shared_state::limits::SUBSET_MAX;
use berth_shared_state::names::{ENDPOINT_SUBSET, MODEL_NAME};
use berth_shared_state::table;
use berth_shared_state::units::Tokens;
use serde_json::{Map, Value};

use crate::choices;
use crate::world::{NOW, World, check_decision, table_bytes};

/// One header per line, `name: value`; a pseudo header begins with its colon.
fn headers(text: &[u8]) -> Vec<(&str, &[u8])> {
    let header = |line| {
        let line: &[u8] = line;
        let colon = line.iter().skip(1).position(|&byte| byte == b':')? + 1;
        let (name, value) = line.split_at(colon);
        Some((core::str::from_utf8(name).ok()?, &value[1..]))
    };
    text.split(|&byte| byte == b'\n').filter_map(header).collect()
}

/// First byte: the body's end (1); second: the hold bound as a power of two.
pub fn head(data: &[u8]) {
    let ([end, bound], text) = choices(data);
    let headers = headers(text);
    let classify = |headers: &[(&str, &[u8])], hold_bytes| {
        let end_of_stream = end & 1 == 1;
        classify(&Head { headers, end_of_stream }, hold_bytes)
    };
    let hold_bytes = 1_usize << (bound % 32);
    let (verdict, unbound) = (classify(&headers, hold_bytes), classify(&headers, usize::MAX));
    match (&verdict, &unbound) {
        (HeadVerdict::Pass(a), HeadVerdict::Pass(b)) => assert_eq!(a, b, "the bound changes no reason"),
        (HeadVerdict::Hold(a), HeadVerdict::Hold(b)) => {
            assert_eq!(a.api(), b.api());
            assert!(a.bound() <= hold_bytes && a.bound() <= b.bound());
        }
        (verdict, unbound) => panic!("{verdict:?} under {hold_bytes} bytes, {unbound:?} without a bound"),
    }
    if let HeadVerdict::Hold(_) = verdict {
        let first = |name: &str| headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        assert!(first(":method").is_none_or(|(_, method)| method.trim_ascii() == b"POST"));
        assert!(first(":path").is_some() && first(":protocol").is_none() && end & 1 == 0);
    }
    let shown = format!("{verdict:?}");
    let upper: Vec<String> = headers.iter().map(|(name, _)| name.to_ascii_uppercase()).collect();
    let upper: Vec<_> = upper
        .iter()
        .zip(&headers)
        .map(|(name, (_, value))| (name.as_str(), *value))
        .collect();
    assert_eq!(
        format!("{:?}", classify(&upper, hold_bytes)),
        shown,
        "the case of names matters"
    );
    let more: Vec<_> = headers.iter().copied().chain([("x-other", &b"POST"[..])]).collect();
    assert_eq!(
        format!("{:?}", classify(&more, hold_bytes)),
        shown,
        "an unknown header matters"
    );
    let query: Vec<(&str, Vec<u8>)> = headers
        .iter()
        .map(|(name, value)| {
            let query: &[u8] = if name.eq_ignore_ascii_case(":path") {
                b"?a=/v1/models"
            } else {
                b""
            };
            (*name, [value.trim_ascii(), query].concat())
        })
        .collect();
    let query: Vec<_> = query.iter().map(|(name, value)| (*name, value.as_slice())).collect();
    assert_eq!(format!("{:?}", classify(&query, hold_bytes)), shown, "a query matters");
}

const APIS: [Api; 9] = [
    Api::Chat,
    Api::Completions,
    Api::Responses,
    Api::Messages,
    Api::Embeddings,
    Api::Rerank,
    Api::Audio,
    Api::Tokenize,
    Api::Generate,
];

/// What reached the sink: text as it came, tokens as `<7>`, a further prompt as `<>`.
#[derive(Default, PartialEq)]
struct Heard {
    prompt: Vec<u8>,
    media: Vec<u8>,
}

impl PromptSink for Heard {
    fn text(&mut self, piece: &[u8]) {
        self.prompt.extend(piece);
    }
    fn token(&mut self, token: u32) {
        self.prompt.extend(format!("<{token}>").bytes());
    }
    fn media(&mut self, piece: &[u8]) {
        self.media.extend(piece);
    }
    fn next_prompt(&mut self) {
        self.prompt.extend(b"<>");
    }
}

/// First byte: the API, or multipart (128); the next two: how the body is split.
pub fn body(data: &[u8]) {
    let ([how, a, b], body) = choices(data);
    let (api, multipart) = (APIS[usize::from(how & 127) % APIS.len()], how & 128 != 0);
    let reader = if multipart {
        BodyReader::multipart(api, boundary_of(body))
    } else {
        BodyReader::json(api)
    };
    let (mut whole, mut heard) = (reader.clone(), Heard::default());
    whole.feed(body, &mut heard);
    let facts = whole.finish();
    let (mut parts, mut heard_in_parts) = (reader, Heard::default());
    for chunk in split(body, u16::from_le_bytes([a, b])) {
        parts.feed(chunk, &mut heard_in_parts);
        assert!(!parts.facts().complete, "only the end of a body makes it complete");
    }
    assert_eq!(parts.finish(), facts, "a split changes the facts");
    assert!(heard == heard_in_parts, "a split changes the prompt");
    check_facts(&facts, api);
    if let (false, Ok(Value::Object(map))) = (multipart, serde_json::from_slice(body)) {
        check_against(&facts, api, &map);
    }
}

/// The boundary that a multipart body begins with.
fn boundary_of(body: &[u8]) -> &[u8] {
    let line = body
        .split(|&byte| byte == b'\n')
        .next()
        .unwrap_or_default()
        .trim_ascii_end();
    let boundary = line.strip_prefix(b"--").unwrap_or_default();
    let usable = (1..=BOUNDARY_MAX_BYTES).contains(&boundary.len()) && !boundary.iter().any(u8::is_ascii_control);
    if usable { boundary } else { b"b" }
}

/// Cuts a body: chunks of random length, some of them empty, short ones for low seeds.
fn split(mut body: &[u8], seed: u16) -> Vec<&[u8]> {
    let mut rng = fastrand::Rng::with_seed(u64::from(seed));
    let longest = [1, 2, 7, 64, 1000][usize::from(seed) % 5];
    let mut chunks = Vec::new();
    while !body.is_empty() {
        let (chunk, rest) = body.split_at(rng.usize(0..=longest).min(body.len()));
        chunks.push(chunk);
        body = rest;
    }
    chunks
}

fn check_facts(facts: &Facts, api: Api) {
    assert_eq!(facts.api, Some(api));
    assert_ne!(
        facts.complete, facts.malformed,
        "a body that was read to its end is one or the other"
    );
    assert!(facts.choices >= 1 && facts.prompts >= 1);
    assert!(!(facts.model_too_long && facts.model.is_some()));
    for text in [&facts.model, &facts.cache_salt].into_iter().flatten() {
        // Bytes that are no UTF-8 become one character each, at most.
        assert!(text.chars().count() <= KEPT_MAX_BYTES);
    }
    assert!(facts.model.as_ref().is_none_or(|name| !name.is_empty()));
    if let Some(name) = facts.model.as_ref().filter(|name| valid_header_name(name)) {
        assert!(name.len() <= 256 && name.bytes().all(|byte| (0x21..0x7F).contains(&byte)));
    }
    let prompt = facts.prompt.estimate(4.0);
    assert!(
        prompt <= facts.prompt.estimate(2.0),
        "fewer bytes per token, more tokens"
    );
    for rate in [0.0, f64::NAN, f64::INFINITY, -1.0] {
        assert_eq!(facts.prompt.estimate(rate), prompt, "a rate that cannot be is not used");
    }
    let need = facts.need(Tokens(256), 4.0);
    assert!(api == Api::Tokenize || need >= prompt);
    assert!(need <= facts.need(Tokens(u64::MAX), 4.0));
}

/// What a JSON parser says of the same body.
fn check_against(facts: &Facts, api: Api, map: &Map<String, Value>) {
    if depth(map.values()) > BODY_DEPTH_MAX {
        return;
    }
    assert!(facts.complete, "a parser takes this body");
    let adapter = ["adapter_id", "lora_path"].iter().any(|key| map.contains_key(*key)) || api == Api::Generate;
    match map.get("model") {
        _ if adapter => {}
        None => assert_eq!((&facts.model, facts.model_too_long), (&None, false)),
        Some(Value::String(name)) if name.len() > KEPT_MAX_BYTES => assert!(facts.model_too_long),
        Some(Value::String(name)) => {
            assert_eq!(facts.model.as_ref(), Some(name).filter(|name| !name.is_empty()));
        }
        Some(_) => {}
    }
    if let Some(Value::Bool(stream)) = map.get("stream") {
        assert_eq!(facts.stream, *stream);
    }
    let bound = map.get("max_tokens").and_then(Value::as_u64);
    if let (Some(bound), Api::Chat, None) = (bound, api, map.get("max_completion_tokens")) {
        assert_eq!(facts.max_output, Some(Tokens(bound)));
    }
}

/// Nesting of an object with these values.
fn depth<'a>(values: impl Iterator<Item = &'a Value>) -> u32 {
    let inner = values.map(|value| match value {
        Value::Array(items) => depth(items.iter()),
        Value::Object(map) => depth(map.values()),
        _ => 0,
    });
    1 + inner.max().unwrap_or(0)
}

/// First byte: which headers are trusted (1 subset, 2 model), and no table (4). Headers follow.
pub fn subset(data: &[u8]) {
    let ([how], text) = choices(data);
    let headers = headers(text);
    let trusted = [(how & 1 != 0, ENDPOINT_SUBSET), (how & 2 != 0, MODEL_NAME)];
    let trust = Trust {
        filters: Vec::new(),
        headers: { trusted }
            .into_iter()
            .filter(|(is, _)| *is)
            .map(|(_, name)| name.to_owned())
            .collect(),
    };
    let steering = Steering::from_headers(&trust, headers.iter().copied());
    let has = |name: &str| headers.iter().any(|(key, _)| key.eq_ignore_ascii_case(name));
    assert_eq!(steering.subset.is_some(), how & 1 != 0 && has(ENDPOINT_SUBSET));
    assert!(steering.model.is_none() || (how & 2 != 0 && has(MODEL_NAME)));
    if steering
        .subset
        .as_ref()
        .is_some_and(|hint| hint.split(',').count() > SUBSET_MAX)
    {
        return;
    }
    let bytes = if how & 4 == 0 { table_bytes() } else { Vec::new() };
    let table = table::decode(&bytes).ok();
    let decide = || World::new(&bytes, &[]).decide_for(&Facts::default(), &steering, NOW);
    let decision = decide();
    check_decision(&decision, table.as_ref(), steering.subset.as_deref());
    assert_eq!(decision, decide(), "equal input, equal seed");
}
