//! Who leads: a dead leader is soon replaced. Without leader election the scheduler that starts last leads.

use std::thread;
use std::time::{Duration, Instant};

use apportion_tests::eventually;
use serde_json::{Value, json};

use crate::cluster::{Cluster, PATIENCE, pod};

const WITHOUT_LEADER_ELECTION: &str = "--leader-elect=false";
const WAITS: &str = "Another scheduler holds the lease";

#[test]
fn a_leader_that_was_killed_is_soon_followed() {
    let mut cluster = Cluster::with_cards(2);
    cluster.plane.apply(&[share("first")]);
    cluster.bound(1);
    let leader = cluster.leave_scheduler();
    start_standby(&mut cluster);
    // Give it time to read the cluster's state. Meanwhile it watches the lease, and does not read it all the time.
    let before = reads_of_leases(&cluster);
    thread::sleep(Duration::from_secs(6));
    let reads = reads_of_leases(&cluster) - before;
    assert!(reads < 4.0, "{reads} reads of leases in six seconds");
    drop(leader);
    let killed = Instant::now();
    cluster.plane.apply(&[share("second")]);
    cluster.bound(2);
    let took = killed.elapsed();
    println!("bound {took:?} after the leader was killed");
    // On an idle machine it takes four seconds, three of them for the lease.
    assert!(
        took < Duration::from_secs(8),
        "{took:?}: {}",
        cluster.said()
    );
}

#[test]
fn a_leader_that_is_stopped_in_order_is_followed_at_once() {
    let mut cluster = Cluster::bare();
    // Longer than the test waits, so only the release ends it.
    cluster.lease_duration = "3600";
    cluster.add_node("node-1", &apportion_tests::cards(1));
    cluster.start_scheduler();
    cluster.await_leader();
    let leader = cluster.leave_scheduler();
    start_standby(&mut cluster);
    leader.end();
    cluster.await_leader();
}

/// A cluster whose scheduler has bound one pod without leader election.
fn without_leader_election() -> Cluster {
    let mut cluster = Cluster::bare();
    cluster.options.push(WITHOUT_LEADER_ELECTION.to_owned());
    cluster.add_node("node-1", &apportion_tests::cards(1));
    cluster.start_scheduler();
    cluster.plane.apply(&[share("first")]);
    cluster.bound(1);
    cluster
}

#[test]
fn without_leader_election_the_lease_is_written_once_and_nobody_waits_for_it() {
    let mut cluster = without_leader_election();
    let first = lease(&cluster);
    assert!(
        first["spec"]["leaseDurationSeconds"].is_null(),
        "nobody would have to wait: {first}"
    );
    // With leader election it would have been renewed.
    thread::sleep(Duration::from_secs(6));
    assert_eq!(lease(&cluster), first);
    cluster.kill_scheduler();
    cluster.start_scheduler();
    cluster.plane.apply(&[share("second")]);
    cluster.bound(2);
    assert!(!cluster.whole_log().contains(WAITS), "{}", cluster.said());
    let second = lease(&cluster);
    assert_ne!(
        second["spec"]["holderIdentity"],
        first["spec"]["holderIdentity"]
    );
    assert_eq!(
        (
            first["spec"]["leaseTransitions"].as_i64(),
            second["spec"]["leaseTransitions"].as_i64()
        ),
        (Some(1), Some(2)),
        "each has a term of its own"
    );
}

#[test]
fn without_leader_election_the_scheduler_that_starts_last_takes_over() {
    let mut cluster = without_leader_election();
    let former = cluster.leave_scheduler();
    cluster.start_scheduler();
    cluster.plane.apply(&[share("second")]);
    cluster.bound(2);
    former.ended();
    assert!(
        cluster
            .whole_log()
            .contains("another scheduler took the lease"),
        "{}",
        cluster.said()
    );
    assert!(cluster.is_running(), "{}", cluster.said());
}

#[test]
fn leader_election_can_be_turned_off_and_on_again() {
    let mut cluster = Cluster::bare();
    // Longer than the test waits, so only the release ends it.
    cluster.lease_duration = "3600";
    cluster.add_node("node-1", &apportion_tests::cards(1));
    cluster.start_scheduler();
    cluster.await_leader();
    let elected = cluster.leave_scheduler();
    cluster.options.push(WITHOUT_LEADER_ELECTION.to_owned());
    start_standby(&mut cluster);
    elected.end();
    cluster.await_leader();
    let sole = cluster.leave_scheduler();
    cluster.options.clear();
    cluster.lease_duration = "3";
    cluster.start_scheduler();
    cluster.await_leader();
    sole.ended();
}

fn share(name: &str) -> Value {
    pod(name, json!({"gpu-fraction": "0.5"}))
}

fn lease(cluster: &Cluster) -> Value {
    let lease = ["get", "lease", "apportion-scheduler", "-n", "kube-system"];
    let lease = cluster
        .plane
        .kubectl(&[&lease[..], &["-o", "json"]].concat());
    serde_json::from_str(&lease).expect("kubectl prints JSON")
}

/// Starts another scheduler, which waits for the lease.
fn start_standby(cluster: &mut Cluster) {
    cluster.start_scheduler();
    eventually(PATIENCE, "the other waits", || {
        cluster.whole_log().contains(WAITS)
    });
}

/// How often leases were read, by the API server's own count.
fn reads_of_leases(cluster: &Cluster) -> f64 {
    let metrics = cluster.plane.kubectl(&["get", "--raw", "/metrics"]);
    let reads = metrics.lines().filter(|line| {
        let is_read = line.contains("verb=\"GET\"") && line.contains("resource=\"leases\"");
        line.starts_with("apiserver_request_total{") && is_read
    });
    reads
        .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
        .sum()
}
