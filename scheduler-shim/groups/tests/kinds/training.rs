//! Jobs with roles, Ray, and kinds described by a Karta.

use serde_json::{Value, json};

use crate::case::{GroupingCase, owner, parts};

#[test]
fn all_roles_of_a_training_job_start_together() {
    for (kind, field, roles, expected) in [
        (
            "TFJob",
            "tfReplicaSpecs",
            json!({"Chief": {"replicas": 1}, "PS": {"replicas": 2}}),
            3,
        ),
        (
            "JAXJob",
            "jaxReplicaSpecs",
            json!({"Worker": {"replicas": 5}}),
            5,
        ),
        (
            "XGBoostJob",
            "xgbReplicaSpecs",
            json!({"Master": {"replicas": 1}, "Worker": {"replicas": 3}}),
            4,
        ),
        (
            "MPIJob",
            "mpiReplicaSpecs",
            json!({"Launcher": {"replicas": 1}, "Worker": {"replicas": 3}}),
            4,
        ),
    ] {
        let job = |spec: Value| GroupingCase::of(owner("kubeflow.org/v1", kind, spec));
        assert_eq!(
            job(json!({field: roles.clone()})).group().min_member,
            expected,
            "{kind}"
        );
        let stated = json!({field: roles, "runPolicy": {"schedulingPolicy": {"minAvailable": 2}}});
        assert_eq!(job(stated).group().min_member, 2, "{kind}");
        assert!(job(json!({})).complaint().contains(field), "{kind}");
        for (replicas, why) in [
            (json!(0), "Worker.replicas"),
            (json!(null), "Worker.replicas"),
            (json!("3"), "Worker.replicas"),
            (json!(-2), "Must be greater than 0"),
        ] {
            let one = json!({"replicas": 1});
            let roles = json!({"Master": one, "Launcher": one, "Worker": {"replicas": replicas}});
            let complaint = job(json!({field: roles})).complaint();
            assert!(complaint.contains(why), "{kind}: {complaint}");
        }
    }
}

#[test]
fn a_launcher_that_waits_for_its_workers_is_not_waited_for() {
    let spec = json!({"launcherCreationPolicy": "WaitForWorkersReady",
        "mpiReplicaSpecs": {"Launcher": {"replicas": 1}, "Worker": {"replicas": 2}}});
    let case = GroupingCase::of(owner("kubeflow.org/v2beta1", "MPIJob", spec));
    assert_eq!(case.group().min_member, 2);
    let labels = json!({"training.kubeflow.org/job-name": "o",
        "training.kubeflow.org/job-role": "launcher"});
    let launcher = json!({"kind": "Pod",
        "metadata": {"name": "l", "namespace": "lab", "labels": labels}});
    let mut case = case.beside(launcher);
    assert_eq!(case.group().min_member, 3);
    case.others[0]["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z".into();
    assert_eq!(case.group().min_member, 2);
}

#[test]
fn the_workers_of_a_pytorch_job_are_cut_into_segments() {
    let annotations = json!({"kai.scheduler/segment-size": "3", "kai.scheduler/topology": "dc",
        "kai.scheduler/segment-topology-required-placement": "rack"});
    let spec = json!({"elasticPolicy": {"minReplicas": 5}, "pytorchReplicaSpecs": {
        "Master": {"replicas": 1},
        "Worker": {"replicas": 7, "template": {"metadata": {"annotations": annotations}}}}});
    let group = GroupingCase::of(owner("kubeflow.org/v1", "PyTorchJob", spec))
        .label("training.kubeflow.org/replica-type", "worker")
        .label("training.kubeflow.org/replica-index", "5")
        .group();
    let expected = [
        ("master", 1, 0),
        ("worker", 0, 0),
        ("worker-0", 3, 0),
        ("worker-1", 3, 1),
        ("worker-2", 0, 0),
    ];
    assert_eq!((group.min_member, parts(&group)), (5, expected.to_vec()));
    let wish = group.sub_groups[2].topology.as_ref().expect("it is placed");
    assert_eq!((wish.name.as_str(), wish.required.as_str()), ("dc", "rack"));
}

#[test]
fn a_ray_cluster_needs_its_head_and_the_least_of_each_group() {
    let spec = json!({"headGroupSpec": {}, "workerGroupSpecs": [
        {"groupName": "big", "replicas": 4, "minReplicas": 2, "numOfHosts": 2},
        {"replicas": 3},
        {"groupName": "none", "replicas": 0, "maxReplicas": 5},
        {"groupName": "off", "replicas": 9, "suspend": true}]});
    let cluster = owner("ray.io/v1", "RayCluster", spec);
    let expected = [("headgroup", 1, 0), ("big", 4, 1), ("worker-group-1", 3, 0)];
    let group = GroupingCase::of(cluster.clone())
        .label("ray.io/group", "big")
        .group();
    assert_eq!((group.min_member, parts(&group)), (8, expected.to_vec()));

    let mut job = owner("ray.io/v1", "RayJob", json!({}));
    assert!(
        GroupingCase::of(job.clone())
            .complaint()
            .contains("status.rayClusterName")
    );
    job["status"] = json!({"rayClusterName": "o"});
    assert_eq!(
        GroupingCase::of(job)
            .beside(cluster.clone())
            .group()
            .min_member,
        8
    );

    let mut service = owner("ray.io/v1", "RayService", json!({}));
    service["status"] = json!({"pendingServiceStatus": {"rayClusterName": "o"}});
    assert!(
        GroupingCase::of(service.clone())
            .complaint()
            .contains("rayclusters.ray.io \"o\" not found")
    );
    assert_eq!(
        GroupingCase::of(service).beside(cluster).group().owner.kind,
        "RayService"
    );
}

#[test]
fn a_ray_cluster_that_asks_for_what_cannot_be_is_refused() {
    let rack = json!({"metadata": {"annotations":
        {"kai.scheduler/topology-required-placement": "rack"}}});
    for (group, why) in [
        (
            json!({"replicas": 1, "minReplicas": 2}),
            "2 is more than its replicas, 1",
        ),
        (
            json!({"replicas": 2, "numOfHosts": -1}),
            "is -2, which is no number of pods",
        ),
        (json!({"replicas": "2"}), "is not a whole number"),
        (
            json!({"replicas": 2, "template": rack}),
            "kai.scheduler/topology",
        ),
    ] {
        let spec = json!({"workerGroupSpecs": [group]});
        let complaint = GroupingCase::of(owner("ray.io/v1", "RayCluster", spec)).complaint();
        assert!(complaint.contains(why), "{complaint}");
    }
}

#[test]
fn a_karta_describes_a_kind_that_no_row_knows() {
    let child = |name: &str| {
        json!({"name": name, "ownerRef": "flow",
            "specDefinition": {"podTemplateSpecPath": ".spec"},
            "scaleDefinition": {"replicasPath": format!(".spec.{name}")},
            "podSelector": {"componentTypeSelector":
                {"keyPath": ".metadata.labels.role", "value": name}}})
    };
    let flow = owner("example.com/v1", "Flow", json!({"head": 1, "hand": 4}));
    let case = |gang: Value| {
        let mut case = GroupingCase::of(flow.clone())
            .label("role", "hand")
            .label("run", "r1");
        case.settings.kartas.push(json!({"spec": {"structureDefinition": {
            "rootComponent": {"name": "flow", "kind": {"group": "example.com", "version": "v1", "kind": "Flow"}},
            "childComponents": [child("head"), child("hand")]},
            "instructions": {"gangScheduling": gang}}}));
        case
    };
    let whole = json!({"podGroup": {"name": "all"}});
    let group = case(whole).group();
    assert_eq!((group.name.as_str(), group.min_member), ("pg-7-all", 5));

    let listed = json!([{"componentName": "head"}, {"componentName": "hand"}]);
    let group = case(json!({"podGroup": {"name": "all", "subGroups": listed}})).group();
    assert_eq!(parts(&group), [("head", 1, 0), ("hand", 4, 1)]);
    assert_eq!(group.min_sub_group, Some(2));

    let member = |filter: &str| {
        json!({"podGroups": [{"name": "job", "members": [{"componentName": "hand",
            "groupByKeyPaths": [".metadata.labels.run"], "filters": [filter]}]}]})
    };
    let group = case(member(".metadata.labels.role == \"hand\"")).group();
    assert_eq!((group.name.as_str(), group.min_member), ("pg-7-r1", 4));
    let unfit = case(member(".metadata.labels.role == \"hand\"")).label("run", "Run 1");
    let complaint = unfit.complaint();
    assert!(
        complaint.contains("Karta grouping keys [Run 1] produce invalid Kubernetes PodGroup name"),
        "{complaint}"
    );
    let none = case(member(".metadata.labels.role == \"head\"")).complaint();
    assert!(
        none.contains("does not match any Karta pod group member definition"),
        "{none}"
    );
}
