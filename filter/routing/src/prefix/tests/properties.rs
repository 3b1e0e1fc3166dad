//! Any split of a prompt, and any order of events with any races.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Event {
    Serve { words: Vec<u32>, pod: usize },
    TakeBack { to: Option<usize> },
    Restart { pod: usize },
}

/// Words from a small alphabet, so that prompts share starts of all lengths.
fn prompt() -> impl Strategy<Value = Vec<u32>> {
    (0..120_usize, prop::collection::vec(0..2_u32, 1..12)).prop_map(|(same, rest)| [vec![0; same], rest].concat())
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        8 => (prompt(), 0..3_usize).prop_map(|(words, pod)| Event::Serve { words, pod }),
        1 => prop::option::of(0..3_usize).prop_map(|to| Event::TakeBack { to }),
        1 => (0..3_usize).prop_map(|pod| Event::Restart { pod }),
    ];
    prop::collection::vec(event, 1..40)
}

/// Plays the events beside a model that keeps everything; every prompt so far is asked for after each.
fn play(events: &[Event], luck: u64, create_only: bool) -> Result<(), TestCaseError> {
    let mut world = World::new(3, u32::MAX);
    world.store.luck = Cell::new(luck);
    world.store.create_only = create_only;
    let mut lives = [0; 3];
    // What each pod was sent in its present life.
    let mut sent = vec![Vec::<Vec<u32>>::new(); 3];
    let mut last = None;
    let mut exact = luck == 0;
    for event in events {
        match event {
            Event::Serve { words, pod } => {
                let written = world.serve(&path(words), *pod, 1);
                sent[*pod].push(words.clone());
                last = Some((written, words.clone()));
            }
            Event::TakeBack { to } => {
                if let Some((written, words)) = &mut last {
                    let stamp = to.map(|pod| {
                        world.pods[pod].1 += 1;
                        world.pods[pod]
                    });
                    world.index.take_back(&world.store, written, stamp);
                    sent.iter_mut()
                        .skip(to.unwrap_or(3))
                        .take(1)
                        .for_each(|sent| sent.push(words.clone()));
                    exact = false;
                }
            }
            Event::Restart { pod } => {
                lives[*pod] += 1;
                world.pods[*pod].0 = tag(PodKey(*pod as u64), lives[*pod]);
                sent[*pod].clear();
            }
        }
        for asked in sent.iter().flatten() {
            for (held, sent) in world.held(&path(asked)).into_iter().zip(&sent) {
                let common = |other: &Vec<u32>| asked.iter().zip(other).take_while(|(a, b)| a == b).count() as u32;
                let longest = sent.iter().map(common).max().unwrap_or(0);
                prop_assert!(held <= longest, "{held} blocks claimed, {longest} sent");
                prop_assert!(!exact || held == longest, "{held} blocks found, {longest} sent");
            }
        }
        prop_assert!(world.page_bytes() <= (1 << 20));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_longest_prefix_is_found(events in events()) {
        play(&events, 0, false)?;
        play(&events, 0, true)?;
    }

    #[test]
    fn lost_races_lose_entries_and_nothing_else(events in events(), luck in any::<u64>(), create_only in any::<bool>()) {
        play(&events, luck, create_only)?;
    }

    #[test]
    fn no_page_can_make_a_look_up_panic_or_lie(junk in prop::collection::vec(any::<u8>(), 0..400), words in prompt()) {
        let mut world = World::new(1, 100);
        for page in 0..128 {
            let sealed = berth_shared_state::sealed::seal_bytes(berth_shared_state::sealed::Kind::Prefix, &junk).unwrap();
            world.store.inner.set(&prefix_key("p", page), &sealed, None).unwrap();
        }
        let found = world.held(&path(&words));
        prop_assert!(found[0] as usize <= words.len());
        world.serve(&path(&words), 0, 1);
        prop_assert_eq!(world.held(&path(&words)), [words.len() as u32]);
    }

    #[test]
    fn a_run_that_lies_about_its_blocks_claims_no_more_than_prompts_share(
        blocks in any::<u16>(), clock in any::<u32>(), sent in prompt(), asked in prompt(), room in any::<u32>()
    ) {
        let mut world = World::new(1, room);
        let (sent, asked) = (path(&sent), path(&asked));
        let (sent, other) = (sent.full().next().unwrap(), asked.full().next().unwrap());
        let fingerprints = page::fingerprints(&sent[..sent.len().min(SPANS[0])]);
        let run = [
            &((other[0] >> 32) as u32).to_le_bytes()[..],
            &((fingerprints.len() / 2) as u16).to_le_bytes(),
            &1_u16.to_le_bytes(),
            &world.pods[0].0.to_le_bytes(),
            &blocks.to_le_bytes(),
            &clock.to_le_bytes(),
            &fingerprints,
        ]
        .concat();
        let sealed = berth_shared_state::sealed::seal_bytes(berth_shared_state::sealed::Kind::Prefix, &run).unwrap();
        world.store.inner.set(&prefix_key("p", other[0] % 128), &sealed, None).unwrap();
        world.pods[0].1 = clock;
        let common = sent.iter().zip(other).take(SPANS[0]).take_while(|(a, b)| a == b).count() as u32;
        let held = world.held(&asked)[0];
        if room == 0 {
            prop_assert_eq!(held, 0);
        } else {
            // One block more once in 65,536: two bytes of a hash stand for it.
            let true_blocks = common.min(blocks.into());
            prop_assert!((true_blocks..=true_blocks + 1).contains(&held), "{held} claimed, {true_blocks} shared");
        }
    }

    #[test]
    fn any_split_of_a_prompt_has_the_same_blocks(
        pieces in prop::collection::vec((0..3_u8, prop::collection::vec(any::<u8>(), 1..700)), 0..6),
        cuts in prop::collection::vec(0..700_usize, 0..4),
        bound in 0..12_usize,
    ) {
        let mut whole = Hasher::new(64, bound);
        let mut split = Hasher::new(64, bound);
        for (kind, piece) in &pieces {
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % piece.len()).chain([0, piece.len()]).collect();
            cuts.sort_unstable();
            let parts = cuts.windows(2).map(|ends| &piece[ends[0]..ends[1]]);
            match kind {
                0 => (whole.text(piece), parts.for_each(|part| split.text(part))).1,
                1 => (whole.media(piece), parts.for_each(|part| split.media(part))).1,
                _ => {
                    whole.next_prompt();
                    split.next_prompt();
                }
            }
        }
        prop_assert_eq!(whole.finish(), split.finish());
    }
}
