//! Detects a pod mount that would hide the files that enforce its limit.
//!
//! A CDI device's mounts come after a pod's own. Without CDI they come before, so a pod could mount an empty folder
//! over the account or over the preload list. The agent refuses such a pod before its container starts, if it knows
//! the pod's specification by then. While the source of pods fails, containers can start unchecked.

use std::path::{Component, Path, PathBuf};

use apportion_abi::names::RESOURCE_SLOT;
use apportion_abi::paths::CONTAINER_ACCOUNT;
use k8s_openapi::api::core::v1::{Container, Pod, VolumeMount};

/// Our paths in a container. A pod may mount nothing there.
const OURS: [&str; 2] = [CONTAINER_ACCOUNT, "/etc/ld.so.preload"];

/// The container and the path, as text for a refusal.
pub(super) fn covered(pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let first = spec.init_containers.iter().flatten();
    let mut containers = first.chain(&spec.containers).filter(|of| has_slot(of));
    containers.find_map(|container| {
        let mut mounts = container.volume_mounts.iter().flatten();
        let mount = mounts.find(|mount| is_over_ours(mount))?;
        let (name, mount_path) = (&container.name, &mount.mount_path);
        Some(format!("container {name} mounts a volume at {mount_path}"))
    })
}

fn has_slot(container: &Container) -> bool {
    let limits = container
        .resources
        .as_ref()
        .and_then(|of| of.limits.as_ref());
    limits.is_some_and(|limits| limits.contains_key(RESOURCE_SLOT))
}

fn is_over_ours(mount: &VolumeMount) -> bool {
    let mount_path = plain(&mount.mount_path);
    OURS.iter().any(|ours| mount_path.starts_with(ours))
}

/// The path without `.` and `..`.
fn plain(path: &str) -> PathBuf {
    let mut plain = PathBuf::from("/");
    for component in Path::new(path).components() {
        match component {
            Component::Normal(name) => plain.push(name),
            Component::ParentDir => drop(plain.pop()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(mount_path: &str, limits: serde_json::Value) -> Pod {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "a"},
            "spec": {"containers": [{
                "name": "main",
                "resources": {"limits": limits},
                "volumeMounts": [{"name": "own", "mountPath": mount_path}],
            }]},
        }))
        .unwrap()
    }

    #[test]
    fn a_volume_over_the_account_or_the_library_is_seen_by_whatever_path() {
        let slot = serde_json::json!({RESOURCE_SLOT: "1"});
        for (mount_path, is_covered) in [
            ("/.apportion", true),
            ("/.apportion/limits", true),
            ("/x/..//.apportion/./usage", true),
            ("etc/ld.so.preload", true),
            ("/etc", false),
            ("/data/.apportion", false),
        ] {
            let found = covered(&pod(mount_path, slot.clone()));
            assert_eq!(found.is_some(), is_covered, "{mount_path}");
        }
        let message = covered(&pod("/.apportion", slot)).unwrap();
        assert_eq!(message, "container main mounts a volume at /.apportion");
        let none = serde_json::json!({});
        assert_eq!(covered(&pod("/.apportion", none)), None);
    }
}
