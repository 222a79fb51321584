//! containerd as this cluster runs it: everything in the cluster's folder, no registry, no pod network.
//!
//! The kubelet calls a node ready when the runtime has a pod network. Pods here share the host's, so there
//! is a network by name only; a pod that asks for one of its own is refused by the missing plugin.
//!
//! The settings are of the second version, which containerd 1.6 to 2.4 read alike. CDI is left as each of them
//! has it: off in 1.x, on in 2.x.

use std::fs;
use std::path::Path;

use anyhow::Result;
use serde_json::json;

use crate::folder::ClusterFolder;
use crate::image;

/// The kernel's number for the right to raise another process's chance of being spared by the OOM killer.
const CAP_SYS_RESOURCE: u32 = 24;

/// What containerd starts for a container of NVIDIA's RuntimeClass, in the cluster's folder. It is there while a test has
/// NVIDIA's container toolkit installed.
pub(crate) const NVIDIA_RUNTIME: &str = "nvidia/nvidia-container-runtime";

/// The settings file.
pub(crate) fn settings(folder: &ClusterFolder) -> std::path::PathBuf {
    folder.path().join("settings/containerd.toml")
}

/// Writes the settings of containerd, which finds its shim at `shim`.
pub(crate) fn write(folder: &ClusterFolder, shim: &Path, snapshotter: &str) -> Result<()> {
    let network = json!({
        "cniVersion": "0.4.0",
        "name": "host-network-only",
        "plugins": [{"type": "host-network-only"}],
    });
    folder.write(
        Path::new("cni/10-host-network-only.conflist"),
        &format!("{network:#}\n"),
    )?;
    let endpoint = format!("unix://{}", folder.containerd_socket().display());
    let crictl = json!({"runtime-endpoint": endpoint, "image-endpoint": endpoint, "timeout": 30});
    folder.write(&folder.crictl(), &format!("{crictl:#}\n"))?;
    folder.write(&settings(folder), &text(folder, shim, snapshotter))
}

fn text(folder: &ClusterFolder, shim: &Path, snapshotter: &str) -> String {
    let below = |path: &str| quoted(&folder.path().join(path));
    format!(
        r#"version = 2
root = {root}
state = {state}
# What this cluster never uses, and would look for at the machine's own places.
disabled_plugins = [
    "io.containerd.internal.v1.opt",
    "io.containerd.snapshotter.v1.blockfile",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.erofs",
    "io.containerd.snapshotter.v1.zfs",
    "io.containerd.tracing.processor.v1.otlp",
]

[grpc]
address = {socket}

[ttrpc]
address = {ttrpc}

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
restrict_oom_score_adj = {restrict}
stream_server_address = "127.0.0.1"
stream_server_port = "0"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = {cni_programs}
conf_dir = {cni}
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "{snapshotter}"
default_runtime_name = "runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
runtime_path = {shim}
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
runtime_path = {shim}
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
BinaryName = {nvidia}

[plugins."io.containerd.nri.v1.nri"]
disable = false
socket_path = "/run/nri/nri.sock"
plugin_path = {nri_plugins}
plugin_config_path = {nri_settings}
"#,
        root = below("containerd/root"),
        state = below("containerd/state"),
        socket = quoted(&folder.containerd_socket()),
        ttrpc = below("containerd/ttrpc.sock"),
        pause = image::PAUSE,
        restrict = !may_adjust_oom(),
        cni = below("cni"),
        cni_programs = below("cni/bin"),
        shim = quoted(shim),
        nvidia = below(NVIDIA_RUNTIME),
        nri_plugins = below("nri/plugins"),
        nri_settings = below("nri/conf.d"),
    )
}

/// A path as TOML and JSON quote it.
fn quoted(path: &Path) -> String {
    json!(path).to_string()
}

fn may_adjust_oom() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let mask = lines.find_map(|line| line.strip_prefix("CapEff:\t"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask, 16).ok());
    mask.is_some_and(|mask| mask >> CAP_SYS_RESOURCE & 1 == 1)
}
