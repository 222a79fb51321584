//! Guarantees that are called in: memory that others use above their guarantees, for somebody who was promised it.
//!
//! Whoever comes with a guarantee has room beside the guarantees of others, but may find that room used: by programs
//! that burst. What they do not use of their allowances is withdrawn first. If that is not enough, those who burst most
//! are put to sleep, one after the other, until it is. The ledger says whose turn it is ([`Ledger::call_step`]); the agent
//! moves the processes.
//!
//! # Decision: a sleeper keeps its guarantee and nothing else
//! It gives back what it used above its guarantee: that was lent. Its guarantee stays reserved while it sleeps, although
//! it uses none of it. So others cannot be promised what it needs back, and only the part that was lent can be missing
//! when it is woken. Other sleepers may use it for their turns ([`crate::guarantee_loans`]). An allocation that its own
//! user suspends gives back all: the user said so.
//!
//! # Decision: nobody is put to sleep in vain
//! The first one goes to sleep only if all that can sleep give back enough together, as far as is known.
//!
//! # Decision: priority says who sleeps first, not who sleeps
//! Of those who can sleep the lowest priority goes first, and among equals the largest burst for its weight. A newcomer's
//! own priority does not count: what it was promised comes before all that others only borrow. Nor does a sleeper's when
//! its turn comes. It cannot use even its guarantee while it sleeps, and would sleep for as long as one of a higher
//! priority bursts.
//!
//! # Decision: an open call keeps what it waits for
//! What a sleeper has given back would otherwise go to the next program that bursts. So programs that burst, and sleepers
//! that wait, see the bytes of open calls as taken. A sleeper does not wait for an idle share that needs another
//! allocation's end: it cannot end while it sleeps, so both would sleep for ever. Newcomers see only the calls of newcomers
//! that came before them: a guarantee comes before a burst. An idle pod that needs no more than its guarantee sees none: what it
//! keeps is no part of what others wait for.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::time::Duration;

use apportion_abi::{BurstTerms, Bytes, CardRequest, CardUuid, Holder};

use crate::allocation::{
    Allocation, AllocationOwner, AllocationPhase, CardGrant, SuspensionCause, SuspensionPhase,
};
use crate::call_request::{CallClaimant, GuaranteeCall};
use crate::event::LedgerEffect;
use crate::ids::AllocationId;
use crate::ledger::Ledger;
use crate::time::EpochMillis;

/// What comes next for a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallStep {
    /// There is room.
    Ready,
    /// There will be room when what is under way is done and a sample shows it.
    Awaited,
    /// This allocation must sleep.
    Suspend(AllocationId),
    /// Those who can sleep do not have enough.
    Hopeless,
}

/// Why an allocation that bursts cannot be put to sleep for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallObstacle {
    /// A claim owns it.
    #[error("it belongs to a resource claim, and several pods may use it")]
    OfClaim,
    /// It has no owner yet.
    #[error("it has no process yet")]
    Uncommitted,
    /// It was released.
    #[error("it was released and ends with its last process")]
    Draining,
    /// It would give back memory of GPUs on which nobody needs it, and it must wake on all of them at once.
    #[error("it has shares of several GPUs")]
    SeveralGpus,
    /// It is on its way to sleep or awake.
    #[error("it is being suspended or resumed")]
    InTransition,
}

/// What an allocation uses of a card above its guarantee.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BurstHolding {
    /// The allocation.
    pub id: AllocationId,
    /// Its name for people.
    pub name: String,
    /// What it uses above its guarantee.
    pub bytes: Bytes,
    /// What it is worth beside others that burst.
    pub terms: BurstTerms,
    /// Why it cannot be put to sleep, if the ledger knows a reason.
    pub obstacle: Option<CallObstacle>,
    /// Since when it runs.
    since: EpochMillis,
}

impl BurstHolding {
    /// The order in which they are put to sleep: by priority, then by what they use for their weight. Whoever has no weight
    /// uses more for it than anybody else.
    fn sleeps_before(&self, other: &Self) -> Ordering {
        let for_weight = |one: &Self, other: &Self| {
            u128::from(one.bytes.0) * u128::from(other.terms.weight.thousandths())
        };
        (self.terms.priority.cmp(&other.terms.priority))
            .then_with(|| for_weight(other, self).cmp(&for_weight(self, other)))
            .then_with(|| other.bytes.cmp(&self.bytes))
            .then_with(|| self.name.cmp(&other.name))
    }
}

/// Whom the agent cannot put to sleep, and how long others have their turn.
#[derive(Clone, Copy, Debug)]
pub struct CallTerms<'a> {
    /// Allocations that could not be suspended, as the agent found out.
    pub unable: &'a BTreeSet<AllocationId>,
    /// How long a program that was awake stays so before a sleeper may take its place. Newcomers need not wait.
    pub turn: Duration,
}

impl Ledger {
    pub(crate) fn open_call(&mut self, call: GuaranteeCall) -> Vec<LedgerEffect> {
        if !self.calls.iter().any(|of| of.claimant == call.claimant) {
            self.calls.push(call);
        }
        Vec::new()
    }

    pub(crate) fn close_call(&mut self, claimant: &CallClaimant) -> Vec<LedgerEffect> {
        self.calls.retain(|call| call.claimant != *claimant);
        Vec::new()
    }

    /// Whether a call of this claimant is open.
    #[must_use]
    pub fn has_call(&self, claimant: &CallClaimant) -> bool {
        self.calls.iter().any(|call| call.claimant == *claimant)
    }

    /// What comes next for a call with these requests. What is not used of allowances must have been withdrawn, and a
    /// sample must have shown it since.
    #[must_use]
    pub fn call_step(
        &self,
        now: EpochMillis,
        claimant: &CallClaimant,
        asks: &[CardRequest],
        terms: CallTerms<'_>,
    ) -> CallStep {
        let missing = |held: &dyn Fn(&Allocation, &CardGrant) -> Bytes| {
            asks.iter()
                .map(|ask| (ask.card, self.missing_for(claimant, *ask, held)))
                .filter(|(_, missing)| *missing > Bytes::ZERO)
                .collect::<Vec<_>>()
        };
        let held_now = |allocation: &Allocation, grant: &CardGrant| {
            (grant.held).minus(self.lends_to(claimant, allocation, grant))
        };
        let held_soon = |allocation: &Allocation, grant: &CardGrant| {
            let lent = self.settles_to_lend(claimant, allocation, grant);
            self.settled(allocation, grant).minus(lent)
        };
        if missing(&held_now).is_empty() {
            return CallStep::Ready;
        }
        let mut next = None;
        for (card, bytes) in missing(&held_soon) {
            let mut able = self.burst_holdings(card);
            able.retain(|of| self.can_sleep(now, claimant, of, terms));
            able.sort_by(BurstHolding::sleeps_before);
            let grants = able
                .iter()
                .filter_map(|of| self.allocation(&of.id)?.grant(card));
            let together: Bytes = grants.map(|of| self.gains_by_sleep(claimant, of)).sum();
            if together < bytes {
                return CallStep::Hopeless;
            }
            next = next.or_else(|| able.into_iter().next());
        }
        next.map_or(CallStep::Awaited, |of| CallStep::Suspend(of.id))
    }

    fn can_sleep(
        &self,
        now: EpochMillis,
        claimant: &CallClaimant,
        of: &BurstHolding,
        terms: CallTerms<'_>,
    ) -> bool {
        let has_had_its_turn = claimant.has_guarantee() || of.since.after(terms.turn) <= now;
        of.obstacle.is_none() && !terms.unable.contains(&of.id) && has_had_its_turn
    }

    /// What a request lacks on its card if each grant holds what `held` says.
    fn missing_for(
        &self,
        claimant: &CallClaimant,
        ask: CardRequest,
        held: &dyn Fn(&Allocation, &CardGrant) -> Bytes,
    ) -> Bytes {
        let held: Bytes = (self.grants(ask.card))
            .map(|(allocation, grant)| held(allocation, grant))
            .sum();
        let called: Bytes = self
            .calls_before(ask.card, Some(claimant))
            .map(|call| call.bytes)
            .sum();
        held.plus(called)
            .plus(ask.bytes)
            .minus(self.usable(ask.card))
    }

    /// What a grant holds once the transition that is under way is done, and a sample shows it.
    fn settled(&self, allocation: &Allocation, grant: &CardGrant) -> Bytes {
        let kept = allocation.keeps_asleep(grant);
        match allocation.suspension {
            SuspensionPhase::Running => grant.firm(),
            SuspensionPhase::Suspending => kept,
            SuspensionPhase::Suspended if grant.shrunk > self.sampled => kept,
            SuspensionPhase::Suspended | SuspensionPhase::Resuming => grant.held,
        }
    }

    /// Who uses how much of a card above its guarantee, most first.
    #[must_use]
    pub fn burst_holdings(&self, card: CardUuid) -> Vec<BurstHolding> {
        let mut all = Vec::new();
        for (allocation, grant) in self.grants(card) {
            let bytes = grant.bursts();
            if bytes > Bytes::ZERO {
                all.push(BurstHolding {
                    id: allocation.id.clone(),
                    name: allocation.name.clone(),
                    bytes,
                    terms: allocation.terms,
                    obstacle: obstacle(allocation),
                    since: allocation.moved,
                });
            }
        }
        all.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
        all
    }

    /// The allocations that sleep because guarantees were called in, in the order in which they fell asleep.
    #[must_use]
    pub fn sleepers(&self) -> Vec<&Allocation> {
        let mut all: Vec<_> = self.allocations.values().collect();
        all.retain(|of| {
            of.suspension == SuspensionPhase::Suspended
                && of.suspension_cause == SuspensionCause::Guarantee
        });
        all.sort_by_key(|of| (of.moved, &of.id));
        all
    }

    /// What open calls want of a card that somebody else cannot have: see the last decision above. `None` stands for
    /// programs that burst.
    pub(crate) fn calls_before(
        &self,
        card: CardUuid,
        claimant: Option<&CallClaimant>,
    ) -> impl Iterator<Item = Holder> {
        let is_newcomer = claimant.is_some_and(CallClaimant::has_guarantee);
        let (queues, sleeps) = match claimant {
            Some(CallClaimant::IdleSleeper(id)) => {
                let found = self.allocation(id);
                (found.is_none_or(|of| !of.needs_what_it_keeps()), true)
            }
            Some(CallClaimant::Sleeper(_)) => (true, true),
            Some(CallClaimant::Newcomer(_)) | None => (true, false),
        };
        let own = claimant.and_then(|of| self.calls.iter().position(|call| call.claimant == *of));
        let calls = self.calls.iter().enumerate();
        let before = calls.filter(move |(place, call)| {
            let is_before = if is_newcomer {
                call.claimant.has_guarantee() && own.is_none_or(|own| *place < own)
            } else {
                own != Some(*place)
            };
            queues && is_before && !(sleeps && self.needs_an_end(call))
        });
        before.flat_map(move |(_, call)| {
            let asks = call.asks.iter().filter(move |ask| ask.card == card);
            asks.map(|ask| Holder {
                name: call.name.clone(),
                bytes: ask.bytes,
            })
        })
    }

    /// Whether an idle share that was called cannot wake before another allocation ends. One that sleeps does not wait for
    /// it, because it cannot end.
    fn needs_an_end(&self, call: &GuaranteeCall) -> bool {
        let is_idle = matches!(call.claimant, CallClaimant::IdleSleeper(_));
        let least = |grant: &CardGrant| match grant.burst {
            Some(range) => range.guaranteed.min(grant.held),
            None => grant.held,
        };
        let mut asks = call.asks.iter();
        is_idle
            && asks.any(|ask| {
                let held: Bytes = self.grants(ask.card).map(|(_, grant)| least(grant)).sum();
                held.plus(ask.bytes) > self.usable(ask.card)
            })
    }

    /// Who waits for memory of a card, in the order in which they called.
    pub(crate) fn callers(&self, card: CardUuid) -> Vec<&str> {
        let calls = self.calls.iter();
        let here = calls.filter(|call| call.asks.iter().any(|ask| ask.card == card));
        here.map(|call| call.name.as_str()).collect()
    }

    /// What open calls keep of a card from programs that burst.
    pub(crate) fn called(&self, card: CardUuid) -> Bytes {
        self.calls_before(card, None).map(|call| call.bytes).sum()
    }
}

pub(crate) fn obstacle(allocation: &Allocation) -> Option<CallObstacle> {
    if allocation.suspension != SuspensionPhase::Running {
        return Some(CallObstacle::InTransition);
    }
    match &allocation.state {
        AllocationPhase::Reserved { .. } => Some(CallObstacle::Uncommitted),
        AllocationPhase::Draining => Some(CallObstacle::Draining),
        AllocationPhase::Allocated(AllocationOwner::Claim(_)) => Some(CallObstacle::OfClaim),
        AllocationPhase::Allocated(AllocationOwner::Process(_) | AllocationOwner::Pod(_)) => {
            (allocation.grants.len() > 1).then_some(CallObstacle::SeveralGpus)
        }
    }
}
