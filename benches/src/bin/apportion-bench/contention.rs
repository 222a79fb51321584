//! Many processes that allocate and free from one account at once.
//!
//! With more processes than CPUs, wall-clock time includes waiting for a CPU, which is not the hook's doing. So the
//! budget applies to the CPU time of an operation. The wall-clock figures stand beside it.

use anyhow::{Result, bail};

use crate::quantiles::SampleQuantiles;
use crate::setup::{BenchDriver, BenchSetup, answer};
use crate::table::{PairedSamples, heading, time};
use crate::worker::{WorkerOutput, WorkerTask};

/// The processes that allocate and free at once.
struct ContentionCase {
    what: &'static str,
    work: WorkerTask,
    processes: usize,
    /// For one operation, in nanoseconds.
    budget: f64,
}

const ROWS: &[ContentionCase] = &[
    ContentionCase {
        what: "1 process",
        work: WorkerTask::Contend,
        processes: 1,
        budget: 300.0,
    },
    ContentionCase {
        what: "8 processes",
        work: WorkerTask::Contend,
        processes: 8,
        budget: 2000.0,
    },
    ContentionCase {
        what: "64 processes",
        work: WorkerTask::Contend,
        processes: 64,
        budget: 2000.0,
    },
    ContentionCase {
        what: "8 threads of one process",
        work: WorkerTask::ContendThreads,
        processes: 1,
        budget: 2000.0,
    },
];

/// Prints a pair for each row.
pub(crate) fn compare(setting: &BenchSetup, rounds: usize) -> Result<()> {
    let rounds = rounds.div_ceil(3);
    heading("alloc+free of 2 MiB at once with one account, processor time");
    for row in ROWS {
        let (mut pair, mut clock) = (PairedSamples::default(), [Vec::new(), Vec::new()]);
        for _ in 0..rounds {
            for hooked in [false, true] {
                let side = (BenchDriver::Null, hooked);
                for (spread, processor) in at_once(setting, row.work, row.processes, side)? {
                    let side = if hooked {
                        &mut pair.with
                    } else {
                        &mut pair.without
                    };
                    side.push(processor);
                    clock[usize::from(hooked)].push(spread.high);
                }
            }
        }
        pair.print(row.what, Some(row.budget));
        let [without, with] = clock.map(|samples| time(SampleQuantiles::of(samples).middle));
        let clock = "  nine in ten take less, by the clock";
        println!("{clock:<44} {without:>10} {with:>10}");
    }
    Ok(())
}

/// Starts all workers, lets them begin together, and collects their figures: the clock's, and processor time.
pub(crate) fn at_once(
    setting: &BenchSetup,
    work: WorkerTask,
    processes: usize,
    (driver, hooked): (BenchDriver, bool),
) -> Result<Vec<(SampleQuantiles, f64)>> {
    let workers: Result<Vec<_>> = (0..processes)
        .map(|_| setting.worker(work, driver, hooked))
        .collect();
    let mut workers = workers?;
    for worker in &mut workers {
        drop(worker.stdin.take());
    }
    let answers = workers.iter_mut().map(|worker| match answer(worker)? {
        WorkerOutput::Contended { clock, processor } => Ok((clock, processor)),
        WorkerOutput::Samples(_) | WorkerOutput::Card(_) | WorkerOutput::Metrics(_) => {
            bail!("a worker did not contend")
        }
    });
    answers.collect()
}
