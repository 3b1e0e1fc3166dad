//! The rows of the report, and the two ways they are shown: a table in a terminal, and `docs/bench.md`.
//!
//! A ratio is what carries over to another machine, so a row has one wherever there is something to
//! compare with in the same run.

use std::fmt::Write as _;

/// One measured thing.
#[derive(Clone, Debug)]
pub struct Row {
    /// What was measured.
    pub what: String,
    /// The number.
    pub value: f64,
    /// Its unit.
    pub unit: &'static str,
    /// Against the row that its group is compared with; `None` = it is that row, or stands alone.
    pub ratio: Option<f64>,
}

/// Rows that are compared with each other.
#[derive(Clone, Debug)]
pub struct Group {
    /// The question that the rows answer.
    pub title: String,
    /// What a ratio is against.
    pub base: &'static str,
    /// The rows.
    pub rows: Vec<Row>,
}

impl Group {
    /// An empty group; `base` says what its ratios are against.
    pub fn new(title: &str, base: &'static str) -> Self {
        eprintln!("measuring: {title}");
        Self {
            title: title.to_owned(),
            base,
            rows: Vec::new(),
        }
    }

    /// Adds a row, compared with the group's first row of the same unit.
    pub fn add(&mut self, what: impl Into<String>, value: f64, unit: &'static str) {
        let base = self.rows.iter().find(|row| row.unit == unit).map(|row| row.value);
        let ratio = base.filter(|base| *base > 0.0).map(|base| value / base);
        self.add_against(what, value, unit, ratio);
    }

    /// Adds a row with a ratio of its own.
    pub fn add_against(&mut self, what: impl Into<String>, value: f64, unit: &'static str, ratio: Option<f64>) {
        self.rows.push(Row {
            what: what.into(),
            value,
            unit,
            ratio,
        });
    }
}

/// The table for a terminal.
pub fn text(groups: &[Group]) -> String {
    let all = || groups.iter().flat_map(|group| &group.rows);
    let width = all().map(|row| row.what.chars().count()).max().unwrap_or(0);
    let unit = all().map(|row| row.unit.len()).max().unwrap_or(0);
    let mut out = String::new();
    for group in groups {
        // Writing to a string does not fail.
        let _ = writeln!(out, "\n{}", group.title);
        for row in &group.rows {
            let _ = writeln!(
                out,
                "  {:<width$}  {:>12}  {:<unit$}  {:>8}",
                row.what,
                number(row.value),
                row.unit,
                ratio(row)
            );
        }
    }
    out
}

/// The same as Markdown, under a header that says how it was made.
pub fn markdown(groups: &[Group], machine: &str, command: &str) -> String {
    let mut out = format!(
        "# What Berth costs\n\n\
         Made by `{command}`; `tests/bench/README.md` says what each number means. Instructions are wasm operators as\n\
         wasmtime counts fuel: exact, and the same on every machine. Times are of this machine: {machine}.\n\
         Ratios carry over, times do not.\n"
    );
    for group in groups {
        let _ = writeln!(
            out,
            "\n## {}\n\n| what | value | unit | ratio to {} |\n|---|---:|---|---:|",
            group.title, group.base
        );
        for row in &group.rows {
            let _ = writeln!(
                out,
                "| {} | {} | {} | {} |",
                row.what,
                number(row.value),
                row.unit,
                ratio(row)
            );
        }
    }
    out
}

fn ratio(row: &Row) -> String {
    row.ratio.map_or_else(String::new, |ratio| format!("x{ratio:.2}"))
}

/// Two decimals below 100, thousands apart above.
fn number(value: f64) -> String {
    if value.abs() < 100.0 {
        return format!("{value:.2}");
    }
    let digits = format!("{:.0}", value.abs());
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    if value < 0.0 { format!("-{out}") } else { out }
}
