//! What an elastic share costs below its allowance: the same calls and starts as in a fixed share, in turns.
//!
//! Both sides use the library on the driver that does nothing. So a difference can only come from the account: it has one
//! more file, and its limit may change.

use anyhow::Result;

use crate::contention::at_once;
use crate::quantiles::SampleQuantiles;
use crate::setup::{BenchDriver, BenchSetup};
use crate::starts::{FIRST_USES, STARTS, nothing_on};
use crate::table::{PairedSamples, heading_of};
use crate::worker::WorkerTask;

/// The account of each side.
const SIDES: [BenchDriver; 2] = [BenchDriver::Null, BenchDriver::NullElastic];

/// A call in both shares. The budget is for the difference, in nanoseconds.
struct ElasticCall {
    what: &'static str,
    work: WorkerTask,
    /// How many idle processes share the account.
    others: usize,
    budget: f64,
}

const CALLS: &[ElasticCall] = &[
    ElasticCall {
        what: "alloc+free of 2 MiB",
        work: WorkerTask::AllocLarge,
        others: 0,
        budget: 20.0,
    },
    ElasticCall {
        what: "alloc+free of 2 MiB, 64 processes",
        work: WorkerTask::AllocLarge,
        others: 63,
        budget: 20.0,
    },
    ElasticCall {
        what: "launch",
        work: WorkerTask::Launch,
        others: 0,
        budget: 5.0,
    },
    ElasticCall {
        what: "launch, 64 processes",
        work: WorkerTask::Launch,
        others: 63,
        budget: 5.0,
    },
];
/// How many processes allocate at once, and the budgets for the difference.
const AT_ONCE: [(usize, f64); 2] = [(1, 50.0), (64, 100.0)];
/// The budgets for a start without CUDA, and for the first use of it.
const START: f64 = 20e3;
const FIRST_USE: f64 = 200e3;

/// Prints a pair for each call and each kind of start.
pub(crate) fn compare(setting: &BenchSetup, rounds: usize) -> Result<()> {
    let title = "An elastic share below its allowance, on a driver that does nothing";
    heading_of(title, ["fixed", "elastic"]);
    for row in CALLS {
        call(setting, row, rounds)?.print(row.what, Some(row.budget));
    }
    for (processes, budget) in AT_ONCE {
        let what = format!("alloc+free of 2 MiB by {processes} at once, CPU time");
        contended(setting, processes, rounds)?.print(&what, Some(budget));
    }
    let start = |driver| Ok(vec![nothing_on(setting, driver, true)?]);
    in_turns(rounds * STARTS, start)?.print("/bin/true", Some(START));
    let first_use = |driver| setting.samples(WorkerTask::FirstUse, driver, true);
    in_turns(rounds * FIRST_USES, first_use)?.print("first use of CUDA", Some(FIRST_USE));
    Ok(())
}

fn call(setting: &BenchSetup, row: &ElasticCall, rounds: usize) -> Result<PairedSamples> {
    let others = SIDES.map(|driver| setting.others(row.others, driver));
    let middle = |driver| {
        let samples = setting.samples(row.work, driver, true)?;
        Ok(vec![SampleQuantiles::of(samples).middle])
    };
    let pair = in_turns(rounds, middle);
    for other in others {
        drop(other?);
    }
    pair
}

fn contended(setting: &BenchSetup, processes: usize, rounds: usize) -> Result<PairedSamples> {
    in_turns(rounds, |driver| {
        let answers = at_once(setting, WorkerTask::Contend, processes, (driver, true))?;
        Ok(answers
            .into_iter()
            .map(|(_, processor)| processor)
            .collect())
    })
}

/// Measures in turns, so that a disturbance of the machine affects both.
fn in_turns(
    rounds: usize,
    measure: impl Fn(BenchDriver) -> Result<Vec<f64>>,
) -> Result<PairedSamples> {
    let mut pair = PairedSamples::default();
    for _ in 0..rounds {
        let [fixed, elastic] = SIDES;
        pair.without.extend(measure(fixed)?);
        pair.with.extend(measure(elastic)?);
    }
    Ok(pair)
}
