//! What one call costs more with the library: the middle of many batches, round by round.

use anyhow::Result;

use crate::setting::{Driver, Setting};
use crate::spread::Spread;
use crate::table::{Pair, heading};
use crate::worker::Work;

/// One measured call; the budget is for the driver that does nothing, in nanoseconds.
struct Row {
    what: &'static str,
    work: Work,
    /// How many other processes are in the account, and do nothing.
    others: usize,
    budget: f64,
}

const ROWS: &[Row] = &[
    Row {
        what: "alloc+free of 4 KiB",
        work: Work::AllocSmall,
        others: 0,
        budget: 300.0,
    },
    Row {
        what: "alloc+free of 2 MiB",
        work: Work::AllocLarge,
        others: 0,
        budget: 300.0,
    },
    Row {
        what: "alloc+free of 4 KiB among 10 000 others",
        work: Work::AllocAmong,
        others: 0,
        budget: 300.0,
    },
    Row {
        what: "alloc+free of 4 KiB in stream order",
        work: Work::AllocAsync,
        others: 0,
        budget: 300.0,
    },
    Row {
        what: "cuMemGetInfo",
        work: Work::MemoryInfo,
        others: 0,
        budget: 1000.0,
    },
    Row {
        what: "cuMemGetInfo, 64 processes in the account",
        work: Work::MemoryInfo,
        others: 63,
        budget: 1000.0,
    },
    Row {
        what: "a refused allocation",
        work: Work::Refused,
        others: 0,
        budget: 2000.0,
    },
    Row {
        what: "a refused allocation, 64 processes",
        work: Work::Refused,
        others: 63,
        budget: 2000.0,
    },
    Row {
        what: "the same of what one process alone would get",
        work: Work::RefusedBeside,
        others: 63,
        budget: 25_000.0,
    },
    Row {
        what: "launch",
        work: Work::Launch,
        others: 0,
        budget: 50.0,
    },
    Row {
        what: "dlopen+dlclose of a library that is loaded",
        work: Work::Open,
        others: 0,
        budget: 1000.0,
    },
    Row {
        what: "the same with RTLD_DEEPBIND",
        work: Work::OpenDeep,
        others: 0,
        budget: 50_000.0,
    },
];

/// What is asked beside the program's own call, in nanoseconds: the two changes of the capture mode.
const GUARD: f64 = 20.0;

/// Prints every pair on both drivers.
pub(crate) fn compare(setting: &Setting, rounds: usize) -> Result<()> {
    heading("One call, on a driver that does nothing: the difference is the hook");
    for row in ROWS {
        pair(setting, row, Driver::Null, rounds)?.print(row.what, Some(row.budget));
    }
    heading("One call, on the simulated driver: the ratio is nearer to life");
    for row in ROWS {
        pair(setting, row, Driver::Simulated, rounds)?.print(row.what, None);
    }
    heading(
        "One question of a hook in the relaxed capture mode, against a driver that has no modes",
    );
    guard(setting, rounds)?.print("cuStreamSynchronize with a pool", Some(GUARD));
    Ok(())
}

/// Both are measured with the library, which changes the mode where the driver knows modes.
fn guard(setting: &Setting, rounds: usize) -> Result<Pair> {
    let mut pair = Pair::default();
    let middle = |driver| -> Result<f64> {
        Ok(Spread::of(setting.samples(Work::Wait, driver, true)?).middle)
    };
    for _ in 0..rounds {
        pair.without.push(middle(Driver::Modeless)?);
        pair.with.push(middle(Driver::Null)?);
    }
    Ok(pair)
}

/// Measures in turns, so that what disturbs the machine disturbs both.
fn pair(setting: &Setting, row: &Row, driver: Driver, rounds: usize) -> Result<Pair> {
    let (work, mut pair) = (row.work, Pair::default());
    let _others = setting.others(row.others, driver)?;
    let middle =
        |hooked| -> Result<f64> { Ok(Spread::of(setting.samples(work, driver, hooked)?).middle) };
    for _ in 0..rounds {
        pair.without.push(middle(false)?);
        pair.with.push(middle(true)?);
    }
    Ok(pair)
}
