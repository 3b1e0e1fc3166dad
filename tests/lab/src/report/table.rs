//! A Markdown table whose columns line up, so that a terminal shows it as well as a browser.

/// Rows of cells under heads.
#[derive(Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Only heads.
    pub fn new<'a>(heads: impl IntoIterator<Item = &'a str>) -> Self {
        Self {
            rows: vec![heads.into_iter().map(str::to_owned).collect()],
        }
    }

    /// One row more.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The text. The first column is flush left, the others right.
    pub fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let length = |row: &Vec<String>, column: usize| row.get(column).map_or(0, |cell| cell.chars().count());
        let widths: Vec<usize> = (0..columns)
            .map(|column| {
                self.rows
                    .iter()
                    .map(|row| length(row, column))
                    .max()
                    .unwrap_or(0)
                    .max(3)
            })
            .collect();
        let mut text = String::new();
        for (index, row) in self.rows.iter().enumerate() {
            let cell = |(column, cell): (usize, &String)| {
                let width = widths[column];
                if column == 0 {
                    format!("{cell:<width$}")
                } else {
                    format!("{cell:>width$}")
                }
            };
            let cells: Vec<String> = row.iter().enumerate().map(cell).collect();
            text.push_str(&format!("| {} |\n", cells.join(" | ")));
            if index == 0 {
                let rule = |(column, width): (usize, &usize)| {
                    if column == 0 {
                        "-".repeat(*width)
                    } else {
                        format!("{}:", "-".repeat(width - 1))
                    }
                };
                let rules: Vec<String> = widths.iter().enumerate().map(rule).collect();
                text.push_str(&format!("| {} |\n", rules.join(" | ")));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::Table;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(["arm", "ms"]);
        table.row(["berth".to_owned(), "7".to_owned()]);
        assert_eq!(table.render(), "| arm   |  ms |\n| ----- | --: |\n| berth |   7 |\n");
    }
}
