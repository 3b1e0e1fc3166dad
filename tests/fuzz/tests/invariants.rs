//! Every invariant over all seeds, cut anywhere and mutated: the stable twin of the fuzz targets.

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use berth_tests_fuzz::{TARGETS, seeds};
use fastrand::Rng;

/// Cuts and mutations of one seed. Some hundred: libFuzzer does the millions.
const CUTS: usize = 100;
const MUTATIONS: usize = 200;
/// Bytes of all inputs of one target made from seeds that are large.
const BYTES_MAX: usize = 16 << 20;

/// Bytes that mean something to some reader.
const TOKENS: [&[u8]; 17] = [
    b"\"",
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b"\n",
    b"\r\n",
    b"\0",
    b"\xff",
    b"-1",
    b"1e999",
    b"1e308",
    b"NaN",
    b"\\ud800",
    b"18446744073709551615",
];

fn mutated(seed: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut out = seed.to_vec();
    for _ in 0..rng.usize(1..=4) {
        let at = rng.usize(0..=out.len());
        let end = (at + rng.usize(0..=32)).min(out.len());
        match rng.u8(0..5) {
            0 => drop(out.drain(at..end)),
            1 => drop(out.splice(at..at, rng.choice(TOKENS).unwrap_or_default().iter().copied())),
            2 => {
                let again = out[at..end].to_vec();
                drop(out.splice(at..at, again));
            }
            3 => out[at..end]
                .iter_mut()
                .take(1)
                .for_each(|byte| *byte ^= 1 << rng.u8(0..8)),
            _ => out[at..end].iter_mut().take(1).for_each(|byte| *byte = rng.u8(..)),
        }
    }
    out
}

fn inputs(seed: &[u8], rng: &mut Rng) -> Vec<Vec<u8>> {
    let mut inputs = vec![seed.to_vec(), Vec::new()];
    let cuts: BTreeSet<usize> = (0..CUTS).map(|_| rng.usize(0..=seed.len())).collect();
    inputs.extend(cuts.into_iter().map(|cut| seed[..cut].to_vec()));
    inputs.extend((0..MUTATIONS).map(|_| mutated(seed, rng)));
    inputs
}

#[track_caller]
fn check(name: &str) {
    let (_, run) = TARGETS
        .into_iter()
        .find(|(target, _)| *target == name)
        .expect("a target");
    let mut rng = Rng::with_seed(0xBE27);
    let mut bytes = 0;
    for (seed_name, seed) in seeds::of(name) {
        let inputs = inputs(&seed, &mut rng);
        // The seed itself always, what is made from it while there is room.
        let room = if bytes < BYTES_MAX { inputs.len() } else { 1 };
        for input in inputs.into_iter().take(room) {
            bytes += input.len();
            if catch_unwind(AssertUnwindSafe(|| run(&input))).is_err() {
                panic!("{name}, from seed {seed_name}: see {}", keep(name, &input));
            }
        }
    }
    assert!(bytes > 0, "no seeds");
}

/// Keeps what failed, for `cargo run --bin NAME FILE`.
fn keep(name: &str, input: &[u8]) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("artifacts").join(name);
    let file = folder.join("from-cargo-test");
    let kept = fs::create_dir_all(&folder).and_then(|()| fs::write(&file, input));
    kept.map_or_else(|error| error.to_string(), |()| file.display().to_string())
}

macro_rules! each {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            check(stringify!($name));
        })*

        #[test]
        fn every_target_has_a_file_a_test_and_a_program() {
            let tested = [$(stringify!($name)),*];
            assert_eq!(tested, TARGETS.map(|(name, _)| name));
            let manifest = include_str!("../Cargo.toml");
            let programs = manifest.lines().filter_map(|line| line.strip_prefix("path = \"targets/")?.strip_suffix(".rs\""));
            assert_eq!(programs.collect::<Vec<_>>(), tested);
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("targets");
            assert_eq!(fs::read_dir(folder).expect("targets").count(), tested.len());
        }
    };
}

each!(metrics models discovery slices pod_list poll table ledger head body subset config replay);
