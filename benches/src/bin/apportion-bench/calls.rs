//! The extra cost of one call with the library: the median of many batches, in each round.

use anyhow::Result;

use crate::quantiles::SampleQuantiles;
use crate::setup::{BenchDriver, BenchSetup};
use crate::table::{PairedSamples, heading};
use crate::worker::WorkerTask;

/// One measured call. The budget in nanoseconds applies to the driver that does nothing.
struct MeasuredCall {
    what: &'static str,
    work: WorkerTask,
    /// How many idle processes share the account.
    others: usize,
    budget: f64,
}

const ROWS: &[MeasuredCall] = &[
    MeasuredCall {
        what: "alloc+free of 4 KiB",
        work: WorkerTask::AllocSmall,
        others: 0,
        budget: 300.0,
    },
    MeasuredCall {
        what: "alloc+free of 2 MiB",
        work: WorkerTask::AllocLarge,
        others: 0,
        budget: 300.0,
    },
    MeasuredCall {
        what: "alloc+free of 4 KiB among 10 000 others",
        work: WorkerTask::AllocAmong,
        others: 0,
        budget: 300.0,
    },
    MeasuredCall {
        what: "alloc+free of 4 KiB in stream order",
        work: WorkerTask::AllocAsync,
        others: 0,
        budget: 300.0,
    },
    MeasuredCall {
        what: "cuMemGetInfo",
        work: WorkerTask::MemoryInfo,
        others: 0,
        budget: 1000.0,
    },
    MeasuredCall {
        what: "cuMemGetInfo, 64 processes in the account",
        work: WorkerTask::MemoryInfo,
        others: 63,
        budget: 1000.0,
    },
    MeasuredCall {
        what: "a refused allocation",
        work: WorkerTask::Refused,
        others: 0,
        budget: 2000.0,
    },
    MeasuredCall {
        what: "a refused allocation, 64 processes",
        work: WorkerTask::Refused,
        others: 63,
        budget: 2000.0,
    },
    MeasuredCall {
        what: "the same of what one process alone would get",
        work: WorkerTask::RefusedBeside,
        others: 63,
        budget: 40_000.0,
    },
    MeasuredCall {
        what: "launch",
        work: WorkerTask::Launch,
        others: 0,
        budget: 50.0,
    },
    MeasuredCall {
        what: "dlopen+dlclose of a library that is loaded",
        work: WorkerTask::Open,
        others: 0,
        budget: 1000.0,
    },
    MeasuredCall {
        what: "the same with RTLD_DEEPBIND",
        work: WorkerTask::OpenDeep,
        others: 0,
        budget: 50_000.0,
    },
];

/// The budget, in nanoseconds, for what it adds to a call that its share sleeps when it is idle.
const WATCHED: f64 = 20.0;
/// The budget, in nanoseconds, for what a hook adds to the program's own call: two changes of the capture mode.
const GUARD: f64 = 20.0;

/// Prints every pair on both drivers.
pub(crate) fn compare(setting: &BenchSetup, rounds: usize) -> Result<()> {
    heading("One call, on a driver that does nothing: the difference is the hook");
    for row in ROWS {
        pair(setting, row, BenchDriver::Null, rounds)?.print(row.what, Some(row.budget));
    }
    heading("One call, on the simulated driver: the ratio is nearer to life");
    for row in ROWS {
        pair(setting, row, BenchDriver::Simulated, rounds)?.print(row.what, None);
    }
    heading("One call in a share that sleeps when it is idle, against a share that does not");
    for (what, work) in [
        ("launch", WorkerTask::Launch),
        ("a function without a hook", WorkerTask::Unhooked),
    ] {
        watched(setting, work, rounds)?.print(what, Some(WATCHED));
    }
    heading(
        "One question of a hook in the relaxed capture mode, against a driver that has no modes",
    );
    guard(setting, rounds)?.print("cuStreamSynchronize with a pool", Some(GUARD));
    Ok(())
}

/// Both runs use the library. One of the shares asks it about calls.
fn watched(setting: &BenchSetup, work: WorkerTask, rounds: usize) -> Result<PairedSamples> {
    let mut pair = PairedSamples::default();
    let middle = |driver| -> Result<f64> {
        Ok(SampleQuantiles::of(setting.samples(work, driver, true)?).middle)
    };
    for _ in 0..rounds {
        pair.without.push(middle(BenchDriver::Null)?);
        pair.with.push(middle(BenchDriver::Watched)?);
    }
    Ok(pair)
}

/// Both runs use the library. It changes the capture mode only if the driver has modes.
fn guard(setting: &BenchSetup, rounds: usize) -> Result<PairedSamples> {
    let mut pair = PairedSamples::default();
    let middle = |driver| -> Result<f64> {
        Ok(SampleQuantiles::of(setting.samples(WorkerTask::Wait, driver, true)?).middle)
    };
    for _ in 0..rounds {
        pair.without.push(middle(BenchDriver::Modeless)?);
        pair.with.push(middle(BenchDriver::Null)?);
    }
    Ok(pair)
}

/// Measures in turns, so that a disturbance of the machine affects both.
fn pair(
    setting: &BenchSetup,
    row: &MeasuredCall,
    driver: BenchDriver,
    rounds: usize,
) -> Result<PairedSamples> {
    let (work, mut pair) = (row.work, PairedSamples::default());
    let _others = setting.others(row.others, driver)?;
    let middle = |hooked| -> Result<f64> {
        Ok(SampleQuantiles::of(setting.samples(work, driver, hooked)?).middle)
    };
    for _ in 0..rounds {
        pair.without.push(middle(false)?);
        pair.with.push(middle(true)?);
    }
    Ok(pair)
}
