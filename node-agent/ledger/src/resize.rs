//! Resizes: another limit for a fixed share that exists, another guarantee or limit for an elastic one.
//!
//! What grows must fit, by the rules of a new allocation. What shrinks is accepted. Nothing is taken from a program that
//! uses more: it gets no more until it is below its limit.
//!
//! # Decision: a lower guarantee leaves the allowance where it is
//! What a program uses of it becomes a burst. It can be called in, and what is not used is withdrawn when somebody needs
//! it. A limit below the allowance lowers that at once, and holds what is used until a sample shows that it was freed, as
//! in a fixed share.
//!
//! # Decision: a share keeps the files that it was made with
//! The programs of a fixed share have nowhere to ask, and look for that only when they start. So a fixed share never
//! becomes elastic. An elastic one whose limit is its guarantee stays elastic here: its programs are refused when they ask,
//! and it can get a higher limit again.

use apportion_abi::{Bytes, CardRequest, CardUuid};

use crate::admit::well_formed;
use crate::allocation::{Allocation, AllocationPhase, CardGrant, SuspensionCause, SuspensionPhase};
use crate::burst_request::BurstRange;
use crate::call_request::CallClaimant;
use crate::event::{AllocationRefusal, LedgerEffect, NoticeKind};
use crate::ids::AllocationId;
use crate::ledger::Ledger;

/// The numbers that a grant gets.
#[derive(Clone, Copy)]
enum GrantSize {
    Fixed(Bytes),
    Elastic(BurstRange),
}

impl Ledger {
    pub(crate) fn resize(
        &mut self,
        id: &AllocationId,
        asks: &[CardRequest],
        ceilings: &[CardRequest],
    ) -> Vec<LedgerEffect> {
        let sizes = match self.new_sizes(id, asks, ceilings) {
            Ok(sizes) => sizes,
            Err(refusal) => return vec![LedgerEffect::Answer(Err(refusal))],
        };
        let mut effects = Vec::new();
        if !sizes.is_empty() {
            effects.push(LedgerEffect::Save);
            for (card, size) in sizes {
                effects.extend(self.set_size(id, card, size));
            }
            effects.push(self.notice(NoticeKind::Resized, id));
        }
        effects.push(LedgerEffect::Answer(Ok(id.clone())));
        effects
    }

    /// The numbers of all grants that change, if the allocation can have all of them.
    fn new_sizes(
        &self,
        id: &AllocationId,
        asks: &[CardRequest],
        ceilings: &[CardRequest],
    ) -> Result<Vec<(CardUuid, GrantSize)>, AllocationRefusal> {
        well_formed(asks)?;
        let allocation = self.allocation(id);
        let allocation = allocation.ok_or(AllocationRefusal::UnknownAllocation(id.clone()))?;
        can_be_resized(allocation)?;
        for ceiling in ceilings {
            if !asks.iter().any(|ask| ask.card == ceiling.card) {
                let why = "a limit is for a GPU that is not asked for";
                return Err(AllocationRefusal::Malformed(why));
            }
        }
        let mut sizes = Vec::new();
        for ask in asks {
            let not_granted = || AllocationRefusal::NotGranted {
                id: id.clone(),
                card: ask.card,
            };
            let grant = allocation.grant(ask.card).ok_or_else(not_granted)?;
            let mut ceilings = ceilings.iter();
            let ceiling = ceilings.find(|ceiling| ceiling.card == ask.card);
            let ceiling = ceiling.map(|ceiling| ceiling.bytes);
            if let Some(size) = self.new_size(allocation, grant, *ask, ceiling)? {
                sizes.push((ask.card, size));
            }
        }
        Ok(sizes)
    }

    /// The numbers that a grant gets; `None` if it has them.
    fn new_size(
        &self,
        allocation: &Allocation,
        grant: &CardGrant,
        ask: CardRequest,
        ceiling: Option<Bytes>,
    ) -> Result<Option<GrantSize>, AllocationRefusal> {
        let id = &allocation.id;
        let CardRequest { card, bytes: asked } = ask;
        // A limit that is not named stays if it is above the guarantee. Else both are one number.
        let kept = Some(grant.ceiling()).filter(|limit| *limit > grant.guaranteed());
        let limit = ceiling.or(kept).unwrap_or(asked);
        if limit < asked {
            return Err(AllocationRefusal::LimitBelowRequest { card, asked, limit });
        }
        if grant.burst.is_none() && limit != asked {
            return Err(AllocationRefusal::Fixed(id.clone()));
        }
        if limit > asked && limit > grant.ceiling() {
            self.check_ceiling(ask, limit, Some(id))?;
        }
        if asked > grant.guaranteed() {
            let claimant = CallClaimant::Newcomer(allocation.key.clone());
            self.judge(ask, Some(id), &claimant)?;
        }
        Ok(match grant.burst {
            Some(range) => {
                let wanted = BurstRange {
                    guaranteed: asked,
                    ceiling: limit,
                };
                (wanted != range).then_some(GrantSize::Elastic(wanted))
            }
            None => (asked != grant.limit).then_some(GrantSize::Fixed(asked)),
        })
    }

    /// Gives a grant its numbers. Returns what its account must show.
    fn set_size(
        &mut self,
        id: &AllocationId,
        card: CardUuid,
        size: GrantSize,
    ) -> Vec<LedgerEffect> {
        let generation = self.generation();
        let allocation = self.allocations.get_mut(id);
        let Some(grant) = allocation.and_then(|of| of.grant_mut(card)) else {
            return Vec::new();
        };
        let (before, id) = (grant.limit, id.clone());
        match size {
            GrantSize::Fixed(limit) => {
                set_limit(grant, limit, generation);
                vec![LedgerEffect::SetLimit { id, card, limit }]
            }
            GrantSize::Elastic(range) => {
                let limit = before.clamp(range.guaranteed, range.ceiling);
                grant.burst = Some(range);
                set_limit(grant, limit, generation);
                // Nobody waits for what can no longer be had.
                self.unmet.remove(&(card, id.clone()));
                let of = id.clone();
                let is_changed = limit != before;
                let set_limit = is_changed.then_some(LedgerEffect::SetLimit { id, card, limit });
                let set_range = LedgerEffect::SetRange {
                    id: of,
                    card,
                    range,
                };
                [set_range].into_iter().chain(set_limit).collect()
            }
        }
    }
}

/// Refuses allocations whose limits are not kept, or whose memory is on its way.
fn can_be_resized(allocation: &Allocation) -> Result<(), AllocationRefusal> {
    let id = || allocation.id.clone();
    if allocation.state == AllocationPhase::Draining {
        return Err(AllocationRefusal::Draining(id()));
    }
    if allocation.is_whole {
        return Err(AllocationRefusal::Whole(id()));
    }
    match (allocation.suspension, allocation.suspension_cause) {
        (SuspensionPhase::Running, _) => Ok(()),
        (
            SuspensionPhase::Suspending | SuspensionPhase::Suspended | SuspensionPhase::Resuming,
            SuspensionCause::Client | SuspensionCause::Idle,
        ) => Err(AllocationRefusal::Suspended(id())),
        (
            SuspensionPhase::Suspending | SuspensionPhase::Suspended | SuspensionPhase::Resuming,
            SuspensionCause::Guarantee,
        ) => Err(AllocationRefusal::CalledIn(id())),
    }
}

/// After a shrink the grant holds its old amount until a sample that began later shows the real use: the program may
/// have used all of its old limit just before.
fn set_limit(grant: &mut CardGrant, limit: Bytes, generation: u64) {
    if limit < grant.limit {
        grant.shrunk = generation + 1;
    }
    grant.limit = limit;
    grant.held = grant.held.max(limit);
    grant.allowed = grant.allowed.max(limit);
}
