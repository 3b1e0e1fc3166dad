use super::*;
use berth_shared_state::names::{Keys, ledger_key};
use berth_shared_state::pod::PodAddress;
use berth_shared_state::sample::{Engine, Status};
use berth_shared_state::sealed::SealError;
use berth_shared_state::store::{Cas, MemoryStore, StoreError, Stored};
use berth_shared_state::table::{self, Discovered, Load, Models, NameId, PodRow, Readiness, Slow, Table};
use berth_shared_state::units::Tokens;
use core::cell::Cell;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::ledger::{Ledger, Outcome};
use crate::limits::{DRAW_ABOVE, DRAWN_AT_RANDOM};
use crate::prefix::Blocks;
use crate::request::{Api, PromptSize};

mod hearing;
mod line;
mod others;
mod prefix;
mod sessions;

const ONE: &str =
    r#"{"pools": [{"name": "a", "discovery": {"static": ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"]}}]}"#;
/// Its first pool is that of [`ONE`].
const TWO: &str = r#"{"pools": [{"name": "a", "discovery": {"static": ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"]}},
                                {"name": "b", "models": ["known"], "discovery": {"static": ["10.0.1.1:80"]}}]}"#;

fn at(ms: u64) -> UnixMillis {
    UnixMillis(1_700_000_000_000 + ms)
}

fn address(text: &str) -> PodAddress {
    text.parse().unwrap()
}

fn table_key(pool: &str) -> String {
    let config = Config::parse(TWO.as_bytes()).unwrap();
    Keys::of(config.pools.iter().find(|known| known.name == pool).unwrap()).table
}

fn view(document: &str, nonce: u64) -> View {
    View::new(Rc::new(Config::parse(document.as_bytes()).unwrap()), nonce, nonce)
}

/// A pod read at 0 with nothing to do, listing name 0 as its base.
fn row(pod: &str) -> PodRow {
    let load = Load {
        engine: Some(Engine::Vllm),
        status: Status::Ok,
        running: Some(0),
        waiting: Some(0),
        deferred: None,
        kv_mean: Some(0.0),
        kv_max: Some(0.0),
        kv_capacity: Some(Tokens(100_000)),
        engines: 1,
        sleeping: None,
    };
    let models = Models {
        at: at(0),
        bases: vec![NameId(0)],
        adapters: vec![],
        max_model_len: None,
    };
    PodRow {
        readiness: Readiness::Ready,
        scraped_at: Some(at(0)),
        load,
        models: Some(models),
        ..PodRow::unread(address(pod), at(0))
    }
}

fn publish(store: &dyn SharedData, pool: &str, base: &str, pods: &[&str], seq: u64) {
    publish_rows(store, pool, base, pods.iter().map(|pod| row(pod)).collect(), seq);
}

fn publish_rows(store: &dyn SharedData, pool: &str, base: &str, pods: Vec<PodRow>, seq: u64) {
    let table = Table {
        seq,
        written_at: at(0),
        config_epoch: 0,
        discovery: Discovered {
            at: Some(at(0)),
            error: None,
        },
        scrape_interval: Millis(1_000),
        names: vec![base.to_owned()],
        pods,
    };
    store
        .set(&table_key(pool), &table::encode(&table).unwrap(), None)
        .unwrap();
}

fn three(store: &dyn SharedData) {
    publish(store, "a", "base", &["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"], 1);
}

fn chat(model: Option<&str>) -> Facts {
    Facts {
        api: Some(Api::Chat),
        model: model.map(str::to_owned),
        prompt: PromptSize {
            ascii_bytes: 4000,
            ..PromptSize::default()
        },
        choices: 1,
        prompts: 1,
        stream: true,
        complete: true,
        ..Facts::default()
    }
}

fn decide(view: &mut View, store: &dyn SharedData, id: u64, model: Option<&str>, now: u64) -> Decision {
    decide_on(view, store, id, &chat(model), &Steering::default(), now)
}

fn decide_on(
    view: &mut View,
    store: &dyn SharedData,
    id: u64,
    facts: &Facts,
    steering: &Steering,
    now: u64,
) -> Decision {
    let request = Request {
        id,
        facts,
        prompt: &Blocks::default(),
        steering,
        body: None,
        in_full: false,
    };
    view.decide(store, &request, at(now))
}

fn endpoints(decision: &Decision) -> Vec<PodAddress> {
    match &decision.action {
        Action::Route { endpoints, .. } => endpoints.clone(),
        other => panic!("not routed: {other:?}"),
    }
}

fn booked(store: &dyn SharedData, pod: PodAddress) -> (u32, u32) {
    let value = store.get(&ledger_key("a")).unwrap().unwrap().value;
    let own = Ledger::decode(&value).unwrap().own(pod.key(), None);
    (own.unanswered, own.generating)
}

fn avoided(store: &dyn SharedData, pod: PodAddress) -> bool {
    let value = store.get(&ledger_key("a")).unwrap().unwrap().value;
    Ledger::decode(&value).unwrap().at(pod.key()).avoided_until().is_some()
}

/// Istio keeps the values of all plugins in one space.
#[test]
fn a_pool_of_the_same_name_with_other_pods_is_another_pool() {
    let store = MemoryStore::default();
    three(&store);
    let other = r#"{"pools": [{"name": "a", "discovery": {"static": ["10.9.9.9:80"]}}]}"#;
    let pass = Action::Pass(Reason::NoTable);
    assert_eq!(decide(&mut view(other, 1), &store, 1, Some("base"), 10).action, pass);
    assert_eq!(
        endpoints(&decide(&mut view(ONE, 2), &store, 1, Some("base"), 10)).len(),
        3
    );
}

#[test]
fn a_routed_request_is_booked_until_its_end() {
    let store = MemoryStore::default();
    three(&store);
    let mut view = view(ONE, 1);
    let pod = endpoints(&decide(&mut view, &store, 1, Some("base"), 10))[0];
    assert_eq!(booked(&store, pod), (1, 0));
    view.on_first_byte(&store, 1, 200, true, at(60));
    assert_eq!(booked(&store, pod), (0, 1));
    view.on_end(&store, 1, Outcome::Success, at(90));
    assert_eq!(booked(&store, pod), (0, 0));
    view.on_end(&store, 1, Outcome::Success, at(95));
    view.on_first_byte(&store, 1, 200, true, at(95));
    assert_eq!(view.counts().ledger_writes, 3);
}

/// A pool of so many pods, after a table.
fn many(pods: usize) -> (View, MemoryStore, Vec<String>) {
    let pods: Vec<String> = (0..pods)
        .map(|pod| format!("10.1.{}.{}:80", pod / 200, pod % 200))
        .collect();
    let document = serde_json::json!({"pools": [{"name": "a", "discovery": {"static": pods}}]}).to_string();
    let config = Rc::new(Config::parse(document.as_bytes()).unwrap());
    let table = Table {
        written_at: at(0),
        scrape_interval: Millis(1_000),
        names: vec!["base".to_owned()],
        pods: pods.iter().map(|pod| row(pod)).collect(),
        ..Table::default()
    };
    let store = MemoryStore::default();
    let key = Keys::of(&config.pools[0]).table;
    store.set(&key, &table::encode(&table).unwrap(), None).unwrap();
    (View::new(config, 1, 1), store, pods)
}

#[test]
fn all_pods_are_looked_at_up_to_a_bound_and_above_it_some() {
    let (mut view, store, _) = many(DRAW_ABOVE);
    let why = decide(&mut view, &store, 1, Some("base"), 10).why;
    assert_eq!((why.candidates as usize, why.excluded.not_drawn), (DRAW_ABOVE, 0));
    let (mut view, store, _) = many(DRAW_ABOVE + 1);
    let why = decide(&mut view, &store, 1, Some("base"), 10).why;
    // The name's two homes may be among those at random, or not.
    let drawn = why.candidates as usize;
    assert!((DRAWN_AT_RANDOM..=DRAWN_AT_RANDOM + 2).contains(&drawn), "{drawn}");
    assert_eq!(drawn + why.excluded.not_drawn as usize, DRAW_ABOVE + 1);
}

#[test]
fn of_many_pods_a_subset_and_the_question_for_all_reasons_find_each() {
    let (mut view, store, pods) = many(200);
    for (id, pod) in (1..).zip(&pods) {
        let steering = Steering {
            subset: Some(pod.clone()),
            ..Steering::default()
        };
        let decision = decide_on(&mut view, &store, id, &chat(Some("base")), &steering, 10);
        assert_eq!(endpoints(&decision), [address(pod)]);
    }
    let facts = chat(Some("base"));
    let request = Request {
        id: 1_000,
        facts: &facts,
        prompt: &Blocks::default(),
        steering: &Steering::default(),
        body: None,
        in_full: true,
    };
    let why = view.decide(&store, &request, at(10)).why;
    assert_eq!((why.considered.len(), why.excluded.not_drawn), (200, 0));
}

#[test]
fn a_large_pool_fills_evenly() {
    let (mut view, store, _) = many(200);
    let firsts = (0..200).map(|id| endpoints(&decide(&mut view, &store, id, Some("base"), 10 + id))[0]);
    let mut firsts: Vec<PodAddress> = firsts.collect();
    firsts.sort_unstable();
    // Whoever has a request is dearer than some of the 32 that are drawn, until few have none.
    let twice = firsts.windows(2).filter(|pair| pair[0] == pair[1]).count();
    assert!(twice < 20, "{twice}");
}

/// Predicted milliseconds of a second request, while the only pod shows one in its queue.
fn behind_one(reported_at: Option<UnixMillis>) -> u64 {
    let store = MemoryStore::default();
    publish(&store, "a", "base", &["10.0.0.1:80"], 1);
    let mut table = table::decode(&store.get(&table_key("a")).unwrap().unwrap().value).unwrap();
    table.pods[0].load.waiting = Some(1);
    table.pods[0].reported_at = reported_at;
    store
        .set(&table_key("a"), &table::encode(&table).unwrap(), None)
        .unwrap();
    let mut view = view(ONE, 1);
    decide(&mut view, &store, 1, Some("base"), 50);
    decide(&mut view, &store, 2, Some("base"), 60).why.predicted.unwrap().0
}

#[test]
fn own_requests_are_part_of_what_a_report_after_them_shows() {
    // 1,000 tokens take 125 ms: the own one ahead and itself, and what is left after 60 ms of what the page had
    // queued before that.
    assert_eq!(behind_one(Some(at(55))), 250);
    assert_eq!(behind_one(None), 250 + 125 - 60);
}

#[test]
fn workers_spread_what_they_send_at_the_same_time() {
    let store = MemoryStore::default();
    three(&store);
    let mut workers = [view(ONE, 1), view(ONE, 2), view(ONE, 3)];
    let mut firsts: Vec<_> = workers
        .iter_mut()
        .map(|view| endpoints(&decide(view, &store, 1, Some("base"), 10))[0])
        .collect();
    firsts.sort_unstable();
    firsts.dedup();
    assert_eq!(firsts.len(), 3);
}

#[test]
fn the_pods_that_a_retry_left_behind_are_charged_and_the_request_moves() {
    let store = MemoryStore::default();
    three(&store);
    // Attempts as the host counts them, the place of the serving pod, and the pods to blame.
    for (attempts, serving, blamed) in [
        (Some(1), 0, 0),
        (Some(2), 1, 1),
        (Some(3), 2, 2),
        (None, 2, 2),
        // The proxy skipped pods without sending. Nobody failed; or one of the first two did, and nobody knows which.
        (Some(1), 1, 0),
        (Some(1), 2, 0),
        (Some(2), 2, 0),
        // The second was tried once more after the end of the list: by whatever way, it is not known.
        (Some(3), 1, 0),
    ] {
        store.set(&ledger_key("a"), b"", None).unwrap();
        let mut view = view(ONE, 1);
        let list = endpoints(&decide(&mut view, &store, 1, Some("base"), 10));
        view.on_upstream(&store, 1, list[serving], attempts, at(50));
        view.on_upstream(&store, 1, list[serving], attempts, at(51));
        assert_eq!(booked(&store, list[serving]), (1, 0), "{attempts:?} to {serving}");
        let failed: Vec<bool> = list.iter().map(|pod| avoided(&store, *pod)).collect();
        assert_eq!(failed, [blamed > 0, blamed > 1, false], "{attempts:?} to {serving}");
    }
}

#[test]
fn a_short_list_is_walked_again_and_the_serving_pod_is_not_blamed() {
    let store = MemoryStore::default();
    publish(&store, "a", "base", &["10.0.0.1:80", "10.0.0.2:80"], 1);
    let mut view = view(ONE, 1);
    let list = endpoints(&decide(&mut view, &store, 1, Some("base"), 10));
    // First, second, first again: that one answered in the end.
    view.on_upstream(&store, 1, list[0], Some(3), at(50));
    assert_eq!(booked(&store, list[0]), (1, 0));
    assert_eq!([avoided(&store, list[0]), avoided(&store, list[1])], [false, true]);
}

#[test]
fn a_pod_outside_of_the_list_serves_without_blame() {
    for attempts in [1, 2, 4] {
        let store = MemoryStore::default();
        three(&store);
        let mut view = view(ONE, 1);
        let list = endpoints(&decide(&mut view, &store, 1, Some("base"), 10));
        view.on_upstream(&store, 1, address("10.9.9.9:80"), Some(attempts), at(50));
        assert_eq!(booked(&store, address("10.9.9.9:80")), (1, 0));
        assert!(list.iter().all(|pod| !avoided(&store, *pod)), "{attempts} attempts");
    }
}

#[track_caller]
fn check_pool(model: Option<&str>, expected: &str) {
    let store = MemoryStore::default();
    publish(&store, "a", "base-a", &["10.0.0.1:80"], 1);
    publish(&store, "b", "base-b", &["10.0.1.1:80"], 1);
    let mut view = view(TWO, 1);
    assert_eq!(decide(&mut view, &store, 1, model, 10).why.pool, expected);
}

#[test]
fn the_pool_that_has_the_model_decides() {
    check_pool(None, "a");
    check_pool(Some("base-a"), "a");
    check_pool(Some("base-b"), "b");
    check_pool(Some("known"), "b");
    check_pool(Some("nowhere"), "a");
}

#[test]
fn a_model_is_refused_only_when_every_pool_refuses_it() {
    let store = MemoryStore::default();
    publish(&store, "a", "base-a", &["10.0.0.1:80"], 1);
    let mut view = view(TWO, 1);
    // Nobody has asked the pods of b yet: it may have the model.
    let decision = decide(&mut view, &store, 1, Some("nowhere"), 10);
    assert_eq!(
        (decision.why.pool.as_str(), &decision.action),
        ("b", &Action::Pass(Reason::NoTable))
    );
    publish(&store, "b", "base-b", &["10.0.1.1:80"], 1);
    let decision = decide(&mut view, &store, 2, Some("nowhere"), 20);
    assert!(matches!(decision.action, Action::Reply(refusal) if refusal.status == 404));
}

#[test]
fn a_name_longer_than_any_name_meets_the_rules_of_an_unknown_one() {
    let store = MemoryStore::default();
    three(&store);
    let mut view = view(ONE, 1);
    let facts = Facts {
        model_too_long: true,
        ..chat(None)
    };
    let decision = decide_on(&mut view, &store, 1, &facts, &Steering::default(), 10);
    assert!(matches!(decision.action, Action::Reply(refusal) if refusal.status == 404));
}

#[test]
fn a_route_that_leads_to_a_pool_leaves_no_choice() {
    let store = MemoryStore::default();
    publish(&store, "a", "base-a", &["10.0.0.1:80"], 1);
    publish(&store, "b", "base-b", &["10.0.1.1:80"], 1);
    let mut view = view(TWO, 1);
    let steering = Steering {
        pool: Some(1),
        ..Steering::default()
    };
    for (body, expected) in [(None, 0), (Some("base-b"), 0), (Some("base-a"), 404)] {
        let decision = decide_on(&mut view, &store, 1, &chat(body), &steering, 10);
        let status = match &decision.action {
            Action::Reply(refusal) => refusal.status,
            _ => 0,
        };
        assert_eq!((decision.why.pool.as_str(), status), ("b", expected), "{body:?}");
    }
    let unread = Facts {
        complete: false,
        ..chat(None)
    };
    assert!(!view.lacks_model(&unread, &steering) && view.lacks_model(&unread, &Steering::default()));
}

#[test]
fn a_trusted_header_tells_the_model_where_the_body_does_not() {
    let store = MemoryStore::default();
    publish(&store, "b", "base-b", &["10.0.1.1:80"], 1);
    let mut view = view(TWO, 1);
    let steering = Steering {
        model: Some("base-b".to_owned()),
        ..Steering::default()
    };
    for (body, expected) in [(None, "b"), (Some("known"), "b"), (Some("base-a"), "a")] {
        let decision = decide_on(&mut view, &store, 1, &chat(body), &steering, 10);
        assert_eq!(decision.why.pool, expected, "{body:?}");
    }
    let cut = Facts {
        complete: false,
        ..chat(None)
    };
    assert!(view.lacks_model(&cut, &Steering::default()));
    assert!(!view.lacks_model(&cut, &steering));
    assert!(!view.lacks_model(&chat(None), &Steering::default()));
    let single = View::new(Rc::new(Config::parse(ONE.as_bytes()).unwrap()), 1, 1);
    assert!(!single.lacks_model(&cut, &Steering::default()));
}

#[test]
fn a_body_that_was_cut_before_its_model_goes_to_the_base_of_a_single_pool_and_says_so() {
    let store = MemoryStore::default();
    three(&store);
    let mut view = view(ONE, 1);
    let mut noted = |complete, model, steering: &Steering| {
        let facts = Facts {
            complete,
            ..chat(model)
        };
        let decision = decide_on(&mut view, &store, 1, &facts, steering, 10);
        assert_eq!(endpoints(&decision).len(), 3);
        decision.why.notes.contains(&Note::ModelUnread)
    };
    let told = Steering {
        model: Some("base".to_owned()),
        ..Steering::default()
    };
    assert!(noted(false, None, &Steering::default()));
    assert!(!noted(false, None, &told));
    assert!(!noted(false, Some("base"), &Steering::default()));
    assert!(!noted(true, None, &Steering::default()));
}

#[test]
fn a_table_that_cannot_be_read_leaves_the_last_good_copy() {
    let store = MemoryStore::default();
    let mut view = view(ONE, 1);
    assert_eq!(
        decide(&mut view, &store, 1, None, 0).action,
        Action::Pass(Reason::NoTable)
    );
    assert_eq!(view.table_error(0), Some(TableError::Absent));
    three(&store);
    endpoints(&decide(&mut view, &store, 2, None, 10));
    assert_eq!(view.table_error(0), None);
    store.set(&table_key("a"), b"BRTH garbage", None).unwrap();
    endpoints(&decide(&mut view, &store, 3, None, 20));
    assert_eq!(view.table_error(0), Some(TableError::Unreadable(SealError::Foreign)));
    store.set(&table_key("a"), b"", None).unwrap();
    endpoints(&decide(&mut view, &store, 4, None, 30));
    assert_eq!(view.table_error(0), Some(TableError::Absent));
    assert_eq!((view.counts().tables_decoded, view.counts().tables_unreadable), (1, 3));
}

/// Counts reads of the table.
#[derive(Default)]
struct Counting {
    inner: MemoryStore,
    tables: Cell<u32>,
    all: Cell<u32>,
}

impl SharedData for Counting {
    fn get(&self, key: &str) -> Result<Option<Stored>, StoreError> {
        self.all.set(self.all.get() + 1);
        self.tables.set(self.tables.get() + u32::from(key.ends_with("/table")));
        self.inner.get(key)
    }

    fn set(&self, key: &str, value: &[u8], cas: Option<Cas>) -> Result<(), StoreError> {
        self.all.set(self.all.get() + 1);
        self.inner.set(key, value, cas)
    }
}

#[test]
fn a_table_is_read_when_its_copy_is_old_and_decoded_when_it_changed() {
    let store = Counting::default();
    three(&store);
    let mut view = view(ONE, 1);
    for (now, reads, decoded) in [(10, 1, 1), (11, 1, 1), (12, 2, 1), (14, 3, 1)] {
        decide(&mut view, &store, now, None, now);
        assert_eq!(
            (store.tables.get(), view.counts().tables_decoded),
            (reads, decoded),
            "at {now}"
        );
    }
    publish(&store, "a", "base", &["10.0.0.1:80"], 2);
    assert_eq!(endpoints(&decide(&mut view, &store, 15, None, 15)).len(), 3);
    assert_eq!(endpoints(&decide(&mut view, &store, 16, None, 16)).len(), 1);
    assert_eq!(view.counts().tables_decoded, 2);
}

#[test]
fn a_large_table_is_copied_less_often() {
    let store = Counting::default();
    let pods: Vec<String> = (0..1000).map(|n| format!("10.0.{}.{}:80", n / 250, n % 250)).collect();
    let mut pods: Vec<&str> = pods.iter().map(String::as_str).collect();
    pods.sort_by_key(|pod| address(pod));
    publish(&store, "a", "base", &pods, 1);
    let bytes = store.get(&table_key("a")).unwrap().unwrap().value.len() as u64;
    let wait = 2 + bytes / 8192;
    assert!(wait > 5, "{bytes} bytes");
    let mut view = view(ONE, 1);
    store.tables.set(0);
    for (now, reads) in [(10, 1), (9 + wait, 1), (10 + wait, 2)] {
        decide(&mut view, &store, now, None, now);
        assert_eq!(store.tables.get(), reads, "at {now}");
    }
}

#[test]
fn an_idle_worker_touches_no_shared_data() {
    let store = Counting::default();
    three(&store);
    let mut view = view(ONE, 1);
    decide(&mut view, &store, 1, None, 10);
    view.on_end(&store, 1, Outcome::Success, at(20));
    // For the horizon of ten seconds a sample may still count the request as waiting.
    view.tick(&store, at(10_100));
    store.all.set(0);
    for tick in 102..1000 {
        view.tick(&store, at(tick * 100));
    }
    assert_eq!(store.all.get(), 0);
}

#[test]
fn a_refusing_host_costs_the_copy_and_nothing_else() {
    struct Refusing;
    impl SharedData for Refusing {
        fn get(&self, _: &str) -> Result<Option<Stored>, StoreError> {
            Err(StoreError::Host(12))
        }
        fn set(&self, _: &str, _: &[u8], _: Option<Cas>) -> Result<(), StoreError> {
            Err(StoreError::Host(12))
        }
    }
    let store = MemoryStore::default();
    three(&store);
    let mut view = view(ONE, 1);
    decide(&mut view, &store, 1, None, 10);
    endpoints(&decide(&mut view, &Refusing, 2, None, 20));
    assert_eq!(view.table_error(0), Some(TableError::Refused(StoreError::Host(12))));
    assert!(view.counts().ledger_refusals >= 1);
    view.on_end(&Refusing, 2, Outcome::Success, at(30));
    view.on_end(&store, 1, Outcome::Success, at(40));
    let value = store.get(&ledger_key("a")).unwrap().unwrap().value;
    let ledger = Ledger::decode(&value).unwrap();
    let pods = ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"].map(address);
    assert!(
        pods.iter()
            .all(|pod| ledger.own(pod.key(), None).context_tokens == Tokens(0))
    );
}

#[test]
fn what_was_sent_between_page_and_report_is_not_taken_for_running_on_the_page() {
    let store = MemoryStore::default();
    let mut view = view(ONE, 1);
    let publish = |running, scraped, reported: Option<u64>, seq| {
        let mut pod = row("10.0.0.1:80");
        pod.scraped_at = Some(at(scraped));
        pod.reported_at = reported.map(at);
        pod.load.running = Some(running);
        let table = Table {
            seq,
            written_at: at(scraped),
            config_epoch: 0,
            discovery: Discovered {
                at: Some(at(0)),
                error: None,
            },
            scrape_interval: Millis(1_000),
            names: vec!["base".to_owned()],
            pods: vec![pod],
        };
        store
            .set(&table_key("a"), &table::encode(&table).unwrap(), None)
            .unwrap();
    };
    publish(0, 0, None, 1);
    for (id, sent) in [(1, 500), (2, 1_500)] {
        decide(&mut view, &store, id, None, sent);
        view.on_first_byte(&store, id, 200, true, at(sent + 100));
    }
    // The page shows one of ours among five; the second came later, but before the report.
    publish(5, 1_000, Some(2_000), 2);
    let decision = decide(&mut view, &store, 3, None, 2_100);
    let terms = decision.why.considered[0].terms;
    // Four of others and two of ours; a prompt of 1,000 tokens takes 125 ms.
    assert!((terms.harm - (125.0 * 0.1 * 6.0 + 2.0 * 6.0)).abs() < 1e-6, "{terms:?}");
}

/// The only pod is slow, and its page stands still since then, or moves. A request is sent there and answered so: whether
/// the pod is still believed to be slow.
#[track_caller]
fn check_slow(still_since: Option<u64>, sent: u64, answer: fn(&mut View, &MemoryStore), slow: bool) {
    let store = MemoryStore::default();
    let mut pod = row("10.0.0.1:80");
    pod.slow = Some(Slow {
        times: 10.0,
        still_since: still_since.map(at),
        again: at(10_000),
    });
    publish_rows(&store, "a", "base", vec![pod], 1);
    let mut view = view(ONE, 1);
    let misleads = |view: &mut View, id, now| match decide(view, &store, id, Some("base"), now).action {
        Action::Route { booking, .. } => booking.misleads,
        other => panic!("not routed: {other:?}"),
    };
    assert!(misleads(&mut view, 1, sent), "it teaches no rate");
    answer(&mut view, &store);
    assert_eq!(misleads(&mut view, 2, 1_500), slow);
}

#[test]
fn a_slow_pod_that_answers_while_its_page_stands_still_is_not_slow() {
    let token: fn(&mut View, &MemoryStore) = |view, store| view.on_first_byte(store, 1, 200, true, at(1_000));
    check_slow(Some(500), 501, token, false);
    check_slow(
        Some(500),
        501,
        |view, store| view.on_first_byte(store, 1, 200, false, at(1_000)),
        false,
    );
    check_slow(
        Some(500),
        501,
        |view, store| view.on_end(store, 1, Outcome::Success, at(1_000)),
        false,
    );
    // Sent before it stood still: that its answer came later is what a slow pod does, too.
    check_slow(Some(500), 500, token, true);
    // What moves is a measurement.
    check_slow(None, 501, token, true);
    check_slow(
        Some(500),
        501,
        |view, store| view.on_first_byte(store, 1, 500, true, at(1_000)),
        true,
    );
    check_slow(
        Some(500),
        501,
        |view, store| view.on_end(store, 1, Outcome::Refused, at(1_000)),
        true,
    );
}

#[test]
fn what_pages_show_of_other_proxies_keeps_a_pod_from_being_charged() {
    for (generated, charged) in [([5.0, 6.0], false), ([5.0, 5.0], true)] {
        let store = MemoryStore::default();
        let mut view = view(ONE, 1);
        three(&store);
        let pod = endpoints(&decide(&mut view, &store, 1, Some("base"), 100))[0];
        for (seq, generated) in (1..).zip(generated) {
            let page = |pod| PodRow {
                scraped_at: Some(at(seq * 1_000)),
                generated: Some(generated),
                ..row(pod)
            };
            let pages = ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"].map(page);
            publish_rows(&store, "a", "base", pages.into(), seq + 1);
            view.tick(&store, at(seq * 1_000 + 100));
        }
        view.on_end(&store, 1, Outcome::Abandoned, at(9_000));
        assert_eq!(avoided(&store, pod), charged, "{generated:?}");
    }
}

#[test]
fn who_shares_a_pod_is_known_still_when_others_come_and_go() {
    let store = MemoryStore::default();
    let mut view = view(ONE, 1);
    let part = |view: &mut View, pods: &[&str], seq: u64| {
        let page = |pod: &&str| {
            let mut row = row(pod);
            row.scraped_at = Some(at(seq * 1_000));
            row.load.running = Some(if *pod == "10.0.0.2:80" { 20 } else { 0 });
            row
        };
        publish_rows(&store, "a", "base", pods.iter().map(page).collect(), seq);
        decide(view, &store, seq, Some("base"), seq * 1_000 + 100);
        view.on_end(&store, seq, Outcome::Success, at(seq * 1_000 + 200));
        let pool = &view.pools[0];
        let pods = pool.pods(&view.config.pools[0], None, at(seq * 1_000 + 100));
        pods.iter().map(|pod| pod.own_part).collect::<Vec<_>>()
    };
    let two = part(&mut view, &["10.0.0.1:80", "10.0.0.2:80"], 1);
    // The others send twenty to the second; what nobody sent is shared as the pool is.
    assert!(two[1] < two[0] / 4.0, "{two:?}");
    let three = part(&mut view, &["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"], 2);
    assert_eq!(three[0], three[2]);
    assert!(three[1] < three[0] / 6.0, "{three:?}");
    let two = part(&mut view, &["10.0.0.2:80", "10.0.0.3:80"], 3);
    assert!(two[0] < two[1] / 8.0, "{two:?}");
}

#[test]
fn a_load_report_is_no_page_that_says_who_shares_a_pod() {
    let part = |reported_at: Option<UnixMillis>| {
        let store = MemoryStore::default();
        let mut view = view(ONE, 1);
        let mut row = row("10.0.0.1:80");
        row.scraped_at = Some(at(1_000));
        row.load.running = Some(4);
        publish_rows(&store, "a", "base", vec![row.clone()], 1);
        for id in 1..=4 {
            decide(&mut view, &store, id, Some("base"), 1_100);
        }
        row.reported_at = reported_at;
        publish_rows(&store, "a", "base", vec![row], 2);
        decide(&mut view, &store, 5, Some("base"), 1_500);
        view.pools[0].pods(&view.config.pools[0], None, at(1_500))[0].own_part
    };
    // The four that run are the page's still, and not those that were sent since.
    assert_eq!(part(Some(at(1_400))), part(None));
}
