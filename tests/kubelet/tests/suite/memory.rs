//! What an agent of a full node has in memory.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use apportion_tests::{MIB, PATIENCE, built};
use tokio::time::{Instant, sleep};

use crate::node::Node;

const CARDS: usize = 8;
const CONTAINERS: usize = 64;
/// The most that it may have.
const MOST: u64 = 30 * MIB;
/// How long it is looked at once the node is full, while somebody reads its metrics.
const LONG: Duration = Duration::from_secs(5);

/// A container's process with memory of a card. It is killed when dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The number of a line of a process's status, in bytes.
fn status(pid: u32, line: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let value = text.lines().find_map(|found| found.strip_prefix(line));
    let kib = value.and_then(|value| value.split_whitespace().nth(1));
    let kib: u64 = kib.and_then(|kib| kib.parse().ok()).expect("a number");
    kib << 10
}

/// Places a pod, starts its container and a process in it.
async fn fill(node: &Node, number: usize) -> Process {
    let uid = format!("00000000-0000-4000-8000-{number:012}");
    let placed = node.place(&uid, number % CARDS, 450).await;
    let allocation = placed.expect("there is room");
    let admitted = node.kubelet.admit(&uid, "pod", &["main"]).await;
    admitted.expect("a slot is free");
    let started = node.kubelet.before_start(&uid).await;
    started.expect("it was placed");
    let libraries = node.host.libraries();
    let program: &mut Command = &mut node.host.program(built("victim"));
    program
        .args(["alloc", "50M", "hold"])
        .env("CUDA_VISIBLE_DEVICES", &allocation.grants[0].card)
        .env("APPORTION_ACCOUNT", allocation.account_dir)
        .env("LD_PRELOAD", libraries.join("libapportion_cuda.so"))
        .env("LD_LIBRARY_PATH", libraries.join("sim"))
        .env(
            "APPORTION_SIM_SOCKET",
            node.host.instance().join("driver.sock"),
        )
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    Process(program.spawn().expect("it is built"))
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "it measures an agent that was optimised: `cargo xtask bench`"]
async fn an_agent_of_a_full_node_stays_small() {
    let node = Node::new(CARDS, 128).await;
    let pid = node.agent_pid();
    let empty = status(pid, "VmRSS");
    let mut processes = Vec::new();
    for number in 0..CONTAINERS {
        processes.push(fill(&node, number).await);
    }
    let deadline = Instant::now() + PATIENCE;
    let is_used = |list: &apportion_proto::v1::ListReply| {
        let all = list.allocations.iter();
        all.filter(|of| of.grants[0].nvml_bytes >= 50 * MIB).count() == CONTAINERS
    };
    while !is_used(&node.list().await) {
        assert!(Instant::now() < deadline, "not all use their card");
        sleep(Duration::from_millis(100)).await;
    }
    let (until, mut most) = (Instant::now() + LONG, 0);
    while Instant::now() < until {
        assert!(
            node.host
                .http("/metrics")
                .contains("apportion_container_memory_limit_bytes")
        );
        most = most.max(status(pid, "VmRSS"));
        sleep(Duration::from_millis(100)).await;
    }
    let mib = |bytes: u64| bytes as f64 / MIB as f64;
    println!(
        "agent, {CARDS} cards, {CONTAINERS} containers: {:.1} MiB resident ({:.1} of its own; {:.1} on an empty node), at most {:.0}",
        mib(most),
        mib(status(pid, "RssAnon")),
        mib(empty),
        mib(MOST)
    );
    assert!(most <= MOST, "{most} bytes");
}
