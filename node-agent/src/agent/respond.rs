//! Answers the requests that change something.

use super::effects::RequestOutcome;
use super::*;
use crate::api::tenant::TenantUid;
use crate::api::wire;
use crate::telemetry::metrics;
use tonic::Status;

impl NodeAgent {
    pub(super) fn respond(&mut self, request: AgentRequest) {
        match request {
            AgentRequest::Allocate(proposal, answer) => {
                if let Some(refusal) = self.yields(&proposal.key) {
                    let _ = answer.send(Err(refusal));
                    return;
                }
                let unknown = proposal.asks.iter().find(|ask| self.must_probe(ask.card));
                if let Some(card) = unknown.map(|ask| ask.card) {
                    self.waiting.push(AgentRequest::Allocate(proposal, answer));
                    self.start_probe(card);
                    return;
                }
                let reply = self.allocate(proposal);
                let _ = answer.send(reply);
            }
            AgentRequest::Commit(id, owner, answer) => drop(answer.send(self.commit(id, owner))),
            AgentRequest::Release(id, answer) => drop(answer.send(self.release(id))),
            AgentRequest::Resize(id, asks, answer) => drop(answer.send(self.resize(id, asks))),
            AgentRequest::Runtime(facts, answer) => drop(answer.send(self.settle(&facts))),
            AgentRequest::Handed(slot) => self.handed(slot),
            AgentRequest::Prepare(slot, holder, answer) => {
                drop(answer.send(self.prepare(slot, &holder)));
            }
            AgentRequest::Kubelet(news) => self.counts.kubelet.enter(news),
            AgentRequest::Rival(rival) => self.meet(rival.as_ref()),
            AgentRequest::HandWhole(ids, answer) => drop(answer.send(self.hand_whole(&ids))),
            AgentRequest::PrepareWhole(starting, answer) => {
                drop(answer.send(self.prepare_whole(&starting)));
            }
            AgentRequest::Seen(seen) => self.kubelet_seen(seen),
        }
    }

    pub(super) fn allocate(
        &mut self,
        proposal: apportion_ledger::PlacementProposal,
    ) -> Result<v1::AllocateReply, Status> {
        use v1::allocate_reply::Result as Reply;
        let key = proposal.key.clone();
        if let Some(tenant) = TenantUid::of(&key) {
            let all = self.ledger.allocations();
            // A retry gets the existing allocation and is not counted against the quota.
            if !all.iter().any(|allocation| allocation.key == key) {
                let quota = self.options.user_quota;
                let may = tenant.may_have(&proposal.asks, &all, None, quota);
                may.inspect_err(|_| *self.counts.refused.entry(metrics::QUOTA).or_default() += 1)?;
            }
        }
        let outcome = self.apply(LedgerEvent::Allocate(proposal));
        self.count(&outcome);
        let result = match outcome {
            RequestOutcome::Answered(Ok(id)) => Reply::Allocation(self.found(&id)?),
            RequestOutcome::Answered(Err(AllocationRefusal::Shortfall(shortfall))) => {
                info!(key, %shortfall, "Allocation refused");
                Reply::Shortfall(wire::shortfall(&shortfall))
            }
            RequestOutcome::Answered(Err(refusal)) => {
                return Err(wire::status(&refusal));
            }
            RequestOutcome::Failed(problem) => {
                self.take_back(&key);
                return Err(Status::internal(problem));
            }
        };
        self.show();
        Ok(v1::AllocateReply {
            result: Some(result),
        })
    }

    fn count(&mut self, outcome: &RequestOutcome) {
        let reason = match outcome {
            RequestOutcome::Answered(Ok(_)) => {
                self.counts.accepted += 1;
                return;
            }
            RequestOutcome::Answered(Err(refusal)) => metrics::reason(refusal),
            RequestOutcome::Failed(_) => metrics::FAILED,
        };
        *self.counts.refused.entry(reason).or_default() += 1;
    }

    /// Releases the allocation of a request that failed half-way.
    fn take_back(&mut self, key: &str) {
        let made = self
            .ledger
            .allocations()
            .into_iter()
            .find(|allocation| allocation.key == key);
        if let Some(id) = made.map(|allocation| allocation.id.clone()) {
            self.apply_quietly(LedgerEvent::Release { id });
        }
    }

    pub(super) fn commit(
        &mut self,
        id: AllocationId,
        owner: apportion_ledger::AllocationOwner,
    ) -> Result<v1::CommitReply, Status> {
        let outcome = self.apply(LedgerEvent::Commit {
            id: id.clone(),
            owner: owner.clone(),
        });
        answered(outcome)?;
        self.give_account(&id);
        match owner {
            apportion_ledger::AllocationOwner::Process(process) => {
                self.members.join(process, &id);
                self.members.follow();
            }
            apportion_ledger::AllocationOwner::Pod(pod) => self.members.enter_pod(pod, &id),
        }
        self.show();
        Ok(v1::CommitReply {
            allocation: Some(self.found(&id)?),
        })
    }

    fn release(&mut self, id: AllocationId) -> Result<v1::ReleaseReply, Status> {
        answered(self.apply(LedgerEvent::Release { id: id.clone() }))?;
        self.end_if_empty(&id);
        Ok(v1::ReleaseReply {
            gone: self.ledger.allocation(&id).is_none(),
        })
    }

    fn resize(
        &mut self,
        id: AllocationId,
        asks: Vec<apportion_abi::CardRequest>,
    ) -> Result<v1::ResizeReply, Status> {
        use v1::resize_reply::Result as Reply;
        let all = self.ledger.allocations();
        let found = self.ledger.allocation(&id);
        if let Some(tenant) = found.and_then(|found| TenantUid::of(&found.key)) {
            tenant.may_have(&asks, &all, Some(&id), self.options.user_quota)?;
        }
        let result = match self.apply(LedgerEvent::Resize {
            id: id.clone(),
            asks,
        }) {
            RequestOutcome::Answered(Err(AllocationRefusal::Shortfall(shortfall))) => {
                Reply::Shortfall(wire::shortfall(&shortfall))
            }
            outcome => {
                answered(outcome)?;
                Reply::Allocation(self.found(&id)?)
            }
        };
        // Only a sample that begins after the shrink shows what it has freed.
        self.sample();
        Ok(v1::ResizeReply {
            result: Some(result),
        })
    }

    fn found(&self, id: &AllocationId) -> Result<v1::Allocation, Status> {
        let allocation = self.ledger.allocation(id);
        let gone = || Status::not_found(format!("there is no allocation {id}"));
        allocation
            .map(|allocation| self.seen(allocation))
            .ok_or_else(gone)
    }
}

fn answered(outcome: RequestOutcome) -> Result<AllocationId, Status> {
    match outcome {
        RequestOutcome::Answered(answer) => answer.map_err(|refusal| wire::status(&refusal)),
        RequestOutcome::Failed(problem) => Err(Status::internal(problem)),
    }
}
