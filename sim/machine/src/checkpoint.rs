//! Checkpoints of processes, as `cuCheckpointProcess…` makes them: a process is locked, its memory moves to the host,
//! comes back, and the process is unlocked.
//!
//! The states and errors are those of NVIDIA's documentation ("CUDA Checkpointing" in the CUDA driver API). The bytes of
//! simulated memory are in the process itself, so here a checkpoint only moves what is counted. The server of the
//! machine lets the operations take time; each has a step at its start and one at its end.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::wire::MachineReply;
use crate::{CudaRefusal, Pid};

/// `CUprocessState`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum CheckpointState {
    /// The process runs.
    #[default]
    Running,
    /// Its CUDA calls wait.
    Locked,
    /// Its memory is in the host, and it holds nothing on a card.
    Checkpointed,
}

/// What the restore thread of a process is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum GateOrder {
    /// Let no CUDA call begin, and wait for those in flight. Zero milliseconds for as long as they need.
    Close {
        /// The longest wait.
        timeout_ms: u32,
    },
    /// Let CUDA calls go on.
    Open,
}

/// What the restore thread has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateReport {
    /// Whether the order is carried out. A gate that could not close in time is open again.
    pub is_done: bool,
    /// Whether the process has managed memory, which no checkpoint takes.
    pub has_managed: bool,
}

/// What the machine knows of a process's checkpoint.
#[derive(Debug, Default)]
pub(crate) struct ProcessCheckpoint {
    pub(crate) state: CheckpointState,
    thread: Option<i32>,
    /// An operation has begun and has not ended.
    is_busy: bool,
    has_managed: bool,
}

impl CheckpointState {
    fn number(self) -> u64 {
        match self {
            Self::Running => 0,
            Self::Locked => 1,
            Self::Checkpointed => 2,
        }
    }
}

impl Machine {
    /// Notes the restore thread of a process. Without one, the process cannot be locked.
    pub fn set_restore_thread(&mut self, pid: Pid, thread: i32) {
        if let Ok(process) = self.process(pid) {
            process.checkpoint.thread = Some(thread);
        }
    }

    /// Begins an operation on a process in the state `from`. No other can begin before [`Machine::end_operation`].
    ///
    /// # Errors
    /// If there is no such process, it is another user's, or it is in another state.
    pub fn begin_operation(
        &mut self,
        caller: Pid,
        pid: Pid,
        from: CheckpointState,
    ) -> Result<(), CudaRefusal> {
        let checkpoint = self.checkpoint_of(caller, pid)?;
        if checkpoint.thread.is_none() {
            return Err(CudaRefusal::NotSupported);
        }
        if checkpoint.is_busy || checkpoint.state != from {
            return Err(CudaRefusal::IllegalState);
        }
        checkpoint.is_busy = true;
        Ok(())
    }

    /// Ends an operation. The process may have ended before.
    ///
    /// # Errors
    /// If the process is gone.
    pub fn end_operation(
        &mut self,
        pid: Pid,
        state: Option<CheckpointState>,
    ) -> Result<(), CudaRefusal> {
        let process = self.processes.get_mut(&pid);
        let checkpoint = &mut process.ok_or(CudaRefusal::InvalidValue)?.checkpoint;
        checkpoint.is_busy = false;
        checkpoint.state = state.unwrap_or(checkpoint.state);
        Ok(())
    }

    /// Notes what the restore thread found when it closed the gate.
    pub fn note_gate_report(&mut self, pid: Pid, report: GateReport) {
        if let Ok(process) = self.process(pid) {
            process.checkpoint.has_managed = report.has_managed;
        }
    }

    /// The bytes that a checkpoint of the process has to copy.
    ///
    /// # Errors
    /// If the process has memory that no checkpoint takes: managed memory, or memory that it shares with others.
    pub fn bytes_to_checkpoint(&mut self, pid: Pid) -> Result<u64, CudaRefusal> {
        if self.process(pid)?.checkpoint.has_managed || self.shares_memory(pid) {
            return Err(CudaRefusal::NotSupported);
        }
        Ok(self.cards.iter().map(|card| card.held_by(pid)).sum())
    }

    /// How long a checkpoint copies this many bytes.
    #[must_use]
    pub fn checkpoint_time(&self, bytes: u64) -> Duration {
        let mib = bytes as f64 / f64::from(1 << 20);
        Duration::from_secs_f64(mib / f64::from(self.checkpoint_mib_per_second))
    }

    /// Moves the memory of a process to the host.
    pub fn move_to_host(&mut self, pid: Pid) {
        for card in &mut self.cards {
            card.checkpoint(pid);
        }
    }

    /// Takes the cards' memory for a checkpointed process again: all of it or none. Returns the bytes.
    ///
    /// # Errors
    /// If a card has too little.
    pub fn move_from_host(&mut self, pid: Pid) -> Result<u64, CudaRefusal> {
        for card in 0..self.cards.len() {
            let bytes = self.cards[card].host_copies(pid);
            let left = self.driver_memory_left(pid, card).unwrap_or(u64::MAX);
            if bytes > self.cards[card].free().min(left) {
                return Err(CudaRefusal::OutOfMemory);
            }
        }
        for card in &mut self.cards {
            card.restore(pid);
        }
        Ok(self.cards.iter().map(|card| card.held_by(pid)).sum())
    }

    pub(crate) fn process_state(
        &mut self,
        caller: Pid,
        pid: Pid,
    ) -> Result<MachineReply, CudaRefusal> {
        let state = self.checkpoint_of(caller, pid)?.state;
        Ok(MachineReply::Value(state.number()))
    }

    pub(crate) fn restore_thread(
        &mut self,
        caller: Pid,
        pid: Pid,
    ) -> Result<MachineReply, CudaRefusal> {
        let thread = self.checkpoint_of(caller, pid)?.thread;
        let thread = thread.and_then(|thread| u64::try_from(thread).ok());
        thread
            .map(MachineReply::Value)
            .ok_or(CudaRefusal::NotSupported)
    }

    pub(crate) fn host_copies(
        &mut self,
        caller: Pid,
        pid: Pid,
    ) -> Result<MachineReply, CudaRefusal> {
        self.checkpoint_of(caller, pid)?;
        let copies = self.cards.iter().map(|card| card.host_copies(pid));
        Ok(MachineReply::Value(copies.sum()))
    }

    /// A process's checkpoint, for another process of the same user or of root.
    fn checkpoint_of(
        &mut self,
        caller: Pid,
        pid: Pid,
    ) -> Result<&mut ProcessCheckpoint, CudaRefusal> {
        let user = self.process(caller)?.peer.uid;
        let process = self.processes.get_mut(&pid);
        let process = process.ok_or(CudaRefusal::InvalidValue)?;
        if user != 0 && user != process.peer.uid {
            return Err(CudaRefusal::NotPermitted);
        }
        Ok(&mut process.checkpoint)
    }
}

#[cfg(test)]
#[path = "checkpoint_tests.rs"]
mod tests;
