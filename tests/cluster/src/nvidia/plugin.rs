//! NVIDIA's device plugin, with the options that its own chart gives it.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::{InstalledDriver, ROOT, in_room, modules};
use crate::LocalCluster;
use crate::binaries;
use crate::server::ClusterServer;

const NAME: &str = "nvidia-device-plugin";
/// What the plugin calls its socket.
const SOCKET: &str = "device-plugins/nvidia-gpu.sock";

/// A plugin that runs. It leaves as it is asked to when this is dropped.
#[derive(Debug)]
pub struct NvidiaDevicePlugin {
    server: ClusterServer,
    socket: PathBuf,
}

impl NvidiaDevicePlugin {
    /// Starts it on the node of `cluster`, with the driver that is installed there.
    ///
    /// # Errors
    /// If it cannot be built or started.
    pub fn start(cluster: &LocalCluster, _driver: &InstalledDriver) -> Result<Self> {
        let mut programs = binaries::of_nvidia(&modules(), "device-plugin")?;
        let program = programs.remove(NAME).context("the part has a plugin")?;
        let mut command = in_room(cluster, &program)?;
        command.args(["--driver-root", ROOT, "--container-driver-root", ROOT]);
        let server = ClusterServer::start(NAME, &mut command, &cluster.folder().log(NAME))?;
        let socket = cluster.folder().kubelet().join(SOCKET);
        Ok(Self { server, socket })
    }

    /// Kills it, as a crash does: its socket stays.
    pub fn kill(&self) {
        self.server.kill();
    }
}

impl Drop for NvidiaDevicePlugin {
    fn drop(&mut self) {
        self.server.stop();
        let _ = fs::remove_file(&self.socket);
    }
}
