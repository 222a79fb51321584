//! Many processes that allocate and free from one account at once.
//!
//! With more processes than processors the clock also counts waiting for a processor, which is not the
//! hook's doing; the processor time of an operation is, so that is what the budget is held against.
//! The clock's figures stand beside it.

use anyhow::{Result, bail};

use crate::setting::{Driver, Setting, answer};
use crate::spread::Spread;
use crate::table::{Pair, heading, time};
use crate::worker::{Answer, Work};

/// Who allocates and frees at once.
struct Row {
    what: &'static str,
    work: Work,
    processes: usize,
    /// For one operation, in nanoseconds.
    budget: f64,
}

const ROWS: &[Row] = &[
    Row {
        what: "1 process",
        work: Work::Contend,
        processes: 1,
        budget: 300.0,
    },
    Row {
        what: "8 processes",
        work: Work::Contend,
        processes: 8,
        budget: 2000.0,
    },
    Row {
        what: "64 processes",
        work: Work::Contend,
        processes: 64,
        budget: 2000.0,
    },
    Row {
        what: "8 threads of one process",
        work: Work::ContendThreads,
        processes: 1,
        budget: 2000.0,
    },
];

/// Prints a pair for each row.
pub(crate) fn compare(setting: &Setting, rounds: usize) -> Result<()> {
    let rounds = rounds.div_ceil(3);
    heading("alloc+free of 2 MiB at once with one account, processor time");
    for row in ROWS {
        let (mut pair, mut clock) = (Pair::default(), [Vec::new(), Vec::new()]);
        for _ in 0..rounds {
            for hooked in [false, true] {
                for (spread, processor) in at_once(setting, row, hooked)? {
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
        let [without, with] = clock.map(|samples| time(Spread::of(samples).middle));
        let clock = "  nine in ten take less, by the clock";
        println!("{clock:<44} {without:>10} {with:>10}");
    }
    Ok(())
}

/// Starts all, lets them begin together, and collects what they say.
fn at_once(setting: &Setting, row: &Row, hooked: bool) -> Result<Vec<(Spread, f64)>> {
    let workers: Result<Vec<_>> = (0..row.processes)
        .map(|_| setting.worker(row.work, Driver::Null, hooked))
        .collect();
    let mut workers = workers?;
    for worker in &mut workers {
        drop(worker.stdin.take());
    }
    let answers = workers.iter_mut().map(|worker| match answer(worker)? {
        Answer::Contended { clock, processor } => Ok((clock, processor)),
        Answer::Samples(_) | Answer::Card(_) | Answer::Metrics(_) => {
            bail!("a worker did not contend")
        }
    });
    answers.collect()
}
