//! The file system as the node's own processes see it: the machine's, with the places that Kubernetes has
//! compiled in or that every node agent expects, such as `/var/lib/kubelet/device-plugins`, below the
//! cluster's folder.
//!
//! It is a mount namespace that containerd makes and the kubelet enters. So two clusters never meet in one
//! place, whoever looks from outside finds the same files in the folder, and every mount of a pod ends with
//! the last process inside.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::folder::ClusterFolder;

/// A place of the machine, and the folder of the cluster that stands there.
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

/// Where a kubelet keeps its files.
pub(crate) const KUBELET: &str = "/var/lib/kubelet";

/// Binds pairs of arguments (folder, place) up to `--`, then becomes the rest. What the machine mounts later
/// comes in; what is mounted inside stays inside, and is shared there as pods may ask.
const FURNISH: &str = r#"
mount --make-rshared /
while [ "$1" != -- ]; do mount --bind "$1" "$2" || exit; shift 2; done
shift
exec "$@"
"#;

/// Makes the folders of both sides; the machine's stay when the cluster goes, since others may stand there.
pub(crate) fn prepare(folder: &ClusterFolder) -> Result<()> {
    for row in ROWS {
        for path in [(row.stands_for)(folder), row.place.into()] {
            fs::create_dir_all(&path)
                .with_context(|| format!("failed to make {}", path.display()))?;
        }
    }
    Ok(())
}

/// `command` in a new room.
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

/// `command` in the room of the process `pid`.
pub(crate) fn entered(pid: i32, command: &Command) -> Command {
    let mut inside = Command::new("nsenter");
    inside.arg(format!("--mount=/proc/{pid}/ns/mnt"));
    inside
        .arg("--")
        .arg(command.get_program())
        .args(command.get_args());
    inside
}
