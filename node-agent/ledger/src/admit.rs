//! Admission of new allocations. Only `apportion_abi::fits` compares a request with the free
//! memory.

use std::collections::BTreeSet;

use apportion_abi::{Bytes, CardRequest, CardUuid, Shortfall, fits};

use crate::allocation::{Allocation, AllocationPhase, CardGrant, SuspensionCause, SuspensionPhase};
use crate::burst_request::BurstRange;
use crate::call_request::CallClaimant;
use crate::card::Health;
use crate::event::{AllocationRefusal, LedgerEffect, NoticeKind, PlacementProposal};
use crate::ids::AllocationId;
use crate::ledger::Ledger;
use crate::time::EpochMillis;

impl Ledger {
    pub(crate) fn allocate(
        &mut self,
        now: EpochMillis,
        proposal: PlacementProposal,
    ) -> Vec<LedgerEffect> {
        match self.admit(now, proposal) {
            Ok((id, true)) => vec![
                LedgerEffect::OpenAccount(id.clone()),
                LedgerEffect::Save,
                self.notice(NoticeKind::Allocated, &id),
                LedgerEffect::Answer(Ok(id)),
            ],
            Ok((id, false)) => vec![LedgerEffect::Answer(Ok(id))],
            Err(refusal) => vec![LedgerEffect::Answer(Err(refusal))],
        }
    }

    /// Returns the allocation for a proposal, and whether it is new.
    fn admit(
        &mut self,
        now: EpochMillis,
        proposal: PlacementProposal,
    ) -> Result<(AllocationId, bool), AllocationRefusal> {
        self.check_form(&proposal)?;
        if let Some(known) = self.with_key(&proposal.key) {
            return if is_same(known, &proposal) {
                Ok((known.id.clone(), false))
            } else {
                Err(AllocationRefusal::KeyReused(proposal.key))
            };
        }
        let ranges = self.ranges(&proposal)?;
        let claimant = CallClaimant::Newcomer(proposal.key.clone());
        for ask in &proposal.asks {
            self.judge(*ask, None, &claimant)?;
        }
        let id = self.next_id();
        let asks = proposal.asks.iter().zip(ranges);
        let grants = asks
            .map(
                |(ask, range): (&CardRequest, Option<BurstRange>)| match range {
                    Some(range) => CardGrant::elastic(ask.card, range),
                    None => CardGrant::new(ask.card, ask.bytes),
                },
            )
            .collect();
        let PlacementProposal {
            key,
            name,
            terms,
            ttl,
            idle_after,
            ..
        } = proposal;
        let state = AllocationPhase::Reserved {
            expires: now.after(ttl),
        };
        let allocation = Allocation {
            id: id.clone(),
            key,
            name,
            state,
            created: now,
            grants,
            terms,
            is_whole: false,
            suspension: SuspensionPhase::Running,
            suspension_cause: SuspensionCause::Client,
            moved: now,
            idle_after,
        };
        self.calls.retain(|call| call.claimant != claimant);
        self.allocations.insert(id.clone(), allocation);
        Ok((id, true))
    }

    /// Whether a new proposal would be accepted.
    ///
    /// # Errors
    /// Why it would be refused.
    pub fn check(&self, proposal: &PlacementProposal) -> Result<(), AllocationRefusal> {
        self.check_form(proposal)?;
        self.ranges(proposal)?;
        let claimant = CallClaimant::Newcomer(proposal.key.clone());
        let mut asks = proposal.asks.iter();
        asks.try_for_each(|ask| self.judge(*ask, None, &claimant))
    }

    /// Whether an allocation was made with this idempotency key.
    #[must_use]
    pub fn is_known(&self, key: &str) -> bool {
        self.with_key(key).is_some()
    }

    fn check_form(&self, proposal: &PlacementProposal) -> Result<(), AllocationRefusal> {
        // Checked first: a fraction of a card of unknown size is zero bytes, which `well_formed` would call too
        // small.
        if let Some(ask) = proposal.asks.iter().find(|ask| self.is_sizeless(ask.card)) {
            return Err(AllocationRefusal::Sizeless(ask.card));
        }
        well_formed(&proposal.asks)
    }

    /// Whether a healthy card has room beside what all allocations but `except` hold, and what was called in before.
    pub(crate) fn judge(
        &self,
        ask: CardRequest,
        except: Option<&AllocationId>,
        claimant: &CallClaimant,
    ) -> Result<(), AllocationRefusal> {
        let card = self
            .card(ask.card)
            .ok_or(AllocationRefusal::UnknownCard(ask.card))?;
        if card.health != Health::Healthy {
            return Err(AllocationRefusal::Unhealthy(ask.card));
        }
        let mut holders = self.holders(ask.card, except, claimant);
        holders.extend(self.calls_before(ask.card, Some(claimant)));
        fits(card.capacity, &holders, card.unmanaged, ask).map_err(|shortfall| {
            AllocationRefusal::Shortfall(Shortfall {
                bursts: self.bursts(ask.card, except),
                ..shortfall
            })
        })
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

pub(crate) fn well_formed(asks: &[CardRequest]) -> Result<(), AllocationRefusal> {
    let distinct: BTreeSet<_> = asks.iter().map(|ask| ask.card).collect();
    if asks.is_empty() {
        return Err(AllocationRefusal::Malformed("no GPU is named"));
    }
    if distinct.len() != asks.len() {
        return Err(AllocationRefusal::Malformed("a GPU is named twice"));
    }
    if asks.iter().any(|ask| ask.bytes.0 == 0) {
        Err(AllocationRefusal::Malformed("a share is at least 2 MiB"))
    } else {
        Ok(())
    }
}

/// Whether a retry of this proposal made the allocation. Limits are not compared: a resize may have changed them.
fn is_same(allocation: &Allocation, proposal: &PlacementProposal) -> bool {
    let granted = allocation.grants.iter().map(|grant| grant.card);
    allocation.name == proposal.name && granted.eq(proposal.asks.iter().map(|ask| ask.card))
}
