//! `berth render`

use std::process::ExitCode;

/// Arguments of `berth render`.
#[derive(clap::Args)]
pub struct Args {}

/// Runs it; the exit code is the answer.
pub fn run(_args: &Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not written yet")
}
