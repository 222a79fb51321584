//! Any owner gets an answer or an error, never a panic, and every tree of subgroups is consistent.

use apportion_groups::{GroupingInput, GroupingSettings, ObjectStore, ObjectView, TABLE, group_by};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// Field names that the rules read, so that random objects reach them.
const FIELDS: &[&str] = &[
    "replicas",
    "minReplicas",
    "numOfHosts",
    "size",
    "subGroupSize",
    "minAvailable",
    "parallelism",
    "Master",
    "Worker",
    "Launcher",
    "template",
    "metadata",
    "annotations",
    "spec",
    "name",
    "pytorchReplicaSpecs",
    "mpiReplicaSpecs",
    "jaxReplicaSpecs",
    "runPolicy",
    "schedulingPolicy",
    "elasticPolicy",
    "replicatedJobs",
    "workerGroupSpecs",
    "headGroupSpec",
    "leaderWorkerTemplate",
    "subGroupPolicy",
    "workerTemplate",
    "kai.scheduler/segment-size",
];

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        (0_u64..12).prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[0-9]{1,2}|[a-z]{0,3}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((prop::sample::select(FIELDS), inner), 0..6).prop_map(
                |entries| {
                    let map: Map<_, _> = entries
                        .into_iter()
                        .map(|(key, value)| (key.to_owned(), value))
                        .collect();
                    Value::Object(map)
                }
            ),
        ]
    })
}

fn labels(index: u32) -> Value {
    let index = index.to_string();
    json!({
        "training.kubeflow.org/replica-type": "worker",
        "training.kubeflow.org/replica-index": index,
        "leaderworkerset.sigs.k8s.io/worker-index": index,
        "jobset.sigs.k8s.io/replicatedjob-name": "a",
        "jobset.sigs.k8s.io/job-index": index,
    })
}

fn pod(index: u32) -> Value {
    json!({"metadata": {"name": "p", "namespace": "lab", "labels": labels(index)}})
}

fn owner(row: &apportion_groups::OwnerKindEntry<'_>, spec: &Value) -> Value {
    json!({"kind": row.kind, "apiVersion": format!("{}/v1", row.api_group), "spec": spec,
        "metadata": {"name": "o", "namespace": "lab", "uid": "7"}})
}

proptest! {
    #[test]
    fn no_owner_makes_a_rule_panic_or_a_broken_tree(spec in any_json(), index in 0_u32..20) {
        let (pod, objects, settings) = (pod(index), ObjectStore::default(), GroupingSettings::default());
        for row in TABLE {
            let owner = owner(row, &spec);
            let chain = vec![ObjectView::new(&owner)];
            let workload = GroupingInput::new(ObjectView::new(&pod), chain, &objects, &settings);
            let Ok(group) = group_by(row, &workload) else { continue };
            for (at, part) in group.sub_groups.iter().enumerate() {
                let mut above = group.sub_groups[..at].iter();
                prop_assert!(part.parent.as_ref().is_none_or(|parent| above.any(|p| &p.name == parent)), "{group:?}");
            }
        }
    }

    #[test]
    fn segments_share_out_the_workers_and_each_worker_has_one(
        workers in 1_u32..200,
        size in 1_u32..40,
        least in 1_u32..250,
        index in 0_u32..200,
    ) {
        let index = index % workers;
        let template = json!({"metadata": {"annotations":
            {"kai.scheduler/segment-size": size.to_string()}}});
        let spec = json!({"elasticPolicy": {"minReplicas": least},
            "pytorchReplicaSpecs": {"Worker": {"replicas": workers, "template": template}}});
        let row = apportion_groups::row_of(ObjectView::new(
            &json!({"kind": "PyTorchJob", "apiVersion": "kubeflow.org/v1"}),
        )).to_owned();
        let (owner, pod) = (owner(&row, &spec), pod(index));
        let (objects, settings) = (ObjectStore::default(), GroupingSettings::default());
        let chain = vec![ObjectView::new(&owner)];
        let workload = GroupingInput::new(ObjectView::new(&pod), chain, &objects, &settings);
        let group = group_by(&row, &workload).expect("it is well formed");
        let sum: u32 = group.sub_groups.iter().map(|part| part.min_member).sum();
        let holders = group.sub_groups.iter().filter(|part| !part.pods.is_empty()).count();
        // A segment that is needed at all must start whole.
        prop_assert_eq!(sum, (least.div_ceil(size) * size).min(workers));
        prop_assert_eq!(holders, 1);
    }

    #[test]
    fn every_pod_of_a_leader_worker_set_is_in_one_part(
        size in 1_u32..60,
        segment in 1_u32..20,
        excluded: bool,
        index in 0_u32..60,
    ) {
        let kind = if excluded { "LeaderExcluded" } else { "LeaderWorker" };
        let policy = json!({"subGroupSize": segment, "subGroupPolicyType": kind});
        let owner = json!({"spec": {"leaderWorkerTemplate": {"subGroupPolicy": policy}}});
        let pod = pod(index % size);
        let parts = apportion_groups::kai_cases::leader_worker_sub_groups(
            ObjectView::new(&owner), ObjectView::new(&pod), size,
        );
        let fits = (2..=size).contains(&segment);
        let fills = fits && (!excluded || (size - 1).is_multiple_of(segment));
        prop_assert_eq!(parts.is_ok(), fills);
        let Ok(parts) = parts else { return Ok(()) };
        let sum: u32 = parts.iter().map(|part| part.min_member).sum();
        let holders = parts.iter().filter(|part| !part.pods.is_empty()).count();
        prop_assert_eq!((sum, holders), (size, 1));
    }
}
