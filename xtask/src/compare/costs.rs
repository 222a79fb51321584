//! The extra cost of calls and starts with a library, in rounds that alternate between the libraries.
//!
//! Calls go to a driver that answers at once, and are measured in CPU time of the calling thread. So the figures hold
//! on a busy machine, too. Starts are measured on the simulated driver.

use std::env;
use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::CompareSetup;
use super::machine::CompareMachine;
use super::report::{CompareReport, CompareTable};

const TIME: Duration = Duration::from_secs(120);
const ROUNDS: usize = 3;
/// Room for 64 contexts, with a limit below the card's memory.
const CARD_GIB: u64 = 256;
const LIMIT: u64 = 200 << 10;

/// The row's title, the program's argument, and the number of processes under the limit.
const CALLS: [(&str, &str, u32); 12] = [
    ("alloc and free of 1 MiB, 1 process", "alloc-1", 1),
    ("alloc and free of 256 MiB, 1 process", "alloc-256", 1),
    ("alloc and free of 1 MiB, 8 processes at once", "alloc-1", 8),
    (
        "alloc and free of 1 MiB, 64 processes at once",
        "alloc-1",
        64,
    ),
    ("launch", "launch", 1),
    ("launch, 8 processes at once", "launch", 8),
    ("`cuMemGetInfo`, 1 process", "info", 1),
    ("`cuMemGetInfo`, 8 processes", "info", 8),
    ("`cuMemGetInfo`, 64 processes", "info", 64),
    ("refused allocation, 1 process", "refused-210000", 1),
    ("refused allocation, 8 processes", "refused-210000", 8),
    ("refused allocation, 64 processes", "refused-210000", 64),
];

/// The starts: the row's title, the program's argument, the number of starts, and which of the two printed numbers
/// counts.
const STARTS: [(&str, &str, u32, usize); 4] = [
    ("one after the other: processor time", "start", 9, 0),
    ("one after the other: wall time", "start", 9, 1),
    (
        "16 at once: wall time until the last has started",
        "starts",
        16,
        1,
    ),
    (
        "64 at once: wall time until the last has started",
        "starts",
        64,
        1,
    ),
];

/// A number that a program printed, in nanoseconds; `Err` says why there is none.
type Number = Result<f64, String>;

fn machines(setting: &CompareSetup) -> Result<Vec<CompareMachine<'_>>> {
    let contenders = setting.contenders.iter();
    contenders
        .map(|contender| CompareMachine::start(setting, contender, CARD_GIB))
        .collect()
}

/// The medians of alternating rounds, one for each library.
fn medians(
    machines: &[CompareMachine<'_>],
    rounds: usize,
    words: &[OsString],
    position: usize,
) -> Result<Vec<Number>> {
    let mut all: Vec<Result<Vec<f64>, String>> = vec![Ok(Vec::new()); machines.len()];
    for _ in 0..rounds {
        for (machine, all) in machines.iter().zip(&mut all) {
            // A program that failed once is not waited for again.
            let Ok(numbers) = all else { continue };
            machine.settle(LIMIT)?;
            let outcome = machine.run(LIMIT, TIME, words)?;
            let number = outcome
                .words()
                .get(position)
                .and_then(|word| word.parse().ok());
            match number {
                Some(number) if outcome.is_done() => numbers.push(number),
                Some(_) | None => *all = Err(outcome.failure()),
            }
        }
    }
    Ok(all
        .into_iter()
        .map(|numbers| numbers.and_then(middle))
        .collect())
}

fn middle(mut numbers: Vec<f64>) -> Result<f64, String> {
    numbers.sort_by(f64::total_cmp);
    numbers
        .get(numbers.len() / 2)
        .copied()
        .ok_or_else(|| "nothing".to_owned())
}

/// Nanoseconds in a readable unit.
fn text(nanoseconds: f64) -> String {
    match nanoseconds.abs() {
        ..100.0 => format!("{nanoseconds:.1} ns"),
        ..10_000.0 => format!("{nanoseconds:.0} ns"),
        ..1_000_000.0 => format!("{:.1} µs", nanoseconds / 1e3),
        _ => format!("{:.1} ms", nanoseconds / 1e6),
    }
}

/// The cost of calls.
pub(crate) fn compare_calls(setting: &CompareSetup, report: &mut CompareReport) -> Result<()> {
    let machines = machines(setting)?;
    let columns = std::iter::once("call".to_owned()).chain(setting.columns());
    let words = format!(
        "Processor time of the calling thread: that of the call without a library, and how much more it is with each (medians of {ROUNDS} \
         rounds that alternate). The driver below answers these calls at once and leaves the rest to the simulated one."
    );
    let mut table = CompareTable::new("What a call costs", &words, columns);
    let double = setting.programs.named("double");
    let driver = setting.staged.join("lib/apportion/sim");
    let mut path =
        env::join_paths([&double, &driver]).context("the target folder has a plain name")?;
    let mut prefix = OsString::from("LD_LIBRARY_PATH=");
    prefix.push(std::mem::take(&mut path));
    let mut real = OsString::from("APPORTION_COMPARE_DRIVER=");
    real.push(driver.join("libcuda.so.1"));
    for (what, call, processes) in CALLS {
        eprintln!("costs: {what}");
        let program = setting.programs.named("costs").into_os_string();
        // `env` runs before the program and takes the settings.
        let words = [
            prefix.clone(),
            real.clone(),
            program,
            call.into(),
            processes.to_string().into(),
        ];
        let numbers = medians(&machines, ROUNDS, &words, 0)?;
        let plain = numbers
            .first()
            .and_then(|number| number.as_ref().ok())
            .copied();
        let plain = plain.with_context(|| format!("{what}: without a library it {numbers:?}"))?;
        let cells =
            numbers
                .iter()
                .zip(&setting.contenders)
                .map(|(number, contender)| match number {
                    Ok(number) if contender.is_plain() => text(*number),
                    Ok(number) => format!("+{}", text((number - plain).max(0.0))),
                    Err(why) => format!("**{why}**"),
                });
        table.row(what, cells);
    }
    report.add(&table);
    Ok(())
}

/// The cost of a start.
pub(crate) fn compare_starts(setting: &CompareSetup, report: &mut CompareReport) -> Result<()> {
    let machines = machines(setting)?;
    let columns = std::iter::once("programs that start".to_owned()).chain(setting.columns());
    let words = format!(
        "From the start of a process to the end of its first allocation, on the simulated driver, whose NVML is simulated, too (medians of \
         {ROUNDS} rounds that alternate)."
    );
    let mut table = CompareTable::new("Starts", &words, columns);
    for (what, name, number, position) in STARTS {
        eprintln!("costs: {what}");
        let program = setting.programs.named("costs").into_os_string();
        let words = [program, name.into(), number.to_string().into()];
        let numbers = medians(&machines, ROUNDS, &words, position)?;
        ensure!(!numbers.is_empty(), "nobody starts");
        table.row(
            what,
            numbers.into_iter().map(|number| match number {
                Ok(number) => text(number),
                Err(why) => format!("**{why}**"),
            }),
        );
    }
    report.add(&table);
    Ok(())
}
