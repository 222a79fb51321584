//! The tables: how many specs of each folder pass, and the reasons of the others.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::known_failures;
use super::report::{SpecReport, SpecState};

/// The table is between these lines of the page.
const BEGIN: &str = "<!-- begin: cargo xtask cluster kai-e2e -->";
const END: &str = "<!-- end -->";
/// The maximum length of a message in a line.
const LINE: usize = 150;

/// `12 of 14 passed, 1 failed, 1 skipped`.
pub(super) fn count(specs: &[SpecReport]) -> String {
    let [passed, failed, skipped, not_run] = counts(specs);
    let mut text = format!("{passed} of {} passed", specs.len());
    for (number, state) in [
        (failed, "failed"),
        (skipped, "skipped"),
        (not_run, "not run"),
    ] {
        if number > 0 {
            let _ = write!(text, ", {number} {state}");
        }
    }
    text
}

fn counts(specs: &[SpecReport]) -> [usize; 4] {
    let all = [
        SpecState::Passed,
        SpecState::Failed,
        SpecState::Skipped,
        SpecState::NotRun,
    ];
    all.map(|state| specs.iter().filter(|spec| spec.state == state).count())
}

/// Both tables, as Markdown.
pub(super) fn of(all: &[(String, Vec<SpecReport>)]) -> String {
    let mut text = String::from(
        "| folder | specs | passed | failed | skipped | not run |\n|---|---:|---:|---:|---:|---:|\n",
    );
    let mut sum = [0; 5];
    for (folder, specs) in all {
        let [passed, failed, skipped, not_run] = counts(specs);
        let row = [specs.len(), passed, failed, skipped, not_run];
        for (sum, number) in sum.iter_mut().zip(row) {
            *sum += number;
        }
        text += &line(folder, &row.map(|number| number.to_string()));
    }
    text += &line("all", &sum.map(|number| format!("**{number}**")));
    let mut reasons: BTreeMap<&str, Vec<&SpecReport>> = BTreeMap::new();
    for (folder, specs) in all {
        for spec in specs.iter().filter(|spec| spec.state != SpecState::Passed) {
            let why = known_failures::why(folder, &spec.name).unwrap_or("not explained");
            reasons.entry(why).or_default().push(spec);
        }
    }
    text += "\n| why not | specs | the first of them |\n|---|---:|---|\n";
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, specs)| std::cmp::Reverse(specs.len()));
    for (why, specs) in reasons {
        let first = specs.first().map_or("", |spec| &spec.name);
        let _ = writeln!(text, "| {why} | {} | {first} |", specs.len());
    }
    text
}

fn line(folder: &str, cells: &[String]) -> String {
    format!("| {folder} | {} |\n", cells.join(" | "))
}

/// A line for each spec that does not pass and has no reason.
pub(super) fn unexplained(all: &[(String, Vec<SpecReport>)]) -> Vec<String> {
    let specs = all
        .iter()
        .flat_map(|(folder, specs)| specs.iter().map(move |spec| (folder, spec)));
    specs
        .filter(|(folder, spec)| {
            spec.state != SpecState::Passed && known_failures::why(folder, &spec.name).is_none()
        })
        .map(|(folder, spec)| {
            let message = spec.message.lines().next().unwrap_or_default();
            let message: String = message.chars().take(LINE).collect();
            format!("{folder}: {} ({:?}: {message})", spec.name, spec.state)
        })
        .collect()
}

/// Writes the tables into the page.
pub(super) fn update(page: &Path, text: &str) -> Result<()> {
    let reading = || format!("failed to read {}", page.display());
    let old = fs::read_to_string(page).with_context(reading)?;
    let (before, rest) = old.split_once(BEGIN).with_context(reading)?;
    let (_, after) = rest.split_once(END).with_context(reading)?;
    let new = format!("{before}{BEGIN}\n{text}{END}{after}");
    fs::write(page, new).with_context(|| format!("failed to write {}", page.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str, state: SpecState) -> SpecReport {
        let text = serde_json::json!({"name": name, "state": state, "message": "no such pod\nand more",
            "seconds": 0});
        serde_json::from_value(text).expect("it is a spec")
    }

    #[test]
    fn what_failed_without_a_reason_is_named() {
        let all = [
            (
                "allocate/none".to_owned(),
                vec![spec("a", SpecState::Passed), spec("b", SpecState::Failed)],
            ),
            ("upgrade".to_owned(), vec![spec("c", SpecState::NotRun)]),
        ];
        assert_eq!(
            unexplained(&all),
            ["allocate/none: b (Failed: no such pod)"]
        );
        let table = of(&all);
        assert!(
            table.contains("| allocate/none | 2 | 1 | 1 | 0 | 0 |"),
            "{table}"
        );
        assert!(
            table.contains("| all | **3** | **1** | **1** | **0** | **1** |"),
            "{table}"
        );
        assert!(table.contains("| not explained | 1 | b |"), "{table}");
    }
}
