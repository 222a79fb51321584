//! Text tables: a list of columns defines content, order and alignment. Cells contain names that others chose, so
//! control characters are escaped.

use apportion_abi::EscapedText;

/// One column over rows of `T`.
#[derive(Debug)]
pub struct TableColumn<T> {
    /// The heading of the column.
    pub title: &'static str,
    /// The text of a cell.
    pub cell: fn(&T) -> String,
    /// The alignment of the text.
    pub side: CellAlignment,
}

/// The alignment of text in a wider cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellAlignment {
    /// For text that people read.
    Left,
    /// For numbers and amounts of memory.
    Right,
}

/// Formats the rows. Every line ends with a line feed.
#[must_use]
pub fn lay_out<T>(columns: &[TableColumn<T>], rows: &[T]) -> String {
    let titles = columns
        .iter()
        .map(|column| column.title.to_owned())
        .collect();
    let cells = rows
        .iter()
        .map(|row| columns.iter().map(|column| cell(column, row)).collect());
    let lines: Vec<Vec<String>> = std::iter::once(titles).chain(cells).collect();
    let width = |place: usize| lines.iter().map(|line| line[place].chars().count()).max();
    let widths: Vec<usize> = (0..columns.len()).filter_map(width).collect();
    let mut text = String::new();
    for line in &lines {
        let cells = line.iter().zip(columns).zip(&widths);
        let padded = cells.map(|((cell, column), width)| match column.side {
            CellAlignment::Left => format!("{cell:<width$}"),
            CellAlignment::Right => format!("{cell:>width$}"),
        });
        text.push_str(padded.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

fn cell<T>(column: &TableColumn<T>, row: &T) -> String {
    EscapedText(&(column.cell)(row)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let columns = [
            TableColumn {
                title: "NAME",
                cell: |row: &(&str, u8)| row.0.into(),
                side: CellAlignment::Left,
            },
            TableColumn {
                title: "N",
                cell: |row| row.1.to_string(),
                side: CellAlignment::Right,
            },
        ];
        let text = lay_out(&columns, &[("long name", 7), ("x", 100)]);
        assert_eq!(text, "NAME         N\nlong name    7\nx          100\n");
    }

    #[test]
    fn a_cell_is_one_line_and_gives_the_terminal_no_orders() {
        let columns = [TableColumn {
            title: "NAME",
            cell: |row: &&str| (*row).to_owned(),
            side: CellAlignment::Left,
        }];
        let text = lay_out(&columns, &["\x1b]0;pwn\x07", "a\nb"]);
        assert_eq!(text, "NAME\n\\u{1b}]0;pwn\\u{7}\na\\nb\n");
    }
}
