//! From results to what people read: one Markdown text and a few SVGs.

mod plots;
pub mod table;

pub use plots::{cdf_plots, load_plot};
use table::Table;

use crate::arm::Arm;
use crate::record::Figures;
use crate::scenario::{Family, Scenario};
use crate::study::{Cell, Results};
use std::fmt::Write as _;

type Of = fn(&Figures) -> f64;

const MEAN: Of = |figures| figures.ttft_mean;
const P99: Of = |figures| figures.ttft_p99;
const LOST: Of = |figures| figures.failed + figures.in_vain;

/// Arms of the ratio tables, in order.
fn ranked(results: &Results) -> Vec<Arm> {
    let ran = |arm: &Arm| results.cells.iter().any(|cells| cells.contains_key(arm));
    Arm::ALL
        .into_iter()
        .filter(ran)
        .filter(|arm| !arm.is_reference())
        .collect()
}

fn of_family(results: &Results, family: Family) -> impl Iterator<Item = usize> {
    let scenarios = results.scenarios.iter().enumerate();
    scenarios
        .filter(move |(_, scenario)| scenario.family == family)
        .map(|(index, _)| index)
}

fn ratio(results: &Results, index: usize, arm: Arm, of: Of) -> Option<f64> {
    let cells = results.cells.get(index)?;
    let (one, reference) = (cells.get(&arm)?.median(of), cells.get(&Arm::Greedy)?.median(of));
    (reference > 0.0).then(|| one / reference)
}

/// Geometric mean over a family's scenarios.
fn family_ratio(results: &Results, family: Family, arm: Arm, of: Of) -> Option<f64> {
    let ratios: Option<Vec<f64>> = of_family(results, family)
        .map(|index| ratio(results, index, arm, of))
        .collect();
    let ratios = ratios.filter(|ratios| !ratios.is_empty())?;
    Some((ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp())
}

fn shown(ratio: Option<f64>) -> String {
    match ratio {
        None => "-".to_owned(),
        Some(ratio) if ratio >= 10.0 => format!("{ratio:.0}"),
        Some(ratio) => format!("{ratio:.2}"),
    }
}

/// Families by arms: how far each is from the greedy reference.
#[must_use]
pub fn families(results: &Results) -> String {
    let arms = ranked(results);
    let mut text = String::new();
    for (title, of, aim) in [("Mean", MEAN, 0), ("p99", P99, 1)] {
        let _ = writeln!(
            text,
            "\n**{title} time to first token, relative to clairvoyant greedy**\n"
        );
        let heads = ["family", "aim"].into_iter().chain(arms.iter().map(|arm| arm.name()));
        let mut table = Table::new(heads);
        for family in Family::ALL.into_iter().filter(|family| !family.is_about_berth_alone()) {
            let aimed = family.aim().map(|aims| if aim == 0 { aims.0 } else { aims.1 });
            let row = [family.name().to_owned(), shown(aimed)].into_iter();
            table.row(row.chain(arms.iter().map(|arm| shown(family_ratio(results, family, *arm, of)))));
        }
        text.push_str(&table.render());
    }
    text
}

/// Berth against the best peer, scenario by scenario.
#[must_use]
pub fn against_the_best(results: &Results) -> String {
    let heads = [
        "scenario",
        "berth / greedy",
        "p99",
        "best peer",
        "its mean / greedy",
        "its p99",
        "goodput berth",
        "greedy",
        "best peer's",
        "lost berth",
        "best peer's",
    ];
    let mut table = Table::new(heads);
    for (index, scenario) in results
        .scenarios
        .iter()
        .enumerate()
        .filter(|(_, scenario)| !scenario.family.is_about_berth_alone())
    {
        let cells = &results.cells[index];
        let peers = cells.iter().filter(|(arm, _)| arm.is_peer());
        let Some((best, cell)) = peers.min_by(|a, b| a.1.median(MEAN).total_cmp(&b.1.median(MEAN))) else {
            continue;
        };
        let goodput = |cell: Option<&Cell>| {
            cell.map_or("-".to_owned(), |cell| {
                format!("{:.3}", cell.median(|figures| figures.goodput))
            })
        };
        table.row([
            scenario.name.clone(),
            shown(ratio(results, index, Arm::Berth, MEAN)),
            shown(ratio(results, index, Arm::Berth, P99)),
            best.name().to_owned(),
            shown(ratio(results, index, *best, MEAN)),
            shown(ratio(results, index, *best, P99)),
            goodput(cells.get(&Arm::Berth)),
            goodput(cells.get(&Arm::Greedy)),
            goodput(Some(cell)),
            cells
                .get(&Arm::Berth)
                .map_or("-".to_owned(), |cell| number(cell.median(LOST))),
            number(cell.median(LOST)),
        ]);
    }
    table.render()
}

/// Berth against itself with other numbers of workers, or scrape intervals.
#[must_use]
pub fn alone(results: &Results, family: Family) -> String {
    let mut table = Table::new(["scenario", "TTFT mean, ms", "p99, ms", "mean / greedy", "p99 / greedy"]);
    for index in of_family(results, family) {
        let Some(cell) = results.cells[index].get(&Arm::Berth) else {
            continue;
        };
        table.row([
            results.scenarios[index].name.clone(),
            spread(cell, MEAN),
            spread(cell, P99),
            shown(ratio(results, index, Arm::Berth, MEAN)),
            shown(ratio(results, index, Arm::Berth, P99)),
        ]);
    }
    table.render()
}

/// Greedy beside the lookahead.
#[must_use]
pub fn references(results: &Results) -> String {
    let mut table = Table::new(["scenario", "greedy mean, ms", "lookahead / greedy, mean", "p99"]);
    for (index, scenario) in results.scenarios.iter().enumerate() {
        let Some(greedy) = results.cells[index].get(&Arm::Greedy) else {
            continue;
        };
        let of = |of: Of| shown(ratio(results, index, Arm::Lookahead, of));
        table.row([scenario.name.clone(), number(greedy.median(MEAN)), of(MEAN), of(P99)]);
    }
    table.render()
}

/// Berth without a term, relative to Berth: `runs` are (term, results).
#[must_use]
pub fn ablation(full: &Results, runs: &[(String, Results)]) -> String {
    let families: Vec<Family> = Family::ALL
        .into_iter()
        .filter(|family| of_family(full, *family).next().is_some())
        .collect();
    let heads = ["without"]
        .into_iter()
        .chain(families.iter().map(|family| family.name()));
    let mut table = Table::new(heads);
    for (term, results) in runs {
        let one = |family: &Family| {
            let values: Vec<String> = [MEAN, P99]
                .into_iter()
                .map(|of| shown(relative(full, results, *family, of)))
                .collect();
            values.join(" / ")
        };
        table.row(std::iter::once(term.clone()).chain(families.iter().map(one)));
    }
    table.render()
}

/// The same, scenario by scenario, and with the requests that were lost: where a term is about pods that do not answer,
/// these are its worth.
#[must_use]
pub fn ablation_of(full: &Results, runs: &[(String, Results)]) -> String {
    let names = full.scenarios.iter().map(|scenario| scenario.name.as_str());
    let mut table = Table::new(std::iter::once("without").chain(names));
    let berth =
        |results: &'_ Results, index: usize, of: Of| Some(results.cells.get(index)?.get(&Arm::Berth)?.median(of));
    let indices = || 0..full.scenarios.len();
    let all = indices().map(|index| [MEAN, P99, LOST].map(|of| berth(full, index, of).map_or("-".to_owned(), number)));
    table.row(std::iter::once("nothing".to_owned()).chain(all.map(|cell| cell.join(" / "))));
    for (term, results) in runs {
        let cell = |index: usize| {
            let ratio = |of: Of| {
                shown(
                    berth(results, index, of)
                        .zip(berth(full, index, of))
                        .map(|(one, all)| one / all),
                )
            };
            let lost = berth(results, index, LOST).map_or("-".to_owned(), number);
            [ratio(MEAN), ratio(P99), lost].join(" / ")
        };
        table.row(std::iter::once(term.clone()).chain(indices().map(cell)));
    }
    table.render()
}

fn relative(full: &Results, without: &Results, family: Family, of: Of) -> Option<f64> {
    let value =
        |results: &Results, index: usize| results.cells.get(index)?.get(&Arm::Berth).map(|cell| cell.median(of));
    let logs: Option<Vec<f64>> = of_family(full, family)
        .map(|index| Some((value(without, index)? / value(full, index)?).ln()))
        .collect();
    let logs = logs.filter(|logs| !logs.is_empty())?;
    Some((logs.iter().sum::<f64>() / logs.len() as f64).exp())
}

/// Everything about every scenario of a family.
#[must_use]
pub fn details(results: &Results, family: Family) -> String {
    let mut text = String::new();
    for index in of_family(results, family) {
        let scenario = &results.scenarios[index];
        let _ = writeln!(text, "\n**{}** ({})\n", scenario.name, setting(scenario));
        let heads = [
            "arm",
            "TTFT mean",
            "p50",
            "p90",
            "p99",
            "E2E p50",
            "p99",
            "ITL p99",
            "prefix hits",
            "adapter loads",
            "preemptions",
            "goodput",
            "failed",
            "in vain",
        ];
        let mut table = Table::new(heads);
        for arm in Arm::ALL {
            if let Some(cell) = results.cells[index].get(&arm) {
                table.row(detail(arm, cell));
            }
        }
        text.push_str(&table.render());
    }
    text
}

fn setting(scenario: &Scenario) -> String {
    let mut classes: Vec<(u64, usize)> = Vec::new();
    for pod in &scenario.pods {
        let rate = 1_000_000_000 / pod.cost.prefill_token_ns;
        match classes.iter_mut().find(|class| class.0 == rate) {
            Some(class) => class.1 += 1,
            None => classes.push((rate, 1)),
        }
    }
    let pods: Vec<String> = classes
        .iter()
        .map(|(rate, count)| format!("{count} pods of {rate} prompt tokens/s"))
        .collect();
    let (proxies, workers) = (scenario.proxies, scenario.workers);
    format!("{}; {proxies} proxies of {workers} workers", pods.join(", "))
}

fn detail(arm: Arm, cell: &Cell) -> Vec<String> {
    let of = |of: Of| number(cell.median(of));
    vec![
        arm.name().to_owned(),
        spread(cell, MEAN),
        of(|figures| figures.ttft_p50),
        of(|figures| figures.ttft_p90),
        spread(cell, P99),
        of(|figures| figures.e2e_p50),
        of(|figures| figures.e2e_p99),
        of(|figures| figures.itl_p99),
        format!("{:.0} %", cell.median(|figures| figures.hits) * 100.0),
        of(|figures| figures.loads),
        of(|figures| figures.preemptions),
        format!("{:.3}", cell.median(|figures| figures.goodput)),
        of(|figures| figures.failed),
        of(|figures| figures.in_vain),
    ]
}

/// Median, least and greatest of the seeds.
fn spread(cell: &Cell, of: Of) -> String {
    let (low, high) = cell.range(of);
    format!("{} [{}..{}]", number(cell.median(of)), number(low), number(high))
}

fn number(value: f64) -> String {
    format!("{value:.0}")
}
