//! The owners of a pod, the nearest first.
//!
//! A dump often has pods without all of their owners. A missing owner is known by its reference: kind and name, which
//! is enough for most grouping rules.

use apportion_groups::ObjectView;
use serde_json::{Value, json};

use super::inventory::ObjectInventory;

/// Chains of owners are short. A longer one is a cycle.
const DEPTH: usize = 12;
const TEMPLATE_HASH: &str = "pod-template-hash";

/// The owners of a pod, the nearest first.
pub(crate) fn chain(pod: ObjectView<'_>, inventory: &ObjectInventory) -> Vec<Value> {
    let mut chain: Vec<Value> = Vec::new();
    let mut next = owner(pod, inventory);
    while let Some(found) = next.filter(|found| !chain.contains(found) && chain.len() < DEPTH) {
        let object = ObjectView::new(&found);
        next = owner(object, inventory).or_else(|| deployment(pod, object, inventory));
        chain.push(found);
    }
    chain
}

fn owner(object: ObjectView<'_>, inventory: &ObjectInventory) -> Option<Value> {
    let references = object
        .json()
        .pointer("/metadata/ownerReferences")?
        .as_array()?;
    let reference = references
        .iter()
        .find(|one| one["controller"] == true)
        .or(references.first())?;
    let (kind, name) = (reference["kind"].as_str()?, reference["name"].as_str()?);
    Some(
        found(inventory, kind, object.namespace(), name).unwrap_or_else(|| {
            json!({"apiVersion": reference["apiVersion"], "kind": kind, "metadata":
            {"name": name, "namespace": object.namespace(), "uid": reference["uid"]}})
        }),
    )
}

fn found(inventory: &ObjectInventory, kind: &str, namespace: &str, name: &str) -> Option<Value> {
    let found = inventory.find(kind, namespace, name);
    found.map(|found| found.json().clone())
}

/// The Deployment above a ReplicaSet that is known only from its pod: the ReplicaSet's name ends with the pod's hash.
fn deployment(
    pod: ObjectView<'_>,
    set: ObjectView<'_>,
    inventory: &ObjectInventory,
) -> Option<Value> {
    let hash = pod.label(TEMPLATE_HASH)?;
    let is_known = inventory
        .find("ReplicaSet", set.namespace(), set.name())
        .is_some();
    if set.kind() != "ReplicaSet" || is_known {
        return None;
    }
    let name = set.name().strip_suffix(hash)?.strip_suffix('-')?;
    Some(
        found(inventory, "Deployment", set.namespace(), name).unwrap_or_else(|| {
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata":
            {"name": name, "namespace": set.namespace()}})
        }),
    )
}
