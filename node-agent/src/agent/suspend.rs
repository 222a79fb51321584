//! Suspends and resumes allocations: the ledger decides about the memory, a child of the agent moves the processes, and
//! the client is answered at the end.
//!
//! From the moment at which the ledger accepts a suspension, the programs of the allocation wait with what they charge.
//! So the claims that are read after that show every process that has memory.

use std::time::{Duration, Instant};

use apportion_abi::Bytes;
use apportion_ledger::{
    AllocationId, AllocationRefusal, LedgerEvent, ProcessId, SuspensionCause, SuspensionPhase,
};
use apportion_process_checkpoints::transition::{
    TransitionGoal, TransitionOrder, TransitionProcess,
};
use apportion_proto::v1;
use tonic::Status;
use tracing::{info, warn};

use super::NodeAgent;
use super::host_memory::{self, HostShortfall};
use super::state::{AgentState, RequestOutcome};
use super::suspensions::{RunningTransition, TransitionClient, TransitionEnd};
use crate::api::request::{AgentRequest, Answer, SuspensionCaller};
use crate::api::tenant::TenantUid;
use crate::api::wire;
use crate::driver::transition::{self, IDLE_LOCK_TIMEOUT, LOCK_TIMEOUT, TransitionReport};
use crate::telemetry::suspension_stats::SuspensionResult;

/// What one process has on all cards.
struct ProcessMemory {
    process: ProcessId,
    bytes: Bytes,
    /// Whether it has charged something, or the driver lists it.
    has_memory: bool,
}

impl NodeAgent {
    pub(super) fn suspend(
        &mut self,
        id: AllocationId,
        caller: SuspensionCaller,
        answer: Answer<v1::SuspendReply>,
    ) {
        if self.state.suspensions.is_busy() {
            let request = AgentRequest::Suspend(id, caller, answer);
            self.state.suspensions.wait(request);
            return;
        }
        let is_running = self.state.phase(&id) == Some(SuspensionPhase::Running);
        if let Err(shortfall) = self.host_room(&id)
            && is_running
        {
            info!(%id, %shortfall, "Suspension refused");
            let stats = self.state.publisher.stats();
            stats
                .suspensions
                .count(TransitionGoal::Asleep, SuspensionResult::Refused);
            let _ = answer.send(Err(Status::resource_exhausted(shortfall.to_string())));
            return;
        }
        let event = match caller {
            SuspensionCaller::Client => LedgerEvent::Suspend { id: id.clone() },
            SuspensionCaller::Scheduler => LedgerEvent::Reclaim { id: id.clone() },
        };
        match self.state.apply(event) {
            RequestOutcome::Answered(Ok(id)) if is_running => {
                self.state.withdraw_unused(&id);
                let client = TransitionClient::Suspend(answer);
                self.state
                    .move_processes(id, TransitionGoal::Asleep, true, client);
            }
            outcome => {
                let unchanged = self
                    .state
                    .accepted(outcome, &id)
                    .map(|now| v1::SuspendReply {
                        allocation: Some(now),
                        changed: false,
                        moved_bytes: 0,
                    });
                self.state
                    .count_refused(TransitionGoal::Asleep, unchanged.is_err());
                let _ = answer.send(unchanged);
            }
        }
    }

    /// Whether the host has room for the memory of an allocation's processes.
    pub(super) fn host_room(&mut self, id: &AllocationId) -> Result<(), HostShortfall> {
        let groups = &self.options.cards.cgroup_root;
        let memory = self.state.memory_of(id);
        let copies: Vec<_> = memory.iter().map(|of| (of.process.pid, of.bytes)).collect();
        host_memory::check(&copies, groups)
    }

    pub(super) fn resume(&mut self, id: AllocationId, answer: Answer<v1::ResumeReply>) {
        use v1::resume_reply::Result as Reply;
        if self.state.suspensions.is_busy() {
            let request = AgentRequest::Resume(id, answer);
            self.state.suspensions.wait(request);
            return;
        }
        let goal = TransitionGoal::Awake;
        let was_suspended = self.state.phase(&id) == Some(SuspensionPhase::Suspended);
        if let Err(refusal) = self.may_resume(&id) {
            self.state.count_refused(goal, true);
            let _ = answer.send(Err(refusal));
            return;
        }
        match self.state.apply(LedgerEvent::Resume { id: id.clone() }) {
            RequestOutcome::Answered(Ok(id)) if was_suspended => {
                let client = TransitionClient::Resume(answer);
                self.state.move_processes(id, goal, true, client);
            }
            RequestOutcome::Answered(Err(AllocationRefusal::Shortfall(shortfall))) => {
                info!(%id, %shortfall, "Resume refused");
                self.state.count_refused(goal, true);
                let _ = answer.send(Ok(v1::ResumeReply {
                    result: Some(Reply::Shortfall(wire::shortfall(&shortfall))),
                    ..v1::ResumeReply::default()
                }));
            }
            outcome => {
                let unchanged = self
                    .state
                    .accepted(outcome, &id)
                    .map(|now| v1::ResumeReply {
                        result: Some(Reply::Allocation(now)),
                        ..v1::ResumeReply::default()
                    });
                self.state.count_refused(goal, unchanged.is_err());
                let _ = answer.send(unchanged);
            }
        }
    }

    /// A suspended allocation does not count against its user's quota, so the quota is asked again.
    fn may_resume(&self, id: &AllocationId) -> Result<(), Status> {
        let Some(found) = self.state.ledger.allocation(id) else {
            return Ok(());
        };
        let Some(tenant) = TenantUid::of(&found.key) else {
            return Ok(());
        };
        let all = self.state.ledger.allocations();
        let quota = self.options.api.user_quota;
        tenant.may_have(&found.needs(), &found.ceilings(), &all, Some(id), quota)
    }

    /// Goes on with what waits for a child that was at work, or for the next try.
    pub(super) fn continue_suspensions(&mut self) {
        if let Some((id, unfinished)) = self.state.suspensions.due(&self.state.ledger) {
            let (goal, is_undone) = (unfinished.goal, unfinished.is_undone);
            self.state
                .move_processes(id, goal, is_undone, TransitionClient::Agent);
        }
        while let Some(request) = self.state.suspensions.take_waiting() {
            self.respond(request);
        }
    }
}

impl AgentState {
    fn phase(&self, id: &AllocationId) -> Option<SuspensionPhase> {
        self.ledger.allocation(id).map(|of| of.suspension)
    }

    fn count_refused(&mut self, goal: TransitionGoal, is_refused: bool) {
        if is_refused {
            let stats = self.publisher.stats();
            stats.suspensions.count(goal, SuspensionResult::Refused);
        }
    }

    /// The allocation after a request that the ledger accepted.
    fn accepted(
        &self,
        outcome: RequestOutcome,
        id: &AllocationId,
    ) -> Result<v1::Allocation, Status> {
        match outcome {
            RequestOutcome::Answered(Ok(_)) => self.found(id),
            RequestOutcome::Answered(Err(refusal)) => Err(wire::status(&refusal)),
            RequestOutcome::Failed(problem) => Err(Status::internal(problem)),
        }
    }

    /// The live processes of an allocation with their memory. A process that NVML does not show has what it claims. So has
    /// one that has charged more since NVML was asked.
    fn memory_of(&mut self, id: &AllocationId) -> Vec<ProcessMemory> {
        self.collect_claims();
        self.members.search(id);
        self.members.follow();
        let mut all = Vec::new();
        for process in self.members.of(id) {
            let listed: Vec<Option<Bytes>> = self
                .cards
                .readings()
                .filter_map(|card| card.processes.get(&process.pid).copied())
                .collect();
            let claimed = self.accounts.claimed_by(id, process);
            let nvml: Option<Bytes> = listed.iter().copied().sum();
            all.push(ProcessMemory {
                process,
                bytes: match nvml {
                    Some(used) if !listed.is_empty() => used.max(claimed),
                    _ => claimed,
                },
                has_memory: claimed > Bytes::ZERO || !listed.is_empty(),
            });
        }
        all
    }

    /// How long the locks of all processes of an allocation may take.
    fn lock_timeout(&self, id: &AllocationId) -> Duration {
        let cause = self.ledger.allocation(id).map(|of| of.suspension_cause);
        match cause {
            Some(SuspensionCause::Idle) => IDLE_LOCK_TIMEOUT,
            Some(SuspensionCause::Client | SuspensionCause::Guarantee) | None => LOCK_TIMEOUT,
        }
    }

    /// Starts a child that brings the processes of an allocation to the goal.
    pub(super) fn move_processes(
        &mut self,
        id: AllocationId,
        goal: TransitionGoal,
        is_undone: bool,
        client: TransitionClient,
    ) {
        let memory = self.memory_of(&id);
        let processes = memory.iter().map(|of| TransitionProcess {
            pid: of.process.pid,
            start: of.process.start,
            has_memory: of.has_memory,
        });
        let order = TransitionOrder {
            goal,
            processes: processes.collect(),
            lock_timeout_ms: u32::try_from(self.lock_timeout(&id).as_millis()).unwrap_or(u32::MAX),
            is_undone,
        };
        // What a sleeping process needs is in its claims, and in NVML only what one that runs has.
        let claimed = memory
            .iter()
            .map(|of| self.accounts.claimed_by(&id, of.process));
        let claimed: Bytes = claimed.sum();
        let moved: Bytes = memory.iter().map(|of| of.bytes).sum();
        let deadline = transition::deadline(moved.max(claimed));
        info!(%id, ?goal, processes = memory.len(), %moved, "Moving processes");
        let (none, empty) = tokio::sync::oneshot::channel();
        let reported = match transition::start(&order, deadline, &self.suspensions.nvml) {
            Ok(reported) => reported,
            Err(problem) => {
                warn!(%problem, "Failed to start the process that calls the driver");
                drop(none);
                empty
            }
        };
        self.suspensions.run(RunningTransition {
            id,
            goal,
            is_undone,
            client,
            started: Instant::now(),
            moved,
            reported,
        });
    }

    /// Processes the report of the child.
    pub(super) fn transition_reported(&mut self, report: &TransitionReport) {
        let Some(done) = self.suspensions.take_reported() else {
            return;
        };
        let end = TransitionEnd::of(report);
        let took = done.started.elapsed();
        if !end.trouble().is_empty() {
            let (id, trouble) = (&done.id, end.trouble());
            warn!(%id, goal = ?done.goal, trouble, "Processes could not be moved");
        }
        let reached = done.reached(&end);
        let saved = reached.map(|goal| self.enter_goal(&done.id, goal));
        match (reached, &saved) {
            (Some(_), Some(Ok(()))) => {}
            // The processes are there, but the ledger could not be written. They stay there until it can be.
            (Some(goal), _) => self
                .suspensions
                .leave_unfinished(done.id.clone(), goal, true),
            (None, _) => {
                let (goal, is_again) = done.next_try(&end);
                self.suspensions
                    .leave_unfinished(done.id.clone(), goal, is_again);
            }
        }
        let result = match saved {
            Some(Ok(())) if reached == Some(done.goal) => Ok(end.trouble().to_owned()),
            Some(Ok(())) => Err(format!("{}; nothing has changed", end.trouble())),
            Some(Err(problem)) => Err(problem),
            None => Err(format!("{}; what was done is being undone", end.trouble())),
        };
        match done.client {
            TransitionClient::Guarantee => self.learn_from(&done, &result),
            TransitionClient::Idle => self.learn_from_idle(&done, &result),
            TransitionClient::Suspend(_)
            | TransitionClient::Resume(_)
            | TransitionClient::Agent => {}
        }
        self.calls.want_samples();
        if !matches!(done.client, TransitionClient::Agent) {
            let counted = match result {
                Ok(_) => SuspensionResult::Done(took),
                Err(_) => SuspensionResult::Failed,
            };
            self.publisher.stats().suspensions.count(done.goal, counted);
        }
        self.answer_transition(done, result);
        self.sample();
        self.show();
    }

    /// Leaves an allocation alone for a while that could not be put to sleep for a guarantee, or woken after that.
    fn learn_from(&mut self, done: &RunningTransition, result: &Result<String, String>) {
        let Err(why) = result else {
            return;
        };
        let id = done.id.clone();
        match done.goal {
            TransitionGoal::Asleep => {
                warn!(%id, why, "Share cannot sleep, and is left alone for a while");
                self.calls.leave_alone(id, why.clone());
            }
            TransitionGoal::Awake => {
                warn!(%id, why, "Sleeper could not be woken, it is tried again");
                self.calls.let_sleep(id);
            }
        }
    }

    fn enter_goal(&mut self, id: &AllocationId, goal: TransitionGoal) -> Result<(), String> {
        let id = id.clone();
        let event = match goal {
            TransitionGoal::Asleep => LedgerEvent::Suspended { id },
            TransitionGoal::Awake => LedgerEvent::Resumed { id },
        };
        match self.apply(event) {
            RequestOutcome::Answered(_) => Ok(()),
            RequestOutcome::Failed(problem) => Err(problem),
        }
    }

    fn answer_transition(&mut self, done: RunningTransition, result: Result<String, String>) {
        let result = result.map_err(Status::failed_precondition);
        match (done.client, result) {
            (TransitionClient::Suspend(answer), Err(problem)) => drop(answer.send(Err(problem))),
            (TransitionClient::Suspend(answer), Ok(_)) => {
                let done = RunningTransition {
                    client: TransitionClient::Suspend(answer),
                    ..done
                };
                self.suspensions.settle(done, self.ledger.generation());
            }
            (TransitionClient::Resume(answer), result) => {
                let reply = result.and_then(|trouble| {
                    Ok(v1::ResumeReply {
                        result: Some(v1::resume_reply::Result::Allocation(self.found(&done.id)?)),
                        changed: true,
                        trouble,
                    })
                });
                drop(answer.send(reply));
            }
            (TransitionClient::Guarantee | TransitionClient::Idle | TransitionClient::Agent, _) => {
            }
        }
    }

    /// Answers clients whose suspension a sample of this generation shows, and those that have waited for too long.
    pub(super) fn answer_settled(&mut self, sampled: u64) {
        for (id, moved, answer) in self.suspensions.settled(sampled) {
            let reply = self.found(&id).map(|now| v1::SuspendReply {
                allocation: Some(now),
                changed: true,
                moved_bytes: moved.0,
            });
            let _ = answer.send(reply);
        }
    }
}
