//! What the reference picker computes, and how a prompt becomes blocks.

use super::*;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

#[track_caller]
fn check(blocks: &Blocks, model: &str, expected: &[&[u64]]) {
    let chains = blocks.chains(seed(model, ""));
    assert_eq!(chains.whole().collect::<Vec<_>>(), expected);
}

#[test]
fn chains_are_the_reference_pickers() {
    assert_eq!(seed("m", ""), 0xba2e_5670_83a2_b2e8);
    let four = tokens(&[&[1, 2, 3, 4]], 2, 9);
    check(&four, "m", &[&[0xbdea_da20_7194_3583, 0x7aac_fb53_1261_b051]]);
    check(&four, "model", &[&[0xffdc_a57d_2290_6a0b, 0x9f53_fe56_00b4_b914]]);
    let two = tokens(&[&[1, 2], &[3, 4]], 2, 9);
    check(&two, "model", &[&[0xffdc_a57d_2290_6a0b], &[0xe3c1_1834_59da_d609]]);
}

#[test]
fn text_is_cut_into_words_of_four_bytes() {
    let mut hasher = Hasher::default();
    for _ in 0..8 {
        hasher.text(b"Hello, world! This is a shared system prompt.");
    }
    // 90 words: a full block and a shorter one.
    let blocks = hasher.finish();
    check(
        &blocks,
        "test-model",
        &[&[0xa89b_3165_f1e7_22e1, 0x71e1_6fc1_2f96_58b4]],
    );
    let chains = blocks.chains(seed("test-model", ""));
    assert_eq!(chains.full().map(<[u64]>::len).collect::<Vec<_>>(), [1]);
    assert!((chains.part(1) - 64.0 / 90.0).abs() < 1e-9);
}

#[test]
fn blocks_are_counted_with_the_last_one() {
    let count = |words: usize| {
        let words: Vec<u32> = (0..words as u32).collect();
        tokens(&[&words], 4, 99)
            .chains(0)
            .whole()
            .map(<[u64]>::len)
            .sum::<usize>()
    };
    assert_eq!([8, 10, 0].map(count), [2, 3, 0]);
}

/// The hash of the first block.
fn first(chains: &Chains) -> Option<u64> {
    chains.full().next()?.first().copied()
}

#[test]
fn salt_and_model_separate() {
    let blocks = tokens(&[&[1, 2]], 1, 9);
    let chains = [("m", ""), ("m", "a"), ("m", "b"), ("n", "")].map(|(model, salt)| blocks.chains(seed(model, salt)));
    for (at, one) in chains.iter().enumerate() {
        for other in &chains[at + 1..] {
            assert_ne!(first(one), first(other));
        }
    }
}

#[test]
fn the_last_word_of_a_text_is_padded_and_tokens_begin_a_new_one() {
    let mut text = Hasher::new(1, 9);
    text.text(b"abcde");
    text.token(7);
    let words = [*b"abcd", *b"e\0\0\0"].map(u32::from_le_bytes);
    assert_eq!(text.finish(), tokens(&[&[words[0], words[1], 7]], 1, 9));
}

#[test]
fn media_count_as_their_tokens_and_are_told_apart() {
    let media = |url: &[u8]| {
        let mut hasher = Hasher::default();
        hasher.text(b"see");
        hasher.media(url);
        hasher.text(b"what is it?");
        hasher.finish().chains(0)
    };
    let (cat, dog) = (media(b"cat"), media(b"dog"));
    // 1 + 1,024 + 3 words: 16 full blocks.
    assert_eq!(cat.full().next().unwrap().len(), 16);
    assert_ne!(first(&cat), first(&dog));
    assert_eq!(cat, media(b"cat"));
}

#[test]
fn what_is_hashed_is_bounded_and_the_length_counts_on() {
    let part = |words: usize| {
        let words: Vec<u32> = (0..words as u32).collect();
        let chains = tokens(&[&words], 1, 100).chains(0);
        (chains.full().next().unwrap().len(), chains.part(50))
    };
    assert_eq!(part(100), (100, 0.5));
    assert_eq!(part(101), (100, 50.0 / 101.0));
    let one: &[u32] = &[1];
    let many = tokens(&vec![one; PREFIX_PROMPTS_MAX + 1], 1, 100).chains(0);
    assert_eq!(many.full().count(), PREFIX_PROMPTS_MAX);
    assert!((many.part(1) - 1.0 / (PREFIX_PROMPTS_MAX + 1) as f64).abs() < 1e-9);
    let mut off = Hasher::off();
    off.text(&[7; 100_000]);
    assert_eq!(off.finish().chains(0).full().map(<[u64]>::len).sum::<usize>(), 0);
}
