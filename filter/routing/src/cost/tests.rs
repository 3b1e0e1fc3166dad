use berth_shared_state::table::{Slow, Tempo};
use berth_shared_state::units::Millis;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use super::*;
use crate::decision::PoolFacts;
use crate::decision::tests::world::{NOW, Pod, World, ago, idle};
use crate::ledger::InUse;

const NEED: Need = Need {
    prompt: Tokens(800),
    cached: Tokens(0),
    output: Tokens(200),
    prompts: 1,
};

/// Terms of the first pod.
fn priced(pods: Vec<Pod>) -> Terms {
    priced_with(pods, &PoolFacts::default())
}

fn priced_with(pods: Vec<Pod>, known: &PoolFacts) -> Terms {
    let world = World { pods, ..World::of(0) };
    let snapshot = world.snapshot();
    let facts = world.facts(&snapshot);
    let mut fleet = Fleet::new(known, 8_000);
    for pod in &facts {
        fleet.add(pod, Stage::of(pod));
    }
    let question = Question {
        fleet: &fleet,
        now: NOW,
        avoid: true,
        slow_start: Millis(20_000),
    };
    terms(
        &facts[0],
        Stage::of(&facts[0]),
        &NEED,
        0.0,
        Others::default(),
        &question,
    )
}

fn bent(bend: impl Fn(&mut Pod)) -> Pod {
    let mut pod = idle(0);
    bend(&mut pod);
    pod
}

#[track_caller]
fn near(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-3, "{found} instead of {expected}");
}

#[test]
fn the_queue_is_our_own_in_tokens_and_others_in_requests() {
    let pod = bent(|pod| {
        pod.load(0, 5, 0.0);
        pod.own.unanswered = 2;
        pod.own.unanswered_tokens = Tokens(3_200);
        pod.own.unanswered_at_sample = 2;
    });
    // 3,200 tokens of ours; 5 - 2 of others, each like ours: 1,600. Theirs were read half a second ago.
    near(priced(vec![pod]).queue, 3_200.0 / 8.0 + 3.0 * 1_600.0 / 8.0 - 500.0);
}

#[test]
fn what_we_sent_after_the_sample_is_not_taken_out_of_it() {
    let pod = bent(|pod| {
        pod.load(0, 10, 0.0).unanswered(1, 800);
    });
    near(priced(vec![pod]).queue, 800.0 / 8.0 + 10.0 * 800.0 / 8.0 - 500.0);
}

#[test]
fn what_others_had_queued_is_done_by_and_by() {
    #[track_caller]
    fn check(read: u64, expected: f64) {
        let pod = bent(|pod| {
            pod.load(0, 10, 0.0).row.scraped_at = Some(ago(read));
        });
        near(priced(vec![pod]).queue, expected);
    }
    // Ten times 100 ms.
    check(0, 1_000.0);
    check(400, 600.0);
    check(2_000, 0.0);
}

#[test]
fn queued_requests_of_others_have_the_size_that_the_counters_show() {
    let pod = bent(|pod| {
        pod.load(0, 14, 0.0).unanswered(1, 800);
        pod.row.rates.prompt_tokens = Some(6_000.0);
        pod.row.rates.cached_prompt_tokens = Some(2_000.0);
        // What ended says nothing: while load grows, ten times as many began.
        pod.row.rates.requests = Some(1.0);
    });
    let known = PoolFacts {
        prompt: Some(600.0),
        ..PoolFacts::default()
    };
    // A third of 600 tokens is cached.
    near(
        priced_with(vec![pod], &known).queue,
        800.0 / 8.0 + 14.0 * 400.0 / 8.0 - 500.0,
    );
}

#[test]
fn harm_grows_with_the_batch_and_with_those_who_wait() {
    let pod = bent(|pod| {
        pod.load(10, 0, 0.0);
        pod.own.generating = 4; // Part of the ten.
    });
    near(priced(vec![pod]).harm, 0.1 * 100.0 * 10.0 + 2.0 * 10.0);
    let pod = bent(|pod| {
        pod.load(10, 3, 0.0).unanswered(2, 0); // On top of the ten, and of the three.
    });
    near(priced(vec![pod]).harm, 100.0 * 5.0 + 0.1 * 100.0 * 12.0 + 2.0 * 12.0);
}

#[test]
fn own_load_counts_even_where_the_gauge_shows_less() {
    let pod = bent(|pod| {
        pod.load(1, 0, 0.1);
        pod.own.generating = 6;
        pod.own.context_tokens = Tokens(49_000);
    });
    let terms = priced(vec![pod]);
    near(terms.harm, 0.1 * 100.0 * 6.0 + 2.0 * 6.0);
    near(terms.memory, 150.0); // k = 0.49 + 0.01.
}

#[test]
fn memory_rises_without_a_gap_downwards() {
    #[track_caller]
    fn check(used: f32, expected: f64) {
        near(priced(vec![bent(|pod| drop_load(pod, used))]).memory, expected);
    }
    fn drop_load(pod: &mut Pod, used: f32) {
        pod.load(0, 0, used);
    }
    check(0.0, 150.0 * 0.01 / 0.99);
    check(0.49, 150.0);
    // The cap is 150 x 199; beyond 1 comes the wait for room.
    let at = |used| priced(vec![bent(|pod| drop_load(pod, used))]).memory;
    near(at(0.988), 29_850.0);
    assert!(at(0.995) > 39_850.0);
    let rising: Vec<_> = (0..=1_000).map(|part| at(part as f32 / 1_000.0)).collect();
    assert!(rising.is_sorted());
}

#[test]
fn gauges_outside_their_range_are_unknown_or_cut() {
    for (kv, like) in [
        (f32::NAN, None),
        (f32::INFINITY, None),
        (-1.0, Some(0.0)),
        (7.0, Some(1.0)),
    ] {
        let odd = bent(|pod| pod.row.load.kv_mean = Some(kv));
        let plain = bent(|pod| pod.row.load.kv_mean = like);
        assert_eq!(priced(vec![odd]), priced(vec![plain]), "{kv}");
    }
}

#[test]
fn a_rate_counts_only_when_it_is_one_and_clearly_another() {
    #[track_caller]
    fn check(rate: Option<f64>, prefill: f64) {
        near(priced(vec![bent(|pod| pod.rate = rate)]).prefill, prefill);
    }
    check(None, 100.0);
    check(Some(8.0 * 1.69), 100.0);
    check(Some(8.0 * 1.71), 100.0 / 1.71);
    check(Some(8.0 / 1.69), 100.0);
    check(Some(8.0 / 1.71), 171.0);
    check(Some(0.0), 100.0);
    check(Some(f64::NAN), 100.0);
    check(Some(1e-9), 800_000.0);
}

#[test]
fn a_pool_without_any_rate_still_has_finite_costs() {
    let not_a_rate = PoolFacts {
        rate: Some(f64::NAN),
        ..PoolFacts::default()
    };
    let fleet = Fleet::new(&not_a_rate, 0);
    let world = World::of(1);
    let snapshot = world.snapshot();
    let facts = world.facts(&snapshot);
    near(fleet.rate(&facts[0], Stage::Fresh), RATE_MIN);
}

#[test]
fn overdue_starts_after_twice_the_prediction_and_a_second() {
    #[track_caller]
    fn check(age: u64, expected: f64) {
        let pod = bent(|pod| pod.own.oldest_unanswered = Some((ago(age), Millis(500))));
        near(priced(vec![pod]).overdue, expected);
    }
    check(2_000, 0.0);
    check(2_010, 10.0);
    check(12_000, 10_000.0);
}

#[test]
fn a_silent_engine_costs_what_neither_prompts_nor_jitter_explain() {
    #[track_caller]
    fn check(late: u64, change: fn(&mut Pod), expected: f64) {
        let pod = bent(|pod| {
            pod.late = Millis(late);
            change(pod);
        });
        near(priced(vec![pod]).overdue, expected);
    }
    // An ordinary prompt is like the one at hand: 800 tokens, 100 ms.
    check(225, |_| {}, 0.0);
    check(325, |_| {}, 100.0);
    // As many are ahead.
    check(525, |pod| _ = pod.unanswered(1, 800), 100.0);
    // It was to load an adapter first.
    check(
        2_525,
        |pod| pod.own.oldest_unanswered = Some((ago(300), Millis(1_100))),
        100.0,
    );
    // Of both the worse counts.
    check(
        1_325,
        |pod| pod.own.oldest_unanswered = Some((ago(2_500), Millis(500))),
        500.0,
    );
    check(
        1_325,
        |pod| pod.own.oldest_unanswered = Some((ago(2_010), Millis(500))),
        100.0,
    );
}

#[test]
fn an_adapter_costs_by_its_warmth() {
    #[track_caller]
    fn check(tier: Tier, expected: f64) {
        near(adapter(tier, 2_000.0, Slots::default()), expected);
    }
    for tier in [Tier::Base, Tier::Active, Tier::Resident, Tier::Recent] {
        check(tier, 0.0);
    }
    check(Tier::Host, 300.0);
    for tier in [Tier::Registered, Tier::Loadable, Tier::Unlisted] {
        check(tier, 2_000.0);
    }
}

/// Slots of a pod with two, where own requests use `own`, the page shows `shown` in flight, and `sent` were sent by this
/// proxy, for adapter 9.
#[track_caller]
fn check_slots(own: &[u64], shown: &[u64], sent: &[u64], elsewhere: f64, has: f64, excess: f64) {
    let pod = bent(|pod| {
        pod.in_use = own.iter().map(|adapter| InUse::of(*adapter)).collect();
        let read = pod.row.scraped_at.unwrap();
        pod.seen = shown.iter().map(|adapter| (*adapter, read)).collect();
        pod.seen.push((77, ago(9_000)));
        pod.recent = sent.iter().map(|adapter| (*adapter, ago(2_000))).collect();
    });
    let world = World {
        pods: vec![pod],
        ..World::of(0)
    };
    let snapshot = world.snapshot();
    let facts = world.facts(&snapshot);
    let slots = |stage, tier| Slots::of(&facts[0], stage, tier, 9, Some(2), elsewhere);
    assert_eq!(slots(Stage::Fresh, Tier::Host), Slots { has, excess });
    assert_eq!(slots(Stage::Fresh, Tier::Base), Slots { has: 1.0, excess: 0.0 });
    if own.is_empty() {
        assert_eq!(slots(Stage::Unknown, Tier::Host), Slots::default());
    }
}

#[test]
fn own_requests_and_what_pages_show_of_others_tell_how_many_slots_are_taken() {
    check_slots(&[], &[], &[], 0.0, 0.0, 0.0);
    check_slots(&[1], &[], &[], 0.0, 0.0, 0.0);
    check_slots(&[1, 2], &[], &[], 0.0, 0.0, 1.0);
    check_slots(&[1, 2, 1, 3, 2], &[], &[], 0.0, 0.0, 2.0);
    // Ours is in flight.
    check_slots(&[1, 2, 9], &[], &[], 0.0, 1.0, 0.0);
    // Others sent them.
    check_slots(&[], &[1, 2, 3], &[], 0.0, 0.0, 2.0);
    check_slots(&[1], &[1, 2], &[], 0.0, 0.0, 1.0);
    check_slots(&[], &[1, 9], &[], 0.0, 1.0, 0.0);
    // We sent them, and they have ended; or others did as well.
    check_slots(&[], &[1, 2, 9], &[1, 2, 9], 0.0, 0.0, 0.0);
    check_slots(&[], &[1, 2, 9], &[1, 2, 9], 0.75, 0.75, 0.5);
}

#[test]
fn a_new_pod_costs_ten_times_as_much_and_less_every_second() {
    #[track_caller]
    fn check(age: u64, times: f64) {
        let pod = bent(|pod| {
            pod.load(10, 0, 0.0).row.since = ago(age);
        });
        let terms = priced(vec![pod]);
        let work = terms.queue + terms.prefill + terms.harm;
        near(terms.warming, work * (times - 1.0));
    }
    // Within 20 s.
    check(0, 10.0);
    check(2_000, 10.0);
    check(5_000, 4.0);
    check(10_000, 2.0);
    check(20_000, 1.0);
    check(3_600_000, 1.0);
}

/// A pod that usually takes 10 ms for a step, and is so many times slower now.
fn slowed(times: f32, bend: impl Fn(&mut Pod)) -> Pod {
    bent(|pod| {
        pod.row.tempo = Some(tempo(10.0));
        pod.slow = (times > 1.0).then_some(Slow {
            times,
            still_since: None,
            again: NOW,
        });
        bend(pod);
    })
}

/// A step of so many milliseconds, in the time of which 80 prompt tokens are computed.
const fn tempo(step: f32) -> Tempo {
    Tempo {
        step,
        token: step / 80.0,
    }
}

/// Prefill of the first pod beside one that has its usual tempo: 100 ms where it is not slow.
#[track_caller]
fn check_slow(pod: Pod, prefill: f64) {
    near(priced(vec![pod, slowed(1.0, |_| {})]).prefill, prefill);
}

#[test]
fn a_slow_pod_reads_prompts_as_much_slower() {
    let slow = |times| slowed(times, |_| {});
    check_slow(slow(1.0), 100.0);
    check_slow(slow(2.9), 100.0);
    check_slow(slow(3.1), 310.0);
    check_slow(slow(10.0), 1_000.0);
    check_slow(slow(f32::MAX), 10_000.0);
    // It was a slow one before: 0.8 tokens per ms, and a tenth of that.
    check_slow(slowed(10.0, |pod| pod.rate = Some(0.8)), 10_000.0);
}

#[test]
fn a_pool_that_is_slow_altogether_has_no_slow_pod() {
    let slow = |times| slowed(times, |_| {});
    near(priced(vec![slow(10.0), slow(10.0), slow(10.0)]).prefill, 100.0);
    // The others keep a fifth, it a hundredth.
    near(priced(vec![slow(100.0), slow(5.0), slow(5.0)]).prefill, 2_000.0);
    // Where no other tells, it is the only one.
    near(priced(vec![slow(10.0), idle(1)]).prefill, 1_000.0);
}

#[test]
fn a_page_that_stands_still_may_be_one_long_step() {
    let still = |tokens| {
        slowed(100.0, |pod| {
            pod.slow.as_mut().unwrap().still_since = Some(ago(1_000));
            pod.unanswered(1, tokens);
        })
    };
    // A hundred steps of 10 ms. This proxy sent work for so much of it.
    check_slow(still(0), 10_000.0);
    check_slow(still(320), 2_000.0);
    check_slow(still(4_000), 100.0);
}

#[test]
fn an_answer_that_takes_longer_elsewhere_costs_a_tenth_of_that() {
    #[track_caller]
    fn check(step: Option<f32>, times: f32, answer: f64, harm: f64) {
        let pod = slowed(times, |pod| {
            pod.row.tempo = step.map(tempo);
            pod.load(5, 0, 0.0);
        });
        let terms = priced(vec![pod, slowed(1.0, |_| {})]);
        near(terms.answer, answer);
        near(terms.harm, 0.1 * terms.prefill * 5.0 + harm);
    }
    check(Some(10.0), 1.0, 0.0, 10.0);
    check(None, 1.0, 0.0, 10.0);
    check(Some(29.0), 1.0, 0.0, 10.0);
    // 200 tokens, 40 ms more each; and each of the five others waits so much longer for one sequence more.
    check(Some(50.0), 1.0, 800.0, 50.0);
    check(Some(10.0), 5.0, 800.0, 50.0);
}

#[test]
fn one_step_that_is_too_short_does_not_price_the_pool() {
    // Four of 10 ms: the mean is 8, and the best is believed to be 0.8.
    let step = |step| slowed(1.0, |pod| pod.row.tempo = Some(tempo(step)));
    let pods = |short| vec![step(10.0), step(10.0), step(10.0), step(10.0), step(short)];
    near(priced(pods(1.0)).answer, 180.0);
    near(priced(pods(1e-9)).answer, 184.0);
}

#[test]
fn the_tempo_stands_in_for_a_rate_that_nobody_learned() {
    #[track_caller]
    fn check(step: f32, rate: Option<f64>, other: Option<f64>, prefill: f64) {
        let pod = slowed(1.0, |pod| (pod.row.tempo, pod.rate) = (Some(tempo(step)), rate));
        let pods = vec![pod, slowed(1.0, |pod| pod.rate = other)];
        let known = PoolFacts {
            rate: other,
            ..PoolFacts::default()
        };
        near(priced_with(pods, &known).prefill, prefill);
    }
    // Of the other, with a step of 10 ms, 8 tokens per ms were learned.
    let eight = Some(8.0);
    check(10.0, None, eight, 100.0);
    check(50.0, None, eight, 500.0);
    check(2.0, None, eight, 20.0);
    check(50.0, Some(4.0), eight, 200.0);
    // Not more than three times another: it is the pool's.
    check(30.0, None, eight, 100.0);
    check(4.0, None, eight, 100.0);
    // In the measure of what was learned: half of the rate, and five times the step.
    check(50.0, None, Some(4.0), 1_000.0);
    // Nothing was learned: 80 tokens in the time of a step.
    check(50.0, None, None, 500.0);
    check(20.0, None, None, 150.0);
}

#[test]
fn beside_others_the_tempo_tells_more_than_what_was_learned() {
    let pods = || {
        let slow = slowed(1.0, |pod| (pod.row.tempo, pod.rate) = (Some(tempo(50.0)), Some(8.0)));
        vec![slow, slowed(1.0, |pod| pod.rate = Some(8.0))]
    };
    let prefill = |elsewhere| {
        let known = PoolFacts {
            rate: Some(8.0),
            elsewhere,
            ..PoolFacts::default()
        };
        priced_with(pods(), &known).prefill
    };
    near(prefill(0.0), 100.0);
    // By tempo 1.6 and 8 tokens per ms, 9.6 for both; 16 were learned. So it is 1.6 x 16 / 9.6.
    near(prefill(0.5), 300.0);
}

#[test]
fn a_tempo_has_no_measure_where_only_others_taught_a_rate() {
    // An engine that shows no tempo was tried; of the two that do, neither was.
    let pods = vec![
        slowed(1.0, |pod| pod.row.tempo = Some(tempo(2.0))),
        slowed(1.0, |_| {}),
        bent(|pod| pod.rate = Some(8.0)),
    ];
    let known = PoolFacts {
        rate: Some(8.0),
        elsewhere: 0.5,
        ..PoolFacts::default()
    };
    near(priced_with(pods, &known).prefill, 100.0);
}

#[test]
fn a_pod_whose_load_is_unknown_gets_no_credit_for_its_tempo() {
    let pods = vec![
        slowed(1.0, |pod| {
            pod.row.tempo = Some(tempo(2.0));
            pod.row.scraped_at = None;
        }),
        slowed(1.0, |_| {}),
    ];
    let known = PoolFacts {
        rate: Some(8.0),
        ..PoolFacts::default()
    };
    near(priced_with(pods, &known).prefill, 100.0);
}

#[test]
fn what_others_are_thought_to_have_sent_takes_room() {
    let pod = bent(|pod| pod.row.load.kv_capacity = Some(Tokens(100_000)));
    let memory = |since| {
        let world = World {
            pods: vec![pod.clone()],
            ..World::of(0)
        };
        let snapshot = world.snapshot();
        let facts = world.facts(&snapshot);
        let fleet = Fleet::new(&PoolFacts::default(), 8_000);
        let question = Question {
            fleet: &fleet,
            now: NOW,
            avoid: true,
            slow_start: Millis(0),
        };
        let others = Others {
            since,
            ..Others::default()
        };
        terms(&facts[0], Stage::Fresh, &NEED, 0.0, others, &question).memory
    };
    near(memory(0.0), 150.0 * 0.01 / 0.99);
    // Each like this one, 800 tokens, and half of its answer: 100. Ten of them are 0.09 of the memory.
    near(memory(10.0), 150.0 * 0.10 / 0.90);
    // A guess fills no pod, whatever its size: half of what is free, and 0.01.
    near(memory(1_000.0), 150.0 * 0.51 / 0.49);
    near(memory(1e9), 150.0 * 0.51 / 0.49);
}

#[test]
fn a_pod_from_the_future_is_not_new() {
    let pod = bent(|pod| pod.row.since = UnixMillis(NOW.0 + 1));
    near(priced(vec![pod]).warming, 0.0);
}

#[test]
fn who_has_no_slot_waits_for_one() {
    let slots = |has, excess| Slots { has, excess };
    near(adapter(Tier::Recent, 2_000.0, slots(0.0, 2.0)), 6_000.0);
    near(adapter(Tier::Registered, 2_000.0, slots(0.0, 2.0)), 8_000.0);
    near(adapter(Tier::Active, 2_000.0, slots(0.5, 2.0)), 3_000.0);
    near(adapter(Tier::Active, 2_000.0, slots(1.0, 2.0)), 0.0);
}

#[test]
fn the_cost_is_the_sum_of_its_named_terms() {
    let one = Terms {
        queue: 1.0,
        prefill: 2.0,
        away: 512.0,
        harm: 4.0,
        memory: 8.0,
        adapter: 16.0,
        overdue: 32.0,
        failed: 64.0,
        stuck: 128.0,
        warming: 1024.0,
        uncertainty: 256.0,
        answer: 2048.0,
        unseen: 4096.0,
    };
    near(one.total(), 8191.0);
    near(one.first_token(0.0), 19.0);
    near(one.blurred(), 13.0);
    let names: Vec<_> = one.named().map(|(name, _)| name).to_vec();
    let json = serde_json::to_value(one).unwrap();
    assert!(names.iter().all(|name| json.get(name).is_some()), "{json}");
}
