//! The chart beside operators of other projects, as they are released: their workloads share GPUs, and start whole.

use std::path::Path;

use apportion_cluster::release::Release;
use apportion_cluster::{eventually, image, operators};
use serde_json::{Value, json};

const STATE: &str = "/run/apportion/operators";
/// What a pod of KAI's users has on it.
const SCHEDULER: &str = "kai-scheduler";
const SCRIPT: &str = "victim total hold";
const GROUP: &str = ".metadata.labels.runai-gpu-group";

#[test]
#[ignore = "it builds two operators from their Go modules: `cargo xtask cluster test --suite operators -- --ignored`"]
fn workloads_of_released_operators_share_gpus_and_start_whole() {
    let mut release = Release::prepare(STATE, "simulatedGpus=2", &[]);
    release.install();
    release.rolled_out();
    release.shares_are_taken("the webhook is trusted");
    let modules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kubernetes");
    operators::start(&mut release.cluster, &modules).unwrap();

    let _workloads = Workloads(&release);
    for (fits, lacks) in [
        (
            leader_worker_set("fits", 2, "0.4"),
            leader_worker_set("lacks", 3, "0.6"),
        ),
        (
            ray_cluster("fits", 1, "0.4"),
            ray_cluster("lacks", 3, "0.6"),
        ),
    ] {
        release.cluster.apply(&lacks).unwrap();
        release.cluster.apply(&fits).unwrap();
        let kind = fits["kind"].as_str().unwrap();
        eventually(&format!("the pods of {kind} run"), || {
            let pods = pods(&release, "fits");
            pods.len() == 2 && pods.iter().all(|pod| phase(&release, pod) == "Running")
        });
        let shares = pods(&release, "fits");
        let shares = shares
            .iter()
            .filter(|pod| !release.at(pod, GROUP).is_empty());
        // The head of a Ray cluster asks for none.
        let expected = if kind == "RayCluster" { 1 } else { 2 };
        assert_eq!(shares.count(), expected, "{kind}");
        let waiting = pods(&release, "lacks");
        assert!(!waiting.is_empty(), "{kind}");
        for pod in waiting {
            assert_eq!(release.at(&pod, ".spec.nodeName"), "", "{pod} of {kind}");
        }
        delete(&release, kind);
        eventually("all of them are gone", || {
            ["fits", "lacks"]
                .iter()
                .all(|name| pods(&release, name).is_empty())
        });
    }
}

/// The workloads go with the suite, also where it fails.
struct Workloads<'r>(&'r Release);

impl Drop for Workloads<'_> {
    fn drop(&mut self) {
        for kind in ["LeaderWorkerSet", "RayCluster"] {
            delete(self.0, kind);
        }
    }
}

fn delete(release: &Release, kind: &str) {
    let gone = [
        "delete",
        kind,
        "fits",
        "lacks",
        "--ignore-not-found",
        "--wait=false",
    ];
    let _ = release.cluster.kubectl(&gone);
}

/// The pods of a workload, by the label that each has.
fn pods(release: &Release, workload: &str) -> Vec<String> {
    let selector = format!("suite=operators,workload={workload}");
    let get = [
        "get",
        "pods",
        "-l",
        &selector,
        "-o",
        "jsonpath={.items[*].metadata.name}",
    ];
    let names = release.cluster.kubectl(&get).unwrap_or_default();
    names.split_whitespace().map(str::to_owned).collect()
}

fn phase(release: &Release, pod: &str) -> String {
    release.at(pod, ".status.phase")
}

fn template(workload: &str, fraction: Option<&str>) -> Value {
    let mut template = json!({"metadata": {"labels": {"suite": "operators", "workload": workload}, "annotations": {
            // KubeRay starts Ray in the container, unless this is said.
            "ray.io/overwrite-container-cmd": "true"}},
        "spec": {"schedulerName": SCHEDULER, "terminationGracePeriodSeconds": 1, "containers": [
            {"name": "main", "image": image::VICTIM, "imagePullPolicy": "Never",
                "command": ["/bin/sh", "-c", SCRIPT]}]}});
    match fraction {
        Some(fraction) => template["metadata"]["annotations"]["gpu-fraction"] = fraction.into(),
        None => template["spec"]["containers"][0]["command"][2] = "sleep 3600".into(),
    }
    template
}

fn leader_worker_set(name: &str, size: u32, fraction: &str) -> Value {
    json!({"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": {"name": name},
        "spec": {"replicas": 1, "leaderWorkerTemplate": {"size": size,
            "leaderTemplate": template(name, Some(fraction)), "workerTemplate": template(name, Some(fraction))}}})
}

fn ray_cluster(name: &str, workers: u32, fraction: &str) -> Value {
    json!({"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": name},
        "spec": {"headGroupSpec": {"rayStartParams": {}, "template": template(name, None)},
            "workerGroupSpecs": [{"groupName": "workers", "replicas": workers, "minReplicas": workers,
                "maxReplicas": workers, "rayStartParams": {}, "template": template(name, Some(fraction))}]}})
}
