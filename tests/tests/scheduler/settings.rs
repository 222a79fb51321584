//! KAI's SchedulingShard as the scheduler's settings: they apply at once, and unsupported ones are reported.

use std::collections::BTreeSet;

use apportion_tests::cards;
use serde_json::{Value, json};

use crate::cluster::{Cluster, pod};

pub(crate) fn kind(kind: &str, plural: &str) -> Value {
    let anything = json!({"openAPIV3Schema": {"type": "object",
        "x-kubernetes-preserve-unknown-fields": true}});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.kai.scheduler")},
        "spec": {"group": "kai.scheduler", "scope": "Cluster",
            "names": {"plural": plural, "kind": kind},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": anything,
                "subresources": {"status": {}}}]}})
}

fn shard(spec: &Value) -> Value {
    json!({"apiVersion": "kai.scheduler/v1", "kind": "SchedulingShard",
        "metadata": {"name": "default"}, "spec": spec})
}

impl Cluster {
    /// Waits until the shard's status says whether all settings are in effect, and why not.
    fn says(&self, status: &str, message: &str) {
        self.eventually(message, |_| {
            let shards = self.plane.all("schedulingshards");
            let conditions = shards[0]["status"]["conditions"].as_array()?;
            let mut conditions = conditions.iter();
            let ours = conditions.find(|one| one["type"] == "Supported")?;
            (ours["status"] == status && ours["message"] == message).then_some(())
        });
    }
}

impl Cluster {
    /// A cluster with one node, a shard with this spec, and a scheduler that uses it.
    fn with_shard(spec: &Value) -> Self {
        let mut cluster = Self::bare();
        cluster.add_node("node-1", &cards(4));
        cluster
            .plane
            .apply(&[kind("SchedulingShard", "schedulingshards")]);
        let established = ["wait", "--for=condition=Established", "--timeout=60s"];
        let of = ["crd/schedulingshards.kai.scheduler"];
        let _ = cluster.plane.kubectl(&[&established[..], &of].concat());
        cluster.plane.apply(&[shard(spec)]);
        cluster.options = vec!["--kai-settings".to_owned()];
        cluster.start_scheduler();
        cluster
    }
}

#[test]
fn a_shard_chooses_how_gpus_are_filled_and_says_what_of_it_does_not_count() {
    let cluster =
        Cluster::with_shard(&json!({"placementStrategy": {"gpu": "binpack"}, "kValue": 2}));
    cluster.says("False", "not in effect: spec.kValue");
    let small = |name: &str| pod(name, json!({"gpu-fraction": "0.1"}));
    cluster.plane.apply(&[small("a"), small("b")]);
    let packed: BTreeSet<String> = cluster.bound(2).into_values().collect();
    assert_eq!(packed.len(), 1, "they share a GPU");
    let patch =
        json!({"spec": {"placementStrategy": {"gpu": "spread"}, "kValue": null}}).to_string();
    let patched = [
        "patch",
        "schedulingshard",
        "default",
        "--type=merge",
        "-p",
        &patch,
    ];
    let _ = cluster.plane.kubectl(&patched);
    cluster.says("True", "every setting is in effect");
    cluster.plane.apply(&[small("c")]);
    cluster.bound(3);
    cluster.plane.apply(&[small("d")]);
    let spread: BTreeSet<String> = cluster.bound(4).into_values().collect();
    assert_eq!(spread.len(), 3, "each of the new ones opens a GPU");
}

#[test]
fn arguments_of_a_shard_count_and_a_pod_says_what_it_waits_for() {
    let cluster = Cluster::with_shard(&json!({"args": {"restrict-node-scheduling": "true"}}));
    cluster.says("True", "every setting is in effect");
    cluster
        .plane
        .apply(&[pod("a", json!({"gpu-fraction": "0.1"}))]);
    cluster.eventually("the pod waits for a label", |pods| {
        let conditions = pods.first()?["status"]["conditions"].as_array()?;
        let mut messages = conditions.iter().filter_map(|one| one["message"].as_str());
        messages
            .any(|message| message.contains("restrict-node-scheduling"))
            .then_some(())
    });
    let label = "node-role.kubernetes.io/gpu-worker=";
    let _ = cluster.plane.kubectl(&["label", "node", "node-1", label]);
    cluster.bound(1);
}
