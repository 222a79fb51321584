//! What a kubelet has on its books: the plugin's devices and which container holds which.

use std::collections::BTreeMap;
use std::path::Path;

use apportion_abi::names::RESOURCE_SLOT;
use apportion_proto::deviceplugin::ContainerAllocateResponse;
use apportion_proto::podresources::{ContainerDevices, ContainerResources, PodResources};
use serde_json::json;

/// A pod with its containers that hold a device each; an init container's is handed on.
#[derive(Clone, Debug)]
pub struct PodOf {
    /// The UID.
    pub uid: String,
    /// The name, in the namespace `team`.
    pub name: String,
    /// Container and device.
    pub devices: Vec<(String, String)>,
}

/// The books.
#[derive(Debug, Default)]
pub(crate) struct Books {
    /// Device and whether it is healthy.
    pub(crate) devices: BTreeMap<String, bool>,
    /// By UID.
    pub(crate) pods: BTreeMap<String, PodOf>,
    /// What the plugin last answered for a pod, by UID.
    pub(crate) answers: BTreeMap<String, ContainerAllocateResponse>,
    /// The socket at which the plugin said it listens, and how many have said so.
    pub(crate) endpoint: Option<String>,
    pub(crate) registrations: usize,
}

impl Books {
    /// A healthy device that no container holds.
    pub(crate) fn free(&self) -> Option<String> {
        let is_held = |id: &str| {
            let mut devices = self.pods.values().flat_map(|pod| &pod.devices);
            devices.any(|(_, device)| device == id)
        };
        let mut healthy = self.devices.iter().filter(|(_, is_healthy)| **is_healthy);
        healthy
            .find(|(id, _)| !is_held(id))
            .map(|(id, _)| id.clone())
    }

    /// What the pod resources service lists.
    pub(crate) fn listed(&self) -> Vec<PodResources> {
        let container = |(name, device): &(String, String)| ContainerResources {
            name: name.clone(),
            devices: vec![ContainerDevices {
                resource_name: RESOURCE_SLOT.to_owned(),
                device_ids: vec![device.clone()],
            }],
        };
        let pod = |pod: &PodOf| PodResources {
            name: pod.name.clone(),
            namespace: "team".to_owned(),
            containers: pod.devices.iter().map(container).collect(),
        };
        self.pods.values().map(pod).collect()
    }

    /// Writes the checkpoint into the folder of device plugins, in one step as the kubelet does.
    pub(crate) fn save(&self, folder: &Path) {
        let entry = |pod: &PodOf, (container, device): &(String, String)| {
            json!({
                "PodUID": pod.uid, "ContainerName": container, "ResourceName": RESOURCE_SLOT,
                "DeviceIDs": {"-1": [device]}, "AllocResp": "",
            })
        };
        let entries: Vec<_> = self
            .pods
            .values()
            .flat_map(|pod| pod.devices.iter().map(move |of| entry(pod, of)))
            .collect();
        let registered: Vec<_> = self.devices.keys().collect();
        let file = json!({
            "Data": {"PodDeviceEntries": entries, "RegisteredDevices": {RESOURCE_SLOT: registered}},
            "Checksum": 0,
        });
        let path = folder.join("kubelet_internal_checkpoint");
        let temporary = folder.join(".checkpoint");
        std::fs::write(&temporary, file.to_string()).expect("the folder is writable");
        std::fs::rename(temporary, path).expect("the folder is writable");
    }
}
