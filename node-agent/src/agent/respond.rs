//! Answers the requests that change something.

use apportion_ledger::{
    AllocationId, AllocationOwner, AllocationRefusal, LedgerEvent, PlacementProposal, SlotEvent,
    SlotId,
};
use apportion_proto::v1;
use tonic::Status;
use tracing::{error, info, warn};

use super::NodeAgent;
use super::state::{AgentState, RequestOutcome};
use crate::api::request::AgentRequest;
use crate::api::tenant::TenantUid;
use crate::api::wire::{self, NewSizes};
use crate::kubelet::allocate_strategy::AllocateStrategy;
use crate::kubelet::rival_owner::RivalOwner;
use crate::runtime::cri::RuntimeCapabilities;
use crate::telemetry::metrics;

impl NodeAgent {
    pub(super) fn respond(&mut self, request: AgentRequest) {
        match request {
            AgentRequest::Allocate(proposal, patience, answer) => {
                if let Some(refusal) = yields(&mut self.state, &proposal.key) {
                    let _ = answer.send(Err(refusal));
                    return;
                }
                if let Err(refusal) = self.may_sleep_when_idle(&proposal, patience) {
                    let _ = answer.send(Err(refusal));
                    return;
                }
                let (costs, cards) = (&self.state.costs, &self.state.cards);
                let mut asks = proposal.asks.iter();
                if let Some(unknown) = asks.find(|ask| costs.must_probe(cards, ask.card)) {
                    let card = unknown.card;
                    let request = AgentRequest::Allocate(proposal, patience, answer);
                    let step = self.state.costs.wait(request, &self.state.cards, card);
                    self.follow(step);
                    return;
                }
                self.allocate_or_call_in(proposal, patience, answer);
            }
            AgentRequest::Commit(id, owner, answer) => {
                drop(answer.send(self.state.commit(id, owner)));
            }
            AgentRequest::Release(id, answer) => drop(answer.send(release(&mut self.state, id))),
            AgentRequest::Resize(id, sizes, answer) => drop(answer.send(self.resize(id, sizes))),
            AgentRequest::Suspend(id, caller, answer) => self.suspend(id, caller, answer),
            AgentRequest::Resume(id, answer) => self.resume(id, answer),
            AgentRequest::Runtime(facts, answer) => {
                drop(answer.send(settle(&mut self.state, &facts)));
            }
            AgentRequest::Handed(slot) => handed(&mut self.state, slot),
            AgentRequest::Prepare(slot, holder, answer) => {
                drop(answer.send(self.prepare(slot, &holder)));
            }
            AgentRequest::Kubelet(event) => self.state.publisher.stats().kubelet.enter(event),
            AgentRequest::Rival(rival) => self.meet(rival.as_ref()),
            AgentRequest::HandWhole(ids, answer) => drop(answer.send(self.hand_whole(&ids))),
            AgentRequest::PrepareWhole(starting, answer) => {
                drop(answer.send(self.prepare_whole(&starting)));
            }
            AgentRequest::PrepareClaim(request, answer) => {
                let (costs, cards) = (&self.state.costs, &self.state.cards);
                let mut asks = request.asks.iter();
                if let Some(unknown) = asks.find(|ask| costs.must_probe(cards, ask.card)) {
                    let card = unknown.card;
                    let request = AgentRequest::PrepareClaim(request, answer);
                    let step = self.state.costs.wait(request, &self.state.cards, card);
                    self.follow(step);
                    return;
                }
                let _ = answer.send(self.prepare_claim(&request));
            }
            AgentRequest::UnprepareClaim(uid, answer) => {
                drop(answer.send(self.unprepare_claim(&uid)));
            }
            AgentRequest::KubeletPolled(seen) => self.kubelet_polled(seen),
        }
    }

    /// Records that another owner of this node's GPUs came or left.
    pub(crate) fn meet(&mut self, rival: Option<&RivalOwner>) {
        let rival = rival.map(ToString::to_string);
        match &rival {
            Some(problem) => error!(problem, "GPUs of this node have another owner"),
            None => info!("Other owner of the GPUs gone, GPUs are granted again"),
        }
        self.state.grants.set_rival(rival);
        self.state.show();
    }

    pub(super) fn allocate(
        &mut self,
        proposal: PlacementProposal,
    ) -> Result<v1::AllocateReply, Status> {
        use v1::allocate_reply::Result as Reply;
        let key = proposal.key.clone();
        let may = self.is_within_quota(&proposal);
        may.inspect_err(|_| count_refusal(&mut self.state, metrics::QUOTA))?;
        let outcome = self.state.apply(LedgerEvent::Allocate(proposal));
        count(&mut self.state, &outcome);
        let result = match outcome {
            RequestOutcome::Answered(Ok(id)) => Reply::Allocation(self.state.found(&id)?),
            RequestOutcome::Answered(Err(AllocationRefusal::Shortfall(shortfall))) => {
                info!(key, %shortfall, "Allocation refused");
                Reply::Shortfall(wire::shortfall(&shortfall))
            }
            RequestOutcome::Answered(Err(refusal)) => {
                return Err(wire::status(&refusal));
            }
            RequestOutcome::Failed(problem) => {
                take_back(&mut self.state, &key);
                return Err(Status::internal(problem));
            }
        };
        self.state.show();
        Ok(v1::AllocateReply {
            result: Some(result),
        })
    }

    /// Refuses what is above the quota of its user.
    pub(super) fn is_within_quota(&self, proposal: &PlacementProposal) -> Result<(), Status> {
        let Some(tenant) = TenantUid::of(&proposal.key) else {
            return Ok(());
        };
        // A retry gets the existing allocation and is not counted against the quota.
        if self.state.ledger.is_known(&proposal.key) {
            return Ok(());
        }
        let all = self.state.ledger.allocations();
        let quota = self.options.api.user_quota;
        tenant.may_have(&proposal.asks, &proposal.ceilings, &all, None, quota)
    }

    fn resize(&mut self, id: AllocationId, sizes: NewSizes) -> Result<v1::ResizeReply, Status> {
        use v1::resize_reply::Result as Reply;
        let NewSizes { asks, ceilings } = sizes;
        let all = self.state.ledger.allocations();
        let found = self.state.ledger.allocation(&id);
        if let Some(tenant) = found.and_then(|found| TenantUid::of(&found.key)) {
            let quota = self.options.api.user_quota;
            tenant.may_have(&asks, &ceilings, &all, Some(&id), quota)?;
        }
        let cards = asks.iter().map(|ask| ask.card).collect();
        let result = match self.state.apply(LedgerEvent::Resize {
            id: id.clone(),
            asks,
            ceilings,
        }) {
            RequestOutcome::Answered(Err(AllocationRefusal::Shortfall(shortfall))) => {
                Reply::Shortfall(wire::shortfall(&shortfall))
            }
            outcome => {
                answered(outcome)?;
                Reply::Allocation(self.state.found(&id)?)
            }
        };
        self.state.show_reachable(&cards);
        // Only a sample that begins after the shrink shows what it has freed.
        self.state.sample();
        Ok(v1::ResizeReply {
            result: Some(result),
        })
    }
}

impl AgentState {
    /// Commits an allocation to its owner.
    pub(super) fn commit(
        &mut self,
        id: AllocationId,
        owner: AllocationOwner,
    ) -> Result<v1::CommitReply, Status> {
        let outcome = self.apply(LedgerEvent::Commit {
            id: id.clone(),
            owner: owner.clone(),
        });
        answered(outcome)?;
        self.give_account(&id);
        match owner {
            AllocationOwner::Process(process) => {
                self.members.join(process, &id);
                self.members.follow();
            }
            AllocationOwner::Pod(pod) => self.members.enter_pods([pod], &id),
            AllocationOwner::Claim(claim) => self.members.enter_pods(claim.pods.into_keys(), &id),
        }
        self.show();
        Ok(v1::CommitReply {
            allocation: Some(self.found(&id)?),
        })
    }
}

/// The refusal of new allocations while another plugin allocates GPUs.
pub(super) fn yields(state: &mut AgentState, key: &str) -> Option<Status> {
    let rival = state.grants.rival()?.to_owned();
    let all = state.ledger.allocations();
    if all.iter().any(|allocation| allocation.key == key) {
        return None;
    }
    count_refusal(state, "other_device_plugin");
    Some(Status::failed_precondition(rival))
}

fn count(state: &mut AgentState, outcome: &RequestOutcome) {
    match outcome {
        RequestOutcome::Answered(Ok(_)) => state.publisher.stats().accepted += 1,
        RequestOutcome::Answered(Err(refusal)) => count_refusal(state, metrics::reason(refusal)),
        RequestOutcome::Failed(_) => count_refusal(state, metrics::FAILED),
    }
}

fn count_refusal(state: &mut AgentState, reason: &'static str) {
    let refused = &mut state.publisher.stats().refused;
    *refused.entry(reason).or_default() += 1;
}

/// Releases the allocation of a request that failed half-way.
fn take_back(state: &mut AgentState, key: &str) {
    let all = state.ledger.allocations().into_iter();
    let made = all
        .filter(|allocation| allocation.key == key)
        .map(|allocation| allocation.id.clone())
        .next();
    if let Some(id) = made {
        state.apply_quietly(LedgerEvent::Release { id });
    }
}

fn release(state: &mut AgentState, id: AllocationId) -> Result<v1::ReleaseReply, Status> {
    answered(state.apply(LedgerEvent::Release { id: id.clone() }))?;
    state.end_if_empty(&id);
    Ok(v1::ReleaseReply {
        gone: state.ledger.allocation(&id).is_none(),
    })
}

/// Chooses the delivery strategy for the container runtime.
fn settle(state: &mut AgentState, facts: &RuntimeCapabilities) -> Result<AllocateStrategy, Status> {
    let settled = state.grants.settle(facts);
    if state.grants.is_served() {
        state.publisher.stats().has_cdi = Some(facts.has_cdi);
    }
    settled
}

/// A new container starts without a grant, whatever pod held the slot before.
fn handed(state: &mut AgentState, slot: SlotId) {
    state.grants.remove(slot);
    if let Err(problem) = state.apply_slots(SlotEvent::Handed(slot)) {
        warn!(%slot, problem = problem.message(), "Kubelet allocated a slot that was not offered");
    }
}

fn answered(outcome: RequestOutcome) -> Result<AllocationId, Status> {
    match outcome {
        RequestOutcome::Answered(answer) => answer.map_err(|refusal| wire::status(&refusal)),
        RequestOutcome::Failed(problem) => Err(Status::internal(problem)),
    }
}
