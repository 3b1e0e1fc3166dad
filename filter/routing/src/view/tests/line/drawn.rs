//! A pool so large that some of its pods are drawn: the drawn are asked for room first, and all before it is said that there
//! is none.

use super::*;
use crate::decision::Rung;
use crate::limits::{DRAW_ABOVE, DRAWN_AT_RANDOM};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

const PODS: usize = 3 * DRAW_ABOVE;

/// A gateway that queues, of a pool of [`PODS`].
struct Crowd {
    config: Rc<Config>,
    store: MemoryStore,
    pods: Vec<String>,
}

impl Crowd {
    fn new() -> Self {
        let pods: Vec<String> = (0..PODS).map(|pod| format!("10.1.0.{pod}:80")).collect();
        let mut document: serde_json::Value = serde_json::from_str(&queueing()).unwrap();
        document["pools"][0]["discovery"]["static"] = pods.clone().into();
        Self {
            config: Rc::new(Config::parse(document.to_string().as_bytes()).unwrap()),
            store: MemoryStore::default(),
            pods,
        }
    }

    /// A table in which each pod has the queue that `waiting` says, read at this time.
    fn publish(&self, now: u64, waiting: impl Fn(usize) -> u32) {
        self.publish_read(now, |_| now, waiting);
    }

    /// The same, read when `read` says.
    fn publish_read(&self, now: u64, read: impl Fn(usize) -> u64, waiting: impl Fn(usize) -> u32) {
        let queued = |(place, pod): (usize, &String)| {
            let mut row = row(pod);
            row.scraped_at = Some(at(read(place)));
            row.load.waiting = Some(waiting(place));
            row.load.running = Some(waiting(place));
            row
        };
        let table = Table {
            written_at: at(now),
            scrape_interval: Millis(1_000),
            names: vec!["base".to_owned()],
            pods: self.pods.iter().enumerate().map(queued).collect(),
            ..Table::default()
        };
        let key = Keys::of(&self.config.pools[0]).table;
        self.store.set(&key, &table::encode(&table).unwrap(), None).unwrap();
    }

    fn view(&self, seed: u64) -> View {
        View::new(Rc::clone(&self.config), seed, seed)
    }
}

#[test]
fn where_the_drawn_have_room_nobody_else_is_asked() {
    let crowd = Crowd::new();
    crowd.publish(0, |_| 0);
    let decision = ask(&mut crowd.view(1), &crowd.store, 1, &Steering::default(), 10);
    assert!(matches!(decision.action, Action::Route { .. }), "{decision:?}");
    assert_eq!(decision.why.candidates as usize, DRAWN_AT_RANDOM);
    assert_eq!(decision.why.excluded.not_drawn as usize, PODS - DRAWN_AT_RANDOM);
    assert!(decision.why.room >= Some(1));
}

#[test]
fn a_pool_is_never_full_while_one_pod_has_room() {
    let mut crowd = Crowd::new();
    for seed in 0..PODS {
        // Nobody has sent anything. A hundred in the queue are 12.5 s of work.
        crowd.store = MemoryStore::default();
        crowd.publish(0, |place| if place == seed { 0 } else { 100 });
        let decision = ask(&mut crowd.view(seed as u64), &crowd.store, 1, &Steering::default(), 10);
        assert_eq!(endpoints(&decision)[0], address(&crowd.pods[seed]));
    }
}

#[test]
fn of_a_full_pool_all_pods_say_so() {
    let crowd = Crowd::new();
    // Among ones that are fuller is one that is nearest to have room.
    crowd.publish(0, |place| if place == 7 { 20 } else { 100 });
    let held = ask(&mut crowd.view(1), &crowd.store, 1, &Steering::default(), 10);
    assert_eq!(held.action, Action::Hold);
    assert_eq!((held.why.candidates as usize, held.why.excluded.not_drawn), (PODS, 0));
    assert_eq!(held.why.room, Some(0));
    assert_eq!(held.why.considered[0].pod, address(&crowd.pods[7]));
    // 20 of 1,000 tokens, at 8 per millisecond, are 2,500 ms, of which 10 are over and 2,000 are borne.
    assert_eq!(held.why.drain, Some(Millis(490)));
}

#[test]
fn who_keeps_a_pod_keeps_it_from_those_that_draw() {
    let crowd = Crowd::new();
    crowd.publish(0, |_| 100);
    let mut view = crowd.view(1);
    // 7.5 s of work, so that a pod has room for one.
    let large = sized(60_000);
    let held = ask_for(&mut view, &crowd.store, 1, &large, &objective("chat"), 10);
    assert_eq!(held.action, Action::Hold);
    let kept = held.why.considered[0].pod;
    view.tick(&crowd.store, at(100));
    assert!(view.release(&crowd.store, at(100)).is_empty());
    // It alone has room now, and is drawn or is not: a lower priority does not get it, and the one that keeps it does.
    let place = crowd.pods.iter().position(|pod| address(pod) == kept).unwrap();
    crowd.publish(1_200, |other| if other == place { 0 } else { 100 });
    let passing = ask_for(&mut view, &crowd.store, 2, &large, &objective("batch"), 1_210);
    assert_eq!(passing.action, Action::Hold);
    let gone = view.release(&crowd.store, at(1_220));
    assert_eq!(ids(&gone), [1]);
    assert_eq!(endpoints(&gone[0].1)[0], kept);
}

#[test]
fn a_part_of_all_the_room_there_is_goes_and_not_of_that_of_those_drawn() {
    let crowd = Crowd::new();
    crowd.publish(0, |_| 100);
    let mut views = [crowd.view(1), crowd.view(2)];
    // 7.5 s of work each, so that a pod has room for one: 192 in all. Three quarters of the tokens wait elsewhere.
    let large = sized(60_000);
    for (worker, view) in views.iter_mut().enumerate() {
        for id in 0..[80, 240][worker] {
            let now = 10 + 3 * id;
            let decision = ask_for(view, &crowd.store, id, &large, &Steering::default(), now);
            assert_eq!(decision.action, Action::Hold);
        }
        view.tick(&crowd.store, at(800));
    }
    crowd.publish(1_000, |_| 0);
    views[0].tick(&crowd.store, at(1_010));
    let gone = views[0].release(&crowd.store, at(1_010));
    // One that a tick gives, and 48.
    assert_eq!(gone.len(), 49);
    assert!(gone.iter().all(|(_, decision)| decision.action != Action::Hold));
}

#[test]
fn that_some_cannot_be_read_says_nothing_of_the_others() {
    let crowd = Crowd::new();
    crowd.publish(0, |_| 100);
    // Ten minutes old.
    let decision = ask(&mut crowd.view(1), &crowd.store, 1, &Steering::default(), 600_000);
    assert!(matches!(decision.action, Action::Route { .. }), "{decision:?}");
    assert_eq!(decision.why.rung, Some(Rung::OwnLoad));
    assert_eq!((decision.why.candidates as usize, decision.why.room), (PODS, None));
}

/// Ten minutes after the start.
const LATE: u64 = 600_000;

/// A crowd of which those that `fresh` says were read just now and the others at the start, all with full queues.
fn of_mixed_ages(fresh: impl Fn(usize) -> bool) -> Crowd {
    let crowd = Crowd::new();
    crowd.publish_read(LATE, |place| if fresh(place) { LATE } else { 0 }, |_| 100);
    crowd
}

#[test]
fn of_pods_that_cannot_be_read_among_full_ones_nobody_can_say_that_they_are_full() {
    let crowd = of_mixed_ages(|place| place % 2 == 0);
    for seed in 0..20 {
        crowd.store.set(&ledger_key("a"), b"", None).unwrap();
        let decision = ask(&mut crowd.view(seed), &crowd.store, 1, &Steering::default(), LATE + 10);
        assert!(matches!(decision.action, Action::Route { .. }), "{decision:?}");
        assert_eq!(decision.why.rung, Some(Rung::Fresh));
        // That much is known of the drawn alone: an unread pod with nothing of ours takes what an idle one does.
        assert_eq!(decision.why.candidates as usize, DRAWN_AT_RANDOM);
        let room = decision.why.room.unwrap();
        assert!(room > 0 && room.is_multiple_of(FITS as u32), "{room}");
    }
}

#[test]
fn where_none_of_the_drawn_can_be_read_the_others_are_asked() {
    let crowd = of_mixed_ages(|place| place == 7);
    let (mut some, mut all) = (0, 0);
    for seed in 0..20 {
        crowd.store.set(&ledger_key("a"), b"", None).unwrap();
        let decision = ask(&mut crowd.view(seed), &crowd.store, 1, &Steering::default(), LATE + 10);
        assert!(matches!(decision.action, Action::Route { .. }), "{decision:?}");
        assert_eq!(decision.why.rung, Some(Rung::Fresh));
        let among = decision.why.candidates as usize;
        // All but the one that is read, and is full.
        assert_eq!(decision.why.room, Some((among as u32 - 1) * FITS as u32));
        match among {
            PODS => all += 1,
            DRAWN_AT_RANDOM => some += 1,
            _ => panic!("{decision:?}"),
        }
    }
    // One of six draws has the one that is read.
    assert!(some > 0 && all > some, "{some} and {all}");
}

#[test]
fn an_unread_pod_that_has_one_of_ours_counts_like_the_mean() {
    let crowd = of_mixed_ages(|place| place % 2 == 0);
    let mut view = crowd.view(1);
    let mut ids = 1..10 * PODS as u64;
    let held = ids.find_map(|id| {
        let decision = ask(&mut view, &crowd.store, id, &Steering::default(), LATE + 10);
        (decision.action == Action::Hold).then_some(decision)
    });
    let why = held.unwrap().why;
    assert_eq!((why.candidates as usize, why.room), (PODS, Some(0)));
    let unread = crowd.pods.iter().skip(1).step_by(2);
    assert!(
        unread
            .map(|pod| booked(&crowd.store, address(pod)).0)
            .all(|sent| sent > 0)
    );
}
