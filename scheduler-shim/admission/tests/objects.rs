//! Rules for queues, pod groups and topologies.

use std::collections::BTreeMap;

use apportion_admission::pod_group::{self, ReviewedPodGroup};
use apportion_admission::queue::{self, QueueVerdict, ReviewedQueue};
use apportion_admission::topology::{self, ReviewedTopology};
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};

fn queue(
    name: &str,
    parent: &str,
    cpu: f64,
    gpu: f64,
    memory: f64,
    children: &[&str],
) -> ReviewedQueue {
    ReviewedQueue::deserialize(
        &json!({"metadata": {"name": name}, "status": {"childQueues": children},
        "spec": {"parentQueue": parent, "resources":
            {"cpu": {"quota": cpu}, "gpu": {"quota": gpu}, "memory": {"quota": memory}}}}),
    )
    .expect("it is a queue")
}

fn judge(
    old: Option<&ReviewedQueue>,
    new: &ReviewedQueue,
    others: &[ReviewedQueue],
) -> QueueVerdict {
    queue::check(
        old,
        new,
        &|name: &str| {
            others
                .iter()
                .find(|other| other.metadata.name == name)
                .cloned()
        },
        true,
    )
}

#[test]
fn a_childs_quota_is_held_against_its_parents() {
    let parent = queue("lab", "", 1000.0, 2.0, 500.0, &["a", "b", "gone"]);
    let others = [parent, queue("a", "lab", 600.0, 1.0, 1.0, &[])];
    let verdict = judge(None, &queue("b", "lab", 1500.0, 2.5, 501.0, &[]), &others);
    assert_eq!(verdict.refusal, None);
    assert_eq!(
        verdict.warnings,
        [
            "child queue CPU quota (1500) exceeds parent queue lab CPU quota (1000)",
            "total children CPU quota (2100) exceeds parent queue lab CPU quota (1000)",
            "child queue GPU quota (2.50) exceeds parent queue lab GPU quota (2.00)",
            "child queue Memory quota (501) exceeds parent queue lab Memory quota (500)",
        ]
    );
    let fits = judge(None, &queue("b", "lab", 400.0, 1.0, 1.0, &[]), &others);
    assert_eq!(fits, QueueVerdict::default());
}

#[test]
fn a_minimum_run_time_that_is_no_duration_is_refused() {
    let with = |field: &str, text: &str| {
        let mut queue = json!({"metadata": {"name": "lab"}, "spec": {"resources": {}}});
        queue["spec"][field] = text.into();
        ReviewedQueue::deserialize(&queue).expect("it is a queue")
    };
    for field in ["preemptMinRuntime", "reclaimMinRuntime"] {
        for text in ["1d", "nonsense", "-5m", "5"] {
            let refusal = judge(None, &with(field, text), &[]).refusal;
            let refusal = refusal.expect("it is refused").to_string();
            assert!(
                refusal.starts_with(&format!("{field} {text:?} is not a duration")),
                "{refusal}"
            );
            // An invalid value that is there already does not block edits of the rest.
            let kept = judge(Some(&with(field, text)), &with(field, text), &[]);
            assert_eq!(kept.refusal, None);
            let changed = judge(Some(&with(field, "2d")), &with(field, text), &[]);
            assert!(changed.refusal.is_some(), "{field} {text}");
        }
        for text in ["90s", "1h30m", "0", "+1.5h", ""] {
            assert_eq!(judge(None, &with(field, text), &[]).refusal, None, "{text}");
        }
    }
}

#[test]
fn a_burst_limit_is_a_number_of_gpus() {
    let with = |text: &str| {
        let queue = json!({"metadata": {"name": "lab",
                "annotations": {"apportion.dev/gpu-burst-limit": text}},
            "spec": {"resources": {"gpu": {"quota": 2}}}});
        ReviewedQueue::deserialize(&queue).expect("it is a queue")
    };
    for text in ["", "much", "4Gi", "-2", "-0.5", "1e999", "NaN", "4 ", "1,5"] {
        let refusal = judge(None, &with(text), &[]).refusal;
        let refusal = refusal.expect("it is refused").to_string();
        assert_eq!(
            refusal,
            format!(
                "apportion.dev/gpu-burst-limit {text:?} is not a number of GPUs: 0 or more, such as 4 or 2.5, or -1 for unlimited"
            )
        );
        // An invalid value that is there already does not block edits of the rest.
        let kept = judge(Some(&with(text)), &with(text), &[]);
        assert_eq!(kept.refusal, None);
        let changed = judge(Some(&with("3")), &with(text), &[]);
        assert!(changed.refusal.is_some(), "{text}");
        assert_eq!(queue::burst_limit(text), None);
    }
    for (text, limit) in [
        ("4", Some(4.0)),
        ("2.5", Some(2.5)),
        ("2", Some(2.0)),
        ("-1", None),
    ] {
        assert_eq!(judge(None, &with(text), &[]), QueueVerdict::default());
        assert_eq!(queue::burst_limit(text), Some(limit));
    }
}

#[test]
fn whether_pods_are_suspended_is_true_or_false() {
    let with = |text: &str| {
        let queue = json!({"metadata": {"name": "lab",
                "annotations": {"apportion.dev/suspend-before-evict": text}},
            "spec": {"resources": {"gpu": {"quota": 2}}}});
        ReviewedQueue::deserialize(&queue).expect("it is a queue")
    };
    for text in ["", "yes", "True", "1", "true "] {
        let refusal = judge(None, &with(text), &[]).refusal;
        assert_eq!(
            refusal.map(|refusal| refusal.to_string()),
            Some(format!(
                "apportion.dev/suspend-before-evict {text:?} is neither \"true\" nor \"false\""
            ))
        );
        let kept = judge(Some(&with(text)), &with(text), &[]);
        assert_eq!(kept.refusal, None, "the rest can be edited");
        assert_eq!(queue::suspends(Some(text)), None);
    }
    for (text, suspends) in [("true", true), ("false", false)] {
        assert_eq!(judge(None, &with(text), &[]).refusal, None);
        assert_eq!(queue::suspends(Some(text)), Some(suspends));
    }
    assert_eq!(queue::suspends(None), Some(false));
}

#[test]
fn a_burst_limit_below_the_quota_is_warned_about() {
    for (quota, limit, is_warned) in [(2.0, "1.5", true), (2.0, "0", true), (-1.0, "1", false)] {
        let mut queue = queue("lab", "", 0.0, quota, 0.0, &[]);
        let name = "apportion.dev/gpu-burst-limit".to_owned();
        queue.metadata.annotations = Some(BTreeMap::from([(name, limit.to_owned())]));
        let verdict = judge(None, &queue, &[]);
        assert_eq!(verdict.refusal, None);
        let warning = format!(
            "apportion.dev/gpu-burst-limit ({limit}) is below the GPU quota ({quota}); the queue cannot use all of its quota"
        );
        let expected: Vec<String> = is_warned.then_some(warning).into_iter().collect();
        assert_eq!(verdict.warnings, expected);
    }
}

#[test]
fn a_parents_quota_is_held_against_its_childrens() {
    let old = queue("lab", "", 1000.0, 2.0, 500.0, &["a", "b"]);
    let others = [
        queue("a", "lab", 600.0, 1.0, 300.0, &[]),
        queue("b", "lab", 300.0, 1.0, 300.0, &[]),
    ];
    let verdict = judge(
        Some(&old),
        &queue("lab", "", 500.0, 1.5, 500.0, &["a", "b"]),
        &others,
    );
    assert_eq!(
        verdict.warnings,
        [
            "child queue a CPU quota (600) exceeds parent CPU quota (500)",
            "total children CPU quota (900) exceeds parent CPU quota (500)",
            "total children GPU quota (2.00) exceeds parent GPU quota (1.50)",
            "total children Memory quota (600) exceeds parent Memory quota (500)",
        ]
    );
}

#[test]
fn an_orphan_is_refused_only_where_quotas_are_compared() {
    let orphan = queue("b", "lab", 1.0, 1.0, 1.0, &[]);
    let refusal = judge(None, &orphan, &[]).refusal.unwrap().to_string();
    assert_eq!(
        refusal,
        "failed to get parent queue lab: queues.scheduling.run.ai \"lab\" not found"
    );
    assert_eq!(
        queue::check(None, &orphan, &|_: &str| None, false),
        QueueVerdict::default()
    );
}

#[test]
fn a_queue_below_itself_is_warned_about() {
    let others = [
        queue("b", "c", 1.0, 1.0, 1.0, &[]),
        queue("c", "a", 1.0, 1.0, 1.0, &[]),
    ];
    let find = |name: &str| {
        others
            .iter()
            .find(|other| other.metadata.name == name)
            .cloned()
    };
    let verdict = queue::check(None, &queue("a", "b", 1.0, 1.0, 1.0, &[]), &find, false);
    assert_eq!(
        verdict.warnings,
        ["queue a is its own ancestor (a -> b -> c -> a); nothing in it will be scheduled"]
    );
    // A cycle further up belongs to other queues, and must not be followed for ever.
    let verdict = queue::check(None, &queue("x", "b", 1.0, 1.0, 1.0, &[]), &find, false);
    let circle = [
        queue("b", "c", 1.0, 1.0, 1.0, &[]),
        queue("c", "b", 1.0, 1.0, 1.0, &[]),
    ];
    assert_eq!(
        queue::check(
            None,
            &queue("x", "b", 1.0, 1.0, 1.0, &[]),
            &|name: &str| {
                circle
                    .iter()
                    .find(|other| other.metadata.name == name)
                    .cloned()
            },
            false
        ),
        QueueVerdict::default()
    );
    assert_eq!(verdict, QueueVerdict::default());
}

#[test]
fn a_queue_with_children_stays() {
    let refusal = queue::check_deletion(&queue("lab", "", 1.0, 1.0, 1.0, &["a", "b"])).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "cannot delete queue lab: it has child queues [a b]"
    );
    assert_eq!(
        queue::check_deletion(&queue("lab", "", 1.0, 1.0, 1.0, &[])),
        Ok(())
    );
}

#[test]
fn aliases_are_names_of_one_thing() {
    let topology = |levels: Value| {
        ReviewedTopology::deserialize(&json!({"spec": {"levels": levels}})).unwrap()
    };
    let wrong = topology(json!([
        {"nodeLabel": "zone", "alias": "z"}, {"nodeLabel": "rack", "alias": "z"}, {"nodeLabel": "row", "alias": "zone"},
        {"nodeLabel": "host", "alias": "a"}, {"nodeLabel": "slot", "alias": "a"}]));
    assert_eq!(
        topology::check(&wrong).unwrap_err().to_string(),
        "invalid topology aliases: aliases must be unique within the topology; duplicated: [a z]; an alias must not equal a nodeLabel; conflicting: [zone]"
    );
    let right = topology(json!([{"nodeLabel": "zone"}, {"nodeLabel": "rack", "alias": "r"}]));
    assert_eq!(topology::check(&right), Ok(()));
}

#[test]
fn a_pod_group_from_before_the_rule_stays_editable() {
    let group = ReviewedPodGroup::deserialize(&json!({"spec": {"minSubGroup": 9, "subGroups": [
        {"name": "p", "minMember": 2}, {"name": "c", "parent": "p", "minMember": 1}]}}))
    .unwrap();
    let members = "subgroup \"p\": minMember cannot be set on a mid-level SubGroup (has child SubGroups); use minSubGroup instead";
    let parts = "minSubGroup (9) exceeds the number of direct child SubGroups (1)";
    let created = pod_group::check(&group, false);
    assert_eq!(
        (created.refusal.as_deref(), created.warnings.as_slice()),
        (Some(members), &[parts.to_owned()][..])
    );
    let updated = pod_group::check(&group, true);
    assert_eq!(
        (updated.refusal, updated.warnings),
        (None, vec![members.to_owned(), parts.to_owned()])
    );
}

proptest! {
    /// Parents by index, possibly with cycles or out of range.
    #[test]
    fn a_tree_is_taken_and_nothing_else(parents in prop::collection::vec(prop::option::of(0_usize..9), 0..9)) {
        let groups: Vec<Value> = parents.iter().enumerate().map(|(index, parent)| {
            json!({"name": format!("g{index}"), "parent": parent.map(|parent| format!("g{parent}")), "minMember": 1})
        }).collect();
        let group = ReviewedPodGroup::deserialize(&json!({"spec": {"subGroups": groups}})).unwrap();
        let by_index: BTreeMap<usize, Option<usize>> = parents.iter().copied().enumerate().collect();
        let is_tree = by_index.keys().all(|index| {
            let mut at = *index;
            for _ in 0..=by_index.len() {
                match by_index.get(&at) {
                    Some(Some(parent)) => at = *parent,
                    Some(None) => return true,
                    None => return false,
                }
            }
            false
        });
        prop_assert_eq!(pod_group::find(&group.spec).structure.is_none(), is_tree);
    }
}
