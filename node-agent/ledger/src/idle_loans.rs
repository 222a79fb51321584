//! Guarantees of idle pods, which programs that burst may use while the pods sleep.
//!
//! A pod keeps its guarantee while it sleeps: its scheduler counts it as taken, so nobody else is promised it. But nobody
//! uses it either. So it is lent. The pod's next call of the driver calls it in, as a newcomer's guarantee is called in: what
//! is not used is withdrawn, and then those who burst most are put to sleep.
//!
//! # Decision: only where bursts are called in, and only to those who can sleep
//! Elsewhere the pod would wait until somebody frees memory, perhaps for ever. So nothing is lent by an agent that suspends
//! nobody for a guarantee, nor to an allocation that the ledger knows it cannot put to sleep.
//!
//! # Decision: who lends never borrows
//! A pod that needs more than its guarantee lends nothing, and one that sleeps when it is idle borrows nothing. Otherwise two
//! of them could each need what is kept for the other, and both would sleep for ever.

use apportion_abi::{Bytes, CardUuid};

use crate::allocation::{Allocation, CardGrant, SuspensionCause, SuspensionPhase};
use crate::call_request::CallClaimant;
use crate::guarantee_call;
use crate::ids::AllocationId;
use crate::ledger::Ledger;

impl Ledger {
    /// Lets programs that burst use what idle pods are guaranteed, while those sleep.
    pub fn lend_idle_guarantees(&mut self) {
        self.lends_idle = true;
    }

    /// What of a card is lent, or could be, to a program that bursts.
    pub(crate) fn lent_to_burst(&self, card: CardUuid, borrower: &Allocation) -> Bytes {
        match guarantee_call::obstacle(borrower) {
            None if borrower.idle_after.is_none() => self.lent(card, None),
            None | Some(_) => Bytes::ZERO,
        }
    }

    /// What is lent, as somebody sees it who wants to wake.
    pub(crate) fn lent_to(&self, card: CardUuid, claimant: &CallClaimant) -> Bytes {
        match self.borrower(claimant) {
            Some(sleeper) => self.lent(card, Some(&sleeper.id)),
            None => Bytes::ZERO,
        }
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

    fn lent(&self, card: CardUuid, except: Option<&AllocationId>) -> Bytes {
        let others = self.grants(card).filter(|(of, _)| Some(&of.id) != except);
        others.map(|(of, grant)| self.lends(of, grant)).sum()
    }

    /// What a grant holds and nobody uses, because its pod is idle and sleeps. One that was called lends nothing any more.
    pub(crate) fn lends(&self, allocation: &Allocation, grant: &CardGrant) -> Bytes {
        let is_lent = self.lends_idle
            && allocation.suspension == SuspensionPhase::Suspended
            && allocation.suspension_cause == SuspensionCause::Idle
            && allocation.keeps_guarantee()
            && allocation.needs_what_it_keeps()
            && grant.shrunk <= self.sampled
            && !self.has_call(&allocation.claimant());
        if is_lent {
            grant.held.minus(grant.nvml)
        } else {
            Bytes::ZERO
        }
    }
}
