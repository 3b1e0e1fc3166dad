//! When things are read, published and told.

use super::*;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

#[test]
fn a_static_list_is_published_before_anything_was_read() {
    let mut rig = Rig::new(&fixed_pool(&["10.0.0.2:8000", POD]));
    rig.tick(silent);
    let table = rig.table();
    assert_eq!(
        (table.seq, table.config_epoch, table.written_at),
        (1, 77, UnixMillis(START))
    );
    assert_eq!(
        table.discovery,
        Discovered {
            at: Some(UnixMillis(START)),
            error: None
        }
    );
    let unread = |pod| PodRow::unread(address(pod), UnixMillis(START));
    assert_eq!(table.pods, [unread(POD), unread("10.0.0.2:8000")]);
}

#[test]
fn scrapes_spread_over_the_interval_and_keep_their_phase() {
    let mut rig = Rig::new(&pool_of(Discovery::Static(many(100))));
    rig.run(10_000, idle);
    for pod in many(100) {
        let asked = rig.asked(Target::Metrics(pod));
        assert!(asked[0] <= 1_000, "first read within a second, not {asked:?}");
        assert!((9..=10).contains(&asked.len()), "{asked:?}");
        assert!(
            asked.windows(2).skip(1).all(|pair| pair[1] - pair[0] == 1_000),
            "{asked:?}"
        );
    }
    let in_tick = |tick: u64| {
        rig.calls
            .iter()
            .filter(|(at, target)| *at == START + tick && matches!(target, Target::Metrics(_)))
            .count()
    };
    // A hundred pods over ten ticks: ten each, and no tick with three times its share.
    assert!((5_000..6_000).step_by(100).all(|tick| in_tick(tick) < 30));
}

#[test]
fn two_proxies_do_not_read_a_pod_at_the_same_time() {
    let phases = |seed| {
        let mut rig = Rig::new(&pool_of(Discovery::Static(many(50))));
        rig.poller = Poller::new(&pool_of(Discovery::Static(many(50))), 77, seed);
        rig.run(1_100, idle);
        many(50)
            .into_iter()
            .map(|pod| rig.asked(Target::Metrics(pod))[0])
            .collect::<Vec<_>>()
    };
    let same = phases(1).into_iter().zip(phases(2)).filter(|(a, b)| a == b).count();
    assert!(same < 20, "{same} of 50 have the same phase of ten");
}

#[test]
fn a_short_interval_is_kept_too() {
    let mut pool = fixed_pool(&[POD]);
    pool.scrape.interval = Millis(200);
    let mut rig = Rig::new(&pool);
    rig.run(2_000, idle);
    assert!(rig.asked(metrics_of(POD)).len() >= 9);
}

#[test]
fn a_silent_pod_is_not_asked_twice_and_the_call_is_given_up() {
    let mut rig = Rig::new(&fixed_pool(&[POD]));
    rig.run(1_100, silent);
    assert_eq!(rig.asked(metrics_of(POD)).len(), 1);
    let asked = rig.asked(metrics_of(POD))[0];
    // Timeout 1000, grace 500.
    while rig.now < START + asked + 1_500 {
        rig.tick(silent);
        assert_eq!(rig.count(Stat::CallsExpired), 0);
    }
    rig.open.clear();
    rig.tick(silent);
    assert_eq!(rig.count(Stat::CallsExpired), 2, "the scrape and the models page");
    assert_eq!(
        (rig.row(POD).failures, rig.row(POD).last_error),
        (1, Some(ScrapeError::Timeout))
    );
    assert_eq!(rig.row(POD).scraped_at, None);
}

#[test]
fn an_answer_after_that_is_ignored_and_counted() {
    let mut rig = Rig::new(&fixed_pool(&[POD]));
    rig.run(1_100, silent);
    let late = rig.open[0].id;
    rig.now += 5_000;
    rig.open.clear();
    rig.tick(silent);
    let response = Response {
        status: 500,
        ..Response::default()
    };
    rig.send(Event::Answer {
        call: late,
        outcome: Ok(response),
    });
    rig.send(Event::Answer {
        call: CallId(999),
        outcome: Ok(response),
    });
    rig.tick(silent);
    assert_eq!(rig.count(Stat::AnswersIgnored), 2);
    assert_eq!(rig.row(POD).last_error, Some(ScrapeError::Timeout));
}

#[test]
fn a_failing_pod_is_left_alone_more_and_more_and_comes_back_at_once() {
    let mut rig = Rig::new(&fixed_pool(&[POD]));
    rig.run(60_000, |_| Reply::Fails(ScrapeError::Unreachable));
    let asked = rig.asked(metrics_of(POD));
    let gaps: Vec<u64> = asked.windows(2).map(|pair| pair[1] - pair[0]).collect();
    // 1, 2, 4, 8, 8 ... seconds, each less up to a quarter, up to the next tick.
    for (gap, full) in gaps
        .iter()
        .zip([1_000, 2_000, 4_000].into_iter().chain(core::iter::repeat(8_000)))
    {
        assert!((full * 3 / 4..=full + 100).contains(gap), "{gaps:?}");
    }
    assert_eq!(rig.row(POD).failures as usize, asked.len());
    rig.run(8_100, idle);
    assert_eq!((rig.row(POD).failures, rig.row(POD).last_error), (0, None));
    let before = rig.asked(metrics_of(POD)).len();
    rig.run(5_000, idle);
    assert_eq!(rig.asked(metrics_of(POD)).len() - before, 5);
}

#[test]
fn a_pod_may_ask_for_more_time_but_not_for_ever() {
    let mut rng = fastrand::Rng::with_seed(1);
    let now = Now {
        wall: UnixMillis(0),
        steady: Millis(0),
    };
    let mut schedule = Schedule::at_once();
    schedule.failed(Millis(1_000), Some(Millis(20_000)), &mut rng, now);
    assert_eq!(schedule.due, Millis(20_000));
    schedule.failed(Millis(1_000), Some(Millis(3_600_000)), &mut rng, now);
    assert_eq!(schedule.due, Millis(30_000));
}

#[test]
fn a_pod_that_answers_just_before_its_slot_is_busy_and_gets_a_pause() {
    let mut schedule = Schedule::at_once();
    let mut after = |at| {
        let now = Now {
            wall: UnixMillis(at),
            steady: Millis(at),
        };
        schedule.succeeded(Millis(1_000), now);
        schedule.due.0
    };
    assert_eq!(
        [after(5_000), after(5_749), after(5_750), after(5_999)],
        [6_000, 6_000, 7_000, 7_000]
    );
}

#[test]
fn pods_that_failed_together_part() {
    let mut rng = fastrand::Rng::with_seed(1);
    let waits: std::collections::BTreeSet<u64> = (0..20)
        .map(|_| schedule::back_off(Millis(1_000), 4, &mut rng).0)
        .collect();
    assert!(waits.len() > 10);
}

#[test]
fn a_back_off_stays_within_its_bounds() {
    let mut rng = fastrand::Rng::with_seed(1);
    for (step, failures, full) in [
        (200, 1, 200),
        (200, 4, 1_600),
        (200, 5, 1_600),
        (10_000, 3, 30_000),
        (60_000, 9, 60_000),
        (1_000, u32::MAX, 8_000),
    ] {
        for _ in 0..100 {
            let wait = schedule::back_off(Millis(step), failures, &mut rng).0;
            assert!((full * 3 / 4..=full).contains(&wait), "{step} {failures}: {wait}");
        }
    }
}

#[test]
fn models_pages_are_read_at_first_sight_and_then_rarely() {
    let mut rig = Rig::new(&fixed_pool(&[POD]));
    rig.run(60_000, idle);
    let asked = rig.asked(models_of(POD));
    assert!(asked[0] <= 1_000);
    assert!((6..=7).contains(&asked.len()), "{asked:?}");
    assert_eq!(rig.row(POD).models.as_ref().unwrap().bases.len(), 1);
}

#[test]
fn an_unknown_model_has_the_pages_read_at_once_but_not_for_every_request() {
    let mut rig = Rig::new(&fixed_pool(&[POD, "10.0.0.2:8000"]));
    rig.run(20_000, |target| match target {
        Target::Models(pod) if pod == address("10.0.0.2:8000") => Reply::Says(404, b""),
        target => idle(target),
    });
    let before = rig.asked(models_of(POD)).len();
    let refused = rig.asked(models_of("10.0.0.2:8000")).len();
    rig.now -= 50;
    rig.send(Event::RefreshModels);
    assert_eq!(
        rig.asked(models_of(POD)).len(),
        before + 1,
        "without waiting for a tick"
    );
    rig.tick(idle);
    rig.send(Event::RefreshModels);
    rig.run(500, idle);
    assert_eq!(rig.asked(models_of(POD)).len(), before + 1);
    assert_eq!(
        rig.asked(models_of("10.0.0.2:8000")).len(),
        refused,
        "it has no such page"
    );
}

#[test]
fn a_restart_voids_rates_and_memory_and_has_the_models_page_read() {
    let mut rig = Rig::new(&fixed_pool(&[POD]));
    let tokens = core::cell::Cell::new(1_000.0);
    let pod = |target| match target {
        Target::Models(_) => idle(target),
        _ => {
            tokens.set(tokens.get() + 500.0);
            reads(busy(3, 0, tokens.get()))
        }
    };
    rig.run(5_000, pod);
    assert_eq!(rig.row(POD).rates.generation_tokens, Some(500.0));
    assert_eq!(rig.row(POD).incarnation, 0);
    let before = rig.asked(models_of(POD)).len();
    tokens.set(0.0);
    rig.run(1_200, pod);
    assert_eq!(rig.row(POD).incarnation, 1);
    assert_eq!(rig.asked(models_of(POD)).len(), before + 1);
    assert_eq!((rig.count(Stat::Restarts), rig.lines("restarted")), (1, 1));
}

#[test]
fn nothing_new_is_published_as_a_heartbeat_only() {
    let mut pool = fixed_pool(&[POD]);
    pool.scrape.interval = Millis(60_000);
    pool.scrape.models_interval = Millis(60_000);
    let mut rig = Rig::new(&pool);
    rig.run(1_000, idle);
    let before = rig.published.len();
    rig.run(12_000, idle);
    assert_eq!(rig.published.len(), before + 4, "every 3 s");
    assert!(rig.published.windows(2).all(|pair| pair[0].1.seq + 1 == pair[1].1.seq));
}

#[test]
fn a_step_of_the_wall_clock_does_not_stop_the_polling() {
    let mut rig = Rig::new(&fixed_pool(&[POD]));
    rig.run(5_000, idle);
    rig.now -= 3_600_000;
    let before = rig.calls.len();
    rig.run(5_000, idle);
    assert!(rig.calls.len() - before >= 5);
    assert_eq!(rig.row(POD).scraped_at.map(|at| at.0 < START), Some(true));
    rig.now += 7_200_000;
    let before = rig.calls.len();
    rig.run(5_000, idle);
    assert!((5..=8).contains(&(rig.calls.len() - before)));
}

#[test]
fn another_poller_goes_on_where_the_first_stopped() {
    let lists = |target| match target {
        Target::Models(_) => Reply::Lists(vec![
            model("base", None),
            model("sql", Some("base")),
            model("x", Some("")),
        ]),
        target => idle(target),
    };
    let mut first = Rig::new(&fixed_pool(&[POD]));
    first.run(5_000, lists);
    let table = first.table().clone();
    let mut second = Rig::new(&fixed_pool(&[POD, "10.0.0.2:8000"]));
    second.now = first.now;
    second.send(Event::Adopt(&table));
    second.tick(silent);
    assert_eq!(second.table().seq, table.seq + 1);
    assert_eq!(second.table().names, table.names);
    assert_eq!(second.row(POD), first.row(POD));
}

#[test]
fn a_poller_of_a_newer_configuration_keeps_the_readings_but_not_the_set_of_pods() {
    let mut first = Rig::new(&fixed_pool(&[POD, "10.0.0.2:8000"]));
    first.run(5_000, idle);
    let table = Table {
        config_epoch: 76,
        ..first.table().clone()
    };
    let pods = |rig: &Rig| {
        rig.table()
            .pods
            .iter()
            .map(|row| row.address.to_string())
            .collect::<Vec<_>>()
    };
    let mut other = Rig::new(&fixed_pool(&[POD, "10.0.0.3:8000"]));
    other.now = first.now;
    other.send(Event::Adopt(&table));
    other.tick(silent);
    assert_eq!(pods(&other), [POD, "10.0.0.3:8000"]);
    assert_eq!(other.row(POD), first.row(POD));
    assert_eq!(other.row("10.0.0.3:8000").scraped_at, None);
    // Where pods are discovered, nothing is published before the discovery has answered.
    let mut admin = Rig::new(&admin_pool());
    admin.now = first.now;
    admin.send(Event::Adopt(&table));
    admin.tick(|_| Reply::Silence);
    assert_eq!(admin.published.len(), 0);
    admin.send(Event::Pods(vec![Found::at(address(POD))]));
    admin.tick(silent);
    assert_eq!(pods(&admin), [POD]);
    assert_eq!(admin.row(POD).scraped_at, first.row(POD).scraped_at);
}

#[test]
fn a_passive_poller_asks_for_nothing_and_takes_what_it_gets() {
    let mut rig = Rig::new(&fixed_pool(&["10.9.9.9:1"]));
    rig.poller = Poller::passive(&fixed_pool(&["10.9.9.9:1"]), 77);
    rig.send(Event::Pods(vec![Found::at(address(POD))]));
    let outcome = Err(ScrapeError::Unreachable);
    rig.send(Event::Page {
        target: metrics_of(POD),
        outcome,
    });
    rig.send(Event::RefreshModels);
    rig.run(3_000, silent);
    assert_eq!(rig.calls, []);
    assert_eq!(rig.table().pods.len(), 1);
    assert_eq!(rig.row(POD).last_error, Some(ScrapeError::Unreachable));
}

#[track_caller]
fn check_call(change: impl FnOnce(&mut Pool), target: Target, path: &str, authority: &str) {
    let mut pool = fixed_pool(&[POD]);
    change(&mut pool);
    let call = Poller::new(&pool, 0, 0).call(target);
    assert_eq!((call.path.as_str(), call.authority.as_str()), (path, authority));
    assert_eq!(call.headers[0], ("x-pod".into(), HeaderValue::Text(authority.into())));
}

#[test]
fn the_page_is_where_the_engine_has_it() {
    let metrics = metrics_of(POD);
    check_call(|_| (), metrics, "/metrics", POD);
    check_call(|pool| pool.engine = Some(Engine::Vllm), metrics, "/metrics", POD);
    check_call(
        |pool| pool.engine = Some(Engine::Trtllm),
        metrics,
        "/prometheus/metrics",
        POD,
    );
    check_call(|pool| pool.engine = Some(Engine::Nim), metrics, "/v1/metrics", POD);
    check_call(
        |pool| pool.engine = Some(Engine::Triton),
        metrics,
        "/metrics",
        "10.0.0.1:8002",
    );
    check_call(
        |pool| pool.engine = Some(Engine::Max),
        metrics,
        "/metrics",
        "10.0.0.1:8001",
    );
    check_call(
        |pool| pool.engine = Some(Engine::Max),
        models_of(POD),
        "/v1/models",
        POD,
    );
    check_call(|pool| pool.scrape.path = Some("/m?x".into()), metrics, "/m?x", POD);
    check_call(|pool| pool.scrape.port = Some(9), metrics, "/metrics", "10.0.0.1:9");
    check_call(|pool| pool.scrape.port = Some(9), models_of(POD), "/v1/models", POD);
}

#[test]
fn secrets_are_named_and_not_known() {
    let mut pool = fixed_pool(&[POD]);
    pool.scrape.headers = vec![("authorization".into(), "VLLM_KEY".into())];
    let call = Poller::new(&pool, 0, 0).call(metrics_of(POD));
    let header = ("authorization".into(), HeaderValue::Variable("VLLM_KEY".into()));
    assert!(call.headers.contains(&header));
    assert_eq!((call.cluster.as_str(), call.timeout), ("pods", Millis(1_000)));
}

/// Scrapes and failed ones, after pods that answer every scrape with this.
#[track_caller]
fn check_failures(page: &'static [u8], all_fail: bool) {
    let mut rig = Rig::new(&fixed_pool(&[POD]));
    rig.run(3_000, |target| match target {
        Target::Metrics(_) => Reply::Says(200, page),
        other => idle(other),
    });
    let (scrapes, failures) = (rig.count(Stat::Scrapes), rig.count(Stat::ScrapeFailures));
    assert!(scrapes > 0);
    assert_eq!(failures, if all_fail { scrapes } else { 0 });
}

#[test]
fn every_page_without_a_reading_counts_as_a_failed_scrape() {
    check_failures(b"<html><body>It works!</body></html>\n", true);
    check_failures(b"# HELP up Nothing of a model server.\nup 1\n", true);
    check_failures(b"vllm:num_requests_running{engine=\"0\"} 1", true);
    check_failures(
        b"vllm:num_requests_running{engine=\"0\"} 1\nvllm:num_requests_waiting{engine=\"0\"} 0\n",
        false,
    );
}

#[test]
fn a_big_pool_is_not_asked_for_its_models_in_one_instant() {
    let mut rig = Rig::new(&pool_of(Discovery::Static(many(100))));
    rig.run(20_000, idle);
    let asked = |rig: &Rig| {
        many(100)
            .iter()
            .map(|pod| rig.asked(Target::Models(*pod)).len())
            .sum::<usize>()
    };
    let before = asked(&rig);
    rig.send(Event::RefreshModels);
    rig.run(300, idle);
    let soon = asked(&rig) - before;
    assert!((5..60).contains(&soon), "{soon} of 100 within 300 ms");
    rig.run(900, idle);
    assert!(asked(&rig) - before >= 100, "all of them within a second and a tick");
}
