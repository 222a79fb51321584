//! The two records of slot holders: the kubelet's checkpoint, and the agent's grants on the node. The ledger's content
//! is read from the agent's metrics, as people read it.

use std::collections::BTreeMap;
use std::fs;

use apportion_cluster::managed::ManagedNode;
use serde_json::Value;

/// The limit of a share, by pod.
pub(crate) const MEMORY: &str = "apportion_container_memory_limit_bytes";
const RESOURCE: &str = "apportion.dev/gpu-slot";

/// Each slot with the UID of its pod.
pub(crate) type SlotHolders = BTreeMap<String, String>;

/// The holders in the kubelet's checkpoint.
pub(crate) fn kept_by_the_kubelet(node: &ManagedNode) -> SlotHolders {
    let folder = node.cluster.folder().path();
    let text = fs::read(folder.join("kubelet/device-plugins/kubelet_internal_checkpoint"));
    let file: Value = serde_json::from_slice(&text.expect("the kubelet keeps it"))
        .expect("the kubelet replaces it as a whole");
    let entries = file["Data"]["PodDeviceEntries"].as_array().cloned();
    let entries = entries.into_iter().flatten();
    let ours = entries.filter(|entry| entry["ResourceName"] == RESOURCE);
    ours.flat_map(|entry| {
        let uid = text_of(&entry["PodUID"]);
        let by_node = entry["DeviceIDs"].as_object().cloned().unwrap_or_default();
        let ids = by_node
            .into_iter()
            .filter_map(|(_, ids)| ids.as_array().cloned());
        ids.flatten()
            .map(move |id| (text_of(&id), uid.clone()))
            .collect::<Vec<_>>()
    })
    .collect()
}

/// The holders in the grants on disk. A grant that disappears while it is read is skipped.
pub(crate) fn granted(node: &ManagedNode) -> SlotHolders {
    let files = node
        .grants()
        .into_iter()
        .filter_map(|path| fs::read(path).ok());
    let grants = files.filter_map(|text| serde_json::from_slice::<Value>(&text).ok());
    grants
        .map(|grant| {
            let device = &grant["devices"][0];
            let pod = &device["annotations"]["apportion.dev/pod"];
            (text_of(&device["name"]), text_of(pod))
        })
        .collect()
}

fn text_of(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
