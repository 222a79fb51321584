//! Runs the rule oracles: single questions to the policy with the answers that KAI gives.
//!
//! A file says by its name which rules it is about, and each case by its `kind` which question it asks. Files
//! about rules that nothing here answers yet are counted as not passed, case by case.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::deviations::{Deviations, json_files};
use crate::oracle_pod_groups;

mod admission;
mod min_runtime;
mod queues;
mod reclaim;
mod shares;
mod sharing_config;

/// An oracle file.
#[derive(Deserialize)]
struct File {
    cases: Vec<Value>,
}

/// What came of one case.
struct Verdict {
    file: String,
    id: String,
    /// What was wrong; nothing when it passed.
    wrong: Option<String>,
}

/// Asks every case of the files in `folder`, and reports.
///
/// Returns whether all passed but those that are listed as deviations, by id or by file.
pub(crate) fn run(folder: &Path, as_json: bool, deviations: &Deviations) -> Result<bool> {
    let mut verdicts = Vec::new();
    for path in json_files(folder)? {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let text = fs::read_to_string(&path)?;
        let file: File = serde_json::from_str(&text)
            .with_context(|| format!("failed to read {}", path.display()))?;
        for case in file.cases {
            let id = case["id"].as_str().unwrap_or_default().to_owned();
            let wrong = ask(&name, &case).unwrap_or_else(|error| Some(format!("{error:#}")));
            verdicts.push(Verdict {
                file: name.clone().into_owned(),
                id,
                wrong,
            });
        }
    }
    report(&verdicts, as_json, deviations);
    let listed = |one: &Verdict| {
        let reason = deviations.reason(&one.id);
        one.wrong.is_none() || reason.or(deviations.reason(&one.file)).is_some()
    };
    Ok(verdicts.iter().all(listed))
}

fn report(verdicts: &[Verdict], as_json: bool, deviations: &Deviations) {
    let mut by_file: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    let mut failed = Vec::new();
    for one in verdicts {
        let count = by_file.entry(&one.file).or_default();
        match &one.wrong {
            None => count.0 += 1,
            Some(wrong) => {
                count.1 += 1;
                failed.push(&one.id);
                if !as_json && deviations.reason(&one.file).is_none() {
                    let listed = deviations.reason(&one.id).is_some();
                    let mark = if listed { "deviates" } else { "FAILED" };
                    println!("{mark} {}: {wrong}", one.id);
                }
            }
        }
    }
    let passed = verdicts.len() - failed.len();
    if as_json {
        let files: BTreeMap<_, _> = by_file
            .iter()
            .map(|(name, (passed, failed))| (name, json!({"passed": passed, "failed": failed})))
            .collect();
        println!(
            "{}",
            json!({"passed": passed, "failed": failed, "by_file": files})
        );
        return;
    }
    for (name, (passed, failed)) in &by_file {
        let note = deviations.reason(name).unwrap_or_default();
        println!("{name:20} {passed:4} of {:4} {note}", passed + failed);
    }
    println!("{passed} of {} passed", verdicts.len());
}

/// Asks one case; says what is wrong with the answer.
fn ask(file: &str, case: &Value) -> Result<Option<String>> {
    match file {
        "fair-share" => shares::ask(case),
        "reclaim-rules" => reclaim::ask(case),
        "min-runtime" => min_runtime::ask(case),
        "admission" => admission::ask(case),
        "gpu-sharing-config" => sharing_config::ask(case),
        "pod-groups" => oracle_pod_groups::ask(case),
        _ => Ok(Some("nothing here answers this file yet".to_owned())),
    }
}

/// The difference between an answer and what was expected.
fn differs(answer: &Value, expected: &Value) -> Option<String> {
    (answer != expected).then(|| format!("{answer}, not {expected}"))
}

/// A number of a case; what is not there is zero.
fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_default()
}
