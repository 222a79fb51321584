//! Guarantees of allocations that sleep, which others may use meanwhile.
//!
//! A pod keeps its guarantee while it sleeps because it is idle: its scheduler counts it as taken, so nobody else is
//! promised it. But nobody uses it either. So it is lent. The pod's next call of the driver calls it in, as a newcomer's
//! guarantee is called in: what is not used is withdrawn, and then those who burst most are put to sleep.
//!
//! An allocation that sleeps for the guarantee of another keeps its own, too, and cannot use it before it wakes. So it is
//! lent to other sleepers for their turns.
//!
//! # Decision: only where bursts are called in, and only to those who can sleep
//! Elsewhere the pod would wait until somebody frees memory, perhaps for ever. So nothing is lent by an agent that suspends
//! nobody for a guarantee, nor to an allocation that the ledger knows it cannot put to sleep.
//!
//! # Decision: an idle pod that lends never borrows
//! A pod that needs more than its guarantee lends nothing, and one that sleeps when it is idle borrows nothing. Otherwise two
//! of them could each need what is kept for the other, and both would sleep for ever. Sleepers may borrow from each other:
//! they take turns, so the borrower goes to sleep again.
//!
//! # Decision: sleepers lend to sleepers only
//! A sleeper that needs more than what nobody is guaranteed would otherwise sleep until others end, although they sleep as
//! well. A program that runs gets nothing of this: it is not in need, and the sleeper would wait longer.

use apportion_abi::{Bytes, CardUuid};

use crate::allocation::{Allocation, CardGrant, SuspensionCause, SuspensionPhase};
use crate::call_request::CallClaimant;
use crate::guarantee_call;
use crate::ledger::Ledger;

impl Ledger {
    /// Lends what allocations are guaranteed, while they sleep.
    pub fn lend_guarantees(&mut self) {
        self.lends_guarantees = true;
    }

    /// What of a card is lent, or could be, to a program that bursts.
    pub(crate) fn lent_to_burst(&self, card: CardUuid, borrower: &Allocation) -> Bytes {
        match guarantee_call::obstacle(borrower) {
            None if borrower.idle_after.is_none() => {
                let grants = self.grants(card);
                grants.map(|(of, grant)| self.lends_idle(of, grant)).sum()
            }
            None | Some(_) => Bytes::ZERO,
        }
    }

    /// What somebody who wants to wake can borrow of a grant now.
    pub(crate) fn lends_to(
        &self,
        claimant: &CallClaimant,
        allocation: &Allocation,
        grant: &CardGrant,
    ) -> Bytes {
        match self.borrower(claimant) {
            Some(borrower) if borrower.id != allocation.id => {
                let lends = self.lends_for_turns(allocation)
                    && self.borrows_for_its_turn(claimant, grant.card);
                if lends && self.has_left_the_card(allocation, grant) {
                    grant.held.minus(grant.nvml)
                } else {
                    self.lends_idle(allocation, grant)
                }
            }
            Some(_) | None => Bytes::ZERO,
        }
    }

    /// The same, once the transition that is under way is done, and a sample shows it.
    pub(crate) fn settles_to_lend(
        &self,
        claimant: &CallClaimant,
        allocation: &Allocation,
        grant: &CardGrant,
    ) -> Bytes {
        let is_other = *claimant != allocation.claimant();
        let lends =
            self.lends_for_turns(allocation) && self.borrows_for_its_turn(claimant, grant.card);
        if is_other && lends && !self.has_left_the_card(allocation, grant) {
            allocation.keeps_asleep(grant)
        } else {
            self.lends_to(claimant, allocation, grant)
        }
    }

    /// Whether an allocation sleeps, and a sample has shown what the driver still holds for it.
    fn has_left_the_card(&self, allocation: &Allocation, grant: &CardGrant) -> bool {
        allocation.suspension == SuspensionPhase::Suspended && grant.shrunk <= self.sampled
    }

    /// What a claimant gains of a grant if a program that bursts is put to sleep for it.
    pub(crate) fn gains_by_sleep(&self, claimant: &CallClaimant, grant: &CardGrant) -> Bytes {
        if self.borrows_for_its_turn(claimant, grant.card) {
            grant.bursts().plus(grant.guaranteed())
        } else {
            grant.bursts()
        }
    }

    /// Whether a sleeper may use what other sleepers are guaranteed. Not while somebody waits who was promised memory: it
    /// would have to go to sleep again at once.
    fn borrows_for_its_turn(&self, claimant: &CallClaimant, card: CardUuid) -> bool {
        let mut promised = (self.calls.iter()).filter(|call| call.claimant.has_guarantee());
        self.lends_guarantees
            && matches!(claimant, CallClaimant::Sleeper(_))
            && self.borrower(claimant).is_some()
            && !promised.any(|call| call.asks.iter().any(|ask| ask.card == card))
    }

    /// Whether an allocation sleeps, or is about to, and lends what it is guaranteed to other sleepers. One that was called
    /// lends nothing any more.
    fn lends_for_turns(&self, allocation: &Allocation) -> bool {
        let sleeps = match allocation.suspension {
            SuspensionPhase::Suspending | SuspensionPhase::Suspended => true,
            SuspensionPhase::Running | SuspensionPhase::Resuming => false,
        };
        sleeps
            && allocation.suspension_cause == SuspensionCause::Guarantee
            && !self.has_call(&allocation.claimant())
    }

    /// The sleeper of a claimant, if it may wake while others use what is lent: one that was put to sleep for a guarantee,
    /// and can be again, or an idle pod that wants no more than its guarantee.
    pub(crate) fn borrower(&self, claimant: &CallClaimant) -> Option<&Allocation> {
        match claimant {
            CallClaimant::Newcomer(_) => None,
            CallClaimant::Sleeper(id) => self.allocation(id).filter(|of| {
                of.keeps_guarantee() && of.grants.len() == 1 && of.idle_after.is_none()
            }),
            CallClaimant::IdleSleeper(id) => {
                self.allocation(id).filter(|of| of.needs_what_it_keeps())
            }
        }
    }

    /// What a grant holds and nobody uses, because its pod is idle and sleeps. One that was called lends nothing any more.
    fn lends_idle(&self, allocation: &Allocation, grant: &CardGrant) -> Bytes {
        let is_lent = self.lends_guarantees
            && self.has_left_the_card(allocation, grant)
            && allocation.suspension_cause == SuspensionCause::Idle
            && allocation.keeps_guarantee()
            && allocation.needs_what_it_keeps()
            && !self.has_call(&allocation.claimant());
        if is_lent {
            grant.held.minus(grant.nvml)
        } else {
            Bytes::ZERO
        }
    }
}
