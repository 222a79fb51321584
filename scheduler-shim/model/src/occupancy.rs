//! What pods hold of their nodes beside CPU, memory and cards: host ports, and resources with any other name.
//!
//! Pods of every scheduler count. The policy does not know these things. A pod that requests one is kept from nodes
//! that lack it, and when several pods start at once, each is checked again.

use std::collections::{BTreeMap, BTreeSet};

use apportion_claims::IMPLICIT_RESOURCE;
use apportion_groups::ObjectView;
use apportion_kubernetes::Quantity;

use super::claim_store::ClaimStore;
use super::inventory::ObjectInventory;
use super::pod_occupancy::{self, PodOccupancy};
use super::pods;

/// What is held on each node.
#[derive(Clone, Debug, Default)]
pub struct NodeOccupancy {
    /// Host ports by node, as text.
    ports: BTreeMap<String, BTreeSet<String>>,
    /// Amounts by node and resource.
    amounts: BTreeMap<(String, String), Quantity>,
}

impl NodeOccupancy {
    /// What pods hold that have a node, or will have one: `assumed` has these nodes by pod.
    pub fn of(inventory: &ObjectInventory, assumed: &BTreeMap<String, String>) -> Self {
        let mut occupancy = Self::default();
        let all = inventory.pods();
        for (pod, read) in all.filter(|(_, read)| !read.holds.is_empty() && !read.is_over()) {
            if let Some(node) = read
                .node()
                .or_else(|| assumed.get(&pods::name(pod)).map(String::as_str))
            {
                occupancy.enter(&read.holds, node);
            }
        }
        occupancy
    }

    /// Puts a pod on a node.
    pub fn add(&mut self, pod: ObjectView<'_>, node: &str) {
        self.enter(&PodOccupancy::of(pod), node);
    }

    fn enter(&mut self, holds: &PodOccupancy, node: &str) {
        if !holds.ports.is_empty() {
            let ports = self.ports.entry(node.to_owned()).or_default();
            ports.extend(holds.ports.iter().cloned());
        }
        for (name, amount) in &holds.others {
            let key = (node.to_owned(), name.clone());
            *self.amounts.entry(key).or_default() += *amount;
        }
    }

    /// Why a pod can't be on a node. What the node does not have, devices may serve: see
    /// [`extended_resources`](super::extended_resources).
    pub fn refusal(
        &self,
        pod: ObjectView<'_>,
        node: ObjectView<'_>,
        claims: &ClaimStore,
    ) -> Option<String> {
        self.used_port(pod, node)
            .or_else(|| self.lacking(pod, node, claims))
    }

    fn used_port(&self, pod: ObjectView<'_>, node: ObjectView<'_>) -> Option<String> {
        let used = self.ports.get(node.name())?;
        let held = pod_occupancy::ports(pod);
        let port = held.into_iter().find(|port| used.contains(port))?;
        Some(format!("has host port {port} in use"))
    }

    fn lacking(
        &self,
        pod: ObjectView<'_>,
        node: ObjectView<'_>,
        claims: &ClaimStore,
    ) -> Option<String> {
        pod_occupancy::others(pod)
            .into_iter()
            .find_map(|(name, asked)| {
                let given = Quantity::from_json(&node.json()["status"]["allocatable"][&name])
                    .unwrap_or_default();
                if given.is_zero() {
                    let devices = claims.devices();
                    if devices.class_of_resource(&name).is_some() {
                        return None;
                    }
                    if let Some(class) = name.strip_prefix(IMPLICIT_RESOURCE) {
                        let why = format!(
                            "asked for {asked} of {name}; there is no device class {class}"
                        );
                        return Some(why);
                    }
                }
                let key = (node.name().to_owned(), name);
                let free = given - self.amounts.get(&key).copied().unwrap_or_default();
                let name = key.1;
                (asked > free)
                    .then(|| format!("asked for {asked} of {name}; {free} free of {given}"))
            })
    }
}

#[cfg(test)]
mod tests {
    use apportion_abi::names::{RESOURCE_SHARE_MIB, RESOURCE_SHARE_MICRO};
    use serde_json::{Value, json};

    use super::super::object_warnings::ObjectWarnings;
    use super::*;

    fn cluster(zones: &[(&str, &str)]) -> ObjectInventory {
        ObjectInventory::of(
            zones.iter().map(|(name, zone): &(&str, &str)| {
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"zone": zone}},
                "status": {"allocatable": {"example.com/nic": "2"}}})
        }).collect(),
            &mut ObjectWarnings::default(),
        )
    }

    fn pod(name: &str, spec: Value) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "spec": spec,
            "metadata": {"name": name, "namespace": "default", "labels": {"app": "web"}}})
    }

    fn refusals(inventory: &ObjectInventory, on: &[(&Value, &str)], pod: &Value) -> Vec<String> {
        let mut occupancy = NodeOccupancy::default();
        for (pod, node) in on {
            occupancy.add(ObjectView::new(pod), node);
        }
        let nodes = inventory.all("Node");
        nodes
            .filter_map(|node| occupancy.refusal(ObjectView::new(pod), node, &inventory.claims))
            .collect()
    }

    #[test]
    fn a_port_of_a_host_is_given_once() {
        let inventory = cluster(&[("a", "x"), ("b", "y")]);
        let web = pod(
            "web",
            json!({"containers": [{"ports": [{"hostPort": 80}]}]}),
        );
        assert_eq!(
            refusals(&inventory, &[(&web, "a")], &web),
            ["has host port 80/TCP in use"]
        );
        let other = pod(
            "dns",
            json!({"containers": [{"ports": [{"hostPort": 80, "protocol": "UDP"}]}]}),
        );
        assert!(refusals(&inventory, &[(&web, "a")], &other).is_empty());
    }

    #[test]
    fn a_resource_of_any_name_is_counted() {
        let inventory = cluster(&[("a", "x")]);
        let two = pod(
            "two",
            json!({"containers": [{"resources": {"limits": {"example.com/nic": 2}}}]}),
        );
        assert!(refusals(&inventory, &[], &two).is_empty());
        assert_eq!(
            refusals(&inventory, &[(&two, "a")], &two),
            ["asked for 2 of example.com/nic; 0 free of 2"]
        );
    }

    #[test]
    fn what_only_counts_shares_keeps_nobody_from_a_node() {
        let inventory = cluster(&[("n1", "a")]);
        let with = |resource: &str| {
            let limits = json!({ resource: "2000" });
            let spec = json!({"containers": [{"name": "main", "resources": {"limits": limits}}]});
            pod("counted", spec)
        };
        for resource in [RESOURCE_SHARE_MIB, RESOURCE_SHARE_MICRO] {
            assert_eq!(refusals(&inventory, &[], &with(resource)), [""; 0]);
        }
        assert_eq!(refusals(&inventory, &[], &with("example.com/nic")).len(), 1);
    }
}
