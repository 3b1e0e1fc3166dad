//! The reasons of a decision as a table that a person reads.

use core::fmt::{self, Write};

use super::{Considered, Why};

/// The table. The endpoints come first and are numbered; terms that are zero everywhere are left out.
#[must_use]
pub fn table(why: &Why) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = head(&mut out, why);
    let _ = rows(&mut out, why);
    let _ = foot(&mut out, why);
    out
}

fn head(out: &mut String, why: &Why) -> fmt::Result {
    let model = why.model.as_deref().unwrap_or("(base)");
    writeln!(
        out,
        "pool {}  model {}  prompt {} tokens  need {} tokens",
        why.pool,
        model.escape_debug(),
        why.prompt.0,
        why.need.0
    )?;
    if let Some(asked) = &why.asked {
        writeln!(out, "asked for as {}", asked.escape_debug())?;
    }
    match (why.reason, why.considered.first(), why.predicted) {
        (Some(reason), ..) => writeln!(out, "not routed: {}", reason.as_str()),
        (None, Some(first), Some(predicted)) => {
            writeln!(out, "to {}, first token expected after {} ms", first.pod, predicted.0)
        }
        _ => Ok(()),
    }
}

fn rows(out: &mut String, why: &Why) -> fmt::Result {
    if why.considered.is_empty() {
        return Ok(());
    }
    let named = |one: &Considered| one.terms.named();
    let shown = |term: usize| {
        let value = |one| named(one).get(term).map_or(0.0, |(_, value)| *value);
        why.considered.iter().any(|one| value(one) >= 0.5)
    };
    let cached = why.considered.iter().any(|one| one.cached.0 > 0);
    let mut lines = vec![header(&shown, cached)];
    for (rank, one) in (1..).zip(&why.considered) {
        lines.push(line(rank, one, &shown, cached));
    }
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            lines
                .iter()
                .filter_map(|line| line.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    writeln!(out)?;
    for line in &lines {
        let mut text = String::new();
        for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
            // Words to the left, numbers to the right.
            if (1..=WORDS).contains(&column) {
                write!(text, "{cell:<width$}  ")?
            } else {
                write!(text, "{cell:>width$}  ")?
            }
        }
        writeln!(out, "{}", text.trim_end())?;
    }
    Ok(())
}

/// Columns of text after the rank: pod, adapter, reading.
const WORDS: usize = 3;

fn header(shown: &impl Fn(usize) -> bool, cached: bool) -> Vec<String> {
    let terms = crate::cost::Terms::default().named();
    let terms = terms
        .into_iter()
        .enumerate()
        .filter(|(term, _)| shown(*term))
        .map(|(_, (name, _))| name);
    let fixed = ["", "pod", "adapter", "reading", "cost ms"];
    fixed
        .into_iter()
        .chain(terms)
        .chain(cached.then_some("cached tokens"))
        .chain(["free tokens"])
        .map(str::to_owned)
        .collect()
}

fn line(rank: usize, one: &Considered, shown: &impl Fn(usize) -> bool, cached: bool) -> Vec<String> {
    let pod = one.name.as_ref().map_or_else(
        || one.pod.to_string(),
        |name| format!("{} ({})", one.pod, name.escape_debug()),
    );
    let mut cells = vec![
        rank.to_string(),
        pod,
        one.tier.as_str().to_owned(),
        one.stage.as_str().to_owned(),
        format!("{:.0}", one.cost),
    ];
    let terms = one
        .terms
        .named()
        .into_iter()
        .enumerate()
        .filter(|(term, _)| shown(*term));
    cells.extend(terms.map(|(_, (_, value))| format!("{value:.0}")));
    cells.extend(cached.then(|| one.cached.0.to_string()));
    cells.push(one.free.map_or_else(|| "?".to_owned(), |free| free.to_string()));
    cells
}

fn foot(out: &mut String, why: &Why) -> fmt::Result {
    writeln!(out)?;
    if let Some(rung) = &why.rung {
        writeln!(out, "priced {} pods, best reading: {}", why.candidates, rung.as_str())?;
    }
    let excluded: Vec<_> = why
        .excluded
        .named()
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .collect();
    for (rule, count) in excluded {
        writeln!(out, "left out: {count} {rule}")?;
    }
    for note in &why.notes {
        writeln!(out, "note: {}", note.sentence())?;
    }
    Ok(())
}
