//! The answer to the kubelet's `Allocate`, before anybody knows the pod: the name of a CDI device whose spec is
//! written later, or, for a runtime without CDI, mounts whose files are written later.

use std::collections::HashMap;

use apportion_proto::deviceplugin::{CdiDevice, ContainerAllocateResponse, DeviceSpec, Mount};
use apportion_runtime_class::slot::Kind;
use apportion_runtime_class::{ContainerFiles, cdi, slot};

use crate::delivery::slot_folders::SlotFolders;

/// How `Allocate` is answered.
#[derive(Clone, Debug)]
pub(crate) enum AllocateStrategy {
    /// With a CDI device name.
    Cdi,
    /// With mounts from the slot's own folder.
    Folders(SlotFolders, ContainerFiles),
}

impl AllocateStrategy {
    /// Whether a pod's own mounts can hide those of the answer.
    pub(super) fn can_be_covered(&self) -> bool {
        matches!(self, Self::Folders(..))
    }

    /// The answer for the devices of a container. The first device brings everything that the container gets.
    pub(super) fn of(&self, devices: &[String], kind: Kind) -> ContainerAllocateResponse {
        match (self, devices.first()) {
            (Self::Folders(folders, files), Some(first)) => {
                let folder = folders.path(first).display().to_string();
                translated(slot::answer(first, &folder, files, kind))
            }
            (Self::Cdi, _) | (_, None) => ContainerAllocateResponse {
                cdi_devices: devices
                    .iter()
                    .map(|device| CdiDevice {
                        name: cdi::device_name(device),
                    })
                    .collect(),
                ..ContainerAllocateResponse::default()
            },
        }
    }
}

fn translated(answer: slot::SlotResponse) -> ContainerAllocateResponse {
    let env = answer.env.into_iter();
    let envs: HashMap<_, _> = env.map(|(name, value)| (name.to_owned(), value)).collect();
    let mounts = answer.mounts.into_iter().map(|mount| Mount {
        read_only: mount.options.contains(&"ro"),
        container_path: mount.container_path,
        host_path: mount.host_path,
    });
    let (host_path, container_path) = answer.devices;
    ContainerAllocateResponse {
        envs,
        mounts: mounts.collect(),
        devices: vec![DeviceSpec {
            container_path: container_path.to_owned(),
            host_path,
            permissions: "rw".to_owned(),
        }],
        ..ContainerAllocateResponse::default()
    }
}
