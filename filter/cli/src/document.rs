//! Reading what a subcommand is given, above all the config document.

use std::fs::File;
use std::io::{self, Read, stdin};
use std::path::Path;

use anyhow::Context;
use berth_shared_state::config::{Config, ConfigError};
use berth_shared_state::limits::DOCUMENT_MAX_BYTES;

/// The bytes of a config document; `-` is standard input.
///
/// # Errors
/// When it cannot be read.
pub fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
    input(file, DOCUMENT_MAX_BYTES)
}

/// The bytes of a file, or of standard input for `-`, as [`capped`] has them.
///
/// # Errors
/// When it cannot be read.
pub fn input(file: &Path, most: usize) -> anyhow::Result<Vec<u8>> {
    if file == Path::new("-") {
        return capped(stdin(), most).context("cannot read standard input");
    }
    File::open(file)
        .and_then(|open| capped(open, most))
        .with_context(|| format!("cannot read {}", file.display()))
}

/// The first bytes of a source: one more than `most`, so that what is longer is seen to be longer.
///
/// # Errors
/// When it cannot be read.
pub fn capped(source: impl Read, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(most as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The config in a document. `None` = it is not valid, which was printed on standard error.
pub fn valid(document: &[u8]) -> Option<Config> {
    Config::parse(document)
        .inspect_err(|errors| eprint!("{}", lines(errors)))
        .ok()
}

/// One error per line.
pub fn lines(errors: &[ConfigError]) -> String {
    errors.iter().map(|error| format!("{error}\n")).collect()
}
