//! NUMA zones of nodes, as `NodeResourceTopology` objects describe them, and what pods hold of them.
//!
//! The kubelet's Topology Manager rejects a pod that it cannot align (`TopologyAffinityError`). With these objects
//! the scheduler knows beforehand. They say which zones a node has. Their free amounts lag behind, so those are
//! computed: what each zone has, less what the pods of the node hold.

use std::collections::{BTreeMap, BTreeSet};

use apportion_policy::Cluster;
use apportion_policy::cluster::{Node, NumaPolicy, NumaScope, NumaZone, ZoneAmounts};
use serde_json::{Map, Value, json};

use super::inventory::ObjectInventory;
use super::object_kinds::NODE_RESOURCE_TOPOLOGY;
use super::pod_zones::{self, ZonesOfPod};

/// The type of a zone that is a NUMA node; zones of other types are sockets, dies or caches.
const NUMA_NODE: &str = "Node";

/// Adds the zones to the nodes of a cluster. `ignored` are resources that no kubelet aligns, by name.
pub fn enter(inventory: &ObjectInventory, cluster: &mut Cluster, ignored: &BTreeSet<String>) {
    for node in &mut cluster.nodes {
        if let Some(topology) = inventory.find(NODE_RESOURCE_TOPOLOGY.1, "", &node.name) {
            describe(node, topology.json(), ignored);
        }
    }
}

/// The part of an object that does not change as pods come and go.
pub fn lasting(topology: &Value) -> Value {
    let mut zones = topology["zones"].clone();
    for zone in zones.as_array_mut().into_iter().flatten() {
        for resource in zone["resources"].as_array_mut().into_iter().flatten() {
            resource["available"] = Value::Null;
        }
    }
    json!([topology["attributes"], topology["topologyPolicies"], zones])
}

fn describe(node: &mut Node, topology: &Value, ignored: &BTreeSet<String>) {
    let zones = topology["zones"].as_array().into_iter().flatten();
    let mut zones: Vec<NumaZone> = zones
        .filter(|zone| zone["type"] == NUMA_NODE)
        .filter_map(|zone| {
            let allocatable = of_resources(&zone["resources"], ignored);
            Some(NumaZone {
                name: zone["name"].as_str()?.to_owned(),
                allocatable,
                available: allocatable,
            })
        })
        .collect();
    // Of equally good sets of zones, the kubelet takes the one with the lowest numbers.
    zones.sort_by_cached_key(|zone| {
        let number = number_of(&zone.name);
        (number.is_none(), number, zone.name.clone())
    });
    if zones.is_empty() {
        return;
    }
    node.zones = zones;
    node.numa_scope = match attribute(topology, "topologyManagerScope") {
        Some("pod") => NumaScope::Pod,
        Some(_) => NumaScope::Container,
        None => old_policy(topology).1,
    };
    node.numa = match attribute(topology, "topologyManagerPolicy") {
        Some("single-numa-node") => NumaPolicy::SingleNode,
        Some("restricted") => NumaPolicy::Restricted,
        Some("best-effort") => NumaPolicy::BestEffort,
        Some(_) => NumaPolicy::None,
        None => old_policy(topology).0,
    };
}

/// What a zone can allocate.
fn of_resources(resources: &Value, ignored: &BTreeSet<String>) -> ZoneAmounts {
    let mut amounts = Map::new();
    for resource in resources.as_array().into_iter().flatten() {
        if let Some(name) = resource["name"]
            .as_str()
            .filter(|name| !ignored.contains(*name))
        {
            amounts.insert(name.to_owned(), resource["allocatable"].clone());
        }
    }
    pod_zones::amounts(&Value::Object(amounts))
}

fn attribute<'t>(topology: &'t Value, name: &str) -> Option<&'t str> {
    let attributes = topology["attributes"].as_array().into_iter().flatten();
    let mut named = attributes.filter(|attribute| attribute["name"] == name);
    named.next()?["value"].as_str()
}

/// Policy and scope in one word, as exporters wrote them before there were attributes.
fn old_policy(topology: &Value) -> (NumaPolicy, NumaScope) {
    match topology["topologyPolicies"][0].as_str().unwrap_or_default() {
        "SingleNUMANodeContainerLevel" | "SingleNUMANode" => {
            (NumaPolicy::SingleNode, NumaScope::Container)
        }
        "SingleNUMANodePodLevel" => (NumaPolicy::SingleNode, NumaScope::Pod),
        "RestrictedContainerLevel" | "Restricted" => (NumaPolicy::Restricted, NumaScope::Container),
        "RestrictedPodLevel" => (NumaPolicy::Restricted, NumaScope::Pod),
        "BestEffortContainerLevel" | "BestEffort" => (NumaPolicy::BestEffort, NumaScope::Container),
        "BestEffortPodLevel" => (NumaPolicy::BestEffort, NumaScope::Pod),
        _ => (NumaPolicy::None, NumaScope::Container),
    }
}

/// The number at the end of a zone's name, such as 1 of `node-1`.
fn number_of(zone: &str) -> Option<u64> {
    let digits = zone.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    zone[digits..].parse().ok()
}

/// Subtracts what pods hold from the zones of their nodes. What a terminating pod holds counts as free: the kubelet
/// decides on its successor when it is gone.
pub fn charge(inventory: &ObjectInventory, cluster: &mut Cluster) {
    if cluster.nodes.iter().all(|node| node.zones.is_empty()) {
        return;
    }
    let indices = cluster.nodes.iter().enumerate();
    let indices: BTreeMap<String, usize> = indices
        .map(|(placement, node)| (node.name.clone(), placement))
        .collect();
    let Cluster { nodes, jobs, .. } = cluster;
    let mut take = |node: Option<&str>, held: &ZonesOfPod| {
        let Some(node) = node.and_then(|node| nodes.get_mut(*indices.get(node)?)) else {
            return;
        };
        // A record with an unknown zone is outdated.
        if !held
            .iter()
            .all(|(name, _)| node.zones.iter().any(|zone| zone.name == *name))
        {
            return;
        }
        node.add_to_zones(held, -1);
    };
    let mut decided = BTreeSet::new();
    for task in jobs.iter().flat_map(|job| &job.tasks) {
        decided.insert(task.name.as_str());
        if task.status.is_allocated() {
            take(task.node.as_deref(), &task.zones);
        }
    }
    for (_, read) in inventory.pods() {
        let Some(task) = read.seen().filter(|task| !task.zones.is_empty()) else {
            continue;
        };
        if task.status.is_allocated() && !decided.contains(task.name.as_str()) {
            take(task.node.as_deref(), &task.zones);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use apportion_abi::names::{
        ANNOTATION_NUMA_OBSERVED, ANNOTATION_NUMA_PREDICTED, RESOURCE_WHOLE,
    };
    use apportion_groups::ObjectView;
    use apportion_policy::{Decision, step};

    use super::*;
    use crate::cards::CardInventory;
    use crate::object_warnings::ObjectWarnings;
    use crate::pod_zones::{is_guaranteed, text, written};
    use crate::snapshot::snapshot;

    /// A node of two zones with four GPUs, 16 processors and 64 GiB each.
    fn node(name: &str, policy: &str, scope: &str) -> [Value; 2] {
        let room = json!({"cpu": "32", "memory": "128Gi", "pods": "100", "nvidia.com/gpu": "8"});
        let zone = |name: &str| {
            let of = |name: &str, amount: &str| {
                json!({"name": name, "capacity": amount,
                "allocatable": amount, "available": "0"})
            };
            json!({"name": name, "type": "Node",
                "resources": [of("cpu", "16"), of("memory", "64Gi"), of("nvidia.com/gpu", "4")]})
        };
        [
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": name},
                "status": {"allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}}),
            json!({"apiVersion": "topology.node.k8s.io/v1alpha2", "kind": NODE_RESOURCE_TOPOLOGY.1,
                "metadata": {"name": name},
                "attributes": [{"name": "topologyManagerPolicy", "value": policy},
                    {"name": "topologyManagerScope", "value": scope}],
                "zones": [zone("node-1"), zone("node-0"), {"name": "socket-0", "type": "Socket"}]}),
        ]
    }

    fn container(cpu: &str, gpus: u32) -> Value {
        json!({"name": "c", "resources":
            {"limits": {"cpu": cpu, "memory": "1Gi", "nvidia.com/gpu": gpus.to_string()}}})
    }

    fn pod(name: &str, containers: Value) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "uid": name, "annotations": {}},
            "spec": {"schedulerName": "s", "containers": containers}, "status": {"phase": "Pending"}})
    }

    fn on(mut pod: Value, zones: &str, annotation: &str) -> Value {
        pod["spec"]["nodeName"] = "n".into();
        pod["status"]["phase"] = "Running".into();
        pod["metadata"]["annotations"][annotation] = zones.into();
        pod
    }

    fn decisions(objects: Vec<Value>) -> Vec<Decision> {
        let mut warnings = ObjectWarnings::default();
        let any = json!({"quota": -1, "limit": -1, "overQuotaWeight": 1});
        let queue = json!({"apiVersion": "scheduling.run.ai/v2", "kind": "Queue",
            "metadata": {"name": "default-queue"},
            "spec": {"resources": {"gpu": any, "cpu": any, "memory": any}}});
        let objects = objects.into_iter().chain([queue]).collect();
        let inventory = ObjectInventory::of(objects, &mut warnings);
        let now = Duration::from_secs(1_000_000);
        let mut cluster = snapshot(
            &inventory,
            &["s".to_owned()],
            &BTreeMap::new(),
            &CardInventory::default(),
            now,
            &mut warnings,
        )
        .cluster;
        enter(&inventory, &mut cluster, &BTreeSet::new());
        charge(&inventory, &mut cluster);
        step(now, &cluster)
    }

    /// The zones of each pod that is bound now.
    fn bound(objects: Vec<Value>) -> Vec<(String, ZonesOfPod)> {
        let mut bound: Vec<(String, ZonesOfPod)> = decisions(objects)
            .into_iter()
            .filter_map(|decision| match decision {
                Decision::Bind {
                    task, placement, ..
                } => Some((task, placement.zones)),
                _ => None,
            })
            .collect();
        bound.sort();
        bound
    }

    fn zones_of(name: &str, objects: Vec<Value>) -> Option<Vec<String>> {
        let bound = bound(objects);
        let found = bound.into_iter().find(|(task, _)| task.ends_with(name))?;
        Some(found.1.into_iter().map(|(zone, _)| zone).collect())
    }

    #[test]
    fn a_pod_that_no_zone_can_hold_waits_and_one_that_fits_says_where() {
        let cases = [
            ("single-numa-node", 4, Some(vec!["node-0"])),
            ("single-numa-node", 5, None),
            ("restricted", 4, Some(vec!["node-0"])),
            ("best-effort", 5, Some(vec!["node-0", "node-1"])),
            ("none", 5, Some(vec![])),
        ];
        for (policy, gpus, expected) in cases {
            let [node, topology] = node("n", policy, "pod");
            let pod = pod("p", json!([container("500m", gpus)]));
            let got = zones_of("p", vec![node, topology, pod]);
            let expected = expected.map(|zones| zones.into_iter().map(str::to_owned).collect());
            assert_eq!(got, expected, "{policy} {gpus}");
        }
    }

    #[test]
    fn what_pods_hold_is_taken_off_whoever_decided_on_them() {
        let [node, topology] = node("n", "single-numa-node", "pod");
        let zone = |name: &str| {
            text(&[(
                name.to_owned(),
                ZoneAmounts {
                    cards: 3,
                    ..ZoneAmounts::default()
                },
            )])
        };
        let ours = on(
            pod("ours", json!([container("1", 3)])),
            &zone("node-0"),
            ANNOTATION_NUMA_PREDICTED,
        );
        let mut theirs = on(
            pod("theirs", json!([container("1", 3)])),
            &zone("node-1"),
            ANNOTATION_NUMA_OBSERVED,
        );
        theirs["spec"]["schedulerName"] = "other".into();
        let small = pod("small", json!([container("1", 1)]));
        let large = pod("large", json!([container("1", 2)]));
        let all = vec![node, topology, ours.clone(), theirs.clone(), small, large];
        let names: Vec<String> = bound(all.clone())
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        assert_eq!(names, ["default/small"]);
        // A terminating pod's zones count as free, but not its GPUs on the node.
        let mut ending = all;
        ending[3]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        ending[3]["metadata"]["annotations"][ANNOTATION_NUMA_OBSERVED] = zone("node-0").into();
        let names: Vec<String> = bound(ending).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), 1, "two GPUs are idle: {names:?}");
    }

    #[test]
    fn one_pod_is_evicted_where_that_opens_a_zone() {
        let [node, topology] = node("n", "single-numa-node", "pod");
        let amounts = ZoneAmounts {
            cards: 1,
            ..ZoneAmounts::default()
        };
        let mut high = pod("high", json!([container("100m", 2)]));
        high["spec"]["priorityClassName"] = "high".into();
        let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
            "metadata": {"name": "high"}, "value": 60});
        // Each zone has one GPU free.
        let objects: Vec<Value> = (0..6)
            .map(|number| {
                let zone = format!("node-{}", number % 2);
                let zones = text(&[(zone, amounts)]);
                let pod = pod(&format!("low-{number}"), json!([container("100m", 1)]));
                on(pod, &zones, ANNOTATION_NUMA_OBSERVED)
            })
            .collect();
        let objects = objects.into_iter().chain([node, topology, high, class]);
        let evicted = decisions(objects.collect())
            .into_iter()
            .filter(|one| matches!(one, Decision::Evict { .. }));
        assert_eq!(evicted.count(), 1);
    }

    #[test]
    fn what_the_kubelet_did_goes_before_what_was_expected() {
        let zone = |name: &str| {
            text(&[(
                name.to_owned(),
                ZoneAmounts {
                    cpu: 1500,
                    memory: 7,
                    cards: 2,
                },
            )])
        };
        let mut pod = on(
            pod("p", json!([])),
            &zone("node-0"),
            ANNOTATION_NUMA_PREDICTED,
        );
        let read = |pod: &Value| written(ObjectView::new(pod));
        assert_eq!(read(&pod)[0].0, "node-0");
        assert_eq!(
            read(&pod)[0].1,
            ZoneAmounts {
                cpu: 1500,
                memory: 7,
                cards: 2
            }
        );
        pod["metadata"]["annotations"][ANNOTATION_NUMA_OBSERVED] = zone("node-1").into();
        assert_eq!(read(&pod)[0].0, "node-1");
        for odd in ["", "[]", "{}", "[{\"zone\": 1}]"] {
            pod["metadata"]["annotations"][ANNOTATION_NUMA_OBSERVED] = odd.into();
            assert_eq!(read(&pod)[0].0, "node-0", "{odd}");
        }
    }

    #[test]
    fn containers_are_aligned_by_themselves_or_together() {
        let two = json!([container("1", 3), container("1", 3)]);
        for (scope, expected) in [("pod", None), ("container", Some(2))] {
            let [node, topology] = node("n", "single-numa-node", scope);
            let got = zones_of("p", vec![node, topology, pod("p", two.clone())]);
            assert_eq!(got.map(|zones| zones.len()), expected, "{scope}");
        }
        let [node, topology] = node("n", "single-numa-node", "container");
        let mut greedy = pod("p", json!([container("1", 1)]));
        greedy["spec"]["initContainers"] = json!([container("17", 1)]);
        assert_eq!(zones_of("p", vec![node, topology, greedy]), None);
    }

    #[test]
    fn only_pods_with_processors_of_their_own_are_aligned_by_them() {
        fn burst(mut pod: Value) -> Value {
            pod["spec"]["containers"][0]["resources"]["requests"] = json!({"memory": "512Mi"});
            pod
        }
        let cases = [
            (pod("p", json!([container("20", 1)])), false),
            (pod("p", json!([container("20500m", 1)])), true),
            (burst(pod("p", json!([container("20", 1)]))), true),
        ];
        for (pod, fits) in cases {
            let [node, topology] = node("n", "single-numa-node", "container");
            let got = zones_of("p", vec![node, topology, pod.clone()]);
            assert_eq!(got.is_some(), fits, "{pod}");
        }
        let mut together = pod("p", json!([container("20", 1)]));
        together["spec"]["resources"] = json!({"limits": {"cpu": "20", "memory": "1Gi"}});
        assert!(!is_guaranteed(ObjectView::new(&together)));
    }

    #[test]
    fn policies_are_read_in_their_old_form_too() {
        let [_, mut topology] = node("n", "none", "pod");
        topology["attributes"] = json!([]);
        topology["topologyPolicies"] = json!(["SingleNUMANodePodLevel"]);
        let mut read = Node::default();
        describe(
            &mut read,
            &topology,
            &BTreeSet::from([RESOURCE_WHOLE.to_owned()]),
        );
        assert_eq!(
            (read.numa, read.numa_scope),
            (NumaPolicy::SingleNode, NumaScope::Pod)
        );
        let names: Vec<&str> = read.zones.iter().map(|zone| zone.name.as_str()).collect();
        assert_eq!(names, ["node-0", "node-1"]);
        assert_eq!(read.zones[0].allocatable.cards, 0, "it is ignored");
        assert_eq!(read.zones[0].allocatable.cpu, 16_000);
    }
}
