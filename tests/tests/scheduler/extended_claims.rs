//! Claims in place of extended resources (KEP-5004) with a real API server, which checks what is written. The test does
//! what Kubernetes' controllers do once a pod is gone.

use apportion_tests::cards;
use serde_json::{Value, json};

use crate::claims::{CLASS, class, name, slice};
use crate::cluster::{Cluster, pod};
use crate::objects::SCHEDULER;

const RESOURCE: &str = "nvidia.com/gpu";
const ANNOTATION: &str = "resource.kubernetes.io/extended-resource-claim";

/// One node with two cards, which are devices of a class with another name. The scheduler has the rights that the chart
/// gives it.
fn cluster() -> Cluster {
    let mut cluster = Cluster::under_policy();
    cluster.add_node("node-1", &cards(2));
    let mut class = class();
    class["spec"]["extendedResourceName"] = json!(RESOURCE);
    cluster.plane.apply(&[class, slice("node-1")]);
    cluster
}

fn user(name: &str) -> Value {
    let mut pod = pod(name, json!({}));
    pod["spec"]["containers"][0]["resources"] = json!({"limits": {RESOURCE: "1"}});
    pod
}

/// What Kubernetes' controllers do with the claim of a pod that is gone.
fn collect(cluster: &Cluster, claim: &str) {
    let patch = json!({"metadata": {"finalizers": null}}).to_string();
    let patch = [
        "patch",
        "resourceclaim",
        claim,
        "--type=merge",
        "-p",
        &patch,
    ];
    assert!(!cluster.plane.kubectl(&patch).is_empty());
    let _ = cluster.plane.kubectl(&["delete", "resourceclaim", claim]);
}

#[test]
fn pods_that_ask_for_the_resource_of_a_class_get_claims_and_devices() {
    let mut cluster = cluster();
    cluster.start_scheduler();
    let pods = ["first", "second", "third"].map(user);
    cluster.plane.apply(&pods);
    let bound = cluster.bound(2);
    let reason = "request container-0-request-0: wants 1 device of class gpu.apportion.dev, 0 free (2 with too little capacity left)";
    cluster.eventually("the third waits, and is told why", |pods| {
        let mut ours = pods
            .iter()
            .filter(|pod| pod["spec"]["schedulerName"] == SCHEDULER);
        let waiting = ours.find(|pod| pod["spec"]["nodeName"].is_null())?;
        let told = waiting["status"]["conditions"].to_string().contains(reason);
        told.then_some(())
    });
    let claims = cluster.plane.all("resourceclaims");
    assert_eq!(claims.len(), 2, "{claims:?}");
    let pods = cluster.plane.all("pods");
    let mut devices = Vec::new();
    for pod in pods.iter().filter(|pod| bound.contains_key(&name(pod))) {
        let status = &pod["status"]["extendedResourceClaimStatus"];
        let mapping = json!({"containerName": pod["spec"]["containers"][0]["name"],
            "resourceName": RESOURCE, "requestName": "container-0-request-0"});
        assert_eq!(status["requestMappings"], json!([mapping]));
        let claim = claims
            .iter()
            .find(|claim| claim["metadata"]["name"] == status["resourceClaimName"])
            .expect("its claim is there");
        let metadata = &claim["metadata"];
        let generated = format!("{}-extended-resources-", name(pod));
        assert_eq!(metadata["generateName"], generated);
        assert_eq!(metadata["annotations"][ANNOTATION], "true");
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": name(pod),
            "uid": pod["metadata"]["uid"], "controller": true});
        assert_eq!(metadata["ownerReferences"], json!([owner]));
        let request = &claim["spec"]["devices"]["requests"][0];
        assert_eq!(request["exactly"]["deviceClassName"], CLASS);
        let result = &claim["status"]["allocation"]["devices"]["results"][0];
        assert_eq!(result["request"], "container-0-request-0");
        devices.push(result["device"].clone());
        let user = json!([{"resource": "pods", "name": name(pod), "uid": pod["metadata"]["uid"]}]);
        assert_eq!(claim["status"]["reservedFor"], user);
    }
    devices.sort_by_key(Value::to_string);
    assert_eq!(devices, ["gpu-0", "gpu-1"]);
    // The agent reserves nothing: the kubelet asks it for the devices of the claim.
    assert!(cluster.granted("node-1").is_empty());
    let first = bound.keys().next().expect("two are bound").clone();
    let gone = pods
        .iter()
        .find(|pod| name(pod) == first)
        .expect("it is there");
    let claim = &gone["status"]["extendedResourceClaimStatus"]["resourceClaimName"];
    let _ = cluster
        .plane
        .kubectl(&["delete", "pod", &first, "--force", "--grace-period=0"]);
    collect(&cluster, claim.as_str().expect("a name"));
    cluster.bound(2);
    assert!(cluster.was_never_refused(), "{}", cluster.said());
}

/// An earlier scheduler made the claim, gave it devices, and was killed before it bound the pod.
#[test]
fn a_claim_that_was_left_behind_is_deleted_and_its_pod_gets_another() {
    let mut cluster = cluster();
    cluster.plane.apply(&[user("waits")]);
    let waits = |cluster: &Cluster| {
        let mut pods = cluster.plane.all("pods").into_iter();
        pods.find(|pod| name(pod) == "waits").expect("it is there")
    };
    let uid = waits(&cluster)["metadata"]["uid"].clone();
    let request = json!({"name": "container-0-request-0",
        "exactly": {"deviceClassName": CLASS, "allocationMode": "ExactCount", "count": 1}});
    let left = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": "left", "namespace": "default", "annotations": {ANNOTATION: "true"},
            "finalizers": ["resource.kubernetes.io/delete-protection"],
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "waits", "uid": uid, "controller": true}]},
        "spec": {"devices": {"requests": [request]}}});
    cluster.plane.apply(&[left]);
    let result = json!({"request": "container-0-request-0", "driver": CLASS, "pool": "node-1", "device": "gpu-0",
        "shareID": "2f0d4a52-9f2c-4a53-8d1e-6a1f6f0d5b11", "consumedCapacity": {"memory": "10Gi"}});
    let status = json!({"status": {"allocation": {"devices": {"results": [result]}}}}).to_string();
    let patch = [
        "patch",
        "resourceclaim",
        "left",
        "--subresource=status",
        "--type=merge",
        "-p",
        &status,
    ];
    assert!(!cluster.plane.kubectl(&patch).is_empty());
    cluster.start_scheduler();
    cluster.bound(1);
    let claims = cluster.plane.all("resourceclaims");
    let names: Vec<String> = claims.iter().map(name).collect();
    assert_eq!(names.len(), 1, "{names:?}");
    assert!(
        names[0].starts_with("waits-extended-resources-"),
        "{names:?}"
    );
    let status = &waits(&cluster)["status"]["extendedResourceClaimStatus"];
    assert_eq!(status["resourceClaimName"], names[0].as_str());
    assert!(cluster.was_never_refused(), "{}", cluster.said());
}

/// The scheduler is killed at any moment between the claim of a pod and its binding.
#[test]
fn no_claim_is_left_of_a_scheduler_that_is_killed_again_and_again() {
    let mut cluster = cluster();
    for round in 0..6 {
        cluster.start_scheduler();
        cluster.plane.apply(&[user(&format!("round-{round}"))]);
        std::thread::sleep(std::time::Duration::from_millis(60 * round));
        cluster.kill_scheduler();
    }
    cluster.start_scheduler();
    let bound = cluster.bound(2);
    cluster.eventually("each bound pod has a claim, and nobody else", |_| {
        let claims = cluster.plane.all("resourceclaims");
        let owners = claims.iter().map(|claim| {
            let owner = &claim["metadata"]["ownerReferences"][0]["name"];
            owner.as_str().unwrap_or_default().to_owned()
        });
        let mut owners: Vec<String> = owners.collect();
        owners.sort();
        bound.keys().eq(owners.iter()).then_some(())
    });
    assert!(cluster.was_never_refused(), "{}", cluster.said());
}
