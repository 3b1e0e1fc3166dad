//! From module to running plugin: what is refused, and what runs where.

use crate::guest::{guest, host, said_where};
use berth_tests_host::{Plugin, Thread, imports};

/// An unfinished module: no prelude, the ABI's marks only.
fn bare(body: &str) -> Vec<u8> {
    let module = format!(
        r#"(module {body} (memory (export "memory") 1)
           (func (export "proxy_abi_version_0_2_1"))
           (func (export "malloc") (param i32) (result i32) (i32.const 1024)))"#
    );
    wat::parse_str(module).expect("valid text")
}

#[track_caller]
fn check_refused(wasm: &[u8], reason: &str) {
    let refused = host().add_filter(wasm, Plugin::new("f", ""));
    let text = format!("{:#}", refused.expect_err("refused"));
    assert!(text.contains(reason), "{text}");
}

#[test]
fn a_plugin_starts_on_the_canary_then_on_the_main_thread_then_on_each_worker() {
    let body = r#"
(func (export "_initialize") (call $tell @"initialize"))
(func (export "proxy_on_context_create") (param i32 i32) (call $say @"create" (local.get 0)))
(func (export "proxy_on_vm_start") (param i32 i32) (result i32)
  (call $say @"start" (local.get 1)) (i32.const 1))
(func (export "proxy_on_configure") (param i32 i32) (result i32)
  (drop (call $get_buffer (i32.const 7) (i32.const 1) (i32.const 99) (i32.const 0) (i32.const 4)))
  (call $tell_result) (i32.const 1))
"#;
    let mut host = host();
    let mut plugin = Plugin::new("f", "abc");
    plugin.vm_configuration = b"12345".to_vec();
    host.add_filter(&guest(body), plugin).expect("good");
    let mut expected = Vec::new();
    for place in ["canary", "main", "w0", "w1"] {
        for text in ["initialize", "create 1", "start 5", "bc"] {
            expected.push(format!("0 f@{place}: {text}"));
        }
    }
    assert_eq!(said_where(&mut host), expected);
}

#[test]
fn two_plugins_with_the_same_vm_share_it() {
    let body = r#"
(global $roots (mut i32) (i32.const 0))
(func (export "proxy_on_configure") (param i32 i32) (result i32)
  (global.set $roots (i32.add (global.get $roots) (i32.const 1)))
  (call $say @"roots" (global.get $roots))
  (i32.const 1))
"#;
    let wasm = guest(body);
    let mut host = host();
    host.add_service(&wasm, Plugin::new("a", "")).expect("good");
    host.add_service(&wasm, Plugin::new("b", "other configuration"))
        .expect("good");
    let mut apart = Plugin::new("c", "");
    apart.vm_id = "own".to_owned();
    host.add_service(&wasm, apart).expect("good");
    let said = said_where(&mut host);
    let on_main: Vec<&String> = said.iter().filter(|line| line.contains("main")).collect();
    assert_eq!(on_main, ["0 a@main: roots 1", "0 b@main: roots 2", "0 c@main: roots 1"]);
}

#[test]
fn unknown_imports_are_named() {
    let wasm = bare(
        r#"(import "env" "proxy_clear_route_cache" (func (param i32)))
           (import "env" "proxy_log" (func (param i32 i32 i32) (result i32)))
           (import "wasi_snapshot_preview1" "path_open" (func))"#,
    );
    check_refused(&wasm, "env.proxy_clear_route_cache, wasi_snapshot_preview1.path_open");
    assert_eq!(
        imports(&wasm).expect("valid"),
        [
            "env.proxy_clear_route_cache",
            "env.proxy_log",
            "wasi_snapshot_preview1.path_open"
        ]
    );
}

#[test]
fn calling_what_is_not_imitated_is_a_trap_that_names_it() {
    let wasm = bare(
        r#"(import "env" "proxy_grpc_cancel" (func $cancel (param i32) (result i32)))
           (func (export "proxy_on_configure") (param i32 i32) (result i32)
             (call $cancel (i32.const 1)))"#,
    );
    check_refused(&wasm, "this host does not imitate proxy_grpc_cancel");
}

#[test]
fn an_import_of_another_type_is_refused() {
    check_refused(&bare(r#"(import "env" "proxy_log" (func (param i64)))"#), "proxy_log");
}

#[test]
fn a_module_must_say_its_abi_and_allocate() {
    let module = |export: &str| {
        let text = format!(r#"(module (func (export "{export}")))"#);
        wat::parse_str(text).expect("valid text")
    };
    check_refused(&module("malloc"), "proxy_abi_version_0_2_1");
    check_refused(&module("proxy_abi_version_0_2_1"), "proxy_on_memory_allocate");
    check_refused(b"\0asm", "not a valid wasm module");
}

#[test]
fn a_bad_configuration_is_refused_with_the_guests_words() {
    let body = r#"
(func (export "proxy_on_configure") (param i32 i32) (result i32)
  (call $tell @"no such pool") (i32.const 0))
"#;
    check_refused(&guest(body), "proxy_on_configure returned false: no such pool");
}

#[test]
fn only_logging_is_open_while_the_module_initialises() {
    let body = r#"(func (export "_initialize") (drop (call $set_tick (i32.const 1))))"#;
    check_refused(&guest(body), "restricted during _initialize");
}

#[test]
fn wasi_gives_clocks_random_bytes_and_environment_and_no_files() {
    let wasm = wat::parse_str(
        r#"(module
(import "env" "proxy_log" (func $log (param i32 i32 i32) (result i32)))
(import "wasi_snapshot_preview1" "clock_time_get" (func $clock (param i32 i64 i32) (result i32)))
(import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
(import "wasi_snapshot_preview1" "environ_sizes_get" (func $sizes (param i32 i32) (result i32)))
(import "wasi_snapshot_preview1" "environ_get" (func $environ (param i32 i32) (result i32)))
(import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
(import "wasi_snapshot_preview1" "fd_close" (func $close (param i32) (result i32)))
(import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
(memory (export "memory") 1)
(func (export "proxy_abi_version_0_2_1"))
(func (export "malloc") (param i32) (result i32) (i32.const 4096))
(func (export "proxy_on_configure") (param i32 i32) (result i32)
  (if (call $clock (i32.const 0) (i64.const 0) (i32.const 8)) (then unreachable))
  (if (i64.ne (i64.load (i32.const 8)) (i64.const 1700000000000000000)) (then unreachable))
  (if (call $clock (i32.const 1) (i64.const 0) (i32.const 8)) (then unreachable))
  (if (i64.ne (i64.load (i32.const 8)) (i64.const 0)) (then unreachable))
  (if (i32.ne (call $clock (i32.const 2) (i64.const 0) (i32.const 8)) (i32.const 58)) (then unreachable))
  (if (call $random (i32.const 16) (i32.const 8)) (then unreachable))
  (if (i64.eqz (i64.load (i32.const 16))) (then unreachable))
  (if (call $random (i32.const 16) (i32.const 65537)) (then) (else unreachable))
  (if (call $sizes (i32.const 24) (i32.const 28)) (then unreachable))
  (if (i32.ne (i32.load (i32.const 24)) (i32.const 2)) (then unreachable))
  (if (call $environ (i32.const 32) (i32.const 64)) (then unreachable))
  (i32.store (i32.const 48) (i32.load (i32.const 32)))
  (i32.store (i32.const 52) (i32.load (i32.const 28)))
  (if (call $write (i32.const 2) (i32.const 48) (i32.const 1) (i32.const 56)) (then unreachable))
  (if (i32.ne (i32.load (i32.const 56)) (i32.load (i32.const 28))) (then unreachable))
  (if (i32.ne (call $close (i32.const 1)) (i32.const 8)) (then unreachable))
  (i32.const 1))
(func (export "proxy_on_tick") (param i32) (call $exit (i32.const 3))))"#,
    )
    .expect("valid text");
    let mut host = host();
    let mut plugin = Plugin::new("s", "");
    plugin.env = [("A", "1"), ("TOKEN", "secret")]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .to_vec();
    let id = host.add_service(&wasm, plugin).expect("good");
    assert_eq!(
        said_where(&mut host),
        ["0 s@canary: A=1\0TOKEN=secret\0", "0 s@main: A=1\0TOKEN=secret\0"]
    );
    assert!(host.fuel_used(id, Thread::Main) > 0);
    assert_eq!(host.memory_size(id, Thread::Main), 65536);
    assert!(!host.is_failed(id, Thread::Main));
}
