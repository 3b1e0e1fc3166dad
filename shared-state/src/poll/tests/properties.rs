//! Any order of events.

use super::*;
use proptest::prelude::*;

/// One thing that may happen.
#[derive(Clone, Debug)]
enum Act {
    Pass(u64),
    Back(u64),
    Answer(usize, u16, u32),
    Unsent(usize),
    Foreign(u64),
    Refresh,
    Pods(Vec<u8>),
    Forget(usize),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => (0u64..2_000).prop_map(Act::Pass),
        1 => (0u64..100_000).prop_map(Act::Back),
        8 => (0usize..8, prop::sample::select(vec![0, 200, 200, 200, 301, 401, 404, 503, 504, 999]), any::<u32>())
            .prop_map(|(at, status, value)| Act::Answer(at, status, value)),
        2 => (0usize..8).prop_map(Act::Unsent),
        1 => any::<u64>().prop_map(Act::Foreign),
        1 => Just(Act::Refresh),
        1 => prop::collection::vec(0u8..6, 0..6).prop_map(Act::Pods),
        1 => (0usize..8).prop_map(Act::Forget),
    ]
}

/// A page of some kind, from a number.
fn some_reply(target: Target, status: u16, value: u32) -> Reply {
    match (target, status) {
        (Target::Metrics(_), 200) => reads(Sample {
            kv_mean: Some(f64::from(value) / 1e9 - 1.0),
            activity: Some(crate::sample::Activity {
                running: vec![format!("a{}", value % 7)],
                ..Default::default()
            }),
            status: [
                Status::Ok,
                Status::Partial,
                Status::Unknown,
                Status::Suspect,
                Status::Reject,
            ][value as usize % 5],
            ..busy(value % 3, value % 2, f64::from(value % 50))
        }),
        (Target::Models(_), 200) => Reply::Lists(vec![
            model("base", None),
            model(&format!("a{}", value % 9), Some("base")),
        ]),
        _ => Reply::Says(status, b"{}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// The rig checks that no target has two calls, that a tick publishes once, and that every
    /// table decodes.
    #[test]
    fn any_order_of_events_keeps_the_rules(acts in prop::collection::vec(act(), 0..120), admin: bool) {
        let pool = if admin { admin_pool() } else { fixed_pool(&[POD, "10.0.0.2:8000"]) };
        let mut rig = Rig::new(&pool);
        for act in acts {
            match act {
                Act::Pass(millis) => {
                    rig.now += millis;
                    rig.send(Event::Tick);
                }
                Act::Back(millis) => rig.now -= millis,
                Act::Answer(at, status, value) if at < rig.open.len() => {
                    let call = rig.open.remove(at);
                    let reply = some_reply(call.target, status, value);
                    rig.reply(call, reply);
                }
                Act::Unsent(at) if at < rig.open.len() => {
                    let call = rig.open.remove(at);
                    rig.reply(call, Reply::Fails(ScrapeError::NotSent));
                }
                Act::Foreign(id) => rig.send(Event::Answer { call: CallId(id), outcome: Err(ScrapeError::Timeout) }),
                Act::Refresh => rig.send(Event::RefreshModels),
                Act::Pods(pods) => {
                    let pods = pods.into_iter().map(|n| Found::at(PodAddress::new(([10, 0, 0, n], 8000).into())));
                    rig.send(Event::Pods(pods.collect()));
                }
                Act::Forget(at) if at < rig.open.len() => {
                    rig.open.remove(at);
                    rig.now += 10_000;
                    rig.send(Event::Tick);
                }
                _ => {}
            }
        }
    }

    /// Whatever a pod does, it is asked at least once per longest back-off.
    #[test]
    fn no_pod_is_forgotten(replies in prop::collection::vec((0u8..4, any::<u32>()), 1..20), seed: u64) {
        let mut rig = Rig::new(&fixed_pool(&[POD]));
        rig.poller = Poller::new(&fixed_pool(&[POD]), 77, seed);
        let mut turn = 0;
        for _ in 0..600 {
            rig.send(Event::Tick);
            for call in core::mem::take(&mut rig.open) {
                let (kind, value) = replies[turn % replies.len()];
                turn += 1;
                match kind {
                    0 => rig.open.push(call),
                    1 => rig.reply(call, Reply::Fails(ScrapeError::Unreachable)),
                    2 => rig.reply(call, Reply::Says(500, b"")),
                    _ => { let reply = some_reply(call.target, 200, value); rig.reply(call, reply) }
                }
            }
            rig.now += 100;
        }
        let asked = rig.asked(metrics_of(POD));
        // 8 intervals, and a call that nobody answered: 1.5 s, and two ticks.
        prop_assert!(asked.windows(2).all(|pair| pair[1] - pair[0] <= 8_000 + 1_500 + 200), "{:?}", asked);
        prop_assert!(*asked.last().unwrap() >= 60_000 - 9_700);
    }
}
