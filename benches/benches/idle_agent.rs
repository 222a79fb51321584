//! What the agent takes of a processor while nothing happens, with no share, and with one of 1 and of 64 processes.
//!
//! With each sample the agent asks NVML about the GPUs and `/proc` about the processes of shares, so the cost grows with the
//! processes. All windows are taken in one run, and the median of each kind is compared.

use std::thread::sleep;
use std::time::Duration;

use apportion_tests::cpu_time::{median, parts_in_windows};

mod shares;

use shares::{host, share};

/// The number of processes of the share, with the budgets in parts of a processor.
const BUDGETS: [(usize, f64); 3] = [(0, 0.010), (1, 0.010), (64, 0.030)];
const SIZES: [&str; 2] = ["--gpu-memory", "6000"];
/// Time for the samples that a new process asks for.
const SETTLE: Duration = Duration::from_secs(2);
const WINDOW: Duration = Duration::from_secs(4);

/// The median part of a processor that a process takes.
fn idle_cost(process: u32) -> f64 {
    sleep(SETTLE);
    median(&parts_in_windows(process, WINDOW))
}

fn main() {
    let host = host();
    let agent = host.agent(&["--context-reserve", "20"]);
    for (processes, budget) in BUDGETS {
        let program = (processes > 0).then(|| share(&host, "idle", &SIZES, processes, 2));
        let cost = idle_cost(agent.pid());
        let verdict = if cost <= budget { "kept" } else { "missed" };
        println!("{processes} processes: {cost:.4} of a processor, budget {budget}: {verdict}");
        if let Some(mut program) = program {
            program.step("reap").ok();
            assert!(program.end().success());
        }
    }
}
