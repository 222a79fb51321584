//! Ending a cluster, however much of it there is, so that nothing of it stays on the machine.
//!
//! In the order of least harm: the kubelet, so that it starts nothing more; the pods through containerd;
//! the servers, last started first; then whatever is left is found by the folder's path and the cluster's
//! name, and ended.

use std::fs;

use anyhow::{Context, Result};

use crate::cluster::{Cluster, Record, output};
use crate::folder::Folder;
use crate::leftovers;

/// Stops everything of the cluster and removes its folder.
///
/// # Errors
/// If something cannot be removed.
pub fn down(folder: &Folder) -> Result<()> {
    stop(folder);
    leftovers::remove_control_groups(folder)?;
    match fs::remove_dir_all(folder.path()) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("failed to remove {}", folder.path().display()))
        }
        _ => Ok(()),
    }
}

/// Stops everything; the folder stays, for its logs.
pub(crate) fn stop(folder: &Folder) {
    if let Some(record) = Record::read(folder) {
        let cluster = Cluster::new(folder.clone(), record);
        stop_servers(&cluster);
    }
    leftovers::end(folder);
    let _ = leftovers::remove_control_groups(folder);
    let _ = fs::remove_file(folder.record());
}

fn stop_servers(cluster: &Cluster) {
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
