//! The queue's rules by example, and what holds whatever happens.

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use super::*;

fn bounds(requests: usize, bytes: usize) -> Bounds {
    Bounds {
        max_requests: requests,
        max_bytes: bytes,
        band_requests: requests,
        band_bytes: bytes,
        max_wait: Millis(1_000),
    }
}

fn item(id: u64, priority: i16, flow: u64, tokens: u64) -> Item<()> {
    Item {
        id,
        priority,
        flow,
        tokens: Tokens(tokens),
        bytes: 10,
        since: UnixMillis(1_000),
        wait: Millis(1_000),
        what: (),
    }
}

/// Offers (id, priority, flow, tokens); nobody may give way.
fn queue(items: &[(u64, i16, u64, u64)]) -> Queue<()> {
    let mut queue = Queue::new(bounds(1_000, 1 << 20));
    for (id, priority, flow, tokens) in items {
        assert_eq!(queue.offer(item(*id, *priority, *flow, *tokens)), Vec::new());
    }
    queue
}

/// Ids in the order in which they go when there is room for all.
fn order(queue: &mut Queue<()>) -> Vec<u64> {
    let mut ids = Vec::new();
    while let Some(priority) = highest(queue) {
        ids.extend(pop(queue, priority, &[]).map(|item| item.id));
    }
    ids
}

fn highest(queue: &Queue<()>) -> Option<i16> {
    queue.priorities().next()
}

fn pop(queue: &mut Queue<()>, priority: i16, but: &[u64]) -> Option<Item<()>> {
    let next = queue.next(priority, &[], but)?.id;
    queue.go(next)
}

fn ids(items: &[Item<()>]) -> Vec<u64> {
    items.iter().map(|item| item.id).collect()
}

#[test]
fn the_higher_band_goes_first_and_in_a_flow_the_older() {
    let mut queue = queue(&[(1, 0, 1, 9), (2, -3, 1, 1), (3, 5, 1, 7), (4, 0, 1, 1), (5, 5, 1, 1)]);
    assert_eq!(order(&mut queue), [3, 5, 1, 4, 2]);
    assert!(queue.is_empty());
}

#[test]
fn flows_share_by_tokens_not_by_requests() {
    // Flow 1 asks for 100 tokens at a time, flow 2 for 25: four of its requests go for one.
    let mut queue = queue(&[
        (11, 0, 1, 100),
        (12, 0, 1, 100),
        (21, 0, 2, 25),
        (22, 0, 2, 25),
        (23, 0, 2, 25),
        (24, 0, 2, 25),
        (25, 0, 2, 25),
    ]);
    assert_eq!(order(&mut queue), [21, 22, 23, 11, 24, 25, 12]);
}

#[test]
fn who_comes_late_and_seldom_is_not_behind_a_backlog() {
    let mut queue = queue(&[(1, 0, 1, 10), (2, 0, 1, 10), (3, 0, 1, 10), (4, 0, 1, 10)]);
    assert_eq!(pop(&mut queue, 0, &[]).map(|item| item.id), Some(1));
    queue.offer(item(9, 0, 2, 10));
    assert_eq!(order(&mut queue), [2, 9, 3, 4]);
}

#[test]
fn one_that_cannot_go_yet_is_passed_by_other_flows_and_is_first_the_next_time() {
    let mut queue = queue(&[(1, 0, 1, 50), (2, 0, 1, 1), (3, 0, 2, 60), (4, 0, 2, 60)]);
    assert_eq!(queue.next(0, &[], &[]).map(|item| item.id), Some(1));
    assert_eq!(pop(&mut queue, 0, &[1]).map(|item| item.id), Some(3));
    assert_eq!(pop(&mut queue, 0, &[1]).map(|item| item.id), Some(4));
    assert_eq!(queue.next(0, &[], &[1]), None, "its own flow does not pass it");
    assert_eq!(order(&mut queue), [1, 2]);
}

/// Asking who is next costs nobody anything: whoever had no room would otherwise overtake each other.
#[test]
fn flows_take_turns_when_there_is_room_for_one_at_a_time() {
    let mut queue = Queue::new(bounds(1_000, 1 << 20));
    for id in 0..20 {
        queue.offer(item(id, 0, id % 2, 10));
    }
    let mut gone = Vec::new();
    while let Some(first) = queue.next(0, &[], &[]).map(|item| (item.id, item.flow)) {
        gone.push(first.0);
        queue.go(first.0);
        // There is no room for these.
        let second = queue.next(0, &[], &[]).map(|item| item.flow);
        let _ = queue.next(0, &[], &second.into_iter().collect::<Vec<_>>());
    }
    assert_eq!(gone, (0..20).collect::<Vec<_>>());
}

#[test]
fn when_the_whole_is_full_the_youngest_of_the_lowest_band_gives_way() {
    let mut queue = Queue::new(bounds(3, 1 << 20));
    for (id, priority) in [(1, 0), (2, -1), (3, -1)] {
        assert_eq!(queue.offer(item(id, priority, 1, 5)), Vec::new());
    }
    assert_eq!(ids(&queue.offer(item(4, 0, 1, 5))), [3]);
    assert_eq!(
        ids(&queue.offer(item(5, -1, 1, 5))),
        [5],
        "itself, where nobody is lower"
    );
    assert_eq!(ids(&queue.offer(item(6, 7, 1, 5))), [2]);
    assert_eq!(ids(&queue.offer(item(7, 7, 1, 5))), [4]);
    assert_eq!(order(&mut queue), [6, 7, 1]);
}

#[test]
fn when_a_band_is_full_the_flow_with_most_tokens_gives_way() {
    let mut queue = Queue::new(Bounds {
        band_requests: 3,
        ..bounds(10, 1 << 20)
    });
    for id in 1..=3 {
        assert_eq!(queue.offer(item(id, 0, 1, 5)), Vec::new());
    }
    assert_eq!(ids(&queue.offer(item(4, 0, 1, 5))), [4]);
    assert_eq!(ids(&queue.offer(item(5, 0, 2, 5))), [3], "a small tenant is let in");
    assert_eq!(queue.offer(item(6, 9, 1, 5)), Vec::new(), "another band has room");
}

#[test]
fn bytes_are_bounded_as_requests_are() {
    let mut queue = Queue::new(Bounds {
        band_bytes: 20,
        ..bounds(10, 30)
    });
    assert_eq!(queue.offer(item(1, 0, 1, 5)), Vec::new());
    assert_eq!(queue.offer(item(2, 0, 1, 5)), Vec::new());
    assert_eq!(
        ids(&queue.offer(item(3, 0, 1, 5))),
        [3],
        "21 bytes and more of one band"
    );
    assert_eq!(queue.offer(item(4, 1, 1, 5)), Vec::new(), "30 in all");
    assert_eq!(ids(&queue.offer(item(5, 1, 1, 5))), [2]);
    let large = |bytes| Item {
        bytes,
        ..item(6, 1, 1, 5)
    };
    assert_eq!(
        ids(&queue.offer(large(21))),
        [6],
        "for what can never fit nobody gives way"
    );
    assert_eq!(queue.len(), 3);
}

#[test]
fn when_bytes_are_over_their_bound_the_flow_with_most_of_them_gives_way() {
    let sized = |id, flow, tokens, bytes| Item {
        bytes,
        ..item(id, 0, flow, tokens)
    };
    for tight in [
        bounds(10, 100),
        Bounds {
            band_bytes: 100,
            ..bounds(10, 200)
        },
    ] {
        let mut queue = Queue::new(tight);
        // Many tokens in few bytes, and an image.
        assert_eq!(queue.offer(sized(1, 1, 900, 10)), Vec::new());
        assert_eq!(queue.offer(sized(2, 2, 5, 60)), Vec::new());
        assert_eq!(queue.offer(sized(3, 2, 5, 30)), Vec::new());
        assert_eq!(ids(&queue.offer(sized(4, 1, 900, 10))), [3]);
        queue.remove(2);
        assert_eq!(queue.offer(sized(5, 3, 5, 80)), Vec::new(), "what left counts no more");
    }
}

#[test]
fn behind_a_first_that_has_no_room_its_flow_is_asked_in_turn() {
    let mut queue = queue(&[(1, 0, 1, 50), (2, 0, 1, 5), (3, 0, 1, 5), (4, 0, 1, 5)]);
    let next = |queue: &Queue<()>, but: &[u64]| queue.next(0, but, &[]).map(|item| item.id);
    queue.passed(1);
    assert_eq!(next(&queue, &[1]), Some(2));
    queue.passed(2);
    assert_eq!(next(&queue, &[1, 2]), Some(3));
    assert_eq!(next(&queue, &[]), Some(1), "the first is first again");
    assert_eq!(next(&queue, &[1]), Some(3), "and behind it the next in turn");
    assert_eq!(queue.go(3).map(|item| item.id), Some(3));
    assert_eq!(next(&queue, &[1]), Some(4));
    queue.passed(4);
    assert_eq!(next(&queue, &[1]), Some(2), "round and round");
    assert_eq!(order(&mut queue), [1, 2, 4]);
}

#[test]
fn who_waited_long_enough_leaves() {
    let mut queue = queue(&[(1, 0, 1, 5)]);
    queue.offer(Item {
        wait: Millis(500),
        ..item(2, 0, 1, 5)
    });
    assert_eq!(ids(&queue.expired(UnixMillis(1_499))), Vec::<u64>::new());
    assert_eq!(ids(&queue.expired(UnixMillis(1_500))), [2]);
    assert_eq!(ids(&queue.expired(UnixMillis(2_000))), [1]);
}

#[test]
fn a_clock_that_steps_back_makes_nobody_wait_for_ever() {
    let mut queue = queue(&[(1, 0, 1, 5)]);
    assert_eq!(queue.expired(UnixMillis(10)), Vec::new());
    assert_eq!(ids(&queue.expired(UnixMillis(1_010))), [1]);
}

#[test]
fn flows_beyond_the_bound_share_one() {
    let mut queue = Queue::new(bounds(10_000, 1 << 30));
    for flow in 1..=QUEUE_FLOWS_MAX as u64 {
        queue.offer(item(flow, 0, flow, 10));
    }
    for id in 10_000..10_003 {
        queue.offer(item(id, 0, id, 1));
    }
    let flows = queue.bands[&0].flows.len();
    assert_eq!(flows, QUEUE_FLOWS_MAX + 1, "all others in one");
    assert_eq!(queue.remove(10_001).map(|item| item.id), Some(10_001));
    assert_eq!(order(&mut queue).len(), QUEUE_FLOWS_MAX + 2);
}

#[test]
fn what_waits_is_told_by_band() {
    let mut queue = queue(&[(1, -2, 1, 5), (2, 4, 1, 6), (3, 4, 2, 7)]);
    let told = |queue: &Queue<()>| -> Vec<(i16, u32, u64)> {
        let all = queue.waiting();
        all.map(|band| (band.priority, band.requests, band.tokens.0)).collect()
    };
    assert_eq!(told(&queue), [(-2, 1, 5), (4, 2, 13)]);
    queue.remove(1);
    queue.remove(3);
    assert_eq!(queue.remove(3), None);
    assert_eq!(told(&queue), [(4, 1, 6)]);
}

#[cfg(not(target_arch = "wasm32"))]
mod properties {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Offer {
            priority: i16,
            flow: u64,
            tokens: u64,
            bytes: usize,
        },
        /// Lets go what this many tokens have room for; a flow whose number is odd is blocked when `odd`.
        Release {
            room: u64,
            odd: bool,
        },
        Leave(u64),
        Expire(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (-2..2_i16, 0..5_u64, 0..200_u64, 0..40_usize)
                .prop_map(|(priority, flow, tokens, bytes)| Step::Offer { priority, flow, tokens, bytes }),
            2 => (0..400_u64, any::<bool>()).prop_map(|(room, odd)| Step::Release { room, odd }),
            1 => (0..200_u64).prop_map(Step::Leave),
            1 => (0..400_u64).prop_map(Step::Expire),
        ]
    }

    fn release(queue: &mut Queue<()>, mut room: u64, odd: bool) -> Vec<Item<()>> {
        let (mut gone, mut blocked) = (Vec::new(), Vec::new());
        while let Some(item) = highest(queue).and_then(|highest| queue.next(highest, &[], &blocked)) {
            if item.tokens.0 > room || (odd && item.flow % 2 == 1) {
                blocked.push(item.flow);
                continue;
            }
            room -= item.tokens.0;
            let id = item.id;
            gone.extend(queue.go(id));
        }
        gone
    }

    proptest! {
        #[test]
        fn each_leaves_once_in_the_order_of_its_flow_and_bounds_hold(steps in prop::collection::vec(step(), 0..200)) {
            let limits = Bounds { band_requests: 12, band_bytes: 200, ..bounds(20, 300) };
            let mut queue = Queue::new(limits);
            let (mut now, mut came, mut went) = (1_000, 0_u64, Vec::new());
            let mut last: BTreeMap<(i16, u64), u64> = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Offer { priority, flow, tokens, bytes } => {
                        let item = Item { bytes, since: UnixMillis(now), ..item(came, priority, flow, tokens) };
                        came += 1;
                        went.extend(ids(&queue.offer(item)));
                    }
                    Step::Release { room, odd } => {
                        for item in release(&mut queue, room, odd) {
                            let before = last.insert((item.priority, item.flow), item.id);
                            prop_assert!(before < Some(item.id), "first come, first served in a flow");
                            went.push(item.id);
                        }
                    }
                    Step::Leave(id) => went.extend(queue.remove(id).map(|item| item.id)),
                    Step::Expire(millis) => {
                        now += millis;
                        went.extend(ids(&queue.expired(UnixMillis(now))));
                    }
                }
                prop_assert!(queue.len() <= limits.max_requests && queue.bytes <= limits.max_bytes);
                prop_assert!(queue.bands.values().all(|band| band.requests > 0
                    && band.requests <= limits.band_requests
                    && band.bytes <= limits.band_bytes
                    && band.requests == band.flows.iter().map(|flow| flow.waiting.len()).sum::<usize>()));
                prop_assert_eq!(queue.len() + went.len(), came as usize);
            }
            went.extend(order(&mut queue));
            went.sort_unstable();
            prop_assert_eq!(went, (0..came).collect::<Vec<_>>());
            prop_assert_eq!((queue.bytes, queue.waiting().count()), (0, 0));
        }

        #[test]
        fn flows_that_wait_side_by_side_are_served_equal_tokens(
            sizes in prop::collection::vec(prop::collection::vec(1..100_u64, 40), 2..5),
        ) {
            let mut queue = Queue::new(bounds(10_000, 1 << 20));
            for (flow, sizes) in sizes.iter().enumerate() {
                for (nth, tokens) in sizes.iter().enumerate() {
                    queue.offer(item((flow * 1_000 + nth) as u64, 0, flow as u64, *tokens));
                }
            }
            let mut served = vec![0_u64; sizes.len()];
            // Until a flow may be empty.
            while queue.bands.get(&0).is_some_and(|band| band.flows.len() == sizes.len()) {
                let item = pop(&mut queue, 0, &[]).unwrap();
                served[item.flow as usize] += item.tokens.0;
                let (least, most) = (served.iter().min().unwrap(), served.iter().max().unwrap());
                prop_assert!(most - least < 200, "{:?}", served);
            }
        }

        /// One that waits is passed by no more than every other flow's share and one request each.
        #[test]
        fn nobody_starves_in_a_band(
            others in prop::collection::vec((1..4_u64, 1..100_u64), 300),
            tokens in 1..400_u64,
            room in 400..800_u64,
        ) {
            let mut queue = Queue::new(bounds(10_000, 1 << 20));
            queue.offer(item(0, 0, 0, tokens));
            let (mut next, mut passed) = (1, 0);
            let mut others = others.into_iter();
            loop {
                // There is always a backlog of every other flow.
                for (flow, tokens) in others.by_ref().take(9) {
                    queue.offer(item(next, 0, flow, tokens));
                    next += 1;
                }
                let gone = release(&mut queue, room, false);
                if let Some(at) = gone.iter().position(|item| item.id == 0) {
                    passed += gone[..at].iter().map(|item| item.tokens.0).sum::<u64>();
                    break;
                }
                prop_assert!(!gone.is_empty());
                passed += gone.iter().map(|item| item.tokens.0).sum::<u64>();
            }
            // Three flows of others: each what this one needs, one request of up to 100 tokens more, and what
            // passes it in a release that has no room left for it.
            prop_assert!(passed <= 3 * (tokens + 100) + room, "{passed} for {tokens}");
        }
    }
}
