//! Which plots there are.

use crate::arm::Arm;
use crate::plot::{Axis, Line, Panel, figure};
use crate::record::quantile;
use crate::scenario::Family;
use crate::study::Results;

/// Quantiles drawn of each distribution; closer towards its slow end.
const QUANTILES: [f64; 33] = [
    0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.84,
    0.88, 0.91, 0.93, 0.95, 0.96, 0.97, 0.98, 0.985, 0.99, 0.993, 0.996, 0.999, 1.0,
];

/// Per family: cumulative times to first token of each scenario, first seed. (file name, SVG)
#[must_use]
pub fn cdf_plots(results: &Results) -> Vec<(String, String)> {
    let families = Family::ALL.into_iter().filter(|family| !family.is_about_berth_alone());
    families.filter_map(|family| cdf_plot(results, family)).collect()
}

fn cdf_plot(results: &Results, family: Family) -> Option<(String, String)> {
    let mut panels = Vec::new();
    for (scenario, cells) in results
        .scenarios
        .iter()
        .zip(&results.cells)
        .filter(|(scenario, _)| scenario.family == family)
    {
        let line = |(arm, cell): (&Arm, &crate::study::Cell)| {
            let sorted = &cell.figures.first()?.ttft;
            let points = QUANTILES.iter().map(|q| (quantile(sorted, *q), *q)).collect();
            Some(Line { arm: *arm, points })
        };
        panels.push(Panel {
            title: scenario.name.clone(),
            lines: cells.iter().filter_map(line).collect(),
        });
    }
    if panels.is_empty() {
        return None;
    }
    let x = |panel: &Panel| {
        Axis::decades(
            "time to first token",
            panel
                .lines
                .iter()
                .flat_map(|line| line.points.iter().map(|point| point.0)),
        )
    };
    let y = |_: &Panel| Axis {
        label: "part of the requests",
        log: false,
        range: (0.0, 1.0),
    };
    let title = format!("{}: part of the requests with their first token by then", family.name());
    Some((format!("cdf-{}.svg", family.name()), figure(&title, &panels, x, y)))
}

/// Mean time to first token against load: `runs` are (clients, load, result with one scenario).
#[must_use]
pub fn load_plot(runs: &[(&'static str, f64, Results)]) -> (String, String) {
    let mut panels: Vec<Panel> = Vec::new();
    for (clients, load, results) in runs {
        let title = format!("{clients}, 8 H100");
        if panels.iter().all(|panel| panel.title != title) {
            panels.push(Panel {
                title: title.clone(),
                lines: Vec::new(),
            });
        }
        let Some(panel) = panels.iter_mut().find(|panel| panel.title == title) else {
            continue;
        };
        for (arm, cell) in &results.cells[0] {
            let point = (*load, cell.median(|figures| figures.ttft_mean));
            match panel.lines.iter_mut().find(|line| line.arm == *arm) {
                Some(line) => line.points.push(point),
                None => panel.lines.push(Line {
                    arm: *arm,
                    points: vec![point],
                }),
            }
        }
    }
    let (low, high) = runs.iter().fold((f64::INFINITY, 0.0f64), |(low, high), run| {
        (low.min(run.1), high.max(run.1))
    });
    let x = move |_: &Panel| Axis {
        label: "rate, in parts of the scenario's",
        log: false,
        range: (low, high),
    };
    let y = |panel: &Panel| {
        Axis::decades(
            "mean time to first token",
            panel
                .lines
                .iter()
                .flat_map(|line| line.points.iter().map(|point| point.1)),
        )
    };
    (
        "load.svg".to_owned(),
        figure("Mean time to first token against load", &panels, x, y),
    )
}
