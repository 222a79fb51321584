//! What of root's power the agent keeps.
//!
//! | capability | what for |
//! |---|---|
//! | `CAP_KILL` | ending an offender that runs as another user (policy `kill`, also of one namespace) |
//! | `CAP_SYS_PTRACE` | reading the environment and the namespaces of other users' processes, to tell whose they are |
//! | `CAP_CHOWN` | giving the account of an allocation to the user of its programs |
//! | `CAP_DAC_OVERRIDE` | the accounts of other users, and the NVIDIA device files of a locked-down node |
//! | `CAP_MKNOD` | the folder with the device files of a container's cards, for a container runtime without CDI |
//!
//! The bounding set stays: `nvidia-modprobe`, which the driver runs to make its device files, is
//! set-user-id root and needs what it needs.

use std::collections::HashSet;

use caps::{CapSet, Capability, CapsHashSet};

/// What is kept, of what was there.
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

/// Drops everything else and verifies it. Call it before there are other threads: each has its own.
pub(crate) fn drop_most() -> Result<(), PrivilegeError> {
    let kept: CapsHashSet = KEPT.into_iter().collect();
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
        // On a thread of its own, because capabilities are a thread's and other tests need theirs.
        let left = std::thread::spawn(|| {
            drop_most().unwrap();
            caps::read(None, CapSet::Effective).unwrap()
        });
        let left = left.join().unwrap();
        assert!(
            left.iter().all(|capability| KEPT.contains(capability)),
            "{left:?}"
        );
    }
}
