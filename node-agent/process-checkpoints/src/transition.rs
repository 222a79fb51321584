//! Brings several processes to one state: all asleep, or all awake.
//!
//! Every step looks at the state first, so a transition can begin where an earlier one was killed. Something may still
//! be going on in the driver then. So a step that finds the process in another state than it saw looks again, for as
//! long as `BUSY`.
//!
//! # Decision: all are locked before the first is copied
//! Processes of one program wait for each other's kernels. As long as none is copied, a lock that fails is undone by
//! unlocking, which costs nothing.

use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::{CheckpointState, CudaStatus, ProcessCheckpoints};

/// How long the driver may be busy with what an earlier caller began, beyond the timeout of a lock.
const BUSY: Duration = Duration::from_secs(60);
/// The pause between two looks at a busy process.
const PAUSE: Duration = Duration::from_millis(10);

/// The state that all processes are to reach.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TransitionGoal {
    /// Their memory is in the host.
    Asleep,
    /// They run.
    Awake,
}

impl TransitionGoal {
    /// The goal of a transition that undoes this one.
    #[must_use]
    pub fn opposite(self) -> Self {
        match self {
            Self::Asleep => Self::Awake,
            Self::Awake => Self::Asleep,
        }
    }
}

/// A process of a transition.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct TransitionProcess {
    /// Its pid, as the caller's pid namespace shows it.
    pub pid: u32,
    /// When it was started, in the kernel's ticks: a pid can be used again.
    pub start: u64,
    /// Whether it has GPU memory. Others may be unknown to the driver.
    pub has_memory: bool,
}

/// What a transition is to do.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct TransitionOrder {
    /// The state to reach.
    pub goal: TransitionGoal,
    /// All processes.
    pub processes: Vec<TransitionProcess>,
    /// How long all locks together may take.
    pub lock_timeout_ms: u32,
    /// Whether a failure leads back to where the processes were. If not, the transition does what it can.
    pub is_undone: bool,
}

/// A step of a transition.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TransitionStep {
    /// Asking for the state.
    Look,
    /// `cuCheckpointProcessLock`.
    Lock,
    /// `cuCheckpointProcessCheckpoint`.
    Checkpoint,
    /// `cuCheckpointProcessRestore`.
    Restore,
    /// `cuCheckpointProcessUnlock`.
    Unlock,
}

/// Where a process is at the end.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessOutcome {
    /// It has reached the goal.
    Done,
    /// It has ended, or has nothing that could be moved.
    Absent,
    /// The driver has given it up.
    Lost,
    /// The driver refused a step.
    Failed(TransitionStep, CudaStatus),
}

/// One line of what a transition reports.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TransitionLine {
    /// The driver cannot be used. Nothing was done.
    Unusable(String),
    /// The outcome of one process.
    Process {
        /// Its pid.
        pid: u32,
        /// Its outcome.
        outcome: ProcessOutcome,
    },
    /// The last line: whether all processes have reached the goal or can never reach it; and if not, whether all are
    /// where they were.
    End {
        /// The goal is reached.
        is_done: bool,
        /// What was done is undone.
        is_undone: bool,
    },
}

/// A process on its way.
struct MovedProcess {
    process: TransitionProcess,
    pid: i32,
    outcome: Option<ProcessOutcome>,
}

/// Carries out an order, and hands each line of the report to `report`. `is_live` says whether a process is still there.
pub fn carry_out(
    driver: &ProcessCheckpoints,
    order: &TransitionOrder,
    is_live: fn(u32, u64) -> bool,
    mut report: impl FnMut(TransitionLine),
) {
    let forth = ProcessTransition::begin(driver, order, is_live);
    let moved = forth.bring(order.goal, &order.processes, !order.is_undone);
    let has_failed = moved.iter().any(MovedProcess::has_failed);
    for process in &moved {
        let outcome = process.outcome.unwrap_or(ProcessOutcome::Done);
        report(TransitionLine::Process {
            pid: process.process.pid,
            outcome,
        });
    }
    let mut is_undone = false;
    if has_failed && order.is_undone {
        let back = ProcessTransition::begin(driver, order, is_live);
        let moved = back.bring(order.goal.opposite(), &order.processes, true);
        is_undone = moved.iter().all(MovedProcess::is_back);
    }
    report(TransitionLine::End {
        is_done: !has_failed,
        is_undone,
    });
}

impl MovedProcess {
    fn has_failed(&self) -> bool {
        matches!(self.outcome, Some(ProcessOutcome::Failed(..)))
    }

    /// Whether it is where it was. The driver has done nothing to a process that it does not know.
    fn is_back(&self) -> bool {
        let unknown = ProcessOutcome::Failed(TransitionStep::Look, CudaStatus::INVALID_VALUE);
        !self.has_failed() || self.outcome == Some(unknown)
    }
}

struct ProcessTransition<'a> {
    driver: &'a ProcessCheckpoints,
    is_live: fn(u32, u64) -> bool,
    /// When the time for locks is over.
    locks: Instant,
    /// When a busy driver is not waited for any longer.
    busy: Instant,
}

impl<'a> ProcessTransition<'a> {
    /// The timeouts begin now.
    fn begin(
        driver: &'a ProcessCheckpoints,
        order: &TransitionOrder,
        is_live: fn(u32, u64) -> bool,
    ) -> Self {
        let locks = Instant::now() + Duration::from_millis(order.lock_timeout_ms.into());
        Self {
            driver,
            is_live,
            locks,
            busy: locks + BUSY,
        }
    }

    /// Brings all processes to the goal in two rounds. Stops at the first failure, unless it does what it can.
    fn bring(
        &self,
        goal: TransitionGoal,
        processes: &[TransitionProcess],
        is_thorough: bool,
    ) -> Vec<MovedProcess> {
        let mut moved: Vec<_> = processes.iter().copied().map(MovedProcess::new).collect();
        let rounds: [Round<'a>; 2] = match goal {
            TransitionGoal::Asleep => [Self::lock, Self::checkpoint],
            TransitionGoal::Awake => [Self::restore, Self::unlock],
        };
        for round in rounds {
            for at in 0..moved.len() {
                if moved.iter().any(MovedProcess::has_failed) && !is_thorough {
                    return moved;
                }
                let process = &mut moved[at];
                if process.outcome.is_none() {
                    process.outcome = self.settle(process, round);
                }
            }
        }
        moved
    }

    /// Repeats a round for one process until it is through. Returns the outcome of a process that goes no further.
    fn settle(&self, process: &MovedProcess, round: Round<'a>) -> Option<ProcessOutcome> {
        loop {
            let state = match self.driver.state(process.pid) {
                Ok(state) => state,
                Err(status) => return Some(self.refused(process, TransitionStep::Look, status)),
            };
            let (step, refused) = match round(self, process.pid, state) {
                RoundOutcome::Through => return None,
                RoundOutcome::Lost => return Some(ProcessOutcome::Lost),
                RoundOutcome::Stepped(_, Ok(())) => continue,
                RoundOutcome::Stepped(step, Err(status)) => (step, status),
                RoundOutcome::Busy(step) => (step, CudaStatus::ILLEGAL_STATE),
            };
            let is_busy = refused == CudaStatus::ILLEGAL_STATE;
            if !is_busy || Instant::now() > self.busy {
                return Some(self.refused(process, step, refused));
            }
            sleep(PAUSE);
        }
    }

    /// A process that has ended, or that has nothing and the driver does not know, is no failure.
    fn refused(
        &self,
        process: &MovedProcess,
        step: TransitionStep,
        status: CudaStatus,
    ) -> ProcessOutcome {
        let is_live = (self.is_live)(process.process.pid, process.process.start);
        let is_unknown = !process.process.has_memory
            && status != CudaStatus::NOT_READY
            && matches!(step, TransitionStep::Look | TransitionStep::Lock);
        if !is_live || is_unknown {
            ProcessOutcome::Absent
        } else {
            ProcessOutcome::Failed(step, status)
        }
    }

    fn lock(&self, pid: i32, state: CheckpointState) -> RoundOutcome {
        match state {
            CheckpointState::Running => {
                let left = self.locks.saturating_duration_since(Instant::now());
                let left = u32::try_from(left.as_millis()).unwrap_or(u32::MAX);
                RoundOutcome::Stepped(TransitionStep::Lock, self.driver.lock(pid, left))
            }
            CheckpointState::Locked | CheckpointState::Checkpointed => RoundOutcome::Through,
            CheckpointState::Failed => RoundOutcome::Lost,
            CheckpointState::Other(_) => RoundOutcome::Busy(TransitionStep::Lock),
        }
    }

    /// What an earlier caller began may have unlocked the process after the first round.
    fn checkpoint(&self, pid: i32, state: CheckpointState) -> RoundOutcome {
        match state {
            CheckpointState::Locked => {
                RoundOutcome::Stepped(TransitionStep::Checkpoint, self.driver.checkpoint(pid))
            }
            CheckpointState::Checkpointed => RoundOutcome::Through,
            CheckpointState::Running | CheckpointState::Failed | CheckpointState::Other(_) => {
                self.lock(pid, state)
            }
        }
    }

    fn restore(&self, pid: i32, state: CheckpointState) -> RoundOutcome {
        match state {
            CheckpointState::Checkpointed => {
                RoundOutcome::Stepped(TransitionStep::Restore, self.driver.restore(pid))
            }
            CheckpointState::Running | CheckpointState::Locked => RoundOutcome::Through,
            CheckpointState::Failed => RoundOutcome::Lost,
            CheckpointState::Other(_) => RoundOutcome::Busy(TransitionStep::Restore),
        }
    }

    /// What an earlier caller began may have moved the process to the host after the first round.
    fn unlock(&self, pid: i32, state: CheckpointState) -> RoundOutcome {
        match state {
            CheckpointState::Locked => {
                RoundOutcome::Stepped(TransitionStep::Unlock, self.driver.unlock(pid))
            }
            CheckpointState::Running => RoundOutcome::Through,
            CheckpointState::Checkpointed | CheckpointState::Failed | CheckpointState::Other(_) => {
                self.restore(pid, state)
            }
        }
    }
}

/// One look at a process and what follows from its state.
type Round<'a> = fn(&ProcessTransition<'a>, i32, CheckpointState) -> RoundOutcome;

enum RoundOutcome {
    /// It is where the round leads.
    Through,
    /// The driver has given it up.
    Lost,
    Stepped(TransitionStep, Result<(), CudaStatus>),
    /// The driver is doing something else with it.
    Busy(TransitionStep),
}

impl MovedProcess {
    fn new(process: TransitionProcess) -> Self {
        Self {
            process,
            // A pid of the kernel fits. Minus one is no process.
            pid: i32::try_from(process.pid).unwrap_or(-1),
            outcome: None,
        }
    }
}
