//! The ledger itself, and the one function that changes it.

use std::collections::BTreeMap;

use apportion_abi::{Bytes, CardUuid, ContainerRef, Holder, OvercommitFactor};

use crate::allocation::{Allocation, AllocationPhase, SuspensionRequester};
use crate::burst_request::UnmetBursts;

use crate::call_request::{CallClaimant, GuaranteeCall};
use crate::card::{Health, LedgerCard};
use crate::event::{
    AllocationRefusal, LedgerEffect, LedgerEvent, LedgerNotice, NoticeKind, OffenderPolicy,
};
use crate::ids::AllocationId;
use crate::offence::Offences;
use crate::time::EpochMillis;

/// The node's list of allocations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    pub(crate) cards: BTreeMap<CardUuid, LedgerCard>,
    pub(crate) allocations: BTreeMap<AllocationId, Allocation>,
    policy: OffenderPolicy,
    policies: BTreeMap<String, OffenderPolicy>,
    pub(crate) offences: BTreeMap<AllocationId, Offences>,
    pub(crate) overcommit: OvercommitFactor,
    /// Whether what allocations are guaranteed is lent while they sleep.
    pub(crate) lends_guarantees: bool,
    pub(crate) unmet: UnmetBursts,
    /// The calls that are not served yet, oldest first.
    pub(crate) calls: Vec<GuaranteeCall>,
    /// The generation at which the latest sample began.
    pub(crate) sampled: u64,
    epoch: u64,
    serial: u64,
    generation: u64,
}

impl Ledger {
    /// An empty ledger. `epoch` is a number that no earlier ledger of this instance had, such as the time of its
    /// creation. It keeps allocation ids unique.
    #[must_use]
    pub fn new(epoch: u64, policy: OffenderPolicy) -> Self {
        Self {
            cards: BTreeMap::new(),
            allocations: BTreeMap::new(),
            offences: BTreeMap::new(),
            overcommit: OvercommitFactor::default(),
            lends_guarantees: false,
            unmet: UnmetBursts::new(),
            calls: Vec::new(),
            sampled: 0,
            policy,
            policies: BTreeMap::new(),
            epoch,
            serial: 0,
            generation: 0,
        }
    }

    /// An empty ledger that continues the numbering of an earlier one of this instance.
    #[must_use]
    pub fn resume(epoch: u64, serial: u64, policy: OffenderPolicy) -> Self {
        Self {
            serial,
            ..Self::new(epoch, policy)
        }
    }

    /// Sets the offender policy of one namespace, in place of the general one.
    pub fn override_policy(&mut self, namespace: String, policy: OffenderPolicy) {
        self.policies.insert(namespace, policy);
    }

    /// Sets how far the limits on a card may exceed it.
    pub fn set_overcommit(&mut self, factor: OvercommitFactor) {
        self.overcommit = factor;
    }

    /// The policy for offenders of this allocation.
    pub(crate) fn policy_of(&self, id: &AllocationId) -> OffenderPolicy {
        let name = self.allocations.get(id).map(|of| of.name.as_str());
        let namespace = name.and_then(ContainerRef::of).map(|of| of.namespace);
        let own = namespace.and_then(|namespace| self.policies.get(namespace));
        own.copied().unwrap_or(self.policy)
    }

    /// The numbers for [`Ledger::resume`]: epoch and serial.
    #[must_use]
    pub fn numbering(&self) -> (u64, u64) {
        (self.epoch, self.serial)
    }

    /// Applies an event and returns what the agent must do. Reservations that are overdue at `now` expire first,
    /// whatever the event.
    #[must_use]
    pub fn apply(&mut self, now: EpochMillis, event: LedgerEvent) -> Vec<LedgerEffect> {
        let mut effects = self.expire(now);
        effects.extend(match event {
            LedgerEvent::CardFound { card, capacity } => self.card_found(card, capacity),
            LedgerEvent::CardHealth { card, health } => {
                self.card_changes(card, |card| card.answer(health))
            }
            LedgerEvent::CardFault { card, xid } => self.card_changes(card, |card| card.fail(xid)),
            LedgerEvent::CardChecked {
                card,
                needs_recovery,
            } => self.card_changes(card, |card| card.check(needs_recovery)),
            LedgerEvent::Adopted(allocation) => self.adopt(allocation),
            LedgerEvent::Allocate(proposal) => self.allocate(now, proposal),
            LedgerEvent::Commit { id, owner } => self.commit(&id, owner),
            LedgerEvent::GivenWhole { id } => self.given_whole(&id),
            LedgerEvent::TakenWhole { pod, name, cards } => {
                self.taken_whole(now, &pod, name, &cards)
            }
            LedgerEvent::Release { id } => self.release(&id),
            LedgerEvent::Resize { id, asks, ceilings } => self.resize(&id, &asks, &ceilings),
            LedgerEvent::Suspend { id } => self.suspend(&id, SuspensionRequester::Client),
            LedgerEvent::Reclaim { id } => self.suspend(&id, SuspensionRequester::Scheduler),
            LedgerEvent::Idle { id } => self.suspend(&id, SuspensionRequester::IdleTime),
            LedgerEvent::CallIn { id } => self.suspend(&id, SuspensionRequester::GuaranteeCall),
            LedgerEvent::CallOpened(call) => self.open_call(call),
            LedgerEvent::CallClosed(claimant) => self.close_call(&claimant),
            LedgerEvent::Suspended { id } => self.suspended(now, &id),
            LedgerEvent::Resume { id } => self.resume_processes(&id),
            LedgerEvent::Resumed { id } => self.resumed(now, &id),
            LedgerEvent::Withdrawn { id, card, limit } => self.withdrawn(&id, card, limit),
            LedgerEvent::Burst(asks) => self.burst(now, &asks),
            LedgerEvent::OwnerGone { id } => self.owner_gone(&id),
            LedgerEvent::ProcessGone { id, process } => self.process_gone(&id, process),
            LedgerEvent::Emptied { id } => self.emptied(&id),
            LedgerEvent::Sampled(sample) => self.reconcile(sample),
            LedgerEvent::Tick => Vec::new(),
        });
        if effects.contains(&LedgerEffect::Save) {
            self.generation += 1;
        }
        effects
    }

    /// Undoes a change of an allocation that could not be saved: it is as it was `before`. A removed allocation
    /// stays removed.
    pub fn revert(&mut self, before: Allocation) {
        if let Some(allocation) = self.allocations.get_mut(&before.id) {
            *allocation = before;
            self.generation += 1;
        }
    }

    /// Grows by one with each change that must be saved in the checkpoint.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The allocations, oldest first.
    #[must_use]
    pub fn allocations(&self) -> Vec<&Allocation> {
        let mut all: Vec<_> = self.allocations.values().collect();
        all.sort_by_key(|allocation| (allocation.created, &allocation.id));
        all
    }

    /// The allocation with this id.
    #[must_use]
    pub fn allocation(&self, id: &AllocationId) -> Option<&Allocation> {
        self.allocations.get(id)
    }

    /// The card with this UUID.
    #[must_use]
    pub fn card(&self, card: CardUuid) -> Option<&LedgerCard> {
        self.cards.get(&card)
    }

    /// The sum of what is guaranteed on a card. An allocation that gives all back while it sleeps
    /// is not in it.
    #[must_use]
    pub fn granted(&self, card: CardUuid) -> Bytes {
        let granted = self
            .grants(card)
            .filter(|(allocation, _)| !allocation.has_given_back());
        granted.map(|(_, grant)| grant.guaranteed()).sum()
    }

    /// What can still be allocated on the card. Allowances that are not used are free: they are withdrawn when somebody
    /// needs them.
    #[must_use]
    pub fn free(&self, card: CardUuid) -> Bytes {
        let held: Bytes = self.grants(card).map(|(_, grant)| grant.firm()).sum();
        match self.cards.get(&card) {
            Some(found) if found.health == Health::Healthy => found
                .capacity
                .allocatable()
                .minus(held)
                .minus(found.unmanaged)
                .minus(self.called(card)),
            _ => Bytes::ZERO,
        }
    }

    /// When the next reservation expires.
    #[must_use]
    pub fn next_expiry(&self) -> Option<EpochMillis> {
        let expiries = self
            .allocations
            .values()
            .filter_map(|allocation| match allocation.state {
                AllocationPhase::Reserved { expires } => Some(expires),
                _ => None,
            });
        expiries.min()
    }

    /// What all allocations but `except` hold of a card, without what the claimant can borrow.
    pub(crate) fn holders(
        &self,
        card: CardUuid,
        except: Option<&AllocationId>,
        claimant: &CallClaimant,
    ) -> Vec<Holder> {
        let others = self
            .grants(card)
            .filter(|(allocation, _)| Some(&allocation.id) != except);
        let others = others.map(|(allocation, grant)| Holder {
            name: allocation.name.clone(),
            bytes: grant.held.minus(self.lends_to(claimant, allocation, grant)),
        });
        // A suspended allocation may hold nothing.
        others.filter(|of| of.bytes > Bytes::ZERO).collect()
    }

    pub(crate) fn next_id(&mut self) -> AllocationId {
        self.serial += 1;
        AllocationId(format!("{:x}-{}", self.epoch, self.serial))
    }

    pub(crate) fn notice(&self, kind: NoticeKind, id: &AllocationId) -> LedgerEffect {
        self.notice_with(kind, id, String::new())
    }

    pub(crate) fn notice_with(
        &self,
        kind: NoticeKind,
        id: &AllocationId,
        detail: String,
    ) -> LedgerEffect {
        let name = self
            .allocations
            .get(id)
            .map(|allocation| allocation.name.clone());
        let allocation = Some((id.clone(), name.unwrap_or_default()));
        LedgerEffect::Notice(LedgerNotice {
            kind,
            allocation,
            card: None,
            process: None,
            detail,
        })
    }

    pub(crate) fn find(&mut self, id: &AllocationId) -> Result<&mut Allocation, AllocationRefusal> {
        self.allocations
            .get_mut(id)
            .ok_or_else(|| AllocationRefusal::UnknownAllocation(id.clone()))
    }

    pub(crate) fn grants(
        &self,
        card: CardUuid,
    ) -> impl Iterator<Item = (&Allocation, &crate::CardGrant)> {
        self.allocations
            .values()
            .filter_map(move |allocation| Some((allocation, allocation.grant(card)?)))
    }
}
