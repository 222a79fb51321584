//! A real runtime that asks the agent before it creates a container, through NRI: a container without a grant reaches
//! no GPU, one with a grant passes, and a slow, dead or new plugin blocks nothing and opens nothing.

use std::fs;
use std::process::Command;

use apportion_cluster::managed::{LIMIT, ManagedNode};
use apportion_cluster::{eventually, image};
use serde_json::{Value, json};

const VERDICTS: &str = "apportion_nri_verdicts_total";
const NO_GRANT: &str = "reason=\"no_grant\"";
const ENFORCE: &[&str] = &[
    "--nri-socket",
    "/run/nri/nri.sock",
    "--nri-policy",
    "enforce",
];
const AUDIT: &[&str] = &["--nri-socket", "/run/nri/nri.sock", "--nri-policy", "audit"];
/// A path like NVIDIA's device files that no other file has.
const DEVICE: &str = "/dev/nvidia-apportion-test";

fn locked(options: &[&str]) -> ManagedNode {
    let node = ManagedNode::with(options);
    asks(&node);
    node
}

fn asks(node: &ManagedNode) {
    eventually("the runtime asks", || {
        node.metric("apportion_nri_connected", &[]) == Some(1.0)
    });
}

fn count(node: &ManagedNode, verdict: &str) -> f64 {
    let labels = [&format!("verdict=\"{verdict}\"") as &str, NO_GRANT];
    node.metric(VERDICTS, &labels).unwrap_or_default()
}

/// Removes the share from a pod.
fn without_share(pod: &mut Value) {
    pod["metadata"]["annotations"] = json!({});
    let container = &mut pod["spec"]["containers"][0];
    container["image"] = json!(image::VICTIM);
    container["resources"] = json!({});
}

fn asks_for_all(pod: &mut Value) {
    without_share(pod);
    pod["spec"]["containers"][0]["env"] =
        json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]);
}

fn is_of_nvidias_images(pod: &mut Value) {
    without_share(pod);
    pod["spec"]["containers"][0]["image"] = json!(image::ALL_CARDS);
}

fn mounts_a_device(pod: &mut Value) {
    without_share(pod);
    pod["spec"]["volumes"] = json!([{"name": "card", "hostPath": {"path": DEVICE}}]);
    pod["spec"]["containers"][0]["volumeMounts"] =
        json!([{"name": "card", "mountPath": "/dev/nvidia0"}]);
}

fn mounts_over_the_library(pod: &mut Value) {
    pod["spec"]["volumes"] = json!([{"name": "own", "emptyDir": {}}]);
    pod["spec"]["containers"][0]["volumeMounts"] =
        json!([{"name": "own", "mountPath": "/.apportion/own"}]);
}

fn total(log: &str) -> bool {
    log.contains(&format!("total 0 {LIMIT}"))
}

/// A file that looks like a card's device file. Removed with the test.
struct FakeDeviceFile;

impl FakeDeviceFile {
    fn new() -> Self {
        fs::write(DEVICE, "").expect("root may write there");
        Self
    }
}

impl Drop for FakeDeviceFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(DEVICE);
    }
}

#[test]
fn a_node_that_enforces_creates_the_granted_container_and_none_that_reaches_a_gpu_without() {
    let node = locked(ENFORCE);
    let _device = FakeDeviceFile::new();
    let asking = node.pod("asks-for-all", "echo started", asks_for_all);
    let baked = node.pod("asks-by-image", "echo started", is_of_nvidias_images);
    let mounting = node.pod("mounts-a-card", "echo started", mounts_a_device);
    let covering = node.pod("covers", "echo started", mounts_over_the_library);
    let granted = node.pod("granted", "victim total", |_| {});
    let plain = node.pod("plain", "echo started", without_share);
    granted.succeeds();
    assert!(total(&granted.logs("main")), "{}", granted.logs("main"));
    plain.succeeds();
    for (pod, why) in [
        (
            &asking,
            "through NVIDIA_VISIBLE_DEVICES=all without a share",
        ),
        (&baked, "through NVIDIA_VISIBLE_DEVICES=all without a share"),
        (
            &mounting,
            "through mount of /dev/nvidia-apportion-test without a share",
        ),
        (&covering, "/.apportion/own, "),
    ] {
        eventually("its events say why", || pod.events().contains(why));
        assert!(!pod.logs("main").contains("started"));
    }
    assert!(count(&node, "refuse") >= 3.0);
}

#[test]
fn a_node_that_audits_creates_it_and_counts_it() {
    let node = locked(AUDIT);
    let asking = node.pod("audited", "echo started", asks_for_all);
    asking.succeeds();
    assert!(asking.logs("main").contains("started"));
    eventually("it is counted", || count(&node, "audit") >= 1.0);
    assert_eq!(count(&node, "refuse"), 0.0);
}

#[test]
fn the_next_agent_is_told_what_was_created_while_there_was_none() {
    let mut node = locked(ENFORCE);
    let granted = node.pod("stays", "victim total; sleep 600", |_| {});
    granted.runs();
    node.kill_agent();
    let unseen = node.pod("unseen", "echo started; sleep 600", asks_for_all);
    unseen.runs();
    node.start_agent(ENFORCE);
    asks(&node);
    // A running container is reported, not ended. The granted one is unaffected.
    eventually("it is counted", || count(&node, "audit") == 1.0);
    assert_eq!(count(&node, "refuse"), 0.0);
    assert!(total(&granted.exec("victim total")));
    assert_eq!(unseen.phase(), "Running");
}

#[test]
fn a_plugin_that_hangs_stops_no_other_pod_and_unlocks_no_grant() {
    let mut node = locked(ENFORCE);
    let granted = node.pod("holds", "victim total; sleep 600", |_| {});
    granted.runs();
    let pid = node.agent_pid().to_string();
    let signal = |name: &str| {
        let sent = Command::new("kill").args([name, &pid]).status();
        assert!(sent.expect("kill is there").success());
    };
    signal("-STOP");
    let plain = node.pod("passes", "echo started", without_share);
    plain.succeeds();
    assert!(total(&granted.exec("victim total")));
    signal("-CONT");
    eventually("it is asked again", || {
        let log = fs::read_to_string(node.log()).unwrap_or_default();
        log.matches("NRI plugin connected").count() >= 2
    });
    // The grant limited its pod meanwhile, and from here on both locks work.
    let next = node.pod("next", "victim total", |_| {});
    next.succeeds();
    assert!(total(&next.logs("main")));
    let refused = node.pod("refused", "echo started", asks_for_all);
    eventually("it is refused", || {
        refused.events().contains("without a share")
    });
    node.kill_agent();
    assert!(total(&granted.exec("victim total")));
    // An agent must see the pods end, or the next suite finds their shares.
    node.start_agent(ENFORCE);
}
