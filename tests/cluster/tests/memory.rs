//! The agent's memory on a full node, with a real kubelet, runtime and API server.
//!
//! It needs more cards than the other suites, and an optimised agent:
//! `cargo xtask cluster test --release --gpus 8 --suite memory -- --ignored --nocapture`.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use apportion_cluster::managed::{MIB, ManagedNode};
use apportion_cluster::{eventually, programs};
use serde_json::json;

/// The deployment.
const NAME: &str = "full";
const CARDS: u32 = 8;
const CONTAINERS: u32 = 64;
/// The most memory that the agent may use.
const MOST: u64 = 30 * MIB;
/// The memory that each container holds on its card.
const HELD: u64 = 50 * MIB;
/// How long the agent is observed on the full node, while its metrics are scraped.
const LONG: Duration = Duration::from_secs(10);
const OFTEN: Duration = Duration::from_millis(200);

/// A line of the agent's status, in bytes.
fn status(node: &ManagedNode, line: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{}/status", node.agent_pid())).expect("it runs");
    let value = text.lines().find_map(|found| found.strip_prefix(line));
    let kib = value.and_then(|value| value.split_whitespace().next());
    let kib: u64 = kib.and_then(|kib| kib.parse().ok()).expect("a number");
    kib << 10
}

/// Containers whose processes hold memory of a card, one per pod. Dropping this deletes them.
struct MemoryHolders<'node>(&'node ManagedNode);

impl<'node> MemoryHolders<'node> {
    fn start(node: &'node ManagedNode) -> Self {
        let labels = json!({"app": NAME});
        let pod = json!({
            "metadata": {"labels": labels, "annotations": {"gpu-memory": "450"}},
            "spec": {
                "hostNetwork": true,
                "terminationGracePeriodSeconds": 1,
                "containers": [ManagedNode::container("main", "victim alloc 50M hold")],
            },
        });
        let taken = node.cluster.apply(&json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": NAME},
            "spec": {"replicas": CONTAINERS, "selector": {"matchLabels": labels}, "template": pod},
        }));
        taken.expect("the API server takes a deployment");
        Self(node)
    }
}

impl Drop for MemoryHolders<'_> {
    fn drop(&mut self) {
        let _ = self
            .0
            .kubectl(&["delete", "deployment", NAME, "--cascade=foreground"]);
    }
}

/// Whether the cards have the processes of all containers.
fn is_full(node: &ManagedNode) -> bool {
    let held = node.metric(
        "apportion_container_memory_used_bytes",
        &["source=\"nvml\""],
    );
    let processes = node.metric("apportion_container_processes", &[]);
    held.is_some_and(|held| held >= (u64::from(CONTAINERS) * HELD) as f64)
        && processes.is_some_and(|count| count >= f64::from(CONTAINERS))
}

/// The number of shares in the node's `GpuNode`.
fn published(node: &ManagedNode) -> String {
    let holders = "jsonpath={.status.totals.holders}";
    node.kubectl(&["get", "gpunode", &node.cluster.node(), "-o", holders])
}

#[test]
#[ignore = "it needs eight cards and an agent that was optimised: the first lines of this file say how"]
fn an_agent_of_a_full_node_stays_small() {
    let slots = u16::try_from(CONTAINERS).expect("it is small");
    let node = ManagedNode::with_slots(slots, &[]);
    assert_eq!(node.cluster.gpus(), CARDS, "hint: --gpus {CARDS}");
    programs::install_kinds(&node.cluster);
    let empty = status(&node, "VmRSS:");
    let _crowd = MemoryHolders::start(&node);
    eventually("all containers hold their memory", || is_full(&node));
    eventually("the cluster knows of it", || {
        published(&node) == CONTAINERS.to_string()
    });
    let (start, mut most) = (Instant::now(), 0);
    while start.elapsed() < LONG {
        assert!(is_full(&node), "a container ended");
        most = most.max(status(&node, "VmRSS:"));
        thread::sleep(OFTEN);
    }
    let mib = |bytes: u64| bytes as f64 / MIB as f64;
    println!(
        "agent, {CARDS} cards, {CONTAINERS} containers: {:.1} MiB resident ({:.1} of its own; {:.1} on an empty node), \
         at most {:.0}",
        mib(most),
        mib(status(&node, "RssAnon:")),
        mib(empty),
        mib(MOST)
    );
    assert!(most <= MOST, "{most} bytes");
}
