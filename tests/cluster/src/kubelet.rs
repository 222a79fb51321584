//! The kubelet's settings. The node lives in the cluster's folder and below a control group of its own. It leaves the
//! machine around it unchanged (no eviction, no firewall rules, no image garbage collection).

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::json;

use crate::folder::ClusterFolder;
use crate::ports::ClusterPorts;

/// The settings file.
pub(crate) fn settings(folder: &ClusterFolder) -> PathBuf {
    folder.path().join("settings/kubelet.json")
}

/// Writes the settings file.
pub(crate) fn write(folder: &ClusterFolder, ports: &ClusterPorts) -> Result<()> {
    let endpoint = format!("unix://{}", folder.containerd_socket().display());
    let settings = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": "127.0.0.1",
        "port": ports.kubelet,
        "healthzPort": 0,
        "readOnlyPort": 0,
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": folder.certificate("ca")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": folder.certificate("kubelet"),
        "tlsPrivateKeyFile": folder.key("kubelet"),
        "containerRuntimeEndpoint": endpoint,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{}", folder.name()),
        "failCgroupV1": false,
        "failSwapOn": false,
        "makeIPTablesUtilChains": false,
        "oomScoreAdj": 0,
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        "syncFrequency": "10s",
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%",
            "imagefs.available": "0%", "imagefs.inodesFree": "0%",
        },
        "nodeStatusUpdateFrequency": "1s",
        "maxPods": 200,
    });
    folder.write(
        Path::new(&self::settings(folder)),
        &format!("{settings:#}\n"),
    )
}
