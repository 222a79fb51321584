//! The ledger, and what its effects change: accounts, members, grants, and what others see.
//!
//! An event goes through the ledger, and its effects are performed in their order. A change is undone if its account
//! cannot be created or the checkpoint cannot be written.

use apportion_abi::CardUuid;
use apportion_abi::account::{NewCard, ShareSuspension};
use apportion_exit::error_chain;
use apportion_ledger::{
    Allocation, AllocationId, AllocationOwner, AllocationPhase, AllocationRefusal, CardGrant,
    Health, Ledger, LedgerEffect, LedgerEvent, ProcessId, SlotEvent, SuspensionCause,
    SuspensionPhase,
};
use apportion_proto::v1;
use tonic::Status;
use tracing::{error, warn};

use super::accounts::{AccountTable, new_burst};
use super::burst_listeners::BurstListeners;
use super::cards::CardInventory;
use super::clock::now;
use super::context_cost::ContextCosts;
use super::driver_limits::DriverLimits;
use super::grants::{ContainerGrants, GrantSource};
use super::idle_watches::IdleShares;
use super::instance::InstanceFiles;
use super::lingering::LingeringProcesses;
use super::picture::StatePicture;
use super::publisher::StatusPublisher;
use super::suspensions::ProcessSuspensions;
use super::waiting_calls::WaitingCalls;
use crate::account::AccountCard;
use crate::driver::reserve::ContextCost;
use crate::processes::members::AllocationMembers;
use crate::runtime::cgroups::CgroupLookup;
use crate::telemetry::view::{AgentStats, AgentView};

/// The state of the agent.
pub(super) struct AgentState {
    pub(super) instance: InstanceFiles,
    pub(super) ledger: Ledger,
    pub(super) cards: CardInventory,
    pub(super) costs: ContextCosts,
    pub(super) accounts: AccountTable,
    pub(super) members: AllocationMembers,
    pub(super) bursts: BurstListeners,
    pub(super) lingering: LingeringProcesses,
    pub(super) cgroups: CgroupLookup,
    pub(super) grants: ContainerGrants,
    pub(super) suspensions: ProcessSuspensions,
    pub(super) calls: WaitingCalls,
    pub(super) idle: IdleShares,
    pub(super) limits: DriverLimits,
    pub(super) publisher: StatusPublisher,
}

/// The outcome of a request: the ledger's answer, or why it could not be performed.
pub(super) enum RequestOutcome {
    Answered(Result<AllocationId, AllocationRefusal>),
    Failed(String),
}

impl AgentState {
    /// Applies an event that no request waits for.
    pub(super) fn apply_quietly(&mut self, event: LedgerEvent) {
        if let RequestOutcome::Failed(problem) = self.apply(event) {
            error!(problem, "Failed to apply a ledger event");
        }
    }

    /// Applies an event and performs its effects.
    pub(super) fn apply(&mut self, event: LedgerEvent) -> RequestOutcome {
        self.make_room_for(&event);
        let before = revocable(&self.ledger, &event);
        let effects = self.ledger.apply(now(), event);
        let has_changed = !effects.is_empty();
        let outcome = self.perform_all(effects, before.as_ref());
        if let (RequestOutcome::Failed(_), Some(before)) = (&outcome, before) {
            self.ledger.revert(before);
        }
        if has_changed && !self.instance.is_restoring() {
            self.show();
        }
        outcome
    }

    /// Performs effects in their order, but for those of a change that will be undone: one of the allocation `before`.
    pub(super) fn perform_all(
        &mut self,
        effects: Vec<LedgerEffect>,
        before: Option<&Allocation>,
    ) -> RequestOutcome {
        let mut outcome =
            RequestOutcome::Answered(Err(AllocationRefusal::Malformed("the request is empty")));
        for effect in effects {
            let is_failed = matches!(outcome, RequestOutcome::Failed(_));
            if is_failed && before.iter().any(|before| is_of(&effect, &before.id)) {
                continue;
            }
            let performed = match effect {
                LedgerEffect::OpenAccount(id) => self.open_account(&id),
                LedgerEffect::Save => self.instance.try_save(&self.ledger),
                LedgerEffect::Answer(answer) => {
                    if let RequestOutcome::Answered(_) = outcome {
                        outcome = RequestOutcome::Answered(answer);
                    }
                    Ok(())
                }
                effect => {
                    self.perform(effect);
                    Ok(())
                }
            };
            if let Err(problem) = performed {
                outcome = RequestOutcome::Failed(problem);
            }
        }
        outcome
    }

    pub(super) fn perform(&mut self, effect: LedgerEffect) {
        match effect {
            LedgerEffect::SetLimit { id, card, limit } => {
                self.accounts.set_limit(&id, card, limit);
            }
            LedgerEffect::SetRange { id, card, range } => {
                self.accounts.set_range(&id, card, range);
            }
            LedgerEffect::SetOverhead { id, card, overhead } => {
                self.accounts.set_overhead(&id, card, overhead);
            }
            LedgerEffect::SetSuspended { id, is_suspended } => {
                let suspension = if is_suspended {
                    self.ledger.allocation(&id).map(asleep)
                } else {
                    None
                };
                let suspension = suspension.unwrap_or(ShareSuspension::Running);
                self.accounts.set_suspended(&id, suspension);
            }
            LedgerEffect::CloseAccount(id) => self.close_account(&id),
            LedgerEffect::Kill(process) => {
                let pid = process.pid;
                if self.members.exits.kill(process) {
                    warn!(pid, "Process killed by offender policy");
                } else {
                    warn!(
                        pid,
                        "Process to be killed by offender policy has ended, or can't be reached"
                    );
                }
            }
            LedgerEffect::Notice(notice) => self.publisher.publish_notice(&notice),
            LedgerEffect::OpenAccount(_) | LedgerEffect::Save | LedgerEffect::Answer(_) => {}
        }
    }

    fn open_account(&mut self, id: &AllocationId) -> Result<(), String> {
        let Some(allocation) = self.ledger.allocation(id) else {
            return Ok(());
        };
        let grants = allocation.grants.iter();
        let cards: Vec<_> = grants.map(|grant| self.new_card(grant)).collect();
        let asks_about_calls = allocation.idle_after.is_some();
        let opened = self.accounts.open(id, &cards, asks_about_calls);
        opened.map_err(|error| error_chain(&error))?;
        let suspension = match allocation.suspension {
            SuspensionPhase::Running => ShareSuspension::Running,
            SuspensionPhase::Suspending
            | SuspensionPhase::Suspended
            | SuspensionPhase::Resuming => asleep(allocation),
        };
        self.accounts.set_suspended(id, suspension);
        self.give_account(id);
        self.listen_for_bursts(id);
        Ok(())
    }

    fn new_card(&self, grant: &CardGrant) -> AccountCard {
        let found = self.cards.find(grant.card);
        let cost = self.context_cost(grant.card);
        let new = NewCard {
            uuid: grant.card,
            total: found.map_or(grant.limit, |card| card.capacity.total),
            limit: grant.limit,
            context_reserve: cost.first,
        };
        let burst = grant.burst.map(new_burst).unwrap_or_default();
        AccountCard { new, cost, burst }
    }

    fn close_account(&mut self, id: &AllocationId) {
        self.bursts.forget(id);
        self.accounts.close(id);
        // A `Gone` event is never refused.
        let _ = self.apply_slots(SlotEvent::Gone(id.clone()));
        self.grants.whole_gone(id);
        self.grants.claim_gone(id);
        self.members.dissolve(id);
        self.accounts.remove_files(id);
    }

    /// Opens the account to the users of the allocation.
    pub(super) fn give_account(&mut self, id: &AllocationId) {
        let Some(allocation) = self.ledger.allocation(id) else {
            return;
        };
        if let Some(access) = self.accounts.give(allocation) {
            self.members.restrict(id, access);
        }
    }

    /// The charges for contexts on the card.
    pub(super) fn context_cost(&self, card: CardUuid) -> ContextCost {
        self.costs.of(self.cards.model(card))
    }

    /// Applies an event of the kubelet's slots.
    pub(super) fn apply_slots(&mut self, event: SlotEvent) -> Result<(), Status> {
        let source = GrantSource {
            ledger: &self.ledger,
            accounts: &self.accounts,
            cards: &self.cards,
            costs: &self.costs,
            limits: &self.limits,
        };
        self.grants.apply(event, source)
    }

    /// What grants are made of.
    pub(super) fn grant_source(&self) -> GrantSource<'_> {
        GrantSource {
            ledger: &self.ledger,
            accounts: &self.accounts,
            cards: &self.cards,
            costs: &self.costs,
            limits: &self.limits,
        }
    }

    /// Asks the driver for a sample. If it still owes an answer, it is asked again right after that.
    pub(super) fn sample(&mut self) {
        if self.cards.can_ask() {
            self.accounts.begin();
            self.cards.ask(self.ledger.generation());
        }
    }

    /// Publishes a new view of the state.
    pub(super) fn show(&self) {
        self.grants.show(self.grant_source());
        let support = self.limits.support();
        let node = self.publisher.node(self.ledger.generation(), support);
        self.publisher.publish(AgentView {
            list: self.picture().list(node),
            sampled: self.cards.sampled().map(|sampled| sampled.at),
            is_ready: self.cards.is_ready(),
            counts: AgentStats {
                driver_limits: self.limits.counts(),
                ..self.grants.stats(self.publisher.stats_now())
            },
            rival: self.grants.rival().map(str::to_owned),
            idle: None,
        });
    }

    fn picture(&self) -> StatePicture<'_> {
        StatePicture {
            ledger: &self.ledger,
            cards: &self.cards,
            costs: &self.costs,
            accounts: &self.accounts,
            members: &self.members,
        }
    }

    /// An allocation as it is shown.
    pub(super) fn found(&self, id: &AllocationId) -> Result<v1::Allocation, Status> {
        match self.ledger.allocation(id) {
            Some(allocation) => Ok(self.picture().allocation(allocation)),
            None => Err(Status::not_found(format!("there is no allocation {id}"))),
        }
    }

    /// Processes the end of a process.
    pub(super) fn ended(&mut self, process: ProcessId) {
        let Some(id) = self.members.leave(process) else {
            return;
        };
        self.lingering.enter(process, &id);
        self.accounts.retire_dead(&id);
        self.apply_quietly(LedgerEvent::ProcessGone {
            id: id.clone(),
            process,
        });
        self.forget_what_slept(&id);
        let owned = AllocationPhase::Allocated(AllocationOwner::Process(process));
        let allocation = self.ledger.allocation(&id);
        if allocation.is_some_and(|allocation| allocation.state == owned) {
            self.apply_quietly(LedgerEvent::OwnerGone { id: id.clone() });
        }
        self.keep_driver_limits();
        self.end_with_pod(&id);
        self.end_if_empty(&id);
        self.sample();
    }

    /// A pod whose last process ended asleep needs nothing back: its container starts anew, with the guarantee.
    fn forget_what_slept(&mut self, id: &AllocationId) {
        let allocation = self.ledger.allocation(id);
        if allocation.is_some_and(|of| of.suspension == SuspensionPhase::Suspended)
            && self.members.of(id).is_empty()
        {
            self.withdraw_unused(id);
        }
    }

    /// Releases the allocation of a pod that is being deleted, once its last process has ended.
    fn end_with_pod(&mut self, id: &AllocationId) {
        let Some(allocation) = self.ledger.allocation(id) else {
            return;
        };
        let AllocationPhase::Allocated(AllocationOwner::Pod(pod)) = &allocation.state else {
            return;
        };
        if self.grants.is_ending(pod) && !has_processes(&mut self.members, id) {
            self.apply_quietly(LedgerEvent::OwnerGone { id: id.clone() });
        }
    }

    /// Removes a draining allocation when its last process has ended.
    pub(super) fn end_if_empty(&mut self, id: &AllocationId) {
        let allocation = self.ledger.allocation(id);
        let is_draining =
            allocation.is_some_and(|allocation| allocation.state == AllocationPhase::Draining);
        if is_draining && !has_processes(&mut self.members, id) {
            self.apply_quietly(LedgerEvent::Emptied { id: id.clone() });
        }
    }

    /// Watches every owner. A process that owns two allocations is a member of the later one only. When it leaves
    /// that one, it must become a member of the first again.
    pub(super) fn keep_owners(&mut self) {
        for allocation in self.ledger.allocations() {
            if let AllocationPhase::Allocated(AllocationOwner::Process(owner)) = allocation.state
                && !self.members.contains(owner)
            {
                self.members.join(owner, &allocation.id);
            }
        }
    }

    /// Marks all cards as unhealthy while the driver is silent.
    pub(super) fn doubt_cards(&mut self) {
        let cards: Vec<CardUuid> = self.cards.all().iter().map(|card| card.uuid).collect();
        for card in cards {
            let known = self.ledger.card(card);
            if known.is_some_and(|known| known.health == Health::Healthy) {
                self.apply_quietly(LedgerEvent::CardHealth {
                    card,
                    health: Health::Unhealthy,
                });
            }
        }
    }
}

/// What the account of an allocation says that is suspended.
fn asleep(allocation: &Allocation) -> ShareSuspension {
    match allocation.suspension_cause {
        SuspensionCause::Client | SuspensionCause::Guarantee => ShareSuspension::Asleep,
        SuspensionCause::Idle => ShareSuspension::AsleepUntilCalled,
    }
}

/// Whether any process belongs to the allocation.
pub(super) fn has_processes(members: &mut AllocationMembers, id: &AllocationId) -> bool {
    !members.of(id).is_empty() || members.search(id)
}

/// The allocation before a change that must be undone if it cannot be saved. Its effects other than the answer come
/// after the checkpoint.
fn revocable(ledger: &Ledger, event: &LedgerEvent) -> Option<Allocation> {
    match event {
        LedgerEvent::Commit { id, .. }
        | LedgerEvent::Resize { id, .. }
        | LedgerEvent::Suspend { id }
        | LedgerEvent::Reclaim { id }
        | LedgerEvent::Idle { id }
        | LedgerEvent::CallIn { id }
        | LedgerEvent::Suspended { id }
        | LedgerEvent::Resume { id }
        | LedgerEvent::Resumed { id } => ledger.allocation(id).cloned(),
        _ => None,
    }
}

/// Whether an effect changes this allocation or reports a change of it.
fn is_of(effect: &LedgerEffect, id: &AllocationId) -> bool {
    match effect {
        LedgerEffect::SetLimit { id: of, .. }
        | LedgerEffect::SetRange { id: of, .. }
        | LedgerEffect::SetOverhead { id: of, .. }
        | LedgerEffect::SetSuspended { id: of, .. } => of == id,
        LedgerEffect::Notice(notice) => notice.allocation.iter().any(|(of, _)| of == id),
        LedgerEffect::OpenAccount(_)
        | LedgerEffect::CloseAccount(_)
        | LedgerEffect::Kill(_)
        | LedgerEffect::Save
        | LedgerEffect::Answer(_) => false,
    }
}
