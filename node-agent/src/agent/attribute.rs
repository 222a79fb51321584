//! To which allocation a process belongs.
//!
//! In a pod the control group alone decides: neither the environment nor a slot in an account, which are
//! the tenant's to write, make a process belong to another pod, and a process of a pod without an
//! allocation is a stranger. Outside of pods the family and the account decide.

use super::*;
use apportion_abi::ContainerRef;
use apportion_cgroup::CgroupOwner;
use apportion_ledger::{AllocationOwner, ProcessId};

impl NodeAgent {
    /// The allocation of a process, which is then its member.
    pub(super) fn owner_of(&mut self, process: ProcessId) -> Option<AllocationId> {
        if self.members.contains(process) {
            return self.members.owner_of(process);
        }
        let Some(place) = self.places.of(process) else {
            return self.members.owner_of(process);
        };
        let id = self.granted_to(&place)?;
        self.members.join(process, &id);
        Some(id)
    }

    /// Whether the process may be made a member because the account says so.
    pub(super) fn may_join(&self, process: ProcessId, id: &AllocationId) -> bool {
        let Some(place) = self.places.of(process) else {
            return true;
        };
        self.ledger
            .allocation(id)
            .is_some_and(|allocation| match &allocation.state {
                AllocationPhase::Allocated(AllocationOwner::Pod(pod)) => pod == place.pod.as_str(),
                // Its pod is no longer known, so only who was a member before is one.
                AllocationPhase::Draining => false,
                AllocationPhase::Allocated(AllocationOwner::Process(_))
                | AllocationPhase::Reserved { .. } => true,
            })
    }

    /// The container's allocation. Where the runtime does not tell the container's name, it is the pod's
    /// only one; of several, the account that the process enters decides.
    fn granted_to(&self, place: &CgroupOwner) -> Option<AllocationId> {
        let container = self.container(place);
        let is_its = |allocation: &&Allocation| {
            let workload = ContainerRef::of(&allocation.name).map(|of| of.container);
            let named = workload.filter(|name| !name.is_empty());
            allocation.state
                == AllocationPhase::Allocated(AllocationOwner::Pod(place.pod.as_str().to_owned()))
                && (named.is_none() || container.is_none() || named == container)
        };
        let mut own = self.ledger.allocations().into_iter().filter(is_its);
        let first = own.next()?;
        own.next().is_none().then(|| first.id.clone())
    }

    /// The container's name, where the runtime tells.
    fn container(&self, place: &CgroupOwner) -> Option<&str> {
        let id = place.container.as_ref()?;
        let lock = self.second_lock.as_ref()?;
        lock.container(place.pod.as_str(), id.as_str())
    }
}
