//! Processes and threads that take memory at the same time, up to one limit.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::Result;

use super::CompareSetup;
use super::machine::CompareMachine;
use super::memory_limiter::MemoryLimiter;
use super::report::{CompareReport, CompareTable};

const TIME: Duration = Duration::from_secs(60);
const CARD_GIB: u64 = 16;
const ROUNDS: usize = 7;
const QUICK_ROUNDS: usize = 2;

/// One race: who takes what.
struct RaceCase {
    what: &'static str,
    name: &'static str,
    limit: u64,
    block: u64,
    processes: u64,
    threads: u64,
}

const RACES: [RaceCase; 8] = [
    RaceCase {
        what: "8 processes, `cuMemAlloc` of 256 MiB",
        name: "cuMemAlloc",
        limit: 6000,
        block: 256,
        processes: 8,
        threads: 1,
    },
    RaceCase {
        what: "8 processes, `cuMemAlloc` of 32 MiB",
        name: "cuMemAlloc",
        limit: 6000,
        block: 32,
        processes: 8,
        threads: 1,
    },
    RaceCase {
        what: "8 processes, `cuMemAlloc` of 1 MiB",
        name: "cuMemAlloc",
        limit: 6000,
        block: 1,
        processes: 8,
        threads: 1,
    },
    RaceCase {
        what: "8 processes, `cuMemAllocAsync` of 32 MiB",
        name: "async",
        limit: 6000,
        block: 32,
        processes: 8,
        threads: 1,
    },
    RaceCase {
        what: "8 processes, `cuMemCreate` and map of 32 MiB",
        name: "mapped",
        limit: 6000,
        block: 32,
        processes: 8,
        threads: 1,
    },
    RaceCase {
        what: "8 processes, graph nodes of 32 MiB",
        name: "graph-node",
        limit: 6000,
        block: 32,
        processes: 8,
        threads: 1,
    },
    RaceCase {
        what: "8 threads, `cuMemAlloc` of 32 MiB",
        name: "cuMemAlloc",
        limit: 2000,
        block: 32,
        processes: 1,
        threads: 8,
    },
    RaceCase {
        what: "8 threads, `cuMemAlloc` of 1 MiB",
        name: "cuMemAlloc",
        limit: 2000,
        block: 1,
        processes: 1,
        threads: 8,
    },
];

impl RaceCase {
    /// The card's peak memory in each round.
    fn held(
        &self,
        setting: &CompareSetup,
        contender: &MemoryLimiter,
        rounds: usize,
    ) -> Result<Vec<Result<u64, String>>> {
        let machine = CompareMachine::start(setting, contender, CARD_GIB)?;
        let numbers = [CARD_GIB << 10, self.block, self.processes, self.threads];
        let mut words = vec![
            setting.programs.named("ways").into_os_string(),
            self.name.into(),
        ];
        words.extend(numbers.map(|number| OsString::from(number.to_string())));
        let mut all = Vec::new();
        for _ in 0..rounds {
            machine.settle(self.limit)?;
            let outcome = machine.run(self.limit, TIME, &words)?;
            let held = machine.high_water()?;
            let is_done = outcome.is_done();
            all.push(if is_done {
                Ok(held)
            } else {
                Err(outcome.failure())
            });
            // A program that hung once is not waited for again.
            if !is_done {
                break;
            }
        }
        Ok(all)
    }
}

/// Runs every race under every library.
pub(crate) fn compare(setting: &CompareSetup, report: &mut CompareReport) -> Result<()> {
    let rounds = if setting.is_quick {
        QUICK_ROUNDS
    } else {
        ROUNDS
    };
    let columns = ["race".to_owned(), "limit".to_owned()];
    let limited = || {
        setting
            .contenders
            .iter()
            .filter(|contender| !contender.is_plain())
    };
    let names = limited().map(|contender| contender.name().to_owned());
    let words = format!(
        "MiB held at the most, by the driver's count, in {rounds} rounds; what is **bold** is above the limit. A context takes 384 MiB."
    );
    let mut table = CompareTable::new("Races", &words, columns.into_iter().chain(names));
    for race in &RACES {
        eprintln!("races: {}", race.what);
        let mut cells = vec![race.limit.to_string()];
        for contender in limited() {
            let rounds = race.held(setting, contender, rounds)?;
            let cell = cell(race, &rounds);
            let is_right = rounds
                .iter()
                .all(|held| held.as_ref().is_ok_and(|held| *held <= race.limit));
            if contender.is_ours() && !is_right {
                report.surprise(format!("{}: {cell}", race.what));
            }
            cells.push(cell);
        }
        table.row(race.what, cells);
    }
    report.add(&table);
    Ok(())
}

fn cell(race: &RaceCase, rounds: &[Result<u64, String>]) -> String {
    let held: Vec<u64> = rounds.iter().flatten().copied().collect();
    let failure = rounds.iter().find_map(|round| round.as_ref().err());
    let mut cell = match (held.iter().min(), held.iter().max()) {
        (Some(least), Some(most)) if least == most => most.to_string(),
        (Some(least), Some(most)) => format!("{least} to {most}"),
        _ => String::new(),
    };
    if held.iter().any(|held| *held > race.limit) {
        cell = format!("**{cell}**");
    }
    match failure {
        Some(why) => format!("{cell} ({why})"),
        None => cell,
    }
}
