//! The lifecycle of allocations (reserved → allocated → draining → gone) and of cards.
//!
//! Memory returns to the card only with the allocation's last process, because the driver frees a process's memory
//! when the process ends and not before.

use apportion_abi::{Bytes, CardCapacity, CardUuid};

use crate::allocation::{Allocation, AllocationOwner, AllocationPhase};

use crate::call_request::CallClaimant;
use crate::card::{Health, LedgerCard};
use crate::event::{AllocationRefusal, LedgerEffect, LedgerNotice, NoticeKind};
use crate::ids::AllocationId;
use crate::ledger::Ledger;
use crate::time::EpochMillis;

impl Ledger {
    pub(crate) fn card_found(
        &mut self,
        card: CardUuid,
        capacity: CardCapacity,
    ) -> Vec<LedgerEffect> {
        match self.cards.get_mut(&card) {
            Some(known) => {
                known.capacity = capacity;
                Vec::new()
            }
            None => {
                self.cards.insert(card, LedgerCard::new(capacity));
                vec![of_card(NoticeKind::CardFound, card)]
            }
        }
    }

    /// Changes a card, and reports it if its health changed.
    pub(crate) fn card_changes(
        &mut self,
        card: CardUuid,
        change: impl FnOnce(&mut LedgerCard),
    ) -> Vec<LedgerEffect> {
        let Some(known) = self.cards.get_mut(&card) else {
            return Vec::new();
        };
        let before = known.health;
        change(known);
        if known.health == before {
            return Vec::new();
        }
        let kind = match known.health {
            Health::Healthy => NoticeKind::CardHealthy,
            Health::Unhealthy => NoticeKind::CardUnhealthy,
            Health::Lost => NoticeKind::CardLost,
        };
        vec![of_card(kind, card)]
    }

    pub(crate) fn adopt(&mut self, mut allocation: Allocation) -> Vec<LedgerEffect> {
        let id = allocation.id.clone();
        for grant in &mut allocation.grants {
            // A restart may hide that the limit was lowered below the use. The first sample sets the real value.
            grant.allowed = Bytes(u64::MAX);
            // Of a suspended one, too: the first sample shows what it has given back.
            grant.held = grant.limit.max(grant.needed);
        }
        self.allocations.insert(id.clone(), allocation);
        vec![LedgerEffect::OpenAccount(id), LedgerEffect::Save]
    }

    pub(crate) fn commit(
        &mut self,
        id: &AllocationId,
        owner: AllocationOwner,
    ) -> Vec<LedgerEffect> {
        let state = match self.find(id) {
            Ok(allocation) => &mut allocation.state,
            Err(refusal) => return vec![LedgerEffect::Answer(Err(refusal))],
        };
        let answer = match state {
            AllocationPhase::Allocated(present) if *present == owner => Ok(id.clone()),
            AllocationPhase::Allocated(AllocationOwner::Claim(present)) => match owner {
                AllocationOwner::Claim(claim) if claim.uid == present.uid => {
                    present.pods.extend(claim.pods);
                    return vec![LedgerEffect::Save, LedgerEffect::Answer(Ok(id.clone()))];
                }
                _ => Err(AllocationRefusal::Committed(id.clone())),
            },
            AllocationPhase::Allocated(_) => Err(AllocationRefusal::Committed(id.clone())),
            AllocationPhase::Draining => Err(AllocationRefusal::Draining(id.clone())),
            AllocationPhase::Reserved { .. } => {
                *state = AllocationPhase::Allocated(owner);
                let committed = self.notice(NoticeKind::Committed, id);
                return vec![
                    LedgerEffect::Save,
                    committed,
                    LedgerEffect::Answer(Ok(id.clone())),
                ];
            }
        };
        vec![LedgerEffect::Answer(answer)]
    }

    /// Releases an allocation. Succeeds if there is none: it was released before.
    pub(crate) fn release(&mut self, id: &AllocationId) -> Vec<LedgerEffect> {
        let mut effects = match self.allocations.get(id).map(|allocation| &allocation.state) {
            Some(AllocationPhase::Reserved { .. }) => self.remove(id, NoticeKind::Released),
            Some(AllocationPhase::Allocated(_)) => self.drain(id),
            Some(AllocationPhase::Draining) | None => Vec::new(),
        };
        effects.push(LedgerEffect::Answer(Ok(id.clone())));
        effects
    }

    pub(crate) fn owner_gone(&mut self, id: &AllocationId) -> Vec<LedgerEffect> {
        match self.allocations.get(id).map(|allocation| &allocation.state) {
            Some(AllocationPhase::Allocated(_)) => self.drain(id),
            _ => Vec::new(),
        }
    }

    pub(crate) fn emptied(&mut self, id: &AllocationId) -> Vec<LedgerEffect> {
        match self.allocations.get(id).map(|allocation| &allocation.state) {
            Some(AllocationPhase::Draining) => self.remove(id, NoticeKind::Released),
            _ => Vec::new(),
        }
    }

    pub(crate) fn expire(&mut self, now: EpochMillis) -> Vec<LedgerEffect> {
        let ids: Vec<_> = self
            .allocations
            .values()
            .filter(|allocation| match allocation.state {
                AllocationPhase::Reserved { expires } => expires <= now,
                _ => false,
            })
            .map(|a| a.id.clone())
            .collect();
        ids.iter()
            .flat_map(|id| self.remove(id, NoticeKind::Expired))
            .collect()
    }

    fn drain(&mut self, id: &AllocationId) -> Vec<LedgerEffect> {
        if let Some(allocation) = self.allocations.get_mut(id) {
            allocation.state = AllocationPhase::Draining;
        }
        vec![LedgerEffect::Save, self.notice(NoticeKind::Draining, id)]
    }

    fn remove(&mut self, id: &AllocationId, why: NoticeKind) -> Vec<LedgerEffect> {
        let notice = self.notice(why, id);
        self.allocations.remove(id);
        self.offences.remove(id);
        self.unmet.retain(|(_, unmet), _| unmet != id);
        let _ = self.close_call(&CallClaimant::Sleeper(id.clone()));
        let _ = self.close_call(&CallClaimant::IdleSleeper(id.clone()));
        vec![
            LedgerEffect::Save,
            LedgerEffect::CloseAccount(id.clone()),
            notice,
        ]
    }
}

fn of_card(kind: NoticeKind, card: CardUuid) -> LedgerEffect {
    LedgerEffect::Notice(LedgerNotice {
        kind,
        allocation: None,
        card: Some(card),
        process: None,
        detail: String::new(),
    })
}
