//! Services and sets of leaders and workers.

use serde_json::{Value, json};

use crate::case::{Case, owner, parts, with};

#[test]
fn the_replicas_of_a_deployment_do_not_wait_for_each_other() {
    let group = Case::of(owner("apps/v1", "Deployment", json!({"replicas": 4}))).group();
    assert_eq!((group.name.as_str(), group.min_member), ("pg-p-9", 1));
    assert_eq!(
        (group.owner.kind.as_str(), group.priority_class.as_str()),
        ("Pod", "inference")
    );
}

#[test]
fn each_replica_of_a_leader_worker_set_is_a_gang() {
    let spec = json!({"leaderWorkerTemplate": {"size": 4}});
    let set = |spec: Value| {
        Case::of(owner(
            "leaderworkerset.x-k8s.io/v1",
            "LeaderWorkerSet",
            spec,
        ))
    };
    let group = set(spec)
        .label("leaderworkerset.sigs.k8s.io/group-index", "2")
        .label("leaderworkerset.sigs.k8s.io/worker-index", "0")
        .group();
    assert_eq!(
        (group.name.as_str(), group.min_member),
        ("pg-o-7-group-2", 4)
    );
    assert_eq!(parts(&group), [("leader", 1, 1), ("workers", 3, 0)]);

    let waiting = json!({"startupPolicy": "LeaderReady", "leaderWorkerTemplate": {"size": 4}});
    let mut leader = set(waiting).label("leaderworkerset.sigs.k8s.io/worker-index", "0");
    assert_eq!(leader.group().min_member, 1);
    leader.pod["spec"]["nodeName"] = "n1".into();
    assert_eq!(leader.group().min_member, 4);
}

#[test]
fn a_leader_is_in_the_first_segment_or_beside_them() {
    let group = |size: u32, segment: u32, kind: &str, index: &str| {
        let policy = json!({"subGroupSize": segment, "subGroupPolicyType": kind});
        let spec = json!({"leaderWorkerTemplate": {"size": size, "subGroupPolicy": policy}});
        Case::of(owner(
            "leaderworkerset.x-k8s.io/v1",
            "LeaderWorkerSet",
            spec,
        ))
        .label("leaderworkerset.sigs.k8s.io/worker-index", index)
        .group()
    };
    // Six pods in threes: the leader takes a worker's place.
    let even = group(6, 3, "LeaderWorker", "3");
    let expected = [
        ("segment-0", 0, 0),
        ("leader", 1, 0),
        ("workers", 2, 0),
        ("segment-1", 3, 1),
    ];
    assert_eq!(parts(&even), expected);
    // Seven: it comes on top.
    let odd = group(7, 3, "LeaderWorker", "3");
    let expected = [
        ("segment-0", 0, 0),
        ("leader", 1, 0),
        ("workers", 3, 1),
        ("segment-1", 3, 0),
    ];
    assert_eq!(parts(&odd), expected);
    let beside = group(6, 3, "LeaderExcluded", "5");
    assert_eq!(
        parts(&beside),
        [("leader", 1, 0), ("segment-0", 3, 0), ("segment-1", 2, 1)]
    );
}

#[test]
fn the_pods_of_a_knative_revision_start_together() {
    let service = owner("serving.knative.dev/v1", "Service", json!({}));
    let revision = with(
        json!({"kind": "Revision", "metadata": {"name": "r", "namespace": "lab", "uid": "5"}}),
        "annotations",
        "autoscaling.knative.dev/min-scale",
        "3",
    );
    let case = || {
        Case::of(service.clone())
            .label("serving.knative.dev/revision", "r")
            .beside(revision.clone())
    };
    let group = case().group();
    assert_eq!((group.name.as_str(), group.min_member), ("pg-r-5", 3));
    assert_eq!(group.priority_class, "inference");
    let old = json!({"kind": "Pod", "metadata": {"name": "q", "namespace": "lab", "uid": "4",
        "labels": {"serving.knative.dev/revision": "r"},
        "annotations": {"pod-group-name": "pg-q-4"}}});
    assert_eq!(case().beside(old).group().name, "pg-p-9");
    let mut off = case();
    off.settings.gang_knative = false;
    assert_eq!(off.group().name, "pg-p-9");
}

#[test]
fn a_gang_of_grove_says_everything() {
    let gang = json!({"kind": "PodGang", "apiVersion": "scheduler.grove.io/v1alpha1",
        "metadata": {"name": "g", "namespace": "lab", "uid": "3",
            "annotations": {"grove.io/topology-name": "dc"}},
        "spec": {"topologyConstraintGroupConfigs": [
                {"name": "inner", "podGroupNames": ["a", "gone"],
                 "topologyConstraint": {"packConstraint": {"required": "rack"}}},
                {"name": "void", "podGroupNames": []}],
            "podgroups": [
                {"name": "a", "minReplicas": 2, "podReferences": [{"namespace": "lab", "name": "p"}]},
                {"name": "b", "minReplicas": 1, "podReferences": []}]}});
    let set = owner("grove.io/v1alpha1", "PodCliqueSet", json!({}));
    let case = |gang: &Value| {
        Case::of(set.clone())
            .label("grove.io/podgang", "g")
            .beside(gang.clone())
    };
    let group = case(&gang).group();
    assert_eq!((group.name.as_str(), group.min_member), ("pg-g-3", 3));
    assert_eq!(parts(&group), [("inner", 0, 0), ("a", 2, 1), ("b", 1, 0)]);
    assert_eq!(group.sub_groups[0].min_sub_group, Some(1));
    let mut greedy = gang;
    greedy["spec"]["podgroups"][0]["podReferences"][0]["namespace"] = "other".into();
    assert!(case(&greedy).complaint().contains("cross-namespace"));
}
