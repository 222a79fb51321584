//! The cache gives the same as parsing everything again, whatever came and went.

use std::collections::BTreeMap;
use std::time::Duration;

use apportion_groups::GroupingSettings;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::cards::CardInventory;
use crate::inventory::ObjectInventory;
use crate::object_warnings::ObjectWarnings;
use crate::snapshot::snapshot;

/// What a pod may belong to: nothing, a group that it names, and owners of all sorts.
const MAKERS: u8 = 6;

fn owned(kind: &str, version: &str) -> Value {
    json!([{"apiVersion": version, "kind": kind, "name": "o", "uid": "o", "controller": true}])
}

fn pod(name: u8, way: u8) -> Value {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("p{name}"),
            "namespace": "default", "uid": format!("u{name}-{way}"),
            "annotations": {"gpu-fraction": "0.5"}, "labels": {"kai.scheduler/queue": "q"}},
        "spec": {"schedulerName": "kai-scheduler", "containers": [{"name": "main"}]},
        "status": {"phase": "Pending"}});
    match way % MAKERS {
        0 => {
            let chosen = json!({"matchLabels": {"env": "prod"}});
            let term =
                json!({"topologyKey": "zone", "labelSelector": {}, "namespaceSelector": chosen});
            pod["spec"]["affinity"]["podAffinity"] =
                json!({"requiredDuringSchedulingIgnoredDuringExecution": [term]});
        }
        1 => pod["metadata"]["annotations"]["pod-group-name"] = "g".into(),
        2 => pod["metadata"]["ownerReferences"] = owned("Job", "batch/v1"),
        3 => {
            pod["metadata"]["ownerReferences"] = owned("MPIJob", "kubeflow.org/v2beta1");
            let labels = &mut pod["metadata"]["labels"];
            labels["training.kubeflow.org/job-name"] = "o".into();
            labels["training.kubeflow.org/job-role"] =
                if name == 0 { "launcher" } else { "worker" }.into();
        }
        4 => pod["spec"]["priorityClassName"] = "mine".into(),
        _ => pod["metadata"]["annotations"]["gpu-fraction"] = "2".into(),
    }
    if way >= MAKERS {
        pod["spec"]["nodeName"] = "n0".into();
        pod["status"]["phase"] = "Running".into();
    }
    pod
}

/// One of the possible objects, in one of its variants.
fn object(which: u8, way: u8) -> Value {
    let named = |version: &str, kind: &str, name: &str| {
        json!({"apiVersion": version, "kind": kind,
            "metadata": {"name": name, "namespace": "default", "uid": name,
                "resourceVersion": way.to_string()},
            "spec": {}, "status": {"phase": way}})
    };
    match which {
        0..4 => pod(which, way),
        4 => {
            let mut group = named("scheduling.run.ai/v2alpha2", "PodGroup", "g");
            group["spec"] = json!({"minMember": way % 3, "queue": format!("q{}", way % 2)});
            group
        }
        5 => {
            let mut job = named("batch/v1", "Job", "o");
            let class = ["mine", "build"][usize::from(way % 2)];
            job["metadata"]["labels"] = json!({"priorityClassName": class});
            job
        }
        6 => {
            let mut job = named("kubeflow.org/v2beta1", "MPIJob", "o");
            job["spec"] = json!({"launcherCreationPolicy": "WaitForWorkersReady",
                "mpiReplicaSpecs": {"Launcher": {"replicas": 1}, "Worker": {"replicas": way % 3 + 1}}});
            job
        }
        7 => {
            let mut class = named("scheduling.k8s.io/v1", "PriorityClass", "mine");
            class["value"] = way.into();
            class["metadata"]["namespace"] = Value::Null;
            class
        }
        8 => {
            let env = ["prod", "test"][usize::from(way % 2)];
            json!({"apiVersion": "v1", "kind": "Namespace",
                "metadata": {"name": "space", "labels": {"env": env}}})
        }
        11 => {
            let mut group = named("scheduling.run.ai/v2alpha2", "PodGroup", "pg-o-o");
            let key = "kai.scheduler/top-owner-metadata";
            group["metadata"]["annotations"][key] = "{}".into();
            group["spec"] = json!({"minMember": way % 3, "queue": format!("q{}", way % 2)});
            group
        }
        _ => {
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("n{}", which % 2),
                "labels": {"nvidia.com/gpu.count": way.to_string()}}})
        }
    }
}

fn says(inventory: &ObjectInventory) -> String {
    let mut warnings = ObjectWarnings::default();
    let schedulers = ["kai-scheduler".to_owned()];
    let (nobody, nothing) = (BTreeMap::new(), CardInventory::default());
    let now = Duration::from_secs(1_800_000_000);
    let all = snapshot(
        inventory,
        &schedulers,
        &nobody,
        &nothing,
        now,
        &mut warnings,
    );
    let settings = GroupingSettings::default();
    let derived = (inventory.pods()).map(|(pod, read)| read.derived(pod, inventory, &settings));
    let derived: Vec<_> = derived.collect();
    format!(
        "{:#?}\n{:#?}\n{warnings:#?}\n{derived:#?}",
        all.cluster, all.strays
    )
}

proptest! {
    #[test]
    fn what_is_kept_is_what_reading_anew_says(
        steps in prop::collection::vec((0_u8..12, 0..2 * MAKERS, prop::bool::weighted(0.25)), 1..40)
    ) {
        let mut warnings = ObjectWarnings::default();
        let mut kept = ObjectInventory::of(Vec::new(), &mut warnings);
        let mut all: BTreeMap<u8, Value> = BTreeMap::new();
        for (which, way, goes) in steps {
            let json = object(which, way);
            if goes {
                kept.remove(&json);
                all.remove(&which);
            } else {
                kept.put(json.clone(), &mut warnings);
                all.insert(which, json);
            }
            let anew = ObjectInventory::of(all.values().cloned().collect(), &mut warnings);
            prop_assert_eq!(says(&kept), says(&anew));
            kept.drop_cache();
        }
    }
}
