//! SVG plots for people: cumulative times to first token, and time against load.

use crate::arm::Arm;
use std::fmt::Write as _;

const PANEL: (f64, f64) = (380.0, 250.0);
const MARGIN: (f64, f64) = (52.0, 34.0);
const COLUMNS: usize = 2;

/// One line of a panel; x in milliseconds or load, y as it is.
#[derive(Debug, Clone)]
pub struct Line {
    /// Whose.
    pub arm: Arm,
    /// In order of x.
    pub points: Vec<(f64, f64)>,
}

/// One panel.
#[derive(Debug, Clone)]
pub struct Panel {
    /// Above it.
    pub title: String,
    /// Its lines.
    pub lines: Vec<Line>,
}

/// An axis: what it shows, whether in decades, and from where to where.
#[derive(Debug, Clone)]
pub struct Axis {
    /// Beside it.
    pub label: &'static str,
    /// Powers of ten.
    pub log: bool,
    /// First and last value.
    pub range: (f64, f64),
}

impl Axis {
    /// Decades that hold all these values, at most six of them.
    #[must_use]
    pub fn decades(label: &'static str, values: impl Iterator<Item = f64>) -> Self {
        let (mut low, mut high) = (f64::INFINITY, 1.0f64);
        for value in values.filter(|value| *value > 0.0) {
            (low, high) = (low.min(value), high.max(value));
        }
        let high = high.log10().ceil();
        let low = low.min(1e9).log10().floor().max(high - 6.0).min(high - 1.0);
        Self {
            label,
            log: true,
            range: (10f64.powf(low), 10f64.powf(high)),
        }
    }

    /// Where a value stands, 0 to 1.
    fn place(&self, value: f64) -> f64 {
        let (low, high) = self.range;
        let value = value.clamp(low, high);
        if self.log {
            (value / low).log10() / (high / low).log10()
        } else {
            (value - low) / (high - low)
        }
    }

    fn ticks(&self) -> Vec<(f64, String)> {
        let (low, high) = self.range;
        if !self.log {
            return (0..=4)
                .map(|n| low + (high - low) * f64::from(n) / 4.0)
                .map(|value| (value, format!("{value:.2}")))
                .collect();
        }
        let (first, last) = (low.log10().round() as i32, high.log10().round() as i32);
        let name = |value: f64| {
            if value >= 1000.0 {
                format!("{} s", value / 1000.0)
            } else {
                format!("{value} ms")
            }
        };
        (first..=last)
            .map(|power| 10f64.powi(power))
            .map(|value| (value, name(value)))
            .collect()
    }
}

fn color(arm: Arm) -> &'static str {
    match arm {
        Arm::Greedy => "#000000",
        Arm::Lookahead => "#777777",
        Arm::Berth => "#d62728",
        Arm::EppDefault => "#1f77b4",
        Arm::EppTokens => "#17becf",
        Arm::EppLora => "#3949ab",
        Arm::Smg => "#2ca02c",
        Arm::Chwbl => "#bcbd22",
        Arm::LeastFull => "#ff7f0e",
        Arm::LeastP2c => "#ffbb78",
        Arm::RoundRobin => "#9467bd",
        Arm::Random => "#c49c94",
    }
}

fn style(arm: Arm) -> &'static str {
    match arm {
        Arm::Greedy => r#"stroke-width="1.8" stroke-dasharray="5 3""#,
        Arm::Berth => r#"stroke-width="2.6""#,
        _ => r#"stroke-width="1.3""#,
    }
}

/// Panels side by side, with one legend.
#[must_use]
pub fn figure(title: &str, panels: &[Panel], x: impl Fn(&Panel) -> Axis, y: impl Fn(&Panel) -> Axis) -> String {
    let columns = COLUMNS.min(panels.len().max(1));
    let rows = panels.len().div_ceil(columns);
    let cell = (PANEL.0 + MARGIN.0 + 24.0, PANEL.1 + MARGIN.1 * 2.0);
    let (width, height) = (
        cell.0 * columns as f64 + 190.0,
        (cell.1 * rows as f64 + 40.0).max(330.0),
    );
    let mut svg = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0} {height:.0}" width="{width:.0}" height="{height:.0}" font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="#fff"/><text x="12" y="22" font-size="15">{title}</text>"##
    );
    for (index, panel) in panels.iter().enumerate() {
        let left = cell.0 * (index % columns) as f64 + MARGIN.0;
        let top = cell.1 * (index / columns) as f64 + MARGIN.1 + 30.0;
        draw(&mut svg, panel, &x(panel), &y(panel), (left, top));
    }
    let mut arms: Vec<Arm> = panels
        .iter()
        .flat_map(|panel| panel.lines.iter().map(|line| line.arm))
        .collect();
    arms.sort_by_key(|arm| Arm::ALL.iter().position(|other| other == arm));
    arms.dedup();
    for (index, arm) in arms.into_iter().enumerate() {
        let (left, top) = (width - 180.0, 60.0 + 20.0 * index as f64);
        let _ = write!(
            svg,
            r#"<line x1="{left:.0}" y1="{top:.0}" x2="{:.0}" y2="{top:.0}" stroke="{}" {}/><text x="{:.0}" y="{:.0}">{}</text>"#,
            left + 26.0,
            color(arm),
            style(arm),
            left + 32.0,
            top + 4.0,
            arm.name()
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn draw(svg: &mut String, panel: &Panel, x: &Axis, y: &Axis, (left, top): (f64, f64)) {
    let (width, height) = PANEL;
    // Writing to a String cannot fail.
    let _ = write!(
        svg,
        r##"<rect x="{left:.0}" y="{top:.0}" width="{width}" height="{height}" fill="none" stroke="#999"/><text x="{left:.0}" y="{:.0}" font-weight="bold">{}</text>"##,
        top - 7.0,
        panel.title
    );
    for (value, name) in x.ticks() {
        let at = left + width * x.place(value);
        let _ = write!(
            svg,
            r##"<line x1="{at:.1}" y1="{top:.0}" x2="{at:.1}" y2="{:.0}" stroke="#eee"/><text x="{at:.1}" y="{:.0}" text-anchor="middle">{name}</text>"##,
            top + height,
            top + height + 14.0
        );
    }
    for (value, name) in y.ticks() {
        let at = top + height * (1.0 - y.place(value));
        let _ = write!(
            svg,
            r##"<line x1="{left:.0}" y1="{at:.1}" x2="{:.0}" y2="{at:.1}" stroke="#eee"/><text x="{:.0}" y="{:.1}" text-anchor="end">{name}</text>"##,
            left + width,
            left - 5.0,
            at + 4.0
        );
    }
    let _ = write!(
        svg,
        r#"<text x="{:.0}" y="{:.0}" text-anchor="middle" font-style="italic">across: {}; up: {}</text>"#,
        left + width / 2.0,
        top + height + 28.0,
        x.label,
        y.label
    );
    // Berth and the reference on top.
    let mut lines: Vec<&Line> = panel.lines.iter().collect();
    lines.sort_by_key(|line| (line.arm.is_reference(), line.arm == Arm::Berth));
    for line in lines {
        let at = |(a, b): &(f64, f64)| {
            format!(
                "{:.1},{:.1}",
                left + width * x.place(*a),
                top + height * (1.0 - y.place(*b))
            )
        };
        let points: Vec<String> = line.points.iter().map(at).collect();
        let _ = write!(
            svg,
            r#"<polyline fill="none" stroke="{}" {} points="{}"/>"#,
            color(line.arm),
            style(line.arm),
            points.join(" ")
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decades_hold_all_values() {
        let axis = Axis::decades("x", [30.0, 4_000.0].into_iter());
        assert_eq!(axis.range, (10.0, 10_000.0));
        assert!((axis.place(1_000.0) - 2.0 / 3.0).abs() < 1e-9);
        assert_eq!(
            axis.ticks().iter().map(|tick| tick.1.as_str()).collect::<Vec<_>>(),
            ["10 ms", "100 ms", "1 s", "10 s"]
        );
    }
}
