//! The file system of the node's processes: that of the machine, except that the fixed paths of Kubernetes and of node
//! agents, such as `/var/lib/kubelet/device-plugins`, are folders of the cluster.
//!
//! It is a mount namespace that containerd creates and the kubelet enters. So two clusters never share such a path, the
//! files are visible from outside in the cluster's folder, and every mount of a pod ends with the last process inside.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::folder::ClusterFolder;

/// A path of the machine, and the folder of the cluster that is mounted there.
struct NamespaceMount {
    place: &'static str,
    stands_for: fn(&ClusterFolder) -> PathBuf,
}

const ROWS: &[NamespaceMount] = &[
    NamespaceMount {
        place: KUBELET,
        stands_for: ClusterFolder::kubelet,
    },
    NamespaceMount {
        place: "/var/log/pods",
        stands_for: |folder| folder.path().join("pods"),
    },
    NamespaceMount {
        place: "/var/log/containers",
        stands_for: |folder| folder.path().join("links"),
    },
    NamespaceMount {
        place: "/run/containerd",
        stands_for: |folder| folder.path().join("containerd"),
    },
    NamespaceMount {
        place: "/run/nri",
        stands_for: |folder| folder.path().join("nri"),
    },
    NamespaceMount {
        place: "/run/cdi",
        stands_for: ClusterFolder::cdi,
    },
    NamespaceMount {
        place: "/run/apportion",
        stands_for: |folder| folder.path().join("apportion"),
    },
];

/// The kubelet's folder.
pub(crate) const KUBELET: &str = "/var/lib/kubelet";

/// Bind-mounts pairs of arguments (folder, path) up to `--`, then executes the rest. Later mounts of the machine
/// propagate into the namespace. Mounts made inside stay inside, and are shared there as pods may require.
const FURNISH: &str = r#"
mount --make-rshared /
while [ "$1" != -- ]; do mount --bind "$1" "$2" || exit; shift 2; done
shift
exec "$@"
"#;

/// Creates the folders on both sides. Those of the machine are not removed with the cluster, since others may use them.
pub(crate) fn prepare(folder: &ClusterFolder) -> Result<()> {
    for row in ROWS {
        for path in [(row.stands_for)(folder), row.place.into()] {
            fs::create_dir_all(&path)
                .with_context(|| format!("failed to make {}", path.display()))?;
        }
    }
    Ok(())
}

/// `command` in a new mount namespace.
pub(crate) fn furnished(folder: &ClusterFolder, command: &Command) -> Command {
    let mut inside = Command::new("unshare");
    inside.args([
        "--mount",
        "--propagation",
        "slave",
        "--",
        "sh",
        "-c",
        FURNISH,
        "sh",
    ]);
    for row in ROWS {
        inside.arg((row.stands_for)(folder)).arg(row.place);
    }
    inside
        .arg("--")
        .arg(command.get_program())
        .args(command.get_args());
    inside
}

/// `command` in the mount namespace of the process `pid`.
pub(crate) fn entered(pid: i32, command: &Command) -> Command {
    let mut inside = Command::new("nsenter");
    inside.arg(format!("--mount=/proc/{pid}/ns/mnt"));
    inside
        .arg("--")
        .arg(command.get_program())
        .args(command.get_args());
    inside
}
