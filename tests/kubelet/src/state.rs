//! A kubelet's state: the plugins' devices, and which container has which.

use std::collections::BTreeMap;
use std::path::Path;

use apportion_abi::names::{RESOURCE_SLOT, RESOURCE_WHOLE};
use apportion_proto::deviceplugin::ContainerAllocateResponse;
use apportion_proto::podresources::{
    ClaimResource, ContainerDevices, ContainerResources, DynamicResource, PodResources,
};
use serde_json::json;

/// A pod with its containers that have a device each. An init container's device is reused.
#[derive(Clone, Debug, Default)]
pub struct PodOf {
    /// The UID.
    pub uid: String,
    /// The name, in the namespace `team`.
    pub name: String,
    /// Containers and their slots.
    pub devices: Vec<(String, String)>,
    /// Containers and their whole cards, of our plugin or another one of the same resource.
    pub whole: Vec<(String, Vec<String>)>,
    /// Devices of NVIDIA's DRA driver, allocated by the pod's claims.
    pub claimed: Vec<String>,
    /// Claims of our driver that the pod uses, by name.
    pub own_claims: Vec<String>,
}

impl PodOf {
    /// Each container with its devices of a resource.
    pub(crate) fn of(&self, resource: &str) -> Vec<(&str, Vec<&str>)> {
        if resource == RESOURCE_WHOLE {
            let whole = self.whole.iter();
            return whole
                .map(|(name, ids)| (name.as_str(), ids.iter().map(String::as_str).collect()))
                .collect();
        }
        let slots = self.devices.iter();
        slots
            .map(|(name, slot)| (name.as_str(), vec![slot.as_str()]))
            .collect()
    }
}

/// A registered plugin.
#[derive(Debug, Default)]
pub(crate) struct RegisteredPlugin {
    /// Devices, and whether each is healthy.
    pub(crate) devices: BTreeMap<String, bool>,
    /// The socket that it named, and how often it has registered.
    pub(crate) endpoint: Option<String>,
    pub(crate) registrations: usize,
}

/// The kubelet's state.
#[derive(Debug, Default)]
pub(crate) struct KubeletState {
    /// By the resource.
    pub(crate) plugins: BTreeMap<String, RegisteredPlugin>,
    /// By UID.
    pub(crate) pods: BTreeMap<String, PodOf>,
    /// The plugin's last answer for a pod, by UID.
    pub(crate) answers: BTreeMap<String, ContainerAllocateResponse>,
}

/// A container with claims of our driver.
fn claiming_own(claims: &[String]) -> ContainerResources {
    let device = || ClaimResource {
        driver_name: "gpu.apportion.dev".to_owned(),
        pool_name: "node-1".to_owned(),
        device_name: "gpu".to_owned(),
    };
    let claim = |name: &String| DynamicResource {
        claim_name: name.clone(),
        claim_namespace: "team".to_owned(),
        claim_resources: vec![device()],
    };
    ContainerResources {
        name: "main".to_owned(),
        devices: Vec::new(),
        dynamic_resources: claims.iter().map(claim).collect(),
    }
}

/// A container with devices of claims.
fn claiming(devices: &[String]) -> ContainerResources {
    let device = |name: &String| ClaimResource {
        driver_name: "gpu.nvidia.com".to_owned(),
        pool_name: "node".to_owned(),
        device_name: name.clone(),
    };
    ContainerResources {
        name: "main".to_owned(),
        devices: Vec::new(),
        dynamic_resources: vec![DynamicResource {
            claim_name: "gpu".to_owned(),
            claim_namespace: "team".to_owned(),
            claim_resources: devices.iter().map(device).collect(),
        }],
    }
}

/// The resources that plugins may offer here.
const RESOURCES: [&str; 2] = [RESOURCE_SLOT, RESOURCE_WHOLE];

impl KubeletState {
    /// The healthy devices that no container has.
    pub(crate) fn free(&self, resource: &str) -> Vec<String> {
        let is_held = |id: &str| {
            let mut pods = self.pods.values().flat_map(|pod| pod.of(resource));
            pods.any(|(_, ids)| ids.contains(&id))
        };
        let devices = self
            .plugins
            .get(resource)
            .into_iter()
            .flat_map(|of| &of.devices);
        let healthy = devices.filter(|(_, is_healthy)| **is_healthy);
        healthy
            .map(|(id, _)| id.clone())
            .filter(|id| !is_held(id))
            .collect()
    }

    /// The allocatable devices of the pod resources service: all healthy ones, held or free.
    pub(crate) fn allocatable(&self) -> Vec<ContainerDevices> {
        let of = |(resource, plugin): (&String, &RegisteredPlugin)| {
            let healthy = plugin.devices.iter().filter(|(_, is_healthy)| **is_healthy);
            ContainerDevices {
                resource_name: resource.clone(),
                device_ids: healthy.map(|(id, _)| id.clone()).collect(),
            }
        };
        self.plugins.iter().map(of).collect()
    }

    /// The list of the pod resources service.
    pub(crate) fn listed(&self) -> Vec<PodResources> {
        let containers = |pod: &PodOf| {
            let of = |resource: &str| {
                let container = |(name, ids): (&str, Vec<&str>)| ContainerResources {
                    name: name.to_owned(),
                    devices: vec![ContainerDevices {
                        resource_name: resource.to_owned(),
                        device_ids: ids.into_iter().map(str::to_owned).collect(),
                    }],
                    dynamic_resources: Vec::new(),
                };
                pod.of(resource)
                    .into_iter()
                    .map(container)
                    .collect::<Vec<_>>()
            };
            let claiming = (!pod.claimed.is_empty()).then(|| claiming(&pod.claimed));
            let own = (!pod.own_claims.is_empty()).then(|| claiming_own(&pod.own_claims));
            let claims = claiming.into_iter().chain(own);
            RESOURCES.into_iter().flat_map(of).chain(claims).collect()
        };
        let pod = |pod: &PodOf| PodResources {
            name: pod.name.clone(),
            namespace: "team".to_owned(),
            containers: containers(pod),
        };
        self.pods.values().map(pod).collect()
    }

    /// Writes the checkpoint into the device plugin folder, atomically like the kubelet.
    pub(crate) fn save(&self, folder: &Path) {
        let entries = |resource: &'static str| {
            self.pods.values().flat_map(move |pod| {
                let entry = move |(container, ids): (&str, Vec<&str>)| {
                    json!({
                        "PodUID": pod.uid, "ContainerName": container, "ResourceName": resource,
                        "DeviceIDs": {"-1": ids}, "AllocResp": "",
                    })
                };
                pod.of(resource).into_iter().map(entry).collect::<Vec<_>>()
            })
        };
        let entries: Vec<_> = RESOURCES.into_iter().flat_map(entries).collect();
        let registered: BTreeMap<_, Vec<_>> = self
            .plugins
            .iter()
            .map(|(resource, plugin)| (resource, plugin.devices.keys().collect()))
            .collect();
        let file = json!({
            "Data": {"PodDeviceEntries": entries, "RegisteredDevices": registered},
            "Checksum": 0,
        });
        let path = folder.join("kubelet_internal_checkpoint");
        let temporary = folder.join(".checkpoint");
        std::fs::write(&temporary, file.to_string()).expect("the folder is writable");
        std::fs::rename(temporary, path).expect("the folder is writable");
    }
}
