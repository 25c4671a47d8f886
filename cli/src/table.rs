//! Tables and ages as text.
//!
//! Invariant: nothing that a pod or a guest chose reaches the terminal as a control character.
//! Failure: none.

use std::time::Duration;

/// Columns aligned to the left, two spaces apart, without spaces at the end of lines.
pub(crate) fn render<const N: usize>(header: [&str; N], rows: &[[String; N]]) -> String {
    let mut table = Table::new(&header);
    for row in rows {
        table.measure(row);
    }
    let body: String = rows
        .iter()
        .map(|row| table.row(row, |_, text| text))
        .collect();
    format!("{}{body}", table.header())
}

/// Columns that may become wider while lines are printed one after another.
#[derive(Debug)]
pub(crate) struct Table {
    header: Vec<String>,
    widths: Vec<usize>,
}

impl Table {
    pub(crate) fn new(header: &[&str]) -> Self {
        Self {
            header: header.iter().map(ToString::to_string).collect(),
            widths: header.iter().map(|name| name.len()).collect(),
        }
    }

    /// Makes the columns wide enough for that row.
    pub(crate) fn measure(&mut self, cells: &[String]) {
        for (width, cell) in self.widths.iter_mut().zip(cells) {
            *width = (*width).max(cell.chars().count());
        }
    }

    pub(crate) fn header(&self) -> String {
        self.row(&self.header, |_, text| text)
    }

    /// One line; `paint` gets each cell's column and its text, which has its final width.
    pub(crate) fn row(&self, cells: &[String], paint: impl Fn(usize, String) -> String) -> String {
        let last = cells.iter().rposition(|cell| !cell.is_empty()).unwrap_or(0);
        let mut text = String::new();
        for (column, (width, cell)) in self.widths.iter().zip(cells).enumerate().take(last + 1) {
            let cell = printable(cell);
            if column == last {
                text.push_str(&paint(column, cell));
            } else {
                text.push_str(&paint(column, format!("{cell:width$}")));
                text.push_str("  ");
            }
        }
        text.push('\n');
        text
    }
}

/// The text with control characters replaced, so that it cannot steer a terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

/// An age in its largest whole unit, as kubectl prints it.
pub(crate) fn age(age: Duration) -> String {
    match age.as_secs() {
        s @ 0..120 => format!("{s}s"),
        s @ 120..7200 => format!("{}m", s / 60),
        s @ 7200..172_800 => format!("{}h", s / 3600),
        s => format!("{}d", s / 86_400),
    }
}

/// The part of an id that people see and type.
pub(crate) fn short(id: &str) -> String {
    id.chars().take(13).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [
            ["a".to_owned(), "x".to_owned()],
            ["longer".to_owned(), String::new()],
        ];
        assert_eq!(
            render(["N", "STATE"], &rows),
            "N       STATE\na       x\nlonger\n"
        );
    }

    #[test]
    fn a_name_cannot_steer_the_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\n"), "a\u{fffd}[2Jb\u{fffd}");
    }

    #[test]
    fn ages_are_in_their_largest_whole_unit() {
        let shown = [0, 119, 120, 7199, 7200, 172_799, 172_800]
            .map(|seconds| age(Duration::from_secs(seconds)));
        assert_eq!(shown, ["0s", "119s", "2m", "119m", "2h", "47h", "2d"]);
    }
}
