//! The same scenario files on the core and through the wasm, the latter also as nginx and APISIX would run it; all in
//! virtual time with two workers.

mod core;
pub mod wasm;

use std::fmt::Write as _;
use std::ops::RangeInclusive;

use berth_shared_state::config::Config;
use berth_tests_host::Dialect;
use berth_tests_it::play::{Proxy, play};
use berth_tests_it::scenario::{AFTER_MILLIS, Place, Scenario, all};

/// Unix time at the start of every scenario, in milliseconds.
pub const START_MILLIS: u64 = 1_800_000_000_000;
/// Time until a pod answers a scrape, in milliseconds.
pub const LATENCY_MILLIS: u64 = 5;
/// As many other worlds as every scenario must come out in, too.
const LOTS: u64 = 40;

/// What a scenario leaves to chance: where the pods are, which pod is the home of what, how lots fall, and how fast
/// requests follow each other. It must come out whatever that is, or it claims too much, and Envoy will show it one day.
#[derive(Clone, Copy, Default)]
pub struct Lot(pub u64);

impl Lot {
    /// Pods are at 10.0.0.1:8000, 10.0.0.2:8000 and so on, in the order of their names; other lots have other networks.
    pub fn address(self, index: usize) -> String {
        format!("10.{}.0.{}:8000", self.0, index + 1)
    }

    /// Milliseconds between requests: from as fast as a worker looks at what others did to a slow machine's.
    pub fn pace(self) -> u64 {
        [AFTER_MILLIS, 12, 40, 100][self.0 as usize % 4]
    }

    /// Of a worker's random numbers.
    pub fn seed(self, worker: u64) -> u64 {
        self.0 * 1_000 + worker
    }
}

/// The document, with every mistake if it is not valid. `host`: the proxy that it names, if it names none itself.
fn document(scenario: &Scenario, lot: Lot, host: Option<&str>) -> Result<(String, Config), String> {
    let at = |pod: &str| {
        scenario
            .pods
            .keys()
            .position(|name| name == pod)
            .map_or_else(|| pod.to_owned(), |index| lot.address(index))
    };
    let mut document = scenario.document(at);
    if let (Some(host), Some(root)) = (host, document.as_object_mut()) {
        root.entry("host").or_insert_with(|| host.into());
    }
    let document = document.to_string();
    let config = Config::parse(document.as_bytes()).map_err(|errors| format!("{errors:#?}"))?;
    Ok((document, config))
}

/// Plays all files of one place with each of these lots, and tells of all that failed; of each file once.
fn check<P: Proxy>(place: Place, lots: RangeInclusive<u64>, make: impl Fn(&Scenario, Lot) -> Result<P, String>) {
    let runs = |scenario: &Scenario| scenario.runs.contains(&place);
    play_all(&format!("{place:?}"), runs, lots, make);
}

fn play_all<P: Proxy>(
    place: &str,
    runs: impl Fn(&Scenario) -> bool,
    lots: RangeInclusive<u64>,
    make: impl Fn(&Scenario, Lot) -> Result<P, String>,
) {
    let scenarios = all().unwrap_or_else(|error| panic!("{error}"));
    let mut failures = String::new();
    let mut played = 0;
    for (name, scenario) in scenarios.iter().filter(|(_, scenario)| runs(scenario)) {
        played += 1;
        let play = |lot: u64| {
            let error = make(scenario, Lot(lot))
                .and_then(|mut proxy| play(scenario, &mut proxy))
                .err()?;
            Some((lot, error))
        };
        let failed: Vec<(u64, String)> = lots.clone().filter_map(play).collect();
        if let Some((lot, error)) = failed.first() {
            let story = &scenario.story;
            let _ = writeln!(
                failures,
                "\n== {name}: {story}\n{} lots, the first: {lot}\n{error}",
                failed.len()
            );
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
    check(Place::Core, 0..=LOTS, core::Core::new);
}

#[test]
fn every_scenario_comes_out_through_the_wasm() {
    check(Place::Wasm, 0..=0, |scenario, _| wasm::Wasm::of(scenario));
}

#[test]
fn every_scenario_comes_out_in_nginx() {
    let runs = |scenario: &Scenario| scenario.runs.contains(&Place::Wasm) && scenario.not_nginx.is_none();
    play_all("nginx", runs, 0..=0, |scenario, _| {
        wasm::Wasm::under(scenario, Dialect::WasmX)
    });
}

#[test]
fn every_scenario_comes_out_in_apisix() {
    check(Place::Apisix, 0..=0, |scenario, _| {
        wasm::Wasm::under(scenario, Dialect::Apisix)
    });
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
