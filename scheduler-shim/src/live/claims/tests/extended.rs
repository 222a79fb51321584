//! Claims in place of extended resources: they are made with the bind of their pod, and go with it.

use serde_json::{Value, json};

use super::{ClaimCluster, WHOLE};
use crate::live::event::{PodRef, SchedulerEffect, SchedulerEvent};
use apportion_model::extended_requests::{ExtendedClaimContents, OF_EXTENDED};

impl ClaimCluster {
    /// Creates a pod that asks for an extended resource, and returns its name.
    pub(super) fn create_extended(&mut self, resource: &str) -> Option<String> {
        if self.pods.len() > 12 {
            return None;
        }
        self.made += 1;
        let name = format!("p{}", self.made);
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"),
                "resourceVersion": "1", "labels": {"kai.scheduler/queue": "team"}},
            "spec": {"schedulerName": "kai-scheduler",
                "containers": [{"name": "main", "resources": {"requests": {resource: "1"}}}]},
            "status": {"phase": "Pending"}});
        self.pods.insert(name.clone(), pod.clone());
        self.pod_events.push_back(SchedulerEvent::Applied(pod));
        Some(name)
    }

    /// The claim of a pod: named by it, or made for it.
    pub(super) fn claim_of(&self, pod: &Value) -> Option<String> {
        let named = &pod["spec"]["resourceClaims"][0]["resourceClaimName"];
        if let Some(named) = named.as_str() {
            return Some(named.to_owned());
        }
        let mut claims = self.claims.iter();
        let own = claims.find(|(_, claim)| {
            claim["metadata"]["ownerReferences"][0]["uid"] == pod["metadata"]["uid"]
        });
        own.map(|(name, _)| name.clone())
    }

    /// Makes the claim of a pod.
    pub(super) fn make(&mut self, pod: &PodRef, contents: &ExtendedClaimContents) -> String {
        let owner = json!({"kind": "Pod", "name": pod.name, "uid": pod.uid, "controller": true});
        let pod = &self.pods.get(&pod.name);
        let number = self.claims.len() + self.made * 100 + usize::from(pod.is_some());
        let name = format!("extended-{number}");
        let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"),
                "resourceVersion": "1", "annotations": {OF_EXTENDED: "true"}, "ownerReferences": [owner]},
            "spec": contents.spec});
        self.claims.insert(name.clone(), claim.clone());
        self.claim_events.push_back(SchedulerEvent::Applied(claim));
        self.made += 1;
        name
    }

    pub(super) fn remove_claim(&mut self, name: &str) {
        if let Some(claim) = self.claims.remove(name) {
            self.claim_events.push_back(SchedulerEvent::Gone(claim));
        }
    }

    /// Deletes a claim that the scheduler wants to be gone, as its writer does: not if the pod has a node.
    pub(super) fn delete_claim(&mut self) {
        let Some((pod, claim)) = self.deletions.pop() else {
            return;
        };
        let found = self.pods.get(&pod.name);
        if found.is_none_or(|found| found["spec"]["nodeName"].is_null()) {
            self.remove_claim(&claim);
        }
    }

    /// The scheduler ends between the claims of a pod and its binding.
    pub(super) fn crash(&mut self, which: usize) {
        if self.binds.is_empty() {
            return;
        }
        let effect = self.binds.remove(which % self.binds.len());
        if let SchedulerEffect::Bind {
            pod,
            claims,
            are_claims_reserved: false,
            ..
        } = effect
            && self.pods.contains_key(&pod.name)
        {
            for one in &claims {
                self.reserve(&pod, one);
            }
        }
        while !self.binds.is_empty() || !self.attachments.is_empty() {
            self.answer(0, None);
            self.attach(0, false);
        }
        self.evictions.clear();
        self.deletions.clear();
        self.start_scheduler();
    }

    pub(super) fn deliver_all(&mut self) {
        while let Some(event) = self.claim_events.pop_front() {
            self.deliver(event);
        }
        while let Some(event) = self.pod_events.pop_front() {
            self.deliver(event);
        }
    }

    /// The node of each pod.
    fn nodes(&self) -> Vec<&str> {
        let pods = self.pods.values();
        pods.map(|pod| pod["spec"]["nodeName"].as_str().unwrap_or("waits"))
            .collect()
    }
}

#[test]
fn a_pod_gets_a_device_of_the_class_that_its_resource_names() {
    let mut cluster = ClaimCluster::new();
    for _ in 0..3 {
        cluster.create_extended(WHOLE);
    }
    cluster.deliver_all();
    cluster.decide();
    let SchedulerEffect::Bind { pod, claims, .. } = &cluster.binds[0] else {
        panic!("it binds a pod");
    };
    let [claim] = claims.as_slice() else {
        panic!("it makes one claim: {claims:?}");
    };
    let contents = claim.makes.clone().expect("the claim is yet to be made");
    let request = "container-0-request-0";
    let exactly =
        json!({"deviceClassName": "whole.gpu", "allocationMode": "ExactCount", "count": 1});
    let spec = json!({"devices": {"requests": [{"name": request, "exactly": exactly}]}});
    assert_eq!(contents.spec, spec);
    let mapping = json!({"containerName": "main", "resourceName": WHOLE, "requestName": request});
    assert_eq!(contents.mappings, json!([mapping]));
    assert_eq!((claim.uid.as_str(), claim.is_new), (pod.uid.as_str(), true));
    cluster.settle();
    let mut nodes = cluster.nodes();
    nodes.sort_unstable();
    assert_eq!(nodes, ["n1", "n2", "waits"]);
}

#[test]
fn what_an_earlier_scheduler_left_is_deleted_and_its_pod_gets_a_new_claim() {
    let mut cluster = ClaimCluster::new();
    cluster.create_extended(WHOLE);
    cluster.deliver_all();
    cluster.decide();
    cluster.crash(0);
    let left: Vec<String> = cluster.claims.keys().cloned().collect();
    assert_eq!(left.len(), 1, "it was made, and its pod was not bound");
    cluster.decide();
    assert!(cluster.binds.is_empty(), "its pod waits");
    assert_eq!(cluster.deletions.len(), 1);
    cluster.decide();
    assert_eq!(cluster.deletions.len(), 1, "it is not asked again at once");
    cluster.settle();
    let claims: Vec<&String> = cluster.claims.keys().collect();
    assert_eq!(claims.len(), 1);
    assert_ne!(*claims[0], left[0]);
    assert_eq!(cluster.nodes(), ["n1"]);
}

#[test]
fn the_claim_of_a_bind_that_failed_is_gone_before_the_pod_is_decided_again() {
    let mut cluster = ClaimCluster::new();
    cluster.create_extended(WHOLE);
    cluster.deliver_all();
    cluster.decide();
    cluster.answer(0, Some(1));
    assert!(cluster.claims.is_empty());
    // The watch shows what was made and deleted only after the pod was decided again.
    let late = std::mem::take(&mut cluster.claim_events);
    cluster.now += std::time::Duration::from_secs(120);
    cluster.decide();
    assert_eq!(cluster.binds.len(), 1);
    late.into_iter().for_each(|event| cluster.deliver(event));
    cluster.create_extended(WHOLE);
    cluster.create_extended(WHOLE);
    cluster.deliver_all();
    cluster.decide();
    assert_eq!(
        cluster.binds.len(),
        2,
        "the device of the first is not free"
    );
    cluster.settle();
    let waiting = cluster.nodes();
    assert_eq!(waiting.iter().filter(|node| **node == "waits").count(), 1);
}

/// The pod is gone before its devices are ready. Its claim has them until it is deleted, although no watch has shown it.
#[test]
fn the_claim_of_a_pod_that_is_gone_has_its_devices_until_it_is_deleted() {
    let mut cluster = ClaimCluster::with(true);
    let first = cluster.create_extended(WHOLE).unwrap();
    cluster.create_extended(WHOLE);
    cluster.deliver_all();
    cluster.decide();
    cluster.delete(0);
    assert!(!cluster.pods.contains_key(&first));
    cluster.attach(0, false);
    cluster.attach(0, false);
    let shown_late = std::mem::take(&mut cluster.claim_events);
    cluster.create_extended(WHOLE);
    cluster.deliver_all();
    // A list from before the claims were made.
    cluster.deliver(SchedulerEvent::Listed(
        "ResourceClaim".to_owned(),
        Vec::new(),
    ));
    cluster.decide();
    let [SchedulerEffect::ReleaseClaims { pod, .. }] = cluster.attachments.as_slice() else {
        panic!("a device was given again: {:?}", cluster.attachments);
    };
    assert_eq!(pod.name, first);
    cluster.attach(0, false);
    cluster.decide();
    let [SchedulerEffect::ReserveClaims { .. }] = cluster.attachments.as_slice() else {
        panic!("the device is free: {:?}", cluster.attachments);
    };
    shown_late
        .into_iter()
        .for_each(|event| cluster.deliver(event));
    cluster.settle();
    assert_eq!(cluster.nodes().len(), 2);
    assert!(!cluster.nodes().contains(&"waits"));
}

/// kube-scheduler made the claim and bound the pod: its claim counts, and `nvidia.com/gpu` does not count once more.
#[test]
fn a_claim_that_another_scheduler_made_counts_once() {
    let mut cluster = ClaimCluster::new();
    let theirs = cluster.create_extended(WHOLE).unwrap();
    let pod = PodRef {
        namespace: "default".to_owned(),
        name: theirs.clone(),
        uid: format!("uid-{theirs}"),
    };
    let requests = json!([{"name": "container-0-request-0", "exactly": {"deviceClassName": "whole.gpu", "count": 1}}]);
    let contents = ExtendedClaimContents {
        spec: json!({"devices": {"requests": requests}}),
        mappings: json!([{"containerName": "main", "resourceName": WHOLE, "requestName": "container-0-request-0"}]),
    };
    let claim = cluster.make(&pod, &contents);
    let result = json!({"request": "container-0-request-0", "driver": "gpu.example.com", "pool": "n1", "device": "whole-0"});
    cluster.claims.get_mut(&claim).unwrap()["status"] = json!({"allocation": {"devices": {"results": [result]}},
        "reservedFor": [{"resource": "pods", "name": theirs, "uid": pod.uid}]});
    cluster.changed(&claim);
    let bound = cluster.pods.get_mut(&theirs).unwrap();
    bound["spec"]["schedulerName"] = json!("default-scheduler");
    bound["spec"]["nodeName"] = json!("n1");
    bound["status"]["extendedResourceClaimStatus"] =
        json!({"resourceClaimName": claim, "requestMappings": contents.mappings});
    cluster.start_scheduler();
    for _ in 0..2 {
        cluster.create_extended(WHOLE);
    }
    cluster.settle();
    let mut nodes = cluster.nodes();
    nodes.sort_unstable();
    assert_eq!(nodes, ["n1", "n2", "waits"]);
}
