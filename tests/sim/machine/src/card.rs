//! A card's memory: who holds how much of it. The only place where bytes are taken and given back, so
//! that a card is never fuller than it is large and nothing is counted for nobody.

use std::collections::BTreeMap;

use crate::{CardConfig, CudaRefusal, Pid};

/// One card and what is held on it.
#[derive(Debug)]
pub(crate) struct SimulatedCard {
    pub(crate) config: CardConfig,
    held: BTreeMap<Pid, u64>,
    high: u64,
}

impl SimulatedCard {
    pub(crate) fn new(config: CardConfig) -> Self {
        Self {
            config,
            held: BTreeMap::new(),
            high: 0,
        }
    }

    /// Takes memory for a process, or nothing.
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

    /// The most that was held at once; begins again with what is held now.
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
    }

    /// What programs can have in all: the card less the driver's reserve.
    pub(crate) fn usable(&self) -> u64 {
        self.config.memory - self.config.reserved
    }

    /// What all processes hold.
    pub(crate) fn used(&self) -> u64 {
        self.held.values().sum()
    }

    /// What is left.
    pub(crate) fn free(&self) -> u64 {
        self.usable() - self.used()
    }

    /// What one process holds.
    pub(crate) fn held_by(&self, pid: Pid) -> u64 {
        self.held.get(&pid).copied().unwrap_or(0)
    }
}
