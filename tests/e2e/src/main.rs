//! `berth-demo`, the program behind `scripts/run`.

use berth_tests_e2e::demo::{Args, run};
use clap::Parser;

#[tokio::main]
async fn main() -> std::process::ExitCode {
    match run(Args::parse()).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("berth: {error:#}");
            std::process::ExitCode::from(2)
        }
    }
}
