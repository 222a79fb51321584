//! The table: one row for each program, in Markdown that is also readable in a terminal.

use serde_json::Value;

use super::cases::{CaseProgram, FRAMEWORKS, FrameworkCase};
use super::output::ProgramCheck;
use super::run::{FrameworkOutcome, LimitMode, mib};

const COLUMNS: [&str; 9] = [
    "client",
    "version",
    "plain",
    "limited",
    "limit",
    "sees",
    "held at the refusal",
    "highest by the driver",
    "error at the limit",
];

/// One program, without a limit and with one.
pub(crate) struct FrameworkRow {
    title: String,
    plain: FrameworkOutcome,
    limited: FrameworkOutcome,
    /// Whether a check that fails without a limit is a failure.
    holds_without_a_limit: bool,
}

impl FrameworkRow {
    pub(crate) fn new(
        case: &FrameworkCase,
        member: &CaseProgram,
        plain: FrameworkOutcome,
        limited: FrameworkOutcome,
    ) -> Self {
        let title = match case.members {
            [_] => case.title.to_owned(),
            _ => format!("{}: {}", case.title, member.title),
        };
        Self {
            title,
            plain,
            limited,
            holds_without_a_limit: case.holds_without_a_limit,
        }
    }

    /// How many of the required checks held, and how many did not.
    pub(crate) fn count(&self) -> (u64, u64) {
        let demanded = self.demanded().map(|(_, check)| check.holds);
        demanded.fold((0, 0), |(passed, failed), holds| {
            if holds {
                (passed + 1, failed)
            } else {
                (passed, failed + 1)
            }
        })
    }

    /// A line for each required check that failed.
    pub(crate) fn failures(&self) -> impl Iterator<Item = String> {
        let failed = self.demanded().filter(|(_, check)| !check.holds);
        failed.map(|(mode, check)| {
            format!(
                "FAILED: {}, {}: {} ({})",
                self.title,
                mode.name(),
                check.name,
                check.seen
            )
        })
    }

    fn demanded(&self) -> impl Iterator<Item = (LimitMode, &ProgramCheck)> {
        let plain = self
            .plain
            .said
            .checks
            .iter()
            .filter(|_| self.holds_without_a_limit);
        let limited = self.limited.said.checks.iter();
        plain
            .map(|check| (LimitMode::Plain, check))
            .chain(limited.map(|check| (LimitMode::Limited, check)))
    }

    fn cells(&self) -> [String; 9] {
        let limited = &self.limited.said;
        let size = |name| limited.bytes(name).map(mib).unwrap_or_default();
        let text = |name| match limited.figure(name) {
            Some(Value::String(text)) => text.clone(),
            other => other.map(Value::to_string).unwrap_or_default(),
        };
        [
            self.title.clone(),
            text("version"),
            checks(&self.plain),
            checks(&self.limited),
            mib(self.limited.card),
            size("sees"),
            size("held"),
            mib(self.limited.high_water),
            text("error"),
        ]
    }
}

/// `12/12`: how many of the checks held.
fn checks(outcome: &FrameworkOutcome) -> String {
    let checks = &outcome.said.checks;
    format!(
        "{}/{}",
        checks.iter().filter(|check| check.holds).count(),
        checks.len()
    )
}

/// The table of all rows.
pub(crate) fn of(rows: &[FrameworkRow]) -> String {
    let mut lines = vec![COLUMNS.map(str::to_owned)];
    lines.extend(rows.iter().map(FrameworkRow::cells));
    let widths: Vec<usize> = (0..COLUMNS.len())
        .map(|column| {
            lines
                .iter()
                .map(|line| line[column].chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        text.push_str(&padded(line, &widths));
        if number == 0 {
            let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
            text.push_str(&padded(&rule, &widths));
        }
    }
    text
}

fn padded(cells: &[String], widths: &[usize]) -> String {
    let cells = cells
        .iter()
        .zip(widths)
        .map(|(cell, width)| format!("{cell:width$}"));
    format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
}

/// The frameworks that can be named.
pub(crate) fn list() -> String {
    let width = FRAMEWORKS
        .iter()
        .map(|framework| framework.name.len())
        .max()
        .unwrap_or(0);
    let lines = FRAMEWORKS.iter().map(|framework| {
        let environments: Vec<_> = framework.environments().collect();
        let environments = environments.join(", ");
        format!(
            "{:width$}  {} [{environments}]\n",
            framework.name, framework.about
        )
    });
    lines.collect()
}
