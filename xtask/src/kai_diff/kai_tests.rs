//! Asks the oracle about the cases of KAI's own tests, which state the right answers.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::Value;

use super::oracle::{KaiOracle, OracleAnswer};
use super::pod_outcomes::{PodOutcomes, id, jobs, tasks};
use crate::cases;
use crate::scenarios::KAI;

/// Asks every one-cycle case that the fixtures of KAI's tests can express. Returns their number as text.
///
/// An answer that contradicts KAI's test is an error, because then the oracle is wrong.
pub(crate) fn validate(oracle: &mut KaiOracle, root: &Path) -> Result<String> {
    let files = cases::read(&root.join(KAI))?;
    let cases = files.iter().flat_map(|file| &file.cases);
    let mut passed = 0;
    let mut cannot: BTreeMap<String, usize> = BTreeMap::new();
    let mut wrong = Vec::new();
    for case in cases.filter(|case| case["mode"] == "cycle") {
        match oracle.ask(case)? {
            OracleAnswer::Cannot(what) => *cannot.entry(what).or_default() += 1,
            OracleAnswer::Error(what) => wrong.push(format!("{}: {what}", case["id"])),
            OracleAnswer::Decided(decided) => {
                let found = unlike(case, &decided.tasks);
                passed += usize::from(found.is_empty());
                wrong.extend(found);
            }
        }
    }
    ensure!(passed > 0, "the oracle was asked nothing");
    ensure!(
        wrong.is_empty(),
        "the oracle does not say what KAI's tests state:\n{}",
        wrong.join("\n")
    );
    let cannot: Vec<String> = cannot
        .iter()
        .map(|(what, count)| format!("{count} {what}"))
        .collect();
    Ok(format!(
        "{passed} of {passed} cycles come out as stated; not expressible: {}",
        cannot.join(", ")
    ))
}

/// The differences from what a case expects.
fn unlike(case: &Value, outcomes: &PodOutcomes) -> Vec<String> {
    let of_jobs = jobs(case).flat_map(|job| {
        let expected = &case["expected"]["jobs"][job["name"].as_str().unwrap_or_default()];
        tasks(job).map(move |task| (id(task), expected))
    });
    let of_tasks = jobs(case)
        .flat_map(tasks)
        .map(|task| (id(task), &case["expected"]["tasks"][id(task)]));
    of_jobs
        .chain(of_tasks)
        .filter(|(_, expected)| !expected.is_null())
        .filter_map(|(task, expected)| {
            let outcome = outcomes.get(task)?;
            let status = expected["status"].as_str().unwrap_or_default();
            let node = expected["node"].as_str().filter(|_| outcome.is_placed());
            let is_right = outcome.status == status
                && node.is_none_or(|node| outcome.node.as_deref() == Some(node));
            (!is_right).then(|| format!("{}: {task} is {outcome:?}, not {expected}", case["id"]))
        })
        .collect()
}
