//! The capabilities that an agent of root keeps.
//!
//! | capability | purpose |
//! |---|---|
//! | `CAP_KILL` | kill an offender of another user (policy `kill`, also of one namespace) |
//! | `CAP_SYS_PTRACE` | read the environment and the namespaces of other users' processes, to find their allocation |
//! | `CAP_CHOWN` | give the account of an allocation to the user of its programs |
//! | `CAP_DAC_OVERRIDE` | the accounts of other users, and the NVIDIA device files of a locked-down node |
//! | `CAP_SYS_ADMIN` | limits of control groups that the driver keeps itself; only on a Kubernetes node, and unless they are off |
//! | `CAP_MKNOD` | the folder with the device files of a container's cards, for a container runtime without CDI |
//!
//! The bounding set stays as it is: the driver runs `nvidia-modprobe`, which is set-user-id root, to create its
//! device files, and that program needs its own capabilities.

use std::collections::HashSet;

use caps::{CapSet, Capability, CapsHashSet};

/// The capabilities to keep, if present.
const KEPT: [Capability; 5] = [
    Capability::CAP_CHOWN,
    Capability::CAP_KILL,
    Capability::CAP_SYS_PTRACE,
    Capability::CAP_DAC_OVERRIDE,
    Capability::CAP_MKNOD,
];

/// Why capabilities could not be dropped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PrivilegeError {
    #[error("failed to drop capabilities")]
    Drop(#[source] caps::errors::CapsError),
    #[error("capabilities {0:?} remain after they were dropped")]
    Kept(CapsHashSet),
}

/// Drops all other capabilities and verifies it. Must be called before other threads start: each has its own set.
pub(crate) fn drop_most(limits_groups: bool) -> Result<(), PrivilegeError> {
    let admin = limits_groups.then_some(Capability::CAP_SYS_ADMIN);
    let kept: CapsHashSet = KEPT.into_iter().chain(admin).collect();
    let present = caps::read(None, CapSet::Permitted).map_err(PrivilegeError::Drop)?;
    let wanted: CapsHashSet = present.intersection(&kept).copied().collect();
    for (set, wanted) in [
        (CapSet::Ambient, &HashSet::new()),
        (CapSet::Inheritable, &HashSet::new()),
        (CapSet::Effective, &wanted),
        (CapSet::Permitted, &wanted),
    ] {
        caps::set(None, set, wanted).map_err(PrivilegeError::Drop)?;
    }
    let left = caps::read(None, CapSet::Permitted).map_err(PrivilegeError::Drop)?;
    match left.difference(&kept).copied().collect::<CapsHashSet>() {
        surplus if surplus.is_empty() => Ok(()),
        surplus => Err(PrivilegeError::Kept(surplus)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_what_is_justified_is_left() {
        // In a new thread, because capabilities belong to a thread and other tests need theirs.
        let left = std::thread::spawn(|| {
            drop_most(false).unwrap();
            caps::read(None, CapSet::Effective).unwrap()
        })
        .join()
        .unwrap();
        assert!(
            left.iter().all(|capability| KEPT.contains(capability)),
            "{left:?}"
        );
    }
}
