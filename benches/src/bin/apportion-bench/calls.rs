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
    budget: Option<f64>,
}

const ROWS: &[Row] = &[
    Row {
        what: "alloc+free of 4 KiB",
        work: Work::AllocSmall,
        budget: Some(300.0),
    },
    Row {
        what: "alloc+free of 2 MiB",
        work: Work::AllocLarge,
        budget: Some(300.0),
    },
    Row {
        what: "alloc+free of 4 KiB among 10 000 others",
        work: Work::AllocAmong,
        budget: Some(300.0),
    },
    Row {
        what: "alloc+free of 4 KiB in stream order",
        work: Work::AllocAsync,
        budget: Some(300.0),
    },
    Row {
        what: "cuMemGetInfo",
        work: Work::MemoryInfo,
        budget: None,
    },
    Row {
        what: "launch",
        work: Work::Launch,
        budget: Some(50.0),
    },
    Row {
        what: "dlopen+dlclose of a small library",
        work: Work::Open,
        budget: Some(1e3),
    },
    Row {
        what: "the same with RTLD_DEEPBIND",
        work: Work::OpenDeep,
        budget: Some(50e3),
    },
];

/// Prints every pair on both drivers.
pub(crate) fn compare(setting: &Setting, rounds: usize) -> Result<()> {
    heading("One call, on a driver that does nothing: the difference is the hook");
    for row in ROWS {
        pair(setting, row.work, Driver::Null, rounds)?.print(row.what, row.budget);
    }
    heading("One call, on the simulated driver: the ratio is nearer to life");
    for row in ROWS {
        pair(setting, row.work, Driver::Simulated, rounds)?.print(row.what, None);
    }
    Ok(())
}

/// Measures in turns, so that what disturbs the machine disturbs both.
fn pair(setting: &Setting, work: Work, driver: Driver, rounds: usize) -> Result<Pair> {
    let mut pair = Pair::default();
    let middle =
        |hooked| -> Result<f64> { Ok(Spread::of(setting.samples(work, driver, hooked)?).middle) };
    for _ in 0..rounds {
        pair.without.push(middle(false)?);
        pair.with.push(middle(true)?);
    }
    Ok(pair)
}
