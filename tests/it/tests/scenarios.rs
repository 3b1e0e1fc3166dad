//! The same scenario files on the core and through the wasm, the latter also as nginx and APISIX would run it; all in
//! virtual time with two workers.

mod core;
pub mod wasm;

use std::fmt::Write as _;

use berth_shared_state::config::Config;
use berth_tests_host::Dialect;
use berth_tests_it::play::{Proxy, play};
use berth_tests_it::scenario::{Place, Scenario, all};

/// Unix time at the start of every scenario, in milliseconds.
pub const START_MILLIS: u64 = 1_800_000_000_000;
/// Time until a pod answers a scrape, in milliseconds.
pub const LATENCY_MILLIS: u64 = 5;

/// Pods are at 10.0.0.1:8000, 10.0.0.2:8000 and so on, in the order of their names.
pub fn address(index: usize) -> String {
    format!("10.0.0.{}:8000", index + 1)
}

/// The document, with every mistake if it is not valid. `host`: the proxy that it names, if it names none itself.
fn document(scenario: &Scenario, host: Option<&str>) -> Result<(String, Config), String> {
    let at = |pod: &str| {
        scenario
            .pods
            .keys()
            .position(|name| name == pod)
            .map_or_else(|| pod.to_owned(), address)
    };
    let mut document = scenario.document(at);
    if let (Some(host), Some(root)) = (host, document.as_object_mut()) {
        root.entry("host").or_insert_with(|| host.into());
    }
    let document = document.to_string();
    let config = Config::parse(document.as_bytes()).map_err(|errors| format!("{errors:#?}"))?;
    Ok((document, config))
}

/// Plays all files of one place and tells of all that failed.
fn check<P: Proxy>(place: Place, make: impl Fn(&Scenario) -> Result<P, String>) {
    play_all(&format!("{place:?}"), |scenario| scenario.runs.contains(&place), make);
}

fn play_all<P: Proxy>(place: &str, runs: impl Fn(&Scenario) -> bool, make: impl Fn(&Scenario) -> Result<P, String>) {
    let scenarios = all().unwrap_or_else(|error| panic!("{error}"));
    let mut failures = String::new();
    let mut played = 0;
    for (name, scenario) in scenarios.iter().filter(|(_, scenario)| runs(scenario)) {
        played += 1;
        if let Err(error) = make(scenario).and_then(|mut proxy| play(scenario, &mut proxy)) {
            let _ = writeln!(failures, "\n== {name}: {}\n{error}", scenario.story);
        }
    }
    assert!(failures.is_empty(), "on {place}:{failures}");
    assert!(
        played >= 4,
        "{played} scenarios on {place}: is the folder the right one?"
    );
}

#[test]
fn every_scenario_comes_out_on_the_core() {
    check(Place::Core, core::Core::new);
}

#[test]
fn every_scenario_comes_out_through_the_wasm() {
    check(Place::Wasm, wasm::Wasm::of);
}

#[test]
fn every_scenario_comes_out_in_nginx() {
    let runs = |scenario: &Scenario| scenario.runs.contains(&Place::Wasm) && scenario.not_nginx.is_none();
    play_all("nginx", runs, |scenario| wasm::Wasm::under(scenario, Dialect::WasmX));
}

#[test]
fn every_scenario_comes_out_in_apisix() {
    check(Place::Apisix, |scenario| wasm::Wasm::under(scenario, Dialect::Apisix));
}

#[test]
fn every_scenario_runs_here_somewhere() {
    for (name, scenario) in all().unwrap_or_else(|error| panic!("{error}")) {
        let here = [Place::Core, Place::Wasm, Place::Apisix]
            .iter()
            .any(|place| scenario.runs.contains(place));
        assert!(
            here,
            "{name} runs only in Envoy, where no test of this package plays it"
        );
    }
}
