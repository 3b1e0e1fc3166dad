//! Whole runs: equal seeds give equal runs, every request ends, and the arms differ as they must.

use berth_shared_state::metrics::{Hints, read};
use berth_shared_state::units::UnixMillis;
use berth_tests_lab::arm::Arm;
use berth_tests_lab::client::trace::Traces;
use berth_tests_lab::fleet::{BASE_MODEL, EPOCH_SECONDS, Pod};
use berth_tests_lab::page;
use berth_tests_lab::record::Run;
use berth_tests_lab::scenario::{Scenario, catalogue};
use berth_tests_lab::study;
use berth_tests_simulator::engine::{Adapter, EngineConfig, Request};
use std::path::Path;

fn traces() -> Traces {
    Traces::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("traces")).unwrap()
}

fn scenario(name: &str) -> Scenario {
    catalogue().into_iter().find(|scenario| scenario.name == name).unwrap()
}

fn run(name: &str, arm: Arm, seed: u64, size: f64) -> Run {
    study::run(&scenario(name), arm, &traces(), seed, size)
}

#[test]
fn every_request_of_every_arm_ends() {
    for name in [
        "groups",
        "mooncake",
        "long-contexts",
        "lora-rollout",
        "death",
        "cancels",
        "engine-hangs",
        "scheduler-jams-lora",
        "engine-dies",
        "node-lost",
        "rolling-restart",
        "groups-4-proxies",
    ] {
        for arm in Arm::ALL.into_iter().filter(|arm| *arm != Arm::Lookahead) {
            let run = run(name, arm, 1, 0.05);
            assert!(
                run.records.iter().all(|record| record.is_over()),
                "{name}, {}",
                arm.name()
            );
        }
    }
}

#[test]
fn equal_seeds_give_equal_runs() {
    for arm in [Arm::Greedy, Arm::Berth, Arm::EppDefault, Arm::Smg] {
        let times = |seed| run("groups-4-proxies", arm, seed, 0.05).figures().ttft;
        assert_eq!(times(1), times(1), "{}", arm.name());
        assert_ne!(times(1), times(2), "{}", arm.name());
    }
}

#[test]
fn nobody_fails_where_nothing_is_wrong() {
    for arm in [Arm::Greedy, Arm::Berth, Arm::EppDefault, Arm::Chwbl] {
        assert_eq!(run("azure-conv", arm, 1, 0.1).figures().failed, 0.0, "{}", arm.name());
    }
}

#[test]
fn affinity_finds_prefixes_and_chance_does_not() {
    let hits = |arm| run("groups", arm, 1, 0.3).figures().hits;
    assert!(hits(Arm::Greedy) > 0.5 && hits(Arm::EppDefault) > 0.5 && hits(Arm::Smg) > 0.5);
    assert!(hits(Arm::Random) < 0.3 && hits(Arm::RoundRobin) < 0.3);
}

#[test]
fn an_empty_looking_frozen_page_fools_the_reference_picker_but_not_berth() {
    let mean = |arm| run("frozen-empty", arm, 1, 0.3).figures().ttft_mean;
    assert!(mean(Arm::EppDefault) > 10.0 * mean(Arm::Berth));
}

#[test]
fn where_pods_hang_each_shows_what_it_is_about() {
    let of = |name, arm| run(name, arm, 1, 0.3).figures();
    // Every eighth request that comes to a pod that hangs is in vain, and one to a dead engine fails.
    assert!(of("engine-hangs", Arm::RoundRobin).in_vain > 50.0);
    assert!(of("engine-hangs", Arm::Berth).in_vain < 20.0);
    assert!(of("engine-dies", Arm::RoundRobin).failed > 50.0);
    assert!(of("engine-dies", Arm::LeastFull).failed > of("engine-dies", Arm::RoundRobin).failed);
    assert!(of("engine-dies", Arm::Berth).failed < 50.0);
    // A connection to a lost node takes a second to fail.
    assert!(of("node-lost", Arm::RoundRobin).ttft_p99 > 1_000.0);
    assert_eq!(of("node-lost", Arm::Greedy).in_vain, 0.0);
    assert!(of("rolling-restart", Arm::RoundRobin).ttft_p99 > 1_000.0);
}

#[test]
fn what_comes_past_the_proxies_counts_nowhere() {
    let mut scenario = scenario("unread-busy");
    let figures = |scenario: &Scenario| study::run(scenario, Arm::Greedy, &traces(), 1, 0.1);
    let with = figures(&scenario);
    let jobs = scenario.jobs(&traces(), 1, 0.1);
    let past = jobs.iter().filter(|job| job.straight_to.is_some()).count();
    assert!(past > 50 && jobs.iter().all(|job| job.straight_to.is_none_or(|pod| pod == 2)));
    assert_eq!(with.records.iter().filter(|record| !record.counts).count(), past);
    scenario.past_proxies = None;
    let counted = with.records.iter().filter(|record| record.counts).count();
    assert_eq!(counted, figures(&scenario).records.len());
}

#[test]
fn leaving_a_term_out_changes_what_berth_does() {
    let mean = || run("lora-zipf", Arm::Berth, 1, 0.2).figures().ttft_mean;
    let full = mean();
    berth_filter_routing::lab::leave_out(&["adapter".to_owned()]);
    let without = mean();
    berth_filter_routing::lab::leave_out(&[]);
    assert!(without > 5.0 * full, "{without} against {full}");
    assert_eq!(mean(), full);
}

/// A pod under some load, with adapters.
fn busy(full_page: bool) -> (Pod, u64) {
    let mut pod = Pod::new(EngineConfig::h100(), full_page);
    for id in 0..40 {
        let adapter = (id % 3 > 0).then(|| Adapter::from(format!("a{}", id % 3)));
        pod.engine.submit(
            Request {
                id,
                chain: vec![1, 2, 3, id],
                prompt_tokens: 3000,
                output_tokens: 50 + id as u32,
                adapter,
            },
            0,
        );
    }
    let mut now = 0;
    for _ in 0..60 {
        let report = pod.engine.step(now);
        pod.observe(&report);
        now = report.next_wakeup.unwrap_or(now);
    }
    (pod, now)
}

#[test]
fn the_short_page_says_the_same_as_the_full_one() {
    let sample = |full_page| {
        let (mut pod, now) = busy(full_page);
        let scrape = pod.scrape(now).unwrap();
        let at = UnixMillis(EPOCH_SECONDS * 1000 + now / 1000);
        read(
            pod.page(&scrape).as_bytes(),
            Hints {
                now: at,
                ..Hints::default()
            },
        )
    };
    let (short, full) = (sample(false), sample(true));
    assert_eq!(short, full);
    assert!(short.running.is_some_and(|running| running > 0), "{short:?}");
}

#[test]
fn the_models_page_lists_the_base_and_the_adapters() {
    let text = page::models(&[Adapter::from("a1"), Adapter::from("a2")], 8192);
    let models = berth_shared_state::models::read(text.as_bytes()).unwrap();
    let ids: Vec<&str> = models.iter().map(|model| model.id.as_str()).collect();
    assert_eq!(ids, [BASE_MODEL, "a1", "a2"]);
}
