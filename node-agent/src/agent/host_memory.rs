//! Whether the host has room for the GPU memory of processes that are put to sleep.
//!
//! The driver takes that memory in the processes themselves. Where it runs out, the kernel kills somebody. So the agent
//! asks before: what the machine has available, less a reserve, and what the control groups of the processes allow.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use apportion_abi::Bytes;

use crate::processes::procfs;

/// The part of the machine's memory that stays available: a twentieth, and at least so much.
const LEAST_RESERVE: Bytes = Bytes::from_mib(512);
const RESERVE_PART: u64 = 20;

/// Why the host has no room, in numbers.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum HostShortfall {
    #[error(
        "the host's memory has no room for {needed}: {available} are available, of which {reserve} stay free"
    )]
    Machine {
        needed: Bytes,
        available: Bytes,
        reserve: Bytes,
    },
    #[error("control group {} has no room for {needed}: {left} are left of its memory limit of {limit}", .group.display())]
    Group {
        group: PathBuf,
        needed: Bytes,
        left: Bytes,
        limit: Bytes,
    },
}

/// Refuses if these processes' memory does not fit into the host's. `groups` is where control groups are mounted.
pub(super) fn check(moved: &[(u32, Bytes)], groups: &Path) -> Result<(), HostShortfall> {
    let total = moved.iter().map(|(_, bytes)| *bytes).sum();
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    of_machine(&meminfo, total)?;
    let mut in_group: BTreeMap<PathBuf, Bytes> = BTreeMap::new();
    for (pid, bytes) in moved {
        let group = procfs::cgroup(*pid).unwrap_or_default();
        for folder in above(&group, groups) {
            let sum = in_group.entry(folder).or_default();
            *sum = sum.plus(*bytes);
        }
    }
    in_group
        .into_iter()
        .try_for_each(|(group, needed): (PathBuf, Bytes)| of_group(group, needed))
}

/// Compares with the text of `/proc/meminfo`. If the kernel does not say, there is room.
fn of_machine(meminfo: &str, needed: Bytes) -> Result<(), HostShortfall> {
    let (Some(available), Some(all)) = (row(meminfo, "MemAvailable:"), row(meminfo, "MemTotal:"))
    else {
        return Ok(());
    };
    let reserve = Bytes(all.0 / RESERVE_PART).max(LEAST_RESERVE);
    if needed <= available.minus(reserve) {
        return Ok(());
    }
    Err(HostShortfall::Machine {
        needed,
        available,
        reserve,
    })
}

fn row(meminfo: &str, name: &str) -> Option<Bytes> {
    let row = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = row.split_whitespace().next()?.parse().ok()?;
    Some(Bytes(kib.saturating_mul(1024)))
}

/// The folders of a process's group and of all above it, from the text of `/proc/PID/cgroup`. Only version 2.
fn above(text: &str, root: &Path) -> Vec<PathBuf> {
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"));
    let Some(path) = path.filter(|path| !path.contains("..")) else {
        return Vec::new();
    };
    let folder = root.join(path);
    let above = folder.ancestors().filter(|above| above.starts_with(root));
    above.map(Path::to_owned).collect()
}

/// A group without a limit has room.
fn of_group(group: PathBuf, needed: Bytes) -> Result<(), HostShortfall> {
    let (Some(limit), Some(used)) = (
        amount(&group.join("memory.max")),
        amount(&group.join("memory.current")),
    ) else {
        return Ok(());
    };
    let left = limit.minus(used);
    if needed <= left {
        return Ok(());
    }
    Err(HostShortfall::Group {
        group,
        needed,
        left,
        limit,
    })
}

fn amount(file: &Path) -> Option<Bytes> {
    let text = fs::read_to_string(file).ok()?;
    text.trim().parse().ok().map(Bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str =
        "MemTotal:       20480000 kB\nMemFree:  100 kB\nMemAvailable:    4096000 kB\n";

    #[test]
    fn what_the_machine_keeps_free_is_not_taken() {
        let available = 4_096_000 / 1024;
        let reserve = 20_480_000 / 1024 / RESERVE_PART;
        let room = Bytes::from_mib(available - reserve);
        assert_eq!(of_machine(MEMINFO, room), Ok(()));
        let refused = of_machine(MEMINFO, room.plus(Bytes(1))).unwrap_err();
        assert_eq!(
            refused.to_string(),
            format!(
                "the host's memory has no room for {}: {available} MiB are available, of which {reserve} MiB stay free",
                room.plus(Bytes(1))
            )
        );
        assert_eq!(of_machine("", room), Ok(()), "a kernel that does not say");
    }

    #[test]
    fn the_group_of_a_process_and_those_above_it_count() {
        let root = Path::new("/groups");
        let folders = |text: &str| above(text, root);
        let expected = ["/groups/a/b", "/groups/a", "/groups"].map(PathBuf::from);
        assert_eq!(folders("1:cpu:/x\n0::/a/b\n"), expected);
        assert_eq!(folders("0::/\n"), [root]);
        assert!(folders("0::/../a\n").is_empty() && folders("4:memory:/a\n").is_empty());
    }

    #[test]
    fn a_group_has_room_up_to_its_limit() {
        let folder = tempfile::tempdir().unwrap();
        let group = folder.path().to_owned();
        assert_eq!(of_group(group.clone(), Bytes(u64::MAX)), Ok(()), "no file");
        fs::write(group.join("memory.current"), "600\n").unwrap();
        fs::write(group.join("memory.max"), "max\n").unwrap();
        assert_eq!(of_group(group.clone(), Bytes(u64::MAX)), Ok(()), "no limit");
        fs::write(group.join("memory.max"), "1000\n").unwrap();
        assert_eq!(of_group(group.clone(), Bytes(400)), Ok(()));
        let refused = of_group(group, Bytes(401)).unwrap_err();
        let HostShortfall::Group { left, limit, .. } = refused else {
            panic!("{refused}");
        };
        assert_eq!((left, limit), (Bytes(400), Bytes(1000)));
    }
}
