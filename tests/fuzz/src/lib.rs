//! What must hold for any bytes that reach Berth, as plain functions: one per kind of input.
//!
//! ```text
//!  targets/*.rs   libFuzzer -> function        nightly, by scripts/fuzz
//!  tests/*.rs     seeds, cut and mutated ->    stable, by cargo test
//! ```
//!
//! A function panics when something does not hold; input that is refused in the right way is fine.
//! What it needs beside the bytes (hints, splits, times) it takes from their start. Deliberately
//! not here: what a good page means. That is tested where it is read.

mod config;
mod pages;
mod poll;
mod replay;
mod requests;
pub mod seeds;
mod shared;
mod world;

pub use config::config;
pub use pages::{discovery, metrics, models, pod_list, slices};
pub use poll::poll;
pub use replay::replay;
pub use requests::{body, head, subset};
pub use shared::{ledger, table};

/// An input: its name and what must hold for its bytes.
pub type Target = (&'static str, fn(&[u8]));

/// All of them. Each has a file in `targets/`.
pub const TARGETS: [Target; 13] = [
    ("metrics", metrics),
    ("models", models),
    ("discovery", discovery),
    ("slices", slices),
    ("pod_list", pod_list),
    ("poll", poll),
    ("table", table),
    ("ledger", ledger),
    ("head", head),
    ("body", body),
    ("subset", subset),
    ("config", config),
    ("replay", replay),
];

/// The first bytes, which choose how the rest is read; zeros where there are none.
fn choices<const N: usize>(data: &[u8]) -> ([u8; N], &[u8]) {
    let mut chosen = [0; N];
    let (first, rest) = data.split_at(data.len().min(N));
    chosen[..first.len()].copy_from_slice(first);
    (chosen, rest)
}

/// A text that goes to a log or a terminal: one line, and no control characters that could forge another.
#[track_caller]
fn check_line(text: &str) {
    assert!(!text.trim().is_empty(), "an empty line for a person");
    assert!(!text.contains(char::is_control), "control characters in {text:?}");
}

/// Runs one target over the files that the command line names: reproduces a crash without libFuzzer.
pub fn run_files(target: fn(&[u8])) {
    for path in std::env::args().skip(1) {
        let data = std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        target(&data);
        println!("{path}: holds");
    }
}

/// The body of a target's file.
#[macro_export]
macro_rules! fuzz {
    ($name:ident) => {
        #[cfg(fuzzing)]
        libfuzzer_sys::fuzz_target!(|data: &[u8]| $crate::$name(data));
        #[cfg(not(fuzzing))]
        fn main() {
            $crate::run_files($crate::$name);
        }
    };
}
