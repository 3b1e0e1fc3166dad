//! The scorer rows of the endpoint-picker world's golden cases; the number of each row stands beside it. Rows about hash
//! values are not here: blocks have identities of the lab's own.

use super::index::Index;
use super::score::{active_requests, kv, load_aware, lora, max_picker, prefix, queue, token_load};
use berth_tests_simulator::random::Rng;

#[track_caller]
fn close(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    let near = found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-4);
    assert!(near, "{found:?} instead of {expected:?}");
}

#[test]
fn row_1_and_2_queue() {
    close(&queue(&[10.0, 5.0, 0.0]), &[0.0, 0.5, 1.0]);
    close(&queue(&[5.0, 5.0]), &[1.0, 1.0]);
    close(&queue(&[0.0, 0.0]), &[1.0, 1.0]);
}

#[test]
fn row_3_kv() {
    close(&[0.8, 0.5, 0.0, 1.0].map(kv), &[0.2, 0.5, 1.0, 0.0]);
}

#[test]
fn row_4_lora() {
    let scores = [
        lora("a1", &["a1"], &[], 5),
        lora("a1", &["a2"], &["a1"], 5),
        lora("a1", &["a2"], &[], 2),
        lora("a1", &["a3"], &["a1"], 2),
        lora("a1", &["a4", "a5"], &[], 2),
    ];
    close(&scores, &[1.0, 0.8, 0.8, 0.6, 0.0]);
}

#[test]
fn row_6_load_aware() {
    close(
        &[2.0, 0.0, 15.0].map(|waiting| load_aware(waiting, 10.0)),
        &[0.4, 0.5, 0.0],
    );
}

#[test]
fn row_7_token_load() {
    close(
        &[0.0, 500.0, 1000.0].map(|tokens| token_load(Some(tokens), 1000.0)),
        &[1.0, 0.5, 0.0],
    );
    close(
        &[0.0 + 250.0, 250.0 + 250.0, 750.0 + 250.0].map(|tokens| token_load(Some(tokens), 1000.0)),
        &[0.75, 0.5, 0.0],
    );
    close(&[token_load(None, 1000.0)], &[1.0]);
}

#[test]
fn row_9_active_requests() {
    close(&active_requests(&[1.0, 0.0]), &[0.0, 1.0]);
    close(&active_requests(&[0.0, 0.0]), &[1.0, 1.0]);
}

#[test]
fn row_10_and_11_prefix() {
    let plain = |matched, total| prefix(matched, total, 0.0, 8192.0, 64.0);
    close(
        &[plain(5, 10), plain(2, 10), plain(0, 10), plain(0, 0)],
        &[0.5, 0.2, 0.0, 0.0],
    );
    let mixed = |matched, total| prefix(matched, total, 0.5, 100.0, 1.0);
    close(&[mixed(5, 10), mixed(50, 100)], &[0.25125, 0.375]);
}

#[test]
fn row_12_blocks() {
    assert_eq!([8usize, 10, 0].map(|tokens| tokens.div_ceil(4)), [2, 3, 0]);
}

#[test]
fn row_17_index() {
    let mut index = Index::new(3, 100);
    index.add(&[1, 2], 0);
    index.add(&[1, 2], 2);
    assert_eq!(index.matches(&[1, 3]), [1, 0, 1]);
}

#[test]
fn row_18_index_forgets_the_oldest() {
    let mut index = Index::new(1, 2);
    [1, 2, 3].into_iter().for_each(|block| index.add(&[block], 0));
    assert_eq!([1, 2, 3].map(|block| index.matches(&[block])[0]), [0, 1, 1]);
}

#[test]
fn row_23_max_picker() {
    let mut rng = Rng::new(1);
    assert_eq!(max_picker(&[10.0, 25.0, 15.0], &mut rng), 1);
    let picks: Vec<usize> = (0..64).map(|_| max_picker(&[50.0, 50.0, 30.0], &mut rng)).collect();
    assert!(picks.contains(&0) && picks.contains(&1) && !picks.contains(&2));
}

/// (waiting, KV usage, has the adapter, prefix part) of each pod; the sums with these weights.
fn sums(pods: &[(f64, f64, bool, f64)], weights: [f64; 4]) -> Vec<f64> {
    let queue = queue(&pods.iter().map(|pod| pod.0).collect::<Vec<_>>());
    let one = |(place, pod): (usize, &(f64, f64, bool, f64))| {
        let active: &[&str] = if pod.2 { &["a"] } else { &[] };
        let scores = [queue[place], kv(pod.1), pod.3, lora("a", active, &[], 0)];
        scores.iter().zip(weights).map(|(score, weight)| score * weight).sum()
    };
    pods.iter().enumerate().map(one).collect()
}

#[test]
fn row_29_and_31_end_to_end() {
    let ones = [1.0; 4];
    close(
        &sums(
            &[(3.0, 0.2, false, 0.0), (0.0, 0.1, false, 0.0), (10.0, 0.2, false, 0.0)],
            ones,
        ),
        &[1.5, 1.9, 0.8],
    );
    close(
        &sums(
            &[(6.0, 0.2, true, 0.0), (0.0, 0.85, false, 0.0), (10.0, 0.9, false, 0.0)],
            ones,
        ),
        &[2.2, 1.15, 0.1],
    );
}

#[test]
fn row_32_default_profile() {
    let pods = [(0.0, 0.1, false, 0.0), (4.0, 0.3, false, 0.8), (10.0, 0.95, false, 1.0)];
    close(&sums(&pods, [2.0, 2.0, 3.0, 0.0]), &[3.8, 5.0, 3.1]);
}
