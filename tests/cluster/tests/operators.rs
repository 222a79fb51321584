//! The chart with released operators of other projects: their workloads share GPUs, and gangs start as a whole.
#![expect(clippy::unwrap_used, reason = "a test may")]

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use apportion_cluster::managed::template as claim_template;
use apportion_cluster::operators::{CLAIMED_MEMORY, WorkloadOperator};
use apportion_cluster::release::ChartRelease;
use apportion_cluster::{eventually, image, operators};
use serde_json::{Value, json};

/// The cluster has room for one release of the chart.
static TURN: Mutex<()> = Mutex::new(());

const STATE: &str = "/run/apportion/operators";
/// The scheduler name in pods of KAI's users.
const SCHEDULER: &str = "kai-scheduler";
const SCRIPT: &str = "victim total hold";
const REASON: &str = r#".status.conditions[?(@.type=="PodScheduled")].message"#;
const GROUP: &str = ".metadata.labels.runai-gpu-group";

/// The resource with the MiB of shares, for other projects' quotas, and Kueue's label.
const SHARE_MIB: &str = "apportion.dev/gpu-share-mib";
const QUEUE_NAME: &str = "kueue.x-k8s.io/queue-name";
/// The quota of Kueue's queue, and the share of each of its workloads, in MiB.
const QUOTA: u32 = 6000;
const SHARE: u32 = 2000;

#[test]
#[ignore = "it builds operators from their Go modules: `cargo xtask cluster test --suite operators -- --ignored`"]
fn workloads_of_released_operators_share_gpus_and_start_whole() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut release = ChartRelease::prepare(STATE, "simulatedGpus=2,webhook.countShares=true", &[]);
    release.install();
    release.rolled_out();
    release.shares_are_taken("the webhook is trusted");
    let modules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kubernetes");
    let all = [
        WorkloadOperator::JobSet,
        WorkloadOperator::Training,
        WorkloadOperator::LeaderWorkerSet,
        WorkloadOperator::KubeRay,
        WorkloadOperator::Kueue,
    ];
    operators::start(&mut release.cluster, &modules, &all).unwrap();

    let _workloads = WorkloadCleanup(&release);
    // A Ray cluster also has a head, which asks for no share.
    gangs_start_whole(
        &release,
        |name, pods, fraction| ray_cluster(name, pods - 1, fraction),
        1,
    );
    gangs_start_whole(&release, leader_worker_set, 2);
    gangs_start_whole(&release, job_set, 2);
    gangs_start_whole(&release, pytorch_job, 2);
    kueue_admits_what_its_quota_allows(&release);
}

/// Of two workloads on two GPUs, the one that fits runs, and the other has no bound pod. `shares` pods of the first ask
/// for a share.
fn gangs_start_whole(
    release: &ChartRelease,
    workload: impl Fn(&str, u32, &str) -> Value,
    shares: usize,
) {
    release.cluster.apply(&workload("lacks", 4, "0.6")).unwrap();
    let fits = workload("fits", 2, "0.4");
    release.cluster.apply(&fits).unwrap();
    let kind = fits["kind"].as_str().unwrap();
    eventually(&format!("the pods of {kind} run"), || {
        let pods = pods(release, "fits");
        pods.len() == 2 && pods.iter().all(|pod| phase(release, pod) == "Running")
    });
    let own = pods(release, "fits");
    let own = own.iter().filter(|pod| !release.at(pod, GROUP).is_empty());
    assert_eq!(own.count(), shares, "{kind}");
    let waiting = pods(release, "lacks");
    assert!(!waiting.is_empty(), "{kind}");
    for pod in waiting {
        assert_eq!(release.at(&pod, ".spec.nodeName"), "", "{pod} of {kind}");
        let reason = release.at(&pod, REASON);
        assert!(
            !reason.contains("host port"),
            "{pod} of {kind} waits: {reason}"
        );
    }
    delete(release, kind);
    eventually("all of them are gone", || {
        let left = ["fits", "lacks"]
            .iter()
            .flat_map(|name| pods(release, name));
        left.count() == 0
    });
}

/// Kueue counts plain pods as the webhook has completed them, and Jobs by their templates.
fn kueue_admits_what_its_quota_allows(release: &ChartRelease) {
    let quota = QUOTA.to_string();
    let quotas = [("apportion.dev/gpu-slot", "100"), (SHARE_MIB, &quota)];
    for object in kueue_queue("shares", &quotas) {
        eventually("Kueue takes its queue", || {
            release.cluster.apply(&object).is_ok()
        });
    }
    let names: Vec<String> = (0..4).map(|number| format!("kueued-{number}")).collect();
    for name in &names {
        release.cluster.apply(&kueued_pod(name)).unwrap();
    }
    let running = || {
        let all = pods(release, "kueued").into_iter();
        let running = all.filter(|pod| phase(release, pod) == "Running");
        running.collect::<Vec<_>>()
    };
    let fit = usize::try_from(QUOTA / SHARE).unwrap();
    eventually("as many pods run as the quota allows", || {
        running().len() == fit
    });
    let waiting: Vec<_> = names
        .iter()
        .filter(|name| phase(release, name) != "Running")
        .collect();
    let [waiting] = waiting[..] else {
        panic!("{waiting:?} wait");
    };
    let gates = release.at(waiting, ".spec.schedulingGates[*].name");
    assert!(gates.contains("kueue.x-k8s.io/admission"), "{gates}");

    release.kubectl(&["delete", "pod", &running()[0], "--wait=false"]);
    eventually("the next one runs", || phase(release, waiting) == "Running");
    let pod = ["delete", "pods", "-l", "workload=kueued", "--wait=false"];
    release.kubectl(&pod);
    eventually("the quota is free", || pods(release, "kueued").is_empty());

    for name in ["first", "second"] {
        release.cluster.apply(&kueued_job(name)).unwrap();
    }
    let suspended = || {
        let get = [
            "get",
            "jobs",
            "first",
            "second",
            "-o",
            "jsonpath={.items[*].spec.suspend}",
        ];
        let mut all: Vec<_> = release
            .kubectl(&get)
            .split_whitespace()
            .map(str::to_owned)
            .collect();
        all.sort();
        all.join(" ")
    };
    eventually("one of two Jobs is admitted", || {
        suspended() == "false true"
    });
    eventually("its pod runs", || running().len() == 1);
    let admitted = release.at(&running()[0], r".metadata.labels.job-name");
    release.kubectl(&["delete", "job", &admitted, "--wait=false"]);
    eventually("the other Job's pod runs", || {
        let running = running();
        running.len() == 1 && !running[0].starts_with(&admitted)
    });
}

/// Kueue counts what Jobs ask for by claims, in the capacity of the agent's ResourceSlice. kube-scheduler places them.
#[test]
#[ignore = "it builds Kueue from its Go module: `cargo xtask cluster test --suite operators -- --ignored`"]
fn kueue_counts_the_memory_of_claims() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut release = ChartRelease::prepare(STATE, "simulatedGpus=2,dra.enabled=true", &[]);
    release.install();
    release.rolled_out();
    let modules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kubernetes");
    let kueue = [WorkloadOperator::Kueue];
    operators::start(&mut release.cluster, &modules, &kueue).unwrap();
    let release = &release;
    let _workloads = WorkloadCleanup(release);
    let quota = format!("{QUOTA}Mi");
    for object in kueue_queue("claims", &[(CLAIMED_MEMORY, &quota)]) {
        eventually("Kueue takes its queue", || {
            release.cluster.apply(&object).is_ok()
        });
    }
    let memory = format!("{SHARE}Mi");
    let template = claim_template("kueued", Some(&memory), None);
    release.cluster.apply(&template).unwrap();
    let names: Vec<String> = (0..4).map(|number| format!("claimed-{number}")).collect();
    for name in &names {
        release.cluster.apply(&claimed_job(name)).unwrap();
    }
    let running = || {
        let all = pods(release, "claimed").into_iter();
        let running = all.filter(|pod| phase(release, pod) == "Running");
        running.collect::<Vec<_>>()
    };
    let fit = usize::try_from(QUOTA / SHARE).unwrap();
    eventually("as many Jobs run as the quota of memory allows", || {
        running().len() == fit
    });
    let usage = r"jsonpath={.status.flavorsUsage[0].resources[0].total}";
    let used = release.kubectl(&["get", "clusterqueue", "claims", "-o", usage]);
    assert_eq!(used, quota, "Kueue counts what runs");
    let waiting = names.iter().filter(|name| {
        let suspended = ["get", "job", name, "-o", "jsonpath={.spec.suspend}"];
        release.kubectl(&suspended) == "true"
    });
    let waiting: Vec<_> = waiting.collect();
    let [waiting] = waiting[..] else {
        panic!("{waiting:?} wait");
    };
    let admitted = release.at(&running()[0], r".metadata.labels.job-name");
    release.kubectl(&["delete", "job", &admitted, "--wait=false"]);
    eventually("the next Job runs", || {
        running()
            .iter()
            .any(|pod| pod.starts_with(waiting.as_str()))
    });
    release.kubectl(&["delete", "jobs", "-l", "workload=claimed", "--wait=false"]);
    eventually("every claim is gone", || {
        release
            .kubectl(&["get", "resourceclaims", "-o", "name"])
            .is_empty()
    });
}

/// Deletes the workloads at the end, even after a failure.
struct WorkloadCleanup<'r>(&'r ChartRelease);

impl Drop for WorkloadCleanup<'_> {
    fn drop(&mut self) {
        for kind in ["LeaderWorkerSet", "RayCluster", "JobSet", "PyTorchJob"] {
            delete(self.0, kind);
        }
        for kind in ["jobs", "pods"] {
            let gone = [
                "delete",
                kind,
                "-l",
                "workload in (kueued, claimed)",
                "--wait=false",
            ];
            let _ = self.0.cluster.kubectl(&gone);
        }
    }
}

fn delete(release: &ChartRelease, kind: &str) {
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

/// The pods of a workload, by their common label.
fn pods(release: &ChartRelease, workload: &str) -> Vec<String> {
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

fn phase(release: &ChartRelease, pod: &str) -> String {
    release.at(pod, ".status.phase")
}

fn template(workload: &str, fraction: Option<&str>) -> Value {
    let mut template = json!({"metadata": {"labels": {"suite": "operators", "workload": workload}, "annotations": {
            // Without this, KubeRay starts Ray in the container.
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

fn job_set(name: &str, pods: u32, fraction: &str) -> Value {
    let mut template = template(name, Some(fraction));
    template["spec"]["restartPolicy"] = "Never".into();
    json!({"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": name},
        "spec": {"replicatedJobs": [{"name": "workers", "replicas": 1, "template": {"spec": {
            "parallelism": pods, "completions": pods, "template": template}}}]}})
}

/// A master and a worker, with ports of their own in the node's network. For more pods, each asks for more GPUs.
fn pytorch_job(name: &str, pods: u32, fraction: &str) -> Value {
    let first = if name == "fits" { 23456 } else { 23466 };
    let replica = |number: u32| {
        let mut template = template(name, Some(fraction));
        template["metadata"]["annotations"]["gpu-fraction-num-devices"] =
            (pods / 2).to_string().into();
        let container = &mut template["spec"]["containers"][0];
        // The operator requires a container and a port of these names.
        container["name"] = "pytorch".into();
        container["ports"] = json!([{"name": "pytorchjob-port", "containerPort": first + number}]);
        json!({"replicas": 1, "restartPolicy": "Never", "template": template})
    };
    json!({"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": name},
        "spec": {"pytorchReplicaSpecs": {"Master": replica(0), "Worker": replica(1)}}})
}

/// Each worker has a group of its own. Pods here are in the node's network, so each container needs its own port for
/// the metrics that KubeRay adds.
fn ray_cluster(name: &str, workers: u32, fraction: &str) -> Value {
    let first = if name == "fits" { 8180 } else { 8280 };
    let with_port = |mut template: Value, number: u32| {
        template["spec"]["containers"][0]["ports"] =
            json!([{"name": "metrics", "containerPort": first + number}]);
        template
    };
    let group = |number: u32| {
        json!({"groupName": format!("workers-{number}"), "replicas": 1, "minReplicas": 1, "maxReplicas": 1,
            "rayStartParams": {}, "template": with_port(template(name, Some(fraction)), number)})
    };
    let groups: Vec<Value> = (1..=workers).map(group).collect();
    json!({"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": name},
        "spec": {"headGroupSpec": {"rayStartParams": {}, "template": with_port(template(name, None), 0)},
            "workerGroupSpecs": groups}})
}

/// Kueue's objects for a queue with these quotas.
fn kueue_queue(queue: &str, quotas: &[(&str, &str)]) -> [Value; 3] {
    let version = "kueue.x-k8s.io/v1beta2";
    let covered: Vec<&str> = quotas.iter().map(|(name, _)| *name).collect();
    let quotas = quotas
        .iter()
        .map(|(name, quota)| json!({"name": name, "nominalQuota": quota}));
    let quotas: Vec<Value> = quotas.collect();
    [
        json!({"apiVersion": version, "kind": "ResourceFlavor", "metadata": {"name": "any"}}),
        json!({"apiVersion": version, "kind": "ClusterQueue", "metadata": {"name": queue}, "spec": {
            "namespaceSelector": {}, "resourceGroups": [
                {"coveredResources": covered, "flavors": [{"name": "any", "resources": quotas}]}]}}),
        json!({"apiVersion": version, "kind": "LocalQueue",
            "metadata": {"name": queue, "namespace": "default"}, "spec": {"clusterQueue": queue}}),
    ]
}

/// A pod without resources. The webhook adds them.
fn kueued_pod(name: &str) -> Value {
    let mut pod = template("kueued", None);
    pod["apiVersion"] = "v1".into();
    pod["kind"] = "Pod".into();
    pod["metadata"]["name"] = name.into();
    pod["metadata"]["labels"][QUEUE_NAME] = "shares".into();
    pod["metadata"]["annotations"]["gpu-memory"] = SHARE.to_string().into();
    pod["spec"]["containers"][0]["command"][2] = SCRIPT.into();
    pod
}

/// Two of these Jobs exceed the quota.
fn kueued_job(name: &str) -> Value {
    let share = (2 * SHARE).to_string();
    let mut template = template("kueued", None);
    template["metadata"]["annotations"]["gpu-memory"] = share.clone().into();
    template["spec"]["restartPolicy"] = "Never".into();
    let container = &mut template["spec"]["containers"][0];
    container["command"][2] = SCRIPT.into();
    container["resources"] = json!({"limits": {"apportion.dev/gpu-slot": "1", SHARE_MIB: share}});
    json!({"apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": name, "labels": {QUEUE_NAME: "shares", "workload": "kueued"}},
        "spec": {"suspend": true, "template": template}})
}

/// A Job whose pod asks for a share by a claim, and that kube-scheduler places.
fn claimed_job(name: &str) -> Value {
    let mut template = template("claimed", None);
    template["spec"]["restartPolicy"] = "Never".into();
    template["spec"]["schedulerName"] = "default-scheduler".into();
    template["spec"]["resourceClaims"] =
        json!([{"name": "gpu", "resourceClaimTemplateName": "kueued"}]);
    let container = &mut template["spec"]["containers"][0];
    container["command"][2] = SCRIPT.into();
    container["resources"] = json!({"claims": [{"name": "gpu"}]});
    json!({"apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": name, "labels": {QUEUE_NAME: "claims", "workload": "claimed"}},
        "spec": {"suspend": true, "template": template}})
}
