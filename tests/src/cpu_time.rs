//! The CPU time and memory of a process, as the kernel counts them.

use std::fmt;
use std::fs;
use std::thread::sleep;
use std::time::Duration;

use apportion_abi::Bytes;

/// The kernel's clock ticks per second, on every Linux that Kubernetes runs on.
const TICKS: u64 = 100;

/// The CPU time that a process has used.
#[derive(Clone, Copy, Debug)]
pub struct CpuTime(Duration);

impl CpuTime {
    /// The CPU time of a process so far.
    #[must_use]
    pub fn of(process: u32) -> Self {
        let text = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        // The command name may contain spaces. It ends at the last parenthesis.
        let (_, rest) = text.rsplit_once(')').unwrap_or_default();
        let fields = rest.split_whitespace().skip(11).take(2);
        let ticks: u64 = fields.filter_map(|field| field.parse::<u64>().ok()).sum();
        Self(Duration::from_millis(ticks * 1000 / TICKS))
    }

    /// The CPU time used since `before`.
    #[must_use]
    pub fn since(self, before: &Self) -> Self {
        Self(self.0.saturating_sub(before.0))
    }

    /// The part of one CPU that this is over `time`.
    #[must_use]
    pub fn part_of(self, time: Duration) -> f64 {
        self.0.as_secs_f64() / time.as_secs_f64()
    }
}

impl fmt::Display for CpuTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} s of a processor", self.0.as_secs_f64())
    }
}

/// The number of windows in which a cost is measured. It is odd, so that the median is one of them.
pub const WINDOWS: usize = 5;

/// The part of one CPU that each process uses in a window of time that begins now.
#[must_use]
pub fn parts_of(processes: &[u32], window: Duration) -> Vec<f64> {
    let usage = || processes.iter().map(|process| CpuTime::of(*process));
    let before: Vec<CpuTime> = usage().collect();
    sleep(window);
    let used = usage().zip(&before);
    used.map(|(after, before)| after.since(before).part_of(window))
        .collect()
}

/// The part of one CPU that a process uses, in each of several windows of time.
#[must_use]
pub fn parts_in_windows(process: u32, window: Duration) -> [f64; WINDOWS] {
    std::array::from_fn(|_| parts_of(&[process], window)[0])
}

/// The median of an odd number of windows.
///
/// # Panics
/// If there are none.
#[must_use]
pub fn median(parts: &[f64]) -> f64 {
    let mut sorted = parts.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// The resident memory of a process, now and at its peak.
#[must_use]
pub fn resident(process: u32) -> [Bytes; 2] {
    let text = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    ["VmRSS:", "VmHWM:"].map(|field| {
        let line = text.lines().find_map(|line| line.strip_prefix(field));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
        Bytes(kib.unwrap_or(0_u64) * 1024)
    })
}
