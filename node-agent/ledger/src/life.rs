//! How allocations and cards come and go: reserved → allocated → draining → gone.
//!
//! Memory goes back to the card only with the allocation's last process, because the driver frees a
//! process's memory when the process ends and not before.

use apportion_abi::{Bytes, Capacity, CardUuid};

use crate::allocation::{Allocation, AllocationId, Owner, State};
use crate::card::{Card, Health};
use crate::event::{Effect, Notice, NoticeKind, Refusal, Time};
use crate::ledger::Ledger;

impl Ledger {
    pub(crate) fn card_found(&mut self, card: CardUuid, capacity: Capacity) -> Vec<Effect> {
        match self.cards.get_mut(&card) {
            Some(known) => {
                known.capacity = capacity;
                Vec::new()
            }
            None => {
                self.cards.insert(card, Card::new(capacity));
                vec![of_card(NoticeKind::CardFound, card)]
            }
        }
    }

    /// Does something to a card, and tells where that changed its health.
    pub(crate) fn card_changes(
        &mut self,
        card: CardUuid,
        change: impl FnOnce(&mut Card),
    ) -> Vec<Effect> {
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

    pub(crate) fn adopt(&mut self, mut allocation: Allocation) -> Vec<Effect> {
        let id = allocation.id.clone();
        for grant in &mut allocation.grants {
            // Whether the limit was lowered below what is used is not known: the first sample is.
            grant.allowed = Bytes(u64::MAX);
        }
        self.allocations.insert(id.clone(), allocation);
        vec![Effect::OpenAccount(id), Effect::Save]
    }

    pub(crate) fn commit(&mut self, id: &AllocationId, owner: Owner) -> Vec<Effect> {
        let state = match self.find(id) {
            Ok(allocation) => &mut allocation.state,
            Err(refusal) => return vec![Effect::Answer(Err(refusal))],
        };
        let answer = match state {
            State::Allocated(present) if *present == owner => Ok(id.clone()),
            State::Allocated(_) => Err(Refusal::Committed(id.clone())),
            State::Draining => Err(Refusal::Draining(id.clone())),
            State::Reserved { .. } => {
                *state = State::Allocated(owner);
                let committed = self.notice(NoticeKind::Committed, id);
                return vec![Effect::Save, committed, Effect::Answer(Ok(id.clone()))];
            }
        };
        vec![Effect::Answer(answer)]
    }

    /// Gives back. What is not there has been given back already.
    pub(crate) fn release(&mut self, id: &AllocationId) -> Vec<Effect> {
        let mut effects = match self.allocations.get(id).map(|allocation| &allocation.state) {
            Some(State::Reserved { .. }) => self.remove(id, NoticeKind::Released),
            Some(State::Allocated(_)) => self.drain(id),
            Some(State::Draining) | None => Vec::new(),
        };
        effects.push(Effect::Answer(Ok(id.clone())));
        effects
    }

    pub(crate) fn owner_gone(&mut self, id: &AllocationId) -> Vec<Effect> {
        match self.allocations.get(id).map(|allocation| &allocation.state) {
            Some(State::Allocated(_)) => self.drain(id),
            _ => Vec::new(),
        }
    }

    pub(crate) fn emptied(&mut self, id: &AllocationId) -> Vec<Effect> {
        match self.allocations.get(id).map(|allocation| &allocation.state) {
            Some(State::Draining) => self.remove(id, NoticeKind::Released),
            _ => Vec::new(),
        }
    }

    pub(crate) fn expire(&mut self, now: Time) -> Vec<Effect> {
        let overdue = |allocation: &&Allocation| match allocation.state {
            State::Reserved { expires } => expires <= now,
            _ => false,
        };
        let ids: Vec<_> = self
            .allocations
            .values()
            .filter(overdue)
            .map(|a| a.id.clone())
            .collect();
        ids.iter()
            .flat_map(|id| self.remove(id, NoticeKind::Expired))
            .collect()
    }

    fn drain(&mut self, id: &AllocationId) -> Vec<Effect> {
        if let Some(allocation) = self.allocations.get_mut(id) {
            allocation.state = State::Draining;
        }
        vec![Effect::Save, self.notice(NoticeKind::Draining, id)]
    }

    fn remove(&mut self, id: &AllocationId, why: NoticeKind) -> Vec<Effect> {
        let notice = self.notice(why, id);
        self.allocations.remove(id);
        self.offences.remove(id);
        vec![Effect::Save, Effect::CloseAccount(id.clone()), notice]
    }
}

fn of_card(kind: NoticeKind, card: CardUuid) -> Effect {
    Effect::Notice(Notice {
        kind,
        allocation: None,
        card: Some(card),
        process: None,
    })
}
