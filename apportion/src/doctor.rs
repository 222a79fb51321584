//! `apportion doctor`: what is found, what is missing, and what to do about it.

use std::path::Path;

use apportion_exit::CommandFailure;
use serde::Serialize;

use crate::instance::TargetInstance;
use crate::options::ConnectionOptions;
use crate::output;
use crate::table::{CellAlignment, TableColumn, lay_out};

mod checks;
mod node;

/// The result of one check.
#[derive(Debug, Serialize)]
struct DoctorFinding {
    /// The name of the check.
    check: &'static str,
    state: FindingState,
    found: String,
    /// What to do about it, if anything.
    todo: Option<String>,
}

/// Whether a limit can be enforced here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum FindingState {
    /// As it must be.
    Good,
    /// Worth knowing, but it prevents nothing.
    Note,
    /// Missing, and required by `apportion run`.
    Missing,
}

impl DoctorFinding {
    fn good(check: &'static str, found: impl Into<String>) -> Self {
        Self {
            check,
            state: FindingState::Good,
            found: found.into(),
            todo: None,
        }
    }

    fn note(check: &'static str, found: impl Into<String>, todo: &str) -> Self {
        Self {
            state: FindingState::Note,
            todo: Some(todo.to_owned()),
            ..Self::good(check, found)
        }
    }

    /// A check that failed to run, with the error's own hint if it has one.
    fn failed(check: &'static str, failure: &CommandFailure, todo: &str) -> Self {
        Self::missing(check, failure.chain(), failure.todo().unwrap_or(todo))
    }

    fn missing(check: &'static str, found: impl Into<String>, todo: &str) -> Self {
        Self {
            state: FindingState::Missing,
            ..Self::note(check, found, todo)
        }
    }
}

const COLUMNS: &[TableColumn<DoctorFinding>] = &[
    TableColumn {
        title: "CHECK",
        cell: |finding| finding.check.to_owned(),
        side: CellAlignment::Left,
    },
    TableColumn {
        title: "STATE",
        cell: |finding| format!("{:?}", finding.state).to_lowercase(),
        side: CellAlignment::Left,
    },
    TableColumn {
        title: "FOUND",
        cell: |finding| finding.found.clone(),
        side: CellAlignment::Left,
    },
];

/// Checks the Kubernetes node whose file system is below `root`.
pub(crate) fn node(json: bool, root: &Path) -> Result<(), CommandFailure> {
    node::doctor(json, root)
}

/// Runs all checks and prints the results. Fails if something is missing.
pub(crate) fn doctor(json: bool, address: ConnectionOptions) -> Result<(), CommandFailure> {
    let findings = checks::all(&TargetInstance::new(address)?);
    if json {
        output::json(&findings)?
    } else {
        output::all(&text(&findings))?
    }
    let missing = findings
        .iter()
        .filter(|finding| finding.state == FindingState::Missing);
    let missing: Vec<_> = missing.map(|finding| finding.check).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(CommandFailure::new(format!(
        "not ready: {}",
        missing.join(", ")
    )))
}

/// The table, then what to do.
fn text(findings: &[DoctorFinding]) -> String {
    let mut text = lay_out(COLUMNS, findings);
    for finding in findings {
        if let Some(todo) = &finding.todo {
            text.push_str(&format!("{}: {todo}\n", finding.check));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_do_stands_below_the_table() {
        let findings = [
            DoctorFinding::good("kernel", "6.1"),
            DoctorFinding::missing("driver", "nothing", "install it"),
        ];
        let text = text(&findings);
        assert!(
            text.starts_with("CHECK   STATE    FOUND\nkernel  good     6.1\n"),
            "{text}"
        );
        assert!(text.ends_with("driver: install it\n"), "{text}");
    }
}
