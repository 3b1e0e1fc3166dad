//! The scenario files marked `envoy`, in a real Envoy with two workers: one test for each file, under its name.
//!
//! Real time stands in for virtual time: a wait lasts as long as the file says, and until the pods have been read
//! again since they changed. What the other places check is checked here too, as far as it can be seen from outside:
//! at the pods, by the client and in the log.

mod pods;
mod proxy;

use berth_tests_it::play::play;
use berth_tests_it::scenario::{Place, Scenario, all};

use proxy::Gateway;

fn file(name: &str) -> Scenario {
    let path = berth_tests_it::root().join(format!("tests/scenarios/{name}.json"));
    Scenario::read(&path).unwrap_or_else(|error| panic!("{error}"))
}

fn check(name: &str) {
    let name = name.replace('_', "-");
    let scenario = file(&name);
    let mut gateway = Gateway::start(&name, &scenario).unwrap_or_else(|error| panic!("{name}: {error:#}"));
    if let Err(error) = play(&scenario, &mut gateway) {
        panic!("{name}: {}\n{error}", scenario.story);
    }
}

macro_rules! scenarios {
    ($($name:ident),* $(,)?) => {
        /// Every test below.
        const NAMES: &[&str] = &[$(stringify!($name)),*];
        $(
            #[test]
            fn $name() {
                check(stringify!($name));
            }
        )*
    };
}

scenarios! {
    a_silent_engine_gets_no_more,
    alias_of_a_model_in_another_pool,
    body_that_is_no_json,
    burst_between_scrapes_spreads,
    burst_of_one_worker_is_seen_by_the_other,
    canary_gets_its_weight,
    client_that_leaves_is_released,
    error_inside_a_good_stream,
    errors_of_the_client_do_not_count,
    held_request_of_an_alias,
    held_too_long,
    held_until_a_pod_has_room,
    held_until_a_stream_ends,
    long_body_of_a_single_pool,
    longest_context_is_a_hard_bound,
    low_kv_does_not_hide_a_queue,
    model_behind_a_long_conversation,
    model_picks_the_pool,
    models_are_listed_by_the_gateway,
    never_scraped_pod_joins_in,
    page_that_wants_a_key,
    pod_dies_and_comes_back,
    request_without_a_model,
    resolver_takes_any_name,
    restart_empties_the_adapter_memory,
    retry_charges_the_first_pod,
    retry_goes_to_another_zone,
    session_of_a_stranger_is_ignored,
    session_stays_until_its_pod_drowns,
    sheddable_request_of_a_full_pool,
    spoofed_headers_are_removed,
    story_adapter_on_a_free_pod,
    story_cold_load_costs_more_than_the_queue,
    story_queue_costs_more_than_the_cold_load,
    story_room_beats_saturation,
    story_tokens_not_percent,
    stream_tells_what_others_do,
    subset_of_a_stranger_is_ignored,
    subset_of_a_trusted_hop_binds,
    unknown_model_is_404_when_all_say_so,
}

#[test]
fn the_files_marked_for_envoy_are_these() {
    let marked: Vec<String> = all()
        .unwrap_or_else(|error| panic!("{error}"))
        .into_iter()
        .filter(|(_, scenario)| scenario.runs.contains(&Place::Envoy))
        .map(|(name, _)| name.replace('-', "_"))
        .collect();
    assert_eq!(marked, NAMES, "the list in tests/e2e/tests/scenarios.rs is another one");
    // What Berth is for: room, adapter on a free pod, both outcomes of a cold load, tokens.
    assert_eq!(NAMES.iter().filter(|name| name.starts_with("story_")).count(), 5);
}
