//! Shared data and metrics as several VMs see them.

use crate::guest::{get, guest, said};
use berth_tests_host::{CasRules, Host, Plugin, PluginId, Settings};

/// Does what the header `do` says: g = read and remember the cas, s = set with the remembered cas, u = set with 0,
/// e = empty with 0.
const BODY: &str = r#"
(global $cas (mut i32) (i32.const 0))
(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
  (local $what i32) (local $status i32)
  (drop (call $get_header (i32.const 0) @"do" (i32.const 0) (i32.const 4)))
  (local.set $what (i32.load8_u (call $pointer)))
  (if (i32.eq (local.get $what) (i32.const 103)) (then
    (local.set $status (call $get_shared @"key" (i32.const 0) (i32.const 4) (i32.const 8)))
    (if (i32.eqz (local.get $status)) (then
      (global.set $cas (i32.load (i32.const 8)))
      (call $say @"cas" (global.get $cas))
      (call $say @"bytes" (call $size))))
    (call $say @"get" (local.get $status))))
  (if (i32.eq (local.get $what) (i32.const 115))
    (then (call $say @"set" (call $set_shared @"key" @"abc" (global.get $cas)))))
  (if (i32.eq (local.get $what) (i32.const 117))
    (then (call $say @"set" (call $set_shared @"key" @"xy" (i32.const 0)))))
  (if (i32.eq (local.get $what) (i32.const 101))
    (then (call $say @"set" (call $set_shared @"key" (i32.const 0) (i32.const 0) (i32.const 0)))))
  (drop (call $define (i32.const 1) @"flying" (i32.const 8)))
  (drop (call $increment (i32.load (i32.const 8)) (i64.const 1)))
  (i32.const 0))
"#;

struct Rig {
    host: Host,
    id: PluginId,
}

impl Rig {
    fn new(cas_rules: CasRules) -> Self {
        let mut host = Host::new(Settings {
            cas_rules,
            ..Settings::default()
        });
        let plugin = Plugin::new("filter", "");
        let id = host.add_filter(&guest(BODY), plugin).expect("good");
        Self { host, id }
    }

    #[track_caller]
    fn check(&mut self, worker: usize, what: &str, expected: &[&str]) {
        let mut headers = get();
        headers.add("do", what);
        self.host.open(self.id, worker).request(&mut self.host, headers, b"");
        assert_eq!(said(&mut self.host), expected);
    }
}

#[test]
fn two_workers_race_for_a_key_by_envoys_rules() {
    let mut rig = Rig::new(CasRules::Envoy);
    rig.check(0, "g", &["get 1"]);
    rig.check(0, "s", &["set 0"]);
    rig.check(1, "g", &["cas 1", "bytes 3", "get 0"]);
    rig.check(0, "g", &["cas 1", "bytes 3", "get 0"]);
    rig.check(1, "s", &["set 0"]);
    rig.check(0, "s", &["set 8"]);
    rig.check(0, "u", &["set 0"]);
    rig.check(1, "g", &["cas 3", "bytes 2", "get 0"]);
    rig.check(1, "e", &["set 0"]);
    rig.check(0, "g", &["cas 4", "bytes 0", "get 0"]);
    assert_eq!(rig.host.shared_data("", "key"), Some((Vec::new(), 4)));
}

#[test]
fn a_missing_key_takes_any_cas_so_that_two_creators_both_win() {
    let mut rig = Rig::new(CasRules::Envoy);
    rig.check(0, "s", &["set 0"]);
    rig.check(1, "s", &["set 0"]);
}

#[test]
fn under_wasmx_rules_the_second_creator_loses() {
    let mut rig = Rig::new(CasRules::WasmX);
    rig.check(0, "u", &["set 0"]);
    rig.check(1, "u", &["set 8"]);
}

#[test]
fn a_vm_id_is_a_namespace_and_lives_as_long_as_its_last_plugin() {
    let mut host = Host::new(Settings::default());
    let plugin = |name: &str, vm_id: &str| Plugin {
        vm_id: vm_id.to_owned(),
        ..Plugin::new(name, "")
    };
    let wasm = guest(BODY);
    let one = host.add_filter(&wasm, plugin("one", "a")).expect("good");
    let two = host.add_filter(&wasm, plugin("two", "b")).expect("good");
    let ask = |host: &mut Host, id, what| {
        let mut headers = get();
        headers.add("do", what);
        host.open(id, 0).request(host, headers, b"");
        said(host)
    };
    assert_eq!(ask(&mut host, one, "u"), ["set 0"]);
    assert_eq!(ask(&mut host, two, "g"), ["get 1"]);
    let three = host.add_filter(&wasm, plugin("three", "a")).expect("good");
    host.remove(one);
    assert_eq!(host.shared_data_keys("a"), ["key"]);
    assert_eq!(ask(&mut host, three, "g"), ["cas 1", "bytes 2", "get 0"]);
    host.remove(three);
    assert_eq!(host.shared_data_keys("a"), [""; 0]);
}

#[test]
fn a_gauge_is_shared_by_name() {
    let mut rig = Rig::new(CasRules::Envoy);
    rig.check(0, "g", &["get 1"]);
    rig.check(0, "g", &["get 1"]);
    rig.check(1, "g", &["get 1"]);
    assert_eq!(rig.host.gauge("flying"), Some(3));
    assert_eq!(rig.host.counter("flying"), None);
}
