//! Ending a cluster, in whatever state it is, so that nothing of it stays on the machine.
//!
//! The order does the least harm: first the kubelet, so that it starts nothing more; then the pods through containerd;
//! then the servers, last started first. Whatever is left is found by the folder's path and the cluster's name, and
//! ended.

use std::fs;

use anyhow::{Context, Result};

use crate::cluster::{ClusterRecord, LocalCluster, output};
use crate::folder::ClusterFolder;
use crate::leftovers;

/// Stops everything of the cluster and removes its folder.
///
/// # Errors
/// If something cannot be removed.
pub fn down(folder: &ClusterFolder) -> Result<()> {
    stop(folder);
    leftovers::remove_control_groups(folder)?;
    match fs::remove_dir_all(folder.path()) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("failed to remove {}", folder.path().display()))
        }
        _ => Ok(()),
    }
}

/// Stops everything but keeps the folder for its logs.
pub(crate) fn stop(folder: &ClusterFolder) {
    if let Some(record) = ClusterRecord::read(folder) {
        let cluster = LocalCluster::new(folder.clone(), record);
        stop_servers(&cluster);
    }
    leftovers::end(folder);
    let _ = leftovers::remove_control_groups(folder);
    let _ = fs::remove_file(folder.record());
}

fn stop_servers(cluster: &LocalCluster) {
    let servers = cluster.started();
    if let Some(kubelet) = servers.iter().find(|server| server.name == "kubelet") {
        kubelet.stop();
    }
    if servers
        .iter()
        .any(|server| server.name == "containerd" && server.is_alive())
    {
        let _ = output(
            cluster.crictl_command().args(["rmp", "--all", "--force"]),
            "",
        );
    }
    for server in servers.iter().rev() {
        server.stop();
    }
}
