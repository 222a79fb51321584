//! The kubelet's device manager checkpoint: which container holds which devices. The kubelet replaces the file
//! before a container with devices can start. The agent only reads it.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// The file, in the kubelet's device-plugins folder.
pub(crate) const FILE: &str = "kubelet_internal_checkpoint";

/// Why the checkpoint cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KubeletCheckpointError {
    #[error("failed to read {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("failed to parse {path}")]
    Parse {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
}

#[derive(Debug, Deserialize)]
struct KubeletCheckpointFile {
    #[serde(rename = "Data")]
    data: CheckpointData,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CheckpointData {
    #[serde(rename = "PodDeviceEntries")]
    entries: Option<Vec<PodDevicesEntry>>,
    #[serde(rename = "RegisteredDevices")]
    registered: Option<BTreeMap<String, Option<Vec<String>>>>,
}

/// The devices of one resource that one container holds.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub(crate) struct PodDevicesEntry {
    #[serde(rename = "PodUID")]
    pub(crate) pod: String,
    #[serde(rename = "ContainerName")]
    pub(crate) container: String,
    #[serde(rename = "ResourceName")]
    pub(crate) resource: String,
    /// By NUMA node; devices without one are under -1.
    #[serde(rename = "DeviceIDs")]
    devices: Option<BTreeMap<String, Option<Vec<String>>>>,
}

impl PodDevicesEntry {
    pub(crate) fn devices(&self) -> impl Iterator<Item = &str> {
        let lists = self.devices.iter().flat_map(BTreeMap::values).flatten();
        lists.flatten().map(String::as_str)
    }
}

/// The content of the checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KubeletCheckpoint {
    pub(crate) entries: Vec<PodDevicesEntry>,
    /// The devices that plugins have registered, by resource name.
    pub(crate) registered: BTreeMap<String, Vec<String>>,
}

/// Reads the checkpoint from the kubelet's device-plugins folder. A kubelet that has allocated no device yet has
/// none.
pub(crate) fn read(folder: &Path) -> Result<KubeletCheckpoint, KubeletCheckpointError> {
    let path = folder.join(FILE);
    match std::fs::read(&path) {
        Ok(text) => parse(&text).map_err(|source| KubeletCheckpointError::Parse { path, source }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(KubeletCheckpoint::default()),
        Err(source) => Err(KubeletCheckpointError::Read { path, source }),
    }
}

/// Parses the checkpoint. The fuzz target `kubelet_checkpoint` calls this.
pub(crate) fn parse(text: &[u8]) -> Result<KubeletCheckpoint, serde_json::Error> {
    let file: KubeletCheckpointFile = serde_json::from_slice(text)?;
    let registered = file.data.registered.unwrap_or_default().into_iter();
    let registered = registered.map(|(resource, ids)| (resource, ids.unwrap_or_default()));
    Ok(KubeletCheckpoint {
        entries: file.data.entries.unwrap_or_default(),
        registered: registered.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_says_which_container_holds_which_device() {
        let text = br#"{"Data":{"PodDeviceEntries":[{"PodUID":"u1","ContainerName":"main",
            "ResourceName":"apportion.dev/gpu-slot","DeviceIDs":{"-1":["s-0001"],"0":null},"AllocResp":"Ggo="}],
            "RegisteredDevices":{"apportion.dev/gpu-slot":["s-0001","s-0002"],"x/y":null}},"Checksum":17}"#;
        let record = parse(text).unwrap();
        assert_eq!(record.entries.len(), 1);
        let entry = &record.entries[0];
        assert_eq!(
            (entry.pod.as_str(), entry.container.as_str()),
            ("u1", "main")
        );
        assert_eq!(entry.devices().collect::<Vec<_>>(), ["s-0001"]);
        assert_eq!(record.registered["apportion.dev/gpu-slot"].len(), 2);
    }

    #[test]
    fn a_kubelet_that_handed_out_nothing_writes_no_lists() {
        let text = br#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}"#;
        assert_eq!(parse(text).unwrap(), KubeletCheckpoint::default());
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(folder.path()).unwrap(), KubeletCheckpoint::default());
        assert!(parse(b"{").is_err());
    }
}
