//! Pods with a request and a higher limit on a real node: they burst into what nobody is guaranteed, and a newcomer gets
//! its guarantee.
//!
//! The agent places the pods, so the test writes the mark that the webhook writes where pods may burst.

use std::fs;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use apportion_cluster::eventually;
use apportion_cluster::managed::{MIB, ManagedNode, ManagedPod};
use serde_json::json;

const GIB: u64 = 1024 * MIB;
/// The request of the four pods.
const REQUEST: u64 = 3 * GIB;
const LIMIT: u64 = 12 * GIB;
/// What a program allocates at a time.
const PIECE: u64 = 64 * MIB;
/// What the context of a program costs on a simulated card.
const CONTEXT: u64 = 384 * MIB;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: u64 = 2;

/// Fills its share when it is told to, and falls back to less than its request when it is told to.
const SCRIPT: &str = "until test -e /fill; do sleep 0.1; done; victim fill 64M hold & \
    until test -e /leave; do sleep 0.1; done; kill -9 $!; wait $!; victim alloc 1G hold";

fn elastic(node: &ManagedNode, name: &str) -> ManagedPod {
    elastic_with(node, name, SCRIPT)
}

fn elastic_with(node: &ManagedNode, name: &str, script: &str) -> ManagedPod {
    node.pod(name, script, |pod| {
        pod["metadata"]["annotations"] = json!({
            "gpu-memory": (REQUEST / MIB).to_string(),
            "gpu-memory.limit": format!("{}Mi", LIMIT / MIB),
            "apportion.dev/gpu-memory-burst": "true",
        });
    })
}

/// A pod whose request is its limit.
fn fixed(node: &ManagedNode, name: &str, script: &str, mib: &str) -> ManagedPod {
    node.pod(name, script, |pod| {
        pod["metadata"]["annotations"] = json!({"gpu-memory": mib});
    })
}

/// Fills all cards but one, so that the other pods share that one. Returns what it has, and the pods on the others.
fn with_one_free_card(node: &ManagedNode, prefix: &str) -> (u64, Vec<ManagedPod>) {
    let gpus = u64::from(node.cluster.gpus());
    let all = node.metric("apportion_gpu_memory_allocatable_bytes", &[]);
    let card = all.expect("the agent has read the cards") as u64 / gpus;
    let mut fillers = Vec::new();
    for number in 1..gpus {
        let name = format!("{prefix}-{number}");
        let mib = (card / MIB).to_string();
        fillers.push(fixed(node, &name, "victim total hold", &mib));
    }
    fillers.iter().for_each(ManagedPod::runs);
    (card, fillers)
}

/// A number of a pod's share, by metric.
fn share(node: &ManagedNode, kind: &str, pod: &str) -> Option<u64> {
    let series = format!("apportion_container_memory_{kind}_bytes");
    let value = node.metric(&series, &[&format!("pod=\"{pod}\"")]);
    value.map(|value| value as u64)
}

/// What a pod's program has filled.
fn filled(pod: &ManagedPod) -> u64 {
    filled_by(&pod.says("fill "))
}

/// What a program has filled that says so.
fn filled_by(log: &str) -> u64 {
    let line = log.lines().find_map(|line| line.strip_prefix("fill "));
    let words = line.expect("it was just said").split_whitespace();
    let numbers: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
    assert_eq!(numbers[0], OUT_OF_MEMORY, "{log}");
    numbers[1]
}

#[test]
fn pods_burst_into_what_nobody_is_guaranteed_and_a_newcomer_gets_its_guarantee() {
    let node = ManagedNode::with(&[]);
    let (card, _fillers) = with_one_free_card(&node, "filler");
    let names = ["serve-1", "serve-2", "serve-3", "serve-4"];
    let pods = names.map(|name| elastic(&node, name));
    for pod in &pods {
        pod.runs();
        assert_eq!(share(&node, "guaranteed", &pod.name), Some(REQUEST));
        assert_eq!(share(&node, "limit", &pod.name), Some(LIMIT));
    }
    for pod in &pods {
        pod.exec("touch /fill");
    }
    let filled = pods.each_ref().map(filled);
    let held = filled.map(|bytes| bytes + CONTEXT);
    println!("filled: {:?} MiB", filled.map(|bytes| bytes / MIB));
    assert!(
        held.iter().all(|held| *held > REQUEST - PIECE),
        "each has its guarantee: {held:?}"
    );
    let sum: u64 = held.iter().sum();
    let least = card - (names.len() as u64 + 1) * PIECE;
    assert!(sum > least && sum <= card, "{held:?} of {card}");
    for pod in &pods {
        let allowance = share(&node, "allowance", &pod.name);
        assert!(allowance.is_some_and(|allowance| allowance <= LIMIT));
    }

    // All that nobody is guaranteed is what the newcomer asks for.
    let rest = card - names.len() as u64 * REQUEST;
    let rest = (rest / MIB).to_string();
    let newcomer = fixed(&node, "newcomer", "victim alloc 1G hold", &rest);
    for pod in &pods {
        pod.exec("touch /leave");
    }
    newcomer.says("alloc 0");
    for pod in &pods {
        pod.says("alloc 0");
    }
    eventually("nothing is left to guarantee", || {
        let free = node.metric("apportion_gpu_memory_free_bytes", &[]);
        free.is_some_and(|free| free < (2 * MIB) as f64)
    });
    for pod in pods.iter().chain([&newcomer]) {
        let restarts = pod.at(".status.containerStatuses[0].restartCount");
        let state = (pod.phase(), restarts);
        assert_eq!(
            state,
            ("Running".to_owned(), "0".to_owned()),
            "{}",
            pod.name
        );
    }
}

#[test]
fn a_pod_that_bursts_keeps_its_memory_over_a_restart_of_the_agent() {
    let mut node = ManagedNode::with(&[]);
    let pod = elastic(&node, "lasting");
    pod.runs();
    pod.exec("touch /fill");
    let filled = filled(&pod);
    assert!(
        filled + CONTEXT > LIMIT - PIECE,
        "it is alone and has its limit: {filled}"
    );
    node.kill_agent();
    node.start_agent(&[]);
    let name = pod.name.as_str();
    eventually("the next agent knows the share", || {
        ["guaranteed", "limit"].map(|kind| share(&node, kind, name)) == [Some(REQUEST), Some(LIMIT)]
    });
    let allowance = share(&node, "allowance", name);
    assert!(allowance >= Some(filled + CONTEXT), "{allowance:?}");
    pod.exec("touch /leave");
    pod.says("alloc 0");
    assert_eq!(pod.at(".status.containerStatuses[0].restartCount"), "0");
}

/// Runs `apportion resize` on the node. Returns whether it was done, and what it said.
fn resize(node: &ManagedNode, options: &[&str]) -> (bool, String) {
    let mut command = node.in_node("apportion");
    let output = command.arg("resize").args(options).output();
    let output = output.expect("it is staged");
    let said = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&said).into_owned(),
    )
}

/// Fills its share each time it is told to.
const REFILL: &str = "for turn in 1 2; do until test -e /fill-$turn; do sleep 0.1; done; \
    victim fill 64M hold > /said-$turn & until test -e /empty-$turn; do sleep 0.1; done; kill -9 $!; wait $!; done; \
    sleep 10000";

#[test]
fn a_pod_that_bursts_gets_another_guarantee_and_another_limit_without_a_restart() {
    let mut node = ManagedNode::with(&[]);
    let (card, _fillers) = with_one_free_card(&node, "beside");
    let pod = elastic_with(&node, "resized", REFILL);
    pod.runs();
    let fill = |turn: u32| {
        pod.exec(&format!("touch /fill-{turn}"));
        let said = || pod.exec(&format!("cat /said-{turn}"));
        eventually("the share is full", || said().contains("fill "));
        filled_by(&said()) + CONTEXT
    };
    let name = format!("default/{}", pod.name);
    let names = ["guaranteed", "limit"];
    let has = |node: &ManagedNode| names.map(|kind| share(node, kind, "resized"));
    let limit = 5 * GIB;
    let (is_done, said) = resize(
        &node,
        &[&name, "--gpu-memory-limit", "5Gi", "--gpu-memory", "4Gi"],
    );
    assert!(is_done, "{said}");
    eventually("its numbers are shown", || {
        has(&node) == [Some(4 * GIB), Some(limit)]
    });
    let filled = fill(1);
    assert!(filled > limit - PIECE && filled <= limit, "{filled}");
    pod.exec("touch /empty-1");
    // The next agent has them, too.
    node.kill_agent();
    node.start_agent(&[]);
    eventually("the next agent knows them", || {
        has(&node) == [Some(4 * GIB), Some(limit)]
    });
    let rest = (card - 4 * GIB) / MIB;
    let newcomer = fixed(
        &node,
        "beside-it",
        "victim alloc 1G hold",
        &rest.to_string(),
    );
    newcomer.says("alloc 0");
    let (is_done, said) = resize(&node, &[&name, "--gpu-memory", "5Gi"]);
    assert!(!is_done && said.contains("beside-it"), "{said}");
    let (is_done, said) = resize(&node, &[&name, "--gpu-memory", "2Gi"]);
    assert!(is_done, "{said}");
    let filled = fill(2);
    assert!(
        filled > 4 * GIB - PIECE,
        "what the newcomer does not have: {filled}"
    );
    assert_eq!(pod.at(".status.containerStatuses[0].restartCount"), "0");
}

/// The pods that sleep for others now.
fn asleep<'p>(node: &ManagedNode, pods: &'p [ManagedPod]) -> Vec<&'p ManagedPod> {
    let sleeps = |pod: &&ManagedPod| {
        let label = format!("pod=\"{}\"", pod.name);
        node.metric("apportion_container_suspended", &[&label]) == Some(1.0)
    };
    pods.iter().filter(sleeps).collect()
}

/// Lets all pods begin to fill in the same second. If one were early, it would take what the others are guaranteed, and
/// would sleep as soon as they fill.
fn fill_together(pods: &[ManagedPod]) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let start = now.expect("the clock is past 1970").as_secs() + 10;
    for pod in pods {
        pod.exec(&format!(
            "(while [ $(date +%s) -lt {start} ]; do sleep 0.02; done; touch /fill) >/dev/null 2>&1 &"
        ));
    }
}

#[test]
fn a_pod_that_bursts_sleeps_for_a_newcomer_and_wakes_when_that_is_deleted() {
    let node = ManagedNode::with(&["--burst-reclaim", "suspend"]);
    let (_, _fillers) = with_one_free_card(&node, "full");
    let pods = ["burst-1", "burst-2", "burst-3"].map(|name| elastic(&node, name));
    pods.iter().for_each(ManagedPod::runs);
    fill_together(&pods);
    let filled = pods.each_ref().map(filled);
    println!("filled: {:?} MiB", filled.map(|bytes| bytes / MIB));
    // What the one that bursts most has lent is enough for the newcomer.
    let largest = filled.iter().max().map_or(0, |bytes| bytes + CONTEXT);
    let asked = (largest - REQUEST) / MIB / 2;
    let newcomer = fixed(&node, "guest", "victim alloc 100M hold", &asked.to_string());
    newcomer.says("alloc 0");
    let sleepers = asleep(&node, &pods);
    assert_eq!(sleepers.len(), 1, "one is enough for {asked} MiB");
    eventually("the sleeper is told", || {
        sleepers[0]
            .events_by("{.reason}")
            .contains("GpuMemorySuspended")
    });
    newcomer.delete();
    eventually("the sleeper wakes", || asleep(&node, &pods).is_empty());
    eventually("the sleeper is told that it runs", || {
        sleepers[0]
            .events_by("{.reason}")
            .contains("GpuMemoryResumed")
    });
    for pod in &pods {
        pod.exec("touch /leave");
        pod.says("alloc 0");
        assert_eq!(pod.at(".status.containerStatuses[0].restartCount"), "0");
    }
}

/// Does what is written into a pipe, step by step.
const STEPS: &str = "mkfifo /steps; victim - 0<>/steps";

fn steps(pod: &ManagedPod, steps: &str) {
    pod.exec(&format!("echo {steps} > /steps"));
}

/// Waits until a pod sleeps and the driver has its memory back.
#[track_caller]
fn falls_asleep(node: &ManagedNode, pods: &[ManagedPod], pod: &ManagedPod) {
    eventually(&format!("{} sleeps", pod.name), || {
        let sleepers = asleep(node, pods);
        let labels = [&format!("pod=\"{}\"", pod.name), "source=\"nvml\""];
        let used = node.metric("apportion_container_memory_used_bytes", &labels);
        let is_out = used.is_none_or(|bytes| bytes == 0.0);
        is_out && sleepers.iter().any(|of| of.name == pod.name)
    });
}

#[test]
fn an_idle_pod_lends_its_guarantee_wakes_by_a_call_and_is_deleted_asleep() {
    let node = ManagedNode::with(&["--burst-reclaim", "suspend"]);
    let (card, fillers) = with_one_free_card(&node, "whole");
    let guaranteed = 4 * GIB;
    let held = guaranteed - CONTEXT - PIECE;
    let rest = card - REQUEST - guaranteed - 2 * PIECE;
    let rest = fixed(
        &node,
        "rest",
        "victim total hold",
        &(rest / MIB).to_string(),
    );
    for pod in fillers.iter().chain([&rest]) {
        pod.says("total ");
    }
    let used_before = node.metric("apportion_gpu_memory_used_bytes", &[]);
    let idle = node.pod("idle", STEPS, |pod| {
        pod["metadata"]["annotations"] = json!({
            "gpu-memory": (guaranteed / MIB).to_string(),
            "apportion.dev/suspend-when-idle": "10s",
        });
    });
    idle.runs();
    steps(&idle, &format!("alloc {held} mark 0 {held}"));
    idle.says("mark 0");
    let pods = [idle, elastic_with(&node, "borrower", STEPS)];
    let [idle, borrower] = &pods;
    borrower.runs();
    falls_asleep(&node, &pods, idle);

    // It bursts into what the other one is guaranteed.
    let lent = REQUEST + 3 * GIB;
    steps(borrower, &format!("alloc {lent} mark 0 {lent}"));
    let said = borrower.says("mark ");
    assert!(said.contains("alloc 0"), "{said}");
    // Nobody else is promised it.
    let free = node.metric("apportion_gpu_memory_free_bytes", &[]);
    assert!(free <= Some((2 * PIECE) as f64), "{free:?}");

    steps(idle, &format!("check 0 {held}"));
    assert!(idle.says("check ").contains("check 0 0"));
    eventually("the borrower sleeps", || {
        let sleepers = asleep(&node, &pods);
        sleepers.iter().any(|of| of.name == borrower.name)
    });
    falls_asleep(&node, &pods, idle);
    steps(borrower, &format!("check 0 {lent}"));
    assert!(borrower.says("check ").contains("check 0 0"));
    for pod in &pods {
        assert_eq!(pod.at(".status.containerStatuses[0].restartCount"), "0");
        assert_eq!(pod.phase(), "Running");
    }
    let reasons = idle.events_by("{.reason}");
    assert!(!reasons.contains("GpuMemory"), "it is no news: {reasons}");

    let uid = idle.uid.clone();
    idle.delete();
    eventually("the pod is gone", || idle.phase().is_empty());
    borrower.delete();
    eventually("nothing of them is left", || {
        let free = node.metric("apportion_gpu_memory_free_bytes", &[]);
        let used = node.metric("apportion_gpu_memory_used_bytes", &[]);
        free >= Some((REQUEST + guaranteed) as f64) && used == used_before
    });
    let is_of_it = |path: &PathBuf| fs::read_to_string(path).is_ok_and(|text| text.contains(&uid));
    eventually("its grant is gone", || !node.grants().iter().any(is_of_it));
}
