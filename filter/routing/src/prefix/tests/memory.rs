//! Who is remembered to hold what, and until when.

use std::collections::BTreeSet;

use berth_shared_state::sealed::{self, Kind};

use super::*;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

#[test]
fn a_shared_start_counts_for_everybody_who_was_sent_it() {
    let mut world = World::new(3, 100);
    world.serve(&path(&[1, 2]), 0, 2);
    world.serve(&path(&[1, 2]), 2, 2);
    assert_eq!(world.held(&path(&[1, 3])), [1, 0, 1]);
    assert_eq!(world.held(&path(&[1, 2, 3])), [2, 0, 2]);
    assert_eq!(world.held(&path(&[2, 1])), [0, 0, 0], "a chain, not a set");
}

#[test]
fn what_the_cache_has_no_room_for_is_forgotten_oldest_first() {
    let mut world = World::new(1, 2);
    for prompt in [&[1], &[2], &[3]] {
        world.serve(&path(prompt), 0, 1);
    }
    assert_eq!([&[1], &[2], &[3]].map(|prompt| world.held(&path(prompt))[0]), [0, 1, 1]);
}

#[test]
fn a_start_that_is_used_again_stays_and_its_old_ending_goes() {
    let mut world = World::new(1, 6);
    world.serve(&path(&[1, 2, 3, 4]), 0, 4);
    world.serve(&path(&[1, 2, 5]), 0, 1);
    world.serve(&path(&[9]), 0, 5);
    // The clock stands at 10: the first ending is 6 old, the second 5.
    assert_eq!(world.held(&path(&[1, 2, 3, 4])), [2]);
    assert_eq!(world.held(&path(&[1, 2, 5])), [3]);
}

#[test]
fn a_restart_voids_all_that_was_sent() {
    let mut world = World::new(2, 100);
    world.serve(&path(&[1, 2]), 0, 2);
    world.serve(&path(&[1, 2]), 1, 2);
    world.pods[0].0 = tag(PodKey(0), 1);
    assert_eq!(world.held(&path(&[1, 2])), [0, 2]);
    world.serve(&path(&[1]), 0, 1);
    assert_eq!(world.held(&path(&[1, 2])), [1, 2]);
}

#[test]
fn a_clock_behind_an_entry_is_late_or_began_anew() {
    let mut world = World::new(1, 100);
    world.serve(&path(&[1, 2]), 0, 110);
    world.pods[0].1 = 11;
    assert_eq!(world.held(&path(&[1, 2])), [2], "another worker sent it a moment ago");
    world.pods[0].1 = 10;
    assert_eq!(world.held(&path(&[1, 2])), [0], "so much is not sent in a moment");
}

#[test]
fn long_prompts_are_found_whatever_span_they_part_in() {
    let long: Vec<u32> = (0..2_016).collect();
    let mut world = World::new(2, 10_000);
    let written = world.serve(&path(&long), 0, 2_016);
    assert_eq!((written.pages, written.lost), (6, 0));
    for parted in [1, 31, 32, 33, 95, 96, 97, 500, 2_015, 2_016] {
        let mut other = long.clone();
        other[parted..].fill(7_777);
        assert_eq!(world.held(&path(&other)), [parted as u32, 0]);
    }
    let again = world.serve(&path(&long), 0, 0);
    assert_eq!(again.pages, 0, "all of it is known");
    let other = world.serve(&path(&[&long[..100], &[7]].concat()), 0, 1);
    assert_eq!(other.pages, 1, "only the last span is new");
}

#[test]
fn a_retry_moves_the_memory_and_a_failure_takes_it_back() {
    let mut world = World::new(2, 100);
    let prompt = path(&[1, 2, 3]);
    let mut written = world.serve(&prompt, 0, 3);
    let other = (world.pods[1].0, 3);
    world.pods[1].1 = 3;
    world.index.take_back(&world.store, &mut written, Some(other));
    assert_eq!(world.held(&prompt), [0, 3]);
    world.index.take_back(&world.store, &mut written, None);
    assert_eq!(world.held(&prompt), [0, 0]);
    world.index.take_back(&world.store, &mut written, None);
    assert_eq!(world.held(&prompt), [0, 0], "nothing is left to take");
}

#[test]
fn what_was_there_before_a_failed_request_stays() {
    let mut world = World::new(1, 100);
    world.serve(&path(&[1, 2]), 0, 2);
    let mut written = world.serve(&path(&[1, 2, 3]), 0, 1);
    world.index.take_back(&world.store, &mut written, None);
    assert_eq!(world.held(&path(&[1, 2, 3])), [0], "the run was its only witness");
    world.serve(&path(&[1, 2, 4]), 0, 1);
    assert_eq!(world.held(&path(&[1, 2, 3])), [2]);
}

#[test]
fn every_prompt_of_a_request_is_looked_up_on_its_own() {
    let mut world = World::new(2, 100);
    let two = tokens(&[&[1, 2], &[5, 6]], 1, 99).chains(seed("m", ""));
    world.serve(&two, 0, 4);
    assert_eq!(world.held(&path(&[1, 2])), [2, 0]);
    assert_eq!(world.held(&path(&[5, 6])), [2, 0]);
    assert_eq!(world.held(&two), [4, 0]);
    assert_eq!(world.held(&path(&[1, 6])), [1, 0]);
}

#[test]
fn pages_are_bounded_and_a_pods_last_run_outlives_the_many_of_others() {
    let mut world = World::new(2, 1 << 30);
    world.serve(&path(&[1, 2, 3, 4]), 1, 4);
    for ending in 100..3_000 {
        world.serve(&path(&[1, 2, 3, ending]), 0, 1);
        assert!(world.page_bytes() <= PREFIX_PAGE_MAX_BYTES);
    }
    assert!(world.page_bytes() > PREFIX_PAGE_MAX_BYTES / 2);
    assert_eq!(world.held(&path(&[1, 2, 3, 2_999])), [4, 3]);
    assert_eq!(world.held(&path(&[1, 2, 3, 4])), [3, 4]);
}

#[test]
fn foreign_and_torn_pages_count_as_absent_and_are_replaced() {
    let mut world = World::new(1, 100);
    world.serve(&path(&[1, 2]), 0, 2);
    for page in 0..128 {
        let key = prefix_key("p", page);
        if let Some(stored) = world.store.inner.get(&key).unwrap() {
            let torn = [&stored.value[..stored.value.len() - 1], b"x"].concat();
            world.store.inner.set(&key, &torn, None).unwrap();
        }
    }
    assert_eq!(world.held(&path(&[1, 2])), [0]);
    world.serve(&path(&[1, 2]), 0, 2);
    assert_eq!(world.held(&path(&[1, 2])), [2]);
}

#[test]
fn pools_share_the_bound_of_the_process() {
    let pages = |bytes, pools| {
        let index = Index::new("p", bytes, pools);
        index.pages()
    };
    assert_eq!(pages(8 << 20, 1), 1_024);
    assert_eq!(pages(usize::MAX, 1), 8_192);
    assert_eq!(pages(8 << 20, 64), 128);
}

#[test]
fn spans_of_one_prompt_that_meet_in_a_page_do_not_overwrite_each_other() {
    // 16 pages, and 6 spans of each of many prompts: some meet.
    let mut met = 0;
    for start in 0..20 {
        let long: Vec<u32> = (start..start + 2_016).collect();
        let mut world = World::new(1, 10_000);
        world.index = Index::new("p", 16 * PREFIX_PAGE_MAX_BYTES, 1);
        world.serve(&path(&long), 0, 2_016);
        for blocks in [1, 33, 97, 225, 481, 993] {
            assert_eq!(world.held(&path(&long[..blocks])), [blocks as u32]);
        }
        let chains = path(&long);
        let chain = chains.full().next().unwrap();
        let pages: BTreeSet<u64> = [0, 32, 96, 224, 480, 992].map(|at| chain[at] % 16).into();
        met += 6 - pages.len();
    }
    assert!(met > 0, "no spans met");
}

#[test]
fn what_others_wrote_to_a_page_in_the_meantime_stays_when_a_prompt_is_taken_back() {
    let mut world = World::new(2, 100);
    let mut written = world.serve(&path(&[1, 2]), 0, 2);
    let key = written_key(&world);
    world.store.inner.set(&key, b"of another version", None).unwrap();
    world.index.take_back(&world.store, &mut written, None);
    assert_eq!(world.store.get(&key).unwrap().unwrap().value, b"of another version");
}

#[test]
fn a_page_larger_than_any_is_none() {
    let mut world = World::new(1, 100);
    world.serve(&path(&[1, 2]), 0, 2);
    let key = written_key(&world);
    let page = world.store.get(&key).unwrap().unwrap().value;
    let padded = |bytes: usize| {
        let mut payload = page[sealed::HEADER_BYTES..].to_vec();
        payload.resize(bytes - sealed::HEADER_BYTES, 0);
        sealed::seal_bytes(Kind::Prefix, &payload).unwrap()
    };
    for (bytes, held) in [(PREFIX_PAGE_MAX_BYTES, 2), (PREFIX_PAGE_MAX_BYTES + 1, 0)] {
        world.store.inner.set(&key, &padded(bytes), None).unwrap();
        assert_eq!(world.held(&path(&[1, 2])), [held], "{bytes} bytes");
    }
    world.serve(&path(&[1, 2]), 0, 2);
    assert_eq!(world.held(&path(&[1, 2])), [2]);
    assert!(world.page_bytes() <= PREFIX_PAGE_MAX_BYTES);
}

/// The key of the only page there is.
fn written_key(world: &World) -> String {
    let written = |key: &String| world.store.get(key).unwrap().is_some();
    (0..128).map(|page| prefix_key("p", page)).find(written).unwrap()
}
