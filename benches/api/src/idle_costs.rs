//! What processes cost while nothing happens: the CPU time in each of several windows.
//!
//! The API server works by itself, too: its garbage collection alone makes one minute twice as expensive as the next.
//! So one window says little, and the median of several is compared.

use std::thread::sleep;
use std::time::Duration;

use apportion_tests::cpu_time::CpuTime;

/// The number of windows. It is odd, so that the median is one of them.
const WINDOWS: usize = 5;
/// Time for the work that the steps before left behind.
const SETTLE: Duration = Duration::from_secs(20);

/// The part of a processor that each process took in each window, least first.
#[derive(Debug, Default)]
pub(crate) struct IdleCosts(Vec<(&'static str, Vec<f64>)>);

impl IdleCosts {
    /// Waits until the processes have settled, and measures them.
    pub(crate) fn measure(window: Duration, processes: &[(&'static str, u32)]) -> Self {
        sleep(SETTLE);
        let mut costs: Vec<_> = processes
            .iter()
            .map(|(name, _)| (*name, Vec::new()))
            .collect();
        for _ in 0..WINDOWS {
            let before: Vec<_> = processes
                .iter()
                .map(|(_, process)| CpuTime::of(*process))
                .collect();
            sleep(window);
            for (((_, parts), (_, process)), before) in costs.iter_mut().zip(processes).zip(&before)
            {
                parts.push(CpuTime::of(*process).since(before).part_of(window));
            }
        }
        for (_, parts) in &mut costs {
            parts.sort_by(f64::total_cmp);
        }
        Self(costs)
    }

    /// Prints the median and the range of each process, and how much more it is than without the scheduler.
    pub(crate) fn print(&self, alone: Option<&Self>) {
        for (name, parts) in &self.0 {
            let before = alone.and_then(|alone| alone.0.iter().find(|(of, _)| of == name));
            let more = before.map_or_else(String::new, |(_, alone)| {
                format!(", {:+.4} on top of alone", median(parts) - median(alone))
            });
            let (least, most) = (parts[0], parts[WINDOWS - 1]);
            let middle = median(parts);
            println!("  {name}: median {middle:.4}, {least:.4} to {most:.4}{more}");
        }
    }
}

fn median(parts: &[f64]) -> f64 {
    parts[WINDOWS / 2]
}
