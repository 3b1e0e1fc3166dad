use super::*;
use berth_shared_state::reports;
use berth_shared_state::units::UnixMillis;
use berth_tests_simulator::engine::{EventKind, Request};

/// One pod with a request of one token's prompt under way since time 0: a step takes 7 ms.
fn fleet() -> Fleet {
    let mut pod = Pod::new(EngineConfig::h100(), false);
    pod.engine.submit(request(1), 0);
    let _ = pod.engine.step(0);
    Fleet {
        pods: vec![pod],
        adapters: Vec::new(),
        discovery: 0,
    }
}

fn request(id: u64) -> Request {
    Request {
        id,
        chain: Vec::new(),
        prompt_tokens: 1,
        output_tokens: 1_000,
        adapter: None,
    }
}

/// The fleet after all that this fault does by then.
fn after(kind: FaultKind, until: Micros) -> Fleet {
    let mut fleet = fleet();
    let fault = Fault { pod: 0, at: 0, kind };
    let mut turns = fleet.turns(&[fault], 1.0);
    turns.sort_by_key(|turn| turn.0);
    for (at, turn) in turns.into_iter().filter(|turn| turn.0 <= until) {
        fleet.turn(turn, at);
    }
    fleet
}

/// (running, waiting) on its page.
fn shown(fleet: &mut Fleet, now: Micros) -> Option<(u32, u32)> {
    let scrape = fleet.pods[0].scrape(now)?;
    Some((scrape.gauges.running, scrape.waiting()))
}

#[test]
fn an_engine_that_hangs_shows_what_it_showed_last_and_gives_nothing() {
    let mut fleet = after(FaultKind::Hang, 0);
    // The step under way ends; the next never does.
    fleet.pods[0].engine.submit(request(2), 10_000);
    let report = fleet.pods[0].engine.step(600_000_000);
    let tokens = report
        .events
        .iter()
        .filter(|event| !matches!(event.kind, EventKind::Rejected(_)));
    assert_eq!(tokens.count(), 1);
    assert_eq!(shown(&mut fleet, 600_000_000), Some((1, 0)));
    assert_eq!((fleet.pods[0].door, fleet.listed()), (Door::Open, vec![0]));
}

#[test]
fn a_jammed_pod_shows_its_queue() {
    let mut fleet = after(FaultKind::Jam, 0);
    fleet.pods[0].engine.submit(request(2), 10_000);
    // 1,000 steps of 7 ms and a little more.
    assert_eq!(shown(&mut fleet, 1_000_000), Some((1, 1)));
    assert_eq!(shown(&mut fleet, 60_000_000), Some((0, 1)));
}

#[test]
fn a_dead_engine_leaves_a_page_that_stands_and_a_server_that_fails() {
    let mut fleet = after(FaultKind::Break(30_000_000), 0);
    assert_eq!((fleet.pods[0].door, fleet.listed()), (Door::Broken, vec![0]));
    assert_eq!(shown(&mut fleet, 20_000_000), Some((0, 0)));
    let mut fleet = after(FaultKind::Break(30_000_000), 30_000_000);
    assert_eq!(fleet.pods[0].door, Door::Open);
    assert_eq!(
        fleet.pods[0].scrape(30_000_000).map(|scrape| scrape.started),
        Some(30_000_000)
    );
}

#[test]
fn a_lost_node_is_silent_until_it_is_back_and_listed_until_discovery_notices() {
    let lost = |until| {
        let mut fleet = after(FaultKind::Lose(30_000_000), until);
        (
            fleet.pods[0].door,
            fleet.listed().len(),
            shown(&mut fleet, until).is_some(),
        )
    };
    assert_eq!(lost(0), (Door::Silent, 1, false));
    assert_eq!(lost(DEATH_NOTICED_AFTER), (Door::Silent, 0, false));
    assert_eq!(lost(30_000_000), (Door::Open, 1, true));
}

#[test]
fn an_answer_reports_what_the_page_shows_and_the_shipped_reader_reads_it() {
    let mut fleet = fleet();
    for id in 2..5 {
        fleet.pods[0].engine.submit(request(id), 1);
    }
    let read = |fleet: &mut Fleet, now| {
        let report = fleet.pods[0].report(now)?;
        reports::read(report.as_bytes(), UnixMillis(7))
    };
    let shown = fleet.pods[0].scrape(10_000).unwrap();
    let report = read(&mut fleet, 10_000).unwrap();
    assert_eq!((report.at, report.waiting), (UnixMillis(7), Some(shown.waiting())));
    assert_eq!(report.kv, Some(shown.gauges.kv_usage as f32));
    // Whose page nobody can read reports all the same; of a dead one nothing comes.
    assert!(read(&mut after(FaultKind::Unread, 1_000), 1_000).is_some());
    assert!(read(&mut after(FaultKind::Lose(30_000_000), 1_000), 1_000).is_none());
}

#[test]
fn an_unread_pod_serves() {
    let mut fleet = after(FaultKind::Unread, 0);
    assert_eq!(shown(&mut fleet, 0), None);
    assert_eq!((fleet.pods[0].door, fleet.listed()), (Door::Open, vec![0]));
}

#[test]
fn a_pod_that_is_replaced_is_drained_first_and_slow_at_first() {
    let replaced = |until| {
        let mut fleet = after(FaultKind::Replace, until);
        let _ = fleet.pods[0].engine.step(until);
        let asked = request(9);
        let first = fleet.pods[0].engine.forecast_first_token(&asked, until, Micros::MAX);
        (fleet.listed().len(), fleet.pods[0].started, first.map(|at| at - until))
    };
    assert_eq!((replaced(0).0, replaced(0).1), (0, 0));
    // A step of one prompt token: 7,032 µs, and eight times that while it is new.
    assert_eq!(replaced(REPLACED_AFTER), (1, REPLACED_AFTER, Some(56_256)));
    assert_eq!(replaced(REPLACED_AFTER + COLD_FOR).2, Some(7_032));
}
