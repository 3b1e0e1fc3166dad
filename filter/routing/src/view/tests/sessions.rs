//! Sessions over several requests, workers and proxies.

use super::*;
use crate::decision::Note;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

const PODS: [&str; 3] = ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"];
const SECRET: &[u8] = b"sixteen bytes or more";

/// [`ONE`] with this `routing`. It may read the table of [`ONE`]: how sessions are told apart does not change it.
fn by(routing: &str) -> String {
    let routing = format!(r#""routing": {routing}, "discovery""#);
    let document = ONE.replace(r#""discovery""#, &routing);
    document.replace(r#"{"pools""#, r#"{"trust": {"headers": ["x-session-id"]}, "pools""#)
}

fn by_header() -> String {
    by(r#"{"affinity": {"by": "session"}}"#)
}

/// A worker whose cookies are sealed.
fn by_cookie(nonce: u64) -> View {
    let cookie = r#"{"affinity": {"by": "cookie", "key": {"env": "K"}, "max_age": "60s"}}"#;
    let mut view = view(&by(cookie), nonce);
    assert!(view.seal(0, SECRET));
    view
}

fn of(session: &str) -> Steering {
    Steering {
        session: Some(session.to_owned()),
        ..Steering::default()
    }
}

fn bringing(cookies: &str) -> Steering {
    Steering {
        cookies: cookies.to_owned(),
        ..Steering::default()
    }
}

/// The same sender, who may go to one pod only.
fn only(pod: &str, steering: Steering) -> Steering {
    Steering {
        subset: Some(pod.to_owned()),
        ..steering
    }
}

/// Decides for 1,000 tokens of prompt, of which nobody can tell how they begin; the answer ends well.
#[track_caller]
fn serve(view: &mut View, store: &dyn SharedData, steering: &Steering, now: u64) -> Decision {
    let decision = decide_on(view, store, now, &chat(Some("base")), steering, now);
    let pod = endpoints(&decision)[0];
    view.on_upstream(store, now, pod, Some(1), at(now + 1));
    view.on_end(store, now, Outcome::Success, at(now + 2));
    decision
}

#[track_caller]
fn goes(decision: &Decision, pod: &str, session: bool) {
    assert_eq!(endpoints(decision)[0], address(pod), "{:?}", decision.why);
    assert_eq!(
        decision.why.notes.contains(&Note::Session),
        session,
        "{:?}",
        decision.why
    );
}

/// A table in which this pod has requests waiting.
fn busy(store: &dyn SharedData, pod: &str, waiting: u32, seq: u64) {
    let mut table = Table {
        seq,
        written_at: at(0),
        scrape_interval: Millis(1_000),
        names: vec!["base".to_owned()],
        pods: PODS.map(row).to_vec(),
        ..Table::default()
    };
    table.discovery.at = Some(at(0));
    for row in table.pods.iter_mut().filter(|row| row.address == address(pod)) {
        row.load.waiting = Some(waiting);
    }
    store
        .set(&table_key("a"), &table::encode(&table).unwrap(), None)
        .unwrap();
}

#[test]
fn a_session_is_found_again_by_every_worker() {
    for routing in [
        r#"{"affinity": {"by": "session"}}"#,
        r#"{"affinity": {"by": "session"}, "prefix": {"enabled": false}}"#,
    ] {
        let store = MemoryStore::default();
        three(&store);
        let document = by(routing);
        let (mut one, mut other) = (view(&document, 1), view(&document, 2));
        for (now, pod) in (10..).step_by(10).zip(PODS.iter().cycle().take(30)) {
            let session = of(&now.to_string());
            serve(&mut one, &store, &only(pod, session.clone()), now);
            goes(&serve(&mut other, &store, &session, now + 4), pod, true);
            goes(&serve(&mut one, &store, &session, now + 8), pod, true);
        }
    }
}

#[test]
fn without_affinity_a_session_means_nothing() {
    let store = MemoryStore::default();
    three(&store);
    let mut view = view(ONE, 1);
    serve(&mut view, &store, &only(PODS[0], of("s")), 10);
    let decisions = (20..200).step_by(4).map(|now| serve(&mut view, &store, &of("s"), now));
    let first: std::collections::BTreeSet<_> = decisions.map(|decision| endpoints(&decision)[0]).collect();
    // By lot: 45 times the same of three is once in 10^21.
    assert!(first.len() > 1, "{first:?}");
}

#[test]
fn a_session_leaves_a_pod_that_drowns_and_comes_back_no_more() {
    let store = MemoryStore::default();
    three(&store);
    let mut view = view(&by_header(), 1);
    serve(&mut view, &store, &only(PODS[1], of("s")), 10);
    // 1,000 tokens are 125 ms; a queue of one is as much, and an idle second is over by then.
    busy(&store, PODS[1], 40, 2);
    let decision = serve(&mut view, &store, &of("s"), 20);
    let there = endpoints(&decision)[0];
    assert_ne!(there, address(PODS[1]), "{:?}", decision.why);
    // Now both hold it.
    goes(&serve(&mut view, &store, &of("s"), 30), &there.to_string(), true);
}

#[test]
fn a_session_follows_the_pod_that_really_served() {
    let store = MemoryStore::default();
    three(&store);
    let mut view = view(&by_header(), 1);
    let steering = Steering {
        subset: Some(PODS[..2].join(",")),
        ..of("s")
    };
    let [first, second] = endpoints(&decide_on(&mut view, &store, 1, &chat(Some("base")), &steering, 10))[..] else {
        panic!("two pods");
    };
    view.on_upstream(&store, 1, second, Some(2), at(11));
    view.on_end(&store, 1, Outcome::Success, at(12));
    // The first one is avoided, and would not hold it otherwise either.
    goes(&serve(&mut view, &store, &of("s"), 20), &second.to_string(), true);
    let decision = serve(&mut view, &store, &only(&first.to_string(), of("s")), 30);
    goes(&decision, &first.to_string(), false);
}

#[test]
fn what_failed_is_not_remembered() {
    let store = MemoryStore::default();
    three(&store);
    let mut view = view(&by_header(), 1);
    decide_on(&mut view, &store, 1, &chat(Some("base")), &only(PODS[1], of("s")), 10);
    view.on_end(&store, 1, Outcome::ServerError, at(12));
    goes(&serve(&mut view, &store, &only(PODS[1], of("s")), 20), PODS[1], false);
}

#[test]
fn another_model_or_salt_shares_nothing_with_a_session() {
    let store = MemoryStore::default();
    three(&store);
    let mut view = view(&by_header(), 1);
    serve(&mut view, &store, &only(PODS[1], of("s")), 10);
    let salted = Facts {
        cache_salt: Some("x".to_owned()),
        ..chat(Some("base"))
    };
    for (id, facts) in [(1, chat(None)), (2, salted)] {
        let decision = decide_on(&mut view, &store, id, &facts, &only(PODS[1], of("s")), 20);
        goes(&decision, PODS[1], false);
    }
}

#[test]
fn proxies_that_do_not_talk_agree_where_a_session_lives() {
    let (here, there) = (MemoryStore::default(), MemoryStore::default());
    three(&here);
    three(&there);
    let (mut one, mut other) = (view(&by_header(), 1), view(&by_header(), 2));
    let mut homes = std::collections::BTreeSet::new();
    for now in (10..400).step_by(10) {
        let session = of(&now.to_string());
        let home = endpoints(&serve(&mut one, &here, &session, now))[0];
        assert_eq!(endpoints(&serve(&mut other, &there, &session, now))[0], home);
        homes.insert(home);
    }
    // 39 sessions by hash: all on two of three pods is once in two million.
    assert_eq!(homes.len(), 3);
}

/// The cookie of the answer to a request that goes to this pod.
fn cookie_from(view: &mut View, store: &dyn SharedData, pod: &str, now: u64) -> String {
    let steering = only(pod, Steering::default());
    decide_on(view, store, now, &chat(Some("base")), &steering, now);
    view.on_upstream(store, now, address(pod), Some(1), at(now));
    let cookie = view.cookie(now, address(pod), at(now)).expect("a cookie");
    view.on_end(store, now, Outcome::Success, at(now + 1));
    cookie
}

#[test]
fn a_cookie_leads_back_through_any_proxy_that_has_the_secret() {
    let (here, there) = (MemoryStore::default(), MemoryStore::default());
    three(&here);
    three(&there);
    let (mut one, mut other) = (by_cookie(1), by_cookie(2));
    for (now, pod) in (10..).step_by(10).zip(PODS.iter().cycle().take(30)) {
        let set = cookie_from(&mut one, &here, pod, now);
        let (cookie, attributes) = set.split_once(';').unwrap();
        assert_eq!(attributes, " Path=/; Max-Age=60; HttpOnly; SameSite=Lax");
        assert!(cookie.starts_with("berth-a="), "{cookie}");
        goes(&serve(&mut other, &there, &bringing(cookie), now), pod, true);
    }
}

#[test]
fn a_cookie_is_set_where_the_config_asks_for_it_alone() {
    let store = MemoryStore::default();
    three(&store);
    for document in [ONE.to_owned(), by_header()] {
        let mut view = view(&document, 1);
        decide(&mut view, &store, 1, Some("base"), 10);
        assert_eq!(view.cookie(1, address(PODS[0]), at(10)), None);
    }
    let mut view = by_cookie(3);
    decide(&mut view, &store, 1, Some("base"), 10);
    assert!(view.cookie(1, address(PODS[0]), at(10)).is_some());
    assert_eq!(view.cookie(2, address(PODS[0]), at(10)), None, "nobody's request");
    assert!(!view.seal(0, b"too short"));
    assert_eq!(view.cookie(1, address(PODS[0]), at(10)), None);
    let secure = Steering {
        secure: true,
        ..Steering::default()
    };
    let mut view = by_cookie(4);
    decide_on(&mut view, &store, 1, &chat(Some("base")), &secure, 10);
    let set = view.cookie(1, address(PODS[0]), at(10)).unwrap();
    assert!(set.ends_with("; SameSite=Lax; Secure"), "{set}");
}

#[test]
fn what_no_proxy_sealed_leads_nowhere() {
    let store = MemoryStore::default();
    three(&store);
    let mut view = by_cookie(1);
    let set = cookie_from(&mut view, &store, PODS[1], 10);
    let cookie = set.split_once(';').unwrap().0;
    let there = |view: &mut View, cookies: &str, now: u64| {
        let decision = serve(view, &store, &only(PODS[1], bringing(cookies)), now);
        decision.why.notes.contains(&Note::Session)
    };
    assert!(there(&mut view, cookie, 20));
    assert!(!there(&mut view, &cookie.replace("berth-a", "berth-b"), 30));
    assert!(!there(&mut view, "berth-a=1.1.0000000000000000.0000000000000000", 40));
    let mut stranger = by_cookie(2);
    assert!(stranger.seal(0, b"another secret of ours"));
    assert!(!there(&mut stranger, cookie, 50));
    // Issued at 0 in whole seconds, for 60.
    assert!(there(&mut view, cookie, 60_000));
    assert!(!there(&mut view, cookie, 60_001));
}

#[test]
fn a_cookie_does_not_speak_of_a_process_that_is_gone() {
    let store = MemoryStore::default();
    three(&store);
    let mut view = by_cookie(1);
    let set = cookie_from(&mut view, &store, PODS[1], 10);
    let cookie = bringing(set.split_once(';').unwrap().0);
    for (seq, started, known) in [(2, 0.999, true), (3, 1.0, false)] {
        let mut table = Table {
            seq,
            names: vec!["base".to_owned()],
            pods: PODS.map(row).to_vec(),
            ..Table::default()
        };
        for row in &mut table.pods {
            row.started_at = Some(1_700_000_000.0 + started);
        }
        store
            .set(&table_key("a"), &table::encode(&table).unwrap(), None)
            .unwrap();
        let steering = only(PODS[1], cookie.clone());
        goes(&serve(&mut view, &store, &steering, 1_500 + seq * 10), PODS[1], known);
    }
}

/// Pods of a large pool, of which a decision looks at some.
const MANY: usize = 300;

fn many_at(index: usize) -> String {
    format!("10.1.{}.{}:80", index / 250, index % 250 + 1)
}

/// A large pool with this `routing`: its worker, and its shared data. `bend` changes each pod's row.
fn many(routing: &str, bend: impl Fn(usize, &mut PodRow)) -> (View, MemoryStore) {
    let pods: Vec<String> = (0..MANY).map(many_at).collect();
    let document = format!(
        r#"{{"trust": {{"headers": ["x-session-id"]}},
             "pools": [{{"name": "a", "routing": {routing}, "discovery": {{"static": {pods:?}}}}}]}}"#
    );
    let config = Config::parse(document.as_bytes()).unwrap();
    let key = Keys::of(&config.pools[0]).table;
    let rows = pods.iter().enumerate().map(|(index, pod)| {
        let mut row = row(pod);
        bend(index, &mut row);
        row
    });
    let mut table = Table {
        seq: 1,
        written_at: at(0),
        scrape_interval: Millis(1_000),
        names: ["base", "role=decode", "role=prefill"].map(str::to_owned).to_vec(),
        pods: rows.collect(),
        ..Table::default()
    };
    table.discovery.at = Some(at(0));
    let store = MemoryStore::default();
    store.set(&key, &table::encode(&table).unwrap(), None).unwrap();
    (View::new(Rc::new(config), 1, 1), store)
}

#[test]
fn a_session_finds_its_pod_among_many() {
    let (mut by_header, store) = many(r#"{"affinity": {"by": "session"}}"#, |_, _| ());
    for (now, index) in [(10, 7), (20, 150), (30, 299)] {
        let (session, pod) = (of(&now.to_string()), many_at(index));
        serve(&mut by_header, &store, &only(&pod, session.clone()), now);
        goes(&serve(&mut by_header, &store, &session, now + 4), &pod, true);
    }
    let (mut by_cookie, store) = many(r#"{"affinity": {"by": "cookie", "key": {"env": "K"}}}"#, |_, _| ());
    assert!(by_cookie.seal(0, SECRET));
    for (now, index) in [(10, 7), (20, 150), (30, 299)] {
        let pod = many_at(index);
        let set = cookie_from(&mut by_cookie, &store, &pod, now);
        let cookie = bringing(set.split_once(';').unwrap().0);
        goes(&serve(&mut by_cookie, &store, &cookie, now + 4), &pod, true);
    }
}

#[test]
fn the_few_pods_with_a_required_label_are_found_among_many() {
    let some = [20, 140, 260];
    let (mut view, store) = many(r#"{"require": ["role=decode"]}"#, |index, row| {
        row.labels = vec![NameId(if some.contains(&index) { 1 } else { 2 })];
    });
    let with: Vec<PodAddress> = some.map(|index| address(&many_at(index))).into();
    for now in (10..200).step_by(10) {
        let decision = serve(&mut view, &store, &Steering::default(), now);
        assert!(
            endpoints(&decision).iter().all(|pod| with.contains(pod)),
            "{decision:?}"
        );
        assert_eq!(decision.why.excluded.labels as usize, MANY - some.len());
    }
    let (mut view, store) = many(r#"{"require": ["role=decode"]}"#, |_, row| row.labels = vec![NameId(2)]);
    let decision = decide(&mut view, &store, 1, Some("base"), 10);
    assert_eq!(decision.why.reason, Some(Reason::LabelsNoMatch));
}

#[test]
fn the_one_pod_below_its_cap_is_found_among_many() {
    let (mut view, store) = many(r#"{"max_requests": 4}"#, |index, row| {
        row.load.running = Some(if index == 111 { 3 } else { 4 });
    });
    let decision = decide(&mut view, &store, 1, Some("base"), 10);
    assert_eq!(endpoints(&decision), [address(&many_at(111))]);
    let decision = decide(&mut view, &store, 2, Some("base"), 20);
    assert!(decision.why.notes.contains(&Note::AllAtCap), "{:?}", decision.why.notes);
}

#[test]
fn where_room_is_asked_for_a_pod_at_its_cap_has_none() {
    let document = ONE
        .replace(r#""discovery""#, r#""routing": {"max_requests": 1}, "discovery""#)
        .replace(r#"{"pools""#, r#"{"admission": {"queue": {"enabled": true}}, "pools""#);
    let store = MemoryStore::default();
    three(&store);
    let mut view = view(&document, 1);
    for id in 1..=3 {
        let decision = decide(&mut view, &store, id, Some("base"), 10 * id);
        assert!(matches!(decision.action, Action::Route { .. }), "{decision:?}");
    }
    let request = Request {
        id: 4,
        facts: &chat(Some("base")),
        prompt: &Blocks::default(),
        steering: &Steering::default(),
        body: Some(4_000),
        in_full: false,
    };
    assert_eq!(view.decide(&store, &request, at(40)).action, Action::Hold);
    view.on_end(&store, 2, Outcome::Success, at(50));
    let gone: Vec<u64> = view.release(&store, at(60)).iter().map(|(id, _)| *id).collect();
    assert_eq!(gone, [4]);
}

/// A cookie may be copied, and come with any prompt.
#[test]
fn what_a_cookie_claims_is_no_less_booked_and_teaches_no_rate() {
    let store = MemoryStore::default();
    three(&store);
    let mut view = by_cookie(1);
    let set = cookie_from(&mut view, &store, PODS[1], 10);
    let cookie = bringing(set.split_once(';').unwrap().0);
    let mut booking = |steering: Steering, now: u64, session: bool| {
        let decision = decide_on(&mut view, &store, now, &chat(Some("base")), &steering, now);
        goes(&decision, PODS[1], session);
        view.on_end(&store, now, Outcome::Abandoned, at(now + 1));
        match decision.action {
            Action::Route { booking, .. } => booking,
            other => panic!("{other:?}"),
        }
    };
    let (without, with) = (
        booking(only(PODS[1], Steering::default()), 1_000, false),
        booking(cookie.clone(), 2_000, true),
    );
    assert_eq!((without.work, without.misleads), (Tokens(1_000), false));
    assert_eq!(
        (with.work, with.context, with.predicted, with.misleads),
        (without.work, without.context, without.predicted, true)
    );
    for (steering, taught) in [(cookie, false), (only(PODS[1], Steering::default()), true)] {
        for now in (3_000..3_040).step_by(10) {
            decide_on(&mut view, &store, now, &chat(Some("base")), &steering, now);
            view.on_first_byte(&store, now, 200, true, at(now + 1));
            view.on_end(&store, now, Outcome::Success, at(now + 2));
        }
        let value = store.get(&ledger_key("a")).unwrap().unwrap().value;
        let rate = Ledger::decode(&value).unwrap().pool_rate();
        assert_eq!(rate.is_some(), taught, "{rate:?}");
    }
}

/// 8 tokens per millisecond, two seconds of patience: as many of 1,000 tokens as without cookies (tests/line.rs).
#[test]
fn no_more_fit_a_pod_because_they_bring_its_cookie() {
    let cookie = by(r#"{"affinity": {"by": "cookie", "key": {"env": "K"}}}"#);
    let queue = r#"{"admission": {"queue": {"enabled": true}}, "trust""#;
    let store = MemoryStore::default();
    publish(&store, "a", "base", &PODS[..1], 1);
    let mut view = view(&cookie.replace(r#"{"trust""#, queue), 1);
    assert!(view.seal(0, SECRET));
    let set = cookie_from(&mut view, &store, PODS[0], 1);
    let steering = bringing(set.split_once(';').unwrap().0);
    let mut held = Vec::new();
    for id in 11..=30 {
        let request = Request {
            id,
            facts: &chat(None),
            prompt: &Blocks::default(),
            steering: &steering,
            body: Some(4_000),
            in_full: false,
        };
        let decision = view.decide(&store, &request, at(10));
        if decision.action == Action::Hold {
            held.push(id);
        }
    }
    assert_eq!(held, [28, 29, 30]);
}
