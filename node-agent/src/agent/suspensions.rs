//! The suspensions and resumes that are going on. One child process at a time carries one out; requests that come
//! meanwhile wait.
//!
//! A transition whose child died, or could not even undo what it had done, is unfinished: its processes are somewhere
//! between. The ledger keeps all their memory held until a later child has brought them back. The transition of an
//! agent that was killed is unfinished, too; what its client wanted is completed.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use apportion_abi::Bytes;
use apportion_ledger::{AllocationId, Ledger, SuspensionPhase};
use apportion_process_checkpoints::transition::{
    ProcessOutcome, TransitionGoal, TransitionLine, TransitionStep,
};
use apportion_proto::v1;
use tokio::sync::oneshot;

use crate::api::request::{AgentRequest, Answer};
use crate::driver::transition::TransitionReport;
use crate::processes::procfs;

/// How long after a failure an unfinished transition is tried again.
const AGAIN_IN: Duration = Duration::from_secs(5);
/// How long a client waits at most for the sample that shows the freed memory.
const SETTLES_IN: Duration = Duration::from_secs(5);

/// The transitions, and who waits for them.
pub(super) struct ProcessSuspensions {
    /// The driver's management library. Its CUDA library is beside it.
    pub(super) nvml: PathBuf,
    running: Option<RunningTransition>,
    unfinished: BTreeMap<AllocationId, UnfinishedTransition>,
    waiting: VecDeque<AgentRequest>,
    settling: Vec<SettlingSuspension>,
}

/// A transition that a child carries out.
pub(super) struct RunningTransition {
    pub(super) id: AllocationId,
    pub(super) goal: TransitionGoal,
    /// Whether a failure leads back to where the processes were.
    pub(super) is_undone: bool,
    pub(super) client: TransitionClient,
    pub(super) started: Instant,
    /// What the processes had on GPUs before.
    pub(super) moved: Bytes,
    pub(super) reported: oneshot::Receiver<TransitionReport>,
}

/// Who wants a transition.
pub(super) enum TransitionClient {
    Suspend(Answer<v1::SuspendReply>),
    Resume(Answer<v1::ResumeReply>),
    /// A guarantee that is called in, or the end of that.
    Guarantee,
    /// A share that is idle, or that is called again.
    Idle,
    /// The agent itself: it completes or undoes an unfinished transition.
    Agent,
}

/// A transition that a child must carry out again.
#[derive(Clone, Copy)]
pub(super) struct UnfinishedTransition {
    pub(super) goal: TransitionGoal,
    pub(super) is_undone: bool,
    not_before: Instant,
}

/// A suspension that is done. Its client is answered when a sample shows that the memory is free.
struct SettlingSuspension {
    id: AllocationId,
    generation: u64,
    since: Instant,
    moved: Bytes,
    answer: Answer<v1::SuspendReply>,
}

/// How a transition ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TransitionEnd {
    /// All processes have reached the goal. Some may be lost; then the text says which.
    Done(String),
    /// One could not; the text says which and why. All are where they were.
    Undone(String),
    /// The driver cannot do it. Nothing was done.
    Unusable(String),
    /// The processes are somewhere between.
    Unfinished(String),
}

impl ProcessSuspensions {
    pub(super) fn new(nvml: PathBuf) -> Self {
        Self {
            nvml,
            running: None,
            unfinished: BTreeMap::new(),
            waiting: VecDeque::new(),
            settling: Vec::new(),
        }
    }

    /// Takes over what an earlier agent did not finish.
    pub(super) fn take_over(&mut self, ledger: &Ledger) {
        for allocation in ledger.allocations() {
            let goal = match allocation.suspension {
                SuspensionPhase::Suspending => TransitionGoal::Asleep,
                SuspensionPhase::Resuming => TransitionGoal::Awake,
                SuspensionPhase::Running | SuspensionPhase::Suspended => continue,
            };
            let unfinished = UnfinishedTransition {
                goal,
                is_undone: true,
                not_before: Instant::now(),
            };
            self.unfinished.insert(allocation.id.clone(), unfinished);
        }
    }

    /// Whether a child is at work, so that requests must wait.
    pub(super) fn is_busy(&self) -> bool {
        self.running.is_some()
    }

    pub(super) fn wait(&mut self, request: AgentRequest) {
        self.waiting.push_back(request);
    }

    /// The next request that waited, if no child is at work.
    pub(super) fn take_waiting(&mut self) -> Option<AgentRequest> {
        if self.is_busy() {
            None
        } else {
            self.waiting.pop_front()
        }
    }

    pub(super) fn run(&mut self, transition: RunningTransition) {
        self.unfinished.remove(&transition.id);
        self.running = Some(transition);
    }

    /// The report of the child. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> TransitionReport {
        match &mut self.running {
            Some(running) => (&mut running.reported).await.unwrap_or_default(),
            None => std::future::pending().await,
        }
    }

    /// Takes the transition that [`Self::next`] reported.
    pub(super) fn take_reported(&mut self) -> Option<RunningTransition> {
        self.running.take()
    }

    /// Notes that a transition must be carried out again: now if it is the first time, else after a while.
    pub(super) fn leave_unfinished(
        &mut self,
        id: AllocationId,
        goal: TransitionGoal,
        is_again: bool,
    ) {
        let wait = if is_again { AGAIN_IN } else { Duration::ZERO };
        let unfinished = UnfinishedTransition {
            goal,
            is_undone: false,
            not_before: Instant::now() + wait,
        };
        self.unfinished.insert(id, unfinished);
    }

    /// The next unfinished transition that is due, if no child is at work. One whose allocation is gone is dropped.
    pub(super) fn due(&mut self, ledger: &Ledger) -> Option<(AllocationId, UnfinishedTransition)> {
        if self.is_busy() {
            return None;
        }
        self.unfinished
            .retain(|id, _| ledger.allocation(id).is_some());
        let due = self.unfinished.iter();
        let mut due = due.filter(|(_, of)| of.not_before <= Instant::now());
        due.next().map(|(id, of)| (id.clone(), *of))
    }

    /// Lets a client wait for a sample that began at this generation of the ledger or later.
    pub(super) fn settle(&mut self, done: RunningTransition, generation: u64) {
        if let TransitionClient::Suspend(answer) = done.client {
            self.settling.push(SettlingSuspension {
                id: done.id,
                generation,
                since: Instant::now(),
                moved: done.moved,
                answer,
            });
        }
    }

    /// The clients whose suspension a sample of this generation shows, with what was moved.
    pub(super) fn settled(
        &mut self,
        sampled: u64,
    ) -> Vec<(AllocationId, Bytes, Answer<v1::SuspendReply>)> {
        let is_settled = |of: &mut SettlingSuspension| {
            of.generation <= sampled || of.since.elapsed() > SETTLES_IN
        };
        let settled = self.settling.extract_if(.., is_settled);
        settled.map(|of| (of.id, of.moved, of.answer)).collect()
    }
}

impl RunningTransition {
    /// Where the processes are after this end; `None` if they are somewhere between.
    pub(super) fn reached(&self, end: &TransitionEnd) -> Option<TransitionGoal> {
        let is_agents = matches!(self.client, TransitionClient::Agent);
        match end {
            TransitionEnd::Done(_) => Some(self.goal),
            TransitionEnd::Undone(_) => Some(self.goal.opposite()),
            // A client's transition begins where all are at one place; the agent's does not.
            TransitionEnd::Unusable(_) => (!is_agents).then(|| self.goal.opposite()),
            TransitionEnd::Unfinished(_) => None,
        }
    }

    /// The goal of the next try after an end somewhere between, and whether it is a repetition.
    pub(super) fn next_try(&self, end: &TransitionEnd) -> (TransitionGoal, bool) {
        match end {
            TransitionEnd::Unfinished(_) if self.is_undone => (self.goal.opposite(), false),
            TransitionEnd::Unfinished(_)
            | TransitionEnd::Unusable(_)
            | TransitionEnd::Undone(_)
            | TransitionEnd::Done(_) => (self.goal, true),
        }
    }
}

impl TransitionEnd {
    /// What a child's report says.
    pub(super) fn of(report: &TransitionReport) -> Self {
        let mut trouble: Vec<_> = report.lines.iter().filter_map(words).collect();
        let end = report.lines.iter().find_map(|line| match line {
            TransitionLine::End { is_done, is_undone } => Some((*is_done, *is_undone)),
            TransitionLine::Unusable(_) | TransitionLine::Process { .. } => None,
        });
        let is_unusable = matches!(report.lines.first(), Some(TransitionLine::Unusable(_)));
        if end.is_none() && !is_unusable {
            let why = if report.is_overdue {
                "the driver did not answer in time"
            } else {
                "the process that calls the driver ended early"
            };
            trouble.push(why.to_owned());
        }
        let trouble = trouble.join("; ");
        match end {
            None if is_unusable => Self::Unusable(trouble),
            Some((true, _)) => Self::Done(trouble),
            Some((false, true)) => Self::Undone(trouble),
            Some((false, false)) | None => Self::Unfinished(trouble),
        }
    }

    /// What went wrong; empty if nothing did.
    pub(super) fn trouble(&self) -> &str {
        match self {
            Self::Done(trouble)
            | Self::Undone(trouble)
            | Self::Unusable(trouble)
            | Self::Unfinished(trouble) => trouble,
        }
    }
}

/// What a line says went wrong.
fn words(line: &TransitionLine) -> Option<String> {
    match line {
        TransitionLine::Unusable(problem) => Some(problem.clone()),
        TransitionLine::Process { pid, outcome } => {
            let name = procfs::name(*pid);
            match outcome {
                ProcessOutcome::Done | ProcessOutcome::Absent => None,
                ProcessOutcome::Lost => Some(format!(
                    "process {pid} {name:?} failed in an earlier checkpoint, and only its end frees what it holds"
                )),
                ProcessOutcome::Failed(step, status) => Some(format!(
                    "process {pid} {name:?} could not be {}: {} (CUDA error {})",
                    participle(*step),
                    status.meaning(),
                    status.0
                )),
            }
        }
        TransitionLine::End { .. } => None,
    }
}

fn participle(step: TransitionStep) -> &'static str {
    match step {
        TransitionStep::Look => "found by the driver",
        TransitionStep::Lock => "locked",
        TransitionStep::Checkpoint => "copied to the host",
        TransitionStep::Restore => "copied back",
        TransitionStep::Unlock => "unlocked",
    }
}

#[cfg(test)]
mod tests {
    use apportion_process_checkpoints::CudaStatus;

    use super::*;

    fn report(lines: Vec<TransitionLine>) -> TransitionReport {
        TransitionReport {
            lines,
            is_overdue: false,
        }
    }

    fn failed() -> TransitionLine {
        TransitionLine::Process {
            pid: u32::MAX,
            outcome: ProcessOutcome::Failed(TransitionStep::Lock, CudaStatus::NOT_READY),
        }
    }

    fn end(is_done: bool, is_undone: bool) -> TransitionLine {
        TransitionLine::End { is_done, is_undone }
    }

    #[test]
    fn a_failure_names_the_process_and_the_reason() {
        let TransitionEnd::Undone(words) =
            TransitionEnd::of(&report(vec![failed(), end(false, true)]))
        else {
            panic!("it was undone");
        };
        let expected =
            "could not be locked: its CUDA calls and kernels did not end in time (CUDA error 600)";
        assert!(
            words.starts_with("process 4294967295") && words.ends_with(expected),
            "{words}"
        );
    }

    #[test]
    fn a_child_without_a_last_word_leaves_things_unfinished() {
        let ended = TransitionEnd::of(&report(vec![failed()]));
        assert!(matches!(ended, TransitionEnd::Unfinished(why) if why.contains("ended early")));
        let overdue = TransitionReport {
            is_overdue: true,
            ..TransitionReport::default()
        };
        let ended = TransitionEnd::of(&overdue);
        assert!(matches!(ended, TransitionEnd::Unfinished(why) if why.contains("in time")));
        let ended = TransitionEnd::of(&report(vec![end(false, false)]));
        assert!(matches!(ended, TransitionEnd::Unfinished(_)));
    }

    #[test]
    fn a_driver_that_cannot_do_it_changes_nothing() {
        let old = TransitionLine::Unusable("too old".to_owned());
        assert_eq!(
            TransitionEnd::of(&report(vec![old])),
            TransitionEnd::Unusable("too old".to_owned())
        );
        let lost = TransitionLine::Process {
            pid: 7,
            outcome: ProcessOutcome::Lost,
        };
        let done = TransitionEnd::of(&report(vec![lost, end(true, false)]));
        assert!(matches!(done, TransitionEnd::Done(trouble) if trouble.contains("process 7")));
    }
}
