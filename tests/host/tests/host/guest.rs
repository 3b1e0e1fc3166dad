//! Guests in WebAssembly text: a common beginning, and two short hands for data.
//!
//! `@"text"` stands for address and length of that text; `@{a=1|b=2}` for address and length of encoded header pairs.
//! `$say(text, number)` logs `text number`, `$tell(text)` logs the text alone.

use berth_tests_host::{Headers, Host, Plugin, PluginId, Settings, Thread};

const PRELUDE: &str = r#"
(import "env" "proxy_log" (func $log (param i32 i32 i32) (result i32)))
(import "env" "proxy_get_current_time_nanoseconds" (func $time (param i32) (result i32)))
(import "env" "proxy_set_tick_period_milliseconds" (func $set_tick (param i32) (result i32)))
(import "env" "proxy_set_effective_context" (func $act_as (param i32) (result i32)))
(import "env" "proxy_get_shared_data" (func $get_shared (param i32 i32 i32 i32 i32) (result i32)))
(import "env" "proxy_set_shared_data" (func $set_shared (param i32 i32 i32 i32 i32) (result i32)))
(import "env" "proxy_get_header_map_value" (func $get_header (param i32 i32 i32 i32 i32) (result i32)))
(import "env" "proxy_get_header_map_pairs" (func $get_pairs (param i32 i32 i32) (result i32)))
(import "env" "proxy_replace_header_map_value" (func $set_header (param i32 i32 i32 i32 i32) (result i32)))
(import "env" "proxy_get_buffer_bytes" (func $get_buffer (param i32 i32 i32 i32 i32) (result i32)))
(import "env" "proxy_set_buffer_bytes" (func $set_buffer (param i32 i32 i32 i32 i32) (result i32)))
(import "env" "proxy_get_property" (func $get_property (param i32 i32 i32 i32) (result i32)))
(import "env" "proxy_set_property" (func $set_property (param i32 i32 i32 i32) (result i32)))
(import "env" "proxy_continue_stream" (func $resume (param i32) (result i32)))
(import "env" "proxy_send_local_response"
  (func $reply (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
(import "env" "proxy_http_call"
  (func $call (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
(import "env" "proxy_call_foreign_function" (func $foreign (param i32 i32 i32 i32 i32 i32) (result i32)))
(import "env" "proxy_define_metric" (func $define (param i32 i32 i32 i32) (result i32)))
(import "env" "proxy_increment_metric" (func $increment (param i32 i64) (result i32)))
(memory (export "memory") 4)
(global $heap (mut i32) (i32.const 65536))
(func (export "proxy_abi_version_0_2_1"))
(func (export "proxy_on_memory_allocate") (param $size i32) (result i32)
  (local $at i32)
  (local.set $at (global.get $heap))
  (global.set $heap (i32.add (global.get $heap) (local.get $size)))
  (local.get $at))
;; Results of host calls: pointer at 0, size at 4, anything else at 8.
(func $pointer (result i32) (i32.load (i32.const 0)))
(func $size (result i32) (i32.load (i32.const 4)))
(func $tell (param $text i32) (param $length i32)
  (drop (call $log (i32.const 2) (local.get $text) (local.get $length))))
(func $say (param $text i32) (param $length i32) (param $number i32)
  (local $at i32) (local $start i32)
  (local.set $at (i32.const 512))
  (loop $digits
    (local.set $at (i32.sub (local.get $at) (i32.const 1)))
    (i32.store8 (local.get $at) (i32.add (i32.const 48) (i32.rem_u (local.get $number) (i32.const 10))))
    (local.set $number (i32.div_u (local.get $number) (i32.const 10)))
    (br_if $digits (local.get $number)))
  (local.set $at (i32.sub (local.get $at) (i32.const 1)))
  (i32.store8 (local.get $at) (i32.const 32))
  (local.set $start (i32.sub (local.get $at) (local.get $length)))
  (memory.copy (local.get $start) (local.get $text) (local.get $length))
  (call $tell (local.get $start) (i32.sub (i32.const 512) (local.get $start))))
(func $tell_result (call $tell (call $pointer) (call $size)))
"#;

/// Where the data of the short hands begins.
const DATA: usize = 1024;

/// Compiles the prelude with `body`.
pub fn guest(body: &str) -> Vec<u8> {
    let mut data: Vec<u8> = Vec::new();
    let mut text = String::new();
    let mut rest = body;
    while let Some(at) = rest.find("@\"").into_iter().chain(rest.find("@{")).min() {
        let quoted = rest[at..].starts_with("@\"");
        let close = if quoted { '"' } else { '}' };
        let content = &rest[at + 2..];
        let end = content.find(close).expect("an end to the short hand");
        let bytes = match quoted {
            true => content.as_bytes()[..end].to_vec(),
            false => pairs(&content[..end]),
        };
        text += &rest[..at];
        text += &format!("(i32.const {}) (i32.const {})", DATA + data.len(), bytes.len());
        data.extend(bytes);
        rest = &content[end + 1..];
    }
    text += rest;
    let escaped: String = data.iter().map(|byte| format!("\\{byte:02x}")).collect();
    let module = format!("(module {PRELUDE} {text} (data (i32.const {DATA}) \"{escaped}\"))");
    wat::parse_str(&module).expect("valid text")
}

fn pairs(list: &str) -> Vec<u8> {
    let pairs: Vec<(&str, &str)> = list
        .split('|')
        .map(|pair| pair.split_once('=').expect("name=value"))
        .collect();
    let mut bytes = (pairs.len() as u32).to_le_bytes().to_vec();
    for (name, value) in &pairs {
        bytes.extend((name.len() as u32).to_le_bytes());
        bytes.extend((value.len() as u32).to_le_bytes());
    }
    for (name, value) in &pairs {
        bytes.extend(format!("{name}\0{value}\0").bytes());
    }
    bytes
}

pub fn host() -> Host {
    Host::new(Settings::default())
}

/// A host with a filter of this body, and the plugin changed by `change`.
pub fn filter(body: &str, change: impl FnOnce(&mut Plugin)) -> (Host, PluginId) {
    let mut host = host();
    let mut plugin = Plugin::new("filter", "");
    change(&mut plugin);
    let id = host.add_filter(&guest(body), plugin).expect("a good plugin");
    host.take_log();
    (host, id)
}

/// What the guests said since the last look, without where.
pub fn said(host: &mut Host) -> Vec<String> {
    let log = host.take_log();
    log.into_iter()
        .filter(|line| !line.from_host)
        .map(|line| line.text)
        .collect()
}

/// What they said, as `time-since-start-in-ms plugin@thread: text`.
pub fn said_where(host: &mut Host) -> Vec<String> {
    let start = Settings::default().start;
    let place = |thread| match thread {
        Thread::Canary => "canary".to_owned(),
        Thread::Main => "main".to_owned(),
        Thread::Worker(index) => format!("w{index}"),
    };
    let log = host.take_log();
    log.into_iter()
        .map(|line| {
            let at = (line.at - start).as_millis();
            format!("{at} {}@{}: {}", line.plugin, place(line.thread), line.text)
        })
        .collect()
}

pub fn get() -> Headers {
    Headers::from([(":method", "GET"), (":path", "/"), (":authority", "a.test")])
}

pub fn post() -> Headers {
    Headers::from([(":method", "POST"), (":path", "/v1?x=1"), (":authority", "a.test")])
}
