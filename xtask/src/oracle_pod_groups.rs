//! Runs the cases of `pod-groups.json`: an owner, a pod, and what their group must be.
//!
//! It knows how the cases are written (`oracles/README.md`, section 6) and nothing of any particular one. A case is a
//! list of steps, each a call with checks on what comes of it.

use serde_json::Value;

mod call;
mod checks;
mod shown;

use call::Outcome;

/// Runs a case and says what was wrong; nothing when it passed.
pub(crate) fn check(case: &Value) -> Vec<String> {
    let steps = case["steps"].as_array().map_or(&[][..], Vec::as_slice);
    if steps.is_empty() {
        return vec!["the case has no steps".to_owned()];
    }
    let mut wrong = Vec::new();
    let mut outcomes: Vec<Outcome> = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        let outcome = match call::perform(step) {
            Ok(outcome) => outcome,
            Err(error) => return vec![format!("step {number}: {error:#}")],
        };
        outcomes.push(outcome);
        for check in step["expected"].as_array().into_iter().flatten() {
            if let Err(why) = checks::check(check, number, &outcomes) {
                wrong.push(format!("step {number}: {why}"));
            }
        }
    }
    wrong
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
        assert_eq!(check(&case(checks)), Vec::<String>::new());
    }

    #[test]
    fn reports_each_check_that_fails() {
        let checks = json!([{"error": true}, {"path": "minAvailable", "op": "eq", "value": 2},
            {"path": "queue", "op": "nil"}, {"path": "queue", "op": "unheard-of"}]);
        assert_eq!(check(&case(checks)).len(), 4);
    }

    #[test]
    fn a_case_without_steps_fails() {
        assert_eq!(check(&json!({})).len(), 1);
    }
}
