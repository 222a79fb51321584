//! A stand-in for the kubelet's Topology Manager and for KAI's numa-placement-exporter. It assigns a pod's GPUs to the
//! NUMA zones of the node's `NodeResourceTopology` object, and reports the zones.
//!
//! Only GPUs are aligned. A pod that does not satisfy the node's policy fails, as on a real kubelet.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, DynamicObject};
use kube::{Api, Client};
use serde_json::{Value, json};

/// The annotation that the exporter writes.
pub(crate) const OBSERVED: &str = "kai.scheduler/numa-placement-observed";
const GPU: &str = "nvidia.com/gpu";

/// A pod's number of GPUs in each zone.
type GpusByZone = BTreeMap<String, i64>;

/// The GPUs that pods hold, by the node's name and the pod's UID.
#[derive(Debug, Default)]
pub(crate) struct TopologyManager {
    held: BTreeMap<String, BTreeMap<String, GpusByZone>>,
}

/// The result for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TopologyAdmission {
    /// The node has no zones, or the pod has no GPUs.
    Unaligned,
    /// The pod's zones in the exporter's format.
    Aligned(String),
    /// The node's policy rejects it.
    Refused,
}

impl TopologyManager {
    /// Assigns zones to a new pod of a node.
    pub(crate) fn admit(&mut self, node: &str, pod: &Pod, topology: &Value) -> TopologyAdmission {
        let gpus = gpus(pod);
        let zones = zones(topology);
        let Some(uid) = pod
            .metadata
            .uid
            .as_ref()
            .filter(|_| gpus > 0 && !zones.is_empty())
        else {
            return TopologyAdmission::Unaligned;
        };
        let pods = self.held.entry(node.to_owned()).or_default();
        // The event of a pod may repeat before its status is written.
        if let Some(held) = pods.get(uid) {
            return TopologyAdmission::Aligned(record(held));
        }
        let mut free = zones.clone();
        for (zone, count) in pods.values().flatten() {
            if let Some((_, left)) = free.iter_mut().find(|(name, _)| name == zone) {
                *left -= count;
            }
        }
        let widest = match policy(topology) {
            "single-numa-node" => 1,
            // The smallest number of zones that could hold the GPUs if all were free.
            "restricted" => width(&zones, gpus),
            _ => zones.len(),
        };
        let Some(mask) = narrowest(&free, gpus, widest) else {
            return TopologyAdmission::Refused;
        };
        let mut left = gpus;
        let mut held = GpusByZone::new();
        for place in mask {
            let (zone, has) = &free[place];
            let taken = left.min(*has);
            left -= taken;
            if taken > 0 {
                held.insert(zone.clone(), taken);
            }
        }
        let said = record(&held);
        pods.insert(uid.clone(), held);
        TopologyAdmission::Aligned(said)
    }

    /// Frees a pod's GPUs.
    pub(crate) fn release(&mut self, pod: &Pod) {
        if let Some(uid) = &pod.metadata.uid {
            self.held
                .values_mut()
                .for_each(|pods| drop(pods.remove(uid)));
        }
    }
}

fn record(held: &GpusByZone) -> String {
    Value::Array(
        held.iter()
            .map(|(zone, count)| json!({"zone": zone, "amount": {GPU: count.to_string()}}))
            .collect(),
    )
    .to_string()
}

/// The object with a node's zones. Null if there is none.
pub(crate) async fn describe(client: &Client, node: &str) -> Value {
    let kind = ApiResource {
        group: "topology.node.k8s.io".to_owned(),
        version: "v1alpha2".to_owned(),
        api_version: "topology.node.k8s.io/v1alpha2".to_owned(),
        kind: "NodeResourceTopology".to_owned(),
        plural: "noderesourcetopologies".to_owned(),
    };
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
    api.get(node).await.map_or(Value::Null, |found| found.data)
}

fn gpus(pod: &Pod) -> i64 {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let limits = containers.filter_map(|one| one.resources.as_ref()?.limits.as_ref()?.get(GPU));
    limits.filter_map(|limit| limit.0.parse::<i64>().ok()).sum()
}

fn zones(topology: &Value) -> Vec<(String, i64)> {
    let all = topology["zones"].as_array().into_iter().flatten();
    let mut zones: Vec<(String, i64)> = all
        .filter_map(|zone| {
            let mut resources = zone["resources"].as_array()?.iter();
            let gpus = resources.find(|one| one["name"] == GPU)?;
            let count = gpus["allocatable"].as_str()?.parse().ok()?;
            Some((zone["name"].as_str()?.to_owned(), count))
        })
        .collect();
    zones.sort();
    zones
}

fn policy(topology: &Value) -> &str {
    let mut attributes = topology["attributes"].as_array().into_iter().flatten();
    let policy = attributes.find(|one| one["name"] == "topologyManagerPolicy");
    policy
        .and_then(|one| one["value"].as_str())
        .unwrap_or_default()
}

/// How many zones could hold this many GPUs if all were free.
fn width(zones: &[(String, i64)], gpus: i64) -> usize {
    let mut sizes: Vec<i64> = zones.iter().map(|(_, size)| *size).collect();
    sizes.sort_unstable_by(|left, right| right.cmp(left));
    let mut sum = 0;
    let enough = sizes.iter().position(|size| {
        sum += size;
        sum >= gpus
    });
    enough.map_or(0, |place| place + 1)
}

/// The smallest set of zones with enough free GPUs. Among equal sizes, the lowest numbers win.
fn narrowest(free: &[(String, i64)], gpus: i64, widest: usize) -> Option<Vec<usize>> {
    let masks = 1_u32..1 << free.len();
    let of = |mask: u32| (0..free.len()).filter(move |place| mask & (1 << place) != 0);
    let best = masks
        .filter(|mask| mask.count_ones() as usize <= widest)
        .filter(|mask| of(*mask).map(|place| free[place].1.max(0)).sum::<i64>() >= gpus)
        .min_by_key(|mask| (mask.count_ones(), *mask))?;
    Some(of(best).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topology(policy: &str) -> Value {
        let zone = |name: &str| json!({"name": name, "type": "Node", "resources": [{"name": GPU, "allocatable": "4"}]});
        json!({"attributes": [{"name": "topologyManagerPolicy", "value": policy}],
            "zones": [zone("node-0"), zone("node-1")]})
    }

    fn pod(name: &str, gpus: u32) -> Pod {
        let resources = json!({"limits": {GPU: gpus.to_string()}});
        serde_json::from_value(json!({"metadata": {"name": name, "uid": name},
            "spec": {"containers": [{"name": "main", "resources": resources}]}}))
        .expect("it is a pod")
    }

    #[test]
    fn a_pod_gets_the_fewest_zones_or_is_refused() {
        for (policy, gpus, expected) in [
            ("single-numa-node", 4, Some(1)),
            ("single-numa-node", 5, None),
            ("restricted", 5, Some(2)),
            ("best-effort", 5, Some(2)),
        ] {
            let mut manager = TopologyManager::default();
            let admission = manager.admit("n", &pod("a", gpus), &topology(policy));
            let zones = match &admission {
                TopologyAdmission::Aligned(said) => Some(said.matches("zone").count()),
                _ => None,
            };
            assert_eq!(zones, expected, "{policy} {gpus}: {admission:?}");
        }
    }

    #[test]
    fn what_a_pod_had_is_free_when_it_is_gone() {
        let mut manager = TopologyManager::default();
        let restricted = topology("restricted");
        let mut admit = |pod: &Pod| manager.admit("n", pod, &restricted);
        assert_ne!(admit(&pod("a", 3)), TopologyAdmission::Refused);
        assert_ne!(admit(&pod("b", 3)), TopologyAdmission::Refused);
        assert_eq!(admit(&pod("c", 2)), TopologyAdmission::Refused);
        manager.release(&pod("a", 3));
        assert_ne!(
            manager.admit("n", &pod("c", 2), &restricted),
            TopologyAdmission::Refused
        );
    }
}
