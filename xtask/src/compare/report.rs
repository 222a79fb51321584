//! The results as Markdown tables.

/// All tables, and what contradicts the documentation.
#[derive(Debug, Default)]
pub(crate) struct CompareReport {
    tables: Vec<String>,
    surprises: Vec<String>,
}

/// One table: a title, an explanation, and cells.
#[derive(Debug)]
pub(crate) struct CompareTable {
    title: String,
    words: String,
    rows: Vec<Vec<String>>,
}

impl CompareTable {
    /// A table with a title, an explanation below it, and the names of its columns.
    pub(crate) fn new(title: &str, words: &str, columns: impl IntoIterator<Item = String>) -> Self {
        let columns: Vec<String> = columns.into_iter().collect();
        let line = vec!["---".to_owned(); columns.len()];
        Self {
            title: title.to_owned(),
            words: words.to_owned(),
            rows: vec![columns, line],
        }
    }

    pub(crate) fn row(&mut self, what: &str, cells: impl IntoIterator<Item = String>) {
        let row = std::iter::once(what.to_owned()).chain(cells).collect();
        self.rows.push(row);
    }

    fn markdown(&self) -> String {
        let lines = self
            .rows
            .iter()
            .map(|row| format!("| {} |\n", row.join(" | ")));
        format!(
            "### {}\n\n{}\n\n{}",
            self.title,
            self.words,
            lines.collect::<String>()
        )
    }
}

impl CompareReport {
    /// Prints a finished table and keeps it.
    pub(crate) fn add(&mut self, table: &CompareTable) {
        let text = table.markdown();
        println!("{text}");
        self.tables.push(text);
    }

    /// Records something that Apportion did against its documentation.
    pub(crate) fn surprise(&mut self, what: String) {
        println!("surprise: {what}");
        self.surprises.push(what);
    }

    /// What contradicts the documentation.
    pub(crate) fn surprises(&self) -> &[String] {
        &self.surprises
    }

    pub(crate) fn markdown(&self) -> String {
        self.tables.join("\n")
    }
}
