//! Whole cards: makes holds for devices that the kubelet hands out, makes allocations for the pods that hold them,
//! and writes the CDI specs before a container starts. The ledger decides what to hold and to give.

use std::collections::BTreeMap;

use apportion_abi::{CardRequest, Share};
use apportion_ledger::{AllocationOwner, PlacementProposal, WholeCardId, WholeCardTable};
use apportion_runtime_class::Grant;
use apportion_runtime_class::cdi::CdiSpecLabel;
use tonic::Status;

use super::effects::RequestOutcome;
use super::*;
use crate::api::request::StartingContainer;
use crate::delivery::{GrantDelivery, WholeCardDelivery};
use crate::driver::topology;
use crate::kubelet::rival_owner::RivalOwner;
use crate::kubelet::snapshot::KubeletSnapshot;
use crate::kubelet::whole_card_holders::WholeCardHolder;
use crate::kubelet::whole_card_plugin::WholeCardOffers;

/// How long a card is held for a device whose pod is unknown. The kubelet reports the pod within moments.
const HELD: Duration = Duration::from_secs(600);
/// How long a reservation waits for its commit, which follows at once.
const TTL: Duration = Duration::from_secs(10);

impl NodeAgent {
    /// Records that another owner of this node's GPUs came or left.
    pub(crate) fn meet(&mut self, rival: Option<&RivalOwner>) {
        self.rival = rival.map(ToString::to_string);
        match &self.rival {
            Some(problem) => error!(problem, "GPUs of this node have another owner"),
            None => info!("Other owner of the GPUs gone, GPUs are granted again"),
        }
        self.show();
    }

    /// The refusal of new allocations while another plugin allocates GPUs.
    pub(super) fn yields(&mut self, key: &str) -> Option<Status> {
        let is_known = |of: &&Allocation| of.key == key;
        let rival = self.rival.clone()?;
        if self.ledger.allocations().iter().any(is_known) {
            return None;
        }
        *self
            .counts
            .refused
            .entry("other_device_plugin")
            .or_default() += 1;
        Some(Status::failed_precondition(rival))
    }

    /// Restores the table of an earlier agent.
    pub(super) fn resume_wholes(&mut self) {
        let book = WholeCardTable::resume(&self.ledger);
        if let Some(whole) = self.whole_mut() {
            whole.book = book;
        }
        self.offer_wholes();
    }

    /// Whether a CDI spec on disk belongs to a pod that still has its cards.
    pub(super) fn finds_whole(&self, delivery: &mut GrantDelivery, label: &CdiSpecLabel) -> bool {
        let id = AllocationId(label.allocation.clone());
        let owner = AllocationPhase::Allocated(AllocationOwner::Pod(label.pod.clone()));
        let is_its = self
            .ledger
            .allocation(&id)
            .is_some_and(|of| of.state == owner);
        match (label.slot.parse(), &mut delivery.whole) {
            (Ok(device), Some(whole)) if is_its => {
                whole.written.insert(device, id);
                true
            }
            _ => false,
        }
    }

    /// Handles the kubelet's `Allocate` for devices: holds cards for them, or refuses.
    pub(super) fn hand_whole(&mut self, ids: &[WholeCardId]) -> Result<(), Status> {
        if let Some(rival) = &self.rival {
            return Err(Status::failed_precondition(rival.clone()));
        }
        let topology = topology(&self.driver.cards);
        let Some(delivery) = &mut self.delivery else {
            return Err(Status::unavailable("whole GPUs are not served"));
        };
        let Some(whole) = &mut delivery.whole else {
            return Err(Status::unavailable("whole GPUs are not served"));
        };
        let handed = whole
            .book
            .hand(now(), &self.ledger, &delivery.slots, &topology, ids);
        let holds = match handed {
            Ok(holds) => holds,
            Err(refusal) => {
                info!(%refusal, "Whole GPUs unavailable");
                self.disagree("no_whole_card");
                return Err(Status::resource_exhausted(refusal.to_string()));
            }
        };
        for (id, card) in holds {
            let proposal = self.proposal(id.hold_key(), format!("whole GPU {id}"), &[card], HELD);
            self.allocate(proposal)?;
        }
        self.show();
        Ok(())
    }

    /// Makes sure that a container of the pod gets its own cards and no others.
    pub(super) fn prepare_whole(&mut self, starting: &StartingContainer) -> Result<(), Status> {
        let StartingContainer { pod, holder, ids } = starting;
        self.give_whole(pod, holder)?;
        let cards = self.ledger.cards_of(pod);
        let all: BTreeMap<WholeCardId, CardUuid> = holder.ids.iter().copied().zip(cards).collect();
        let its = ids.iter().filter_map(|id| all.get(id).copied()).collect();
        self.describe(pod, ids.iter().copied().collect(), its)
    }

    /// Gives a pod a card for each of its devices.
    fn give_whole(&mut self, pod: &str, holder: &WholeCardHolder) -> Result<(), Status> {
        let topology = topology(&self.driver.cards);
        let name = holder.name.clone().unwrap_or_else(|| pod.to_owned());
        let plan = self.ledger.plan_whole(&topology, pod, &holder.ids);
        let plan =
            plan.map_err(|refusal| Status::resource_exhausted(format!("pod {name}: {refusal}")))?;
        for id in plan.release {
            self.apply_quietly(LedgerEvent::Release { id });
        }
        let mut reserved = plan.commit;
        if let Some((key, cards)) = plan.ask {
            let proposal = self.proposal(key, name, &cards, TTL);
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
            self.commit(id, AllocationOwner::Pod(pod.to_owned()))?;
        }
        for card in self.ledger.cards_of(pod) {
            let given = self.ledger.whole_with(pod, card).cloned();
            let event = given.map(|id| LedgerEvent::GivenWhole { id });
            if let Some(RequestOutcome::Failed(problem)) = event.map(|event| self.apply(event)) {
                return Err(Status::internal(problem));
            }
        }
        Ok(())
    }

    fn proposal(
        &self,
        key: String,
        name: String,
        cards: &[CardUuid],
        ttl: Duration,
    ) -> PlacementProposal {
        let ask = |card: &CardUuid| CardRequest {
            card: *card,
            bytes: self
                .ledger
                .card(*card)
                .map_or(Bytes::ZERO, |of| of.capacity.allocatable()),
        };
        PlacementProposal {
            key,
            name,
            asks: cards.iter().map(ask).collect(),
            ttl,
        }
    }

    /// Writes the CDI specs of a container's devices. The first spec adds all cards; the others add no devices or
    /// mounts.
    fn describe(
        &mut self,
        pod: &str,
        ids: Vec<WholeCardId>,
        cards: Vec<CardUuid>,
    ) -> Result<(), Status> {
        let gone = || Status::internal("the pod's GPUs are no longer allocated to it");
        let first = cards
            .first()
            .and_then(|card| self.ledger.whole_with(pod, *card));
        let allocation = first.cloned().ok_or_else(gone)?;
        let granted = |card: &CardUuid| {
            let id = self.ledger.whole_with(pod, *card)?;
            let limit = self.ledger.allocation(id)?.grant(*card)?.limit;
            Some(self.granted(*card, limit))
        };
        let cards: Option<Vec<_>> = cards.iter().map(granted).collect();
        let grant = Grant {
            id: allocation.0.clone(),
            account: self.account_folder(&allocation).display().to_string(),
            library: String::new(),
            share: Share::Whole,
            cards: cards
                .filter(|cards| cards.len() == ids.len())
                .ok_or_else(gone)?,
        };
        let delivery = self.delivery.as_mut().ok_or_else(gone)?;
        let label = |id: &WholeCardId| CdiSpecLabel {
            slot: id.to_string(),
            pod: pod.to_owned(),
            allocation: allocation.0.clone(),
        };
        let labels: Vec<CdiSpecLabel> = ids.iter().map(label).collect();
        let written = delivery.write_whole(&labels, &grant);
        written.map_err(|problem| {
            Status::internal(format!(
                "failed to write the grant of whole GPUs: {problem}"
            ))
        })?;
        if let Some(whole) = &mut delivery.whole {
            let described = ids.into_iter().map(|id| (id, allocation.clone()));
            whole.written.extend(described);
        }
        self.show_second_lock();
        Ok(())
    }

    /// Processes the whole-card part of a kubelet snapshot.
    pub(super) fn wholes_seen(&mut self, seen: &KubeletSnapshot) {
        let (ledger, delivery) = (&self.ledger, &mut self.delivery);
        let Some(whole) = delivery.as_mut().and_then(|of| of.whole.as_mut()) else {
            return;
        };
        let pods = seen.whole.pods.iter();
        let held = pods.flat_map(|(pod, holder)| holder.ids.iter().map(|id| (*id, pod.clone())));
        let (held, contested) = (held.collect(), seen.whole.contested_ids());
        let outcome = whole
            .book
            .seen(now(), ledger, &held, &contested, seen.is_complete);
        for id in outcome.release {
            self.apply_quietly(LedgerEvent::Release { id });
        }
        for pod in outcome.give {
            let is_leaving = seen.ended.contains(&pod) || seen.ending.contains(&pod);
            if let Some(holder) = seen.whole.pods.get(&pod).filter(|_| !is_leaving)
                && let Err(problem) = self.give_whole(&pod, holder)
            {
                debug!(
                    pod,
                    problem = problem.message(),
                    "Pod has no whole GPUs yet"
                );
            }
        }
        self.offer_wholes();
    }

    /// Removes the CDI specs of an allocation that is gone.
    pub(super) fn whole_gone(&mut self, id: &AllocationId) {
        let Some(delivery) = &mut self.delivery else {
            return;
        };
        let Some(whole) = &mut delivery.whole else {
            return;
        };
        let of_it = whole
            .written
            .extract_if(.., |_, allocation| allocation == id);
        let gone: Vec<WholeCardId> = of_it.map(|(device, _)| device).collect();
        for device in gone {
            delivery.remove(&device.to_string());
        }
    }

    /// Updates the devices that are listed to the kubelet.
    pub(super) fn offer_wholes(&self) {
        let Some(delivery) = &self.delivery else {
            return;
        };
        let Some(whole) = &delivery.whole else {
            return;
        };
        let topology = topology(&self.driver.cards);
        let offers = WholeCardOffers {
            offers: whole.book.offers(&self.ledger, &delivery.slots, &topology),
            topology,
        };
        whole.offers.send_if_modified(|known| {
            let is_other = **known != offers;
            if is_other {
                *known = Arc::new(offers);
            }
            is_other
        });
    }

    fn whole_mut(&mut self) -> Option<&mut WholeCardDelivery> {
        self.delivery.as_mut()?.whole.as_mut()
    }
}
