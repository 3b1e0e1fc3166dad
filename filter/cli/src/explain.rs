//! `berth explain`

use std::process::ExitCode;

/// Arguments of `berth explain`.
#[derive(clap::Args)]
pub struct Args {}

/// Runs it; the exit code is the answer.
pub fn run(_args: &Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not written yet")
}
