//! What Berth costs. `scripts/bench` runs it; README.md says what the numbers mean.

mod report;
mod timing;
mod wasm;
mod world;

use anyhow::Result;
use clap::{Parser, ValueEnum};

/// What Berth costs, as one table at the end.
#[derive(Parser)]
struct Arguments {
    /// Fewer repetitions: a look, not a measurement.
    #[arg(long)]
    quick: bool,
    /// One part alone.
    #[arg(long)]
    only: Option<Part>,
    /// Renews docs/bench.md.
    #[arg(long)]
    write: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Wasm,
    Native,
    Envoy,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let wanted = |part| arguments.only.is_none_or(|only| only == part);
    let mut groups = Vec::new();
    if wanted(Part::Wasm) {
        groups.extend(wasm::run(arguments.quick)?);
    }
    print!("{}", report::text(&groups));
    Ok(())
}
