//! The life of a share on a real node: it ends with its pod's last process, at once and not earlier, whatever else ends
//! before.
//!
//! The test polls for the end of a process. The agent logs when it releases the share. Both times are the node's clock.

use std::fs;
use std::process::Command;
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use apportion_cluster::eventually;
use apportion_cluster::managed::{LIMIT, MIB, ManagedNode, ManagedPod};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(1);

/// The `victim` processes in the containers of the pod with this UID.
fn processes(uid: &str) -> Vec<u32> {
    let all = fs::read_dir("/proc").expect("Linux has /proc").flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_its = |pid: &u32| {
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        groups.contains(uid) && name.trim() == "victim"
    };
    pids.filter(is_its).collect()
}

/// Polls until the pod's processes have ended. Returns when that was.
fn last_end(uid: String) -> JoinHandle<Duration> {
    let live = processes(&uid);
    assert!(!live.is_empty(), "the pod has a process");
    thread::spawn(move || {
        let lives = |pid: &u32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            !stat.is_empty() && !stat.contains(") Z ")
        };
        while live.iter().any(lives) {
            thread::sleep(Duration::from_millis(2));
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        now.expect("it is later than 1970")
    })
}

/// When the agent released the pod's share, if it has.
fn released(node: &ManagedNode, pod: &ManagedPod) -> Option<Duration> {
    let log = fs::read_to_string(node.log()).unwrap_or_default();
    let lines = log
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    let name = format!("default/{}", pod.name);
    let is_meant = |line: &Value| {
        line["fields"]["message"] == "Allocation released" && line["fields"]["name"] == name
    };
    let line = lines.rev().find(is_meant)?;
    let date = Command::new("date")
        .args(["+%s%N", "-d", line["timestamp"].as_str()?])
        .output();
    let nanos = String::from_utf8(date.ok()?.stdout).ok()?;
    Some(Duration::from_nanos(nanos.trim().parse().ok()?))
}

fn holds(node: &ManagedNode, pod: &ManagedPod) -> bool {
    let name = format!("pod=\"{}\"", pod.name);
    node.metric("apportion_container_memory_limit_bytes", &[&name]) == Some(LIMIT as f64)
}

#[track_caller]
fn is_given_back(node: &ManagedNode, pod: &ManagedPod, ended: JoinHandle<Duration>) {
    let ended = ended.join().expect("it only looks");
    eventually("the share is given back", || released(node, pod).is_some());
    let released = released(node, pod).expect("it was there");
    assert!(
        released >= ended,
        "{:?} before its last process",
        ended - released
    );
    println!(
        "{:<10} given back {:.0?} after its last process",
        pod.name,
        released - ended
    );
    assert!(released - ended <= SOON, "{:?}", released - ended);
}

#[test]
fn a_deleted_pods_share_goes_with_its_last_process() {
    let node = ManagedNode::with(&[]);
    // It ignores SIGTERM and runs until it is killed.
    let pod = node.pod("stubborn", "trap '' TERM; victim alloc 1000M hold", |pod| {
        pod["spec"]["terminationGracePeriodSeconds"] = 5.into();
    });
    pod.says("alloc 0");
    let ended = last_end(pod.uid.clone());
    pod.delete();
    eventually("it is being deleted", || {
        !pod.at(".metadata.deletionTimestamp").is_empty()
    });
    assert!(holds(&node, &pod), "its process lives");
    is_given_back(&node, &pod, ended);
}

#[test]
fn a_killed_pods_share_goes_with_its_last_process() {
    let node = ManagedNode::with(&[]);
    let pod = node.pod("killed", "victim alloc 1000M hold", |_| {});
    pod.says("alloc 0");
    let ended = last_end(pod.uid.clone());
    let delete = ["delete", "pod", &pod.name, "--grace-period=0", "--force"];
    let _ = node.kubectl(&delete);
    is_given_back(&node, &pod, ended);
}

#[test]
fn a_finished_pods_share_goes_with_its_last_process() {
    let node = ManagedNode::with(&[]);
    let script = "victim alloc 1000M hold & until test -e /leave; do sleep 0.05; done; kill -9 $!";
    let pod = node.pod("finished", script, |_| {});
    pod.says("alloc 0");
    let ended = last_end(pod.uid.clone());
    pod.exec("touch /leave");
    is_given_back(&node, &pod, ended);
}

#[test]
fn shares_outlive_the_agent_the_kubelet_and_the_runtime() {
    let mut node = ManagedNode::with(&[]);
    let pod = node.pod("lasting", "victim alloc 1000M hold", |_| {});
    pod.says("alloc 0");
    let is_well = |node: &ManagedNode, what: &str| {
        eventually(&format!("the share is known after {what}"), || {
            holds(node, &pod)
        });
        let labels = ["pod=\"lasting\"", "source=\"nvml\""];
        eventually(&format!("its use is known after {what}"), || {
            let used = node.metric("apportion_container_memory_used_bytes", &labels);
            used.is_some_and(|used| used >= (1000 * MIB) as f64)
        });
        let next = node.pod("next", "victim total", |_| {});
        next.succeeds();
        assert!(next.logs("main").contains(&format!("total 0 {LIMIT}")));
        assert_eq!(
            (pod.phase(), pod.at(".metadata.uid")),
            ("Running".into(), pod.uid.clone())
        );
        assert_eq!(
            pod.at(".status.containerStatuses[0].restartCount"),
            "0",
            "{what}"
        );
    };
    node.kill_agent();
    node.start_agent(&[]);
    is_well(&node, "the agent's restart");
    for server in ["kubelet", "containerd"] {
        node.restart(server);
        is_well(&node, server);
    }
    assert!(released(&node, &pod).is_none(), "it was never given back");
}
