//! Shares that are put to sleep while their programs do not use the GPU, and woken by their next call of the driver.
//!
//! A share is idle if no program of it has called the driver for as long as it asked for, and NVML has not seen a kernel
//! of it run in that time. The second sign is for calls that are not seen. Programs write both their words and what they run,
//! so each can keep itself awake or asleep, and nobody else.
//!
//! # Decision: a pod runs, and a command is refused
//! Whoever starts a command is there to read why this machine cannot suspend it. A pod may be placed on any node, and must
//! not fail because one cannot: it runs awake there, and an event says why. One that asks for less than the agent's minimum
//! is suspended after the minimum.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use apportion_ledger::{
    Allocation, AllocationId, AllocationPhase, CallStep, GuaranteeCall, LedgerEvent, LedgerNotice,
    NoticeKind, PlacementProposal, SuspensionCause, SuspensionPhase,
};
use apportion_process_checkpoints::transition::TransitionGoal;
use tonic::Status;
use tracing::{info, warn};

use super::NodeAgent;
use super::guarantee_calls::asks_of;
use super::idle_watches::IdleWatch;
use super::state::{AgentState, RequestOutcome};
use super::suspensions::{RunningTransition, TransitionClient};
use crate::api::request::NewcomerPatience;
use crate::options::BurstReclaim;
use crate::processes::threads::WakefulThreads;

/// The first release of the driver with checkpoints of processes.
const FIRST_WITH_CHECKPOINTS: u32 = 570;

/// What this agent does for shares that sleep when they are idle.
struct IdleTerms {
    /// The shortest time after which it puts one to sleep.
    least: Duration,
    /// Why its driver puts none to sleep.
    obstacle: Option<String>,
}

impl NodeAgent {
    /// Refuses what this agent cannot put to sleep, unless a scheduler has placed it here.
    pub(super) fn may_sleep_when_idle(
        &self,
        proposal: &PlacementProposal,
        patience: NewcomerPatience,
    ) -> Result<(), Status> {
        let Some(idle_after) = proposal.idle_after else {
            return Ok(());
        };
        let least = self.options.cards.suspend_when_idle_min;
        if patience == NewcomerPatience::AsksAgain {
            if idle_after < least {
                let name = &proposal.name;
                warn!(
                    name,
                    ?idle_after,
                    ?least,
                    "Idle time below the minimum, the minimum is used"
                );
            }
            return Ok(());
        }
        if idle_after < least {
            let why = format!(
                "a share is suspended when it is idle for {least:?} at least on this machine, not for {idle_after:?}; \
                 the agent's option --suspend-when-idle-min changes that"
            );
            return Err(Status::invalid_argument(why));
        }
        let (version, _) = self.state.cards.versions();
        has_checkpoints(version).map_err(Status::failed_precondition)
    }

    /// Goes on with the shares that sleep when they are idle: notes who uses the GPU, wakes who is called, and puts to
    /// sleep who is idle.
    pub(super) fn continue_idle_shares(&mut self) {
        let (version, _) = self.state.cards.versions();
        let is_known = !version.is_empty();
        let terms = IdleTerms {
            least: self.options.cards.suspend_when_idle_min,
            obstacle: has_checkpoints(version).err().filter(|_| is_known),
        };
        self.state.watch_idle_shares(&terms);
        for id in self.state.idle.called() {
            self.wake_called(&id);
        }
        for id in self.state.idle.due() {
            if self.state.suspensions.is_busy() {
                return;
            }
            self.suspend_idle(&id);
        }
    }

    fn wake_called(&mut self, id: &AllocationId) {
        if self.state.suspensions.is_busy() || !self.state.calls.may_wake(id) {
            return;
        }
        let Some(allocation) = self.state.ledger.allocation(id) else {
            return;
        };
        if allocation.suspension != SuspensionPhase::Suspended {
            return;
        }
        let (claimant, name) = (allocation.claimant(), allocation.name.clone());
        let asks = asks_of(allocation.lacks());
        let step = self.next_step(&claimant, &asks);
        if step == CallStep::Ready {
            self.wake(id, TransitionClient::Idle);
            return;
        }
        if !self.state.ledger.has_call(&claimant) {
            if let Some(watch) = self.state.idle.watches.get_mut(id) {
                watch.has_waited = true;
            }
            info!(%id, name, "Idle share called, it waits for its memory");
            let call = GuaranteeCall {
                claimant,
                name,
                asks,
            };
            self.state.apply_quietly(LedgerEvent::CallOpened(call));
            self.state.calls.want_samples();
            self.state.sample();
        }
        match step {
            CallStep::Suspend(other)
                if self.options.cards.burst_reclaim == BurstReclaim::Suspend
                    && self.state.calls.is_sampled() =>
            {
                self.call_in(&other);
            }
            CallStep::Suspend(_) | CallStep::Hopeless | CallStep::Awaited | CallStep::Ready => {}
        }
    }

    fn suspend_idle(&mut self, id: &AllocationId) {
        if !self.state.is_out_of_the_driver(id) {
            return;
        }
        let begun = self
            .host_room(id)
            .map_err(|shortfall| shortfall.to_string());
        let begun =
            begun.and_then(
                |()| match self.state.apply(LedgerEvent::Idle { id: id.clone() }) {
                    RequestOutcome::Answered(Ok(_)) => Ok(()),
                    RequestOutcome::Answered(Err(refusal)) => Err(refusal.to_string()),
                    RequestOutcome::Failed(problem) => Err(problem),
                },
            );
        match begun {
            Ok(()) => {
                info!(%id, "Share goes to sleep, it is idle");
                self.state.withdraw_unused(id);
                let (goal, client) = (TransitionGoal::Asleep, TransitionClient::Idle);
                self.state.move_processes(id.clone(), goal, true, client);
            }
            Err(why) => self.state.stay_awake(id, &why),
        }
    }
}

impl AgentState {
    /// Notes who uses the GPU, and which sleepers are called.
    fn watch_idle_shares(&mut self, terms: &IdleTerms) {
        let all = self.ledger.allocations().into_iter();
        let watched: BTreeMap<_, _> = all
            .filter_map(|of| Some((of.id.clone(), of.idle_after?.max(terms.least))))
            .collect();
        self.idle.watches.retain(|id, _| watched.contains_key(id));
        for (id, idle_after) in watched {
            let watch = self.idle.watches.remove(&id);
            let mut watch = watch.unwrap_or_else(|| IdleWatch::new(idle_after));
            self.watch_idle_share(&id, idle_after, &mut watch);
            let why = self.never_sleeps(&id, terms);
            if why.is_some() {
                watch.use_now();
            }
            self.idle.watches.insert(id.clone(), watch);
            if let Some(why) = why {
                self.report_awake(&id, why);
            }
        }
    }

    fn watch_idle_share(&self, id: &AllocationId, idle_after: Duration, watch: &mut IdleWatch) {
        let Some((allocation, account)) = self.ledger.allocation(id).zip(self.accounts.get(id))
        else {
            watch.use_now();
            return;
        };
        match allocation.suspension {
            SuspensionPhase::Running => {
                watch.wake_up(idle_after);
                if account.is_called() {
                    account.begin_epoch();
                    watch.use_now();
                } else if self.runs_a_kernel(id) || self.has_stranger(id) || !is_owned(allocation) {
                    watch.use_now();
                }
            }
            SuspensionPhase::Suspending
            | SuspensionPhase::Suspended
            | SuspensionPhase::Resuming => {
                watch.asleep.get_or_insert_with(Instant::now);
                let is_idle = allocation.suspension_cause == SuspensionCause::Idle;
                watch.called = if is_idle && account.is_called() {
                    watch.called.or_else(|| Some(Instant::now()))
                } else {
                    None
                };
            }
        }
    }

    /// Why a share that runs is never put to sleep. One that may be called unseen stays awake: its next call might wake
    /// nobody.
    fn never_sleeps(&self, id: &AllocationId, terms: &IdleTerms) -> Option<String> {
        let allocation = self.ledger.allocation(id)?;
        if allocation.suspension != SuspensionPhase::Running || !is_owned(allocation) {
            return None;
        }
        let is_unseen = self.accounts.get(id)?.may_be_called_unseen();
        let unseen = is_unseen.then(|| {
            "a library of it is linked with the driver, so it can call the driver unseen".to_owned()
        });
        terms.obstacle.clone().or(unseen)
    }

    /// Says why a share is not put to sleep, once until it is.
    fn report_awake(&mut self, id: &AllocationId, why: String) {
        let watch = self.idle.watches.get_mut(id);
        let allocation = self.ledger.allocation(id);
        let Some((watch, allocation)) = watch.zip(allocation) else {
            return;
        };
        if !std::mem::replace(&mut watch.is_reported, true) {
            self.publisher.publish_notice(&LedgerNotice {
                kind: NoticeKind::StaysAwake,
                allocation: Some((id.clone(), allocation.name.clone())),
                card: None,
                process: None,
                detail: why,
            });
        }
    }

    /// Whether NVML has lately seen a process of the allocation compute.
    fn runs_a_kernel(&self, id: &AllocationId) -> bool {
        let members = self.members.of(id);
        self.cards.readings().any(|card| {
            let loads = card.loads.as_ref();
            let mut own = members.iter();
            own.any(|of| {
                loads.is_some_and(|loads| loads.get(&of.pid).is_some_and(|load| *load > 0))
            })
        })
    }

    /// Whether a process of the allocation uses a card without the library. Its calls are not seen, so none could wake it.
    fn has_stranger(&self, id: &AllocationId) -> bool {
        let members = self.members.of(id);
        let is_listed = |pid| (self.cards.readings()).any(|card| card.processes.contains_key(&pid));
        let mut listed = members.into_iter().filter(|of| is_listed(of.pid));
        listed.any(|of| !self.accounts.has_entered(id, of))
    }

    /// Whether no thread of the allocation is just about to call the driver.
    fn is_out_of_the_driver(&mut self, id: &AllocationId) -> bool {
        self.members.search(id);
        self.members.follow();
        let members = self.members.of(id);
        let Some(watch) = self.idle.watches.get_mut(id) else {
            return false;
        };
        let wakeful = match watch.wakeful.take() {
            Some(before) => before.still(),
            None => WakefulThreads::of(members.iter().map(|of| of.pid)),
        };
        let is_out = wakeful.is_empty();
        watch.wakeful = (!is_out).then_some(wakeful);
        is_out
    }

    fn stay_awake(&mut self, id: &AllocationId, why: &str) {
        let idle_after = self.ledger.allocation(id).and_then(|of| of.idle_after);
        let watch = self.idle.watches.get_mut(id);
        if let Some((watch, idle_after)) = watch.zip(idle_after) {
            watch.wait_longer(idle_after);
            watch.asleep = None;
            let wait = watch.wait;
            info!(%id, why, ?wait, "Idle share stays awake, it is tried again");
            self.report_awake(id, why.to_owned());
        }
    }

    /// Notes how a transition of an idle share ended.
    pub(super) fn learn_from_idle(
        &mut self,
        done: &RunningTransition,
        result: &Result<String, String>,
    ) {
        let id = &done.id;
        self.publisher.stats().idle.count(done.goal, result.is_ok());
        match (done.goal, result) {
            (TransitionGoal::Asleep, Ok(_)) => {
                if let Some(watch) = self.idle.watches.get_mut(id) {
                    watch.is_reported = false;
                }
                info!(%id, moved = %done.moved, "Idle share sleeps");
            }
            (TransitionGoal::Asleep, Err(why)) => self.stay_awake(id, why),
            (TransitionGoal::Awake, Ok(_)) => {
                let Some(watch) = self.idle.watches.get_mut(id) else {
                    return;
                };
                let waited = watch.called.map(|called| called.elapsed());
                let waited = waited.unwrap_or_default();
                let was_free = !std::mem::take(&mut watch.has_waited);
                self.publisher.stats().idle.observe_wake(waited, was_free);
                info!(%id, ?waited, was_free, "Idle share woken by its call");
            }
            (TransitionGoal::Awake, Err(why)) => {
                warn!(%id, why, "Idle share could not be woken, it is tried again");
                self.calls.let_sleep(id.clone());
            }
        }
    }
}

/// Whether somebody owns the allocation: a reservation has no programs yet, and one that drains ends with its programs.
fn is_owned(allocation: &Allocation) -> bool {
    matches!(allocation.state, AllocationPhase::Allocated(_))
}

/// Whether a driver of this version, on this machine, can put processes to sleep; else why not.
pub(super) fn has_checkpoints(version: &str) -> Result<(), String> {
    let release = version
        .split('.')
        .next()
        .and_then(|first| first.parse().ok());
    if release.is_none_or(|release: u32| release < FIRST_WITH_CHECKPOINTS) {
        return Err(format!(
            "driver {version} cannot suspend programs, so not when they are idle either; driver \
             {FIRST_WITH_CHECKPOINTS} or newer can"
        ));
    }
    if cfg!(not(target_arch = "x86_64")) {
        return Err("NVIDIA's driver suspends programs only on x86-64".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_without_checkpoints_are_refused_by_their_release() {
        for version in ["550.54.15", "565.57", "", "x"] {
            let why = has_checkpoints(version).unwrap_err();
            assert!(why.contains("570 or newer"), "{why}");
        }
        assert_eq!(
            has_checkpoints("570.86.10").is_ok(),
            cfg!(target_arch = "x86_64")
        );
        assert_eq!(
            has_checkpoints("615.1").is_ok(),
            cfg!(target_arch = "x86_64")
        );
    }
}
