//! Virtual time: which root context ticks when.

use crate::guest::{guest, host, said_where};
use berth_tests_host::{Host, Plugin, Settings};
use std::time::Duration;

fn ticking(milliseconds: u32) -> Vec<u8> {
    guest(&format!(
        r#"
(func (export "proxy_on_configure") (param i32 i32) (result i32)
  (drop (call $set_tick (i32.const {milliseconds})))
  (i32.const 1))
(func (export "proxy_on_tick") (param i32) (call $tell @"tick"))
"#
    ))
}

#[test]
fn ticks_of_all_vms_come_in_order_of_time_and_the_canary_never_ticks() {
    let mut host = Host::new(Settings {
        workers: 1,
        ..Settings::default()
    });
    host.add_filter(&ticking(20), Plugin::new("f", "")).expect("good");
    host.add_service(&ticking(30), Plugin::new("s", "")).expect("good");
    host.advance(Duration::from_millis(59));
    assert_eq!(
        said_where(&mut host),
        [
            "20 f@main: tick",
            "20 f@w0: tick",
            "30 s@main: tick",
            "40 f@main: tick",
            "40 f@w0: tick",
        ]
    );
    host.advance(Duration::from_millis(1));
    let order = ["60 s@main: tick", "60 f@main: tick", "60 f@w0: tick"];
    assert_eq!(said_where(&mut host), order);
    assert_eq!(host.until_next_event(), Some(Duration::from_millis(20)));
}

#[test]
fn a_tick_may_change_its_period_and_stop() {
    let body = r#"
(global $ticks (mut i32) (i32.const 0))
(func (export "proxy_on_configure") (param i32 i32) (result i32)
  (drop (call $set_tick (i32.const 1000)))
  (drop (call $set_tick (i32.const 10)))
  (i32.const 1))
(func (export "proxy_on_tick") (param i32)
  (global.set $ticks (i32.add (global.get $ticks) (i32.const 1)))
  (call $say @"tick" (global.get $ticks))
  (if (i32.eq (global.get $ticks) (i32.const 2)) (then (drop (call $set_tick (i32.const 50)))))
  (if (i32.eq (global.get $ticks) (i32.const 3)) (then (drop (call $set_tick (i32.const 0))))))
"#;
    let mut host = host();
    host.add_service(&guest(body), Plugin::new("s", "")).expect("good");
    host.advance(Duration::from_secs(5));
    let said = said_where(&mut host);
    assert_eq!(said, ["10 s@main: tick 1", "20 s@main: tick 2", "70 s@main: tick 3"]);
    assert_eq!(host.until_next_event(), None);
}

#[test]
fn the_guest_sees_virtual_time() {
    let body = r#"
(func (export "proxy_on_configure") (param i32 i32) (result i32)
  (drop (call $set_tick (i32.const 250)))
  (i32.const 1))
(func (export "proxy_on_tick") (param i32)
  (drop (call $time (i32.const 8)))
  (call $say @"ms" (i32.wrap_i64
    (i64.rem_u (i64.div_u (i64.load (i32.const 8)) (i64.const 1000000)) (i64.const 100000)))))
"#;
    let mut host = Host::new(Settings {
        start: Duration::from_secs(1_700_000_042),
        ..Settings::default()
    });
    host.add_service(&guest(body), Plugin::new("s", "")).expect("good");
    host.advance(Duration::from_millis(500));
    let texts: Vec<String> = host.log().into_iter().map(|line| line.text).collect();
    assert_eq!(texts, ["ms 42250", "ms 42500"]);
}
