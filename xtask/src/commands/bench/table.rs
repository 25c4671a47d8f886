//! The table of results, with budgets beside them.
//!
//! Invariant: all numbers of a row have its unit; a verdict is about exactly the figure that the
//! budget names.
//! Failure: none.

use std::fmt;

use serde_json::{Value, json};

use super::samples::Series;

/// One line of the table.
#[derive(Debug)]
pub(super) struct Row {
    what: String,
    unit: &'static str,
    figures: Figures,
    budget: Option<Budget>,
    why: String,
}

#[derive(Debug)]
enum Figures {
    Many(Series),
    One(f64),
}

#[derive(Debug, Clone, Copy)]
struct Budget {
    figure: Figure,
    most: f64,
}

/// Which number of a row a budget is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Figure {
    /// The median, or the only number.
    P50,
    /// The 99th percentile.
    P99,
}

impl Row {
    /// A row of many numbers.
    pub(super) fn many(what: impl Into<String>, unit: &'static str, series: Series) -> Self {
        Self::new(what.into(), unit, Figures::Many(series))
    }

    /// A row of one number.
    pub(super) fn one(what: impl Into<String>, unit: &'static str, number: f64) -> Self {
        Self::new(what.into(), unit, Figures::One(number))
    }

    fn new(what: String, unit: &'static str, figures: Figures) -> Self {
        Self {
            what,
            unit,
            figures,
            budget: None,
            why: String::new(),
        }
    }

    /// Compares one figure with a budget; `why` is shown when it is over.
    pub(super) fn within(mut self, figure: Figure, most: f64, why: impl Into<String>) -> Self {
        self.budget = Some(Budget { figure, most });
        if self.is_over() {
            self.why = why.into();
        }
        self
    }

    fn figure(&self, figure: Figure) -> f64 {
        match (&self.figures, figure) {
            (Figures::One(number), _) => *number,
            (Figures::Many(series), Figure::P50) => series.p50(),
            (Figures::Many(series), Figure::P99) => series.percentile(99),
        }
    }

    fn is_over(&self) -> bool {
        self.budget
            .is_some_and(|budget| self.figure(budget.figure) > budget.most)
    }

    fn verdict(&self) -> &'static str {
        match self.budget {
            None => "",
            Some(_) if self.is_over() => "over",
            Some(_) => "within",
        }
    }

    fn budget_text(&self) -> String {
        match (self.budget, &self.figures) {
            (None, _) => String::new(),
            (Some(budget), Figures::One(_)) => format!("≤ {}", budget.most),
            (Some(budget), _) => match budget.figure {
                Figure::P50 => format!("p50 ≤ {}", budget.most),
                Figure::P99 => format!("p99 ≤ {}", budget.most),
            },
        }
    }

    fn cells(&self) -> [String; 9] {
        let number = |number: f64| format!("{number:.2}");
        let numbers = match &self.figures {
            Figures::One(only) => [number(*only), String::new(), String::new(), String::new()],
            Figures::Many(series) => [50, 90, 99, 100].map(|p| number(series.percentile(p))),
        };
        let [p50, p90, p99, max] = numbers;
        [
            self.what.clone(),
            p50,
            p90,
            p99,
            max,
            self.unit.to_owned(),
            self.budget_text(),
            self.verdict().to_owned(),
            self.why.clone(),
        ]
    }

    /// The row, for the file.
    pub(super) fn to_json(&self) -> Value {
        let figures = match &self.figures {
            Figures::One(number) => json!({ "value": number }),
            Figures::Many(series) => json!({
                "runs": series.len(),
                "p50": series.p50(),
                "p90": series.percentile(90),
                "p99": series.percentile(99),
                "max": series.percentile(100),
            }),
        };
        json!({
            "what": self.what,
            "unit": self.unit,
            "figures": figures,
            "budget": self.budget.map(|budget| json!({
                "figure": match budget.figure { Figure::P50 => "p50", Figure::P99 => "p99" },
                "most": budget.most,
            })),
            "verdict": self.verdict(),
            "why": self.why,
        })
    }
}

/// Rows below each other in columns.
#[derive(Debug)]
pub(super) struct Table<'a>(pub(super) &'a [Row]);

const HEAD: [&str; 9] = [
    "what", "p50", "p90", "p99", "max", "unit", "budget", "", "why",
];
/// Columns of numbers are at the right.
const NUMBERS: std::ops::RangeInclusive<usize> = 1..=4;

impl fmt::Display for Table<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = vec![HEAD.map(ToOwned::to_owned)];
        lines.extend(self.0.iter().map(Row::cells));
        let width = |column: usize| {
            let cells = lines.iter().map(|cells| cells[column].chars().count());
            cells.max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..HEAD.len()).map(width).collect();
        for (number, cells) in lines.iter().enumerate() {
            let padded = cells.iter().zip(&widths).enumerate();
            let line: Vec<String> = padded
                .map(|(column, (cell, width))| {
                    if NUMBERS.contains(&column) {
                        format!("{cell:>width$}")
                    } else {
                        format!("{cell:<width$}")
                    }
                })
                .collect();
            let end = if number == lines.len() - 1 { "" } else { "\n" };
            write!(formatter, "  {}{end}", line.join("  ").trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series() -> Series {
        Series::new(vec![1.0, 2.0, 30.0]).unwrap()
    }

    #[test]
    fn the_verdict_is_about_the_figure_of_the_budget() {
        let row = |figure, most| Row::many("x", "ms", series()).within(figure, most, "because");
        assert_eq!(row(Figure::P50, 2.0).verdict(), "within");
        assert_eq!(row(Figure::P50, 1.9).verdict(), "over");
        assert_eq!(row(Figure::P99, 2.0).verdict(), "over");
        assert_eq!(Row::one("x", "ms", 3.0).verdict(), "");
    }

    #[test]
    fn only_a_row_over_its_budget_has_a_reason() {
        let row = |most| Row::one("x", "MiB", 3.0).within(Figure::P50, most, "because");
        assert!(row(2.0).cells().contains(&"because".to_owned()));
        assert!(!row(3.0).cells().contains(&"because".to_owned()));
        assert_eq!(row(2.0).to_json()["verdict"], "over");
    }

    #[test]
    fn columns_are_aligned() {
        let rows = [
            Row::many("a long name", "ms", series()).within(Figure::P99, 5.0, "why"),
            Row::one("short", "KiB", 12345.0),
        ];
        let text = Table(&rows).to_string();
        let column = |line: &str, word: &str| line.find(word).map(|at| line[..at].chars().count());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(column(lines[1], "ms"), column(lines[2], "KiB"));
        assert_eq!(column(lines[0], "unit"), column(lines[1], "ms"));
    }
}
