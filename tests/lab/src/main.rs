//! `berth-lab`: runs the scenarios, prints the tables, and writes docs/lab.md with its plots where asked to.

use anyhow::{Context, Result, bail};
use berth_filter_routing::cost::Terms;
use berth_tests_lab::arm::Arm;
use berth_tests_lab::client::trace::Traces;
use berth_tests_lab::scenario::{Family, Scenario, catalogue, load_sweep};
use berth_tests_lab::study::{Plan, Results, study};
use berth_tests_lab::{document, overload, report};
use clap::Parser;
use clap::builder::PossibleValuesParser;
use std::path::PathBuf;

/// The references run on this part of the requests: the lookahead is slow.
const PART: f64 = 0.25;

/// Compares routing policies over simulated pods, in virtual time.
#[derive(Debug, Parser)]
struct Arguments {
    /// A tenth of the requests, one seed, and no ablation: shows that all works, not who wins.
    #[arg(long)]
    quick: bool,
    /// Seeds; 11, 12 and 13 were not tuned on.
    #[arg(long, value_delimiter = ',', default_values_t = [11, 12, 13])]
    seeds: Vec<u64>,
    /// Only scenarios, or families, whose name contains one of these.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Only these arms, by a part of their name; the greedy reference always runs.
    #[arg(long, value_delimiter = ',')]
    arms: Vec<String>,
    /// Scales the number of requests.
    #[arg(long, default_value_t = 1.0)]
    size: f64,
    /// As many proxies that do not talk to each other in every scenario, whatever it says.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=64))]
    proxies: Option<u64>,
    /// Berth decides without these terms.
    #[arg(long, value_delimiter = ',', value_parser = PossibleValuesParser::new(terms()))]
    without: Vec<String>,
    /// Only the main tables: no load sweep, references or ablation.
    #[arg(long)]
    tables_only: bool,
    /// Folder with the traces in full.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/traces"))]
    traces: PathBuf,
    /// Runs at a time.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Writes lab.md and lab/*.svg into this folder.
    #[arg(long)]
    write: Option<PathBuf>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let traces = Traces::read(&arguments.traces)?;
    let plan = plan(&arguments)?;
    let mut scenarios = chosen(&arguments.only)?;
    if let Some(proxies) = arguments.proxies {
        let with = |scenario: Scenario| scenario.with_proxies(proxies as usize);
        scenarios = scenarios.into_iter().map(with).collect();
    }
    let main = timed("scenarios", || study(scenarios.clone(), &plan, &traces));
    let overloaded = arguments.without.is_empty() && (arguments.only.is_empty() || asks_for_overload(&arguments.only));
    let overload = overloaded.then(|| timed("overload", || overload::tables(plan.seeds[0])));
    let extras = if arguments.quick || arguments.tables_only || !arguments.without.is_empty() {
        document::Extras::default()
    } else {
        extras(&plan, scenarios, &traces)
    };
    let document = document::Document {
        command: command(),
        plan: &plan,
        main: &main,
        overload,
        extras: &extras,
    };
    println!("{}", document.tables());
    if let Some(folder) = &arguments.write {
        write(folder, &document)?;
    }
    Ok(())
}

fn plan(arguments: &Arguments) -> Result<Plan> {
    let wanted = |arm: &Arm| {
        let name = arm.name().to_lowercase();
        *arm == Arm::Greedy
            || arguments.arms.is_empty()
            || arguments.arms.iter().any(|part| name.contains(&part.to_lowercase()))
    };
    let arms = Arm::ALL
        .into_iter()
        .filter(|arm| *arm != Arm::Lookahead)
        .filter(wanted)
        .collect();
    let (seeds, size) = match arguments.quick {
        true => (arguments.seeds.iter().copied().take(1).collect(), arguments.size * 0.1),
        false => (arguments.seeds.clone(), arguments.size),
    };
    if seeds.is_empty() {
        bail!("--seeds names no seed");
    }
    Ok(Plan {
        seeds,
        arms,
        size,
        threads: arguments.threads,
        without: arguments.without.clone(),
    })
}

fn chosen(only: &[String]) -> Result<Vec<Scenario>> {
    let fits = |scenario: &Scenario| {
        only.is_empty()
            || only
                .iter()
                .any(|part| scenario.name.contains(part) || scenario.family.name().contains(part))
    };
    let scenarios: Vec<Scenario> = catalogue().into_iter().filter(fits).collect();
    if scenarios.is_empty() && !asks_for_overload(only) {
        let names: Vec<String> = catalogue().into_iter().map(|scenario| scenario.name).collect();
        bail!("--only fits no scenario; there are: {}", names.join(", "));
    }
    Ok(scenarios)
}

/// The overload is a section of its own: there are no peers in it.
fn asks_for_overload(only: &[String]) -> bool {
    only.iter().any(|part| Family::Overload.name().contains(part.as_str()))
}

/// The load sweep, the references and the ablation, on one seed.
fn extras(plan: &Plan, scenarios: Vec<Scenario>, traces: &Traces) -> document::Extras {
    let one = Plan {
        seeds: plan.seeds.iter().copied().take(1).collect(),
        ..plan.clone()
    };
    let sweep = timed("load sweep", || {
        let run = |(clients, load, scenario): (&'static str, f64, Scenario)| {
            (clients, load, study(vec![scenario], &one, traces))
        };
        load_sweep().into_iter().map(run).collect()
    });
    let small = Plan {
        size: plan.size * PART,
        ..one.clone()
    };
    let both = Plan {
        arms: vec![Arm::Greedy, Arm::Lookahead],
        ..small
    };
    let looked: Vec<Scenario> = scenarios
        .iter()
        .filter(|scenario| scenario.lookahead)
        .cloned()
        .collect();
    let references = timed("references", || study(looked, &both, traces));
    let berth = |seeds: &[u64]| Plan {
        arms: vec![Arm::Berth],
        seeds: seeds.to_vec(),
        ..one.clone()
    };
    let several = |scenario: &&Scenario| !scenario.family.is_about_berth_alone() && scenario.family != Family::Pods64;
    let several: Vec<Scenario> = scenarios.iter().filter(several).cloned().collect();
    let ablation = timed("ablation", || {
        ablated(several, &berth(&one.seeds), traces, report::ablation)
    });
    let hangs = |scenario: &&Scenario| scenario.family == Family::Hangs;
    let hangs: Vec<Scenario> = scenarios.iter().filter(hangs).cloned().collect();
    let hung = timed("ablation where pods hang", || {
        ablated(hangs, &berth(&plan.seeds), traces, report::ablation_of)
    });
    document::Extras {
        sweep,
        references: Some(references),
        ablation: Some(ablation),
        hung: Some(hung),
    }
}

/// Runs the plan with all terms, then without each, and shows what differs.
fn ablated(
    scenarios: Vec<Scenario>,
    plan: &Plan,
    traces: &Traces,
    shown: fn(&Results, &[(String, Results)]) -> String,
) -> String {
    let full = study(scenarios.clone(), plan, traces);
    let run = |term: &str| {
        let plan = Plan {
            without: vec![term.to_owned()],
            ..plan.clone()
        };
        (term.to_owned(), study(scenarios.clone(), &plan, traces))
    };
    let runs: Vec<(String, Results)> = terms().map(run).collect();
    shown(&full, &runs)
}

/// Names of the terms of Berth's cost, each of which the ablation leaves out once; and what is a part of one.
fn terms() -> impl Iterator<Item = &'static str> {
    let terms = Terms::default().named().into_iter().map(|(name, _)| name);
    terms.chain([berth_filter_routing::lab::HEARD])
}

fn timed<T>(what: &str, run: impl FnOnce() -> T) -> T {
    let start = std::time::Instant::now();
    let result = run();
    eprintln!("berth-lab: {what}: {:.0} s", start.elapsed().as_secs_f64());
    result
}

/// What a person types to get the same.
fn command() -> String {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    format!("scripts/lab {}", arguments.join(" ")).trim().to_owned()
}

fn write(folder: &std::path::Path, document: &document::Document<'_>) -> Result<()> {
    let plots = folder.join("lab");
    std::fs::create_dir_all(&plots).with_context(|| format!("{} cannot be made", plots.display()))?;
    for (name, svg) in document.plots() {
        let path = plots.join(name);
        std::fs::write(&path, svg).with_context(|| format!("{} cannot be written", path.display()))?;
    }
    let path = folder.join("lab.md");
    std::fs::write(&path, document.text()).with_context(|| format!("{} cannot be written", path.display()))
}
