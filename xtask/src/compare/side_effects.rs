//! What a library changes in a program that only wants a limit.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;

use super::CompareSetup;
use super::machine::CompareMachine;
use super::memory_limiter::MemoryLimiter;
use super::report::{CompareReport, CompareTable};

const TIME: Duration = Duration::from_secs(30);
const CARD_GIB: u64 = 16;
const LIMIT: u64 = 2000;

/// The program's words, and what they mean.
const ROWS: [(&str, &str); 11] = [
    ("errno-after-success", "`errno` after an allocation"),
    ("umask", "umask (was 022)"),
    ("signal-handlers", "handlers of signals"),
    ("threads", "threads"),
    ("descriptors-inherited", "descriptors that children inherit"),
    ("free-of-unknown", "`cuMemFree` of an unknown address"),
    (
        "free-of-pool-memory",
        "`cuMemFreeAsync` of memory of `cuMemAllocFromPoolAsync`",
    ),
    ("out-of-memory-async", "`cuMemAllocAsync` above the limit"),
    (
        "memory-after-reset",
        "memory again after `cuDevicePrimaryCtxReset`",
    ),
    ("next-object-twice", "`dlsym(RTLD_NEXT)` twice"),
    ("lines", "lines on standard error"),
];

fn manners(setting: &CompareSetup, contender: &MemoryLimiter) -> Result<BTreeMap<String, String>> {
    let machine = CompareMachine::start(setting, contender, CARD_GIB)?;
    machine.settle(LIMIT)?;
    let program = setting.programs.named("manners").into_os_string();
    let outcome = machine.run(LIMIT, TIME, &[program])?;
    let lines = outcome.output.lines();
    let mut plain_results: BTreeMap<String, String> = lines
        .map(|line| line.split_once(' ').unwrap_or((line, "none")))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    plain_results.insert(
        "lines".to_owned(),
        outcome.errors.lines().count().to_string(),
    );
    if !outcome.is_done() {
        plain_results.insert("end".to_owned(), outcome.failure());
    }
    Ok(plain_results)
}

pub(crate) fn compare(setting: &CompareSetup, report: &mut CompareReport) -> Result<()> {
    let columns = std::iter::once("what".to_owned()).chain(setting.columns());
    let words = "What a program finds; what is **bold** is not as without a library. Results are those of CUDA (2: out of memory).";
    let mut table = CompareTable::new("Manners", words, columns);
    let all: Vec<_> = setting
        .contenders
        .iter()
        .map(|contender| manners(setting, contender))
        .collect::<Result<_>>()?;
    for (name, what) in ROWS {
        let plain = all
            .first()
            .and_then(|plain_results| plain_results.get(name));
        let mut cells = Vec::new();
        for (contender, plain_results) in setting.contenders.iter().zip(&all) {
            let missing = plain_results.get("end").map_or("nothing", String::as_str);
            let value = plain_results.get(name).map_or(missing, String::as_str);
            let is_same = plain.is_some_and(|plain| plain == value);
            if contender.is_ours() && !is_same {
                report.surprise(format!("{what}: {value}"));
            }
            cells.push(if is_same {
                value.to_owned()
            } else {
                format!("**{value}**")
            });
        }
        table.row(what, cells);
    }
    report.add(&table);
    Ok(())
}
