//! Device memory that a dead process still holds.
//!
//! A child of `fork` cannot use its parent's contexts, but it inherits the file descriptors that keep them alive.
//! Workers of a data loader that outlive their killed parent keep gigabytes of it (seen on real drivers), and NVML
//! goes on listing the dead parent's pid. Its slot in the account is freed all the same, because nobody can free
//! that memory piece by piece. So what NVML reports for a dead member counts as overhead of its allocation as long
//! as the driver lists it: the limit holds, and nobody else gets that memory.
//!
//! Every process that just died is listed for a moment. So it counts from the first reading that was requested after
//! its end. If the driver lists no process for such memory, it is unexplained memory: no other allocation gets it,
//! but the agent cannot see that this allocation exceeds its limit.

use std::collections::HashMap;

use apportion_ledger::{AllocationId, ClaimWindow, Health, ProcessId, ProcessSample};

use apportion_abi::Bytes;

use crate::driver::DriverReadings;

/// Members that ended, as long as the driver lists them.
#[derive(Debug, Default)]
pub(super) struct LingeringProcesses(HashMap<u32, LingeringProcess>);

#[derive(Debug)]
struct LingeringProcess {
    process: ProcessId,
    id: AllocationId,
    /// The sequence number of the first reading that was requested after its end.
    counts_from: Option<u64>,
}

impl LingeringProcesses {
    /// Adds a member that ended.
    pub(super) fn enter(&mut self, process: ProcessId, id: &AllocationId) {
        let leaver = LingeringProcess {
            process,
            id: id.clone(),
            counts_from: None,
        };
        self.0.insert(process.pid, leaver);
    }

    /// Drops processes that the driver no longer lists.
    pub(super) fn observe(&mut self, readings: &DriverReadings) {
        self.0.retain(|pid, leaver| {
            // The reading at hand may have been requested before the end.
            let from = *leaver.counts_from.get_or_insert(readings.sequence + 1);
            let mut cards = readings.cards.iter();
            readings.sequence < from
                || cards
                    .any(|card| card.health != Health::Healthy || card.processes.contains_key(pid))
        });
    }

    /// What the driver reports for a dead process, as a sample of its allocation; `None` if it is unknown or has
    /// only just ended.
    pub(super) fn sample(
        &self,
        pid: u32,
        sequence: u64,
        nvml: Option<Bytes>,
    ) -> Option<ProcessSample> {
        let leaver = self.0.get(&pid)?;
        let counts = leaver.counts_from.is_some_and(|from| from <= sequence);
        counts.then(|| ProcessSample {
            process: leaver.process,
            owner: Some(leaver.id.clone()),
            nvml,
            // It claims nothing and does not bypass its account.
            claimed: Some(ClaimWindow::default()),
            has_ended: true,
        })
    }
}
