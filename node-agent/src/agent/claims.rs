//! Resource claims: a claim gets its grant when the kubelet prepares it, and gives it back when the kubelet has ended
//! its last container. All pods of a claim share its account.

use std::time::Duration;

use apportion_abi::{BurstTerms, CardRequest, whole_units};
use apportion_ledger::{
    Allocation, AllocationId, AllocationOwner, AllocationPhase, ClaimOwner, Ledger, LedgerEvent,
    PlacementProposal,
};
use apportion_proto::v1;
use tonic::Status;
use tracing::{info, warn};

use super::NodeAgent;
use super::deliver::disagree;
use super::grants::GrantSource;
use super::respond::yields;
use super::state::{AgentState, RequestOutcome};
use crate::claims::claim_request::ClaimRequest;
use crate::kubelet::snapshot::KubeletSnapshot;

/// How long a reservation waits for its commit, which follows at once.
const TTL: Duration = Duration::from_secs(10);

impl NodeAgent {
    /// Makes sure that the claim has its grant. Returns the name of its CDI device.
    pub(super) fn prepare_claim(&mut self, request: &ClaimRequest) -> Result<String, Status> {
        let claim = &request.owner;
        let key = ClaimOwner::key(&claim.uid);
        self.state.grants.can_serve_claims()?;
        if let Some(refusal) = yields(&mut self.state, &key) {
            return Err(refusal);
        }
        let asks = self.whole_asks(&request.asks);
        let id = match with_key(&self.state.ledger, &key) {
            Some(known) if has_cards(known, &asks) => known.id.clone(),
            Some(known) => {
                let id = known.id.clone();
                warn!(claim = claim.name, %id, "ResourceClaim was allocated anew, its earlier allocation is released");
                self.state
                    .apply_quietly(LedgerEvent::OwnerGone { id: id.clone() });
                self.state.end_if_empty(&id);
                return Err(Status::failed_precondition(format!(
                    "the earlier GPUs of ResourceClaim {} are being released",
                    claim.name
                )));
            }
            None => self.reserve_claim(claim, key, asks)?,
        };
        let owner = AllocationOwner::Claim(claim.clone());
        self.state.commit(id.clone(), owner)?;
        if self.takes_whole_cards(&id) {
            let outcome = self.state.apply(LedgerEvent::GivenWhole { id: id.clone() });
            if let RequestOutcome::Failed(problem) = outcome {
                return Err(Status::internal(problem));
            }
        }
        let device = self.state.write_claim(&id)?;
        self.state.grants.show_nri(self.state.grant_source());
        Ok(device)
    }

    /// Takes back the grant of a claim. Its memory stays held until its last process has ended.
    pub(super) fn unprepare_claim(&mut self, uid: &str) -> Result<(), Status> {
        let key = ClaimOwner::key(uid);
        let Some(id) = with_key(&self.state.ledger, &key).map(|known| known.id.clone()) else {
            return Ok(());
        };
        self.state.grants.claim_gone(&id);
        let outcome = self.state.apply(LedgerEvent::Release { id: id.clone() });
        if let RequestOutcome::Failed(problem) = outcome {
            return Err(Status::internal(problem));
        }
        info!(claim = uid, %id, "ResourceClaim unprepared");
        self.state.end_if_empty(&id);
        self.state.show();
        Ok(())
    }

    fn reserve_claim(
        &mut self,
        claim: &ClaimOwner,
        key: String,
        asks: Vec<CardRequest>,
    ) -> Result<AllocationId, Status> {
        use v1::allocate_reply::Result as Reply;
        let proposal = PlacementProposal {
            key,
            // Events, metrics and people look for a pod.
            name: claim.pods.values().next().unwrap_or(&claim.name).clone(),
            asks,
            ceilings: Vec::new(),
            terms: BurstTerms::default(),
            ttl: TTL,
            idle_after: None,
        };
        let reply = self.allocate(proposal);
        match reply
            .inspect_err(|_| disagree(&mut self.state, "claim"))?
            .result
        {
            Some(Reply::Allocation(made)) => Ok(AllocationId(made.id)),
            Some(Reply::Shortfall(shortfall)) => {
                disagree(&mut self.state, "claim");
                Err(Status::resource_exhausted(format!(
                    "ResourceClaim {}: {}",
                    claim.name, shortfall.sentence
                )))
            }
            None => Err(Status::internal("the agent's answer is empty")),
        }
    }

    /// The requests, where one for all units of a card is one for all its bytes.
    fn whole_asks(&self, asks: &[CardRequest]) -> Vec<CardRequest> {
        asks.iter()
            .map(|ask| {
                let card = self.state.ledger.card(ask.card);
                let all = card.map(|card| card.capacity.allocatable());
                match all.filter(|all| ask.bytes >= whole_units(*all)) {
                    Some(bytes) => CardRequest { bytes, ..*ask },
                    None => *ask,
                }
            })
            .collect()
    }

    /// Whether the claim has all of each of its cards. Otherwise it has shares, with limits.
    fn takes_whole_cards(&self, id: &AllocationId) -> bool {
        let ledger = &self.state.ledger;
        let grants = ledger.allocation(id).map(|of| of.grants.as_slice());
        grants.unwrap_or_default().iter().all(|grant| {
            let card = ledger.card(grant.card);
            card.is_some_and(|card| grant.limit >= card.capacity.allocatable())
        })
    }
}

impl AgentState {
    /// Writes the CDI spec of a claim. Returns its device name.
    fn write_claim(&mut self, id: &AllocationId) -> Result<String, Status> {
        let source = GrantSource {
            ledger: &self.ledger,
            accounts: &self.accounts,
            cards: &self.cards,
            costs: &self.costs,
            limits: &self.limits,
        };
        self.grants.write_claim(id, source)
    }

    /// Writes the CDI specs of all claims. A container that restarts does not ask for its claim again, and the library
    /// of the agent before is gone.
    pub(super) fn write_claims(&mut self) {
        let all = self.ledger.allocations().into_iter();
        let all = all.filter(|of| of.claim().is_some());
        let ids: Vec<AllocationId> = all.map(|of| of.id.clone()).collect();
        for id in ids {
            if let Err(problem) = self.write_claim(&id) {
                warn!(%id, problem = problem.message(), "Failed to write the grant of a ResourceClaim");
            }
        }
    }

    /// Records the pods that the kubelet reports for claims: for the second and later pods of a claim it prepares nothing.
    pub(super) fn record_claim_pods(&mut self, kubelet: &KubeletSnapshot) {
        let mut changed = Vec::new();
        for allocation in self.ledger.allocations() {
            let Some(claim) = allocation.claim() else {
                continue;
            };
            let pods = kubelet.claims.get(&claim.name).cloned().unwrap_or_default();
            if pods.keys().any(|uid| !claim.pods.contains_key(uid)) {
                let claim = ClaimOwner {
                    pods,
                    ..claim.clone()
                };
                changed.push((allocation.id.clone(), claim));
            }
        }
        for (id, claim) in changed {
            if let Err(problem) = self.commit(id, AllocationOwner::Claim(claim)) {
                warn!(
                    problem = problem.message(),
                    "Failed to record a pod of a ResourceClaim"
                );
            }
        }
    }
}

fn with_key<'a>(ledger: &'a Ledger, key: &str) -> Option<&'a Allocation> {
    let mut all = ledger.allocations().into_iter();
    all.find(|allocation| allocation.key == key)
}

/// Whether the allocation is for these requests. One that is draining is answered as such by its commit.
fn has_cards(known: &Allocation, asks: &[CardRequest]) -> bool {
    known.state == AllocationPhase::Draining
        || (known.grants.len() == asks.len()
            && asks.iter().all(|ask| {
                let grant = known.grant(ask.card);
                grant.is_some_and(|grant| grant.limit == ask.bytes)
            }))
}
