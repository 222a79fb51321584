//! Turns reports of the kubelet into grants. A slot gets its grant when the container that holds it is about to
//! start, and loses it when the pod has left.

use apportion_abi::ContainerRef;
use apportion_ledger::{
    Allocation, AllocationId, AllocationOwner, AllocationPhase, EpochMillis, Ledger, LedgerEvent,
    SlotEvent, SlotId,
};
use tonic::Status;
use tracing::error;

use super::clock::now;
use super::state::{self, AgentState};
use super::{NodeAgent, foreign_cards};
use crate::api::request::PrepareOutcome;
use crate::delivery;
use crate::kubelet::snapshot::{Holder, KubeletSnapshot};
use crate::options::UnplacedPolicy;

/// The allocation of a pod.
struct PodAllocation {
    id: AllocationId,
    pod: String,
    created: EpochMillis,
}

impl NodeAgent {
    /// Makes sure that a container of the pod finds the pod's complete grant.
    pub(super) fn prepare(
        &mut self,
        slot: SlotId,
        holder: &Holder,
    ) -> Result<PrepareOutcome, Status> {
        let state = &mut self.state;
        let id = if let Some(id) = committed(&state.ledger, holder) {
            id
        } else if let Some(id) = reserved(&state.ledger, holder) {
            state.commit(id.clone(), AllocationOwner::Pod(holder.pod.clone()))?;
            id
        } else {
            if self.options.kubelet.unplaced == UnplacedPolicy::Deny {
                disagree(state, "unplaced");
            }
            return Ok(PrepareOutcome::Unplaced);
        };
        let name = format!("pod {}", holder.name.as_ref().unwrap_or(&holder.pod));
        state.grants.check(&id, &name, &state.accounts)?;
        state.grants.record_pod(&holder.pod);
        state.apply_slots(SlotEvent::Prepare {
            slot,
            pod: holder.pod.clone(),
            allocation: id,
        })?;
        state.grants.show_nri(state.grant_source());
        Ok(PrepareOutcome::Granted)
    }

    /// Processes a snapshot of the kubelet, and releases the allocations of pods that have left.
    pub(super) fn kubelet_polled(&mut self, kubelet: KubeletSnapshot) {
        if !self.state.grants.record_poll(&kubelet) {
            return;
        }
        release_gone(&mut self.state, &kubelet);
        foreign_cards::record(&mut self.state, &kubelet);
        self.state.record_claim_pods(&kubelet);
        self.whole_cards_polled(&kubelet);
        let state = &mut self.state;
        if kubelet.is_complete {
            let held = kubelet
                .held
                .into_iter()
                .map(|(slot, holder)| (slot, holder.pod))
                .collect();
            if let Err(problem) = state.apply_slots(SlotEvent::Held(held)) {
                error!(
                    problem = problem.message(),
                    "Failed to record the slot holders that the kubelet reports"
                );
            }
        }
        end_empty(state);
    }
}

/// Counts a pod that was bound to this node but does not match the ledger.
pub(super) fn disagree(state: &mut AgentState, kind: &'static str) {
    let disagreements = &mut state.publisher.stats().disagreements;
    *disagreements.entry(kind).or_default() += 1;
    state.show();
}

/// The holder's committed allocation. An allocation belongs to the whole pod, or to the container that it names.
fn committed(ledger: &Ledger, holder: &Holder) -> Option<AllocationId> {
    let owner = AllocationPhase::Allocated(AllocationOwner::Pod(holder.pod.clone()));
    let mut all = ledger.allocations().into_iter();
    let found = all.find(|of| of.state == owner && is_for(of, holder))?;
    Some(found.id.clone())
}

/// The holder's reservation. The scheduler commits it after binding, and the kubelet may be faster.
fn reserved(ledger: &Ledger, holder: &Holder) -> Option<AllocationId> {
    let mut all = ledger.allocations().into_iter();
    let found = all.find(|of| {
        of.key.split('/').next() == Some(&holder.pod)
            && matches!(of.state, AllocationPhase::Reserved { .. })
            && is_for(of, holder)
    })?;
    Some(found.id.clone())
}

/// Whether an allocation of the pod is for this container.
fn is_for(allocation: &Allocation, holder: &Holder) -> bool {
    let container = ContainerRef::of(&allocation.name).map_or("", |workload| workload.container);
    !allocation.is_whole && (container.is_empty() || holder.containers.contains(container))
}

/// Releases the allocations of pods that have left the node.
fn release_gone(state: &mut AgentState, kubelet: &KubeletSnapshot) {
    for PodAllocation { id, pod, created } in pods(&state.ledger) {
        let age = delivery::age(now(), created);
        let members = &mut state.members;
        if state
            .grants
            .is_gone(kubelet, &pod, age, || state::has_processes(members, &id))
        {
            state.apply_quietly(LedgerEvent::OwnerGone { id });
            state.grants.forget_pod(&pod);
        }
    }
}

/// All allocations of pods.
fn pods(ledger: &Ledger) -> Vec<PodAllocation> {
    let mut found = Vec::new();
    for allocation in ledger.allocations() {
        if let AllocationPhase::Allocated(AllocationOwner::Pod(pod)) = &allocation.state {
            found.push(PodAllocation {
                id: allocation.id.clone(),
                pod: pod.clone(),
                created: allocation.created,
            });
        }
    }
    found
}

/// Removes every draining allocation whose last process has ended.
fn end_empty(state: &mut AgentState) {
    let all = state.ledger.allocations().into_iter();
    let draining = all.filter(|allocation| allocation.state == AllocationPhase::Draining);
    let draining: Vec<_> = draining.map(|allocation| allocation.id.clone()).collect();
    draining.iter().for_each(|id| state.end_if_empty(id));
}
