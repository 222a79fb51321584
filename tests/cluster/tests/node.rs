//! The cluster's node behaves as Kubernetes promises, so that failures of the other suites are ours.

use std::process::Stdio;

use apportion_cluster::{LocalCluster, eventually, image};
use serde_json::{Value, json};

#[test]
fn a_pod_runs_to_its_end_and_says_what_it_said() {
    let pod = HostNetworkPod::start("to-its-end", "echo from the pod; test -x /usr/bin/victim");
    eventually("the pod succeeds", || pod.phase() == "Succeeded");
    assert_eq!(pod.kubectl(&["logs", pod.name]).trim(), "from the pod");
}

#[test]
fn a_command_runs_in_a_running_container() {
    let pod = HostNetworkPod::start("exec", "sleep 1000");
    eventually("the pod runs", || pod.phase() == "Running");
    let groups = pod.kubectl(&["exec", pod.name, "--", "cat", "/proc/1/cgroup"]);
    assert!(groups.contains(&pod.cluster.node()), "{groups}");
    assert!(groups.contains("kubepods"), "{groups}");
}

#[test]
fn a_failing_container_says_its_exit_code() {
    let pod = HostNetworkPod::start("fails", "exit 7");
    eventually("the pod fails", || pod.phase() == "Failed");
    let code = "jsonpath={.status.containerStatuses[0].state.terminated.exitCode}";
    assert_eq!(pod.kubectl(&["get", "pod", pod.name, "-o", code]), "7");
}

#[test]
fn a_deleted_pod_leaves_nothing_on_the_node() {
    let pod = HostNetworkPod::start("deleted", "sleep 1000");
    eventually("the pod runs", || pod.phase() == "Running");
    let uid = pod.kubectl(&["get", "pod", pod.name, "-o", "jsonpath={.metadata.uid}"]);
    let folder = pod.cluster.folder().kubelet().join("pods").join(uid);
    assert!(folder.exists(), "{}", folder.display());
    pod.kubectl(&["delete", "pod", pod.name, "--grace-period=1"]);
    eventually("the kubelet forgets the pod", || !folder.exists());
    let mut crictl = pod.cluster.crictl_command();
    let left = crictl
        .args(["pods", "--quiet", "--state", "ready", "--name", pod.name])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&left.stdout), "");
}

#[test]
fn the_simulated_cards_answer_on_the_node() {
    let cluster = LocalCluster::of_tests();
    let daemon = std::env::var("APPORTION_STAGED").unwrap() + "/lib/apportion/apportion-simd";
    let asked = std::process::Command::new(daemon)
        .arg("--socket")
        .arg(cluster.folder().cards())
        .args(["--ask", r#""Hello""#])
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    let facts: Value = serde_json::from_slice(&asked.stdout).unwrap();
    let cards = facts["Facts"]["cards"].as_array().map(Vec::len);
    assert_eq!(cards, usize::try_from(cluster.gpus()).ok(), "{facts}");
}

/// A host-network pod with one container. Dropping this deletes it.
struct HostNetworkPod {
    cluster: LocalCluster,
    name: &'static str,
}

impl HostNetworkPod {
    fn start(name: &'static str, script: &str) -> Self {
        let cluster = LocalCluster::of_tests();
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "hostNetwork": true,
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "containers": [{
                    "name": "main",
                    "image": image::VICTIM,
                    "imagePullPolicy": "Never",
                    "command": ["/bin/sh", "-c", script],
                }],
            },
        });
        cluster.apply(&pod).expect("the API server takes a pod");
        Self { cluster, name }
    }

    fn phase(&self) -> String {
        self.kubectl(&["get", "pod", self.name, "-o", "jsonpath={.status.phase}"])
    }

    fn kubectl(&self, args: &[&str]) -> String {
        self.cluster.kubectl(args).expect("kubectl succeeds")
    }
}

impl Drop for HostNetworkPod {
    fn drop(&mut self) {
        let gone = [
            "delete",
            "pod",
            self.name,
            "--ignore-not-found",
            "--wait=false",
        ];
        let _ = self.cluster.kubectl(&gone);
    }
}
