//! What Berth costs. `scripts/bench` runs it; README.md says what the numbers mean.

mod backend;
mod native;
mod proxy;
mod report;
mod timing;
mod wasm;
mod world;

use anyhow::Result;
use berth_tests_e2e::envoy::root;
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
    if wanted(Part::Native) {
        groups.extend(native::run(arguments.quick)?);
    }
    if wanted(Part::Envoy) {
        groups.extend(proxy::run(arguments.quick)?);
    }
    if arguments.write {
        let command = if arguments.quick {
            "scripts/bench --quick --write"
        } else {
            "scripts/bench --write"
        };
        std::fs::write(
            root().join("docs/bench.md"),
            report::markdown(&groups, &machine(), command),
        )?;
    }
    print!("{}", report::text(&groups));
    Ok(())
}

/// Cores and CPU family, as far as the system says.
fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let cpu = model.map_or(std::env::consts::ARCH, |(_, name)| name.trim());
    format!("{cores} cores, {cpu}, shared with other work")
}
