//! Reading a config document, for every subcommand that wants one.

use std::fs::File;
use std::io::{Read, stdin};
use std::path::Path;

use anyhow::Context;
use berth_shared_state::config::{Config, ConfigError};
use berth_shared_state::limits::DOCUMENT_MAX_BYTES;

/// The bytes of a document; `-` is standard input. One byte more than a document may have is read, so that a longer
/// one is seen to be longer.
///
/// # Errors
/// When it cannot be read.
pub fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
    let most = DOCUMENT_MAX_BYTES as u64 + 1;
    let mut document = Vec::new();
    if file == Path::new("-") {
        stdin()
            .take(most)
            .read_to_end(&mut document)
            .context("cannot read standard input")?;
    } else {
        File::open(file)
            .and_then(|open| open.take(most).read_to_end(&mut document))
            .with_context(|| format!("cannot read {}", file.display()))?;
    }
    Ok(document)
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
