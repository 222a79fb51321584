//! Memory that a dead process still has on a card.
//!
//! A child of `fork` cannot use the contexts of its parent, and inherits the descriptors that keep them:
//! workers of a data loader that outlive their killed parent keep gigabytes of it, seen on real drivers,
//! and NVML goes on listing the dead parent's pid. Its slot in the account is taken out all the same, as
//! nobody can free that memory piece by piece. So what NVML says of a dead member counts as overhead of
//! its allocation while the driver lists it: the limit holds, and nobody else gets that memory.
//!
//! A process that just died is listed for a moment in any case. It counts from the first reading on that was
//! asked for after its end. Where the driver lists nobody for such memory, it is memory that nobody
//! explains: no other allocation gets it, and that it is above this one's limit cannot be seen.

use std::collections::HashMap;

use apportion_ledger::{AllocationId, ClaimWindow, Health, ProcessId, ProcessSample};

use apportion_abi::Bytes;

use crate::driver::DriverReadings;

/// Members that ended, for as long as the driver lists them.
#[derive(Debug, Default)]
pub(super) struct LingeringProcesses(HashMap<u32, LingeringProcess>);

#[derive(Debug)]
struct LingeringProcess {
    process: ProcessId,
    id: AllocationId,
    /// The first reading that was asked for after its end.
    counts_from: Option<u64>,
}

impl LingeringProcesses {
    /// Enters a member that ended.
    pub(super) fn enter(&mut self, process: ProcessId, id: &AllocationId) {
        let leaver = LingeringProcess {
            process,
            id: id.clone(),
            counts_from: None,
        };
        self.0.insert(process.pid, leaver);
    }

    /// Forgets whom the driver lists no longer.
    pub(super) fn observe(&mut self, readings: &DriverReadings) {
        let may_list = |pid: &u32| {
            let mut cards = readings.cards.iter();
            cards.any(|card| card.health != Health::Healthy || card.processes.contains_key(pid))
        };
        self.0.retain(|pid, leaver| {
            // The reading that is at hand may have been asked for before.
            let from = *leaver.counts_from.get_or_insert(readings.sequence + 1);
            readings.sequence < from || may_list(pid)
        });
    }

    /// What the driver says of a dead process, as its allocation's; `None` for one that is not known or has
    /// only just died.
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
            // It claims nothing, and does not go around its account.
            claimed: Some(ClaimWindow::default()),
            has_ended: true,
        })
    }
}
