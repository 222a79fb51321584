//! What a cluster leaves on the machine: processes, mounts and control groups.
//!
//! All of them contain the folder's path or the cluster's name, and nothing else on the machine does.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::folder::ClusterFolder;

const CONTROL_GROUPS: &str = "/sys/fs/cgroup";
/// How long killed processes may take to leave their control groups.
const PATIENCE: Duration = Duration::from_secs(10);
const GLANCE: Duration = Duration::from_millis(20);

/// Everything that is left, one line each. Empty after [`crate::down`].
#[must_use]
pub fn leftovers(folder: &ClusterFolder) -> Vec<String> {
    let processes = processes(folder)
        .into_iter()
        .map(|(pid, command)| format!("process {pid}: {command}"));
    let mounts = mounts(folder)
        .into_iter()
        .map(|path| format!("mount {}", path.display()));
    let groups = control_groups(folder)
        .into_iter()
        .map(|path| format!("control group {}", path.display()));
    processes.chain(mounts).chain(groups).collect()
}

/// Creates the control group for the kubelet's pods, in every hierarchy.
pub(crate) fn make_control_groups(folder: &ClusterFolder) -> Result<()> {
    for hierarchy in hierarchies() {
        let path = hierarchy.join(folder.name());
        fs::create_dir_all(&path).with_context(|| format!("failed to make {}", path.display()))?;
    }
    Ok(())
}

/// Kills the processes, then unmounts.
pub(crate) fn end(folder: &ClusterFolder) {
    for (pid, _) in processes(folder) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
    for path in mounts(folder).iter().rev() {
        let _ = umount2(path, MntFlags::MNT_DETACH);
    }
}

/// Removes the groups, deepest first, and kills the processes in them.
pub(crate) fn remove_control_groups(folder: &ClusterFolder) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let groups = control_groups(folder);
        for group in groups.iter().rev() {
            kill_members(group);
            let _ = fs::remove_dir(group);
        }
        let Some(left) = groups.iter().find(|group| group.exists()) else {
            return Ok(());
        };
        if Instant::now() >= deadline {
            bail!("the control group {} cannot be removed", left.display());
        }
        thread::sleep(GLANCE);
    }
}

/// The processes of this cluster. The servers and containerd's shims name the folder on their command lines.
fn processes(folder: &ClusterFolder) -> Vec<(i32, String)> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let own = std::process::id().cast_signed();
    let told = pids.filter(|&pid| pid != own).filter_map(|pid| {
        let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        is_ours(&command, folder).then_some((pid, command))
    });
    told.collect()
}

/// Whether a command line is that of a server with a path below this folder.
fn is_ours(command: &str, folder: &ClusterFolder) -> bool {
    let path = format!("{}/", folder.path().display());
    const SERVERS: [&str; 8] = [
        "apportion-agent",
        "apportion-simd",
        "etcd",
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "containerd",
        "kubelet",
    ];
    let program = command.split(' ').next().unwrap_or_default();
    let program = program.rsplit('/').next().unwrap_or_default();
    let serves = SERVERS.contains(&program) || program.starts_with("containerd-shim");
    serves && command.contains(&path)
}

fn mounts(folder: &ClusterFolder) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let places = table.lines().filter_map(|line| line.split(' ').nth(4));
    places
        .map(PathBuf::from)
        .filter(|place| place.starts_with(folder.path()))
        .collect()
}

/// The groups with the cluster's name and all below them, parents first.
fn control_groups(folder: &ClusterFolder) -> Vec<PathBuf> {
    let roots = hierarchies()
        .into_iter()
        .map(|path| path.join(folder.name()));
    let mut groups: Vec<PathBuf> = roots.filter(|path| path.exists()).collect();
    let mut next = 0;
    while let Some(group) = groups.get(next) {
        let below = fs::read_dir(group).into_iter().flatten().flatten();
        let below: Vec<PathBuf> = below
            .map(|entry| entry.path())
            .filter(|path| path.is_dir())
            .collect();
        groups.extend(below);
        next += 1;
    }
    groups
}

/// The single hierarchy of cgroup v2, or the several ones of v1.
fn hierarchies() -> Vec<PathBuf> {
    let root = Path::new(CONTROL_GROUPS);
    if root.join("cgroup.controllers").exists() {
        return vec![root.into()];
    }
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    // Links are aliases of hierarchies that are listed under their own names.
    paths
        .filter(|path| path.is_dir() && !path.is_symlink())
        .collect()
}

fn kill_members(group: &Path) {
    let members = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    for pid in members.lines().filter_map(|line| line.parse().ok()) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
}
