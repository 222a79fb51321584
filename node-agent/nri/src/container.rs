//! A container that the runtime is about to create, reduced to what a judgement needs.

use std::collections::BTreeMap;

use crate::wire;

/// A container, as its runtime has prepared it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NriContainer {
    /// The runtime's id of the container.
    pub id: String,
    /// The pod's UID.
    pub pod: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod_name: String,
    /// The container's name.
    pub name: String,
    /// In the runtime's order. A name can stand there twice, and the later value is what counts.
    pub env: Vec<(String, String)>,
    /// Device nodes, by their paths inside.
    pub devices: Vec<String>,
    /// What is mounted: where and from where.
    pub mounts: Vec<(String, String)>,
    /// CDI devices, as far as the runtime tells of them.
    pub cdi: Vec<String>,
    /// Of the pod and of the container.
    pub annotations: BTreeMap<String, String>,
}

impl NriContainer {
    /// From the runtime's words.
    #[must_use]
    pub fn new(pod: Option<&wire::PodSandbox>, container: &wire::Container) -> Self {
        let pod = pod.cloned().unwrap_or_default();
        let mut annotations = pod.annotations;
        annotations.extend(container.annotations.clone());
        let linux = container.linux.as_ref();
        let devices = linux.map(|linux| linux.devices.as_slice());
        let mounts = container.mounts.iter();
        Self {
            id: container.id.clone(),
            pod: pod.uid,
            namespace: pod.namespace,
            pod_name: pod.name,
            name: container.name.clone(),
            env: container.env.iter().map(|entry| split(entry)).collect(),
            devices: paths(devices.unwrap_or_default()),
            mounts: mounts.map(ends).collect(),
            cdi: names(&container.cdi_devices),
            annotations,
        }
    }

    /// The same after the plugins' changes.
    #[must_use]
    pub fn adjusted(mut self, adjustment: &wire::ContainerAdjustment) -> Self {
        for changed in &adjustment.env {
            // A name with a dash before it is taken out.
            let name = changed.key.trim_start_matches('-');
            self.env.retain(|(known, _)| known != name);
            if name == changed.key {
                self.env.push((changed.key.clone(), changed.value.clone()));
            }
        }
        let linux = adjustment.linux.as_ref();
        let devices = linux.map(|linux| linux.devices.as_slice());
        self.devices.extend(paths(devices.unwrap_or_default()));
        self.mounts.extend(adjustment.mounts.iter().map(ends));
        self.cdi.extend(names(&adjustment.cdi_devices));
        self
    }

    /// The value of a variable that the container will see.
    #[must_use]
    pub fn env(&self, name: &str) -> Option<&str> {
        let mut values = self.env.iter().rev().filter(|(known, _)| known == name);
        values.next().map(|(_, value)| value.as_str())
    }
}

fn split(entry: &str) -> (String, String) {
    let (name, value) = entry.split_once('=').unwrap_or((entry, ""));
    (name.to_owned(), value.to_owned())
}

fn paths(devices: &[wire::LinuxDevice]) -> Vec<String> {
    devices.iter().map(|device| device.path.clone()).collect()
}

fn ends(mount: &wire::Mount) -> (String, String) {
    (mount.destination.clone(), mount.source.clone())
}

fn names(devices: &[wire::CdiDevice]) -> Vec<String> {
    devices.iter().map(|device| device.name.clone()).collect()
}
