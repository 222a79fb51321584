//! NVIDIA's own parts of a node, as they are released: the device plugin and the container toolkit.
//!
//! They are built from their Go modules and run in the node's room. The driver that they find there is the simulated one,
//! in a folder of its own, as NVIDIA's driver container keeps the real one.

mod driver;
mod plugin;
mod toolkit;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::LocalCluster;

pub use driver::{InstalledDriver, ROOT};
pub use plugin::NvidiaDevicePlugin;
pub use toolkit::{InstalledToolkit, RUNTIME_CLASS, SpecAudience, ToolkitMode};

/// `program` in the room of the node's own processes. It finds the cluster's simulated GPUs where they usually are.
fn in_room(cluster: &LocalCluster, program: &Path) -> Result<Command> {
    let mut servers = cluster.servers();
    let containerd = servers.find(|server| server.0 == "containerd");
    let (_, capacity) = containerd.context("no containerd runs")?;
    let mut command = Command::new("nsenter");
    command.arg(format!("--mount=/proc/{capacity}/ns/mnt"));
    command.arg("--").arg(program);
    Ok(command)
}

/// The folder with one folder for each part.
fn modules() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../kubernetes")
}
