//! What one pod holds of its node beside CPU, memory and cards: host ports, and resources with any other name.

use std::collections::{BTreeMap, BTreeSet};

use apportion_abi::names::{
    RESOURCE_PARTITION as PARTITION, RESOURCE_SHARE_MIB, RESOURCE_SHARE_MICRO,
};
use apportion_groups::ObjectView;
use apportion_kubernetes::Quantity;
use serde_json::Value;

use super::requests::{self, WHOLE};

/// What one pod holds.
#[derive(Clone, Debug, Default)]
pub struct PodOccupancy {
    pub(crate) ports: BTreeSet<String>,
    pub(crate) others: BTreeMap<String, Quantity>,
}

impl PodOccupancy {
    /// Reads the host ports and the other resources of a pod.
    pub fn of(pod: ObjectView<'_>) -> Self {
        Self {
            ports: ports(pod),
            others: others(pod),
        }
    }

    /// The same without some of its resources.
    pub(crate) fn without(mut self, resources: &BTreeSet<String>) -> Self {
        self.others.retain(|name, _| !resources.contains(name));
        self
    }

    /// The names of its resources.
    pub(crate) fn resources(&self) -> impl Iterator<Item = &str> {
        self.others.keys().map(String::as_str)
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty() && self.others.is_empty()
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
pub(crate) fn others(pod: ObjectView<'_>) -> BTreeMap<String, Quantity> {
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
    names
        .map(|(name, _)| name.clone())
        .filter(|name| !is_checked(name))
        .map(|name| (name.clone(), requests::total(pod, &name)))
        .filter(|(_, amount)| *amount > Quantity::ZERO)
        .collect()
}

/// Whether something else checks a resource. The ledger decides which shares fit, and an eviction for a share also
/// frees what these resources count.
fn is_checked(name: &str) -> bool {
    matches!(
        name,
        "cpu" | "memory" | RESOURCE_SHARE_MIB | RESOURCE_SHARE_MICRO
    ) || WHOLE.contains(&name)
        || name.starts_with(PARTITION)
}
