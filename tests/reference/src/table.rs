//! Markdown tables.

/// A table with these titles.
#[must_use]
pub fn table<const N: usize>(
    titles: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let mut text = line(&titles.map(str::to_owned));
    text.push_str(&format!("|{}\n", "---|".repeat(N)));
    rows.into_iter().for_each(|row| text.push_str(&line(&row)));
    text
}

/// Text as a cell: one line, without characters that end the cell or begin a tag.
#[must_use]
pub fn cell(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.replace('|', "\\|").replace('<', "&lt;")
}

/// Text as code in a cell. Empty text stays empty.
#[must_use]
pub fn code(text: &str) -> String {
    if text.is_empty() {
        return String::new();
    }
    format!("`{}`", text.replace('|', "\\|"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_never_ends_early() {
        let rows = [["a|b".to_owned(), "two\nlines".to_owned()].map(|text| cell(&text))];
        assert_eq!(
            table(["x", "y"], rows),
            "| x | y |\n|---|---|\n| a\\|b | two lines |\n"
        );
        assert_eq!(code("a|b"), "`a\\|b`");
        assert_eq!(code(""), "");
    }
}
