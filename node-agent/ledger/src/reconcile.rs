//! Compares grants with samples: overhead, unmanaged memory, and processes that do not keep their limit.
//!
//! Programs can corrupt their account; they cannot corrupt NVML. So a process that uses more than the limit, or a
//! card that it was not granted, is an offender. It is reported when the offence begins. If the policy says so, it
//! is killed or evicted when three samples in a row show the offence. A program whose limit was lowered below its
//! use has done nothing wrong. It is only shown as above its limit.
//!
//! # Decision: memory without a claim is overhead until the limit is exceeded
//! Video encoders, OptiX and Vulkan take memory through interfaces that no hook sees. So does a program that goes
//! around the library. NVML shows both alike. What they use counts as overhead of their allocation, so its other
//! processes can take that much less and the sum keeps to the limit. As long as it does, nobody is harmed and nobody
//! is an offender. When all of the allocation's processes together use more than allowed, each that uses the card
//! without a claim bypasses the limit, in that same sample. If the driver does not report a process's memory, nobody
//! can tell whether it keeps the limit, and it counts as a bypass at once.
//!
//! # Decision: an honest program is no offender
//! Drivers take memory for a program without a call that a hook sees: code that is loaded lazily, queues, page
//! tables. It counts as overhead from the next sample on, and may exceed a limit that was already full. A program
//! that charges everything it can has done nothing wrong, and killing it would be worse than the exceeded limit. So
//! each process that charges has a *leeway*: that much memory beyond its claims is no offence. It still counts as
//! overhead, every charge is refused, and the state is `Overlimit`.
//!
//! Nothing bounds what a driver takes. So the leeway is the one amount that was measured on this card: the cost of a
//! first context, at least 64 MiB. Each honest process charges that much for its context, so the leeways of all
//! processes with a context sum to at most the limit, and never more than the limit is forgiven. This also bounds
//! what forged claims are worth.
//!
//! Memory of a dead process that its children keep alive is forgiven within the same bound: its claim ended with it,
//! and other processes may have charged up to the limit before the sample that showed it. Processes whose account
//! the agent cannot read, for example one of another version, have a leeway, too: it is not their fault that they
//! seem to claim nothing.
//!
//! The claim that counts here is the *lowest* during the NVML query. So a program that allocates and frees at that
//! moment gets the benefit of the doubt.
//!
//! A process without a claim has no leeway. Together with the others, less their leeway, it must keep the limit.

use apportion_abi::{Bytes, CardUuid};

use crate::allocation::{
    Allocation, AllocationOwner, AllocationPhase, CardGrant, LimitEnforcement, SuspensionPhase,
};

use crate::event::{LedgerEffect, LedgerNotice, NoticeKind, OffenderPolicy};
use crate::ids::{AllocationId, ProcessId};
use crate::ledger::Ledger;
use crate::offence::{LimitViolation, Offences};
use crate::sample::{CardSample, NodeSample, ProcessSample};

/// How many samples in a row must show an offence before its process is killed or evicted.
const STRIKES: u32 = 3;

/// How many samples pass before an eviction is requested again. The earlier request may have been refused.
const ASK_AGAIN: u32 = 40;

impl Ledger {
    pub(crate) fn reconcile(&mut self, sample: NodeSample) -> Vec<LedgerEffect> {
        let mut effects = Vec::new();
        self.sampled = sample.generation;
        for sampled in &sample.cards {
            let (strangers, untold) = self.strangers(sampled);
            if let Some(card) = self.cards.get_mut(&sampled.card) {
                card.observe(strangers, untold);
            }
        }
        for account in &sample.accounts {
            let Some(allocation) = self.allocations.get_mut(&account.id) else {
                continue;
            };
            let mut found = Vec::new();
            let is_whole = allocation.is_whole;
            let suspension = allocation.suspension;
            let keeps_guarantee = allocation.keeps_guarantee();
            let was_damaged = allocation
                .grants
                .iter()
                .any(|grant| grant.enforcement == LimitEnforcement::Missing);
            for sampled in &sample.cards {
                found.extend(ungranted(allocation, sampled));
                let Some(grant) = allocation.grant_mut(sampled.card) else {
                    continue;
                };
                let claimed = account
                    .claimed
                    .iter()
                    .find(|(card, _)| *card == sampled.card);
                let view = AccountView {
                    sampled,
                    id: &account.id,
                    claimed: claimed.map_or(Bytes::ZERO, |c| c.1),
                    suspension,
                };
                if view.enter(grant, &mut found) {
                    let (id, card, overhead) = (account.id.clone(), grant.card, grant.overhead);
                    effects.push(LedgerEffect::SetOverhead { id, card, overhead });
                }
                if is_whole {
                    grant.enforcement = LimitEnforcement::Whole;
                }
                grant.used = grant.nvml.max(view.claimed.plus(grant.overhead));
                if grant.shrunk <= sample.generation {
                    // Programs can forge their claims. So claims keep memory held but never make an allocation hold
                    // more.
                    let claimed = view.claimed.plus(grant.overhead).min(grant.held);
                    grant.held = match suspension {
                        // Its processes keep their claims, and need the memory again when they are woken.
                        SuspensionPhase::Suspended if keeps_guarantee => {
                            grant.nvml.max(grant.guaranteed())
                        }
                        SuspensionPhase::Suspended => grant.nvml,
                        SuspensionPhase::Running
                        | SuspensionPhase::Suspending
                        | SuspensionPhase::Resuming => grant.limit.max(grant.nvml).max(claimed),
                    };
                    grant.allowed = grant.limit.max(grant.allowed.min(grant.nvml));
                }
            }
            if is_whole {
                // A whole card has no limit to exceed and no account to bypass.
                found.retain(|offence| offence.kind == NoticeKind::Ungranted);
            } else if !account.is_sound {
                allocation
                    .grants
                    .iter_mut()
                    .for_each(|grant| grant.enforcement = LimitEnforcement::Missing);
                if !was_damaged {
                    effects.push(LedgerEffect::Notice(LedgerNotice {
                        kind: NoticeKind::Damaged,
                        allocation: Some((account.id.clone(), allocation.name.clone())),
                        card: None,
                        process: None,
                        detail: String::new(),
                    }));
                }
            }
            effects.extend(self.punish(&account.id, found));
        }
        effects
    }

    pub(crate) fn process_gone(
        &mut self,
        id: &AllocationId,
        process: ProcessId,
    ) -> Vec<LedgerEffect> {
        let Some(allocation) = self.allocations.get_mut(id) else {
            return Vec::new();
        };
        let mut effects = Vec::new();
        for grant in &mut allocation.grants {
            if grant.estimates.remove(&process).is_some() && grant.add_up() {
                let (id, card, overhead) = (id.clone(), grant.card, grant.overhead);
                effects.push(LedgerEffect::SetOverhead { id, card, overhead });
            }
        }
        effects
    }

    /// The memory of processes without a grant on the card, and the memory that no process explains.
    fn strangers(&self, sampled: &CardSample) -> (Bytes, Bytes) {
        if sampled
            .processes
            .iter()
            .any(|process| process.nvml.is_none())
        {
            // The card does not report memory per process, so everything beyond the claims counts as unmanaged.
            let claims = sampled
                .processes
                .iter()
                .filter_map(|process| process.claimed);
            return (
                sampled.used.minus(claims.map(|claim| claim.highest).sum()),
                Bytes::ZERO,
            );
        }
        let used = |process: &ProcessSample| process.nvml.unwrap_or_default();
        let listed = sampled.processes.iter().map(used).sum();
        let strangers = sampled
            .processes
            .iter()
            .filter(|process| !self.is_granted(process, sampled.card));
        (
            strangers.map(used).sum(),
            sampled.used.minus(listed).minus(sampled.unlisted),
        )
    }

    fn is_granted(&self, process: &ProcessSample, card: CardUuid) -> bool {
        let owner = process
            .owner
            .as_ref()
            .and_then(|id| self.allocations.get(id));
        owner.is_some_and(|allocation| allocation.grant(card).is_some())
    }

    /// Counts samples in a row, reports new offences, and kills or evicts where the policy says so.
    fn punish(&mut self, id: &AllocationId, found: Vec<LimitViolation>) -> Vec<LedgerEffect> {
        let before = self.offences.remove(id).unwrap_or_default();
        let mut effects = Vec::new();
        let mut after = Offences::new();
        for offence in found {
            let strikes = before
                .get(&offence)
                .map_or(1, |strikes| strikes.saturating_add(1));
            // A process with two offences is killed and counted once.
            let is_killed = before
                .iter()
                .chain(&after)
                .any(|(known, strikes)| known.process == offence.process && *strikes >= STRIKES);
            after.insert(offence, strikes);
            if strikes == 1 {
                effects.push(self.notice_of(offence.kind, id, offence));
            }
            if strikes < STRIKES {
                continue;
            }
            match self.policy_of(id) {
                OffenderPolicy::Observe => {}
                OffenderPolicy::Evict if self.is_pods(id) => {
                    let is_due = (strikes - STRIKES).is_multiple_of(ASK_AGAIN);
                    let evicted = self.notice_of(NoticeKind::Evicted, id, offence);
                    // One request for the pod is enough, even with several offences.
                    if is_due && !effects.iter().any(is_eviction) {
                        effects.push(evicted);
                    }
                }
                OffenderPolicy::Evict | OffenderPolicy::Kill if !is_killed => {
                    effects.push(LedgerEffect::Kill(offence.process));
                    effects.push(self.notice_of(NoticeKind::Killed, id, offence));
                }
                OffenderPolicy::Evict | OffenderPolicy::Kill => {}
            }
        }
        if !after.is_empty() {
            self.offences.insert(id.clone(), after);
        }
        effects
    }

    fn is_pods(&self, id: &AllocationId) -> bool {
        let owner = self.allocations.get(id).map(|of| &of.state);
        matches!(
            owner,
            Some(AllocationPhase::Allocated(
                AllocationOwner::Pod(_) | AllocationOwner::Claim(_)
            ))
        )
    }

    fn notice_of(
        &self,
        kind: NoticeKind,
        id: &AllocationId,
        offence: LimitViolation,
    ) -> LedgerEffect {
        let name = self
            .allocations
            .get(id)
            .map(|allocation| allocation.name.clone());
        LedgerEffect::Notice(LedgerNotice {
            kind,
            allocation: Some((id.clone(), name.unwrap_or_default())),
            card: Some(offence.card),
            process: Some(offence.process),
            detail: String::new(),
        })
    }
}

/// One account on one card in a sample.
struct AccountView<'a> {
    sampled: &'a CardSample,
    id: &'a AllocationId,
    claimed: Bytes,
    suspension: SuspensionPhase,
}

impl AccountView<'_> {
    /// Enters the sample into the grant. Returns whether its overhead changed.
    fn enter(&self, grant: &mut CardGrant, found: &mut Vec<LimitViolation>) -> bool {
        let own = || self.own();
        let changed = match self.suspension {
            SuspensionPhase::Running => self.estimate(grant),
            // A process that sleeps, or is half-way there, says nothing about what it needs beyond its claims.
            SuspensionPhase::Suspending
            | SuspensionPhase::Suspended
            | SuspensionPhase::Resuming => false,
        };
        grant.nvml = own().filter_map(|process| process.nvml).sum();

        let forgiven: Bytes = own().map(|p| forgiven(p, self.sampled.leeway)).sum();
        let exceeds_allowed = grant.nvml.minus(forgiven.min(grant.allowed)) > grant.allowed;
        let bypassing = own()
            .filter(|p| bypasses(p, exceeds_allowed))
            .map(|p| self.offence(NoticeKind::Bypassed, p));
        let bypassing: Vec<_> = bypassing.collect();
        // The sample may have begun before an allowance was withdrawn, while `allowed` still has the old one. Above the
        // ceiling it is what a resize has left.
        let kept = match grant.burst {
            Some(range) => grant.allowed.min(range.ceiling),
            None => grant.limit,
        };
        let exceeds = grant.nvml > kept;
        grant.enforcement = match () {
            () if !bypassing.is_empty() => LimitEnforcement::Bypassed,
            () if exceeds => LimitEnforcement::Overlimit,
            () if self.claimed > Bytes::ZERO || own().next().is_some() => {
                LimitEnforcement::Attached
            }
            () => LimitEnforcement::Pending,
        };
        if exceeds_allowed {
            // Prefer a living process: a dead one cannot be killed.
            let worst = own().max_by_key(|process| (!process.has_ended, unexplained(process)));
            found.extend(worst.map(|process| self.offence(NoticeKind::Overlimit, process)));
        }
        found.extend(bypassing);
        changed
    }

    /// The processes of the account.
    fn own(&self) -> impl Iterator<Item = &ProcessSample> {
        let all = self.sampled.processes.iter();
        all.filter(|p| p.owner.as_ref() == Some(self.id))
    }

    /// Estimates the overhead again. Returns whether it changed.
    fn estimate(&self, grant: &mut CardGrant) -> bool {
        grant
            .estimates
            .retain(|process, _| self.own().any(|p| p.process == *process));
        for process in self.own() {
            if let Some(nvml) = process.nvml {
                let claimed = process.claimed.unwrap_or_default();
                grant
                    .estimates
                    .entry(process.process)
                    .or_default()
                    .observe(nvml, claimed);
            }
        }
        grant.add_up()
    }

    fn offence(&self, kind: NoticeKind, process: &ProcessSample) -> LimitViolation {
        LimitViolation {
            kind,
            card: self.sampled.card,
            process: process.process,
        }
    }
}

fn is_eviction(effect: &LedgerEffect) -> bool {
    matches!(effect, LedgerEffect::Notice(notice) if notice.kind == NoticeKind::Evicted)
}

/// What a process uses beyond its claims, according to NVML.
fn unexplained(process: &ProcessSample) -> Bytes {
    let claimed = process.claimed.unwrap_or_default();
    process.nvml.unwrap_or_default().minus(claimed.highest)
}

/// The part of a process's memory beyond its claims that is no offence.
fn forgiven(process: &ProcessSample, leeway: Bytes) -> Bytes {
    let used = process.nvml.unwrap_or_default();
    match process.claimed {
        _ if process.has_ended => used,
        Some(claimed) if claimed.highest > Bytes::ZERO => used.minus(claimed.lowest).min(leeway),
        Some(_) | None => Bytes::ZERO,
    }
}

/// Whether a process uses a card without a claim while its allocation uses more than allowed.
fn bypasses(process: &ProcessSample, exceeds_allowed: bool) -> bool {
    process.claimed.is_none()
        && match process.nvml {
            None => true,
            Some(used) => exceeds_allowed && used > Bytes::ZERO,
        }
}

/// The processes of an allocation that use a card without a grant on it.
fn ungranted(allocation: &Allocation, sampled: &CardSample) -> Vec<LimitViolation> {
    if allocation.grant(sampled.card).is_some() {
        return Vec::new();
    }
    let own = sampled
        .processes
        .iter()
        .filter(|p| p.owner.as_ref() == Some(&allocation.id));
    own.map(|process| LimitViolation {
        kind: NoticeKind::Ungranted,
        card: sampled.card,
        process: process.process,
    })
    .collect()
}
