//! Turns reports of the kubelet into grants. A slot gets its grant when the container that holds it is about to
//! start, and loses it when the pod has left.

use apportion_abi::{CardUuid, ContainerRef, Share};
use apportion_exit::error_chain;
use apportion_ledger::{AllocationOwner, SlotEffect, SlotId, SlotState};
use apportion_runtime_class::cdi::CdiSpecLabel;
use apportion_runtime_class::{Grant, GrantedCard};
use tonic::Status;
use tracing::debug;

use super::*;
use crate::api::request::PrepareOutcome;
use crate::delivery::library::LibraryFault;
use crate::delivery::{self, GrantDelivery};
use crate::kubelet::allocate_strategy::AllocateStrategy;
use crate::kubelet::snapshot::{Holder, KubeletSnapshot};
use crate::options::UnplacedPolicy;
use crate::runtime::cri::RuntimeCapabilities;

impl NodeAgent {
    /// Takes over the grants of the previous agent and delivers from here on.
    pub(crate) fn deliver(&mut self, mut delivery: GrantDelivery) {
        for label in delivery.found() {
            match self.found_slot(&label) {
                Some(event) => {
                    delivery.shown.insert(label.pod);
                    let _ = delivery.slots.apply(event);
                }
                None if self.finds_whole(&mut delivery, &label) => {
                    delivery.shown.insert(label.pod);
                }
                None => {
                    info!(slot = label.slot, pod = label.pod, "Stale grant removed");
                    delivery.remove(&label.slot);
                }
            }
        }
        delivery.offer();
        self.delivery = Some(delivery);
        self.resume_wholes();
        self.show_second_lock();
    }

    /// A grant on disk is valid as long as its pod owns the allocation.
    fn found_slot(&self, label: &CdiSpecLabel) -> Option<SlotEvent> {
        let slot = label.slot.parse().ok()?;
        let id = AllocationId(label.allocation.clone());
        let owner = AllocationPhase::Allocated(AllocationOwner::Pod(label.pod.clone()));
        let allocation = self.ledger.allocation(&id)?;
        (allocation.state == owner).then(|| SlotEvent::Found {
            slot,
            pod: label.pod.clone(),
            allocation: id,
        })
    }

    /// Chooses the delivery strategy for the container runtime.
    pub(super) fn settle(
        &mut self,
        facts: &RuntimeCapabilities,
    ) -> Result<AllocateStrategy, Status> {
        let delivery = self.delivery.as_mut();
        let delivery =
            delivery.ok_or_else(|| Status::internal("this agent runs without --kubelet-dir"))?;
        self.counts.has_cdi = Some(facts.has_cdi);
        let settled = delivery.settle(facts);
        settled.map_err(|error| Status::failed_precondition(error_chain(&error)))
    }

    pub(super) fn handed(&mut self, slot: SlotId) {
        // A new container starts without a grant, whoever held the slot before.
        self.delivery
            .iter()
            .for_each(|of| of.remove(&slot.to_string()));
        if let Err(problem) = self.apply_slots(SlotEvent::Handed(slot)) {
            warn!(%slot, problem = problem.message(), "Kubelet allocated a slot that was not offered");
        }
    }

    /// Makes sure that a container of the pod finds the pod's complete grant.
    pub(super) fn prepare(
        &mut self,
        slot: SlotId,
        holder: &Holder,
    ) -> Result<PrepareOutcome, Status> {
        let Some((id, is_reserved)) = self.placed(holder) else {
            if self.options.kubelet.unplaced == UnplacedPolicy::Deny {
                self.disagree("unplaced");
            }
            return Ok(PrepareOutcome::Unplaced);
        };
        if is_reserved {
            self.commit(id.clone(), AllocationOwner::Pod(holder.pod.clone()))?;
        }
        self.check(&id, holder)?;
        if let Some(delivery) = &mut self.delivery {
            delivery.shown.insert(holder.pod.clone());
        }
        let pod = holder.pod.clone();
        self.apply_slots(SlotEvent::Prepare {
            slot,
            pod,
            allocation: id,
        })?;
        self.show_second_lock();
        Ok(PrepareOutcome::Granted)
    }

    /// Counts a pod that was bound to this node but does not match the ledger.
    pub(super) fn disagree(&mut self, kind: &'static str) {
        *self.counts.disagreements.entry(kind).or_default() += 1;
        self.show();
    }

    /// The holder's allocation, and whether it is still a reservation in the pod's name. The scheduler commits it
    /// after binding, and the kubelet may be faster. An allocation belongs to the whole pod, or to the container
    /// that it names.
    fn placed(&self, holder: &Holder) -> Option<(AllocationId, bool)> {
        let owner = AllocationPhase::Allocated(AllocationOwner::Pod(holder.pod.clone()));
        let is_its = |allocation: &&&Allocation| {
            let container =
                ContainerRef::of(&allocation.name).map_or("", |workload| workload.container);
            !allocation.is_whole && (container.is_empty() || holder.containers.contains(container))
        };
        let all = self.ledger.allocations();
        let committed = all
            .iter()
            .filter(is_its)
            .find(|allocation| allocation.state == owner);
        let reserved = all.iter().filter(is_its).find(|allocation| {
            allocation.key.split('/').next() == Some(&holder.pod)
                && matches!(allocation.state, AllocationPhase::Reserved { .. })
        });
        let committed = committed.map(|allocation| (allocation.id.clone(), false));
        committed.or_else(|| reserved.map(|allocation| (allocation.id.clone(), true)))
    }

    /// Refuses a container that would start without an enforced limit.
    fn check(&self, id: &AllocationId, holder: &Holder) -> Result<(), Status> {
        let name = holder.name.as_ref().unwrap_or(&holder.pod);
        let is_sound = self.accounts.get(id).is_some_and(AccountFiles::is_sound);
        if !is_sound {
            let folder = self.account_folder(id);
            return Err(Status::failed_precondition(format!(
                "the account of pod {name} at {} is missing or damaged",
                folder.display()
            )));
        }
        let delivery = self.delivery.as_ref();
        match delivery.and_then(|delivery| delivery.libraries.fault()) {
            Some((path, fault)) => Err(Status::failed_precondition(format!(
                "{} is {}, so the limit of pod {name} cannot be enforced",
                path.display(),
                match fault {
                    LibraryFault::Missing => "missing",
                    LibraryFault::Damaged => "damaged",
                }
            ))),
            None => Ok(()),
        }
    }

    /// Applies a slot event and performs its effects.
    pub(super) fn apply_slots(&mut self, event: SlotEvent) -> Result<(), Status> {
        let Some(delivery) = &mut self.delivery else {
            return Ok(());
        };
        for effect in delivery.slots.apply(event) {
            match effect {
                SlotEffect::Write { slot, allocation } => self.write_grant(slot, &allocation)?,
                SlotEffect::Remove(slot) => {
                    debug!(%slot, "Grant removed");
                    self.delivery
                        .iter()
                        .for_each(|of| of.remove(&slot.to_string()));
                }
                SlotEffect::List => self.delivery.iter().for_each(GrantDelivery::offer),
                SlotEffect::Refuse(refusal) => {
                    return Err(Status::failed_precondition(refusal.to_string()));
                }
            }
        }
        Ok(())
    }

    fn write_grant(&self, slot: SlotId, id: &AllocationId) -> Result<(), Status> {
        let parts = self.delivery.as_ref().zip(self.ledger.allocation(id));
        let Some((delivery, allocation)) = parts else {
            return Err(Status::internal(format!(
                "allocation {id} no longer exists"
            )));
        };
        let pod = match delivery.slots.slot(slot) {
            Some(SlotState::Prepared { pod, .. }) => pod.clone(),
            _ => return Err(Status::internal(format!("slot {slot} is not prepared"))),
        };
        let label = CdiSpecLabel {
            slot: slot.to_string(),
            pod,
            allocation: id.0.clone(),
        };
        let grant = self.grant(allocation, delivery.library());
        delivery.write(&label, &grant).map_err(|problem| {
            Status::internal(format!(
                "failed to write the grant of slot {slot}: {problem}"
            ))
        })
    }

    fn grant(&self, allocation: &Allocation, library: String) -> Grant {
        let limit = allocation.grants.first().map(|grant| grant.limit);
        Grant {
            id: allocation.id.0.clone(),
            account: self.account_folder(&allocation.id).display().to_string(),
            library,
            share: Share::Memory(limit.unwrap_or_default()),
            cards: allocation
                .grants
                .iter()
                .map(|grant| self.granted(grant.card, grant.limit))
                .collect(),
        }
    }

    pub(super) fn granted(&self, card: CardUuid, limit: Bytes) -> GrantedCard {
        let found = self.driver.cards.iter().find(|found| found.uuid == card);
        GrantedCard {
            uuid: card.to_string(),
            minor: found.and_then(|found| found.minor),
            cuda_ordinal: found.and_then(|found| found.cuda_ordinal),
            limit,
            allocatable: found.map_or(limit, |found| found.capacity.allocatable()),
        }
    }

    /// Processes a snapshot of the kubelet, and releases the allocations of pods that have left.
    pub(super) fn kubelet_seen(&mut self, seen: KubeletSnapshot) {
        let Some(delivery) = &mut self.delivery else {
            return;
        };
        delivery
            .shown
            .extend(seen.held.values().map(|holder| holder.pod.clone()));
        delivery.shown.extend(seen.whole.claimants().cloned());
        delivery.shown.extend(seen.others.keys().cloned());
        delivery.ending.clone_from(&seen.ending);
        for (id, pod, created) in self.pods() {
            let was_shown = self
                .delivery
                .as_ref()
                .is_some_and(|of| of.shown.contains(&pod));
            let age = delivery::age(now(), created);
            if delivery::is_gone(&seen, &pod, was_shown, age, || self.has_processes(&id)) {
                self.apply_quietly(LedgerEvent::OwnerGone { id });
                if let Some(delivery) = &mut self.delivery {
                    delivery.shown.remove(&pod);
                }
            }
        }
        self.others_seen(&seen);
        self.wholes_seen(&seen);
        if seen.is_complete {
            let held = seen
                .held
                .into_iter()
                .map(|(slot, holder)| (slot, holder.pod));
            if let Err(problem) = self.apply_slots(SlotEvent::Held(held.collect())) {
                error!(
                    problem = problem.message(),
                    "Failed to record the slot holders that the kubelet reports"
                );
            }
        }
        self.end_empty();
    }

    /// Releases the allocation of a pod that is being deleted, once its last process has ended.
    pub(super) fn end_with_pod(&mut self, id: &AllocationId) {
        let state = self
            .ledger
            .allocation(id)
            .map(|allocation| &allocation.state);
        let is_ending = match (state, &self.delivery) {
            (Some(AllocationPhase::Allocated(AllocationOwner::Pod(pod))), Some(delivery)) => {
                delivery.ending.contains(pod) && delivery.shown.contains(pod)
            }
            _ => false,
        };
        if is_ending && !self.has_processes(id) {
            self.apply_quietly(LedgerEvent::OwnerGone { id: id.clone() });
        }
    }

    /// All allocations of pods, with UID and time of creation.
    fn pods(&self) -> Vec<(AllocationId, String, EpochMillis)> {
        let of_pod = |allocation: &&Allocation| match &allocation.state {
            AllocationPhase::Allocated(AllocationOwner::Pod(pod)) => {
                Some((allocation.id.clone(), pod.clone(), allocation.created))
            }
            AllocationPhase::Allocated(AllocationOwner::Process(_))
            | AllocationPhase::Reserved { .. }
            | AllocationPhase::Draining => None,
        };
        self.ledger
            .allocations()
            .iter()
            .filter_map(of_pod)
            .collect()
    }

    fn has_processes(&mut self, id: &AllocationId) -> bool {
        !self.members.of(id).is_empty() || self.members.search(id)
    }

    /// Removes every draining allocation whose last process has ended.
    fn end_empty(&mut self) {
        let all = self.ledger.allocations();
        let draining = all
            .iter()
            .filter(|allocation| allocation.state == AllocationPhase::Draining);
        let draining: Vec<_> = draining.map(|allocation| allocation.id.clone()).collect();
        draining.iter().for_each(|id| self.end_if_empty(id));
    }
}
