//! Runs the rule oracles: single questions to the policy, with KAI's answers.
//!
//! The name of a file says which rules it is about. The `kind` of a case says what it asks. A question that is not
//! implemented here is a case that fails.

use anyhow::Result;
use serde_json::Value;

use crate::cases::CaseSuite;
use crate::oracle_pod_groups;

mod admission;
mod min_runtime;
mod queues;
mod reclaim;
mod shares;
mod sharing_config;

/// The cases made from KAI's tests.
pub(crate) const KAI: &str = "scheduler-shim/policy/oracles/kai";

pub(crate) const SUITE: CaseSuite = CaseSuite {
    folders: &[KAI],
    counted_by: "by_file",
    tags: |file, _| vec![file.to_owned()],
    ask: |file, case| Ok(ask(file, case)?.into_iter().collect()),
};

/// Runs one case. Returns what is wrong with the answer.
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

/// The difference between an answer and the expected one.
fn differs(answer: &Value, expected: &Value) -> Option<String> {
    (answer != expected).then(|| format!("{answer}, not {expected}"))
}

/// A number of a case; zero if it is missing.
fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_default()
}
