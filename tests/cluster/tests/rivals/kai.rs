//! KAI Scheduler itself: it runs beside Apportion, and then Apportion takes its place as the guide says
//! (docs/migrating-from-kai.md), while pods of KAI's users run and wait. No GPU is given out twice.

use std::env;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use apportion_cluster::operators::KaiScheduler;
use apportion_cluster::release::{ChartRelease, chart, free_port, succeed};
use apportion_cluster::{LocalCluster, eventually, image};
use apportion_sim_machine::{DriverGeneration, MachineConfig};
use serde_json::{Value, json};

use super::plugin::{self, RivalPlugin};

/// Names a checkout of KAI Scheduler.
const CHECKOUT: &str = "APPORTION_KAI";
const STATE: &str = "/run/apportion/kai";
const BESIDE: &str = "simulatedGpus=2,schedulerNames={apportion-scheduler}";
const IN_PLACE: &str = "schedulerNames={apportion-scheduler,kai-scheduler},wholeCards=true";
const KAIS: &str = "kai-scheduler";
const OURS: &str = "apportion-scheduler";
const GROUP: &str = ".metadata.labels.runai-gpu-group";
const HOLD: &str = "victim total hold";
/// How long KAI's programs have for what they must not do.
const A_WHILE: Duration = Duration::from_secs(5);

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

/// The pods that hold a GPU, for each GPU.
fn holders(release: &ChartRelease) -> Vec<(String, Vec<String>)> {
    let node = release.gpu_node();
    let cards = node["status"]["cards"].as_array().into_iter().flatten();
    let holders = |card: &Value| {
        let all = card["holders"].as_array().into_iter().flatten();
        all.filter_map(|holder| holder["pod"].as_str().map(str::to_owned))
            .collect()
    };
    cards
        .map(|card| (card["uuid"].as_str().unwrap().to_owned(), holders(card)))
        .collect()
}

/// The GPU of a pod.
fn gpu_of(release: &ChartRelease, pod: &str) -> Option<String> {
    let mut all = holders(release).into_iter();
    all.find(|(_, holders)| holders.iter().any(|holder| holder == pod))
        .map(|(uuid, _)| uuid)
}

/// Waits until a pod has run with a share of this part of a GPU, in percent.
fn has_its_share(release: &ChartRelease, pod: &str, percent: u64) {
    let mut said = String::new();
    eventually(&format!("{pod} says its limit"), || {
        said = (release.cluster.kubectl(&["logs", pod])).unwrap_or_default();
        said.starts_with("total 0 ")
    });
    let limit: u64 = said.split_whitespace().nth(2).unwrap().parse().unwrap();
    let node = release.gpu_node();
    let whole = node["status"]["cards"][0]["allocatableBytes"].as_u64();
    let share = whole.unwrap() / 100 * percent;
    assert!(
        share.abs_diff(limit) <= 2 << 20,
        "{pod}: {limit} of {share}"
    );
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
fn kai_runs_beside_apportion_and_is_replaced_while_its_pods_run_and_wait() {
    let _cleanup = KaiCleanup;
    let mut suite = MigrationSuite::with_kai();
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
    let suite_gpu = beside_on_gpus_of_its_own(&mut suite);
    in_place(suite, &suite_gpu);
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
}

/// The plugin leaves the node. A GPU that KAI's pods still use is not shared; an idle one is. Returns the one in use.
fn beside_on_gpus_of_its_own(suite: &mut MigrationSuite) -> String {
    for pod in ["left-half", "left-large"] {
        suite.create(pod, KAIS, "0.5", HOLD);
    }
    suite.delete("kai-next");
    suite._plugin.stop();
    let release = &suite.release;
    eventually("Apportion gives shares", || ready(release).0 == "True");
    eventually("the pod with our scheduler runs", || {
        suite.phase("ours") == "Running"
    });
    has_its_share(release, "ours", 50);
    let reserved = reserved_gpus(release);
    let [in_use] = &reserved[..] else {
        panic!("{reserved:?} are reserved");
    };
    let own = gpu_of(release, "ours");
    assert!(own.is_some_and(|gpu| gpu != *in_use), "{in_use}");
    let in_use = in_use.clone();

    suite.kai.restart_binder(&suite.release.cluster).unwrap();
    sleep(A_WHILE);
    for pod in ["ours", "kai-half-1", "kai-half-2"] {
        assert_eq!(suite.phase(pod), "Running", "{pod}");
    }
    in_use
}

/// The GPUs that KAI's reservation pods name.
fn reserved_gpus(release: &ChartRelease) -> Vec<String> {
    let path = r"jsonpath={.items[*].metadata.annotations.run\.ai/reserve_for_gpu_index}";
    let get = ["get", "pods", "-n", "kai-resource-reservation", "-o", path];
    let found = release.kubectl(&get);
    found.split_whitespace().map(str::to_owned).collect()
}

/// The steps of the guide, but two pods of KAI's stay where they are.
fn in_place(suite: MigrationSuite, in_use: &str) {
    let MigrationSuite { release, kai, .. } = suite;
    kai.uninstall(&release.cluster).unwrap();
    let ports = format!("tcp.port={},scheduler.port={}", free_port(), free_port());
    let values = format!("{IN_PLACE},{ports}");
    let mut upgrade = release.helm(&["upgrade", "apportion", &chart(), "--reuse-values"]);
    succeed(upgrade.args(["--set", &values]));
    release.rolled_out();
    release.shares_are_taken("the webhook is trusted");

    for pod in ["left-half", "left-large"] {
        eventually(&format!("{pod} is told what to do"), || {
            told(&release, pod).contains("delete the pod and create it again")
        });
        assert_eq!(node_of(&release, pod), "", "{pod}");
    }
    // As a Deployment or a Job would.
    for (pod, fraction) in [("left-half", "0.5"), ("left-large", "0.9")] {
        release.kubectl(&["delete", "pod", pod, "--now"]);
        let again = share(pod, KAIS, fraction, HOLD);
        release.cluster.apply(&again).unwrap();
    }
    has_its_share(&release, "left-half", 50);
    // The only GPU with room for it is that of KAI's pods.
    eventually("the large one waits", || {
        !told(&release, "left-large").is_empty()
    });
    sleep(A_WHILE);
    assert_eq!(node_of(&release, "left-large"), "");
    let own = gpu_of(&release, "left-half");
    assert!(own.as_deref().is_some_and(|gpu| gpu != in_use), "{own:?}");

    // The guide's other half: what KAI started ends.
    let kais = ["delete", "pods", "kai-half-1", "kai-half-2", "--now"];
    release.kubectl(&kais);
    let reservations = [
        "delete",
        "pods",
        "-n",
        "kai-resource-reservation",
        "--all",
        "--now",
    ];
    release.kubectl(&reservations);
    has_its_share(&release, "left-large", 90);
    assert_eq!(gpu_of(&release, "left-large").as_deref(), Some(in_use));
    for (uuid, holders) in holders(&release) {
        assert!(holders.len() <= 2, "{uuid}: {holders:?}");
    }
}
