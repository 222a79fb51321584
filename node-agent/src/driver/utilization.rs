//! How much of a card's time each process's kernels take.
//!
//! The driver keeps a process's samples for some seconds and adds a few in each. The agent asks once a second,
//! because this query costs more than the others. A process without new samples ran nothing. Cards before Maxwell,
//! and some drivers in containers, do not support it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

/// How often the driver is asked.
const EVERY: Duration = Duration::from_secs(1);

/// The last answer of one card.
#[derive(Debug, Default)]
pub(super) struct UtilizationSampler {
    asked: Option<Instant>,
    /// The driver's clock at its newest sample, in microseconds.
    newest: u64,
    by_pid: Option<BTreeMap<u32, u32>>,
}

impl UtilizationSampler {
    /// Per cent of the card's time, by pid; `None` if the card does not report it.
    pub(super) fn of(&mut self, device: &Device<'_>) -> Option<BTreeMap<u32, u32>> {
        if self.asked.is_none_or(|at| at.elapsed() >= EVERY) {
            self.asked = Some(Instant::now());
            self.by_pid = self.ask(device);
        }
        self.by_pid.clone()
    }

    fn ask(&mut self, device: &Device<'_>) -> Option<BTreeMap<u32, u32>> {
        let known = self.newest;
        let samples = match device.process_utilization_stats(known) {
            Err(NvmlError::NotFound) => Vec::new(),
            samples => samples.ok()?,
        };
        let mut sums: BTreeMap<u32, (u32, u32)> = BTreeMap::new();
        // The list may have more than the new samples: old entries, and entries without a process.
        for sample in samples.iter().filter(|sample| sample.timestamp > known) {
            self.newest = self.newest.max(sample.timestamp);
            let (sum, count) = sums.entry(sample.pid).or_default();
            *sum += sample.sm_util.min(100);
            *count += 1;
        }
        Some(
            sums.into_iter()
                .map(|(pid, (sum, count))| (pid, sum / count))
                .collect(),
        )
    }
}
