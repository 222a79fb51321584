//! Which pod and container a process runs in, by its cgroup.
//!
//! The cgroup is read first, and then the process's start time is checked. So a pid that was reused in between is
//! not mistaken for the old process.

use apportion_cgroup::{CgroupOwner, PodUid, owner};
use apportion_ledger::ProcessId;

use crate::processes::procfs;

/// Finds the pod and container of processes.
#[derive(Debug)]
pub(crate) struct CgroupLookup {
    /// The agent's own pod, if it runs in one. It counts as no pod: an agent that somebody starts by hand inside of
    /// a pod treats that pod as its machine.
    own: Option<PodUid>,
}

impl CgroupLookup {
    pub(crate) fn new() -> Self {
        let own = procfs::cgroup(std::process::id()).and_then(|text| owner(&text));
        Self {
            own: own.map(|owner| owner.pod),
        }
    }

    /// Where the process runs; `None` outside of all pods, or once it has ended.
    pub(crate) fn of(&self, process: ProcessId) -> Option<CgroupOwner> {
        let text = procfs::cgroup(process.pid)?;
        let owner = procfs::is_live(process).then(|| owner(&text))??;
        (self.own.as_ref() != Some(&owner.pod)).then_some(owner)
    }
}
