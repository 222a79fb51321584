//! The chart replaces KAI while pods of KAI's users wait: no pod runs without its GPU, and everything that people read
//! about their pods is there.
#![expect(clippy::unwrap_used, reason = "a test may")]

use std::thread::sleep;
use std::time::Duration;

use apportion_cluster::release::ChartRelease;
use apportion_cluster::{LocalCluster, eventually, image};
use serde_json::{Value, json};

const STATE: &str = "/run/apportion/takeover";
const SLOT: &str = ".spec.containers[0].resources.limits.apportion\\.dev/gpu-slot";
/// The script of a short pod with a share.
const SCRIPT: &str = "victim total";
/// The number of short pods, and the pause between them.
const PODS: usize = 24;
const APART: Duration = Duration::from_millis(400);

/// A pod of KAI's users.
fn pod(name: &str, annotations: Value, script: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations, "labels": {"suite": "takeover"}},
        "spec": {"schedulerName": "kai-scheduler", "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": image::VICTIM, "imagePullPolicy": "Never",
                "command": ["/bin/sh", "-c", script]}]}})
}

fn condition(release: &ChartRelease, pod: &str) -> String {
    release.at(
        pod,
        ".status.conditions[?(@.type==\"PodScheduled\")].message",
    )
}

/// The messages of a pod's events with this reason, one per line.
fn events(release: &ChartRelease, pod: &str, reason: &str) -> String {
    let selector = format!("involvedObject.name={pod},reason={reason}");
    let path = "jsonpath={range .items[*]}{.message}{\"\\n\"}{end}";
    release.kubectl(&["get", "events", "--field-selector", &selector, "-o", path])
}

fn ends(release: &ChartRelease, pod: &str) {
    eventually(&format!("{pod} ends"), || {
        matches!(&*release.at(pod, ".status.phase"), "Succeeded" | "Failed")
    });
    let log = || release.kubectl(&["logs", pod]);
    assert_eq!(release.at(pod, ".status.phase"), "Succeeded", "{}", log());
}

#[test]
fn what_waited_for_kai_is_told_what_to_do_and_what_comes_after_is_served() {
    let cluster = LocalCluster::of_tests();
    let _pods = TakeoverPods;
    // Created while KAI or no scheduler is there.
    let hold = "victim total hold";
    for (name, annotations) in [
        ("early-fraction", json!({"gpu-fraction": "0.5"})),
        ("early-memory", json!({"gpu-memory": "2000"})),
    ] {
        cluster.apply(&pod(name, annotations, hold)).unwrap();
    }
    cluster
        .apply(&pod("early-plain", json!({}), "true"))
        .unwrap();
    let release = ChartRelease::prepare(STATE, "simulatedGpus=2", &[]);
    release.install();
    release.rolled_out();
    release.shares_are_taken("the webhook is trusted");

    keeps_waiting(&release);
    runs_once_created_again(&release);
    tells_of_every_pod_and_takes_each_share_once(&release);
    counts_what_pods_ask_for_together(&release);
    warns_of_slips(&release);
    answers_each_certificate_request_once(&release);
}

/// Deletes the pods of this suite at the end, even after a failure.
struct TakeoverPods;

impl Drop for TakeoverPods {
    fn drop(&mut self) {
        let all = ["delete", "pods", "-l", "suite=takeover", "--now"];
        let _ = LocalCluster::of_tests().kubectl(&all);
    }
}

fn keeps_waiting(release: &ChartRelease) {
    ends(release, "early-plain");
    for pod in ["early-fraction", "early-memory"] {
        eventually(&format!("{pod} is told what to do"), || {
            let said = condition(release, pod);
            said.contains("apportion.dev/gpu-slot")
                && said.contains("delete the pod and create it again")
        });
        eventually(&format!("an event of {pod} says so"), || {
            events(release, pod, "Unschedulable").contains("delete the pod and create it again")
        });
        assert_eq!(release.at(pod, ".spec.nodeName"), "", "{pod} is bound");
    }
    eventually("a metric says so", || {
        release.metric("apportion_scheduler_pods_without_slot", &[]) == 2.0
    });
    // No GPU memory is allocated for them.
    let cards = release.gpu_node()["status"]["cards"].clone();
    for card in cards.as_array().into_iter().flatten() {
        assert_eq!(card["allocatedBytes"], 0, "{card}");
    }
}

fn runs_once_created_again(release: &ChartRelease) {
    release.kubectl(&["delete", "pod", "early-fraction", "--now"]);
    let again = pod("early-fraction", json!({"gpu-fraction": "0.5"}), SCRIPT);
    release.cluster.apply(&again).unwrap();
    assert_eq!(release.at("early-fraction", SLOT), "1");
    ends(release, "early-fraction");
    let said = release.kubectl(&["logs", "early-fraction"]);
    assert!(said.starts_with("total 0 "), "{said}");
    release.kubectl(&["delete", "pod", "early-memory", "--now"]);
    eventually("nobody waits for a slot any more", || {
        release.metric("apportion_scheduler_pods_without_slot", &[]) == 0.0
    });
}

fn tells_of_every_pod_and_takes_each_share_once(release: &ChartRelease) {
    let accepted = || release.metric("apportion_grants_total", &["result=\"accepted\""]);
    let before = accepted();
    let name = |number: usize| format!("short-{number}");
    for number in 0..PODS {
        let short = pod(&name(number), json!({"gpu-memory": "1000"}), SCRIPT);
        release.cluster.apply(&short).unwrap();
        sleep(APART);
    }
    (0..PODS).for_each(|number| ends(release, &name(number)));
    for number in 0..PODS {
        let pod = name(number);
        eventually(&format!("{pod} has its event"), || {
            events(release, &pod, "Scheduled").lines().count() == 1
        });
    }
    eventually("all is given back", || {
        let cards = release.gpu_node()["status"]["cards"].clone();
        let mut cards = cards.as_array().into_iter().flatten();
        cards.all(|card| card["allocatedBytes"] == 0)
    });
    assert_eq!(accepted() - before, PODS as f64, "shares were taken again");
}

/// The node has too few CPUs for two of these pods, so the second one must wait instead of failing on the node.
fn counts_what_pods_ask_for_together(release: &ChartRelease) {
    let path = "jsonpath={.status.allocatable.cpu}";
    let cpu = release.kubectl(&["get", "node", &release.cluster.node(), "-o", path]);
    let millis: u64 = match cpu.strip_suffix('m') {
        Some(millis) => millis.parse().unwrap(),
        None => cpu.parse::<u64>().unwrap() * 1000,
    };
    let greedy = |name: &str| {
        let mut pod = pod(name, json!({}), "sleep 600");
        pod["spec"]["resources"] = json!({"requests": {"cpu": format!("{}m", millis * 6 / 10)}});
        pod
    };
    release.cluster.apply(&greedy("together-1")).unwrap();
    eventually("the first one runs", || {
        release.at("together-1", ".status.phase") == "Running"
    });
    release.cluster.apply(&greedy("together-2")).unwrap();
    eventually("the second one waits for CPU", || {
        let said = condition(release, "together-2");
        assert_ne!(release.at("together-2", ".status.reason"), "OutOfcpu");
        said.contains("CPU")
    });
    assert_eq!(release.at("together-2", ".spec.nodeName"), "");
    let pods = ["delete", "pod", "together-1", "together-2", "--now"];
    release.kubectl(&pods);
}

fn warns_of_slips(release: &ChartRelease) {
    for (annotations, scheduler, about) in [
        (
            json!({"gpu_fraction": "0.5"}),
            "apportion-scheduler",
            "annotation gpu_fraction is ignored",
        ),
        (
            json!({"gpu-fractions": "0.5"}),
            "apportion-scheduler",
            "annotation gpu-fractions is ignored",
        ),
        (
            json!({"gpu-fraction": "0.5"}),
            "default-scheduler",
            "set schedulerName to apportion-scheduler",
        ),
        (
            json!({"gpu-memory": "100"}),
            "apportion-scheduler",
            "less than a CUDA context takes",
        ),
    ] {
        let mut slip = pod("slip", annotations, "true");
        slip["spec"]["schedulerName"] = scheduler.into();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("slip.json");
        std::fs::write(&file, slip.to_string()).unwrap();
        let mut create = release.cluster.kubectl_command();
        create.args(["create", "--dry-run=server", "-f"]).arg(&file);
        eventually(&format!("kubectl warns: {about}"), || {
            let output = create.output().unwrap();
            assert!(output.status.success());
            String::from_utf8_lossy(&output.stderr).contains(about)
        });
    }
}

fn answers_each_certificate_request_once(release: &ChartRelease) {
    let log = release.log("scheduler");
    let signed: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("Agent certificate signed"))
        .collect();
    let requests = release.kubectl(&["get", "csr", "-o", "name"]);
    assert_eq!(signed.len(), 1, "{signed:?} of {requests}");
    assert!(
        !log.contains("Failed to answer a CertificateSigningRequest"),
        "{log}"
    );
}
