//! The `berth` command: what Berth sees, decides and needs, without a proxy.
//!
//! Each subcommand is a file; it reads files, calls the crates that are also in the wasm, and
//! prints. Nothing is decided here.

mod document;
mod explain;
mod read;
mod render;
mod replay;
mod validate;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Turn a proxy that you already run into an LLM inference gateway.
#[derive(Parser)]
#[command(version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check a config: prints every error with its path, the value and the rule.
    Validate(validate::Args),
    /// Show what Berth sees in one /metrics page, as JSON; null is unknown.
    Read(read::Args),
    /// Decide in virtual time: JSON lines in, one decision per request out.
    Replay(replay::Args),
    /// Show why a request went where it went, as a table.
    Explain(explain::Args),
    /// Print a proxy's configuration for a Berth config.
    Render(render::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Validate(args) => validate::run(&args),
        Command::Read(args) => read::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Render(args) => render::run(&args),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("berth: {error:#}");
            ExitCode::from(2)
        }
    }
}
