//! The driver's own memory limits by control group, which drivers have since 615. Callers name a group by its folder.
//! The machine uses the names of `/proc/<pid>/cgroup`, so the mount point is stripped.

use std::ffi::{c_char, c_ulonglong};
use std::fs;
use std::path::{Path, PathBuf};

use apportion_sim_machine::{NvmlReply, NvmlRequest};

use crate::foreign::ForeignPointer;
use crate::handles::DeviceHandle;
use crate::session;
use crate::status::NvmlStatus;

/// `nvmlSetMemoryLimits_v1_t`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct SetMemoryLimits {
    folder: *mut c_char,
    soft: c_ulonglong,
    hard: c_ulonglong,
}

/// `nvmlGetMemoryLimits_v1_t`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct GetMemoryLimits {
    folder: *mut c_char,
    soft: c_ulonglong,
    hard: c_ulonglong,
    used: c_ulonglong,
}

/// `nvmlDeviceSetMemoryLimits_v1`: only for root, which the daemon checks.
pub(crate) fn set(
    device: DeviceHandle,
    limits: ForeignPointer<SetMemoryLimits>,
) -> Result<(), NvmlStatus> {
    needs_driver_support(device)?;
    let limits = limits.get()?;
    let group = group_at(limits.folder)?;
    session::ask(NvmlRequest::SetMemoryLimits {
        card: device.position()?,
        group,
        soft: limits.soft,
        hard: limits.hard,
    })?;
    Ok(())
}

pub(crate) fn get(
    device: DeviceHandle,
    limits: ForeignPointer<GetMemoryLimits>,
) -> Result<(), NvmlStatus> {
    needs_driver_support(device)?;
    let asked = limits.get()?;
    let reply = session::ask(NvmlRequest::GetMemoryLimits {
        card: device.position()?,
        group: group_at(asked.folder)?,
    })?;
    let NvmlReply::MemoryLimits(found) = reply else {
        return Err(NvmlStatus::Unknown);
    };
    limits.put(GetMemoryLimits {
        folder: asked.folder,
        soft: found.soft,
        hard: found.hard,
        used: found.used,
    })
}

fn needs_driver_support(device: DeviceHandle) -> Result<(), NvmlStatus> {
    device.card()?;
    let has = session::snapshot()?.driver.memory_limits;
    has.then_some(()).ok_or(NvmlStatus::NotSupported)
}

fn group_at(folder: *mut c_char) -> Result<String, NvmlStatus> {
    let folder = PathBuf::from(ForeignPointer::nested(folder).text()?);
    let folder = folder
        .canonicalize()
        .ok()
        .filter(|folder| folder.is_dir())
        .ok_or(NvmlStatus::OperatingSystem)?;
    let mounts =
        fs::read_to_string("/proc/self/mounts").map_err(|_| NvmlStatus::OperatingSystem)?;
    group_below(&mounts, &folder).ok_or(NvmlStatus::OperatingSystem)
}

/// The group's name below the mount point of the cgroup v2 hierarchy that contains its folder.
fn group_below(mounts: &str, folder: &Path) -> Option<String> {
    let unified = mounts.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let (point, kind) = (words.next()?, words.next()?);
        (kind == "cgroup2").then_some(Path::new(point))
    });
    let mut groups = unified.filter_map(|point| folder.strip_prefix(point).ok());
    Some(format!("/{}", groups.next()?.to_str()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "tmpfs /sys/fs/cgroup tmpfs rw 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0
";

    #[test]
    fn a_group_is_named_from_the_mount_of_the_unified_hierarchy() {
        let group = group_below(HYBRID, Path::new("/sys/fs/cgroup/unified/kubepods/pod1"));
        assert_eq!(group.as_deref(), Some("/kubepods/pod1"));
        let root = group_below(
            "x /sys/fs/cgroup cgroup2 rw 0 0",
            Path::new("/sys/fs/cgroup"),
        );
        assert_eq!(root.as_deref(), Some("/"));
    }

    #[test]
    fn a_folder_elsewhere_is_no_group() {
        let group = group_below(HYBRID, Path::new("/sys/fs/cgroup/memory/pod1"));
        assert_eq!(group, None);
    }
}
