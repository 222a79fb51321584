//! Services and LeaderWorkerSets.

use apportion_groups::GroupPreemptibility;
use serde_json::{Value, json};

use crate::case::{GroupingCase, owner, parts, with};

#[test]
fn the_replicas_of_a_deployment_do_not_wait_for_each_other() {
    let group = GroupingCase::of(owner("apps/v1", "Deployment", json!({"replicas": 4}))).group();
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
        GroupingCase::of(owner(
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
        GroupingCase::of(owner(
            "leaderworkerset.x-k8s.io/v1",
            "LeaderWorkerSet",
            spec,
        ))
        .label("leaderworkerset.sigs.k8s.io/worker-index", index)
        .group()
    };
    // Six pods in segments of three: the leader takes a worker's place.
    let even = group(6, 3, "LeaderWorker", "3");
    let expected = [
        ("segment-0", 0, 0),
        ("segment-1", 3, 1),
        ("leader", 1, 0),
        ("workers", 2, 0),
    ];
    assert_eq!(parts(&even), expected);
    // Seven pods: the leader comes on top.
    let odd = group(7, 3, "LeaderWorker", "3");
    let expected = [
        ("segment-0", 0, 0),
        ("segment-1", 3, 0),
        ("leader", 1, 0),
        ("workers", 3, 1),
    ];
    assert_eq!(parts(&odd), expected);
    let beside = group(7, 3, "LeaderExcluded", "5");
    assert_eq!(
        parts(&beside),
        [("leader", 1, 0), ("segment-0", 3, 0), ("segment-1", 3, 1)]
    );
    // If one segment has all pods, the leader is one of them.
    let single = group(4, 3, "LeaderWorker", "0");
    let expected = [("segment-0", 0, 0), ("leader", 1, 1), ("workers", 3, 0)];
    assert_eq!(parts(&single), expected);
}

#[test]
fn segments_that_cannot_be_cut_are_refused() {
    for (size, segment, kind, index, why) in [
        (6, 1, "LeaderWorker", "1", "invalid segment size"),
        (6, 7, "LeaderWorker", "1", "invalid segment size"),
        (6, 3, "LeaderExcluded", "1", "do not fill segments of 3"),
        (6, 3, "LeaderWorker", "9", "worker-index"),
        (
            6,
            3,
            "LeaderWorker",
            "-1",
            "is not valid. It must be bigger than 0",
        ),
        (0, 3, "LeaderWorker", "1", "leaderWorkerTemplate.size"),
    ] {
        let policy = json!({"subGroupSize": segment, "subGroupPolicyType": kind});
        let spec = json!({"leaderWorkerTemplate": {"size": size, "subGroupPolicy": policy}});
        let set = owner("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", spec);
        let case = GroupingCase::of(set).label("leaderworkerset.sigs.k8s.io/worker-index", index);
        let complaint = case.complaint();
        assert!(complaint.contains(why), "{complaint}");
    }
}

#[test]
fn segments_without_a_topology_are_placed_anywhere() {
    let annotations = json!({"kai.scheduler/segment-size": "2",
        "kai.scheduler/segment-topology-required-placement": "rack"});
    let template = json!({"metadata": {"annotations": annotations}});
    let spec = json!({"leaderWorkerTemplate": {"size": 4, "workerTemplate": template}});
    let set = owner("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", spec);
    let case =
        |set: Value| GroupingCase::of(set).label("leaderworkerset.sigs.k8s.io/worker-index", "2");
    let group = case(set.clone()).group();
    assert!(group.sub_groups.iter().all(|part| part.topology.is_none()));
    let placed = case(with(set, "annotations", "kai.scheduler/topology", "dc")).group();
    let wish = placed.sub_groups[1]
        .topology
        .as_ref()
        .expect("it is placed");
    assert_eq!((wish.name.as_str(), wish.required.as_str()), ("dc", "rack"));
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
        GroupingCase::of(service.clone())
            .label("serving.knative.dev/revision", "r")
            .beside(revision.clone())
    };
    let group = case().group();
    assert_eq!((group.name.as_str(), group.min_member), ("pg-r-5", 3));
    assert_eq!(group.priority_class, "inference");
    let old = |name: &str, group: &str| {
        json!({"kind": "Pod", "metadata": {"name": name, "namespace": "lab", "uid": "4",
            "labels": {"serving.knative.dev/revision": "r"}, "annotations": {"pod-group-name": group}}})
    };
    let one = |kind: &str| {
        let of = json!({"kind": "PodGroup", "metadata": {"name": "pg-q-4", "namespace": "lab",
            "ownerReferences": [{"kind": kind, "name": "q"}]}});
        case().beside(old("q", "pg-q-4")).beside(of)
    };
    assert_eq!(one("Pod").group().name, "pg-p-9");
    assert_eq!(one("Revision").group().name, "pg-r-5");
    assert!(
        one("Job")
            .complaint()
            .contains("'Job' is not a pod or a revision")
    );
    let two = |second: &str| case().beside(old("q", "pg-q-4")).beside(old("s", second));
    assert_eq!(two("pg-s-4").group().name, "pg-p-9");
    assert_eq!(two("pg-q-4").group().name, "pg-r-5");
    for (said, least) in [("0", 0), ("many", 1)] {
        let mut revision = revision.clone();
        revision["metadata"]["annotations"]["autoscaling.knative.dev/min-scale"] = said.into();
        assert_eq!(case().beside(revision).group().min_member, least, "{said}");
    }
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
        GroupingCase::of(set.clone())
            .label("grove.io/podgang", "g")
            .beside(gang.clone())
    };
    let group = case(&gang).group();
    assert_eq!((group.name.as_str(), group.min_member), ("pg-g-3", 3));
    assert_eq!(parts(&group), [("inner", 0, 0), ("a", 2, 1), ("b", 1, 0)]);
    assert_eq!(group.sub_groups[0].min_sub_group, Some(2));
    // The topmost owner's metadata fills gaps, and a label wins over the gang's spec.
    let mut labelled = case(&gang);
    labelled.owners[0]["metadata"]["labels"] = json!({"priorityClassName": "build",
        "kai.scheduler/preemptibility": "preemptible"});
    let group = labelled.group();
    assert_eq!(group.priority_class, "build");
    assert_eq!(group.preemptibility, Some(GroupPreemptibility::Preemptible));
    labelled.owners[0]["metadata"]["labels"]["kai.scheduler/preemptibility"] = "perhaps".into();
    assert!(
        labelled
            .complaint()
            .contains("'perhaps' is no preemptibility")
    );
    for (field, value, why) in [
        (
            "minReplicas",
            json!(0),
            "invalid 'minReplicas' field. Must be greater than 0",
        ),
        (
            "podReferences",
            json!([3]),
            "invalid spec.podgroup[1].podReferences[0] in PodGang lab/g",
        ),
        (
            "podReferences",
            json!([{"name": "p"}]),
            "missing required 'namespace' field",
        ),
    ] {
        let mut wrong = gang.clone();
        wrong["spec"]["podgroups"][1][field] = value;
        let complaint = case(&wrong).complaint();
        assert!(complaint.contains(why), "{complaint}");
    }
    let mut greedy = gang;
    greedy["spec"]["podgroups"][0]["podReferences"][0]["namespace"] = "other".into();
    assert!(case(&greedy).complaint().contains("cross-namespace"));
}
