//! Resource claims with a real API server, which checks what is written into their status. The test does what
//! Kubernetes' controllers do once a pod is gone.

use std::collections::BTreeMap;

use apportion_tests::cards;
use serde_json::{Value, json};

use crate::cluster::{Cluster, pod};

pub(crate) const CLASS: &str = "gpu.apportion.dev";
const GIB: i64 = 1 << 30;
/// What each card has.
const CARD: i64 = 10 * GIB;

pub(crate) fn class() -> Value {
    let expression = format!("device.driver == '{CLASS}'");
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": CLASS},
        "spec": {"selectors": [{"cel": {"expression": expression}}]}})
}

/// Two cards whose memory claims share.
pub(crate) fn slice(node: &str) -> Value {
    let card = |name: &str| {
        json!({"name": name, "allowMultipleAllocations": true,
            "attributes": {"uuid": {"string": format!("GPU-{node}-{name}")}},
            "capacity": {"memory": {"value": CARD.to_string(), "requestPolicy":
                {"default": CARD.to_string(), "validRange": {"min": "1Mi", "step": "1Mi"}}}}})
    };
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": node},
        "spec": {"driver": CLASS, "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [card("gpu-0"), card("gpu-1")]}})
}

fn claim(name: &str, memory: &str) -> Value {
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default",
            "labels": {"kai.scheduler/queue": "default-queue"}},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": CLASS,
            "capacity": {"requests": {"memory": memory}}}}]}}})
}

fn user(name: &str, claim: &str) -> Value {
    let mut pod = pod(name, json!({}));
    pod["spec"]["resourceClaims"] = json!([{"name": "gpu", "resourceClaimName": claim}]);
    pod["spec"]["containers"][0]["resources"]["claims"] = json!([{"name": "gpu"}]);
    pod
}

fn cluster() -> Cluster {
    let mut cluster = Cluster::bare();
    cluster.add_node("node-1", &cards(1));
    cluster.plane.apply(&[class(), slice("node-1")]);
    cluster.start_scheduler();
    cluster
}

pub(crate) fn name(object: &Value) -> String {
    object["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

/// What claims have of each card.
fn used(claims: &[Value]) -> BTreeMap<String, i64> {
    let mut used = BTreeMap::new();
    for claim in claims {
        let results = claim["status"]["allocation"]["devices"]["results"].as_array();
        for result in results.into_iter().flatten() {
            let amount = result["consumedCapacity"]["memory"]
                .as_str()
                .unwrap_or_default();
            let amount = amount.strip_suffix("Gi").map_or_else(
                || amount.parse().expect("bytes"),
                |gib| gib.parse::<i64>().expect("GiB") * GIB,
            );
            *used
                .entry(result["device"].as_str().unwrap_or_default().to_owned())
                .or_default() += amount;
        }
    }
    used
}

/// Merges this into the status of a claim.
fn write_status(cluster: &Cluster, claim: &str, status: &Value) {
    let status = json!({"status": status}).to_string();
    let patch = [
        "patch",
        "resourceclaim",
        claim,
        "--subresource=status",
        "--type=merge",
        "-p",
        &status,
    ];
    assert!(!cluster.plane.kubectl(&patch).is_empty());
}

/// Takes a claim back, as Kubernetes' controller does once its pods are gone.
fn take_back(cluster: &Cluster, claim: &str) {
    write_status(
        cluster,
        claim,
        &json!({"allocation": null, "reservedFor": null}),
    );
}

#[test]
fn claims_get_devices_before_their_pods_are_bound_and_no_card_is_overfull() {
    let cluster = cluster();
    let names: Vec<String> = (0..7).map(|number| format!("share-{number}")).collect();
    let claims: Vec<Value> = names.iter().map(|name| claim(name, "4Gi")).collect();
    let pods: Vec<Value> = names.iter().map(|name| user(name, name)).collect();
    cluster.plane.apply(&claims);
    cluster.plane.apply(&pods);
    // Two shares of 4 GiB fit each card of 10 GiB.
    let bound = cluster.bound(4);
    let reason =
        "wants 1 device of class gpu.apportion.dev, 0 free (2 with too little capacity left)";
    cluster.eventually("the others wait, and are told why", |pods| {
        let waiting = pods.iter().filter(|pod| pod["spec"]["nodeName"].is_null());
        let told = waiting.filter(|pod| pod["status"]["conditions"].to_string().contains(reason));
        (told.count() == 3).then_some(())
    });
    let claims = cluster.plane.all("resourceclaims");
    assert_eq!(
        used(&claims).into_values().collect::<Vec<_>>(),
        [8 * GIB, 8 * GIB]
    );
    let pods = cluster.plane.all("pods");
    for claim in &claims {
        let status = &claim["status"];
        let Some(pod) = pods.iter().find(|pod| name(pod) == name(claim)) else {
            panic!("no pod of {claim}");
        };
        if !bound.contains_key(&name(claim)) {
            assert!(
                status["allocation"].is_null() && status["reservedFor"].is_null(),
                "{claim}"
            );
            continue;
        }
        let result = &status["allocation"]["devices"]["results"][0];
        assert_eq!(
            (&result["driver"], &result["pool"]),
            (&json!(CLASS), &json!("node-1"))
        );
        assert!(result["shareID"].is_string(), "{result}");
        let selector =
            &status["allocation"]["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"][0];
        assert_eq!(selector["values"], json!(["node-1"]));
        let user = json!([{"resource": "pods", "name": name(pod), "uid": pod["metadata"]["uid"]}]);
        assert_eq!(status["reservedFor"], user);
        let finalizers = &claim["metadata"]["finalizers"];
        assert_eq!(
            *finalizers,
            json!(["resource.kubernetes.io/delete-protection"])
        );
    }
    // One ends, and one that waits has its room.
    let first = bound.keys().next().expect("four are bound").clone();
    let _ = cluster
        .plane
        .kubectl(&["delete", "pod", &first, "--force", "--grace-period=0"]);
    take_back(&cluster, &first);
    cluster.bound(4);
    let claims = cluster.plane.all("resourceclaims");
    assert_eq!(
        used(&claims).into_values().collect::<Vec<_>>(),
        [8 * GIB, 8 * GIB]
    );
}

#[test]
fn what_another_scheduler_gave_counts_and_a_claim_with_devices_is_shared() {
    let mut cluster = Cluster::bare();
    cluster.add_node("node-1", &cards(1));
    cluster.plane.apply(&[
        crate::objects::node("node-2", &json!({})),
        class(),
        slice("node-1"),
        slice("node-2"),
        claim("theirs", "10Gi"),
    ]);
    let term =
        json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-2"]}]});
    let result = json!({"request": "gpu", "driver": CLASS, "pool": "node-2", "device": "gpu-0",
        "shareID": "2f0d4a52-9f2c-4a53-8d1e-6a1f6f0d5b11", "consumedCapacity": {"memory": "10Gi"}});
    let users = json!([{"resource": "pods", "name": "theirs", "uid": "6b1a7c1e-3f43-4f0e-9a43-0f4f3a3d7a10"}]);
    let status = json!({"status": {"reservedFor": users, "allocation":
        {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": [term]}}}});
    let patch = status.to_string();
    let patch = [
        "patch",
        "resourceclaim",
        "theirs",
        "--subresource=status",
        "--type=merge",
        "-p",
        &patch,
    ];
    assert!(!cluster.plane.kubectl(&patch).is_empty());
    cluster.start_scheduler();
    let names: Vec<String> = (0..4).map(|number| format!("whole-{number}")).collect();
    let claims: Vec<Value> = names.iter().map(|name| claim(name, "10Gi")).collect();
    let mut pods: Vec<Value> = names.iter().map(|name| user(name, name)).collect();
    pods.push(user("beside", "theirs"));
    cluster.plane.apply(&claims);
    cluster.plane.apply(&pods);
    // Three cards are left for four claims. The pod that shares their claim goes where that has its card.
    let bound = cluster.bound(4);
    assert_eq!(bound["beside"], "node-2");
    let claims = cluster.plane.all("resourceclaims");
    let theirs = claims
        .iter()
        .find(|claim| name(claim) == "theirs")
        .expect("it is there");
    assert_eq!(
        theirs["status"]["reservedFor"].as_array().map(Vec::len),
        Some(2)
    );
    let given = claims
        .iter()
        .filter(|claim| !claim["status"]["allocation"].is_null());
    let mut cards: Vec<String> = given
        .map(|claim| {
            let result = &claim["status"]["allocation"]["devices"]["results"][0];
            format!("{} {}", result["pool"], result["device"])
        })
        .collect();
    cards.sort();
    cards.dedup();
    assert_eq!(cards.len(), 4, "each card is given once: {cards:?}");
}

/// A device that its driver attaches to the node once a claim has it (KEP-5007).
fn slice_with_conditions(node: &str) -> Value {
    let mut slice = slice(node);
    slice["spec"]["devices"] = json!([{"name": "gpu-0", "bindingConditions": ["example.com/attached"],
        "bindingFailureConditions": ["example.com/broken"]}]);
    slice
}

/// The driver says something about the device of a claim.
fn driver_says(cluster: &Cluster, claim: &str, condition: &str) {
    let condition = json!({"type": condition, "status": "True", "reason": "Fabric", "message": "it is so",
        "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let device =
        json!({"driver": CLASS, "pool": "node-1", "device": "gpu-0", "conditions": [condition]});
    write_status(cluster, claim, &json!({"devices": [device]}));
}

#[test]
fn a_pod_is_bound_once_its_device_is_ready_and_gets_another_one_if_it_fails() {
    let mut cluster = Cluster::bare();
    let whole = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": "gpu", "namespace": "default", "labels": {"kai.scheduler/queue": "default-queue"}},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": CLASS}}]}}});
    cluster.add_node("node-1", &cards(1));
    cluster
        .plane
        .apply(&[class(), slice_with_conditions("node-1"), whole]);
    cluster.start_scheduler();
    cluster.plane.apply(&[user("waits", "gpu")]);
    let status = || cluster.plane.all("resourceclaims")[0]["status"].clone();
    let first = cluster.eventually("the pod says what it waits for", |pods| {
        let conditions = pods[0]["status"]["conditions"].to_string();
        let is_told = conditions.contains("BindingConditionsPending")
            && conditions.contains("gpu-0 is not ready: example.com/attached");
        is_told.then(status)
    });
    let given = &first["allocation"]["devices"]["results"][0];
    assert_eq!(given["bindingConditions"], json!(["example.com/attached"]));
    assert!(
        first["allocation"]["allocationTimestamp"].is_string(),
        "{first}"
    );
    assert!(cluster.plane.all("pods")[0]["spec"]["nodeName"].is_null());
    let explained = cluster.ask(&["explain", "waits", "--address", &cluster.address()]);
    assert!(
        explained.contains("waits on node node-1: device"),
        "{explained}"
    );

    driver_says(&cluster, "gpu", "example.com/broken");
    cluster.eventually("the claim has its device anew", |_| {
        let status = status();
        let is_new = status["allocation"]["allocationTimestamp"].is_string()
            && status["devices"].is_null()
            && !status["reservedFor"].is_null();
        is_new.then_some(())
    });
    assert!(cluster.plane.all("pods")[0]["spec"]["nodeName"].is_null());
    driver_says(&cluster, "gpu", "example.com/attached");
    assert_eq!(cluster.bound(1)["waits"], "node-1");
}
