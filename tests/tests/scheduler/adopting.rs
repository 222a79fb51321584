//! Pods that KAI has placed continue unchanged: their cards count, and their node's agent adopts them.

use apportion_tests::{CARD, cards};
use serde_json::json;

use crate::cluster::{Cluster, pod};

#[test]
fn a_pod_that_kai_placed_is_taken_in_where_it_is() {
    let mut cluster = Cluster::bare();
    cluster.add_node("node-1", &cards(2));
    let listed = cluster.cards("node-1");
    let group = "5a1f0c2e-0000-4000-8000-000000000001";
    let mut keeper = pod("keeper", json!({"run.ai/reserve_for_gpu_index": listed[1]}));
    keeper["metadata"]["labels"] =
        json!({"app": "kai-resource-reservation", "runai-gpu-group": group});
    keeper["spec"]["schedulerName"] = "default-scheduler".into();
    keeper["spec"]["containers"][0]["resources"]["limits"] = json!({"nvidia.com/gpu": "1"});
    let mut placed = pod("placed", json!({"gpu-fraction": "0.75"}));
    placed["metadata"]["labels"]["runai-gpu-group"] = group.into();
    for pod in [&mut keeper, &mut placed] {
        pod["spec"]["nodeName"] = "node-1".into();
    }
    cluster.plane.apply(&[keeper, placed]);
    cluster.start_scheduler();
    cluster.eventually("the agent has it", |_| {
        let granted = cluster.granted("node-1");
        let held = granted.get(&listed[1])?;
        (*held == [("default/placed".to_owned(), CARD / 4 * 3)]).then_some(())
    });
    cluster
        .plane
        .apply(&[pod("next", json!({"gpu-fraction": "0.5"}))]);
    let bound = cluster.bound(3);
    assert_eq!(bound["next"], listed[0]);
    assert_eq!(bound["placed"], group);
}
