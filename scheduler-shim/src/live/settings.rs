//! The conditions of KAI's SchedulingShard and Config: that the scheduler has read them, and which settings are not
//! in effect.
//!
//! The first uses the conditions of KAI's operator, for which tools wait. The leader has read the objects that it
//! says so of. Conditions of others stay.

use std::time::Duration;

use apportion_groups::ObjectView;
use serde_json::{Value, json};

use super::event::StatusUpdate;
use super::statuses::{condition, report, timestamp, written_condition};
use apportion_model::inventory::ObjectInventory;
use apportion_model::object_kinds::KAI_CONFIG;
use apportion_model::shards::{self, programs};

const KIND: &str = "Supported";
/// The conditions of KAI's operator once it has started an object's programs: type, reason, message, and whether it
/// holds.
const READ: [(&str, &str, &str, bool); 5] = [
    ("Deployed", "deployed", "the scheduler has read it", true),
    ("Available", "available", "the scheduler runs", true),
    (
        "DependenciesFulfilled",
        "dependencies_fulfilled",
        "nothing else is needed",
        true,
    ),
    ("Ready", "ready", "the scheduler goes by it", true),
    (
        "Reconciling",
        "reconciled",
        "the scheduler has read it",
        false,
    ),
];

/// The statuses that are out of date. Those of Configs come once the programs in the namespace `at` follow them, if
/// there are any.
pub(crate) fn due(
    inventory: &ObjectInventory,
    at: Option<&str>,
    now: Duration,
) -> Vec<StatusUpdate> {
    let now = timestamp(now);
    let all = shards::unsupported(inventory, at.is_some()).into_iter();
    all.filter(|(object, _)| {
        let counts = object.kind() == KAI_CONFIG.1 && object.name() == programs::CONFIG;
        at.filter(|_| counts)
            .is_none_or(|at| programs::follow(*object, inventory, at))
    })
    .filter_map(|(object, fields)| supported(object, &fields, &now))
    .collect()
}

fn supported(object: ObjectView<'_>, fields: &[String], now: &str) -> Option<StatusUpdate> {
    let (reason, message) = match fields {
        [] => ("InEffect", "every setting is in effect".to_owned()),
        fields => (
            "NotInEffect",
            format!("not in effect: {}", fields.join(", ")),
        ),
    };
    let is_written =
        written_condition(object, "conditions", KIND)["message"].as_str() == Some(&message);
    let read = READ.map(|(kind, reason, message, is_true)| {
        let mut read = condition(object, kind, is_true, reason, message, now);
        read["observedGeneration"] = object.json()["metadata"]["generation"].clone();
        read
    });
    let ours = condition(object, KIND, fields.is_empty(), reason, &message, now);
    let ours: Vec<Value> = read.into_iter().chain([ours]).collect();
    let others = object.json()["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|one| !ours.iter().any(|our| our["type"] == one["type"]));
    let all: Vec<Value> = others.cloned().chain(ours.iter().cloned()).collect();
    let warning = (!fields.is_empty() && !is_written).then_some(message);
    report(object, json!({"conditions": all}), warning)
}

#[cfg(test)]
mod tests {
    use super::*;
    use apportion_model::object_warnings::ObjectWarnings;

    #[test]
    fn a_shard_says_what_is_not_in_effect_and_keeps_the_conditions_of_others() {
        let others = json!({"type": "Reviewed", "status": "True", "reason": "reviewed", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let mut shard = json!({"apiVersion": "kai.scheduler/v1", "kind": "SchedulingShard",
            "metadata": {"name": "default", "uid": "u", "generation": 3}, "spec": {"kValue": 2.0},
            "status": {"conditions": [others]}});
        let due_of = |shard: &Value| {
            let inventory =
                ObjectInventory::of(vec![shard.clone()], &mut ObjectWarnings::default());
            due(&inventory, None, Duration::from_secs(1_800_000_000)).pop()
        };
        let first = due_of(&shard).expect("it says nothing yet");
        assert_eq!(first.status["conditions"][0], others);
        let deployed = &first.status["conditions"][1];
        assert_eq!(
            (&deployed["type"], &deployed["observedGeneration"]),
            (&json!("Deployed"), &json!(3))
        );
        let ours = &first.status["conditions"][6];
        assert_eq!(
            (&ours["status"], &ours["message"]),
            (&json!("False"), &json!("not in effect: spec.kValue"))
        );
        assert_eq!(first.warning.as_deref(), Some("not in effect: spec.kValue"));
        shard["status"] = first.status;
        assert_eq!(due_of(&shard), None);
        shard["spec"] = json!({"placementStrategy": {"gpu": "spread"}});
        let again = due_of(&shard).expect("it changed");
        assert_eq!(again.status["conditions"][6]["status"], "True");
        assert_eq!(again.warning, None);
    }
}
