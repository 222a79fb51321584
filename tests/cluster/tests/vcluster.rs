//! A tenant's pods in a virtual cluster of vCluster share GPUs of the host, with vCluster's program and chart unchanged.

use std::path::Path;

use apportion_cluster::release::ChartRelease;
use apportion_cluster::virtual_cluster::{NAMESPACE, VirtualCluster};
use apportion_cluster::{eventually, image};
use serde_json::{Value, json};

const STATE: &str = "/run/apportion/vcluster";
/// More than half of a card of 16 GiB, and then less.
const SCRIPT: &str = "victim total; victim alloc 9G; victim alloc 1000M hold";
/// The scheduler's words for a pod that waits for a share.
const WAITS: &str = "GPU memory; closest is";
const GROUP: &str = ".metadata.labels.runai-gpu-group";
const RECEIVED: &str = ".metadata.annotations.received-resource-type";
const REASON: &str = r#".status.conditions[?(@.type=="PodScheduled")].message"#;

#[test]
#[ignore = "it builds vCluster from its Go module: `cargo xtask cluster test --suite vcluster -- --ignored`"]
fn pods_of_a_virtual_cluster_share_a_gpu_of_the_host() {
    let release = ChartRelease::prepare(STATE, "simulatedGpus=1", &[]);
    release.install();
    release.rolled_out();
    release.shares_are_taken("the webhook is trusted");
    let modules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kubernetes");
    let tenant = Tenant(VirtualCluster::install(&release.cluster, &modules).unwrap());

    for name in ["first", "second"] {
        tenant.0.apply(&pod(name)).unwrap();
        eventually("the tenant sees its pod run", || {
            tenant.at(name, ".status.phase") == "Running"
        });
    }
    let groups = ["first", "second"].map(|name| tenant.at(name, GROUP));
    assert!(!groups[0].is_empty(), "the tenant sees the GPU group");
    assert_eq!(groups[0], groups[1], "both share one GPU");
    for name in ["first", "second"] {
        assert_eq!(tenant.at(name, RECEIVED), "Fraction");
        assert_eq!(
            tenant.at(name, ".spec.nodeName"),
            release.cluster.node(),
            "the tenant sees the node"
        );
        limit_holds(&release, name);
    }

    tenant.0.apply(&pod("third")).unwrap();
    eventually("the tenant sees why its pod waits", || {
        tenant.at("third", REASON).contains(WAITS)
    });
    eventually("the tenant has the event as well", || {
        let field = "--field-selector=involvedObject.name=third";
        let get = ["get", "events", field, "-o", "jsonpath={.items[*].message}"];
        let events = tenant.0.kubectl(&get);
        events.is_ok_and(|events| events.contains(WAITS))
    });
    assert_eq!(tenant.at("third", ".status.phase"), "Pending");

    let delete = ["delete", "pod", "first", "--wait=false"];
    tenant.0.kubectl(&delete).unwrap();
    eventually("the next one has its share", || {
        tenant.at("third", ".status.phase") == "Running"
    });
    limit_holds(&release, "third");
    tenant.0.kubectl(&["delete", "pods", "--all"]).unwrap();
    eventually("everything is free", || {
        release.gpu_node()["status"]["cards"][0]["allocatedBytes"] == 0
    });
}

/// A pod's copy saw a GPU of its share, and was refused what exceeds it.
fn limit_holds(release: &ChartRelease, pod: &str) {
    let copy = VirtualCluster::copy_of(pod);
    let logs = || release.kubectl(&["logs", &copy, "-n", NAMESPACE]);
    eventually("the program has asked for memory", || {
        logs().matches("alloc").count() == 2
    });
    let log = logs();
    let numbers: Vec<Vec<u64>> = log
        .lines()
        .map(|line| {
            line.split(' ')
                .filter_map(|word| word.parse().ok())
                .collect()
        })
        .collect();
    let [total, too_much, enough] = &numbers[..] else {
        panic!("{log}");
    };
    let limit = || {
        let card = release.gpu_node()["status"]["cards"][0].clone();
        let mut holders = card["holders"].as_array()?.iter();
        let holder = holders.find(|holder| holder["pod"] == copy.as_str())?;
        holder["limitBytes"].as_u64()
    };
    eventually("the agent publishes the share", || limit().is_some());
    assert_eq!(limit(), Some(total[1]), "{log}");
    assert_eq!(too_much[0], 2, "more than the share is refused: {log}");
    assert_eq!(enough[0], 0, "{log}");
}

/// What the tenant sees.
struct Tenant<'c>(VirtualCluster<'c>);

impl Tenant<'_> {
    /// The value at a path of one of its pods. Empty if there is no such pod.
    fn at(&self, pod: &str, path: &str) -> String {
        let path = format!("jsonpath={{{path}}}");
        let get = ["get", "pod", pod, "--ignore-not-found", "-o", &path];
        self.0.kubectl(&get).unwrap_or_default()
    }
}

/// A pod as the tenant writes it.
fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "annotations": {"gpu-fraction": "0.5"}},
        "spec": {"schedulerName": "kai-scheduler", "terminationGracePeriodSeconds": 1, "containers": [
            {"name": "main", "image": image::VICTIM, "imagePullPolicy": "Never",
                "command": ["/bin/sh", "-c", SCRIPT]}]}})
}
