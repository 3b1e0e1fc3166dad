//! `berth replay`: decisions in virtual time, for tests and studies without a proxy.
//!
//! Only the lines are read and written here; everything else is the code of the wasm.

use std::io::{BufRead, Write, stderr, stdin, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use berth_filter_routing::replay::{Answers, Options, Replay};
use berth_shared_state::units::UnixMillis;

use crate::document;

/// Arguments of `berth replay`.
#[derive(clap::Args)]
#[command(after_help = "\
Reads one JSON event per line from standard input, in time order, t in milliseconds:
  {\"t\":0,\"pods\":[{\"name\":\"p0\",\"address\":\"10.0.0.1:8000\"}]}
  {\"t\":5,\"scrape\":{\"pod\":\"10.0.0.1:8000\",\"status\":200,\"body\":\"...\"}}
  {\"t\":6,\"models\":{\"pod\":\"10.0.0.1:8000\",\"status\":200,\"body\":\"...\"}}
  {\"t\":9,\"request\":{\"id\":\"r1\",\"path\":\"/v1/chat/completions\",\"headers\":[],\"body\":\"...\"}}
  {\"t\":80,\"first_token\":{\"id\":\"r1\"}}
  {\"t\":900,\"done\":{\"id\":\"r1\",\"status\":200}}
Writes one JSON line per request. What is not known is skipped with a line on standard error.

Exit codes: 0 the end of input was reached, 1 the config is not valid, 2 it cannot be read.")]
pub struct Args {
    #[command(flatten)]
    setup: Setup,
    /// Give reasons for every candidate, not only for the endpoints.
    #[arg(long)]
    full: bool,
}

/// What a replay starts from.
#[derive(clap::Args)]
pub struct Setup {
    /// The config, a JSON document.
    #[arg(long)]
    config: PathBuf,
    /// For choices among near-equals.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Unix time of t = 0. Without it LoRA clocks are not repaired: the newest value wins.
    #[arg(long, value_name = "UNIX_SECONDS", value_parser = seconds)]
    epoch: Option<UnixMillis>,
    /// Workers that share one ledger; requests are dealt to them in turn.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    workers: u16,
}

impl Setup {
    /// A replay before its first line; `None` when the config is not valid, which was printed.
    ///
    /// # Errors
    /// When the config cannot be read.
    pub fn start(&self, in_full: bool) -> anyhow::Result<Option<Replay>> {
        let Some(config) = document::valid(&document::read(&self.config)?) else {
            return Ok(None);
        };
        let (seed, epoch, workers) = (self.seed, self.epoch, usize::from(self.workers));
        Ok(Some(Replay::new(
            config,
            Options {
                seed,
                epoch,
                workers,
                in_full,
            },
        )))
    }
}

/// Runs it; the exit code is the answer.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let Some(mut replay) = args.setup.start(args.full)? else {
        return Ok(ExitCode::FAILURE);
    };
    let (mut input, mut out) = (stdin().lock(), stdout().lock());
    let mut line = Vec::new();
    while input
        .read_until(b'\n', &mut line)
        .context("cannot read standard input")?
        > 0
    {
        write(&replay.feed(&String::from_utf8_lossy(&line)), &mut out)?;
        line.clear();
    }
    write(&replay.finish(), &mut out)?;
    Ok(ExitCode::SUCCESS)
}

fn write(answers: &Answers, out: &mut impl Write) -> anyhow::Result<()> {
    for note in &answers.notes {
        // Nobody may listen.
        let _ = writeln!(stderr(), "{note}");
    }
    for answer in &answers.out {
        writeln!(out, "{answer}").context("cannot write a decision")?;
    }
    out.flush().context("cannot write a decision")
}

fn seconds(text: &str) -> Result<UnixMillis, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..1e12).contains(&seconds) => Ok(UnixMillis((seconds * 1000.0) as u64)),
        _ => Err("must be Unix time in seconds".to_owned()),
    }
}
