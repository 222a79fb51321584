//! Suspension: the processes of an allocation sleep with their GPU memory in the host, and others can have that memory.
//!
//! The ledger knows four phases and decides which memory is whose in each. The agent puts processes to sleep and wakes
//! them. Memory is given back only when all processes sleep, and taken again before the first of them is woken. So a
//! transition that fails, or whose agent is killed, never leaves memory that two allocations rely on.
//!
//! # Decision: a transition that fails is undone
//! All processes of an allocation run, or all sleep. If one cannot be put to sleep, the others are woken, and the
//! allocation keeps its memory. If one cannot be woken, the others are put to sleep again, and the memory is given back.
//!
//! # Decision: a share with a limit above its guarantee needs what it used
//! What it does not use of its allowance is withdrawn when the suspension begins. So its allowance is then what it uses,
//! or its guarantee where that is more, and a resume gets exactly that back. The allowance stays in the account, because
//! the claims of the sleeping processes do.
//!
//! # Decision: what is idle gives back all, and is a newcomer when it wakes
//! Its program asked for that. So others are promised what it had. When it is needed again, it comes in the order of
//! newcomers, and what is free by then is kept for it.
//!
//! # Decision: only its scheduler takes the guarantee of a pod
//! A scheduler reserves the requests of its pods. What a client suspends gives back its guarantee, too, so that would stay
//! reserved there and be granted here. So clients suspend only the programs of `apportion run`, and the scheduler that
//! counts a pod may suspend it. Pods that burst can sleep for a guarantee that is called in: they keep theirs. Several pods
//! may use the memory of a claim, and it cannot burst, so it never sleeps.

use apportion_abi::{Bytes, CardRequest, CardUuid};

use crate::allocation::{
    Allocation, AllocationOwner, AllocationPhase, SuspensionCause, SuspensionPhase,
    SuspensionRequester,
};

use crate::call_request::CallClaimant;
use crate::event::{AllocationRefusal, LedgerEffect, NoticeKind};
use crate::ids::AllocationId;
use crate::ledger::Ledger;
use crate::time::EpochMillis;

impl Ledger {
    pub(crate) fn suspend(
        &mut self,
        id: &AllocationId,
        requester: SuspensionRequester,
    ) -> Vec<LedgerEffect> {
        let effects = vec![
            LedgerEffect::Save,
            LedgerEffect::SetSuspended {
                id: id.clone(),
                is_suspended: true,
            },
        ];
        answered(id, self.begin_suspension(id, requester), effects)
    }

    /// Returns whether anything changes. What a client or a scheduler suspends stays asleep until one resumes it, also if it
    /// slept before because a guarantee was called in.
    fn begin_suspension(
        &mut self,
        id: &AllocationId,
        requester: SuspensionRequester,
    ) -> Result<bool, AllocationRefusal> {
        let generation = self.generation();
        let allocation = self.find(id)?;
        may_sleep(allocation, requester)?;
        let cause = requester.cause();
        match allocation.suspension {
            SuspensionPhase::Running => {}
            SuspensionPhase::Suspending | SuspensionPhase::Suspended => {
                let is_taken_over = allocation.suspension_cause != SuspensionCause::Client
                    && cause == SuspensionCause::Client;
                if is_taken_over {
                    allocation.suspension_cause = cause;
                    self.calls
                        .retain(|call| call.claimant != CallClaimant::IdleSleeper(id.clone()));
                    let allocation = self.find(id)?;
                    for grant in &mut allocation.grants {
                        grant.shrunk = generation + 1;
                    }
                }
                return Ok(is_taken_over);
            }
            SuspensionPhase::Resuming => return Err(AllocationRefusal::InTransition(id.clone())),
        }
        match &allocation.state {
            AllocationPhase::Allocated(_) => {
                allocation.suspension = SuspensionPhase::Suspending;
                allocation.suspension_cause = cause;
                self.unmet.retain(|(_, unmet), _| unmet != id);
                Ok(true)
            }
            AllocationPhase::Reserved { .. } => Err(AllocationRefusal::Uncommitted(id.clone())),
            AllocationPhase::Draining => Err(AllocationRefusal::Draining(id.clone())),
        }
    }

    /// The memory stays held until a sample that begins from here on shows what the driver has freed.
    pub(crate) fn suspended(&mut self, now: EpochMillis, id: &AllocationId) -> Vec<LedgerEffect> {
        let generation = self.generation();
        let Some(allocation) = self.allocations.get_mut(id) else {
            return Vec::new();
        };
        let before = allocation.suspension;
        match before {
            SuspensionPhase::Suspending | SuspensionPhase::Resuming => {}
            SuspensionPhase::Running | SuspensionPhase::Suspended => return Vec::new(),
        }
        allocation.suspension = SuspensionPhase::Suspended;
        let kind = match allocation.suspension_cause {
            SuspensionCause::Client | SuspensionCause::Guarantee => NoticeKind::Suspended,
            SuspensionCause::Idle => NoticeKind::Idle,
        };
        if before == SuspensionPhase::Suspending {
            // A wake that failed does not cost it its place among those who wait for one.
            allocation.moved = now;
        }
        for grant in &mut allocation.grants {
            grant.needed = grant.held;
            grant.shrunk = generation + 1;
        }
        let mut effects = vec![LedgerEffect::Save];
        if before == SuspensionPhase::Suspending {
            let detail = self.asleep(id);
            effects.push(self.notice_with(kind, id, detail));
        }
        effects
    }

    /// Takes the memory of a suspended allocation again: on all cards or on none.
    pub(crate) fn resume_processes(&mut self, id: &AllocationId) -> Vec<LedgerEffect> {
        answered(id, self.begin_resume(id), vec![LedgerEffect::Save])
    }

    /// Returns whether the allocation was suspended. One that drains can be resumed: its processes could not end
    /// otherwise.
    fn begin_resume(&mut self, id: &AllocationId) -> Result<bool, AllocationRefusal> {
        let allocation = self.find(id)?;
        match allocation.suspension {
            SuspensionPhase::Suspended => {}
            SuspensionPhase::Running | SuspensionPhase::Resuming => return Ok(false),
            SuspensionPhase::Suspending => return Err(AllocationRefusal::InTransition(id.clone())),
        }
        let asks = allocation.needs();
        let claimant = allocation.claimant();
        for ask in &asks {
            self.judge(*ask, Some(id), &claimant)?;
        }
        let _ = self.close_call(&claimant);
        let allocation = self.find(id)?;
        allocation.suspension = SuspensionPhase::Resuming;
        for (grant, ask) in allocation.grants.iter_mut().zip(asks) {
            grant.held = ask.bytes;
        }
        Ok(true)
    }

    pub(crate) fn resumed(&mut self, now: EpochMillis, id: &AllocationId) -> Vec<LedgerEffect> {
        let Some(allocation) = self.allocations.get_mut(id) else {
            return Vec::new();
        };
        let before = allocation.suspension;
        match before {
            SuspensionPhase::Suspending | SuspensionPhase::Resuming => {}
            SuspensionPhase::Running | SuspensionPhase::Suspended => return Vec::new(),
        }
        let slept = allocation.grants.iter().map(|grant| grant.needed).sum();
        let kind = match allocation.suspension_cause {
            SuspensionCause::Client | SuspensionCause::Guarantee => NoticeKind::Resumed,
            SuspensionCause::Idle => NoticeKind::Called,
        };
        allocation.suspension = SuspensionPhase::Running;
        allocation.suspension_cause = SuspensionCause::Client;
        if before == SuspensionPhase::Resuming {
            allocation.moved = now;
        }
        for grant in &mut allocation.grants {
            grant.needed = Bytes::ZERO;
        }
        let mut effects = vec![
            LedgerEffect::Save,
            LedgerEffect::SetSuspended {
                id: id.clone(),
                is_suspended: false,
            },
        ];
        if before == SuspensionPhase::Resuming {
            let detail = back_on_the_gpu(slept);
            effects.push(self.notice_with(kind, id, detail));
        }
        effects
    }

    /// What an allocation that falls asleep has in the host, and for whom it sleeps.
    fn asleep(&self, id: &AllocationId) -> String {
        let Some(allocation) = self.allocations.get(id) else {
            return String::new();
        };
        let moved: Bytes = allocation.grants.iter().map(|grant| grant.needed).sum();
        if allocation.is_reclaimed() {
            return format!(
                "{moved} are free for others, because the pod's scheduler needs what was guaranteed to it"
            );
        }
        let mut text = format!("{moved} moved to the host's memory");
        let cards = allocation.grants.iter().map(|grant| grant.card);
        let callers: Vec<_> = cards.flat_map(|card| self.callers(card)).collect();
        if allocation.suspension_cause == SuspensionCause::Guarantee && !callers.is_empty() {
            text.push_str(&format!(
                ", because what it used above its guarantee was promised to {}",
                callers.join(" and ")
            ));
        }
        if allocation.suspension_cause == SuspensionCause::Idle {
            text.push_str(", because its programs did not use the GPU");
        }
        text
    }
}

/// Refuses what a claim owns. A pod gives its guarantee back only for its scheduler.
fn may_sleep(
    allocation: &Allocation,
    requester: SuspensionRequester,
) -> Result<(), AllocationRefusal> {
    let of_pod = || Err(AllocationRefusal::OfPod(allocation.id.clone()));
    match (&allocation.state, requester) {
        (AllocationPhase::Allocated(AllocationOwner::Claim(_)), _)
        | (AllocationPhase::Allocated(AllocationOwner::Pod(_)), SuspensionRequester::Client) => {
            of_pod()
        }
        (
            AllocationPhase::Allocated(AllocationOwner::Pod(_) | AllocationOwner::Process(_))
            | AllocationPhase::Reserved { .. }
            | AllocationPhase::Draining,
            SuspensionRequester::Client
            | SuspensionRequester::Scheduler
            | SuspensionRequester::GuaranteeCall
            | SuspensionRequester::IdleTime,
        ) => Ok(()),
    }
}

/// The effects of a transition that begins, and the answer. One that was begun before has no effects.
fn answered(
    id: &AllocationId,
    begun: Result<bool, AllocationRefusal>,
    mut effects: Vec<LedgerEffect>,
) -> Vec<LedgerEffect> {
    if !matches!(begun, Ok(true)) {
        effects.clear();
    }
    effects.push(LedgerEffect::Answer(begun.map(|_| id.clone())));
    effects
}

fn back_on_the_gpu(slept: Bytes) -> String {
    format!("{slept} moved back to the GPU")
}

impl crate::Allocation {
    /// Whether it sleeps and has given all its memory back.
    pub(crate) fn has_given_back(&self) -> bool {
        self.suspension == SuspensionPhase::Suspended && !self.keeps_guarantee()
    }

    /// Whether it keeps its guarantee while it sleeps. A pod does: its scheduler counts its guarantee as taken.
    pub(crate) fn keeps_guarantee(&self) -> bool {
        match self.suspension_cause {
            SuspensionCause::Client => false,
            SuspensionCause::Guarantee => true,
            SuspensionCause::Idle => {
                matches!(
                    self.state,
                    AllocationPhase::Allocated(AllocationOwner::Pod(_))
                )
            }
        }
    }

    /// Whether a pod sleeps because its scheduler took its guarantee.
    pub(crate) fn is_reclaimed(&self) -> bool {
        let is_pod = matches!(
            self.state,
            AllocationPhase::Allocated(AllocationOwner::Pod(_))
        );
        is_pod && self.suspension_cause == SuspensionCause::Client
    }

    /// In whose name it asks for its memory when it is to wake.
    #[must_use]
    pub fn claimant(&self) -> CallClaimant {
        match self.suspension_cause {
            SuspensionCause::Client | SuspensionCause::Guarantee => {
                CallClaimant::Sleeper(self.id.clone())
            }
            SuspensionCause::Idle => CallClaimant::IdleSleeper(self.id.clone()),
        }
    }

    /// What a suspended allocation must get back before its processes are woken.
    #[must_use]
    pub fn needs(&self) -> Vec<CardRequest> {
        let ask = |grant: &crate::CardGrant| CardRequest {
            card: grant.card,
            bytes: grant.limit.max(grant.needed),
        };
        self.grants.iter().map(ask).collect()
    }

    /// What of that it does not keep while it sleeps, by card.
    #[must_use]
    pub fn lacks(&self) -> Vec<(CardUuid, Bytes)> {
        let needs = self.needs().into_iter().zip(&self.grants);
        let lacks = needs.map(|(ask, grant): (CardRequest, &crate::CardGrant)| {
            (ask.card, ask.bytes.minus(self.keeps_asleep(grant)))
        });
        lacks.collect()
    }

    /// Whether it needs no more than what it keeps while it sleeps.
    pub(crate) fn needs_what_it_keeps(&self) -> bool {
        self.lacks().iter().all(|(_, bytes)| *bytes == Bytes::ZERO)
    }

    /// What one of its grants holds while it sleeps, beside what the driver still reports.
    pub(crate) fn keeps_asleep(&self, grant: &crate::CardGrant) -> Bytes {
        if self.keeps_guarantee() {
            grant.guaranteed()
        } else {
            Bytes::ZERO
        }
    }
}
