//! What is believed of proxies that send to the same pods and do not talk.

use berth_shared_state::table::{Slow, Tempo, Trend};

use super::*;
use crate::cost::Terms;
use crate::ledger::{Heard, StepTimes};
use crate::prefix::Beginning;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

/// A prompt that begins in one of so many ways.
fn begins(key: u64) -> Ask<'static> {
    Ask {
        start: Some(Beginning { key, share: 0.0 }),
        ..ASK
    }
}

/// Equal pods that report hits.
fn caching(pods: usize, elsewhere: f64) -> World {
    let mut world = World::of(pods);
    world.elsewhere = elsewhere;
    for pod in &mut world.pods {
        pod.row.rates.requests = Some(10.0);
        pod.row.rates.prompt_tokens = Some(8_000.0);
        pod.row.rates.cached_prompt_tokens = Some(4_000.0);
    }
    world
}

fn terms(world: &World, ask: Ask<'_>, pod: usize) -> Terms {
    cost_of(&world.decide(ask), pod).terms
}

#[test]
fn equal_pods_are_told_apart_by_the_beginning_of_the_prompt() {
    let mut world = caching(6, 0.0);
    let homes: Vec<usize> = (0..20).map(|key| first(&world.decide(begins(key)))).collect();
    for (key, home) in (0..20).zip(&homes) {
        world.always(begins(key), *home);
    }
    assert!((0..6).filter(|pod| homes.contains(pod)).count() > 3, "{homes:?}");
    // A lone proxy pays nothing for it: any difference counts more.
    world.pods[homes[0]].unanswered(1, 800);
    assert_ne!(first(&world.decide(begins(0))), homes[0]);
    let there = terms(&world, begins(0), homes[0]);
    assert_eq!((there.prefill, there.away), (100.0, 0.0));
}

#[test]
fn where_engines_find_nothing_cached_a_beginning_says_nothing() {
    let mut world = caching(2, 0.9);
    for pod in &mut world.pods {
        pod.row.rates.cached_prompt_tokens = Some(0.0);
    }
    let picked: Vec<usize> = (0..40).map(|seed| first(&world.decide_with(begins(1), seed))).collect();
    assert!(picked.contains(&0) && picked.contains(&1));
    assert_eq!(terms(&world, begins(1), 0), terms(&world, ASK, 0));
}

#[test]
fn as_far_as_others_send_the_home_holds_the_prefix_and_other_pods_would_be_one_copy_more() {
    let alone = caching(2, 0.0);
    let home = first(&alone.decide(begins(1)));
    let mut world = caching(2, 0.5);
    world.always(begins(1), home);
    // 0.9 x 0.5 of 800 tokens are there.
    let there = terms(&world, begins(1), home);
    assert_eq!((there.prefill, there.away), (55.0, 0.0));
    let other = terms(&world, begins(1), 1 - home);
    assert!(
        (other.prefill - 100.0).abs() < 1e-9 && (other.away - 450.0).abs() < 1e-9,
        "{other:?}"
    );
    // Half a second of queue is worth it, two are not.
    world.pods[home].unanswered(1, 3_200);
    world.always(begins(1), home);
    world.pods[home].unanswered(3, 12_800);
    world.always(begins(1), 1 - home);
}

#[test]
fn proxies_go_first_to_the_pods_that_they_have_to_themselves() {
    let mut world = World::of(3);
    for (pod, part) in world.pods.iter_mut().zip([0.0, 0.25, 0.6]) {
        pod.own_part = part;
        pod.row.rates.requests = Some(10.0);
        pod.row.rates.prompt_tokens = Some(8_000.0);
    }
    let unseen = |world: &World| [0, 1, 2].map(|pod| terms(world, ASK, pod).unseen);
    let frozen = |world: &World| {
        let mut world = world.clone();
        world.pods[2].row.trend = Trend::Frozen;
        terms(&world, ASK, 2).unseen
    };
    assert_eq!(unseen(&world), [0.0; 3], "nobody else is there");
    // Three quarters are others': of four requests of 100 ms, and half of it where this proxy sends as much as elsewhere.
    world.elsewhere = 0.75;
    assert_eq!(unseen(&world), [300.0, 150.0, 0.0]);
    // Gauges that stand still show nothing of others.
    assert_eq!(frozen(&world), 300.0);
    world.always(ASK, 2);
    // There it waits no longer than what others may have sent elsewhere would take: one ahead costs 25 ms, and 100 for what
    // it loses; two cost more than 150.
    world.pods[2].unanswered(1, 200);
    world.always(ASK, 2);
    world.pods[2].unanswered(1, 200);
    world.always(ASK, 1);
    // A cached prefix is a fact: 900 ms of it are worth the 300.
    let ask = |tokens| Ask {
        prompt: Tokens(tokens),
        ..ASK
    };
    world.pods[0].cached = 0.9;
    world.always(ask(8_000), 0);
    // It counts no more than four of what this one computes there: 12.5 ms x 4 x 0.75, and of 10 tokens.
    assert_eq!(terms(&world, ask(100), 1).unseen, 18.75);
    assert_eq!(terms(&world, ask(100), 0).unseen, 3.75);
}

#[test]
fn of_pods_that_cannot_be_read_nobody_knows_whose_they_are() {
    let mut world = World::of(3);
    world.elsewhere = 0.75;
    world.pods[0].own_part = 0.25;
    world.pods[1].own_part = 0.9;
    world.pods[1].row.scraped_at = None;
    world.pods[2].row.scraped_at = Some(ago(60_000));
    let unseen = [0, 1, 2].map(|pod| terms(&world, ASK, pod).unseen);
    assert_eq!(unseen, [150.0; 3]);
}

#[test]
fn a_proxy_that_sent_nothing_yet_finds_all_pods_alike() {
    let mut world = World::of(2);
    world.elsewhere = 1.0;
    assert_eq!(terms(&world, ASK, 0), terms(&world, ASK, 1));
    assert_eq!(terms(&world, ASK, 0).unseen, 400.0);
}

#[test]
fn a_prompt_goes_home_while_engines_can_have_found_nothing_yet() {
    let alone = caching(2, 0.0);
    let home = first(&alone.decide(begins(1)));
    let mut world = caching(2, 0.5);
    for pod in &mut world.pods {
        pod.row.rates.cached_prompt_tokens = Some(0.0);
    }
    // It sends most of what the other gets.
    world.pods[1 - home].own_part = 0.9;
    world.always(begins(1), 1 - home);
    world.early = true;
    world.always(begins(1), home);
    let there = terms(&world, begins(1), home);
    // Nothing is believed to be cached there.
    assert_eq!((there.prefill, there.unseen), (100.0, 0.0));
    assert_eq!(terms(&world, begins(1), 1 - home).away, 0.0);
}

#[test]
fn a_pod_without_room_ties_with_none_that_has_a_queue() {
    let mut world = World::of(2);
    world.elsewhere = 0.75;
    // One more of 8,000 tokens would fill the first: 38 s more. But for that nobody waits 3.5 s at the second, which is
    // 5 s dearer; a second of work, and as much of this one's, make 1.5 s with the room.
    let ask = Ask {
        prompt: Tokens(8_000),
        ..ASK
    };
    world.pods[0].load(0, 0, 0.85);
    world.pods[0].sent_at = ago(10);
    world.pods[1].load(0, 4, 0.0);
    world.always(ask, 0);
}

#[test]
fn a_burst_beside_many_others_does_not_all_go_to_the_largest() {
    let mut world = World::of(3);
    world.elsewhere = 0.98;
    world.pods[2].row.load.kv_capacity = Some(Tokens(300_000));
    let sent = world.burst(ASK, 60);
    assert!(sent.iter().all(|sent| (10..=30).contains(sent)), "{sent:?}");
}

#[test]
fn no_home_is_worth_a_wait_where_most_prompts_are_new() {
    let home = first(&caching(2, 0.0).decide(begins(1)));
    let costs = |found| {
        let mut world = caching(2, 0.5);
        world.found = found;
        let (there, other) = (terms(&world, begins(1), home), terms(&world, begins(1), 1 - home));
        (there.prefill, other.away)
    };
    let near = |(a, b): (f64, f64), (c, d): (f64, f64)| (a - c).abs() < 1e-9 && (b - d).abs() < 1e-9;
    // 0.9 x 0.5 of 800 tokens are there, and elsewhere it costs ten prefills of 100 ms as far as that.
    assert!(near(costs(None), (55.0, 450.0)));
    assert!(near(costs(Some(1.0)), (55.0, 450.0)));
    // Found once again: five prefills.
    assert!(near(costs(Some(0.5)), (55.0, 225.0)));
    // One in five: 0.8 of that are there, and a token is found a quarter of a time again.
    assert!(near(costs(Some(0.2)), (100.0 - 36.0, 1.25 * 0.8 * 45.0)));
    assert!(near(costs(Some(0.0)), (100.0, 0.0)));
}

#[test]
fn a_popular_beginning_has_as_many_homes_as_its_share_needs() {
    let mut world = caching(8, 0.5);
    for pod in &mut world.pods {
        pod.load(2, 0, 0.1);
    }
    let homes = |share| {
        let start = Some(Beginning { key: 1, share });
        let decision = world.decide(Ask { start, ..ASK });
        (0..8).filter(|pod| cost_of(&decision, *pod).terms.away == 0.0).count()
    };
    // One for each half of a pod's fair share.
    assert_eq!([0.0, 0.06, 0.07, 0.25, 1.0].map(homes), [1, 1, 2, 4, 8]);
}

#[test]
fn what_others_sent_since_the_reading_went_where_it_was_most_welcome() {
    let mut world = World::of(3);
    for (pod, running) in world.pods.iter_mut().zip([0, 4, 20]) {
        pod.load(running, 0, 0.1);
    }
    // Ours since: two at the first pod. Others send three times as much: six, to where the level is 5: five to the first pod
    // and one to the second, as far as they seek room, which is 0.7 of it.
    world.pods[0].unanswered(2, 0);
    let running = |world: &World, pod| {
        let terms = terms(world, ASK, pod);
        (terms.harm - 100.0 * f64::from(world.pods[pod].own.unanswered)) / 12.0
    };
    assert!((0..3).all(|pod| (running(&world, pod) - [2.0, 4.0, 20.0][pod]).abs() < 1e-9));
    world.elsewhere = 0.75;
    assert!((0..3).all(|pod| (running(&world, pod) - [5.5, 4.7, 20.0][pod]).abs() < 1e-9));
}

#[test]
fn a_slow_pod_teaches_nothing_and_a_pool_that_is_slow_altogether_does() {
    #[track_caller]
    fn check(slow: [bool; 2], teaches: bool) {
        let mut world = World::of(2);
        for (pod, slow) in world.pods.iter_mut().zip(slow) {
            pod.row.tempo = Some(Tempo {
                step: 10.0,
                token: 0.125,
            });
            pod.slow = slow.then_some(Slow {
                times: 10.0,
                still_since: None,
                again: NOW,
            });
        }
        // It just failed.
        world.pods[1].avoided_until = Some(UnixMillis(NOW.0 + 1_000));
        let Action::Route { booking, .. } = world.always(ASK, 0).action else {
            panic!("not routed");
        };
        assert_eq!(!booking.misleads, teaches);
    }
    check([false, false], true);
    check([false, true], true);
    check([true, false], false);
    check([true, true], true);
}

/// A stream of this proxy's runs at a pod, and showed this of its steps.
fn hears(pod: &mut world::Pod, token_every: u64, last_ago: u64) {
    let mut times = StepTimes::default();
    for step in (0..10).rev() {
        times.token(Millis(token_every), ago(last_ago + step * token_every));
    }
    pod.heard = times.heard();
    pod.own.generating = 1;
}

/// Ordinary prompts of 8,000 tokens: a second each. Half of the load is others'; pages are 500 ms old.
fn long_prompts(queued: [u32; 2]) -> World {
    let mut world = World::of(2);
    world.elsewhere = 0.5;
    for (pod, queued) in world.pods.iter_mut().zip(queued) {
        pod.load(5, queued, 0.1);
        pod.row.rates.requests = Some(10.0);
        pod.row.rates.prompt_tokens = Some(80_000.0);
    }
    world
}

fn queues(world: &World, ask: Ask<'_>) -> [f64; 2] {
    [0, 1].map(|pod| terms(world, ask, pod).queue)
}

#[test]
fn a_step_without_prompts_shows_that_nobody_waits_any_more() {
    let mut world = long_prompts([2, 2]);
    assert_eq!(queues(&world, ASK), [1_500.0; 2]);
    hears(&mut world.pods[1], 20, 10);
    assert_eq!(queues(&world, ASK), [1_500.0, 0.0]);
    // Nor do they lose anything by this one.
    let harm = [0, 1].map(|pod| terms(&world, ASK, pod).harm);
    assert!(harm[0] > harm[1] + 150.0, "{harm:?}");
    // One from before the page says nothing new.
    hears(&mut world.pods[1], 20, 510);
    world.pods[1].own.generating = 0;
    assert_eq!(queues(&world, ASK), [1_500.0; 2]);
    // Where more wait, something else keeps them.
    let mut world = long_prompts([5, 5]);
    hears(&mut world.pods[1], 20, 10);
    assert_eq!(queues(&world, ASK), [4_500.0; 2]);
    // Or where its memory is full.
    let mut world = long_prompts([2, 2]);
    hears(&mut world.pods[1], 20, 10);
    world.pods[1].row.load.kv_mean = Some(0.95);
    assert_eq!(queues(&world, ASK), [1_500.0; 2]);
}

#[test]
fn what_others_sent_since_counts_from_the_last_step_without_prompts_on() {
    let mut world = long_prompts([0, 0]);
    // Ours since: one at each. Others sent as many, and 0.7 of these went where room was seen: 700 ms each, of which 500 ms are done.
    for pod in &mut world.pods {
        pod.unanswered(1, 0);
    }
    let rounded = |world: &World| queues(world, ASK).map(f64::round);
    assert_eq!(rounded(&world), [200.0; 2]);
    // 250 ms ago nothing waited: half of them, and 250 ms are done.
    hears(&mut world.pods[1], 300, 250);
    assert_eq!(rounded(&world), [200.0, 100.0]);
}

#[test]
fn a_burst_of_ours_is_none_of_others() {
    // 50 of ours since at each, half a second ago: others are not thought to have sent 50 s of work to a pod in that time, but 1 s.
    let mut world = long_prompts([0, 0]);
    for pod in &mut world.pods {
        pod.unanswered(50, 0);
    }
    assert_eq!(queues(&world, ASK), [500.0; 2]);
    // Nor so many running: one, beside 5 that the page shows and 50 of ours. 100 x (50 + 0.1 x 56) + 2 x 56.
    let harm = terms(&world, ASK, 0).harm;
    assert!((harm - 5_672.0).abs() < 1e-6, "{harm}");
    // So that where ours are makes a difference.
    world.pods[1].unanswered(50, 8_000);
    assert_eq!(queues(&world, ASK), [500.0, 1_500.0]);
    // What a page shows is there, however long it takes.
    let shown = queues(&long_prompts([100, 0]), ASK);
    assert_eq!(shown, [99_500.0, 0.0]);
}

#[test]
fn a_token_that_is_late_shows_that_a_prompt_is_computed() {
    let mut world = long_prompts([0, 0]);
    hears(&mut world.pods[0], 20, 30);
    assert_eq!(queues(&world, ASK), [0.0; 2]);
    hears(&mut world.pods[0], 20, 60);
    assert_eq!(queues(&world, ASK), [2_000.0, 0.0]);
    let check = |change: fn(&mut World), ask: Ask<'_>, expected: f64| {
        let mut world = world.clone();
        change(&mut world);
        assert_eq!(queues(&world, ask)[0], expected);
    };
    check(|_| (), ASK, 2_000.0);
    // It may be an own one, which is counted: 100 ms.
    check(|world| _ = world.pods[0].unanswered(1, 800), ASK, 100.0);
    // No stream is there to tell.
    check(|world| world.pods[0].own.generating = 0, ASK, 0.0);
    // Another of its engines would take the request.
    check(|world| world.pods[0].row.load.engines = 2, ASK, 0.0);
    // Nobody else sends.
    check(|world| world.elsewhere = 0.0, ASK, 0.0);
    // However old its page is.
    check(|world| _ = world.pods[0].read_at(ago(60_000)), ASK, 2_000.0);
}

#[test]
fn a_page_read_at_the_end_of_a_step_is_younger_than_what_was_heard_of_it() {
    let mut world = long_prompts([2, 2]);
    hears(&mut world.pods[1], 20, 10);
    world.pods[1].read_at(ago(10));
    assert_eq!(queues(&world, ASK), [1_500.0, 1_990.0]);
}

#[test]
fn a_prompt_that_has_a_home_does_not_leave_it_for_a_pod_that_is_heard() {
    let mut world = long_prompts([2, 2]);
    for pod in &mut world.pods {
        pod.row.rates.cached_prompt_tokens = Some(40_000.0);
        hears(pod, 20, 10);
    }
    let silent = {
        let mut world = world.clone();
        world.pods.iter_mut().for_each(|pod| pod.heard = Heard::default());
        world
    };
    let counted = queues(&silent, begins(1));
    assert!(counted.iter().all(|queue| *queue > 0.0), "{counted:?}");
    assert_eq!(queues(&world, begins(1)), counted);
    // One without a home hears.
    assert_eq!(queues(&world, ASK), [0.0; 2]);
}
