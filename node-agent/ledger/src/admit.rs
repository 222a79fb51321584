//! Saying yes or no: new allocations and changed limits. `apportion_abi::fits` is the only comparison
//! of what there is with what is asked.

use std::collections::BTreeSet;

use apportion_abi::{Ask, Bytes, CardUuid, fits};

use crate::allocation::{Allocation, AllocationId, Grant, State};
use crate::card::Health;
use crate::event::{Effect, NoticeKind, Proposal, Refusal, Time};
use crate::ledger::Ledger;

impl Ledger {
    pub(crate) fn allocate(&mut self, now: Time, proposal: Proposal) -> Vec<Effect> {
        match self.admit(now, proposal) {
            Ok((id, true)) => vec![
                Effect::OpenAccount(id.clone()),
                Effect::Save,
                self.notice(NoticeKind::Allocated, &id),
                Effect::Answer(Ok(id)),
            ],
            Ok((id, false)) => vec![Effect::Answer(Ok(id))],
            Err(refusal) => vec![Effect::Answer(Err(refusal))],
        }
    }

    /// The allocation for a proposal, and whether it is new.
    fn admit(&mut self, now: Time, proposal: Proposal) -> Result<(AllocationId, bool), Refusal> {
        // First, because a fraction of a card without a size is zero bytes.
        if let Some(ask) = proposal.asks.iter().find(|ask| self.is_sizeless(ask.card)) {
            return Err(Refusal::Sizeless(ask.card));
        }
        well_formed(&proposal.asks)?;
        if let Some(known) = self.with_key(&proposal.key) {
            return match is_same(known, &proposal) {
                true => Ok((known.id.clone(), false)),
                false => Err(Refusal::KeyReused(proposal.key)),
            };
        }
        for ask in &proposal.asks {
            self.judge(*ask, None)?;
        }
        let id = self.next_id();
        let grants = proposal
            .asks
            .iter()
            .map(|ask| Grant::new(ask.card, ask.bytes))
            .collect();
        let Proposal { key, name, ttl, .. } = proposal;
        let state = State::Reserved {
            expires: now.after(ttl),
        };
        let allocation = Allocation {
            id: id.clone(),
            key,
            name,
            state,
            created: now,
            grants,
            is_whole: false,
        };
        self.allocations.insert(id.clone(), allocation);
        Ok((id, true))
    }

    pub(crate) fn resize(&mut self, id: &AllocationId, asks: &[Ask]) -> Vec<Effect> {
        let changed = match self.change_limits(id, asks) {
            Ok(changed) => changed,
            Err(refusal) => return vec![Effect::Answer(Err(refusal))],
        };
        let mut effects = Vec::new();
        if !changed.is_empty() {
            effects.push(Effect::Save);
            let set = |ask: Ask| Effect::SetLimit {
                id: id.clone(),
                card: ask.card,
                limit: ask.bytes,
            };
            effects.extend(changed.into_iter().map(set));
            effects.push(self.notice(NoticeKind::Resized, id));
        }
        effects.push(Effect::Answer(Ok(id.clone())));
        effects
    }

    /// Sets all new limits or none, and says which differ from the old ones.
    fn change_limits(&mut self, id: &AllocationId, asks: &[Ask]) -> Result<Vec<Ask>, Refusal> {
        well_formed(asks)?;
        let mut changed = Vec::new();
        let allocation = self.find(id)?.clone();
        if allocation.state == State::Draining {
            return Err(Refusal::Draining(id.clone()));
        }
        if allocation.is_whole {
            return Err(Refusal::Whole(id.clone()));
        }
        for ask in asks {
            let not_granted = || Refusal::NotGranted {
                id: id.clone(),
                card: ask.card,
            };
            let grant = allocation.grant(ask.card).ok_or_else(not_granted)?;
            if ask.bytes > grant.limit {
                self.judge(*ask, Some(id))?;
            }
            if ask.bytes != grant.limit {
                changed.push(*ask);
            }
        }
        let generation = self.generation();
        let allocation = self.find(id)?;
        for ask in &changed {
            if let Some(grant) = allocation.grant_mut(ask.card) {
                set_limit(grant, *ask, generation);
            }
        }
        Ok(changed)
    }

    /// Whether a healthy card has room beside what all but `except` hold.
    fn judge(&self, ask: Ask, except: Option<&AllocationId>) -> Result<(), Refusal> {
        let card = self.card(ask.card).ok_or(Refusal::UnknownCard(ask.card))?;
        if card.health != Health::Healthy {
            return Err(Refusal::Unhealthy(ask.card));
        }
        let holders = self.holders(ask.card, except);
        fits(card.capacity, &holders, card.unmanaged, ask).map_err(Refusal::Shortfall)
    }

    fn is_sizeless(&self, card: CardUuid) -> bool {
        let card = self.card(card);
        card.is_some_and(|card| card.capacity.allocatable() == Bytes::ZERO)
    }

    fn with_key(&self, key: &str) -> Option<&Allocation> {
        self.allocations
            .values()
            .find(|allocation| allocation.key == key)
    }
}

/// A shrink holds what was held until a sample that began after it shows how much is really used: the
/// program may just have taken all of its old limit.
fn set_limit(grant: &mut Grant, ask: Ask, generation: u64) {
    if ask.bytes < grant.limit {
        grant.shrunk = generation + 1;
    }
    grant.limit = ask.bytes;
    grant.held = grant.held.max(ask.bytes);
    grant.allowed = grant.allowed.max(ask.bytes);
}

fn well_formed(asks: &[Ask]) -> Result<(), Refusal> {
    let distinct: BTreeSet<_> = asks.iter().map(|ask| ask.card).collect();
    if asks.is_empty() {
        return Err(Refusal::Malformed("no GPU is named"));
    }
    if distinct.len() != asks.len() {
        return Err(Refusal::Malformed("a GPU is named twice"));
    }
    match asks.iter().any(|ask| ask.bytes.0 == 0) {
        true => Err(Refusal::Malformed("a share is at least 2 MiB")),
        false => Ok(()),
    }
}

/// Whether this is the allocation of an earlier copy of the proposal. The limits are not compared:
/// they may have been changed since.
fn is_same(allocation: &Allocation, proposal: &Proposal) -> bool {
    let granted = allocation.grants.iter().map(|grant| grant.card);
    allocation.name == proposal.name && granted.eq(proposal.asks.iter().map(|ask| ask.card))
}
