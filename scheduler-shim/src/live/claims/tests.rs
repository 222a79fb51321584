//! A cluster with claims, where answers and watches come in any order.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde_json::{Value, json};

use crate::live::claims::{ClaimReservation, ReservedClaim, version};
use crate::live::event::{PodEventReason, PodRef, SchedulerEffect, SchedulerEvent};
use crate::live::model::ClusterModel;

mod devices;
mod extended;
mod invariants;
mod named;
mod random;

/// What a device has that claims share.
const UNITS: i64 = 10;
/// The other name of a class.
const WHOLE: &str = "nvidia.com/gpu";
const NODES: [&str; 2] = ["n1", "n2"];
/// What must hold of some devices before a pod is bound, and what must not.
const ATTACHED: &str = "example.com/attached";
const BROKEN: &str = "example.com/broken";

/// An API server with one watch for claims and one for everything else.
struct ClaimCluster {
    now: Duration,
    model: ClusterModel,
    pods: BTreeMap<String, Value>,
    claims: BTreeMap<String, Value>,
    pod_events: VecDeque<SchedulerEvent>,
    claim_events: VecDeque<SchedulerEvent>,
    binds: Vec<SchedulerEffect>,
    /// Claims to reserve before their pods are bound, and claims to release.
    attachments: Vec<SchedulerEffect>,
    evictions: Vec<PodRef>,
    /// What pods were told that they wait for, and why they were not bound.
    told: Vec<String>,
    /// Whether the last devices of each node have binding conditions.
    has_conditions: bool,
    /// Claims to delete, with their pods.
    deletions: Vec<(PodRef, String)>,
    made: usize,
}

fn fixed(kind: &str, version: &str, name: &str, rest: &Value) -> Value {
    let mut object = json!({"apiVersion": version, "kind": kind,
        "metadata": {"name": name, "uid": format!("{kind}-{name}")}});
    for (field, value) in rest.as_object().unwrap() {
        object[field] = value.clone();
    }
    object
}

impl ClaimCluster {
    fn new() -> Self {
        Self::with(false)
    }

    fn with(has_conditions: bool) -> Self {
        let mut cluster = Self {
            has_conditions,
            attachments: Vec::new(),
            told: Vec::new(),
            now: Duration::from_secs(1_000_000),
            model: ClusterModel::new(vec!["kai-scheduler".to_owned()]),
            pods: BTreeMap::new(),
            claims: BTreeMap::new(),
            pod_events: VecDeque::new(),
            claim_events: VecDeque::new(),
            binds: Vec::new(),
            evictions: Vec::new(),
            deletions: Vec::new(),
            made: 0,
        };
        cluster.start_scheduler();
        cluster
    }

    /// A new scheduler knows what is stored. The writes of the earlier one may still be on their way.
    fn start_scheduler(&mut self) {
        self.model = ClusterModel::new(vec!["kai-scheduler".to_owned()]);
        self.pod_events.clear();
        self.claim_events.clear();
        let unlimited = json!({"quota": -1, "limit": -1, "overQuotaWeight": 1});
        let queue = json!({"spec": {"resources":
            {"cpu": unlimited, "memory": unlimited, "gpu": unlimited}}});
        let nodes = NODES.map(|name| {
            let status = json!({"allocatable": {"cpu": "64", "memory": "64Gi", "pods": "100"},
                "conditions": [{"type": "Ready", "status": "True"}]});
            fixed("Node", "v1", name, &json!({"status": status}))
        });
        let slices = NODES.map(|name| {
            let shared = |device: &str| {
                json!({"name": device, "allowMultipleAllocations": true,
                    "capacity": {"memory": {"value": UNITS.to_string(),
                        "requestPolicy": {"default": "1", "validRange": {"min": "1", "step": "1"}}}}})
            };
            let mut devices = [shared("shared-0"), shared("shared-1"), json!({"name": "whole-0"})];
            for device in devices.iter_mut().skip(1).filter(|_| self.has_conditions) {
                device["bindingConditions"] = json!([ATTACHED]);
                device["bindingFailureConditions"] = json!([BROKEN]);
            }
            let spec = json!({"driver": "gpu.example.com", "nodeName": name,
                "pool": {"name": name, "generation": 1, "resourceSliceCount": 1}, "devices": devices});
            fixed("ResourceSlice", "resource.k8s.io/v1", name, &json!({"spec": spec}))
        });
        let class = |name: &str, is_shared: bool| {
            let not = if is_shared { "" } else { "!" };
            let expression = format!("{not}device.allowMultipleAllocations");
            let resource = if is_shared {
                "example.com/share"
            } else {
                WHOLE
            };
            let spec = json!({"selectors": [{"cel": {"expression": expression}}], "extendedResourceName": resource});
            fixed(
                "DeviceClass",
                "resource.k8s.io/v1",
                name,
                &json!({"spec": spec}),
            )
        };
        let classes = vec![class("shared.gpu", true), class("whole.gpu", false)];
        let lists = [
            ("Node", nodes.to_vec()),
            (
                "Queue",
                vec![fixed("Queue", "scheduling.run.ai/v2", "team", &queue)],
            ),
            ("ResourceSlice", slices.to_vec()),
            ("DeviceClass", classes),
            ("ResourceClaim", self.claims.values().cloned().collect()),
            ("Pod", self.pods.values().cloned().collect()),
        ];
        for (kind, all) in lists {
            self.deliver(SchedulerEvent::Listed(kind.to_owned(), all));
        }
    }

    fn deliver(&mut self, event: SchedulerEvent) {
        let effects = self.model.apply(self.now, event);
        self.queue(effects);
    }

    fn queue(&mut self, effects: Vec<SchedulerEffect>) {
        for effect in effects {
            match effect {
                SchedulerEffect::Bind { .. } => self.binds.push(effect),
                SchedulerEffect::ReserveClaims { .. } | SchedulerEffect::ReleaseClaims { .. } => {
                    self.attachments.push(effect);
                }
                SchedulerEffect::PublishEvent {
                    reason: PodEventReason::AwaitsDevices | PodEventReason::NotBound,
                    message,
                    ..
                } => self.told.push(message),
                SchedulerEffect::Evict(pod) => self.evictions.push(pod),
                SchedulerEffect::DeleteClaim { pod, claim, .. } => {
                    self.deletions.push((pod, claim));
                }
                _ => {}
            }
        }
    }

    fn decide(&mut self) {
        let effects = self.model.decide(self.now);
        self.queue(effects);
    }

    /// Creates a pod with a claim of its own, or one with a claim that an earlier pod has.
    fn create(&mut self, amount: Option<i64>, shares_claim: Option<usize>) {
        if self.pods.len() > 12 {
            return;
        }
        self.made += 1;
        let name = format!("p{}", self.made);
        let mut known = self.claims.keys().filter(|name| name.starts_with('c'));
        let shared = shares_claim.and_then(|place| known.nth(place).cloned());
        let claim = shared.unwrap_or_else(|| format!("c{}", self.made));
        if !self.claims.contains_key(&claim) {
            let (class, capacity) = match amount {
                Some(amount) => (
                    "shared.gpu",
                    json!({"requests": {"memory": amount.to_string()}}),
                ),
                None => ("whole.gpu", Value::Null),
            };
            let mut terms = json!({"deviceClassName": class});
            if !capacity.is_null() {
                terms["capacity"] = capacity;
            }
            let object = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
                "metadata": {"name": claim, "namespace": "default", "uid": format!("uid-{claim}"),
                    "resourceVersion": "1", "labels": {"kai.scheduler/queue": "team"}},
                "spec": {"devices": {"requests": [{"name": "r", "exactly": terms}]}}});
            self.claims.insert(claim.clone(), object.clone());
            self.claim_events.push_back(SchedulerEvent::Applied(object));
        }
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"),
                "labels": {"kai.scheduler/queue": "team"}},
            "spec": {"schedulerName": "kai-scheduler", "containers": [{"name": "main"}],
                "resourceClaims": [{"name": "r", "resourceClaimName": claim}]},
            "status": {"phase": "Pending"}});
        self.pods.insert(name, pod.clone());
        self.pod_events.push_back(SchedulerEvent::Applied(pod));
    }

    /// Ends a pod. Kubernetes takes its claim back where nobody else uses it.
    fn delete(&mut self, which: usize) {
        let Some(name) = self.pods.keys().nth(which).cloned() else {
            return;
        };
        self.end(&name);
    }

    fn end(&mut self, name: &str) {
        let Some(pod) = self.pods.remove(name) else {
            return;
        };
        let claim = self.claim_of(&pod);
        self.pod_events.push_back(SchedulerEvent::Gone(pod));
        if let Some(claim) = claim {
            self.release(&claim, &format!("uid-{name}"));
        }
    }

    /// Ends a pod that the scheduler evicts.
    fn evict(&mut self) {
        let Some(pod) = self.evictions.pop() else {
            return;
        };
        self.end(&pod.name);
        self.deliver(SchedulerEvent::Evicted(pod));
    }

    fn release(&mut self, claim: &str, uid: &str) {
        let Some(found) = self.claims.get_mut(claim) else {
            return;
        };
        if !found["metadata"]["ownerReferences"].is_null() {
            // It goes with its pod.
            return self.remove_claim(claim);
        }
        let mut users = users(found);
        users.retain(|user| user["uid"] != uid);
        if users.is_empty() {
            found["status"] = json!({});
        } else {
            found["status"]["reservedFor"] = json!(users);
        }
        self.changed(claim);
    }

    fn changed(&mut self, claim: &str) {
        let found = self.claims.get_mut(claim).expect("it is there");
        let version = version(&found["metadata"]["resourceVersion"]);
        found["metadata"]["resourceVersion"] = json!((version + 1).to_string());
        self.claim_events
            .push_back(SchedulerEvent::Applied(found.clone()));
    }

    /// Carries out a bind: the claims, then the pod. It may fail before, between or after.
    fn answer(&mut self, which: usize, fails_at: Option<usize>) {
        if self.binds.is_empty() {
            return;
        }
        let effect = self.binds.remove(which % self.binds.len());
        let SchedulerEffect::Bind {
            node,
            pod,
            claims,
            are_claims_reserved,
            ..
        } = effect
        else {
            return;
        };
        let objects = if are_claims_reserved {
            self.check_devices(&pod);
            let own = self.pods.get(&pod.name).and_then(|pod| self.claim_of(pod));
            Some(own.into_iter().collect())
        } else {
            self.reserve_all(&pod, &claims, fails_at == Some(0))
        };
        let is_reserved = objects.is_some();
        let is_there = |found: &&mut Value| found["metadata"]["uid"] == pod.uid.as_str();
        let found = self.pods.get_mut(&pod.name).filter(is_there);
        let found = found.filter(|found| found["spec"]["nodeName"].is_null());
        match found.filter(|_| is_reserved && fails_at != Some(1)) {
            Some(found) => {
                found["spec"]["nodeName"] = json!(node);
                let shown = found.clone();
                self.pod_events.push_back(SchedulerEvent::Applied(shown));
                self.deliver(SchedulerEvent::Bound(pod));
            }
            None => {
                for one in objects.iter().flatten() {
                    self.release(one, &pod.uid);
                }
                self.deliver(SchedulerEvent::NotBound(pod, "no".to_owned()));
            }
        }
    }

    /// Reserves the claims of a pod, or none of them, and returns their names.
    fn reserve_all(
        &mut self,
        pod: &PodRef,
        claims: &[ClaimReservation],
        fails: bool,
    ) -> Option<Vec<String>> {
        let objects: Option<Vec<String>> = (claims.iter())
            .map(|one| self.reserve(pod, one).filter(|_| !fails))
            .collect();
        let Some(objects) = objects else {
            self.release_all(pod, claims);
            return None;
        };
        let reserved = claims.iter().zip(&objects);
        let reserved = reserved.map(|(one, object)| self.reserved(one, object));
        let event = SchedulerEvent::ClaimsReserved(pod.clone(), reserved.collect());
        self.deliver(event);
        Some(objects)
    }

    /// Removes a pod from its claims, as the API writer does.
    fn release_all(&mut self, pod: &PodRef, claims: &[ClaimReservation]) {
        for one in claims {
            let made = self.claims.iter().find(|(_, claim)| {
                claim["metadata"]["ownerReferences"][0]["uid"] == pod.uid.as_str()
            });
            let made = made.map(|(name, _)| name.clone());
            match (&one.makes, made) {
                (None, _) => self.release(&one.claim, &pod.uid),
                (Some(_), Some(made)) => self.release(&made, &pod.uid),
                (Some(_), None) => {}
            }
        }
    }

    /// Carries out the reservation or the release of a pod's claims.
    fn attach(&mut self, which: usize, fails: bool) {
        if self.attachments.is_empty() {
            return;
        }
        match self.attachments.remove(which % self.attachments.len()) {
            SchedulerEffect::ReserveClaims { pod, claims } => {
                if self.reserve_all(&pod, &claims, fails).is_none() {
                    self.deliver(SchedulerEvent::NotBound(pod, "no".to_owned()));
                }
            }
            SchedulerEffect::ReleaseClaims { pod, claims } => {
                self.release_all(&pod, &claims);
                self.deliver(SchedulerEvent::ClaimsReleased(pod));
            }
            other => panic!("{other:?}"),
        }
    }

    /// The driver says something about the devices of a claim.
    fn driver_says(&mut self, claim: &str, condition: &str) {
        let Some(found) = self.claims.get_mut(claim) else {
            return;
        };
        let Some(result) = found.pointer("/status/allocation/devices/results/0") else {
            return;
        };
        let mut device = json!({"conditions": [{"type": condition, "status": "True",
            "reason": "Fabric", "message": "it is so"}]});
        for field in ["driver", "pool", "device"] {
            device[field] = result[field].clone();
        }
        found["status"]["devices"] = json!([device]);
        self.changed(claim);
    }

    /// Reserves a claim, which may be one that does not exist yet, and returns its name.
    fn reserve(&mut self, pod: &PodRef, one: &ClaimReservation) -> Option<String> {
        let name = match &one.makes {
            Some(contents) => self.make(pod, contents),
            None => one.claim.clone(),
        };
        let found = self.claims.get_mut(&name)?;
        let mut decided: Value = serde_json::from_str(&one.allocation).unwrap();
        let has = &found["status"]["allocation"];
        let is_other = has["devices"]["results"] != decided["devices"]["results"];
        if has.is_null() && !one.is_new || !has.is_null() && is_other {
            return None;
        }
        let mut users = users(found);
        if users.iter().any(|user| user["uid"] == pod.uid.as_str()) {
            return Some(name);
        }
        users.push(json!({"resource": "pods", "name": pod.name, "uid": pod.uid}));
        if has.is_null() {
            let now = jiff::Timestamp::from_second(i64::try_from(self.now.as_secs()).unwrap());
            decided["allocationTimestamp"] = json!(now.unwrap());
            found["status"]["allocation"] = decided;
        }
        found["status"]["reservedFor"] = json!(users);
        self.changed(&name);
        Some(name)
    }

    fn reserved(&self, one: &ClaimReservation, object: &str) -> ReservedClaim {
        let metadata = &self.claims[object]["metadata"];
        ReservedClaim {
            claim: one.claim.clone(),
            object: object.to_owned(),
            uid: metadata["uid"].as_str().expect("a UID").to_owned(),
            version: version(&metadata["resourceVersion"]),
        }
    }

    /// The driver gets all devices ready.
    fn attach_devices(&mut self) {
        let names: Vec<String> = self.claims.keys().cloned().collect();
        for name in names {
            let status = &self.claims[&name]["status"];
            let is_told = !status["devices"].is_null();
            if !is_told && !status["allocation"].is_null() {
                self.driver_says(&name, ATTACHED);
            }
        }
    }

    /// Delivers and answers everything, until nothing changes.
    fn settle(&mut self) {
        let mut still = 0;
        for _ in 0..30 {
            self.now += Duration::from_secs(61);
            while let Some(event) = self.claim_events.pop_front() {
                self.deliver(event);
            }
            while let Some(event) = self.pod_events.pop_front() {
                self.deliver(event);
            }
            self.decide();
            let is_idle = self.binds.is_empty()
                && self.attachments.is_empty()
                && self.evictions.is_empty()
                && self.deletions.is_empty();
            while !self.attachments.is_empty() {
                self.attach(0, false);
            }
            self.attach_devices();
            while !self.deletions.is_empty() {
                self.delete_claim();
            }
            still = if is_idle { still + 1 } else { 0 };
            while !self.evictions.is_empty() {
                self.evict();
            }
            while !self.binds.is_empty() {
                self.answer(0, None);
                self.check();
            }
            if still == 2 {
                break;
            }
        }
        assert_eq!(still, 2, "it does not come to rest");
        // A pod that waits for a device of its own finds none; one for a share finds no room.
        let used = self.used();
        let has = |device: &str| {
            let all = NODES.iter().map(|node| format!("\"{node}\"/\"{device}\""));
            all.map(|name| used.get(&name).copied().unwrap_or(0))
                .collect::<Vec<i64>>()
        };
        for pod in self
            .pods
            .values()
            .filter(|pod| pod["spec"]["nodeName"].is_null())
        {
            let asked = self.claim_of(pod).map(|claim| self.claims[&claim].clone());
            let asked = asked.unwrap_or_default();
            let asked = &asked["spec"]["devices"]["requests"][0]["exactly"];
            let amount = asked["capacity"]["requests"]["memory"].as_str();
            let devices = match amount {
                Some(_) => [has("shared-0"), has("shared-1")].concat(),
                None => has("whole-0"),
            };
            let amount = amount.map_or(UNITS, |text| text.parse().expect("a number"));
            let fits = devices.iter().any(|used| used + amount <= UNITS);
            assert!(!fits, "{pod} waits for {amount}, and {devices:?} are used");
        }
    }
}

fn users(claim: &Value) -> Vec<Value> {
    claim["status"]["reservedFor"]
        .as_array()
        .cloned()
        .unwrap_or_default()
}
