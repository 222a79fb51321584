//! KAI Scheduler itself runs on a node, and Apportion is installed beside it: KAI goes on, and no GPU is given out twice.

use std::env;
use std::path::Path;

use apportion_cluster::operators::KaiScheduler;
use apportion_cluster::release::ChartRelease;
use apportion_cluster::{LocalCluster, eventually, image};
use apportion_sim_machine::{DriverGeneration, MachineConfig};
use serde_json::{Value, json};

use super::plugin::{self, RivalPlugin};

/// Names a checkout of KAI Scheduler.
const CHECKOUT: &str = "APPORTION_KAI";
const STATE: &str = "/run/apportion/kai";
const BESIDE: &str = "simulatedGpus=2,schedulerNames={apportion-scheduler}";
const KAIS: &str = "kai-scheduler";
const OURS: &str = "apportion-scheduler";
const GROUP: &str = ".metadata.labels.runai-gpu-group";
const HOLD: &str = "victim total hold";

fn share(name: &str, scheduler: &str, fraction: &str, script: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "annotations": {"gpu-fraction": fraction},
            "labels": {"suite": "kai", "kai.scheduler/queue": "default-queue"}},
        "spec": {"schedulerName": scheduler, "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": image::VICTIM, "imagePullPolicy": "Never",
                "command": ["/bin/sh", "-c", script]}]}})
}

/// The UUIDs of the cluster's simulated GPUs, which the chart's simulated driver uses, too.
fn uuids() -> Vec<String> {
    let machine = MachineConfig::uniform(2, 1 << 34, DriverGeneration::R580);
    let cards = machine.validate().unwrap().cards.into_iter();
    cards.map(|card| card.uuid).collect()
}

struct MigrationSuite {
    release: ChartRelease,
    kai: KaiScheduler,
    _plugin: RivalPlugin,
}

impl MigrationSuite {
    /// KAI on a node with a device plugin like NVIDIA's.
    fn with_kai() -> Self {
        let checkout = env::var_os(CHECKOUT).expect("APPORTION_KAI names a checkout of KAI");
        let release = ChartRelease::prepare(STATE, BESIDE, &[]);
        let cluster = &release.cluster;
        let label = ["label", "node", &cluster.node(), "--overwrite"];
        let labels = ["nvidia.com/gpu.count=2", "nvidia.com/gpu.memory=16384"];
        release.kubectl(&[&label[..], &labels].concat());
        let plugin = plugin::start(&cluster.folder().kubelet(), uuids());
        let kai = KaiScheduler::start(cluster, Path::new(&checkout)).unwrap();
        Self {
            release,
            kai,
            _plugin: plugin,
        }
    }

    fn create(&self, name: &str, scheduler: &str, fraction: &str, script: &str) {
        let pod = share(name, scheduler, fraction, script);
        let create = || self.release.cluster.apply(&pod).is_ok();
        eventually(&format!("{name} is let in"), create);
    }

    fn runs(&self, pod: &str) {
        eventually(&format!("{pod} runs"), || {
            self.kai.answer_reservations(&self.release.cluster).unwrap();
            self.phase(pod) == "Running"
        });
    }

    fn phase(&self, pod: &str) -> String {
        self.release.at(pod, ".status.phase")
    }

    fn delete(&self, pod: &str) {
        self.release.kubectl(&["delete", "pod", pod, "--now"]);
    }
}

fn node_of(release: &ChartRelease, pod: &str) -> String {
    release.at(pod, ".spec.nodeName")
}

fn told(release: &ChartRelease, pod: &str) -> String {
    release.at(
        pod,
        ".status.conditions[?(@.type==\"PodScheduled\")].message",
    )
}

fn ready(release: &ChartRelease) -> (String, String) {
    let node = release.gpu_node();
    let ready = &node["status"]["conditions"][0];
    let text = |field: &str| ready[field].as_str().unwrap_or_default().to_owned();
    (text("status"), text("reason"))
}

/// Deletes this suite's pods and KAI's objects at the end, even after a failure.
struct KaiCleanup;

impl Drop for KaiCleanup {
    fn drop(&mut self) {
        let cluster = LocalCluster::of_tests();
        for delete in [
            &["delete", "pods", "-l", "suite=kai", "--now"][..],
            &[
                "delete",
                "pods",
                "-n",
                "kai-resource-reservation",
                "--all",
                "--now",
            ],
            &["delete", "mutatingwebhookconfiguration", "kai-admission"],
            &["delete", "validatingwebhookconfiguration", "kai-admission"],
            &[
                "delete",
                "crd",
                "bindrequests.scheduling.run.ai",
                "configs.kai.scheduler",
            ],
        ] {
            let _ = cluster.kubectl(delete);
        }
    }
}

#[test]
#[ignore = "it needs a checkout of KAI Scheduler: `APPORTION_KAI=DIR cargo xtask cluster test --suite rivals -- --ignored`"]
fn kai_goes_on_beside_apportion_and_leaves_its_pods_alone() {
    let _cleanup = KaiCleanup;
    let suite = MigrationSuite::with_kai();
    // Two share one GPU, and one has the other. The next ones wait.
    suite.create("kai-half-1", KAIS, "0.5", "sleep 3600");
    suite.runs("kai-half-1");
    suite.create("kai-half-2", KAIS, "0.5", "sleep 3600");
    suite.create("kai-large", KAIS, "0.9", "sleep 3600");
    suite.runs("kai-half-2");
    suite.runs("kai-large");
    let group = |pod: &str| suite.release.at(pod, GROUP);
    assert_eq!(group("kai-half-1"), group("kai-half-2"));
    assert_ne!(group("kai-half-1"), group("kai-large"));
    suite.create("kai-next", KAIS, "0.9", "sleep 3600");

    no_harm_on_one_node(&suite);
    suite.kai.uninstall(&suite.release.cluster).unwrap();
}

/// Apportion is installed where NVIDIA's plugin and KAI serve the node: it gives nothing, and KAI goes on.
fn no_harm_on_one_node(suite: &MigrationSuite) {
    let release = &suite.release;
    release.install();
    release.rolled_out();
    eventually("the GpuNode says that there is another owner", || {
        ready(release) == ("False".to_owned(), "OtherDevicePlugin".to_owned())
    });
    suite.create("ours", OURS, "0.5", HOLD);
    eventually("it is told why it waits", || {
        told(release, "ours").contains("another device plugin")
    });
    assert_eq!(node_of(release, "ours"), "");
    // KAI gives the GPU of a pod that ends to the next one.
    suite.delete("kai-large");
    suite.runs("kai-next");
    for pod in ["kai-half-1", "kai-half-2"] {
        assert_eq!(suite.phase(pod), "Running", "{pod}");
    }
    assert_eq!(release.at("ours", GROUP), "");
    // KAI places the pods that are in a group.
    assert_eq!(
        release.at("ours", ".metadata.annotations.pod-group-name"),
        ""
    );
}
