//! Where our answers differ from KAI's on purpose, with the reasons.
//!
//! A deviation is recognised by question and answers, not by case, so random questions can be counted, too. The page
//! docs/development/kai-cases.md lists the deviations.

use serde_json::Value;

use crate::oracle_pod_groups::CallOutcome;

use super::kai::GrouperAnswer;

/// Whether a deviation explains a question with its two answers.
type Applies = fn(&Value, &GrouperAnswer, &CallOutcome) -> bool;

/// The reasons, and when they apply.
const DEVIATIONS: [(&str, Applies); 6] = [
    (
        "a leader that starts alone needs no segments",
        is_leader_alone,
    ),
    (
        "a leader is counted once where one segment has all pods",
        counts_leader_twice,
    ),
    (
        "the API server has no such subgroup policy",
        has_unknown_policy,
    ),
    (
        "a role or segment of less than no pods is not guessed at",
        is_below_zero,
    ),
    (
        "an owner that is not there is known by its reference",
        lacks_owner,
    ),
    ("an empty label names no queue", has_empty_queue),
];

/// The reason if the answer differs on purpose.
pub(super) fn reason(
    question: &Value,
    kai: &GrouperAnswer,
    ours: &CallOutcome,
) -> Option<&'static str> {
    let mut all = DEVIATIONS.iter();
    let found = all.find(|(_, applies)| applies(question, kai, ours));
    found.map(|(reason, _)| *reason)
}

fn is_leader_alone(question: &Value, kai: &GrouperAnswer, ours: &CallOutcome) -> bool {
    let label = &question["pod"]["metadata"]["labels"]["leaderworkerset.sigs.k8s.io/worker-index"];
    matches!(kai, GrouperAnswer::Error(_))
        && question["owner"]["spec"]["startupPolicy"] == "LeaderReady"
        && label == "0"
        && ours.result()["minAvailable"] == 1
}

fn counts_leader_twice(question: &Value, kai: &GrouperAnswer, ours: &CallOutcome) -> bool {
    let GrouperAnswer::Group(theirs) = kai else {
        return false;
    };
    let sum = |group: &Value| -> i64 {
        let parts = group["subGroups"].as_array().into_iter().flatten();
        parts.filter_map(|part| part["minAvailable"].as_i64()).sum()
    };
    let all = theirs["minAvailable"].as_i64().unwrap_or_default();
    question["owner"]["spec"]["leaderWorkerTemplate"].is_object()
        && sum(theirs) == all + 1
        && sum(ours.result()) == all
}

fn has_unknown_policy(question: &Value, _: &GrouperAnswer, _: &CallOutcome) -> bool {
    let policy = &question["owner"]["spec"]["leaderWorkerTemplate"]["subGroupPolicy"];
    let kind = policy["subGroupPolicyType"].as_str();
    kind.is_some_and(|kind| !["LeaderWorker", "LeaderExcluded"].contains(&kind))
}

fn is_below_zero(question: &Value, _: &GrouperAnswer, _: &CallOutcome) -> bool {
    let replicas = &question["owner"]["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"];
    let size = &question["pod"]["metadata"]["annotations"]["kai.scheduler/segment-size"];
    let size = size.as_str().and_then(|size| size.parse::<i64>().ok());
    let replicas = replicas.as_i64();
    question["grouper"] == "pytorch" && replicas.or(size).into_iter().chain(size).any(|n| n < 0)
}

fn lacks_owner(question: &Value, kai: &GrouperAnswer, _: &CallOutcome) -> bool {
    let chain = question["other_owners"].as_array();
    let skips = ["skip_top_owner", "hub"].map(Value::from);
    match kai {
        _ if !skips.contains(&question["grouper"]) => false,
        GrouperAnswer::Error(error) => {
            error.starts_with("failed to get last owner") || chain.is_none_or(Vec::is_empty)
        }
        _ => false,
    }
}

fn has_empty_queue(question: &Value, kai: &GrouperAnswer, ours: &CallOutcome) -> bool {
    let GrouperAnswer::Group(theirs) = kai else {
        return false;
    };
    let mut of_ours = ours.result().clone();
    of_ours["queue"] = "".into();
    theirs["queue"] == ""
        && super::equality::differences(kai, &CallOutcome::new(None, of_ours)).is_empty()
        && question.is_object()
}
