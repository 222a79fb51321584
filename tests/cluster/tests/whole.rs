//! Whole cards with a real kubelet, from the same ledger as shares: a card is either shared or whole, the node's
//! capacity says how many whole cards are left, and a container with a whole card has nothing of ours between it and
//! the driver.

use apportion_cluster::eventually;
use apportion_cluster::managed::{LIMIT, ManagedNode, ManagedPod};
use serde_json::json;

const HOLD: &str = "victim total alloc 3000M hold";

fn whole(node: &ManagedNode, name: &str) -> ManagedPod {
    node.pod(name, HOLD, |pod| {
        pod["metadata"]["annotations"] = json!({});
        pod["spec"]["containers"][0]["resources"] = json!({"limits": {"nvidia.com/gpu": 1}});
    })
}

/// How many whole cards the node offers.
fn offered(node: &ManagedNode) -> String {
    let path = "jsonpath={.status.allocatable.nvidia\\.com/gpu}";
    node.kubectl(&["get", "node", &node.cluster.node(), "-o", path])
}

#[test]
fn a_pod_has_a_whole_card_beside_a_share_and_a_third_waits_for_it() {
    let node = ManagedNode::with(&["--whole-cards", "on"]);
    eventually("both cards are offered", || offered(&node) == "2");
    let share = node.pod("share", "victim total hold", |_| {});
    share.says(&format!("total 0 {LIMIT}"));
    eventually("one card is withdrawn", || offered(&node) == "1");

    let first = whole(&node, "first");
    let log = first.says("alloc 0");
    assert!(!log.contains(&format!("total 0 {LIMIT}")), "{log}");
    assert!(!first.exec("cat /proc/1/maps").contains("libapportion_cuda"));
    let is_whole = ["pod=\"first\"", "state=\"whole\""];
    let state = "apportion_container_enforcement_state";
    eventually("metrics say so", || {
        node.metric(state, &is_whole) == Some(1.0)
    });
    let seen = ["pod=\"first\"", "source=\"nvml\""];
    let used = || node.metric("apportion_container_memory_used_bytes", &seen);
    eventually("its memory is its own", || {
        used().is_some_and(|used| used > 3e9)
    });

    let third = whole(&node, "third");
    eventually("its events say why", || {
        third.events().contains("Insufficient nvidia.com/gpu")
    });
    first.delete();
    third.says("alloc 0");
    drop(third);
    drop(share);
    eventually("both cards are offered again", || offered(&node) == "2");
}
