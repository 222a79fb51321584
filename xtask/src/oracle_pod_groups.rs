//! Runs the cases of `pod-groups.json`: an owner, a pod, and the group that they must get.
//!
//! This module knows the format of the cases (docs/development/kai-cases.md) and no particular case. A case is a list
//! of steps; each is a call with checks of its outcome.

use anyhow::{Context, Result};
use serde_json::Value;

mod call;
mod case_json;
mod checks;

pub(crate) use call::CallOutcome;
pub(crate) use checks::trimmed;

/// Our answer to one question.
pub(crate) fn answer(step: &Value) -> Result<CallOutcome> {
    call::perform(step)
}

/// The expectations of a step that an outcome does not meet. Comparisons with other steps are left out.
pub(crate) fn checked(step: &Value, outcome: &CallOutcome) -> Vec<String> {
    let expected = step["expected"].as_array().into_iter().flatten();
    let alone = expected.filter(|check| check.get("same_as").is_none());
    let outcomes = std::slice::from_ref(outcome);
    alone
        .filter_map(|check| checks::check(check, 0, outcomes).err())
        .collect()
}

/// Runs one case. Returns what is wrong with the answer.
pub(crate) fn ask(case: &Value) -> Result<Option<String>> {
    let steps = case["steps"].as_array().context("a case without steps")?;
    let mut wrong = Vec::new();
    let mut outcomes: Vec<CallOutcome> = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        outcomes.push(call::perform(step)?);
        let expected = step["expected"].as_array();
        for check in expected.context("a step that expects nothing")? {
            if let Err(why) = checks::check(check, number, &outcomes) {
                wrong.push(format!("step {number}: {why}"));
            }
        }
    }
    Ok((!wrong.is_empty()).then(|| wrong.join("; ")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn case(checks: Value) -> Value {
        let owner = json!({"kind": "Job", "apiVersion": "batch/v1",
            "metadata": {"name": "sweep", "namespace": "lab", "uid": "7"}});
        json!({"steps": [{"call": "pod_group", "grouper": "job", "owner": owner,
            "pod": {"metadata": {"name": "sweep-x", "namespace": "lab"}}, "expected": checks}]})
    }

    #[test]
    fn passes_what_is_so() {
        let checks = json!([{"error": false}, {"path": "name", "op": "eq", "value": "pg-sweep-7"},
            {"path": "topology", "op": "empty"}, {"path": "subGroups", "op": "len", "value": 0}]);
        assert_eq!(ask(&case(checks)).expect("it can be asked"), None);
    }

    #[test]
    fn reports_each_check_that_fails() {
        let checks = json!([{"error": true}, {"path": "minAvailable", "op": "eq", "value": 2},
            {"path": "queue", "op": "nil"}, {"path": "queue", "op": "unheard-of"}]);
        let wrong = ask(&case(checks))
            .expect("it can be asked")
            .unwrap_or_default();
        assert_eq!(wrong.split("; ").count(), 4, "{wrong}");
    }

    #[test]
    fn a_case_that_asks_nothing_does_not_pass() {
        assert!(ask(&json!({})).is_err());
        assert!(ask(&json!({"steps": [{"call": "IsSparkPod"}]})).is_err());
    }
}
