//! A container that the runtime is about to create, reduced to what a verdict needs.

use std::collections::BTreeMap;

use crate::wire;

/// A container as the runtime has prepared it.
#[expect(missing_docs, reason = "the names of the fields say what they are")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NriContainer {
    /// The runtime's id of the container.
    pub id: String,
    pub pod: String,
    pub namespace: String,
    pub pod_name: String,
    pub name: String,
    /// In the runtime's order. A name may occur twice; the later value counts.
    pub env: Vec<(String, String)>,
    /// Paths of device nodes in the container.
    pub devices: Vec<String>,
    /// Mounts: the path in the container, and the source.
    pub mounts: Vec<(String, String)>,
    /// CDI devices, if the runtime reports them.
    pub cdi: Vec<String>,
    /// Annotations of the pod and of the container.
    pub annotations: BTreeMap<String, String>,
}

impl NriContainer {
    /// Converts the runtime's message.
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

    /// The container after the changes of all plugins.
    #[must_use]
    pub fn adjusted(mut self, adjustment: &wire::ContainerAdjustment) -> Self {
        for changed in &adjustment.env {
            // A name with a leading dash removes the variable.
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

    /// The value of a variable in the container.
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
