//! Models and adapters: who may be asked, who is warm, and when the answer is 404.

use super::*;
use crate::decision::adapter_key;
use crate::ledger::InUse;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

// ---- Warmth

#[test]
fn an_adapter_goes_to_the_free_pod_that_holds_it_not_to_the_saturated_one() {
    let mut world = World::of(3);
    for pod in &mut world.pods {
        pod.lists(SQL);
    }
    world.pods[0].active(&[SQL], 4).load(60, 20, 0.97);
    world.pods[1].active(&[SQL], 4).load(1, 0, 0.1);
    world.always(ask_for("sql"), 1);
}

#[test]
fn a_saturated_home_and_a_cold_load_are_traded_by_cost() {
    let mut world = World::of(2);
    for pod in &mut world.pods {
        pod.lists(SQL);
    }
    // 50 queued of 800 tokens are 4.5 s by now, and as much is lost by those who come behind: less than 20 s.
    world.pods[0].active(&[SQL], 4).load(10, 50, 0.5);
    world.pods[1].load(10, 0, 0.5).resident(&[]);
    world.always(ask_for("sql"), 0);
    // 150 are 14.5 and 15 s.
    world.pods[0].load(10, 150, 0.5);
    world.always(ask_for("sql"), 1);
    world.pool.adapters.cold_load = Millis(40_000);
    world.always(ask_for("sql"), 0);
}

#[test]
fn own_queue_alone_decides_when_a_second_home_is_worth_it() {
    let mut world = World::of(2);
    for pod in &mut world.pods {
        pod.lists(SQL);
    }
    // Nobody else sends, so there is no belief: 19 s against 20, then 21.
    world.pods[0].active(&[SQL], 4).own.unanswered_tokens = Tokens(19_000 * 8);
    world.always(ask_for("sql"), 0);
    world.pods[0].own.unanswered_tokens = Tokens(21_500 * 8);
    world.always(ask_for("sql"), 1);
}

#[test]
fn an_idle_adapter_stays_warm_while_it_is_among_the_last_that_fit() {
    let mut world = World::of(2);
    for pod in &mut world.pods {
        pod.lists(SQL).active(&[], 2);
    }
    let tier = |world: &World| cost_of(&world.decide(ask_for("sql")), 0).tier;
    world.pods[0].sent("sql", ago(60_000));
    assert_eq!(tier(&world), Tier::Recent);
    world.always(ask_for("sql"), 0);
    world.pods[0].sent("a", ago(50_000));
    assert_eq!(tier(&world), Tier::Recent);
    world.pods[0].sent("b", ago(40_000));
    assert_eq!(tier(&world), Tier::Host);
    world.always(ask_for("sql"), 0);
    for name in 0..13 {
        world.pods[0].sent(&name.to_string(), ago(30_000));
    }
    assert_eq!(tier(&world), Tier::Host, "the sixteenth");
    world.pods[0].sent("last", ago(20_000));
    assert_eq!(tier(&world), Tier::Registered, "the seventeenth");
}

#[test]
fn where_the_engine_says_what_is_in_memory_it_is_believed_over_older_memory() {
    let mut world = World::of(1);
    world.pods[0]
        .lists(SQL)
        .lists(FR)
        .sent("sql", ago(60_000))
        .resident(&[(FR, Level::Gpu)]);
    let tier = |world: &World, name| cost_of(&world.decide(ask_for(name)), 0).tier;
    assert_eq!(tier(&world, "sql"), Tier::Registered);
    assert_eq!(tier(&world, "fr"), Tier::Resident);
    world.pods[0].sent("sql", ago(100));
    assert_eq!(tier(&world, "sql"), Tier::Recent, "sent after the page of 500 ms ago");
    world.pods[0].resident(&[(FR, Level::Cpu)]);
    assert_eq!(tier(&world, "fr"), Tier::Host);
    // A page too old to be believed leaves only our memory.
    world.pods[0].read_at(ago(60_001));
    assert_eq!(tier(&world, "fr"), Tier::Registered);
    assert_eq!(tier(&world, "sql"), Tier::Recent);
}

#[test]
fn what_was_seen_in_flight_is_warm_whoever_sent_it_and_pushes_out_what_we_sent() {
    let mut world = World::of(1);
    world.pods[0].lists(SQL).active(&[], 2);
    let tier = |world: &World| cost_of(&world.decide(ask_for("sql")), 0).tier;
    world.pods[0].saw("sql", ago(9_000));
    assert_eq!(tier(&world), Tier::Recent);
    world.pods[0].saw("a", ago(8_000)).sent("a", ago(8_500));
    assert_eq!(tier(&world), Tier::Recent, "one other, known twice");
    world.pods[0].sent("b", ago(7_000));
    assert_eq!(tier(&world), Tier::Host);
    world.pods[0].sent("sql", ago(6_000));
    assert_eq!(tier(&world), Tier::Recent, "used again");
    world.pods[0].saw("c", ago(5_000)).saw("d", ago(4_000));
    assert_eq!(tier(&world), Tier::Host);
    world.pods[0].saw("sql", ago(3_000));
    assert_eq!(tier(&world), Tier::Recent);
}

#[test]
fn a_pod_whose_slots_our_own_requests_fill_loses_to_a_cold_one() {
    let mut world = World::of(2);
    world.pool.adapters.cold_load = Millis(2_000);
    for pod in &mut world.pods {
        pod.lists(SQL).active(&[], 2);
    }
    world.pods[0].sent("sql", ago(1_000));
    world.always(ask_for("sql"), 0);
    world.pods[0].in_use = [1, 2].map(InUse::of).to_vec();
    // The wait for a slot is longer than the load.
    world.always(ask_for("sql"), 1);
    // One of ours is in flight there: it has one.
    world.pods[0].in_use.push(InUse::of(adapter_key("sql")));
    world.always(ask_for("sql"), 0);
}

#[test]
fn slots_taken_by_others_cost_a_wait() {
    #[track_caller]
    fn check(others: &[u16], max: u32, expected: f64) {
        let mut world = World::of(1);
        let others: Vec<_> = others.iter().copied().map(berth_shared_state::table::NameId).collect();
        world.pods[0].lists(SQL).sent("sql", ago(100)).active(&others, max);
        let terms = cost_of(&world.decide(ask_for("sql")), 0).terms;
        assert_eq!(terms.adapter, expected, "{others:?} of {max}");
    }
    check(&[], 4, 0.0);
    check(&[10, 11], 4, 0.0);
    check(&[10, 11, 12], 4, 0.0);
    check(&[10, 11, 12, 13], 4, 3_000.0);
    check(&[10, 11, 12, 13, 14], 4, 6_000.0);
    check(&[10, 11], 0, 0.0);
}

#[test]
fn a_page_without_adapter_series_is_no_error() {
    let mut world = World::of(2);
    world.pods[0].lists(SQL);
    world.pods[1].lists(SQL);
    let decision = world.decide(ask_for("sql"));
    assert_eq!(cost_of(&decision, 0).tier, Tier::Registered);
    assert!(!decision.refresh_models);
}

#[test]
fn proxies_that_do_not_talk_agree_on_a_home_for_a_cold_adapter() {
    let mut world = World::of(6);
    world.elsewhere = 1.0;
    for pod in &mut world.pods {
        pod.lists(SQL).lists(FR).load(4, 0, 0.1);
    }
    let home = first(&world.decide(ask_for("sql")));
    // All the load is others': 20 s x (1 - 0.9).
    let decision = world.always(ask_for("sql"), home);
    assert!((cost_of(&decision, home).terms.adapter - 2_000.0).abs() < 1e-6);
    // The rest of the table, and the order in it, do not matter.
    let mut fewer = world.clone();
    fewer.pods.remove((home + 1) % 6);
    fewer.pods.reverse();
    let snapshot_home = endpoints(&fewer.decide(ask_for("sql")))[0];
    assert_eq!(snapshot_home, home);
    // Where the engine says that it is not in memory, agreement does not help.
    world.pods[home].resident(&[]);
    let decision = world.decide(ask_for("sql"));
    assert!((cost_of(&decision, home).terms.adapter - 20_000.0).abs() < 1e-6);
    // At the second home it costs what it takes, elsewhere it would be one more copy: 20 s x (1 + 5 x 0.9).
    let mut costs: Vec<f64> = (0..6)
        .filter(|pod| *pod != home)
        .map(|pod| cost_of(&decision, pod).terms.adapter.round())
        .collect();
    costs.sort_by(f64::total_cmp);
    assert_eq!(costs, [20_000.0, 110_000.0, 110_000.0, 110_000.0, 110_000.0]);
}

#[test]
fn proxies_that_find_the_home_of_an_adapter_full_agree_on_a_second() {
    let mut world = World::of(6);
    world.elsewhere = 0.75;
    for pod in &mut world.pods {
        pod.lists(SQL).active(&[], 1).load(4, 0, 0.1);
    }
    let home = first(&world.decide(ask_for("sql")));
    let second = endpoints(&world.decide(ask_for("sql")))[1];
    // One slot, and a request of ours has it: an adapter more waits for longer than a load takes.
    world.pool.adapters.cold_load = Millis(2_000);
    world.pods[home].in_use = vec![InUse::of(adapter_key("fr"))];
    world.always(ask_for("sql"), second);
}

#[test]
fn of_two_pods_that_have_an_adapter_all_take_the_same_so_that_a_slot_is_free() {
    let mut world = World::of(6);
    for pod in &mut world.pods {
        pod.lists(SQL).lists(FR);
    }
    for pod in [1, 4] {
        world.pods[pod].active(&[SQL, FR], 4);
    }
    let [sql, fr] = ["sql", "fr"].map(|name| first(&world.decide(ask_for(name))));
    assert!([1, 4].contains(&sql) && [1, 4].contains(&fr));
    world.always(ask_for("sql"), sql);
    world.always(ask_for("fr"), fr);
    // A third has it, too: it is popular, and they take turns.
    let mut popular = world.clone();
    popular.pods[2].active(&[SQL], 4);
    popular.pods[sql].sent_at = ago(10);
    assert_ne!(first(&popular.decide(ask_for("sql"))), sql);
    // In use is warmer than in memory, whoever bids more.
    let other = 5 - sql;
    world.pods[sql].active(&[FR], 4).resident(&[(SQL, Level::Gpu)]);
    world.always(ask_for("sql"), other);
}

#[test]
fn an_adapter_in_use_outweighs_a_short_queue() {
    // Rows 29 and 31 of the peers' golden cases: queue and cache of three pods.
    let mut world = World::of(3);
    for (pod, (waiting, kv)) in world.pods.iter_mut().zip([(3, 0.2), (0, 0.1), (10, 0.2)]) {
        pod.load(0, waiting, kv);
    }
    world.always(ASK, 1);
    for (pod, (waiting, kv)) in world.pods.iter_mut().zip([(6, 0.2), (0, 0.85), (10, 0.9)]) {
        pod.load(4, waiting, kv).lists(SQL);
        pod.resident(&[]);
    }
    world.pods[0].active(&[SQL], 4);
    world.always(ask_for("sql"), 0);
}

// ---- Who may be asked

#[test]
fn only_pods_that_list_an_adapter_get_it_however_busy_they_are() {
    let mut world = World::of(4);
    world.pods[2].lists(SQL).load(90, 300, 0.99);
    world.pods[3].row.models = None;
    let decision = world.always(ask_for("sql"), 2);
    assert_eq!(endpoints(&decision), [2]);
    assert_eq!(decision.why.excluded.model, 3);
    assert!(!decision.refresh_models);
}

#[test]
fn a_pod_whose_page_was_never_read_counts_where_its_gauges_show_the_adapter() {
    let mut world = World::of(3);
    world.pods[0].lists(SQL).load(90, 300, 0.99);
    world.pods[1].active(&[SQL], 4).row.models = None;
    world.always(ask_for("sql"), 1);
}

#[test]
fn pods_without_a_page_may_have_a_name_that_nobody_lists() {
    let mut world = World::of(3);
    world.pods[0].row.models = None;
    let decision = world.always(ask_for("sql"), 0);
    assert!(decision.refresh_models);
    assert_eq!(decision.why.notes, [Note::ModelUnconfirmed]);
    assert_eq!(
        decision.why.predicted,
        Some(Millis(100)),
        "no sign that it is an adapter at all"
    );
}

#[test]
fn before_the_first_models_pages_a_name_does_not_stick_to_one_pod() {
    let mut world = World::of(3);
    for pod in &mut world.pods {
        pod.row.models = None;
    }
    let Action::Route { booking, .. } = world.decide(ask_for("llama")).action else {
        panic!()
    };
    assert_eq!(booking.adapter, None);
    assert!(world.tally(ask_for("llama"), 300).iter().all(|count| *count > 60));
}

#[test]
fn without_models_pages_an_adapter_in_flight_is_still_a_home() {
    let mut world = World::of(3);
    for pod in &mut world.pods {
        pod.row.models = None;
    }
    world.pods[1].active(&[SQL], 4);
    let decision = world.always(ask_for("sql"), 1);
    assert_eq!(endpoints(&decision).len(), 3);
    world.pods[1].own.unanswered_tokens = Tokens(30_000 * 8);
    assert_ne!(first(&world.decide(ask_for("sql"))), 1);
}

#[test]
fn an_unloaded_adapter_is_not_asked_for_though_its_weights_stay() {
    let mut world = World::of(2);
    world.pods[0].resident(&[(SQL, Level::Gpu)]);
    world.pods[1].lists(SQL).load(60, 60, 0.95);
    world.always(ask_for("sql"), 1);
    world.pods.truncate(1);
    assert_eq!(reply(&world.decide(ask_for("sql"))), (404, "model-unknown"));
}

#[test]
fn an_adapter_seen_in_flight_after_the_models_page_was_loaded_since() {
    let mut world = World::of(2);
    world.pods[0].active(&[SQL], 4);
    let decision = world.always(ask_for("sql"), 0);
    assert!(decision.refresh_models);
    // A page newer than the gauges knows better.
    world.pods[0].row.models.as_mut().unwrap().at = ago(100);
    assert_eq!(reply(&world.decide(ask_for("sql"))), (404, "model-unknown"));
}

#[test]
fn a_base_name_goes_to_any_pod_that_lists_it() {
    let mut world = World::of(2);
    world.pods[0].load(3, 3, 0.3);
    world.always(ask_for("llama"), 1);
    // A rolling upgrade: the new pods serve another name.
    world.pods[1].row.models.as_mut().unwrap().bases = vec![FR];
    world.always(ask_for("llama"), 0);
    world.always(ask_for("fr"), 1);
}

#[test]
fn an_adapter_never_falls_back_to_the_base_in_silence() {
    let mut world = World::of(2);
    world.pods[0].lists(SQL).row.load.sleeping = Some(true);
    let decision = world.always(ask_for("sql"), 0);
    assert_eq!(decision.why.notes, [Note::AllAsleep]);
}

#[test]
fn a_resolver_loads_what_nobody_lists() {
    let mut world = World::of(2);
    world.pool.adapters.resolver = true;
    world.pods[0].load(3, 3, 0.3).resident(&[]);
    world.pods[1].resident(&[]);
    let decision = world.always(ask_for("new"), 1);
    assert_eq!(cost_of(&decision, 1).tier, Tier::Loadable);
    let Action::Route { booking, .. } = decision.action else {
        panic!()
    };
    assert_eq!(booking.adapter, Some(adapter_key("new")));
    assert!(!decision.refresh_models);
    // Then it is warm there.
    world.pods[0].sent("new", ago(100));
    world.always(ask_for("new"), 0);
    // Pods with LoRA off load nothing.
    world.pods[0].recent.clear();
    world.pods[1].active(&[], 0);
    world.always(ask_for("new"), 0);
}

// ---- 404

/// A pool of two whose pages both lack the name.
#[track_caller]
fn check(bend: impl Fn(&mut World), expected: Option<u16>) {
    let mut world = World::of(2);
    bend(&mut world);
    let decision = world.decide(ask_for("ghost"));
    match expected {
        Some(status) => assert_eq!(reply(&decision).0, status),
        None => assert!(!endpoints(&decision).is_empty()),
    }
}

#[test]
fn an_unknown_model_is_404_only_when_everybody_was_asked_a_moment_ago() {
    check(|_| (), Some(404));
    check(|world| world.pods[0].row.models = None, None);
    check(
        |world| world.pods[0].row.models.as_mut().unwrap().at = ago(19_999),
        Some(404),
    );
    check(
        |world| world.pods[0].row.models.as_mut().unwrap().at = ago(20_000),
        None,
    );
    check(|world| world.pods[0].row.load.engine = Some(Engine::LlamaCpp), None);
    check(|world| world.pods[0].row.load.engine = None, None);
    check(|world| world.pool.engine = Some(Engine::LlamaCpp), None);
    check(|world| world.pool.models.push("ghost".to_owned()), None);
    check(|world| world.pool.adapters.resolver = true, None);
    check(|world| world.discovery.at = Some(ago(60_000)), None);
}

#[test]
fn pods_that_take_no_requests_have_no_say_in_a_404() {
    check(
        |world| {
            world.pods[0].row.models = None;
            world.pods[0].row.readiness = Readiness::NotReady;
        },
        Some(404),
    );
    // One outside the subset has.
    check(
        |world| {
            world.pods[0].row.models = None;
            world.subset = Some("10.0.0.2:8000".to_owned());
        },
        None,
    );
}

#[test]
fn a_404_asks_for_the_models_pages_and_so_does_a_doubt() {
    assert!(World::of(2).decide(ask_for("ghost")).refresh_models);
    let mut world = World::of(2);
    world.discovery.at = Some(ago(60_000));
    let decision = world.decide(ask_for("ghost"));
    assert!(decision.refresh_models);
    assert_eq!(decision.why.notes, [Note::ModelUnlisted]);
    let Action::Route { booking, .. } = decision.action else {
        panic!()
    };
    assert_eq!(booking.adapter, None);
    assert!(!World::of(2).decide(ASK).refresh_models);
    assert!(!World::of(2).decide(ask_for("llama")).refresh_models);
}

#[test]
fn a_configured_name_needs_no_page() {
    let mut world = World::of(2);
    world.pool.models.push("gpt".to_owned());
    let decision = world.decide(ask_for("gpt"));
    assert!(!decision.refresh_models);
    assert_eq!(cost_of(&decision, 0).tier, Tier::Base);
    assert!(decision.why.notes.is_empty());
}

#[test]
fn pools_agree_on_a_name() {
    let mut world = World::of(2);
    world.pods[0].lists(SQL);
    let snapshot = world.snapshot();
    let named = |name| naming(&world.pool, &snapshot, name, NOW);
    assert_eq!(named("sql"), Naming::Named);
    assert_eq!(named("llama"), Naming::Named);
    assert_eq!(named("ghost"), Naming::Absent);
    world.pods[1].row.models = None;
    let snapshot = world.snapshot();
    assert_eq!(naming(&world.pool, &snapshot, "ghost", NOW), Naming::Unknown);
    assert_eq!(naming(&world.pool, &Snapshot::default(), "ghost", NOW), Naming::Unknown);
    assert_eq!(BASE.0, 0);
}

/// llama.cpp answers for any name with its base. Seen with one beside two vLLMs: every request for an
/// adapter went to it.
#[test]
fn a_pod_that_takes_any_name_is_no_home_for_another_pods_adapter() {
    let mut world = World::of(3);
    world.pods[0].row.load.engine = Some(Engine::LlamaCpp);
    world.pods[1].lists(SQL).load(30, 20, 0.9);
    world.always(ask_for("sql"), 1);
    assert_eq!(endpoints(&world.decide(ask_for("sql"))), [1], "not even for a retry");
}

#[test]
fn a_pod_that_takes_any_name_gets_none_that_a_stricter_pod_should_refuse() {
    let mut world = World::of(2);
    world.pods[0].row.load.engine = Some(Engine::LlamaCpp);
    let decision = world.always(ask_for("ghost"), 1);
    assert!(decision.refresh_models, "and the pods are asked again");
}

#[test]
fn pods_that_take_any_name_share_unknown_ones_among_themselves() {
    let mut world = World::of(2);
    for pod in &mut world.pods {
        pod.row.load.engine = Some(Engine::LlamaCpp);
    }
    assert!(world.tally(ask_for("gpt-4"), 300).iter().all(|count| *count > 60));
    assert!(
        !world.decide(ask_for("gpt-4")).refresh_models,
        "their pages would say nothing new"
    );
}

#[test]
fn a_pod_that_takes_any_name_shares_the_base_with_the_others() {
    let mut world = World::of(2);
    world.pods[0].row.load.engine = Some(Engine::LlamaCpp);
    assert!(world.tally(ask_for("llama"), 300).iter().all(|count| *count > 60));
}

/// Seen with a real vLLM: an adapter was loaded, the first request found it by luck, and the next ones
/// went elsewhere until the models page was read again.
#[test]
fn an_adapter_that_a_pod_took_since_its_page_was_read_is_asked_there_again() {
    let mut world = World::of(3);
    world.pods[1].sent("ghost", ago(100));
    let page = world.pods[1].row.models.as_ref().unwrap().at;
    assert!(ago(100) > page, "the page is older");
    let decision = world.always(ask_for("ghost"), 1);
    assert!(decision.refresh_models);
    world.pods[1].row.models.as_mut().unwrap().at = ago(50);
    assert_eq!(
        reply(&world.decide(ask_for("ghost"))).0,
        404,
        "a newer page knows better"
    );
}
