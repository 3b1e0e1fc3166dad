#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use super::*;
use crate::decision::tests::world::{ASK, FR, NOW, Pod, SQL, World, address, ago, ask_for};
use crate::decision::{Decision, Input, Note, decide};
use crate::prefix::Beginning;
use berth_shared_state::sample::Engine;

/// A large pool, reckoned once.
struct Large {
    world: World,
    snapshot: Snapshot,
    field: Field,
}

impl Large {
    fn new(pods: usize, bend: impl Fn(usize, &mut Pod)) -> Self {
        let mut world = World::of(pods);
        for (place, pod) in world.pods.iter_mut().enumerate() {
            bend(place, pod);
        }
        let snapshot = world.snapshot();
        let keys: Vec<PodKey> = snapshot.pods().iter().map(|row| row.address.key()).collect();
        let facts = PoolFacts::default();
        let field = Field::new(&world.pool, &snapshot, &world.facts(&snapshot), &keys, facts);
        Self { world, snapshot, field }
    }

    fn draw(&mut self, ask: &Ask<'_>, held: &[(usize, u32)], seed: u64) -> Option<Drawn> {
        let wish = Wish {
            pool: &self.world.pool,
            snapshot: &self.snapshot,
            ask,
            held,
        };
        self.field.draw(&wish, &mut Rng::with_seed(seed))
    }

    /// The places drawn with each of some seeds.
    fn draws(&mut self, ask: &Ask<'_>, held: &[(usize, u32)]) -> Vec<Vec<u32>> {
        let draw = |seed| self.draw(ask, held, seed).unwrap().places;
        (0..50).map(draw).collect()
    }

    fn decide(&mut self, ask: Ask<'_>, held: &[(usize, u32)], seed: u64) -> (Drawn, Decision) {
        let drawn = self.draw(&ask, held, seed).unwrap();
        let all = self.world.facts(&self.snapshot);
        let pods: Vec<PodFacts<'_>> = drawn.places.iter().map(|place| all[*place as usize]).collect();
        let input = Input {
            pool: &self.world.pool,
            snapshot: Some(&self.snapshot),
            pods: &pods,
            drawn: Some(Part {
                field: &self.field,
                drawn: &drawn,
            }),
            facts: self.field.facts,
            ask,
            subset: None,
            now: NOW,
            in_full: false,
            admit: None,
        };
        let decision = decide(&input, &mut Rng::with_seed(seed));
        (drawn, decision)
    }
}

fn begins(key: u64, share: f64) -> Ask<'static> {
    Ask {
        start: Some(Beginning { key, share }),
        ..ASK
    }
}

#[test]
fn whoever_is_open_is_drawn_now_and_then_and_nobody_else() {
    let mut large = Large::new(100, |place, pod| match place {
        7 => pod.row.readiness = Readiness::NotReady,
        8 => pod.row.readiness = Readiness::Draining,
        9 => pod.row.load.sleeping = Some(true),
        _ => {}
    });
    let mut drawn: Vec<u32> = large.draws(&ASK, &[(7, 3), (8, 3), (9, 3)]).concat();
    drawn.sort_unstable();
    drawn.dedup();
    let open: Vec<u32> = (0..100).filter(|place| !(7..=9).contains(place)).collect();
    assert_eq!(drawn, open);
    let excluded = large.decide(ASK, &[], 1).1.why.excluded;
    assert_eq!((excluded.not_ready, excluded.draining, excluded.asleep), (1, 1, 1));
    assert_eq!(excluded.not_drawn as usize, 97 - DRAWN_AT_RANDOM);
}

#[test]
fn whether_failures_count_is_asked_of_all_pods_and_not_of_those_drawn() {
    #[track_caller]
    fn check(failed: usize, avoids: bool) {
        let mut pool = Large::new(1_000, |place, pod| {
            pod.avoided_until = (place < failed).then_some(UnixMillis(NOW.0 + 1));
        });
        for seed in 0..200 {
            let (drawn, decision) = pool.decide(ASK, &[], seed);
            let waived = decision.why.notes.contains(&Note::AvoidanceWaived);
            assert_eq!(waived, !avoids, "{failed} of 1,000 failed, seed {seed}");
            let place = pool
                .world
                .pods
                .iter()
                .position(|pod| pod.row.address == decision.why.considered[0].pod);
            assert!(
                !avoids || place.unwrap() >= failed,
                "{failed} of 1,000 failed, seed {seed}: {drawn:?}"
            );
        }
    }
    check(450, true);
    check(550, false);
}

#[test]
fn holders_of_the_prompt_are_drawn_and_the_longest_first() {
    let mut large = Large::new(300, |_, _| {});
    for places in large.draws(&ASK, &[(217, 5)]) {
        assert!(places.contains(&217));
    }
    let held: Vec<(usize, u32)> = (0..100).map(|place| (place, if place < 10 { 9 } else { 2 })).collect();
    for places in large.draws(&ASK, &held) {
        assert!((0..10).all(|place| places.contains(&place)), "{places:?}");
    }
}

#[test]
fn who_has_the_adapter_is_drawn_whatever_tells_it() {
    let mut large = Large::new(300, |place, pod| {
        pod.lists(SQL);
        match place {
            11 => pod.active(&[SQL], 2),
            22 => pod.sent("sql", ago(1_000)),
            33 => pod.saw("sql", ago(1_000)),
            _ => pod,
        };
    });
    let key = large.snapshot.pods()[44].address.key();
    large.field.sent(adapter_key("sql"), key, 44);
    for places in large.draws(&ask_for("sql"), &[]) {
        assert!(
            [11, 22, 33, 44].iter().all(|place| places.contains(place)),
            "{places:?}"
        );
    }
}

#[test]
fn no_more_are_drawn_than_the_bounds_say_and_none_twice() {
    let mut large = Large::new(300, |_, pod| {
        pod.lists(SQL).active(&[SQL], 2);
    });
    let held: Vec<(usize, u32)> = (0..300).map(|place| (place, 1)).collect();
    let ask = Ask {
        start: begins(1, 1.0).start,
        ..ask_for("sql")
    };
    for mut places in large.draws(&ask, &held) {
        assert!(places.len() <= DRAWN_MAX, "{}", places.len());
        places.sort_unstable();
        assert!(places.is_sorted_by(|a, b| a < b), "{places:?}");
    }
}

#[test]
fn where_few_list_a_name_they_are_looked_for() {
    let mut large = Large::new(500, |place, pod| {
        if place % 100 == 3 {
            pod.lists(SQL);
        }
    });
    for mut places in large.draws(&ask_for("sql"), &[]) {
        // The adapter's home is one of them: whoever does not have it is no home.
        places.sort_unstable();
        assert_eq!(places, [3, 103, 203, 303, 403]);
    }
    assert_eq!(large.draw(&ask_for("fr"), &[], 1), None);
    assert_eq!(large.draw(&ask_for("nobody"), &[], 1), None);
    assert_eq!(large.snapshot.id("fr"), Some(FR));
}

/// The homes of an adapter's name.
#[track_caller]
fn adapter_homes(large: &mut Large, name: &str) -> Vec<u32> {
    let model = Some(name);
    let drawn = large.draw(&Ask { model, ..ASK }, &[], 1).unwrap();
    assert!(drawn.adapter_homes.iter().all(|home| drawn.places.contains(home)));
    drawn.adapter_homes
}

#[test]
fn an_adapter_has_two_homes_wherever_there_are_two_pods() {
    // Each is the first home of some names, and the nearest to the second point of some of these.
    let names: Vec<String> = (0..100).map(|name| format!("adapter-{name}")).collect();
    for pods in 1..=3 {
        let mut large = Large::new(pods, |_, _| {});
        large.world.pool.adapters.resolver = true;
        for name in &names {
            let homes = adapter_homes(&mut large, name);
            assert_eq!(homes.len(), pods.min(2), "{name} in {pods}");
            assert_ne!(homes.first(), homes.get(1));
        }
    }
}

#[test]
fn an_adapter_that_few_list_has_its_homes_at_two_of_them() {
    let mut large = Large::new(1_000, |place, pod| {
        if [300, 600].contains(&place) {
            pod.lists(SQL);
        }
    });
    let mut homes = adapter_homes(&mut large, "sql");
    homes.sort_unstable();
    assert_eq!(homes, [300, 600]);
}

#[test]
fn a_name_that_nobody_has_to_load_has_no_homes() {
    const NONE: [u32; 0] = [];
    let mut large = Large::new(100, |_, pod| {
        pod.lists(SQL).lists(FR).active(&[FR], 2);
    });
    assert_eq!(adapter_homes(&mut large, "sql").len(), 2);
    // The base, and an adapter that all have in use.
    assert_eq!(adapter_homes(&mut large, "llama"), NONE);
    assert_eq!(adapter_homes(&mut large, "fr"), NONE);
    assert_eq!(large.draw(&ASK, &[], 1).unwrap().adapter_homes, NONE);
    // One lost it.
    let mut large = Large::new(100, |place, pod| {
        pod.lists(FR);
        if place != 50 {
            pod.active(&[FR], 2);
        }
    });
    assert_eq!(adapter_homes(&mut large, "fr").len(), 2);
    // Named by the config, and by no page yet.
    let mut large = Large::new(100, |_, pod| pod.row.models = None);
    large.world.pool.models = vec!["merged".to_owned()];
    large.world.pool.adapters.known = vec![("sql".to_owned(), None)];
    assert_eq!(adapter_homes(&mut large, "merged"), NONE);
    assert_eq!(adapter_homes(&mut large, "sql").len(), 2);
}

#[test]
fn before_the_first_models_pages_any_pod_speaks_for_all() {
    let mut large = Large::new(100, |_, pod| pod.row.models = None);
    assert!(large.draw(&ask_for("sql"), &[], 1).is_some());
    // One that takes any name speaks for no other.
    let mut large = Large::new(100, |place, pod| {
        pod.row.models = None;
        if place == 50 {
            pod.row.load.engine = Some(Engine::LlamaCpp);
        }
    });
    assert_eq!(large.draw(&ask_for("sql"), &[], 1), None);
}

#[test]
fn a_prompt_too_long_for_most_goes_to_those_who_allow_it_or_everybody_is_asked() {
    let long = |limit: u64| {
        move |place: usize, pod: &mut Pod| {
            let allowed = if place.is_multiple_of(2) { 100_000 } else { limit };
            pod.row.models.as_mut().unwrap().max_model_len = Some(Tokens(allowed));
        }
    };
    let ask = Ask {
        prompt: Tokens(50_000),
        ..ASK
    };
    let (_, decision) = Large::new(200, long(10_000)).decide(ask, &[], 1);
    assert!(!decision.why.notes.contains(&Note::LongerThanAllowed));
    assert_eq!(Large::new(200, |_, pod| long(10_000)(1, pod)).draw(&ask, &[], 1), None);
}

#[test]
fn without_anybody_open_all_are_looked_at() {
    let mut large = Large::new(100, |_, pod| pod.row.load.sleeping = Some(true));
    assert_eq!(large.draw(&ASK, &[], 1), None);
}

/// Homes of some keys in a pool of these pods.
fn homes(pods: &[usize], keys: u64) -> Vec<PodAddress> {
    let ring = || pods.iter().map(|pod| (address(*pod).key(), *pod as u32));
    let mut ring: Ring = ring().collect();
    ring.sort_unstable();
    let at = |key: u64| home(&ring, xxh64(&key.to_le_bytes(), 7), 0, |_| true).unwrap();
    (0..keys).map(|key| address(at(key) as usize)).collect()
}

#[test]
fn homes_are_spread_evenly_and_stay_when_a_pod_goes() {
    let all: Vec<usize> = (0..100).collect();
    let before = homes(&all, 20_000);
    let mut counts = vec![0; 100];
    for home in &before {
        counts[all.iter().position(|pod| address(*pod) == *home).unwrap()] += 1;
    }
    // 200 each, and 14 more or less by chance alone.
    assert!(counts.iter().max() < Some(&280), "{counts:?}");
    let gone = address(42);
    let after = homes(
        &all.iter().copied().filter(|pod| *pod != 42).collect::<Vec<_>>(),
        20_000,
    );
    let moved = before.iter().zip(&after).filter(|(before, after)| before != after);
    assert!(moved.clone().all(|(before, _)| *before == gone));
    assert!(moved.count() > 0);
}

#[test]
fn proxies_agree_on_homes_and_a_popular_beginning_has_several() {
    let mut large = Large::new(200, |_, _| {});
    let home = large.draw(&begins(5, 0.0), &[], 1).unwrap().homes;
    assert_eq!(home.len(), 1);
    for seed in 2..20 {
        assert_eq!(large.draw(&begins(5, 0.0), &[], seed).unwrap().homes, home);
    }
    // Four are drawn of 0.1 x 200 / 0.5.
    let mut all: Vec<u32> = (0..400)
        .flat_map(|seed| large.draw(&begins(5, 0.1), &[], seed).unwrap().homes)
        .collect();
    all.sort_unstable();
    all.dedup();
    assert!((30..=40).contains(&all.len()), "{}", all.len());
}

#[test]
fn near_equal_pods_are_told_apart_by_the_home_and_a_holder_wins() {
    let bend = |_: usize, pod: &mut Pod| {
        pod.row.rates.requests = Some(10.0);
        pod.row.rates.prompt_tokens = Some(8_000.0);
        pod.row.rates.cached_prompt_tokens = Some(4_000.0);
    };
    let first = |decision: &Decision| crate::decision::tests::world::first(decision) as u32;
    let mut large = Large::new(200, bend);
    for seed in 0..20 {
        let (drawn, decision) = large.decide(begins(seed, 0.0), &[], seed);
        assert_eq!([first(&decision)], drawn.homes[..]);
    }
    large.world.pods[99].cached = 0.9;
    for seed in 0..20 {
        assert_eq!(first(&large.decide(begins(seed, 0.0), &[(99, 5)], seed).1), 99);
    }
}

#[test]
fn the_means_are_those_of_all_pods() {
    let bend = |place: usize, pod: &mut Pod| {
        // One of a hundred does not say how full it is.
        pod.row.load.kv_capacity = Some(Tokens(if place == 5 { 0 } else { 50_000 }));
    };
    let mut large = Large::new(100, bend);
    let capacity = large.field.fleet.mean_capacity();
    assert_eq!(capacity.map(f64::round), Some(50_000.0));
    assert!(large.decide(ASK, &[(5, 1)], 1).1.why.predicted.is_some());
}
