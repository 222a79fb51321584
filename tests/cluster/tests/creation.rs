//! How much longer a container with a share takes to start: pods with and without one alternate, from the API server's
//! answer to the container's first command, by the node's clock.
//!
//! It only measures, because a slow run on a busy machine is no bug:
//! `cargo xtask cluster test --release --suite creation -- --ignored --nocapture`.

use std::time::{Duration, UNIX_EPOCH};

use apportion_cluster::managed::ManagedNode;
use serde_json::json;

/// The number of pods of each kind.
const ROUNDS: usize = 15;

/// The time until a new pod's container runs its first command.
fn creation(node: &ManagedNode, name: &str, has_share: bool) -> Duration {
    let pod = node.pod(name, "echo now $(date +%s%N)", |pod| {
        if !has_share {
            pod["spec"]["containers"][0]["resources"] = json!({});
            pod["metadata"]["annotations"] = json!({});
        }
    });
    let taken = pod.taken;
    let log = pod.says("now ");
    let now = log.trim().strip_prefix("now ");
    let now: u64 = now.and_then(|at| at.parse().ok()).expect("a time");
    let taken = taken.duration_since(UNIX_EPOCH).unwrap_or_default();
    Duration::from_nanos(now).saturating_sub(taken)
}

/// The 10th, 50th and 90th percentile.
fn spread(mut times: Vec<Duration>) -> (Duration, Duration, Duration) {
    times.sort_unstable();
    let last = times.len() - 1;
    (times[last / 10], times[last / 2], times[last - last / 10])
}

#[test]
#[ignore = "it measures: the first lines of this file say how"]
fn measures_the_creation_of_containers_with_and_without_a_share() {
    let node = ManagedNode::with(&[]);
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        with.push(creation(&node, &format!("with-{round}"), true));
        without.push(creation(&node, &format!("without-{round}"), false));
    }
    let (with, without) = (spread(with), spread(without));
    for (name, (low, middle, high)) in [("with", with), ("without", without)] {
        println!(
            "{name:<8} a share: {middle:>7.0?} (p10 {low:.0?}, p90 {high:.0?}), {ROUNDS} pods"
        );
    }
    let ratio = with.1.as_secs_f64() / without.1.as_secs_f64();
    println!(
        "ratio {ratio:.2}, {:.0?} more",
        with.1.saturating_sub(without.1)
    );
}
