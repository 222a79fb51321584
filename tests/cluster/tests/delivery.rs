//! With a real kubelet and a real runtime: a container with a share starts with its limit, or it does not start and the
//! pod's events say why.
//!
//! The agent runs on the node as a process, with simulated cards, and places pods by itself.

use apportion_cluster::eventually;
use apportion_cluster::managed::{LIMIT, ManagedNode};
use serde_json::json;

/// The numbers that a victim printed for a step.
fn said(log: &str, verb: &str) -> Vec<u64> {
    let line = log.lines().find_map(|line| line.strip_prefix(verb));
    let words = line
        .unwrap_or_else(|| panic!("no {verb} in {log:?}"))
        .split_whitespace();
    words.filter_map(|word| word.parse().ok()).collect()
}

#[test]
fn a_granted_pod_sees_one_card_of_its_size_and_is_refused_the_next_byte() {
    let node = ManagedNode::with(&[]);
    let pod = node.pod(
        "granted",
        "victim total info alloc 1000M alloc 1000M",
        |_| {},
    );
    pod.succeeds();
    let log = pod.logs("main");
    assert_eq!(said(&log, "total"), [0, LIMIT], "{log}");
    assert_eq!(said(&log, "info")[2], LIMIT, "{log}");
    let allocs: Vec<_> = log
        .lines()
        .filter(|line| line.starts_with("alloc"))
        .collect();
    assert!(
        allocs[0].starts_with("alloc 0") && allocs[1].starts_with("alloc 2"),
        "{log}"
    );
    eventually("its grant is gone", || node.grants().is_empty());
}

#[test]
fn init_container_sidecar_restart_and_shell_stay_inside_one_limit() {
    let node = ManagedNode::with(&[]);
    let pod = node.pod("family", "victim alloc 1000M hold", |pod| {
        pod["spec"]["initContainers"] = json!([ManagedNode::container("first", "victim total")]);
        let sidecar = ManagedNode::container("beside", "sleep 2; victim alloc 1000M; sleep 600");
        pod["spec"]["containers"]
            .as_array_mut()
            .unwrap()
            .push(sidecar);
    });
    pod.runs();
    assert_eq!(said(&pod.logs("first"), "total"), [0, LIMIT]);
    eventually("the sidecar has asked", || {
        pod.logs("beside").contains("alloc")
    });
    assert_eq!(
        said(&pod.logs("beside"), "alloc")[0],
        2,
        "both share one limit"
    );
    assert_eq!(said(&pod.exec("victim alloc 1000M || true"), "alloc")[0], 2);
    assert_eq!(
        said(&pod.exec("env -i /usr/bin/victim total"), "total"),
        [0, LIMIT]
    );
}

#[test]
fn a_container_that_starts_again_has_its_limit_again() {
    let node = ManagedNode::with(&[]);
    let script = "victim total; test -e /tmp/again/x || { touch /tmp/again/x; exit 1; }";
    let pod = node.pod("again", script, |pod| {
        pod["spec"]["restartPolicy"] = json!("OnFailure");
        pod["spec"]["volumes"] = json!([{"name": "kept", "emptyDir": {}}]);
        pod["spec"]["containers"][0]["volumeMounts"] =
            json!([{"name": "kept", "mountPath": "/tmp/again"}]);
    });
    pod.succeeds();
    assert_eq!(said(&pod.logs("main"), "total"), [0, LIMIT]);
}

#[test]
fn a_pod_that_asks_for_nothing_does_not_start_and_its_events_say_why() {
    let node = ManagedNode::with(&[]);
    let pod = node.pod("silent", "echo started", |pod| {
        pod["metadata"]["annotations"] = json!({});
    });
    eventually("its events say why", || {
        pod.events()
            .contains("neither annotation gpu-memory nor gpu-fraction")
    });
    assert!(!pod.logs("main").contains("started"));
}

#[test]
fn a_pod_that_fits_nowhere_does_not_start_and_its_events_say_why() {
    let node = ManagedNode::with(&[]);
    let pod = node.pod("huge", "echo started", |pod| {
        pod["metadata"]["annotations"] = json!({"gpu-memory": "9000000"});
    });
    eventually("its events say why", || {
        pod.events().contains("the most free on one GPU is")
    });
    assert!(!pod.logs("main").contains("started"));
}

#[test]
fn no_environment_of_a_pod_raises_its_limit() {
    let node = ManagedNode::with(&[]);
    let pod = node.pod(
        "attacker",
        "victim total; cat /.apportion/limits > /tmp/l; \
        echo x > /.apportion/limits && echo WROTE; umount /.apportion/limits && echo UMOUNTED; \
        LD_PRELOAD= victim total; env -i /usr/bin/victim total; true",
        |pod| {
            pod["spec"]["containers"][0]["env"] = json!([
                {"name": "LD_PRELOAD", "value": ""},
                {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
                {"name": "CUDA_DEVICE_MEMORY_LIMIT", "value": "0"},
                {"name": "APPORTION_ACCOUNT", "value": "/tmp"},
                {"name": "CUDA_DISABLE_CONTROL", "value": "true"},
            ]);
        },
    );
    pod.succeeds();
    let log = pod.logs("main");
    let totals: Vec<_> = log
        .lines()
        .filter(|line| line.starts_with("total"))
        .collect();
    assert_eq!(totals, vec![format!("total 0 {LIMIT}"); 3], "{log}");
    assert!(!log.contains("WROTE") && !log.contains("UMOUNTED"), "{log}");
}

#[test]
fn a_volume_over_the_account_hides_no_limit() {
    let node = ManagedNode::with(&[]);
    let pod = node.pod("covers", "echo started; victim total", |pod| {
        pod["spec"]["volumes"] = json!([{"name": "own", "emptyDir": {}}]);
        pod["spec"]["containers"][0]["volumeMounts"] = json!([
            {"name": "own", "mountPath": "/.apportion/limits"},
            {"name": "own", "mountPath": "/etc/ld.so.preload"},
        ]);
    });
    // With CDI, the grant's mounts cover those of the pod. Without CDI, such a container does not start.
    let is_told = || {
        pod.events()
            .contains("which hides the files that enforce its limit")
    };
    eventually("it has ended or was refused", || {
        is_told() || matches!(pod.phase().as_str(), "Succeeded" | "Failed")
    });
    let log = pod.logs("main");
    if log.contains("started") {
        assert_eq!(said(&log, "total"), [0, LIMIT], "{log}")
    } else {
        assert!(is_told(), "{}", pod.events())
    }
}

#[test]
fn without_an_agent_a_container_does_not_start_and_with_the_next_one_it_does() {
    let mut node = ManagedNode::with(&[]);
    node.kill_agent();
    node.start_agent(&[]);
    let pod = node.pod("patient", "victim total", |_| {});
    pod.succeeds();
    assert_eq!(said(&pod.logs("main"), "total"), [0, LIMIT]);
}

#[test]
fn the_kubelet_itself_says_which_pods_there_are_where_it_can() {
    let node = ManagedNode::with(&[]);
    // Served by default since 1.37.
    let source = if node.cluster.kubernetes().starts_with("v1.36.") {
        "api-server"
    } else {
        "kubelet"
    };
    eventually("somebody says which pods there are", || {
        let log = std::fs::read_to_string(node.log()).unwrap_or_default();
        let mut lines = log.lines();
        lines.any(|line| line.contains("Pods of the node listed") && line.contains(source))
    });
    let pod = node.pod("told", "victim total", |_| {});
    pod.succeeds();
    assert_eq!(said(&pod.logs("main"), "total"), [0, LIMIT]);
}
