//! What is changed for a program or a container, in the words of CDI.

/// The changes to the program's environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerEdits {
    /// Variables, each name once.
    pub env: Vec<(&'static str, String)>,
    /// Files of the host that appear in the container.
    pub mounts: Vec<ContainerMount>,
    /// Device files that the container may open.
    pub devices: Vec<DeviceNode>,
}

/// A bind mount that the runtime adds to the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerMount {
    /// The file on the host.
    pub host_path: String,
    /// The path in the container.
    pub container_path: String,
    /// The mount's options.
    pub options: &'static [&'static str],
}

/// A device file that the runtime adds to the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceNode {
    /// The path in the container.
    pub path: String,
    /// The path on the host.
    pub host_path: String,
}
