//! Invalid arguments for every function that the driver exports, compared with the same call without a library.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::CompareSetup;
use super::machine::CompareMachine;
use super::memory_limiter::MemoryLimiter;
use super::report::{CompareReport, CompareTable};

const TIME: Duration = Duration::from_secs(300);
const CARD_GIB: u64 = 16;
const LIMIT: u64 = 2000;

const HOWS: [(&str, &str); 4] = [
    ("early", "NULL and zeros, before there is a context"),
    ("null", "NULL and zeros, with a context"),
    ("zeros", "a buffer, then zeros"),
    ("buffers", "twelve buffers"),
];

/// Everything that the driver exports, according to `nm`.
pub(crate) fn exports(staged: &Path) -> Result<Vec<String>> {
    let listed = Command::new("nm")
        .args(["--dynamic", "--defined-only", "--format=posix"])
        .arg(staged.join("lib/apportion/sim/libcuda.so.1"))
        .output()
        .context("the driver's exports need nm (of binutils)")?;
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    let names = text
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    let names: Vec<String> = names
        .filter(|name| name.starts_with("cu"))
        .map(str::to_owned)
        .collect();
    ensure!(
        names.len() > 100,
        "nm found {} exports of the driver",
        names.len()
    );
    Ok(names)
}

/// The result of each function.
type Answers = BTreeMap<String, String>;

fn answers(
    setting: &CompareSetup,
    contender: &MemoryLimiter,
    names: &Path,
    how: &str,
) -> Result<Answers> {
    let machine = CompareMachine::start(setting, contender, CARD_GIB)?;
    machine.settle(LIMIT)?;
    let program = setting.programs.named("harm").into_os_string();
    let words = [program, names.as_os_str().to_owned(), how.into()];
    let outcome = machine.run(LIMIT, TIME, &words)?;
    ensure!(
        outcome.is_done(),
        "{}: the calls with nonsense {}",
        contender.name(),
        outcome.failure()
    );
    let lines = outcome
        .output
        .lines()
        .filter_map(|line| line.split_once(' '));
    Ok(lines
        .map(|(name, what)| (name.to_owned(), what.to_owned()))
        .collect())
}

/// Calls every function under every library.
pub(crate) fn compare(setting: &CompareSetup, report: &mut CompareReport) -> Result<()> {
    let exports = exports(&setting.staged)?;
    let names = setting.programs.named("exports.txt");
    fs::write(&names, exports.join("\n") + "\n").context("failed to write the names")?;
    let limited = || {
        setting
            .contenders
            .iter()
            .filter(|contender| !contender.is_plain())
    };
    let columns = ["arguments".to_owned(), String::new()];
    let columns = columns
        .into_iter()
        .chain(limited().map(|contender| contender.name().to_owned()));
    let words = format!(
        "Each of the driver's {} functions, called in a process of its own with and without the library: how many died or hung where \
         the driver answers, and how many gave another answer.",
        exports.len()
    );
    let mut table = CompareTable::new("Nonsense arguments", &words, columns);
    let mut listed = Vec::new();
    for (how, what) in HOWS {
        eprintln!("nonsense: {what}");
        let plain = answers(setting, &MemoryLimiter::Plain, &names, how)?;
        let (mut harmed, mut others) = (Vec::new(), Vec::new());
        for contender in limited() {
            let found = answers(setting, contender, &names, how)?;
            let differ: Vec<_> = plain
                .iter()
                .filter(|(name, documented)| found.get(*name) != Some(documented))
                .map(|(name, documented)| (name, documented, found.get(name)))
                .collect();
            let answered = |documented: &str| documented.starts_with("returned");
            let (harm, other): (Vec<_>, Vec<_>) =
                differ.into_iter().partition(|(_, documented, found)| {
                    answered(documented) && !found.is_some_and(|found| answered(found))
                });
            for (name, documented, found) in harm.iter().chain(&other) {
                let found = found.map_or("nothing", String::as_str);
                listed.push(format!(
                    "{}, {how}: {name} {found}, without {documented}",
                    contender.name()
                ));
            }
            if contender.is_ours() && !harm.is_empty() {
                report.surprise(format!("{} functions die of {what}", harm.len()));
            }
            harmed.push(harm.len().to_string());
            others.push(other.len().to_string());
        }
        table.row(
            what,
            std::iter::once("died or hung".to_owned()).chain(harmed),
        );
        table.row(
            "",
            std::iter::once("another answer".to_owned()).chain(others),
        );
    }
    report.add(&table);
    for line in listed {
        println!("{line}");
    }
    Ok(())
}
