//! What this machine lacks for a cluster: everything at once, each with a hint.

use std::env;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::unistd::Uid;

struct HostRequirement {
    is_there: fn() -> bool,
    /// The message if it is missing, with a way to install it.
    missing: &'static str,
}

const ROWS: &[HostRequirement] = &[
    HostRequirement {
        is_there: || Uid::effective().is_root(),
        missing: "root is missing: a kubelet mounts and makes control groups; hint: run it with sudo",
    },
    HostRequirement {
        is_there: || Path::new("/sys/fs/cgroup").is_dir(),
        missing: "control groups are missing: /sys/fs/cgroup is not mounted; hint: inside a container, start it \
                  with --privileged",
    },
    HostRequirement {
        is_there: || runs("runc"),
        missing: "runc is missing; hint: apt-get install runc",
    },
    HostRequirement {
        is_there: || runs("ldd"),
        missing: "ldd is missing, which finds the libraries for the images; hint: apt-get install libc-bin",
    },
    HostRequirement {
        is_there: || ["mount", "unshare", "nsenter"].into_iter().all(runs),
        missing: "mount, unshare or nsenter is missing; hint: apt-get install mount util-linux",
    },
    HostRequirement {
        is_there: || env::var_os("KUBEBUILDER_ASSETS").is_some() || runs("go"),
        missing: "go is missing, which builds Kubernetes; hint: install Go (https://go.dev/dl), or name a folder \
                  with the programs in KUBEBUILDER_ASSETS",
    },
];

/// Everything that is missing, one line each. Empty if a cluster can run.
#[must_use]
pub fn missing() -> Vec<&'static str> {
    let absent = ROWS.iter().filter(|row| !(row.is_there)());
    absent.map(|row| row.missing).collect()
}

/// Whether a program of this name can be started.
fn runs(program: &str) -> bool {
    Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok()
}
