//! Whole cards: makes holds for devices that the kubelet hands out, makes allocations for the pods that hold them,
//! and has the CDI specs written before a container starts. The ledger decides what to hold and to give.

use std::collections::BTreeMap;
use std::time::Duration;

use apportion_abi::{BurstTerms, Bytes, CardRequest, CardUuid};
use apportion_ledger::{
    AllocationId, AllocationOwner, Ledger, LedgerEvent, PlacementProposal, WholeCardId,
};
use apportion_proto::v1;
use tonic::Status;
use tracing::{debug, info};

use super::NodeAgent;
use super::deliver::disagree;
use super::grants::{ContainerDevices, GrantSource};
use super::state::RequestOutcome;
use crate::api::request::StartingContainer;
use crate::kubelet::snapshot::KubeletSnapshot;
use crate::kubelet::whole_card_holders::WholeCardHolder;

/// How long a card is held for a device whose pod is unknown. The kubelet reports the pod within moments.
const HELD: Duration = Duration::from_secs(600);
/// How long a reservation waits for its commit, which follows at once.
const TTL: Duration = Duration::from_secs(10);

impl NodeAgent {
    /// Handles the kubelet's `Allocate` for devices: holds cards for them, or refuses.
    pub(super) fn hand_whole(&mut self, ids: &[WholeCardId]) -> Result<(), Status> {
        let state = &mut self.state;
        if let Some(rival) = state.grants.rival() {
            return Err(Status::failed_precondition(rival));
        }
        let handed = state.grants.hand(ids, &state.ledger, &state.cards)?;
        let holds = match handed {
            Ok(holds) => holds,
            Err(refusal) => {
                info!(%refusal, "Whole GPUs unavailable");
                disagree(state, "no_whole_card");
                return Err(Status::resource_exhausted(refusal.to_string()));
            }
        };
        for (id, card) in holds {
            let name = format!("whole GPU {id}");
            let hold = proposal(&self.state.ledger, id.hold_key(), name, &[card], HELD);
            self.allocate(hold)?;
        }
        self.state.show();
        Ok(())
    }

    /// Makes sure that a container of the pod gets its own cards and no others.
    pub(super) fn prepare_whole(&mut self, starting: &StartingContainer) -> Result<(), Status> {
        let StartingContainer { pod, holder, ids } = starting;
        self.give_whole(pod, holder)?;
        let state = &mut self.state;
        let cards = state.ledger.cards_of(pod);
        let all: BTreeMap<WholeCardId, CardUuid> = holder.ids.iter().copied().zip(cards).collect();
        let devices = ContainerDevices {
            pod,
            ids: ids.iter().copied().collect(),
            cards: ids.iter().filter_map(|id| all.get(id).copied()).collect(),
        };
        let source = GrantSource {
            ledger: &state.ledger,
            accounts: &state.accounts,
            cards: &state.cards,
            costs: &state.costs,
            limits: &state.limits,
        };
        state.grants.describe(devices, source)?;
        state.grants.show_nri(state.grant_source());
        Ok(())
    }

    /// Gives a pod a card for each of its devices.
    fn give_whole(&mut self, pod: &str, holder: &WholeCardHolder) -> Result<(), Status> {
        let topology = self.state.cards.topology();
        let name = holder.name.clone().unwrap_or_else(|| pod.to_owned());
        let plan = self.state.ledger.plan_whole(&topology, pod, &holder.ids);
        let plan =
            plan.map_err(|refusal| Status::resource_exhausted(format!("pod {name}: {refusal}")))?;
        for id in plan.release {
            self.state.apply_quietly(LedgerEvent::Release { id });
        }
        let mut reserved = plan.commit;
        if let Some((key, cards)) = plan.ask {
            let proposal = proposal(&self.state.ledger, key, name, &cards, TTL);
            match self.allocate(proposal)?.result {
                Some(v1::allocate_reply::Result::Allocation(made)) => {
                    reserved.push(AllocationId(made.id));
                }
                Some(v1::allocate_reply::Result::Shortfall(shortfall)) => {
                    return Err(Status::resource_exhausted(shortfall.sentence));
                }
                None => return Err(Status::internal("the agent's answer is empty")),
            }
        }
        for id in reserved {
            self.state
                .commit(id, AllocationOwner::Pod(pod.to_owned()))?;
        }
        for card in self.state.ledger.cards_of(pod) {
            let given = self.state.ledger.whole_with(pod, card).cloned();
            let Some(id) = given else {
                continue;
            };
            let outcome = self.state.apply(LedgerEvent::GivenWhole { id });
            if let RequestOutcome::Failed(problem) = outcome {
                return Err(Status::internal(problem));
            }
        }
        Ok(())
    }

    /// Processes the whole-card part of a kubelet snapshot.
    pub(super) fn whole_cards_polled(&mut self, kubelet: &KubeletSnapshot) {
        let Some(update) = self
            .state
            .grants
            .whole_cards_polled(kubelet, &self.state.ledger)
        else {
            return;
        };
        for id in update.release {
            self.state.apply_quietly(LedgerEvent::Release { id });
        }
        for pod in update.give {
            if kubelet.ended.contains(&pod) || kubelet.ending.contains(&pod) {
                continue;
            }
            let Some(holder) = kubelet.whole.pods.get(&pod) else {
                continue;
            };
            if let Err(problem) = self.give_whole(&pod, holder) {
                debug!(
                    pod,
                    problem = problem.message(),
                    "Pod has no whole GPUs yet"
                );
            }
        }
        let state = &self.state;
        state.grants.offer_wholes(&state.ledger, &state.cards);
    }
}

/// A request for all memory of these cards.
fn proposal(
    ledger: &Ledger,
    key: String,
    name: String,
    cards: &[CardUuid],
    ttl: Duration,
) -> PlacementProposal {
    PlacementProposal {
        key,
        name,
        asks: cards
            .iter()
            .map(|card| CardRequest {
                card: *card,
                bytes: ledger
                    .card(*card)
                    .map_or(Bytes::ZERO, |of| of.capacity.allocatable()),
            })
            .collect(),
        ceilings: Vec::new(),
        terms: BurstTerms::default(),
        ttl,
        idle_after: None,
    }
}
