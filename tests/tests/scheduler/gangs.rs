//! Pods that start together or not at all, and pods on several cards.

use serde_json::{Value, json};

use crate::cluster::{Cluster, placed, pod};

fn gang(name: &str, size: usize, fraction: &str) -> Vec<Value> {
    let group = json!({"apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"minMember": size, "queue": "default-queue", "priorityClassName": "train"}});
    let members = (0..size).map(|number| {
        let annotations = json!({"gpu-fraction": fraction, "pod-group-name": name});
        pod(&format!("{name}-{number}"), annotations)
    });
    std::iter::once(group).chain(members).collect()
}

#[test]
fn a_gang_starts_when_there_is_room_for_all_of_it() {
    let cluster = Cluster::with_cards(2);
    cluster.plane.apply(&gang("large", 3, "0.9"));
    cluster.plane.apply(&gang("small", 2, "0.6"));
    let bound = cluster.bound(2);
    assert_eq!(bound.keys().collect::<Vec<_>>(), ["small-0", "small-1"]);
    let _ = cluster.plane.kubectl(&[
        "delete",
        "pods",
        "small-0",
        "small-1",
        "--force",
        "--grace-period=0",
    ]);
    let _ = cluster
        .plane
        .kubectl(&["delete", "pod", "large-2", "--force", "--grace-period=0"]);
    cluster.plane.apply(&gang("pair", 2, "0.9"));
    let bound = cluster.bound(2);
    assert_eq!(bound.keys().collect::<Vec<_>>(), ["pair-0", "pair-1"]);
}

#[test]
fn a_pod_on_several_cards_has_a_label_for_each() {
    let cluster = Cluster::with_cards(2);
    let both = json!({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"});
    cluster.plane.apply(&[pod("both", both)]);
    cluster.bound(1);
    let pods = cluster.plane.all("pods");
    let labels = pods[0]["metadata"]["labels"]
        .as_object()
        .expect("it has labels");
    let cards: Vec<&Value> = labels
        .iter()
        .filter(|(key, _)| key.starts_with("runai-gpu-group/"))
        .map(|(_, card)| card)
        .collect();
    assert_eq!(cards.len(), 2, "{labels:?}");
    assert_eq!(
        pods[0]["metadata"]["annotations"]["received-resource-type"],
        "Fraction"
    );
    let granted = cluster.granted("node-1");
    assert_eq!(granted.len(), 2);
    assert!(
        cards
            .iter()
            .all(|card| granted.contains_key(card.as_str().unwrap_or_default()))
    );
    assert_eq!(placed(&pods)["both"], "node-1");
}
