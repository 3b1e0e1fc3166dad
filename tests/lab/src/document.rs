//! docs/lab.md, written from one run.

use crate::report;
use crate::scenario::Family;
use crate::study::{Plan, Results};
use std::fmt::Write as _;

/// What runs besides the scenarios.
#[derive(Debug, Default)]
pub struct Extras {
    /// (clients, load, result).
    pub sweep: Vec<(&'static str, f64, Results)>,
    /// Greedy and lookahead.
    pub references: Option<Results>,
    /// The table of all families.
    pub ablation: Option<String>,
    /// The one of the pods that hang.
    pub hung: Option<String>,
}

/// All of a run.
#[derive(Debug)]
pub struct Document<'a> {
    /// What made it.
    pub command: String,
    /// What ran.
    pub plan: &'a Plan,
    /// The scenarios.
    pub main: &'a Results,
    /// The tables of the overload.
    pub overload: Option<String>,
    /// What else.
    pub extras: &'a Extras,
}

const HEAD: &str = include_str!("document/head.md");
const FOOT: &str = include_str!("document/foot.md");

impl Document<'_> {
    /// The tables alone.
    #[must_use]
    pub fn tables(&self) -> String {
        let mut text = String::new();
        let mut section = |title: &str, body: &str| {
            if body.lines().count() > 2 {
                let _ = write!(text, "\n## {title}\n\n{body}");
            }
        };
        if !self.main.scenarios.is_empty() {
            section("How far from clairvoyance", report::families(self.main).trim_start());
        }
        section("Berth and the best peer", &report::against_the_best(self.main));
        section("Workers of one proxy", &report::alone(self.main, Family::Workers));
        section("Scrape intervals", &report::alone(self.main, Family::Scrape));
        if let Some(overload) = &self.overload {
            section("Overload", &format!("{OVERLOAD}{overload}"));
        }
        if let Some(references) = &self.extras.references {
            section("Is the reference strong?", &report::references(references));
        }
        if let Some(ablation) = &self.extras.ablation {
            let hung = self.extras.hung.as_deref().unwrap_or_default();
            section("What each term is worth", &format!("{ABLATION}{ablation}{HUNG}{hung}"));
        }
        for family in Family::ALL {
            section(
                &format!("All numbers: {}", family.name()),
                report::details(self.main, family).trim_start(),
            );
        }
        text
    }

    /// The whole text.
    #[must_use]
    pub fn text(&self) -> String {
        let seeds: Vec<String> = self.plan.seeds.iter().map(u64::to_string).collect();
        let mut text = HEAD
            .replace("{command}", &self.command)
            .replace("{seeds}", &seeds.join(", "));
        text.push_str(&self.tables());
        text.push_str("\n## Plots\n\n");
        for (name, _) in self.plots() {
            let _ = writeln!(text, "![{name}](lab/{name})\n");
        }
        text.push_str(FOOT);
        text
    }

    /// (file name, SVG).
    #[must_use]
    pub fn plots(&self) -> Vec<(String, String)> {
        let mut plots = report::cdf_plots(self.main);
        if !self.extras.sweep.is_empty() {
            plots.push(report::load_plot(&self.extras.sweep));
        }
        plots
    }
}

const OVERLOAD: &str = "Berth with its admission (docs/configuration.md) against Berth without, first seed: four pods that can do about 45 \
such requests a second. Counted are requests that came between the 10th and the 50th second, and tokens of prompts and answers whose \
first token came then; TTFT is of those that had one, with their time in the queue. Priorities: 65 requests a second, a fifth of them \
`chat` (priority 10), the others `batch` (-10, with a patience of 500 ms); with long answers the pods lack memory, not time. Tenants: 30 requests a second of one, 300 of the other.\n";

const ABLATION: &str = "Berth without a term, relative to Berth: mean / p99 time to first token, geometric mean over a family's \
scenarios, first seed. Below 1 the term does harm there; noise is about 0.03. `heard` is no term, but what own streams show, a part of \
`queue` and of `overdue`.\n\n";

const HUNG: &str = "\nWhere pods seem to serve and do not, scenario by scenario, all seeds: mean / p99 / requests lost, which failed or \
whose client left in vain. `nothing` is left out in the first row, in milliseconds; the others are relative to it, with their own \
number lost. `warming` is off by default: `rolling-restart` alone sets `slow_start`, to 20 s.\n\n";
