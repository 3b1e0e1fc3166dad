use berth_shared_state::config::Discovery;
use berth_shared_state::sample::{Engine, Level, Status};
use berth_shared_state::table::{Readiness, ScrapeError, Trend};
use berth_shared_state::units::{Millis, Tokens, UnixMillis};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use super::*;
use crate::cost::{Stage, Terms, Tier};
use crate::request::Api;
use world::{ASK, BASE, FR, NOW, SQL, World, ago, ask_for, endpoints, first};

mod names;
mod others;
#[cfg(not(target_arch = "wasm32"))]
mod properties;
mod wishes;
pub(crate) mod world;

#[track_caller]
fn reply(decision: &Decision) -> (u16, &'static str) {
    match &decision.action {
        Action::Reply(refusal) => (refusal.status, refusal.reason.as_str()),
        other => panic!("not refused: {other:?}"),
    }
}

fn cost_of(decision: &Decision, pod: usize) -> &Considered {
    let address = world::address(pod);
    decision.why.considered.iter().find(|one| one.pod == address).unwrap()
}

// ---- Which pods may answer

#[test]
fn pods_that_discovery_rules_out_get_nothing() {
    let mut world = World::of(3);
    world.pods[0].row.readiness = Readiness::NotReady;
    world.pods[1].row.readiness = Readiness::Draining;
    let decision = world.always(ASK, 2);
    assert_eq!(endpoints(&decision), [2]);
    assert_eq!(
        (decision.why.excluded.not_ready, decision.why.excluded.draining),
        (1, 1)
    );
}

#[test]
fn without_a_ready_pod_the_answer_is_503_only_while_discovery_is_current() {
    let mut world = World::of(2);
    for pod in &mut world.pods {
        pod.row.readiness = Readiness::NotReady;
    }
    assert_eq!(reply(&world.decide(ASK)), (503, "no-ready-pod"));
    world.discovery.at = Some(ago(60_000));
    assert_eq!(world.decide(ASK).action, Action::Pass(Reason::DiscoveryStale));
    world.discovery.at = None;
    assert_eq!(world.decide(ASK).action, Action::Pass(Reason::DiscoveryStale));
    world.pods.clear();
    assert_eq!(world.decide(ASK).action, Action::Pass(Reason::DiscoveryStale));
    world.discovery.at = Some(ago(0));
    assert_eq!(reply(&world.decide(ASK)), (503, "no-ready-pod"));
}

#[test]
fn a_static_list_of_dead_pods_is_503() {
    let mut world = World::of(1);
    world.pool.discovery = Discovery::Static(vec![world::address(0)]);
    world.discovery.at = None;
    world.pods[0].row.readiness = Readiness::NotReady;
    assert_eq!(reply(&world.decide(ASK)), (503, "no-ready-pod"));
}

#[test]
fn unknown_readiness_is_never_unavailable() {
    let mut world = World::of(2);
    for pod in &mut world.pods {
        pod.row.readiness = Readiness::Unknown;
        pod.never_read().row.last_error = Some(ScrapeError::Unreachable);
        pod.row.failures = 99;
        pod.avoided_until = Some(UnixMillis(NOW.0 + 1));
    }
    assert_eq!(endpoints(&world.decide(ASK)).len(), 2);
}

#[test]
fn a_subset_hint_binds() {
    #[track_caller]
    fn check(hint: Option<&str>, expected: &[usize]) {
        let mut world = World::of(3);
        world.subset = hint.map(str::to_owned);
        let decision = world.decide(ASK);
        if expected.is_empty() {
            assert_eq!(reply(&decision), (503, "subset-no-match"), "{hint:?}");
        } else {
            let mut found = endpoints(&decision);
            found.sort_unstable();
            assert_eq!(found, expected, "{hint:?}");
        }
    }
    check(None, &[0, 1, 2]);
    check(Some("10.0.0.1:8000"), &[0]);
    check(Some(" 10.0.0.1:8000 ,10.0.0.3:8000"), &[0, 2]);
    check(Some("10.0.0.1:8000,12345"), &[0]);
    check(Some("10.9.9.9:8000"), &[]);
    check(Some("10.0.0.1:8001"), &[]);
    check(Some("10.0.0.1"), &[]);
    check(Some(""), &[]);
}

#[test]
fn a_subset_without_a_ready_pod_is_503_even_when_discovery_is_old() {
    let mut world = World::of(2);
    world.pods[0].row.readiness = Readiness::NotReady;
    world.subset = Some("10.0.0.1:8000".to_owned());
    world.discovery.at = Some(ago(60_000));
    assert_eq!(reply(&world.decide(ASK)), (503, "subset-no-match"));
}

fn without_table(subset: Option<&str>) -> Decision {
    let input = Input {
        pool: &world::pool(),
        snapshot: None,
        pods: &[],
        drawn: None,
        facts: PoolFacts::default(),
        ask: ASK,
        subset,
        admit: None,
        now: NOW,
        in_full: false,
    };
    decide(&input, &mut Rng::with_seed(1))
}

#[test]
fn without_a_table_the_proxy_decides_but_a_subset_still_binds() {
    let decision = without_table(None);
    assert_eq!(decision.action, Action::Pass(Reason::NoTable));
    assert_eq!(decision.why.rung, Some(Rung::NoTable));
    assert_eq!(endpoints(&without_table(Some("10.0.0.2:8000"))), [1]);
    assert_eq!(reply(&without_table(Some(""))), (503, "subset-no-match"));
}

#[test]
fn a_sleeping_pod_is_left_out_until_all_sleep_or_its_page_is_old() {
    let mut world = World::of(2);
    world.pods[0].row.load.sleeping = Some(true);
    world.pods[1].load(9, 9, 0.9);
    assert_eq!(world.always(ASK, 1).why.excluded.asleep, 1);
    world.pods[1].row.load.sleeping = Some(true);
    let decision = world.always(ASK, 0);
    assert_eq!(decision.why.notes, [Note::AllAsleep]);
    world.pods[0].read_at(ago(60_000));
    world.always(ASK, 0);
}

#[test]
fn a_prompt_goes_where_its_length_is_allowed() {
    let long = |prompt, exact| Ask {
        prompt: Tokens(prompt),
        exact: Tokens(exact),
        ..ASK
    };
    let mut world = World::of(2);
    world.pods[0].row.models.as_mut().unwrap().max_model_len = Some(Tokens(4_000));
    world.pods[1].load(0, 20, 0.5);
    // An estimate counts half, since it may be double the truth; token numbers count in full.
    assert_eq!(world.always(long(8_001, 0), 0).why.excluded.too_long, 0);
    assert_eq!(world.always(long(8_002, 0), 1).why.excluded.too_long, 1);
    world.always(long(4_000, 4_000), 0);
    world.always(long(4_001, 4_001), 1);
    // Four prompts are four requests of a quarter each.
    world.always(
        Ask {
            prompts: 4,
            ..long(16_000, 16_000)
        },
        0,
    );
}

#[test]
fn a_prompt_too_long_for_all_goes_to_the_longest_and_the_engine_says_no() {
    let mut world = World::of(3);
    for (pod, limit) in world.pods.iter_mut().zip([4_000, 8_000, 2_000]) {
        pod.row.models.as_mut().unwrap().max_model_len = Some(Tokens(limit));
    }
    let decision = world.always(
        Ask {
            exact: Tokens(9_000),
            prompt: Tokens(9_000),
            ..ASK
        },
        1,
    );
    assert_eq!(decision.why.notes, [Note::LongerThanAllowed]);
    assert_eq!(endpoints(&decision), [1]);
}

// ---- Load

#[test]
fn the_cost_of_an_idle_pod_is_its_prefill() {
    let decision = World::of(1).decide(ASK);
    let one = cost_of(&decision, 0);
    // 800 tokens at 8 per ms; k = 1,000 / 100,000.
    let expected = Terms {
        prefill: 100.0,
        memory: 150.0 * 0.01 / 0.99,
        ..Terms::default()
    };
    assert!((one.cost - expected.total()).abs() < 1e-6, "{one:?}");
    assert_eq!(decision.why.predicted, Some(Millis(100)));
    assert_eq!(one.free, Some(100_000));
}

#[test]
fn a_context_goes_where_it_fits_in_tokens_not_where_the_percentage_is_lower() {
    let mut world = World::of(2);
    // 50 % of 20,000 leaves 10,000; 85 % of 200,000 leaves 30,000.
    world.pods[0].load(2, 0, 0.5).row.load.kv_capacity = Some(Tokens(20_000));
    world.pods[1].load(2, 0, 0.85).row.load.kv_capacity = Some(Tokens(200_000));
    let big = Ask {
        prompt: Tokens(18_000),
        output: Tokens(1_000),
        ..ASK
    };
    world.always(big, 1);
    world.always(ASK, 0);
}

#[test]
fn a_tight_fit_still_beats_a_miss() {
    let mut world = World::of(2);
    world.pods[0].load(0, 0, 0.9895); // 0.9895 + 0.01 = 0.9995: just fits
    world.pods[1].load(0, 0, 0.9905); // 1.0005: does not
    world.always(ASK, 0);
}

#[test]
fn what_was_sent_since_the_sample_takes_room_too() {
    let mut world = World::of(2);
    world.pods[0].load(0, 0, 0.1).own.context_tokens = Tokens(89_500);
    world.pods[0].own.sent_since_tokens = Tokens(89_500);
    world.pods[1].load(0, 0, 0.5);
    let decision = world.always(ASK, 1);
    assert_eq!(cost_of(&decision, 0).free, Some(500));
}

#[test]
fn a_context_must_fit_one_engine_of_a_data_parallel_pod() {
    let mut world = World::of(2);
    // Eight engines of 25,000 each, idle, against one of 60,000, half full.
    world.pods[0].row.load.kv_capacity = Some(Tokens(200_000));
    world.pods[0].row.load.engines = 8;
    world.pods[1].load(3, 0, 0.5).row.load.kv_capacity = Some(Tokens(60_000));
    let big = Ask {
        prompt: Tokens(26_000),
        output: Tokens(200),
        ..ASK
    };
    world.always(big, 1);
    world.always(ASK, 0);
    // Eight prompts spread over the engines.
    world.always(Ask { prompts: 8, ..big }, 0);
}

#[test]
fn a_context_that_no_empty_engine_holds_goes_to_a_full_pod_that_could_hold_it() {
    let mut world = World::of(2);
    world.pods[0].row.load.kv_capacity = Some(Tokens(800_000));
    world.pods[0].row.load.engines = 8;
    world.pods[1].load(9, 0, 0.9).row.load.kv_capacity = Some(Tokens(200_000));
    world.always(
        Ask {
            prompt: Tokens(150_000),
            ..ASK
        },
        1,
    );
}

#[test]
fn unknown_capacity_is_neither_none_nor_endless() {
    let mut world = World::of(3);
    world.pods[0].row.load.kv_capacity = None;
    let decision = world.decide(ASK);
    assert_eq!(cost_of(&decision, 0).terms, cost_of(&decision, 1).terms);
    for pod in &mut world.pods {
        pod.row.load.kv_capacity = None;
    }
    world.pods[1].load(0, 0, 0.8);
    world.pods[2].load(0, 0, 0.8);
    // Nobody's size is known: percentages are all there is, and no request is too big.
    world.always(
        Ask {
            prompt: Tokens(900_000),
            ..ASK
        },
        0,
    );
}

#[test]
fn a_queue_outweighs_an_empty_kv_gauge() {
    let mut world = World::of(2);
    world.pods[0].load(40, 30, 0.001);
    world.pods[1].load(5, 0, 0.7);
    world.always(ASK, 1);
}

#[test]
fn a_full_gauge_without_requests_is_a_last_choice_but_a_choice() {
    let mut world = World::of(2);
    world.pods[0].load(0, 0, 0.99);
    world.always(ASK, 1);
    // k = 1: no more than 29.85 s and 10 s. 500 requests of 800 tokens are 50 s of work.
    world.pods[1].load(50, 500, 0.9);
    world.always(ASK, 0);
}

#[test]
fn own_work_in_flight_keeps_a_herd_apart() {
    let mut world = World::of(4);
    let sent = world.burst(ASK, 100);
    // One request more or less among 25 is within the band of near-equals.
    assert!(sent.iter().all(|sent| (23..=27).contains(sent)), "{sent:?}");
}

#[test]
fn equal_pods_take_turns() {
    let mut world = World::of(5);
    for (pod, at) in world.pods.iter_mut().zip([40, 10, 30, 50, 20]) {
        pod.sent_at = ago(at);
    }
    assert_eq!(endpoints(&world.always(ASK, 3)), [3, 0, 2]);
}

#[test]
fn equal_pods_that_were_sent_nothing_share_by_lot() {
    let tally = World::of(5).tally(ASK, 1_000);
    // Mean 200, standard deviation 12.6.
    assert!(tally.iter().all(|count| (140..=260).contains(count)), "{tally:?}");
}

#[test]
fn five_milliseconds_are_a_tie_and_six_are_not() {
    let mut world = World::of(2);
    world.pods[1].unanswered(0, 39); // 4.9 ms of queue, and 0.06 ms of memory
    assert!(world.tally(ASK, 100).iter().all(|count| *count > 20));
    world.pods[1].unanswered(0, 9); // 6 ms
    world.always(ASK, 0);
}

#[test]
fn three_distinct_pods_are_named_cheapest_first() {
    let mut world = World::of(5);
    for (pod, tokens) in world.pods.iter_mut().zip([4_000, 3_000, 2_000, 1_000, 0]) {
        pod.unanswered(1, tokens);
    }
    let decision = world.decide(ASK);
    assert_eq!(endpoints(&decision), [4, 3, 2]);
    assert_eq!(decision.why.considered.len(), 5);
}

#[test]
fn a_table_that_names_a_pod_twice_yields_it_once() {
    let mut world = World::of(1);
    world.pods.push(world::idle(0));
    assert_eq!(endpoints(&world.decide(ASK)), [0]);
}

#[test]
fn a_clearly_faster_pod_is_worth_a_queue() {
    let mut world = World::of(2);
    // One of 800 tokens ahead, and one behind: 3 x 25 ms, against 100 of an idle one at the pool's rate.
    world.pods[0].unanswered(1, 800).rate = Some(32.0);
    world.always(ASK, 0);
    // 1.6 times is noise.
    world.pods[0].rate = Some(12.8);
    world.always(ASK, 1);
}

// ---- Failures

#[test]
fn a_pod_that_failed_is_avoided_until_its_time_is_over() {
    let mut world = World::of(2);
    world.pods[1].load(30, 30, 0.9);
    world.pods[0].avoided_until = Some(UnixMillis(NOW.0 + 1));
    world.always(ASK, 1);
    world.pods[0].avoided_until = Some(NOW);
    world.always(ASK, 0);
}

#[test]
fn never_more_than_half_of_the_candidates_are_avoided() {
    let mut world = World::of(4);
    world.pods[2].load(30, 30, 0.5);
    world.pods[3].load(30, 30, 0.5);
    for pod in &mut world.pods[..2] {
        pod.avoided_until = Some(UnixMillis(NOW.0 + 1));
    }
    let tally = world.tally(ASK, 50);
    assert_eq!((tally[0], tally[1]), (0, 0));
    world.pods[2].avoided_until = Some(UnixMillis(NOW.0 + 1));
    let decision = world.decide(ASK);
    assert!(first(&decision) < 2);
    assert_eq!(decision.why.notes, [Note::AvoidanceWaived]);
}

#[test]
fn a_stuck_pod_is_avoided_though_its_cache_is_empty() {
    let mut world = World::of(2);
    world.pods[0].load(0, 4, 0.0).row.trend = Trend::Stuck;
    world.pods[1].load(60, 60, 0.98);
    world.always(ASK, 1);
    world.pods.truncate(1);
    world.always(ASK, 0);
}

#[test]
fn an_answer_long_overdue_makes_a_pod_dear() {
    let mut world = World::of(2);
    world.pods[0].own.oldest_unanswered = Some((ago(1_199), Millis(100)));
    world.pods[1].load(0, 0, 0.0);
    assert!(world.tally(ASK, 100)[0] > 20, "1,199 ms are within 2 x 100 + 1,000");
    // 2,200 - 200 - 1,000 = 1,000 ms.
    world.pods[0].own.oldest_unanswered = Some((ago(2_200), Millis(100)));
    let decision = world.always(ASK, 1);
    assert!((cost_of(&decision, 0).terms.overdue - 1_000.0).abs() < 1e-9);
}

#[test]
fn a_load_is_overdue_when_it_takes_longer_than_its_price_and_whatever_needs_none_as_ever() {
    #[track_caller]
    fn check(cold_load: u64, elsewhere: f64, warm: bool, model: &'static str, after: u64) {
        let mut world = World::of(1);
        world.pool.adapters.cold_load = Millis(cold_load);
        world.elsewhere = elsewhere;
        world.pods[0].lists(SQL);
        if warm {
            world.pods[0].active(&[SQL], 4);
        }
        let Action::Route { booking, .. } = world.decide(ask_for(model)).action else {
            panic!()
        };
        let mut overdue = |age| {
            world.pods[0].own.oldest_unanswered = Some((ago(age), booking.predicted));
            cost_of(&world.decide(ASK), 0).terms.overdue
        };
        assert_eq!([overdue(after), overdue(after + 7)], [0.0, 7.0]);
    }
    // Beside 100 ms of prefill, that may take twice as long, and a second.
    check(20_000, 0.0, false, "sql", 20_000 + 1_200);
    check(300_000, 0.0, false, "sql", 300_000 + 1_200);
    // Twice what is expected of a load that nobody says more of.
    check(2_000, 0.0, false, "sql", 4_000 + 1_200);
    // It is the adapter's home, where others may have it loaded, or not.
    check(20_000, 1.0, false, "sql", 20_000 + 1_200);
    check(2_000, 1.0, false, "sql", 2_000 + 1_200);
    check(20_000, 0.0, true, "sql", 1_200);
    check(20_000, 0.0, false, "llama", 1_200);
}

#[test]
fn a_pod_that_nobody_reaches_is_dear_unless_it_answers_us() {
    let mut world = World::of(2);
    world.pods[0].read_at(ago(60_000)).row.last_error = Some(ScrapeError::Unreachable);
    world.pods[0].row.failures = 3;
    world.pods[1].unanswered(25, 20_000); // 2.5 s of our work, and as much of those who come behind
    world.always(ASK, 1);
    world.pods[0].own.generating = 1;
    world.always(ASK, 0);
    world.pods[0].own.generating = 0;
    world.pods[0].row.last_error = Some(ScrapeError::Unauthorized);
    let decision = world.always(ASK, 0);
    assert_eq!(cost_of(&decision, 0).terms.uncertainty, 100.0);
}

// ---- The staleness ladder

#[test]
fn each_rung_is_visible() {
    #[track_caller]
    fn check(age: u64, stage: Stage, rung: Rung) {
        let mut world = World::of(1);
        world.pods[0].read_at(ago(age));
        let decision = world.decide(ASK);
        assert_eq!(cost_of(&decision, 0).stage, stage);
        assert_eq!(decision.why.rung, Some(rung));
    }
    check(500, Stage::Fresh, Rung::Fresh);
    check(6_000, Stage::Ageing, Rung::Ageing);
    check(10_001, Stage::Unknown, Rung::OwnLoad);
}

#[test]
fn an_unread_pod_never_beats_an_idle_one() {
    let cases: [fn(&mut world::Pod); 5] = [
        |pod| _ = pod.never_read(),
        |pod| _ = pod.read_at(ago(60_000)),
        |pod| pod.row.load.status = Status::Unknown,
        |pod| pod.row.load.status = Status::Reject,
        |pod| pod.never_read().rate = Some(800.0),
    ];
    for case in cases {
        let mut world = World::of(2);
        case(&mut world.pods[0]);
        world.always(ASK, 1);
        // Nor one of several when the others are busy.
        let mut world = World::of(4);
        case(&mut world.pods[0]);
        world.pods[2].load(30, 10, 0.9);
        world.pods[3].load(30, 10, 0.9);
        world.always(ASK, 1);
        // Nor in the band of near-equals that a cold adapter or a queue makes wide.
        let mut world = World::of(2);
        case(&mut world.pods[0]);
        for pod in &mut world.pods {
            pod.unanswered(1, 80_000);
        }
        world.always(ASK, 1);
    }
}

#[test]
fn an_unread_pod_is_not_starved_once_the_others_have_work() {
    let mut world = World::of(2);
    world.pods[0].never_read();
    // Ours: known exactly. Two requests ahead are 200 ms, not knowing is 100.
    world.pods[1].unanswered(2, 1_600);
    world.always(ASK, 0);
}

#[test]
fn an_unread_pod_counts_as_the_mean_of_what_others_send() {
    let mut world = World::of(3);
    world.pods[0].never_read();
    world.pods[1].load(10, 14, 0.5);
    world.pods[2].load(0, 0, 0.1);
    let decision = world.decide(ASK);
    let terms = cost_of(&decision, 0).terms;
    // Means: 7 queued of 800 tokens each, 500 ms ago, 5 running (100 x (7 + 0.1 x 5) + 2 x 5), k = 0.3 + 0.01.
    assert!((terms.queue - 200.0).abs() < 1e-6, "{terms:?}");
    assert!((terms.harm - 760.0).abs() < 1e-6, "{terms:?}");
    assert!((terms.memory - 150.0 * 0.31 / 0.69).abs() < 1e-3, "{terms:?}");
    assert!((terms.uncertainty - 100.0).abs() < 1e-6, "{terms:?}");
}

#[test]
fn an_ageing_reading_counts_half_and_own_load_in_full() {
    let mut world = World::of(2);
    world.pods[0].load(0, 150, 0.0).read_at(ago(6_000)).unanswered(1, 800);
    world.pods[1].load(0, 0, 0.0);
    let decision = world.decide(ASK);
    let terms = cost_of(&decision, 0).terms;
    // Mean of 150 (weight 0.5) and 0 (weight 1) is 50; half of each are 100, of 100 ms, less the 6 s since.
    assert!((terms.queue - (100.0 + 4_000.0)).abs() < 1e-6, "{terms:?}");
    assert!((terms.uncertainty - 50.0).abs() < 1e-6, "{terms:?}");
}

#[test]
fn a_stale_single_pod_is_still_used_and_a_stale_one_of_two_is_not_excluded() {
    let mut world = World::of(1);
    world.pods[0].read_at(ago(10_000));
    world.always(ASK, 0);
    let mut world = World::of(2);
    world.pods[0].read_at(ago(60_000)).load(90, 90, 0.99);
    let decision = world.always(ASK, 1);
    assert_eq!(endpoints(&decision), [1, 0]);
}

#[test]
fn when_no_gauge_can_be_believed_the_least_of_our_own_work_decides() {
    let mut world = World::of(3);
    for (pod, requests) in world.pods.iter_mut().zip([3, 1, 2]) {
        pod.never_read().unanswered(requests, u64::from(requests) * 800);
    }
    // Old gauges that say otherwise are not looked at.
    world.pods[0].load(0, 0, 0.0).read_at(ago(60_000));
    let decision = world.always(ASK, 1);
    assert_eq!(decision.why.rung, Some(Rung::OwnLoad));
    assert_eq!(endpoints(&decision), [1, 2, 0]);
}

#[test]
fn a_frozen_pod_is_probed_now_and_then_one_request_at_a_time() {
    let mut world = World::of(3);
    world.pods[0].load(20, 0, 0.99).row.trend = Trend::Frozen;
    let probes = world.tally(ASK, 5_000)[0];
    // One in 50: mean 100, standard deviation 10.
    assert!((60..=140).contains(&probes), "{probes}");
    world.pods[0].unanswered(1, 800);
    assert_eq!(world.tally(ASK, 1_000)[0], 0);
    world.pods[0].own = OwnLoad::default();
    world.pods[0].avoided_until = Some(UnixMillis(NOW.0 + 1));
    assert_eq!(world.tally(ASK, 1_000)[0], 0);
}

#[test]
fn a_contradictory_page_keeps_its_numbers_but_loses_a_tie() {
    let mut world = World::of(2);
    world.pods[0].row.load.status = Status::Suspect;
    let decision = world.always(ASK, 1);
    assert_eq!(cost_of(&decision, 0).terms.uncertainty, 50.0);
}

// ---- What is expected and booked

#[test]
fn expected_output_follows_the_bound_within_reason() {
    #[track_caller]
    fn check(bound: Option<u64>, expected: u64) {
        let facts = Facts {
            max_output: bound.map(Tokens),
            ..forty_bytes()
        };
        assert_eq!(Ask::new(&facts, 4.0, Tokens(200)).output, Tokens(expected));
    }
    check(None, 200);
    check(Some(0), 0);
    check(Some(16), 16);
    check(Some(800), 800);
    check(Some(801), 800);
}

fn forty_bytes() -> Facts {
    let mut facts = Facts::default();
    facts.prompt.ascii_bytes = 40;
    facts
}

#[test]
fn every_choice_of_every_prompt_is_an_answer() {
    let facts = Facts {
        choices: 3,
        prompts: 2,
        ..forty_bytes()
    };
    let ask = Ask::new(&facts, 4.0, Tokens(200));
    assert_eq!((ask.prompt, ask.output, ask.prompts), (Tokens(10), Tokens(200 * 6), 2));
    let none = forty_bytes();
    let ask = Ask::new(&none, 4.0, Tokens(200));
    assert_eq!((ask.output, ask.prompts), (Tokens(200), 1));
}

#[test]
fn counting_tokens_takes_nothing_of_a_pod() {
    let mut facts = Facts {
        api: Some(Api::Tokenize),
        ..forty_bytes()
    };
    facts.prompt.tokens = 7;
    let ask = Ask::new(&facts, 4.0, Tokens(200));
    assert_eq!((ask.prompt, ask.exact, ask.output), (Tokens(0), Tokens(0), Tokens(0)));
}

#[test]
fn the_booking_names_work_context_and_adapter() {
    let mut world = World::of(1);
    world.pods[0].lists(SQL).unanswered(1, 800);
    let booked = |ask| match world.decide(ask).action {
        Action::Route { booking, .. } => booking,
        other => panic!("{other:?}"),
    };
    let expected = Booking {
        work: Tokens(800),
        context: Tokens(1_000),
        // 100 ms of queue, 100 of prefill, and half of the price of a load, 20 s.
        predicted: Millis(10_200),
        adapter: Some(adapter_key("sql")),
        misleads: false,
    };
    assert_eq!(booked(ask_for("sql")), expected);
    assert_eq!(booked(ask_for("llama")).adapter, None);
    assert_eq!(booked(ASK).adapter, None);
}

#[test]
fn reasons_are_compact_json_and_bounded() {
    let world = World::of(40);
    let snapshot = world.snapshot();
    let input = Input {
        pool: &world.pool,
        snapshot: Some(&snapshot),
        pods: &world.facts(&snapshot),
        drawn: None,
        facts: PoolFacts::default(),
        ask: ASK,
        subset: None,
        admit: None,
        now: NOW,
        in_full: false,
    };
    let why = decide(&input, &mut Rng::with_seed(0)).why;
    assert_eq!(why.considered.len(), 3);
    assert_eq!(why.candidates, 40);
    let json = serde_json::to_string(&World::of(1).decide(ASK).why).unwrap();
    assert_eq!(
        json,
        r#"{"pool":"main","prompt":800,"need":1000,"predicted":100,"rung":"fresh","candidates":1,"excluded":{},"considered":[{"pod":"10.0.0.1:8000","tier":"base","stage":"fresh","cost":102,"terms":{"prefill":100,"memory":2},"free":100000}]}"#
    );
}

#[test]
fn a_long_name_is_cut_in_the_reasons() {
    let name = "ü".repeat(200);
    let why = World::of(1).decide(ask_for(&name)).why;
    assert_eq!(why.model.map(|model| model.len()), Some(256));
}

#[test]
fn the_table_for_people_shows_the_winner_first_and_only_terms_that_matter() {
    let mut world = World::of(2);
    world.pods[0].lists(SQL).active(&[SQL], 4).row.name = Some("p0".to_owned());
    world.pods[1].lists(SQL);
    let text = explain::table(&world.decide(ask_for("sql")).why);
    let expected = "\
pool main  model sql  prompt 800 tokens  need 1000 tokens
to 10.0.0.1:8000, first token expected after 100 ms

   pod                 adapter     reading  cost ms  prefill  memory  adapter  free tokens
1  10.0.0.1:8000 (p0)  active      fresh        102      100       2        0       100000
2  10.0.0.2:8000       registered  fresh      20102      100       2    20000       100000

priced 2 pods, best reading: fresh
";
    assert_eq!(text, expected);
}
