//! How much longer a container with a share takes to start: pods with a share by annotation, with a share by a resource
//! claim, and without one alternate, from the API server's answer to the container's first command, by the node's clock.
//!
//! It only measures, because a slow run on a busy machine is no bug:
//! `cargo xtask cluster test --release --suite creation -- --ignored --nocapture`.

use std::time::{Duration, UNIX_EPOCH};

use apportion_cluster::managed::{ManagedNode, by_claim, device_class, template};
use serde_json::json;

/// The number of pods of each kind.
const ROUNDS: usize = 15;

/// How a pod gets its share.
#[derive(Clone, Copy, Debug)]
enum ShareSource {
    Annotation,
    Claim,
    Nothing,
}

const SOURCES: [ShareSource; 3] = [
    ShareSource::Annotation,
    ShareSource::Claim,
    ShareSource::Nothing,
];
const TEMPLATE: &str = "creation";

/// The time until a new pod's container runs its first command.
fn creation(node: &ManagedNode, name: &str, source: ShareSource) -> Duration {
    let pod = node.pod(name, "echo now $(date +%s%N)", |pod| match source {
        ShareSource::Annotation => {}
        ShareSource::Claim => by_claim(pod, TEMPLATE),
        ShareSource::Nothing => {
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
    let node = ManagedNode::with(&["--dra", "on"]);
    for object in [device_class(None), template(TEMPLATE, Some("2000Mi"), None)] {
        node.cluster
            .apply(&object)
            .expect("the API server takes it");
    }
    let mut times = SOURCES.map(|_| Vec::new());
    for round in 0..ROUNDS {
        for (source, times) in SOURCES.iter().zip(&mut times) {
            let name = format!("{source:?}-{round}").to_lowercase();
            times.push(creation(&node, &name, *source));
        }
    }
    let spreads = times.map(spread);
    for (source, (low, middle, high)) in SOURCES.iter().zip(spreads) {
        let name = format!("{source:?}");
        println!("{name:<10} {middle:>7.0?} (p10 {low:.0?}, p90 {high:.0?}), {ROUNDS} pods");
    }
    let [annotation, claim, nothing] = spreads.map(|(_, middle, _)| middle);
    for (name, middle) in [("annotation", annotation), ("claim", claim)] {
        let ratio = middle.as_secs_f64() / nothing.as_secs_f64();
        let more = middle.saturating_sub(nothing);
        println!("{name}: ratio {ratio:.2}, {more:.0?} more");
    }
    let _ = node.kubectl(&["delete", "resourceclaimtemplate", TEMPLATE]);
}
