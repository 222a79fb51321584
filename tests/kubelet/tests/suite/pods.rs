//! A pod's request and its end, from the kubelet's pods API, without an API server.

use apportion_kubelet_tests::{FakeNode, PodsApi, mounted, pod_of};
use apportion_tests::MIB;

/// A node whose agent places pods by itself and has no API server.
async fn node() -> FakeNode {
    FakeNode::with(1, 4, &["--unplaced", "local-fit"]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_gets_what_the_kubelet_says_that_it_asks_for_until_the_kubelet_says_that_it_has_ended()
 {
    let mut node = node().await;
    let pods = PodsApi::listen(&node.host.dir().join("kubelet"));
    // The agent reads the pods when it starts, and again after a while.
    node.kill_agent();
    node.start_agent_with(&["--unplaced", "local-fit"]).await;
    let slot = node.kubelet.admit("u1", "train", &["main"]).await;
    let slot = slot.expect("a slot is free");
    pods.has("u1", "train", &[("gpu-memory", "2000")]);
    node.kubelet.before_start("u1").await.expect("it fits");
    let grant = node.grant(&slot).expect("its container may start");
    let limits = std::fs::read(mounted(&grant, "/.apportion/limits")).expect("it is there");
    let limit = (2000 * MIB).to_le_bytes();
    assert!(limits.windows(8).any(|word| word == limit));

    // The list of devices still shows the slot as the pod's.
    pods.is_finished("u1");
    node.eventually("its share is given back", async |list| {
        !list.allocations.iter().any(|of| pod_of(of) == Some("u1"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_of_which_nobody_says_what_it_asks_for_does_not_start() {
    let node = node().await;
    let admitted = node.kubelet.admit("u1", "train", &["main"]).await;
    admitted.expect("a slot is free");
    let refused = node.kubelet.before_start("u1").await;
    let refused = refused.expect_err("nobody placed it");
    let sentence = "neither the kubelet nor the API server reports its request";
    assert!(refused.message().contains(sentence), "{refused}");
}
