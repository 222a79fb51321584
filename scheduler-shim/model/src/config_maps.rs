//! The ConfigMaps that a pod mounts. While one is missing, the kubelet would hold the pod's GPUs and start nothing.
//! So the pod waits without a node, as with KAI.
//!
//! Only volumes count, not what containers read into their environment. In a running cluster every namespace has a
//! ConfigMap of Kubernetes itself. Files without any say nothing about ConfigMaps.

use std::sync::Arc;

use apportion_policy::cluster::{Task, TaskStatus};
use serde_json::Value;

use super::inventory::ObjectInventory;
use super::object_kinds::CONFIG_MAP;

/// Prefix of an internal label that no node has. No user can set it, because of the space.
const WAITS_FOR: &str = " config-map ";

/// Makes a pod wait if a ConfigMap that it needs is missing.
pub fn await_all(task: &mut Task, space: &str, needed: &[Box<str>], inventory: &ObjectInventory) {
    if needed.is_empty() || task.status != TaskStatus::Pending {
        return;
    }
    let mut needed = needed.iter().map(Box::as_ref);
    if let Some(name) = needed
        .find(|name| inventory.find(CONFIG_MAP.1, space, name).is_none())
        .filter(|_| {
            let mut listed = inventory.all(CONFIG_MAP.1);
            listed.any(|map| map.namespace() == space)
        })
    {
        let label = format!("{WAITS_FOR}{name}");
        Arc::make_mut(&mut task.node_affinity).push((label, Vec::new()));
    }
}

/// Why such a pod waits, on every node.
pub fn refused(task: &Task) -> Option<String> {
    let mut wished = task.node_affinity.iter();
    let name = wished.find_map(|(label, _)| label.strip_prefix(WAITS_FOR))?;
    Some(format!("ConfigMap {name} of the pod does not exist"))
}

/// Keeps of a ConfigMap volume only the name, and whether it is optional.
pub fn prune_fields(volume: &mut Value) {
    let map = volume.get_mut("configMap").and_then(Value::as_object_mut);
    if let Some(map) = map {
        map.retain(|field, _| ["name", "optional"].contains(&field.as_str()));
    }
}

#[cfg(test)]
mod tests {
    use apportion_groups::ObjectView;
    use serde_json::json;

    use super::*;
    use crate::object_warnings::ObjectWarnings;

    fn map(space: &str, name: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": space}})
    }

    fn waits(objects: Vec<Value>, map: &Value) -> Option<String> {
        let pod = json!({"metadata": {"name": "p", "namespace": "team"},
            "spec": {"volumes": [{"name": "other", "emptyDir": {}}, {"name": "v", "configMap": map}]}});
        let inventory = ObjectInventory::of(objects, &mut ObjectWarnings::default());
        let mut task = Task::default();
        await_all(
            &mut task,
            "team",
            &crate::pods::config_maps(ObjectView::new(&pod)),
            &inventory,
        );
        refused(&task)
    }

    #[test]
    fn a_pod_waits_for_a_map_that_its_namespace_lacks() {
        let wanted = json!({"name": "settings"});
        let root = map("team", "kube-root-ca.crt");
        let why = waits(vec![root.clone(), map("other", "settings")], &wanted);
        assert_eq!(
            why.as_deref(),
            Some("ConfigMap settings of the pod does not exist")
        );
        assert_eq!(
            waits(vec![root.clone(), map("team", "settings")], &wanted),
            None
        );
        let optional = json!({"name": "settings", "optional": true});
        assert_eq!(waits(vec![root], &optional), None);
        assert_eq!(waits(vec![map("other", "settings")], &wanted), None);
    }
}
