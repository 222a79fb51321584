//! What processes cost while nothing happens.
//!
//! The API server works by itself, too: its garbage collection alone makes one minute twice as expensive as the next.
//! So one window says little, and the median of several is compared.

use std::thread::sleep;
use std::time::Duration;

use apportion_tests::cpu_time::{WINDOWS, median, parts_in_windows};

/// Time for the work that the steps before left behind.
const SETTLE: Duration = Duration::from_secs(20);

/// The part of a processor that each process took in each window, least first.
#[derive(Debug, Default)]
pub(crate) struct IdleCosts(Vec<(&'static str, [f64; WINDOWS])>);

impl IdleCosts {
    /// Waits until the processes have settled, and measures them.
    pub(crate) fn measure(window: Duration, processes: &[(&'static str, u32)]) -> Self {
        sleep(SETTLE);
        let (names, pids): (Vec<_>, Vec<_>) = processes.iter().copied().unzip();
        let parts = parts_in_windows(&pids, window);
        Self(names.into_iter().zip(parts).collect())
    }

    /// Prints the median and the range of each process, and how much more it is than without the scheduler.
    pub(crate) fn print(&self, alone: Option<&Self>) {
        for (name, parts) in &self.0 {
            let before = alone.and_then(|alone| alone.0.iter().find(|(of, _)| of == name));
            let more = before.map_or_else(String::new, |(_, alone)| {
                format!(", {:+.4} on top of alone", median(parts) - median(alone))
            });
            let [least, .., most] = parts;
            let middle = median(parts);
            println!("  {name}: median {middle:.4}, {least:.4} to {most:.4}{more}");
        }
    }
}
