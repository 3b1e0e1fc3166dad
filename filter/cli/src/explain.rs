//! `berth explain`: why one request of a replay went where it went, for a person.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, stdin};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;

use crate::replay::Setup;

/// Arguments of `berth explain`.
#[derive(clap::Args)]
#[command(after_help = "\
EVENTS is what `berth replay` reads: JSON lines with pods, scrapes, models pages and requests.

Example:
  berth explain --config berth.json --request r1 events.jsonl

Exit codes: 0 explained, 1 the config is not valid or the request does not occur, 2 a file cannot be read.")]
pub struct Args {
    #[command(flatten)]
    setup: Setup,
    /// The request to explain; the last one when absent.
    #[arg(long, value_name = "ID")]
    request: Option<String>,
    /// Events, one JSON object per line; `-` is standard input.
    #[arg(default_value = "-")]
    events: PathBuf,
}

/// Runs it; the exit code is the answer.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let Some(mut replay) = args.setup.start(true)? else {
        return Ok(ExitCode::FAILURE);
    };
    let input: Box<dyn Read> = match args.events.as_os_str() == "-" {
        true => Box::new(stdin()),
        false => Box::new(File::open(&args.events).with_context(|| format!("cannot read {}", args.events.display()))?),
    };
    let mut found = None;
    for line in BufReader::new(input).split(b'\n') {
        let line = line.context("cannot read the events")?;
        let answers = replay.feed(&String::from_utf8_lossy(&line));
        for note in answers.notes {
            eprintln!("{note}");
        }
        let wanted = |id: &String| args.request.as_ref().is_none_or(|request| request == id);
        if let Some((id, table)) = answers.explained.filter(|(id, _)| wanted(id)) {
            found = Some((id, table));
        }
    }
    match (found, &args.request) {
        (Some((id, table)), _) => {
            print!("request {id}\n{table}");
            Ok(ExitCode::SUCCESS)
        }
        (None, Some(request)) => {
            eprintln!("berth: no request {request} occurs in {}", args.events.display());
            Ok(ExitCode::FAILURE)
        }
        (None, None) => {
            eprintln!("berth: no request occurs in {}", args.events.display());
            Ok(ExitCode::FAILURE)
        }
    }
}
