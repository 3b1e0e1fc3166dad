//! Hand-computed cases, then properties over random loads.
//!
//! All times below: a step costs 1,000 µs, a prompt token 10 µs, a decoding sequence 100 µs, an adapter 1,000 µs from CPU
//! memory and 10,000 µs more from disk. A block holds 16 tokens.

use super::{Done, Engine, EngineConfig, Event, EventKind, Micros, Refusal, Request, StepCost, StepReport};
use crate::chain::{Segment, of_segments};

const COST: StepCost = StepCost {
    base_ns: 1_000_000,
    prefill_token_ns: 10_000,
    decode_sequence_ns: 100_000,
    adapter_from_cpu: 1_000,
    adapter_from_disk: 10_000,
};

fn config() -> EngineConfig {
    EngineConfig {
        max_num_seqs: 8,
        max_num_batched_tokens: 1024,
        num_gpu_blocks: 101,
        max_model_len: 1600,
        max_loras: 2,
        max_cpu_loras: 4,
        cost: COST,
        ..EngineConfig::h100()
    }
}

fn request(id: u64, prompt_tokens: u32, output_tokens: u32) -> Request {
    Request {
        id,
        chain: Vec::new(),
        prompt_tokens,
        output_tokens,
        adapter: None,
    }
}

fn shared(id: u64, segments: &[(u64, u32)]) -> Request {
    let segments: Vec<_> = segments.iter().map(|&(id, tokens)| Segment { id, tokens }).collect();
    let prompt_tokens = segments.iter().map(|segment| segment.tokens).sum();
    Request {
        chain: of_segments(&segments, 16),
        ..request(id, prompt_tokens, 1)
    }
}

fn with_adapter(request: Request, name: &str) -> Request {
    Request {
        adapter: Some(name.into()),
        ..request
    }
}

/// Submits at time 0, runs to the end, returns everything that happened.
fn run(engine: &mut Engine, requests: Vec<Request>, start: Micros) -> Vec<Event> {
    requests.into_iter().for_each(|request| engine.submit(request, start));
    drain(engine, start).events
}

fn drain(engine: &mut Engine, now: Micros) -> StepReport {
    let mut all = engine.step(now);
    while let Some(at) = all.next_wakeup {
        let report = engine.step(at);
        all.events.extend(report.events);
        all.steps.extend(report.steps);
        all.next_wakeup = report.next_wakeup;
    }
    all
}

fn first_token(events: &[Event], id: u64) -> Option<Micros> {
    events
        .iter()
        .find(|event| event.id == id && matches!(event.kind, EventKind::FirstToken { .. }))
        .map(|event| event.at)
}

fn done(events: &[Event], id: u64) -> Option<(Micros, Done)> {
    events.iter().find_map(|event| match event.kind {
        EventKind::Finished(done) if event.id == id => Some((event.at, done)),
        _ => None,
    })
}

#[track_caller]
fn cached(engine: &mut Engine, request: Request, tokens: u32) {
    let id = request.id;
    let events = run(engine, vec![request], 1_000_000 * id);
    assert_eq!(done(&events, id).map(|done| done.1.cached_tokens), Some(tokens));
}

#[test]
fn a_lone_request_takes_one_prefill_and_one_step_per_further_token() {
    let mut engine = Engine::new(config());
    let events = run(&mut engine, vec![request(1, 32, 3)], 0);
    let times: Vec<_> = events.iter().map(|event| event.at).collect();
    assert_eq!(times, [1320, 2420, 3520, 3520]);
    assert_eq!(events[0].kind, EventKind::FirstToken { after: 1320 });
    assert_eq!(events[1].kind, EventKind::Token { gap: 1100 });
    let (_, done) = done(&events, 1).expect("it ends");
    assert_eq!(
        (done.arrived, done.admitted, done.first_token, done.output_tokens),
        (0, 0, 1320, 3)
    );
}

#[test]
fn a_prompt_above_the_budget_is_computed_in_chunks() {
    let mut engine = Engine::new(EngineConfig {
        max_num_batched_tokens: 16,
        ..config()
    });
    // 16 + 16 + 8 tokens.
    assert_eq!(
        first_token(&run(&mut engine, vec![request(1, 40, 1)], 0), 1),
        Some(1160 + 1160 + 1080)
    );
}

#[test]
fn a_running_decode_shares_the_budget_with_a_newcomers_chunk() {
    let mut engine = Engine::new(EngineConfig {
        max_num_batched_tokens: 16,
        ..config()
    });
    engine.submit(request(1, 16, 4), 0);
    engine.step(0);
    engine.submit(request(2, 30, 1), 10);
    let events = drain(&mut engine, 10).events;
    // After 1's prefill: one decode beside 15 tokens of 2's prompt, twice; then 1 alone.
    assert_eq!(first_token(&events, 1), Some(1160));
    assert_eq!(first_token(&events, 2), Some(1160 + 2 * 1250));
    assert_eq!(done(&events, 1).map(|done| done.0), Some(1160 + 2 * 1250 + 1100));
}

#[test]
fn an_arrival_joins_after_the_step_under_way_and_gauges_lag_by_that_step() {
    let mut engine = Engine::new(config());
    engine.submit(request(1, 16, 3), 0);
    engine.step(0);
    engine.submit(request(2, 16, 1), 500);
    assert_eq!(
        (engine.gauges(600).running, engine.gauges(600).waiting_capacity),
        (0, 0)
    );
    let gauges = engine.gauges(1160).clone();
    assert_eq!((gauges.at, gauges.running, gauges.waiting_capacity), (1160, 1, 1));
    assert!(
        (gauges.kv_usage - 0.01).abs() < 1e-9,
        "one of 100 usable blocks: {}",
        gauges.kv_usage
    );
    let events = drain(&mut engine, 1160).events;
    assert_eq!(done(&events, 2).map(|done| done.0), Some(2420));
    assert_eq!(done(&events, 1).map(|done| done.0), Some(3520));
    assert_eq!((engine.gauges(9999).running, engine.gauges(9999).kv_usage), (0, 0.0));
}

#[test]
fn the_batch_holds_no_more_than_max_num_seqs() {
    let mut engine = Engine::new(EngineConfig {
        max_num_seqs: 1,
        ..config()
    });
    let events = run(&mut engine, vec![request(1, 16, 2), request(2, 16, 1)], 0);
    assert_eq!(done(&events, 1).map(|done| done.0), Some(2260));
    assert_eq!(first_token(&events, 2), Some(3420));
}

#[test]
fn a_later_prompt_reuses_the_full_blocks_it_shares() {
    let mut engine = Engine::new(config());
    cached(&mut engine, shared(1, &[(1, 32), (2, 8)]), 0);
    cached(&mut engine, shared(2, &[(1, 32), (3, 8)]), 32);
    cached(&mut engine, shared(3, &[(1, 20), (3, 20)]), 16);
    cached(&mut engine, shared(4, &[(4, 20), (3, 20)]), 0);
    let counters = engine.counters();
    assert_eq!((counters.prefix_queries, counters.prefix_hits), (160, 48));
    assert_eq!((counters.prompt_tokens, counters.cached_prompt_tokens), (160, 48));
}

#[test]
fn the_last_token_of_a_known_prompt_is_computed_again_with_its_block() {
    let mut engine = Engine::new(config());
    cached(&mut engine, shared(1, &[(1, 32)]), 0);
    cached(&mut engine, shared(2, &[(1, 32)]), 16);
    cached(&mut engine, shared(3, &[(1, 33)]), 32);
}

#[test]
fn an_answer_is_a_prefix_of_the_next_turn() {
    let mut engine = Engine::new(config());
    let turn = [Segment { id: 1, tokens: 24 }, Segment { id: 2, tokens: 9 }];
    let first = Request {
        chain: of_segments(&turn, 16),
        ..request(1, 24, 9)
    };
    run(&mut engine, vec![first], 0);
    // 24 prompt + 9 answered; the ninth token's KV was never computed, so two full blocks are known.
    cached(&mut engine, shared(2, &[(1, 24), (2, 9), (3, 30)]), 32);
}

#[test]
fn prefixes_are_not_shared_between_adapters() {
    let mut engine = Engine::new(config());
    cached(&mut engine, with_adapter(shared(1, &[(1, 40)]), "sql"), 0);
    cached(&mut engine, shared(2, &[(1, 40)]), 0);
    cached(&mut engine, with_adapter(shared(3, &[(1, 40)]), "chat"), 0);
    cached(&mut engine, with_adapter(shared(4, &[(1, 40)]), "sql"), 32);
}

#[test]
fn requests_of_one_step_share_a_prefix_at_once() {
    let mut engine = Engine::new(config());
    engine.submit(shared(1, &[(1, 32), (2, 8)]), 0);
    engine.submit(shared(2, &[(1, 32), (3, 8)]), 0);
    let wakeup = engine.step(0).next_wakeup;
    // 40 tokens of the first and the 8 that the second does not share, in 3 + 1 blocks.
    assert_eq!(wakeup, Some(1480));
    assert_eq!(engine.pool.used(), 4);
}

#[test]
fn the_prefix_unused_longest_is_lost_first_and_from_its_end() {
    let mut engine = Engine::new(EngineConfig {
        num_gpu_blocks: 5,
        ..config()
    });
    cached(&mut engine, shared(1, &[(1, 32)]), 0);
    cached(&mut engine, shared(2, &[(2, 32)]), 0);
    // Takes one block: the second one of prompt 1.
    cached(&mut engine, request(3, 15, 1), 0);
    cached(&mut engine, shared(4, &[(1, 33)]), 16);
}

#[test]
fn out_of_blocks_the_newest_is_preempted_and_computed_again_from_what_is_left() {
    let mut engine = Engine::new(EngineConfig {
        num_gpu_blocks: 5,
        ..config()
    });
    let events = run(&mut engine, vec![request(1, 16, 20), request(2, 16, 20)], 0);
    // Step 1 (1,320) computes both prompts. Steps 2 to 17 (1,200 each) decode both; then each holds two full blocks.
    // Step 18 needs a third for 1: 2 loses both, and one of them is taken. Steps 18 to 20 (1,100) decode 1 alone,
    // because the 33 tokens of 2 do not fit beside it. Step 21 finds 16 of them and computes 17; two decodes follow.
    let (at, first) = done(&events, 1).expect("the first ends");
    assert_eq!((at, first.preemptions), (1320 + 16 * 1200 + 3 * 1100, 0));
    let (at, second) = done(&events, 2).expect("the second ends");
    assert_eq!((at, second.preemptions), (23_820 + 1170 + 2 * 1100, 1));
    assert_eq!((second.output_tokens, second.cached_tokens), (20, 0));
    assert_eq!(engine.counters().preemptions, 1);
    assert_eq!(engine.counters().generation_tokens, 40);
}

#[test]
fn a_prompt_is_admitted_whole_or_not_at_all_unless_told_otherwise() {
    for (reserve_full_prompt, batch) in [(true, 1), (false, 2)] {
        let limits = EngineConfig {
            num_gpu_blocks: 6,
            max_num_batched_tokens: 48,
            reserve_full_prompt,
            ..config()
        };
        let mut engine = Engine::new(limits);
        engine.submit(request(1, 32, 4), 0);
        engine.submit(request(2, 64, 1), 0);
        engine.step(0);
        assert_eq!(engine.running.len(), batch);
    }
}

#[test]
fn a_third_adapter_waits_for_a_slot_while_others_pass_it() {
    let mut engine = Engine::new(config());
    for (id, adapter) in [(1, "sql"), (2, "chat"), (3, "fr"), (4, "sql")] {
        engine.submit(with_adapter(request(id, 16, 2), adapter), 0);
    }
    engine.submit(request(5, 16, 2), 0);
    let first = engine.step(0).next_wakeup.expect("work");
    // Two adapters from disk, four prompts.
    assert_eq!(first, 2 * 11_000 + 1640);
    let gauges = engine.gauges(first).clone();
    assert_eq!(
        (gauges.running, gauges.waiting_capacity, gauges.waiting_deferred),
        (4, 0, 1)
    );
    let names: Vec<_> = gauges.adapters.iter().map(|name| &**name).collect();
    assert_eq!(names, ["sql", "chat"], "an adapter that only waits is not listed");
    let events = drain(&mut engine, first).events;
    // Four decodes, then the third adapter.
    assert_eq!(first_token(&events, 3), Some(first + 1400 + 11_000 + 1160));
    let (gpu, cpu) = engine.resident_adapters();
    assert_eq!(gpu.iter().map(|name| &**name).collect::<Vec<_>>(), ["chat", "fr"]);
    assert_eq!(
        cpu.iter().map(|name| &**name).collect::<Vec<_>>(),
        ["sql", "chat", "fr"]
    );
    assert!(engine.gauges(Micros::MAX).adapters.is_empty());
}

#[test]
fn registering_an_adapter_loads_it_and_the_first_request_waits_for_that_only() {
    let mut engine = Engine::new(config());
    assert_eq!(engine.load_adapter("sql", 0), 11_000);
    engine.submit(with_adapter(request(1, 16, 1), "sql"), 100);
    assert_eq!(engine.step(100).next_wakeup, Some(11_000 + 1160));
    engine.load_adapter("chat", 200);
    assert_eq!(
        engine.step(200).next_wakeup,
        Some(22_000 + 1160),
        "the batch under way waits, too"
    );
}

#[test]
fn a_cancelled_request_frees_its_blocks_and_says_no_more() {
    let mut engine = Engine::new(config());
    engine.submit(request(1, 32, 5), 0);
    engine.step(0);
    engine.cancel(1, 500);
    engine.cancel(99, 500);
    assert_eq!(engine.pool.used(), 0);
    assert!(drain(&mut engine, 500).events.is_empty());
    assert_eq!(engine.gauges(2000).running, 0);
    assert_eq!((engine.counters().cancelled, engine.counters().finished), (1, 0));
}

#[test]
fn what_cannot_be_served_is_refused() {
    let mut engine = Engine::new(EngineConfig {
        max_loras: 0,
        num_gpu_blocks: 5,
        ..config()
    });
    assert_eq!(engine.config().max_model_len, 64, "never more than the pool holds");
    engine.submit(request(1, 60, 4), 0);
    engine.submit(request(1, 1, 1), 0);
    engine.submit(request(2, 60, 5), 0);
    engine.submit(with_adapter(request(3, 1, 1), "sql"), 0);
    let refusals: Vec<_> = engine
        .step(0)
        .events
        .into_iter()
        .map(|event| (event.id, event.kind))
        .collect();
    let expected = [
        (1, Refusal::DuplicateId),
        (2, Refusal::TooLong { limit: 64 }),
        (3, Refusal::AdaptersOff),
    ];
    assert_eq!(
        refusals,
        expected.map(|(id, refusal)| (id, EventKind::Rejected(refusal)))
    );
}

#[test]
fn a_slow_pod_takes_longer_steps() {
    let mut engine = Engine::new(config());
    engine.set_slowdown(2.5);
    assert_eq!(
        first_token(&run(&mut engine, vec![request(1, 32, 1)], 0), 1),
        Some(3300)
    );
    engine.set_slowdown(f64::NAN);
    assert_eq!(
        first_token(&run(&mut engine, vec![request(2, 32, 1)], 10_000), 2),
        Some(11_320)
    );
}

#[test]
fn a_jammed_engine_ends_what_runs_and_admits_nobody() {
    let mut engine = Engine::new(config());
    engine.submit(request(1, 16, 3), 0);
    let _ = engine.step(0);
    engine.jam();
    engine.submit(request(2, 16, 1), 100);
    assert_eq!(engine.forecast_first_token(&request(3, 16, 1), 100, Micros::MAX), None);
    let gauges = |engine: &mut Engine, now| {
        let gauges = engine.gauges(now);
        (gauges.running, gauges.waiting_capacity)
    };
    // 1,160 µs for the prompt, then two steps of 1,100 µs.
    assert_eq!(gauges(&mut engine, 1_160), (1, 1));
    assert_eq!(gauges(&mut engine, 3_360), (0, 1));
    assert_eq!(gauges(&mut engine, 60_000_000), (0, 1));
    engine.cancel(2, 60_000_000);
    assert_eq!(gauges(&mut engine, 60_010_000), (0, 0));
}

mod properties {
    use super::{Engine, EngineConfig, EventKind, Micros, Request, config, drain, first_token};
    use proptest::prelude::{Just, Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest};
    use std::collections::{BTreeMap, BTreeSet};

    #[derive(Debug, Clone)]
    enum Call {
        Submit {
            family: u64,
            prompt: u32,
            output: u32,
            adapter: Option<u8>,
        },
        Cancel {
            index: usize,
        },
        Load {
            adapter: u8,
        },
        Pass {
            time: Micros,
        },
    }

    fn calls() -> impl Strategy<Value = Vec<Call>> {
        let adapter = prop_oneof![Just(None), (0u8..5).prop_map(Some)];
        let submit =
            (0u64..4, 1u32..150, 1u32..60, adapter).prop_map(|(family, prompt, output, adapter)| Call::Submit {
                family,
                prompt,
                output,
                adapter,
            });
        let call = prop_oneof![
            5 => submit,
            1 => any::<usize>().prop_map(|index| Call::Cancel { index }),
            1 => (0u8..5).prop_map(|adapter| Call::Load { adapter }),
            3 => (0u64..20_000).prop_map(|time| Call::Pass { time }),
        ];
        proptest::collection::vec(call, 1..60)
    }

    fn tight() -> EngineConfig {
        EngineConfig {
            max_num_seqs: 5,
            max_num_batched_tokens: 64,
            num_gpu_blocks: 18,
            ..config()
        }
    }

    fn request(id: u64, family: u64, prompt: u32, output: u32, adapter: Option<u8>) -> Request {
        let chain = (0..prompt / 16).map(|block| family * 1000 + u64::from(block)).collect();
        let adapter = adapter.map(|name| format!("a{name}").into());
        Request {
            id,
            chain,
            prompt_tokens: prompt,
            output_tokens: output,
            adapter,
        }
    }

    fn audit(engine: &Engine) {
        let held: usize = engine.sequences.values().map(|sequence| sequence.blocks.len()).sum();
        let (uses, listed) = engine.pool.audit();
        assert_eq!(uses, held as u64, "every use of a block belongs to a request");
        assert_eq!(listed, engine.pool.free());
        assert_eq!(engine.pool.free() + engine.pool.used(), engine.config.usable_blocks());
        let lists: BTreeSet<_> = engine
            .running
            .iter()
            .chain(&engine.waiting)
            .chain(&engine.deferred)
            .collect();
        let length = engine.running.len() + engine.waiting.len() + engine.deferred.len();
        assert_eq!(
            (lists.len(), length),
            (engine.sequences.len(), length),
            "each request is in exactly one list"
        );
        assert!(engine.running.len() <= 5);
        let (gpu, cpu) = engine.resident_adapters();
        assert!(gpu.len() <= 2 && cpu.len() <= 4 && gpu.iter().all(|name| cpu.contains(name)));
        if let Some(flight) = &engine.flight {
            assert!(flight.batch.iter().map(|entry| entry.1).sum::<u32>() <= 64);
            let adapters: BTreeSet<_> = flight
                .batch
                .iter()
                .filter_map(|entry| engine.sequences.get(&entry.0)?.request.adapter.as_ref())
                .collect();
            assert!(adapters.len() <= 2);
        }
    }

    proptest! {
        #[test]
        fn blocks_are_conserved_and_every_request_ends(calls in calls()) {
            let mut engine = Engine::new(tight());
            let (mut now, mut events) = (0, Vec::new());
            let mut expected = BTreeMap::new();
            for (id, call) in (0..).zip(calls) {
                match call {
                    Call::Submit { family, prompt, output, adapter } => {
                        engine.submit(request(id, family, prompt, output, adapter), now);
                        expected.insert(id, output);
                    }
                    Call::Cancel { index } => {
                        let ids: Vec<_> = engine.sequences.keys().copied().collect::<BTreeSet<_>>().into_iter().collect();
                        if let Some(id) = ids.get(index % ids.len().max(1)) {
                            engine.cancel(*id, now);
                            expected.remove(id);
                        }
                    }
                    Call::Load { adapter } => {
                        engine.load_adapter(&format!("a{adapter}"), now);
                    }
                    Call::Pass { time } => now += time,
                }
                events.extend(engine.step(now).events);
                audit(&engine);
            }
            events.extend(drain(&mut engine, now).events);
            audit(&engine);
            prop_assert_eq!(engine.pool.used(), 0);
            prop_assert!(events.is_sorted_by_key(|event| event.at));
            for (id, output) in expected {
                let kinds: Vec<_> = events.iter().filter(|event| event.id == id).map(|event| &event.kind).collect();
                prop_assert_eq!(kinds.len() as u32, output + 1);
                let first = matches!(kinds[0], EventKind::FirstToken { .. });
                prop_assert!(first);
                let last = matches!(kinds.last(), Some(EventKind::Finished(done)) if done.output_tokens == output);
                prop_assert!(last);
            }
        }

        #[test]
        fn a_forecast_comes_true_and_is_never_before_its_bound(
            loads in proptest::collection::vec((0u64..4, 1u32..150, 1u32..60, 0u64..9_000), 1..20),
        ) {
            let (mut engine, mut now) = (Engine::new(tight()), 0);
            for (id, (family, tokens, output, pause)) in (0..).zip(loads) {
                now += pause;
                let next = request(id, family, tokens, output, (family == 3).then_some(1));
                engine.step(now);
                let at = engine.forecast_first_token(&next, now, Micros::MAX).expect("it fits");
                prop_assert!(engine.earliest_first_token(&next, now) <= at);
                prop_assert_eq!(engine.forecast_first_token(&next, now, at - 1), None);
                engine.submit(next, now);
                prop_assert_eq!(first_token(&drain(&mut engine.clone(), now).events, id), Some(at));
                engine.step(now);
            }
        }

        #[test]
        fn a_late_caller_sees_the_same_events(loads in proptest::collection::vec((0u64..4, 1u32..150, 1u32..60), 1..20)) {
            let (mut prompt, mut late) = (Engine::new(tight()), Engine::new(tight()));
            for (id, (family, tokens, output)) in (0..).zip(loads) {
                prompt.submit(request(id, family, tokens, output, None), 0);
                late.submit(request(id, family, tokens, output, None), 0);
            }
            let all = drain(&mut prompt, 0);
            late.step(0);
            prop_assert_eq!(all.events, late.step(u64::MAX / 2).events);
        }
    }
}
