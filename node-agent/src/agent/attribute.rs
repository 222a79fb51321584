//! Which allocation a process belongs to.
//!
//! In a pod only the cgroup decides. The tenant can write the environment and the slots of its account, so neither
//! can make a process a member of another pod's allocation. A process of a pod without an allocation is unmanaged.
//! Outside of pods the process tree and the account decide.

use apportion_abi::ContainerRef;
use apportion_cgroup::CgroupOwner;
use apportion_ledger::{
    Allocation, AllocationId, AllocationOwner, AllocationPhase, Ledger, ProcessId,
};

use super::grants::ContainerGrants;
use super::state::AgentState;

impl AgentState {
    /// The allocation of a process. The process becomes a member of it.
    pub(super) fn owner_of(&mut self, process: ProcessId) -> Option<AllocationId> {
        if self.members.contains(process) {
            return self.members.owner_of(process);
        }
        let Some(owner) = self.cgroups.of(process) else {
            return self.members.owner_of(process);
        };
        let id = granted_to(&owner, &self.ledger, &self.grants)?;
        self.members.join(process, &id);
        Some(id)
    }

    /// Whether the process may become a member because it has mapped the account.
    pub(super) fn may_join(&self, process: ProcessId, id: &AllocationId) -> bool {
        let Some(owner) = self.cgroups.of(process) else {
            return true;
        };
        let Some(allocation) = self.ledger.allocation(id) else {
            return false;
        };
        match &allocation.state {
            AllocationPhase::Allocated(AllocationOwner::Pod(pod)) => pod == owner.pod.as_str(),
            AllocationPhase::Allocated(AllocationOwner::Claim(claim)) => {
                claim.pods.contains_key(owner.pod.as_str())
            }
            // The pod is no longer known, so no new members.
            AllocationPhase::Draining => false,
            AllocationPhase::Allocated(AllocationOwner::Process(_))
            | AllocationPhase::Reserved { .. } => true,
        }
    }
}

/// The container's allocation. If the runtime does not report container names, it is the pod's only allocation.
/// If the pod has several, the account that the process maps decides.
fn granted_to(
    owner: &CgroupOwner,
    ledger: &Ledger,
    grants: &ContainerGrants,
) -> Option<AllocationId> {
    let container = grants.container(owner);
    let mut own = ledger.allocations().into_iter().filter(|allocation| {
        let workload = ContainerRef::of(&allocation.name).map(|of| of.container);
        let named = workload.filter(|name| !name.is_empty());
        is_of_pod(allocation, owner.pod.as_str())
            && (named.is_none() || container.is_none() || named == container)
    });
    let first = own.next()?;
    own.next().is_none().then(|| first.id.clone())
}

/// Whether the pod owns the allocation, or uses the claim that owns it.
fn is_of_pod(allocation: &Allocation, pod: &str) -> bool {
    match &allocation.state {
        AllocationPhase::Allocated(AllocationOwner::Pod(own)) => own == pod,
        AllocationPhase::Allocated(AllocationOwner::Claim(claim)) => claim.pods.contains_key(pod),
        AllocationPhase::Allocated(AllocationOwner::Process(_))
        | AllocationPhase::Reserved { .. }
        | AllocationPhase::Draining => false,
    }
}
