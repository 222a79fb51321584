//! A card's memory: which process holds how much. Only this file takes and gives back bytes, so a card never holds more
//! than its size, and all memory belongs to a process.

use std::collections::BTreeMap;

use crate::{CardConfig, CudaRefusal, Pid};

/// One card and what is held on it.
#[derive(Debug)]
pub(crate) struct SimulatedCard {
    pub(crate) config: CardConfig,
    held: BTreeMap<Pid, u64>,
    /// What checkpointed processes held here. It is in the host now.
    checkpointed: BTreeMap<Pid, u64>,
    high: u64,
}

impl SimulatedCard {
    pub(crate) fn new(config: CardConfig) -> Self {
        Self {
            config,
            held: BTreeMap::new(),
            checkpointed: BTreeMap::new(),
            high: 0,
        }
    }

    /// Takes memory for a process, or fails and takes nothing.
    pub(crate) fn take(&mut self, pid: Pid, bytes: u64) -> Result<(), CudaRefusal> {
        if bytes > self.free() {
            return Err(CudaRefusal::OutOfMemory);
        }
        if bytes > 0 {
            *self.held.entry(pid).or_default() += bytes;
        }
        self.high = self.high.max(self.used());
        Ok(())
    }

    /// The most memory in use since the last call. Starts again at the current value.
    pub(crate) fn take_high(&mut self) -> u64 {
        let now = self.used();
        std::mem::replace(&mut self.high, now)
    }

    /// Gives back memory of a process.
    pub(crate) fn give(&mut self, pid: Pid, bytes: u64) {
        let Some(held) = self.held.get_mut(&pid) else {
            return;
        };
        *held = held.saturating_sub(bytes);
        if *held == 0 {
            self.held.remove(&pid);
        }
    }

    /// Moves memory that outlives its holder to another process.
    pub(crate) fn pass(&mut self, from: Pid, to: Pid, bytes: u64) {
        self.give(from, bytes);
        *self.held.entry(to).or_default() += bytes;
    }

    /// Forgets a process that is gone.
    pub(crate) fn forget(&mut self, pid: Pid) {
        self.held.remove(&pid);
        self.checkpointed.remove(&pid);
    }

    /// Moves all memory of a process to the host.
    pub(crate) fn checkpoint(&mut self, pid: Pid) {
        if let Some(bytes) = self.held.remove(&pid) {
            self.checkpointed.insert(pid, bytes);
        }
    }

    /// Moves all memory of a process back from the host. The caller has checked that it fits.
    pub(crate) fn restore(&mut self, pid: Pid) {
        if let Some(bytes) = self.checkpointed.remove(&pid) {
            self.held.insert(pid, bytes);
            self.high = self.high.max(self.used());
        }
    }

    /// The memory of a process that is in the host.
    pub(crate) fn host_copies(&self, pid: Pid) -> u64 {
        self.checkpointed.get(&pid).copied().unwrap_or(0)
    }

    /// The memory for programs: the card's memory less the driver's reserve.
    pub(crate) fn usable(&self) -> u64 {
        self.config.memory - self.config.reserved
    }

    /// The memory of all processes.
    pub(crate) fn used(&self) -> u64 {
        self.held.values().sum()
    }

    /// The memory that is left.
    pub(crate) fn free(&self) -> u64 {
        self.usable() - self.used()
    }

    /// The memory of one process.
    pub(crate) fn held_by(&self, pid: Pid) -> u64 {
        self.held.get(&pid).copied().unwrap_or(0)
    }
}
