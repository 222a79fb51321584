//! Random clusters, where answers and watches come in any order: no device is ever given beyond what it has.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::live::claims::{ClaimReservation, version};
use crate::live::event::{PodRef, SchedulerEffect, SchedulerEvent};
use crate::live::model::ClusterModel;

/// What a device has that claims share.
const UNITS: i64 = 10;
const NODES: [&str; 2] = ["n1", "n2"];

/// An API server with one watch for claims and one for everything else.
struct ClaimCluster {
    now: Duration,
    model: ClusterModel,
    pods: BTreeMap<String, Value>,
    claims: BTreeMap<String, Value>,
    pod_events: VecDeque<SchedulerEvent>,
    claim_events: VecDeque<SchedulerEvent>,
    binds: Vec<SchedulerEffect>,
    evictions: Vec<PodRef>,
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
        let mut cluster = Self {
            now: Duration::from_secs(1_000_000),
            model: ClusterModel::new(vec!["kai-scheduler".to_owned()]),
            pods: BTreeMap::new(),
            claims: BTreeMap::new(),
            pod_events: VecDeque::new(),
            claim_events: VecDeque::new(),
            binds: Vec::new(),
            evictions: Vec::new(),
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
            let spec = json!({"driver": "gpu.example.com", "nodeName": name,
                "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
                "devices": [shared("shared-0"), shared("shared-1"), {"name": "whole-0"}]});
            fixed("ResourceSlice", "resource.k8s.io/v1", name, &json!({"spec": spec}))
        });
        let class = |name: &str, is_shared: bool| {
            let not = if is_shared { "" } else { "!" };
            let expression = format!("{not}device.allowMultipleAllocations");
            let spec = json!({"selectors": [{"cel": {"expression": expression}}]});
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
                SchedulerEffect::Evict(pod) => self.evictions.push(pod),
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
        let mut known = self.claims.keys();
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
        let claim = claim_of(&pod);
        self.pod_events.push_back(SchedulerEvent::Gone(pod));
        self.release(&claim, &format!("uid-{name}"));
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
            node, pod, claims, ..
        } = effect
        else {
            return;
        };
        let is_reserved = fails_at != Some(0) && claims.iter().all(|one| self.reserve(&pod, one));
        if is_reserved {
            let versions = claims.iter().map(|one| {
                let found = &self.claims[&one.claim];
                let shown = version(&found["metadata"]["resourceVersion"]);
                (one.claim.clone(), shown)
            });
            let event = SchedulerEvent::ClaimsReserved(pod.clone(), versions.collect());
            self.deliver(event);
        }
        let found = self
            .pods
            .get_mut(&pod.name)
            .filter(|found| found["metadata"]["uid"] == pod.uid.as_str())
            .filter(|found| found["spec"]["nodeName"].is_null());
        match found.filter(|_| is_reserved && fails_at != Some(1)) {
            Some(found) => {
                found["spec"]["nodeName"] = json!(node);
                let shown = found.clone();
                self.pod_events.push_back(SchedulerEvent::Applied(shown));
                self.deliver(SchedulerEvent::Bound(pod));
            }
            None => {
                for one in &claims {
                    self.release(&one.claim, &pod.uid);
                }
                self.deliver(SchedulerEvent::NotBound(pod, "no".to_owned()));
            }
        }
    }

    fn reserve(&mut self, pod: &PodRef, one: &ClaimReservation) -> bool {
        let Some(found) = self.claims.get_mut(&one.claim) else {
            return false;
        };
        let decided: Value = serde_json::from_str(&one.allocation).unwrap();
        let has = &found["status"]["allocation"];
        if has.is_null() && !one.is_new || !has.is_null() && *has != decided {
            return false;
        }
        let mut users = users(found);
        users.push(json!({"resource": "pods", "name": pod.name, "uid": pod.uid}));
        found["status"] = json!({"allocation": decided, "reservedFor": users});
        self.changed(&one.claim);
        true
    }

    /// What claims have of each device, and by how many it is used alone.
    fn used(&self) -> BTreeMap<String, i64> {
        let mut used = BTreeMap::new();
        for claim in self.claims.values() {
            let results = claim["status"]["allocation"]["devices"]["results"].as_array();
            for result in results.into_iter().flatten() {
                let amount = result["consumedCapacity"]["memory"].as_str();
                let amount = amount.map_or(UNITS, |text| text.parse().expect("a number"));
                let device = format!("{}/{}", result["pool"], result["device"]);
                *used.entry(device).or_default() += amount;
            }
        }
        used
    }

    fn check(&self) {
        for (device, amount) in self.used() {
            assert!(amount <= UNITS, "{device} is given {amount} of {UNITS}");
        }
        for pod in self.pods.values() {
            let Some(node) = pod["spec"]["nodeName"].as_str() else {
                continue;
            };
            let claim = &self.claims[&claim_of(pod)];
            let results = &claim["status"]["allocation"]["devices"]["results"];
            assert_eq!(
                results[0]["pool"], node,
                "{pod} is not where its devices are"
            );
            let is_user = users(claim)
                .iter()
                .any(|user| user["uid"] == pod["metadata"]["uid"]);
            assert!(is_user, "{pod} is bound and does not use {claim}");
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
            let is_idle = self.binds.is_empty() && self.evictions.is_empty();
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
            let claim = &self.claims[&claim_of(pod)];
            let asked = &claim["spec"]["devices"]["requests"][0]["exactly"];
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

fn claim_of(pod: &Value) -> String {
    let name = &pod["spec"]["resourceClaims"][0]["resourceClaimName"];
    name.as_str().expect("a name").to_owned()
}

fn users(claim: &Value) -> Vec<Value> {
    claim["status"]["reservedFor"]
        .as_array()
        .cloned()
        .unwrap_or_default()
}

#[derive(Clone, Debug)]
enum ClaimStep {
    Create(Option<i64>, Option<usize>),
    Delete(usize),
    Decide,
    PodEvent,
    ClaimEvent,
    Answer(usize, Option<usize>),
    Evict,
    Restart,
}

fn step() -> impl Strategy<Value = ClaimStep> {
    let amount = prop::option::weighted(0.8, 1..=UNITS);
    prop_oneof![
        5 => (amount, prop::option::weighted(0.2, 0..8_usize))
            .prop_map(|(amount, shares)| ClaimStep::Create(amount, shares)),
        2 => (0..12_usize).prop_map(ClaimStep::Delete),
        6 => Just(ClaimStep::Decide),
        8 => Just(ClaimStep::PodEvent),
        8 => Just(ClaimStep::ClaimEvent),
        8 => (0..8_usize, prop::option::weighted(0.2, 0..2_usize))
            .prop_map(|(which, fails)| ClaimStep::Answer(which, fails)),
        4 => Just(ClaimStep::Evict),
        1 => Just(ClaimStep::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn no_device_is_given_twice_whatever_the_order_of_answers(
        steps in prop::collection::vec(step(), 30..120),
    ) {
        let mut cluster = ClaimCluster::new();
        for step in &steps {
            match step {
                ClaimStep::Create(amount, shares) => cluster.create(*amount, *shares),
                ClaimStep::Delete(which) => cluster.delete(*which),
                ClaimStep::Decide => cluster.decide(),
                ClaimStep::PodEvent => {
                    if let Some(event) = cluster.pod_events.pop_front() {
                        cluster.deliver(event);
                    }
                }
                ClaimStep::ClaimEvent => {
                    if let Some(event) = cluster.claim_events.pop_front() {
                        cluster.deliver(event);
                    }
                }
                ClaimStep::Answer(which, fails) => cluster.answer(*which, *fails),
                ClaimStep::Evict => cluster.evict(),
                ClaimStep::Restart => {
                    // The leader's requests end before the next one leads.
                    while !cluster.binds.is_empty() {
                        cluster.answer(0, None);
                    }
                    cluster.evictions.clear();
                    cluster.start_scheduler();
                }
            }
            cluster.check();
        }
        cluster.settle();
    }
}

#[test]
fn a_claim_of_another_scheduler_counts_as_soon_as_it_is_seen() {
    let mut cluster = ClaimCluster::new();
    cluster.create(None, None);
    cluster.create(None, None);
    cluster.create(None, None);
    while let Some(event) = cluster.claim_events.pop_front() {
        cluster.deliver(event);
    }
    // Somebody else gives the first claim the device of n1.
    let other = json!({"devices": {"results": [{"request": "r", "driver": "gpu.example.com",
        "pool": "n1", "device": "whole-0"}]}});
    let claim = cluster.claims.get_mut("c1").unwrap();
    claim["status"] = json!({"allocation": other,
        "reservedFor": [{"resource": "pods", "name": "theirs", "uid": "theirs"}]});
    cluster.changed("c1");
    let event = cluster.claim_events.pop_front().unwrap();
    cluster.deliver(event);
    while let Some(event) = cluster.pod_events.pop_front() {
        cluster.deliver(event);
    }
    cluster.decide();
    let mut places: Vec<(String, String, bool)> = Vec::new();
    for bind in &cluster.binds {
        let SchedulerEffect::Bind {
            node, pod, claims, ..
        } = bind
        else {
            continue;
        };
        places.push((pod.name.clone(), node.clone(), claims[0].is_new));
    }
    places.sort();
    // The pod that shares the claim follows it. Of the two others one gets the device of n2, and one waits.
    assert_eq!(places.len(), 2, "{places:?}");
    assert_eq!(places[0], ("p1".to_owned(), "n1".to_owned(), false));
    assert_eq!((places[1].1.as_str(), places[1].2), ("n2", true));
}

/// Of two pods that share a claim, the first one ends before it is bound, and the claim loses its devices. The second
/// one writes them again. Nobody else gets them, although the watch shows the loss first.
#[test]
fn devices_that_one_pod_gave_up_and_another_took_again_are_not_given_twice() {
    let mut cluster = ClaimCluster::new();
    cluster.create(Some(6), None);
    cluster.create(None, Some(0));
    while let Some(event) = cluster.claim_events.pop_front() {
        cluster.deliver(event);
    }
    while let Some(event) = cluster.pod_events.pop_front() {
        cluster.deliver(event);
    }
    cluster.decide();
    assert_eq!(cluster.binds.len(), 2);
    let place = cluster
        .binds
        .iter()
        .position(|bind| matches!(bind, SchedulerEffect::Bind { pod, .. } if pod.name == "p1"))
        .unwrap();
    cluster.answer(place, Some(1));
    cluster.answer(0, None);
    // Of what was written, only the first allocation and its end are shown.
    let last = cluster.claim_events.pop_back().unwrap();
    while let Some(event) = cluster.claim_events.pop_front() {
        cluster.deliver(event);
    }
    for _ in 0..4 {
        cluster.create(Some(6), None);
    }
    cluster.claim_events.push_back(last);
    while let Some(event) = cluster.pod_events.pop_front() {
        cluster.deliver(event);
    }
    let news = cluster
        .claim_events
        .iter()
        .take(4)
        .cloned()
        .collect::<Vec<_>>();
    news.into_iter().for_each(|event| cluster.deliver(event));
    cluster.decide();
    while !cluster.binds.is_empty() {
        cluster.answer(0, None);
        cluster.check();
    }
}
