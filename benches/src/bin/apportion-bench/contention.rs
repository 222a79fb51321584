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

/// How many at once, and the budget of one operation in nanoseconds.
const CROWDS: [(usize, f64); 3] = [(1, 300.0), (8, 2000.0), (64, 2000.0)];

/// Prints a pair for each crowd.
pub(crate) fn compare(setting: &Setting, rounds: usize) -> Result<()> {
    let rounds = rounds.div_ceil(3);
    heading("alloc+free of 2 MiB by many processes with one account, processor time");
    for (crowd, budget) in CROWDS {
        let (mut pair, mut clock) = (Pair::default(), [Vec::new(), Vec::new()]);
        for _ in 0..rounds {
            for hooked in [false, true] {
                for (spread, processor) in at_once(setting, crowd, hooked)? {
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
        pair.print(&format!("{crowd} at once"), Some(budget));
        let [without, with] = clock.map(|samples| time(Spread::of(samples).middle));
        println!(
            "{:<44} {without:>10} {with:>10}",
            "  nine in ten take less, by the clock"
        );
    }
    Ok(())
}

/// Starts all, lets them begin together, and collects what they say.
fn at_once(setting: &Setting, crowd: usize, hooked: bool) -> Result<Vec<(Spread, f64)>> {
    let workers: Result<Vec<_>> = (0..crowd)
        .map(|_| setting.worker(Work::Contend, Driver::Null, hooked))
        .collect();
    let mut workers = workers?;
    for worker in &mut workers {
        drop(worker.stdin.take());
    }
    let answers = workers.iter_mut().map(|worker| match answer(worker)? {
        Answer::Contended { clock, processor } => Ok((clock, processor)),
        Answer::Samples(_) | Answer::Card(_) => bail!("a worker did not contend"),
    });
    answers.collect()
}
