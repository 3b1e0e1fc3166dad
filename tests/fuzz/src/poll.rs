//! Any answers in any order: whatever pods say, what is published must be a table that readers take.

use berth_shared_state::config::Config;
use berth_shared_state::poll::{Effect, Event, Outcome, Poller, Response, Target};
use berth_shared_state::table::{self, ScrapeError};
use berth_shared_state::units::{Millis, UnixMillis};

use crate::check_line;
use crate::world::{self, NOW};

/// Pools whose pods are discovered.
pub const DISCOVERED: [&[u8]; 3] = [
    br#"{"pools": [{"name": "llama", "discovery": {"envoy_admin": {"cluster": "llama"}}}]}"#,
    br#"{"pools": [{"name": "llama", "discovery": {"kubernetes": {"cluster": "c", "namespace": "prod", "service": "llama"}}}]}"#,
    br#"{"pools": [{"name": "llama", "discovery": {"json": {"cluster": "c", "path": "/"}}}]}"#,
];

/// Steps, parted by zero bytes. Of each the first byte says what it is, the second how much time
/// passes before it, the rest is the body.
pub fn poll(data: &[u8]) {
    let discovered = data.first().is_some_and(|&byte| byte & 128 != 0);
    let last = data.last().copied().unwrap_or_default();
    let config = if discovered {
        Config::parse(DISCOVERED[usize::from(last >> 1) % DISCOVERED.len()]).expect("a config")
    } else {
        world::config()
    };
    let mut earlier = table::decode(&world::table_bytes()).expect("a table");
    // Of this configuration, or of an earlier one.
    if last & 1 == 0 {
        earlier.config_epoch = config.epoch;
    }
    let mut poller = Poller::new(&config.pools[0], config.epoch, 3);
    let (mut now, mut seq, mut calls) = (NOW, 0, Vec::new());
    for step in data.split(|&byte| byte == 0).take(64) {
        let (what, wait, body) = match step {
            [what, wait, body @ ..] => (*what, *wait, body),
            _ => (0, 1, &[][..]),
        };
        // Mostly forwards, sometimes back: wall clocks do both.
        now = if wait == 255 {
            UnixMillis(now.0 - 60_000)
        } else {
            now + Millis(u64::from(wait) * 40)
        };
        let pod = world::pods()[usize::from(what >> 3 & 3)];
        let outcome = outcome(what, body);
        let effects = match what & 7 {
            0 => poller.on(Event::Tick, now),
            1 => poller.on(
                Event::Page {
                    target: Target::Metrics(pod),
                    outcome,
                },
                now,
            ),
            2 => poller.on(
                Event::Page {
                    target: Target::Models(pod),
                    outcome,
                },
                now,
            ),
            3 => poller.on(
                Event::Page {
                    target: Target::Discovery,
                    outcome,
                },
                now,
            ),
            4 => poller.on(Event::RefreshModels, now),
            5 => poller.on(Event::Adopt(&earlier), now),
            _ => match calls.pop() {
                Some(call) => poller.on(Event::Answer { call, outcome }, now),
                None => poller.on(Event::Tick, now),
            },
        };
        for effect in effects.into_iter().chain(poller.on(Event::Tick, now)) {
            match effect {
                Effect::Call(call) => calls.push(call.id),
                Effect::Publish { bytes } => {
                    let table = table::decode(&bytes).expect("a table that readers accept");
                    assert!(table.seq > seq, "the number rises with every publish");
                    assert_eq!(table.config_epoch, config.epoch);
                    seq = table.seq;
                }
                Effect::Log { text, .. } => check_line(&text),
                Effect::Count { .. } => {}
            }
        }
    }
}

/// A page, or one of the ways in which a call fails.
fn outcome(what: u8, body: &[u8]) -> Outcome<'_> {
    match what >> 5 & 3 {
        0 | 1 => Ok(Response {
            status: 200,
            body,
            ..Response::default()
        }),
        2 => Ok(Response {
            status: u16::from_le_bytes([body.first().copied().unwrap_or(0), 1]),
            body,
            retry_after: Some(Millis(u64::from(body.last().copied().unwrap_or(0)) << 32)),
            location: core::str::from_utf8(body).ok(),
        }),
        _ => Err([ScrapeError::NotSent, ScrapeError::Timeout, ScrapeError::Unreachable][body.len() % 3]),
    }
}
