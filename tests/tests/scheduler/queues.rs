//! Queues with a real API server: limits hold, and borrowed GPUs are reclaimed through the eviction API.

use serde_json::json;

use crate::cluster::{Cluster, placed, pod, queue};

#[test]
fn a_queue_gets_back_what_it_lent() {
    let cluster = Cluster::with_cards(2);
    let mut half = [queue("lender", 1), queue("borrower", 1)];
    for queue in &mut half {
        queue["spec"]["resources"]["gpu"]["limit"] = json!(-1);
    }
    cluster.plane.apply(&half);
    let of = |name: &str, queue: &str| {
        let mut pod = pod(name, json!({}));
        pod["metadata"]["labels"]["kai.scheduler/queue"] = queue.into();
        pod["spec"]["containers"][0]["resources"]["limits"] = json!({"nvidia.com/gpu": "1"});
        pod
    };
    cluster
        .plane
        .apply(&[of("b-1", "borrower"), of("b-2", "borrower")]);
    cluster.bound(2);
    cluster.plane.apply(&[of("l-1", "lender")]);
    // No kubelet ends the evicted pod.
    let ending = cluster.eventually("one of the borrower's pods is ended", |pods| {
        let ending = pods
            .iter()
            .find(|pod| pod["metadata"]["deletionTimestamp"].is_string());
        ending.map(|pod| {
            pod["metadata"]["name"]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        })
    });
    let _ = cluster
        .plane
        .kubectl(&["delete", "pod", &ending, "--force", "--grace-period=0"]);
    cluster.eventually("the lender's pod starts", |pods| {
        placed(pods).contains_key("l-1").then_some(())
    });
}
