//! A pod that bypasses its limit, with the policies that act: the offender ends in the way that the policy says, and
//! nothing else does.

use apportion_cluster::eventually;
use apportion_cluster::managed::{ManagedNode, ManagedPod};

/// A program that keeps its limit, and beside it one that takes more than both may have.
const OFFENDER: &str = "victim alloc 500M hold & sleep 1; \
    VICTIM_DOOR=symbols victim alloc 3000M hold; echo ended $?; sleep 600";
const HONEST: &str = "victim alloc 1000M hold";

fn offences(node: &ManagedNode, kind: &str) -> f64 {
    let label = format!("kind=\"{kind}\"");
    let offences = node.metric("apportion_offences_total", &[&label]);
    offences.unwrap_or_default()
}

fn is_attached(node: &ManagedNode, pod: &ManagedPod) -> bool {
    let labels = [
        format!("pod=\"{}\"", pod.name),
        "state=\"attached\"".to_owned(),
    ];
    let labels: Vec<_> = labels.iter().map(String::as_str).collect();
    node.metric("apportion_container_enforcement_state", &labels) == Some(1.0)
}

/// A pod that keeps to its limit.
fn neighbour(node: &ManagedNode) -> ManagedPod {
    let pod = node.pod("neighbour", HONEST, |_| {});
    pod.says("alloc 0");
    pod
}

#[track_caller]
fn is_well(node: &ManagedNode, pod: &ManagedPod) {
    let is = (pod.phase(), pod.at(".metadata.uid"));
    assert_eq!(is, ("Running".to_owned(), pod.uid.clone()));
    assert_eq!(pod.at(".status.containerStatuses[0].restartCount"), "0");
    assert!(is_attached(node, pod), "{}", pod.events());
}

#[test]
fn under_the_policy_that_kills_the_offending_process_ends_and_its_pod_goes_on() {
    let node = ManagedNode::with(&["--policy", "kill"]);
    let neighbour = neighbour(&node);
    let pod = node.pod("offender", OFFENDER, |_| {});
    pod.says("ended 137");
    eventually("an event says so", || {
        pod.events_by("{.reason}").contains("GpuProcessKilled")
    });
    assert!(offences(&node, "killed") > 0.0);
    eventually("what is left keeps to the limit", || {
        is_attached(&node, &pod)
    });
    assert_eq!(pod.phase(), "Running");
    assert!(pod.exec("ps ax").contains("victim alloc 500M"));
    is_well(&node, &neighbour);
}

#[test]
fn under_the_policy_that_evicts_the_offenders_pod_goes_and_its_share_with_it() {
    let node = ManagedNode::with(&["--policy", "evict"]);
    let neighbour = neighbour(&node);
    let pod = node.pod("offender", OFFENDER, |_| {});
    eventually("an event says so", || {
        pod.events_by("{.reason}").contains("GpuPodEvicted")
    });
    eventually("the pod is gone", || pod.phase().is_empty());
    let limit = "apportion_container_memory_limit_bytes";
    eventually("its share is given back", || {
        node.metric(limit, &["pod=\"offender\""]).is_none()
    });
    assert!(offences(&node, "evicted") > 0.0);
    assert_eq!(offences(&node, "killed"), 0.0);
    is_well(&node, &neighbour);
}

#[test]
fn in_a_namespace_whose_policy_is_to_observe_an_event_tells_and_nothing_ends() {
    let node = ManagedNode::with(&["--policy", "evict", "--policy-override", "default=observe"]);
    let neighbour = neighbour(&node);
    let pod = node.pod("offender", OFFENDER, |_| {});
    eventually("an event says so", || {
        pod.events_by("{.reason}").contains("GpuLimitExceeded")
    });
    eventually("the offender shows as one", || {
        let labels = ["pod=\"offender\"", "state=\"bypassed\""];
        node.metric("apportion_container_enforcement_state", &labels) == Some(1.0)
    });
    // Ten samples take two seconds, more than it takes to act on an offender.
    let mut looks = 0;
    eventually("it has been seen often", || {
        looks += 1;
        looks > 10
    });
    assert!(pod.exec("ps ax").contains("victim alloc 3000M"));
    assert_eq!(
        (offences(&node, "killed"), offences(&node, "evicted")),
        (0.0, 0.0)
    );
    is_well(&node, &neighbour);
}
