//! In which pod and container a process runs, by its control group.
//!
//! The answer is never kept without the process's start time, and is asked for between two looks at it: a
//! pid that went to another process in between is nobody's.

use apportion_cgroup::{CgroupOwner, PodUid, place};
use apportion_ledger::ProcessId;

use crate::procfs;

/// Where processes run, as this agent sees it.
#[derive(Debug)]
pub(crate) struct CgroupLookup {
    /// The agent's own pod, if it runs in one. It is no tenant's: an agent that somebody started by hand
    /// inside of a pod has that whole pod for its machine.
    own: Option<PodUid>,
}

impl CgroupLookup {
    pub(crate) fn new() -> Self {
        let own = procfs::cgroup(std::process::id()).and_then(|text| place(&text));
        Self {
            own: own.map(|place| place.pod),
        }
    }

    /// Where the process runs; `None` outside of all pods, or once it has ended.
    pub(crate) fn of(&self, process: ProcessId) -> Option<CgroupOwner> {
        let text = procfs::cgroup(process.pid)?;
        let place = procfs::is_live(process).then(|| place(&text))??;
        (self.own.as_ref() != Some(&place.pod)).then_some(place)
    }
}
