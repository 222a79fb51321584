//! What pods hold of their nodes beside CPU, memory and cards: host ports, and resources with any other name.
//!
//! Pods of every scheduler count. The policy does not know these things. A pod that requests one is kept from nodes
//! that lack it, and when several pods start at once, each is checked again.

use std::collections::{BTreeMap, BTreeSet};

use apportion_abi::names::{
    RESOURCE_PARTITION as PARTITION, RESOURCE_SHARE_MIB, RESOURCE_SHARE_MICRO,
};
use apportion_groups::ObjectView;
use apportion_kubernetes::Quantity;
use serde_json::Value;

use super::inventory::ObjectInventory;
use super::pods;
use super::requests::{self, WHOLE};

/// What one pod holds.
#[derive(Clone, Debug, Default)]
pub struct PodOccupancy {
    ports: BTreeSet<String>,
    others: BTreeMap<String, Quantity>,
}

impl PodOccupancy {
    /// Reads the host ports and the other resources of a pod.
    pub fn of(pod: ObjectView<'_>) -> Self {
        Self {
            ports: ports(pod),
            others: others(pod),
        }
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty() && self.others.is_empty()
    }
}

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
            let soon = || assumed.get(&pods::name(pod)).map(String::as_str);
            if let Some(node) = read.node().or_else(soon) {
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

    /// Why a pod can't be on a node.
    pub fn refusal(&self, pod: ObjectView<'_>, node: ObjectView<'_>) -> Option<String> {
        self.taken_port(pod, node)
            .or_else(|| self.lacking(pod, node))
    }

    fn taken_port(&self, pod: ObjectView<'_>, node: ObjectView<'_>) -> Option<String> {
        let taken = self.ports.get(node.name())?;
        let port = ports(pod).into_iter().find(|port| taken.contains(port))?;
        Some(format!("has host port {port} in use"))
    }

    fn lacking(&self, pod: ObjectView<'_>, node: ObjectView<'_>) -> Option<String> {
        others(pod).into_iter().find_map(|(name, asked)| {
            let given = Quantity::from_json(&node.json()["status"]["allocatable"][&name]);
            let given = given.unwrap_or_default();
            let key = (node.name().to_owned(), name);
            let free = given - self.amounts.get(&key).copied().unwrap_or_default();
            let name = key.1;
            (asked > free).then(|| format!("asked for {asked} of {name}; {free} free of {given}"))
        })
    }
}

/// The host ports that a pod takes, with their protocol.
pub fn ports(pod: ObjectView<'_>) -> BTreeSet<String> {
    let is_on_host = pod.json()["spec"]["hostNetwork"] == true;
    let all =
        requests::containers(pod, "containers").chain(requests::containers(pod, "initContainers"));
    let ports = all.flat_map(|container| container["ports"].as_array().into_iter().flatten());
    ports
        .filter_map(|port| {
            let own = if is_on_host {
                &port["containerPort"]
            } else {
                &Value::Null
            };
            let number = port["hostPort"]
                .as_u64()
                .filter(|port| *port > 0)
                .or(own.as_u64())?;
            Some(format!(
                "{number}/{}",
                port["protocol"].as_str().unwrap_or("TCP")
            ))
        })
        .collect()
}

/// The resources that nothing else checks, with their amounts.
fn others(pod: ObjectView<'_>) -> BTreeMap<String, Quantity> {
    let containers = requests::containers(pod, "containers").chain(pod.json().pointer("/spec"));
    let names = containers.flat_map(|container| {
        let kinds = ["requests", "limits"].into_iter();
        kinds.flat_map(|kind| {
            container["resources"][kind]
                .as_object()
                .into_iter()
                .flatten()
        })
    });
    // The ledger decides which shares fit, and an eviction for a share also frees what these resources count.
    let is_known = |name: &str| {
        matches!(
            name,
            "cpu" | "memory" | RESOURCE_SHARE_MIB | RESOURCE_SHARE_MICRO
        ) || WHOLE.contains(&name)
            || name.starts_with(PARTITION)
    };
    names
        .map(|(name, _)| name.clone())
        .filter(|name| !is_known(name))
        .map(|name| (name.clone(), requests::total(pod, &name)))
        .filter(|(_, amount)| *amount > Quantity::ZERO)
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::object_warnings::ObjectWarnings;
    use super::*;

    fn cluster(zones: &[(&str, &str)]) -> ObjectInventory {
        let node = |(name, zone): &(&str, &str)| {
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"zone": zone}},
                "status": {"allocatable": {"example.com/nic": "2"}}})
        };
        ObjectInventory::of(
            zones.iter().map(node).collect(),
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
        let refusal = |node| occupancy.refusal(ObjectView::new(pod), node);
        nodes.filter_map(refusal).collect()
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
