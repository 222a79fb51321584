//! The folders of control groups, version 2.
//!
//! The driver names a group by its folder. The kernel shows a process's group by a path that starts at the reader's
//! own group, so an agent in a pod cannot join it to the mount point. It looks for the folder that has the
//! container's id in its name instead.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};

use apportion_cgroup::ContainerId;

/// `CGROUP2_SUPER_MAGIC`.
const CGROUP2: i64 = 0x6367_7270;
/// How far below the pods' group containers are looked for, and how many folders are read.
const DEPTH: usize = 10;
const FOLDERS: usize = 20_000;

/// The hierarchy of control groups, version 2, that is mounted at a folder.
#[derive(Clone, Debug)]
pub(crate) struct CgroupTree {
    root: PathBuf,
}

impl CgroupTree {
    /// The hierarchy at this folder; `None` if it is not of version 2.
    pub(crate) fn at(root: &Path) -> Option<Self> {
        let kind = rustix::fs::statfs(root).ok()?.f_type;
        (kind == CGROUP2).then(|| Self {
            root: root.to_owned(),
        })
    }

    /// The folder of a container, from the text of `/proc/PID/cgroup` of one of its processes if possible.
    pub(crate) fn container(&self, container: &ContainerId, text: &str) -> Option<PathBuf> {
        self.joined(container, text)
            .or_else(|| self.find(container.as_str()))
    }

    /// The folder that the kernel's path leads to. A group below the container's is the container's, too.
    fn joined(&self, container: &ContainerId, text: &str) -> Option<PathBuf> {
        let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
        let folder = self.root.join(path);
        let mut above = folder.ancestors();
        let own = above.find(|folder| has_name(folder, container.as_str()))?;
        (!path.contains("..") && own.is_dir()).then(|| own.to_owned())
    }

    /// The folder below the pods' group that has this id in its name, breadth first.
    pub(crate) fn find(&self, id: &str) -> Option<PathBuf> {
        let mut waiting = VecDeque::from([(self.pods(), 0)]);
        let mut read = 0;
        while let Some((folder, depth)) = waiting.pop_front() {
            read += 1;
            if read > FOLDERS {
                return None;
            }
            for below in folders(&folder) {
                if has_name(&below, id) {
                    return Some(below);
                }
                if depth < DEPTH {
                    waiting.push_back((below, depth + 1));
                }
            }
        }
        None
    }

    /// The kubelet's group of all pods, or the root where there is none.
    pub(crate) fn pods(&self) -> PathBuf {
        let first: Vec<_> = folders(&self.root).collect();
        let below = first.iter().flat_map(|folder| folders(folder));
        let mut all = first.iter().cloned().chain(below);
        all.find(|folder| {
            let name = folder.file_name().unwrap_or_default().to_string_lossy();
            name == "kubepods" || name == "kubepods.slice" || name.ends_with("-kubepods.slice")
        })
        .unwrap_or_else(|| self.root.clone())
    }
}

/// Whether a group or one below it has processes; `None` if it is gone.
pub(crate) fn is_populated(group: &Path) -> Option<bool> {
    let events = fs::read_to_string(group.join("cgroup.events")).ok()?;
    Some(events.lines().any(|line| line == "populated 1"))
}

/// Runtimes put their own name in front of the id, and `.scope` behind it.
fn has_name(folder: &Path, id: &str) -> bool {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    // A runtime's monitor has a group of its own, which is named after the container, too.
    let is_monitor = name.contains("conmon-");
    name.contains(id) && !is_monitor
}

fn folders(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.map(|entry| entry.path())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00";

    fn tree(folder: &str) -> (tempfile::TempDir, CgroupTree) {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join(folder)).unwrap();
        let tree = CgroupTree {
            root: root.path().to_owned(),
        };
        (root, tree)
    }

    fn container() -> ContainerId {
        let uid = "6f1c2d3e-4b5a-4978-8a6b-1c2d3e4f5a6b";
        let owner = apportion_cgroup::owner(&format!("0::/kubepods/pod{uid}/{ID}"));
        owner.unwrap().container.unwrap()
    }

    #[test]
    fn a_container_is_found_by_the_kernels_path_or_by_its_id() {
        let systemd = format!("kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope");
        let (root, tree) = tree(&systemd);
        let folder = Some(root.path().join(&systemd));
        for text in [
            format!("0::/{systemd}\n"),
            format!("0::/{systemd}/of-the-program\n"),
            format!("0::/../../kubepods-pod1.slice/cri-containerd-{ID}.scope\n"),
            format!("5:memory:/{systemd}\n"),
        ] {
            assert_eq!(tree.container(&container(), &text), folder, "{text}");
        }
    }

    #[test]
    fn the_group_of_a_containers_monitor_is_not_the_containers() {
        let (_root, tree) = tree(&format!("kubepods.slice/crio-conmon-{ID}.scope"));
        assert_eq!(tree.container(&container(), "0::/\n"), None);
    }

    #[test]
    fn the_kubelets_group_is_found_also_below_another_one() {
        for folder in [
            "kubepods",
            "kubepods.slice",
            "kubelet.slice/kubelet-kubepods.slice",
        ] {
            let (root, tree) = tree(folder);
            assert_eq!(tree.pods(), root.path().join(folder));
        }
        let (root, tree) = tree("system.slice/containerd.service");
        assert_eq!(tree.pods(), root.path());
    }

    #[test]
    fn a_folder_elsewhere_is_no_hierarchy() {
        let folder = tempfile::tempdir().unwrap();
        assert!(CgroupTree::at(folder.path()).is_none());
    }
}
