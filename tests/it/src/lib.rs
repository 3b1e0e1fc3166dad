//! What the integration tests share: where things are, and scenarios: a file, its pods, and who plays it.
//! Also for other packages that run the same files.

pub mod manifest;
pub mod page;
pub mod play;
pub mod scenario;
pub mod world;

use std::fs;
use std::path::{Path, PathBuf};

/// The project's root folder.
#[must_use]
pub fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.ancestors().nth(2).unwrap_or(package).to_path_buf()
}

/// A wasm artifact from `dist/`.
///
/// # Panics
/// When it was not built; the message says how.
#[must_use]
pub fn artifact(name: &str) -> Vec<u8> {
    let file = root().join("dist").join(name);
    fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}; run scripts/build first", file.display()))
}
