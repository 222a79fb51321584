//! Runs cases, which state the policy's right answers, and counts them.
//!
//! A suite knows what to ask ([`crate::scenarios`], [`crate::oracles`]). This module finds the cases and reports. An
//! empty run never passes: a folder without cases is an error, and so is a filter that matches no case.
//! docs/development/kai-cases.md describes the files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::deviations::KnownDeviations;

mod files;
#[cfg(test)]
mod page;

pub(crate) use files::{CaseFile, CaseName, read};

/// Which cases to run, and how to report.
#[derive(clap::Args)]
pub(crate) struct CaseOptions {
    /// A folder with files of cases [default: the cases of this repository].
    dir: Option<PathBuf>,
    /// Run only cases whose id, or whose file and line in KAI, contain this.
    #[arg(long, default_value = "")]
    filter: String,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// A kind of case.
pub(crate) struct CaseSuite {
    /// The folders of the repository with such cases.
    pub(crate) folders: &'static [&'static str],
    /// The name of the counts in the JSON report.
    pub(crate) counted_by: &'static str,
    /// The tags under which a case of a file is counted.
    pub(crate) tags: fn(file: &str, case: &Value) -> Vec<String>,
    /// Asks a case of a file. Returns what is wrong with the answer.
    pub(crate) ask: fn(file: &str, case: &Value) -> Result<Vec<String>>,
}

/// The result of one case.
#[derive(Debug)]
pub(crate) struct CaseVerdict {
    pub(crate) name: CaseName,
    tags: Vec<String>,
    /// What was wrong; empty if it passed.
    pub(crate) wrong: Vec<String>,
}

/// The results of one folder.
pub(crate) struct CaseRun {
    /// The folder, relative to the repository's root if it is below it.
    folder_name: String,
    pub(crate) verdicts: Vec<CaseVerdict>,
}

/// How many cases passed and failed.
#[derive(Clone, Copy, Default)]
pub(crate) struct CaseCount {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
}

impl CaseSuite {
    /// Runs the cases that `options` select, by default those below `root`, and reports.
    ///
    /// Returns whether all passed, apart from listed deviations.
    pub(crate) fn run(
        &self,
        root: &Path,
        options: &CaseOptions,
        deviations: &KnownDeviations,
    ) -> Result<bool> {
        let runs = match &options.dir {
            Some(dir) => vec![self.folder(root, dir, &options.filter)?],
            None => self.repository(root, &options.filter)?,
        };
        let verdicts: Vec<&CaseVerdict> = runs.iter().flat_map(|run| &run.verdicts).collect();
        ensure!(
            !verdicts.is_empty(),
            "no case has '{}' in its id, file or line",
            options.filter
        );
        if options.json {
            println!("{}", self.as_json(&verdicts));
        } else {
            verdicts
                .iter()
                .filter_map(|one| failure(one, deviations))
                .for_each(|line| println!("{line}"));
            for (tag, count) in by_tag(&verdicts) {
                println!("{tag:20} {:4} of {:4}", count.passed, count.all());
            }
            totals(&runs).iter().for_each(|line| println!("{line}"));
        }
        Ok(verdicts
            .iter()
            .all(|one| one.passed() || deviations.reason(&one.name).is_some()))
    }

    /// Runs the cases of the repository whose names contain `filter`.
    pub(crate) fn repository(&self, root: &Path, filter: &str) -> Result<Vec<CaseRun>> {
        let folders = self.folders.iter();
        folders
            .map(|folder| self.folder(root, &root.join(folder), filter))
            .collect()
    }

    fn folder(&self, root: &Path, folder: &Path, filter: &str) -> Result<CaseRun> {
        let mut verdicts = Vec::new();
        for CaseFile { name, cases } in read(folder)? {
            let cases = cases.iter().map(|case| (CaseName::of(case), case));
            let chosen = cases.filter(|(case, _)| case.contains(filter));
            verdicts.extend(chosen.map(|(case_name, case)| {
                CaseVerdict {
                    name: case_name,
                    tags: (self.tags)(&name, case),
                    wrong: (self.ask)(&name, case)
                        .unwrap_or_else(|error| vec![format!("failed to ask: {error:#}")]),
                }
            }));
        }
        let folder_name = folder.strip_prefix(root).unwrap_or(folder);
        Ok(CaseRun {
            folder_name: folder_name.display().to_string(),
            verdicts,
        })
    }

    fn as_json(&self, verdicts: &[&CaseVerdict]) -> Value {
        let failed = verdicts.iter().filter(|one| !one.passed());
        let failed: Vec<&str> = failed.map(|one| one.name.id.as_str()).collect();
        let tags: BTreeMap<_, _> = by_tag(verdicts)
            .into_iter()
            .map(|(tag, count)| (tag, json!({"passed": count.passed, "failed": count.failed})))
            .collect();
        json!({
            "passed": verdicts.len() - failed.len(),
            "failed": failed,
            self.counted_by: tags,
        })
    }
}

impl CaseVerdict {
    pub(crate) fn passed(&self) -> bool {
        self.wrong.is_empty()
    }
}

impl CaseCount {
    pub(crate) fn of<'v>(verdicts: impl IntoIterator<Item = &'v CaseVerdict>) -> Self {
        let mut count = Self::default();
        verdicts.into_iter().for_each(|one| count.add(one));
        count
    }

    fn add(&mut self, one: &CaseVerdict) {
        if one.passed() {
            self.passed += 1;
        } else {
            self.failed += 1;
        }
    }

    pub(crate) fn all(self) -> usize {
        self.passed + self.failed
    }
}

/// The line for a case that did not pass.
fn failure(one: &CaseVerdict, deviations: &KnownDeviations) -> Option<String> {
    let wrong = (!one.passed()).then(|| one.wrong.join("; "))?;
    Some(match deviations.reason(&one.name) {
        Some(reason) => format!("deviates {}: {wrong} ({reason})", one.name),
        None => format!("FAILED {}: {wrong}", one.name),
    })
}

fn by_tag<'v>(verdicts: &[&'v CaseVerdict]) -> BTreeMap<&'v str, CaseCount> {
    let mut counts: BTreeMap<&str, CaseCount> = BTreeMap::new();
    for one in verdicts {
        for tag in &one.tags {
            counts.entry(tag).or_default().add(one);
        }
    }
    counts
}

/// The last lines of a report: one for each folder if there are several, and the total.
fn totals(runs: &[CaseRun]) -> Vec<String> {
    let mut lines = Vec::new();
    let asked: Vec<&CaseRun> = (runs.iter())
        .filter(|run| !run.verdicts.is_empty())
        .collect();
    if asked.len() > 1 {
        for run in asked {
            let count = CaseCount::of(&run.verdicts);
            let (passed, all) = (count.passed, count.all());
            lines.push(format!("{}: {passed} of {all} passed", run.folder_name));
        }
    }
    let count = CaseCount::of(runs.iter().flat_map(|run| &run.verdicts));
    lines.push(format!("{} of {} passed", count.passed, count.all()));
    lines
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    const SUITE: CaseSuite = CaseSuite {
        folders: &["a", "b"],
        counted_by: "by_file",
        tags: |file, _| vec![file.to_owned()],
        ask: |_, case| {
            Ok((case["is"] != case["expected"])
                .then(|| "is not so".to_owned())
                .into_iter()
                .collect())
        },
    };

    fn options(dir: Option<&Path>, filter: &str) -> CaseOptions {
        CaseOptions {
            dir: dir.map(Path::to_owned),
            filter: filter.to_owned(),
            json: false,
        }
    }

    /// Two folders of cases. One case fails.
    fn two_folders() -> TempDir {
        let root = tempfile::tempdir().unwrap();
        let case = r#"{"id": "first", "is": 1, "expected": 1}"#;
        write(&root, "a", &format!("[{case}]"));
        let case = r#"{"id": "b-1", "file": "x_test.go", "line": 7, "is": 1, "expected": 2}"#;
        write(
            &root,
            "b",
            &format!(r#"{{"source": {{}}, "cases": [{case}]}}"#),
        );
        root
    }

    fn write(root: &TempDir, folder: &str, text: &str) {
        let folder = root.path().join(folder);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("some.json"), text).unwrap();
    }

    #[test]
    fn a_case_that_fails_fails_the_run_unless_its_id_or_its_position_is_listed() {
        let root = two_folders();
        for (listed, is_fine) in [
            (r#"{}"#, false),
            (r#"{"first": "for no reason"}"#, false),
            (r#"{"b-1": "it is so"}"#, true),
            (r#"{"x_test.go:7": "it is so"}"#, true),
            (r#"{"x_test.go:70": "it is so"}"#, false),
        ] {
            let deviations = KnownDeviations::parse(listed).unwrap();
            let ran = SUITE.run(root.path(), &options(None, ""), &deviations);
            assert_eq!(ran.unwrap(), is_fine, "{listed}");
        }
    }

    #[test]
    fn counts_each_folder_and_all() {
        let root = two_folders();
        let runs = SUITE.repository(root.path(), "").unwrap();
        let expected = ["a: 1 of 1 passed", "b: 0 of 1 passed", "1 of 2 passed"];
        assert_eq!(totals(&runs), expected);
    }

    #[test]
    fn chooses_cases_by_id_and_by_position() {
        let root = two_folders();
        let none = KnownDeviations::default();
        for (filter, is_fine) in [("firs", true), ("x_test.go:7", false), ("b-", false)] {
            let ran = SUITE.run(root.path(), &options(None, filter), &none);
            assert_eq!(ran.unwrap(), is_fine, "{filter}");
        }
    }

    #[test]
    fn nothing_to_ask_is_an_error() {
        let root = two_folders();
        write(&root, "empty", r#"{"cases": []}"#);
        let none = KnownDeviations::default();
        for (dir, filter, said) in [
            (Some("absent"), "", "failed to open"),
            (Some("empty"), "", "has no cases"),
            (None, "unheard-of", "no case has 'unheard-of'"),
        ] {
            let dir = dir.map(|dir| root.path().join(dir));
            let ran = SUITE.run(root.path(), &options(dir.as_deref(), filter), &none);
            let error = format!("{:#}", ran.unwrap_err());
            assert!(error.contains(said), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }
}
