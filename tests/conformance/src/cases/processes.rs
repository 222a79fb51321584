//! Memory of several processes: which process it is counted for, and what happens to it when its owner is killed.

use std::io::{BufRead, BufReader, Error, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::record::{CaseError, CaseReport};
use crate::session::{DriverSession, MIB};

/// The memory of the second process.
const HELD: usize = 512 * MIB;
/// How long a driver may take to notice that a process died.
const PATIENCE: Duration = Duration::from_secs(10);

/// The second process: allocates, reports it, and stays until its input ends.
pub(crate) fn hold() -> Result<(), CaseError> {
    let session = DriverSession::start()?;
    session.alloc(HELD)?;
    writeln!(std::io::stdout().lock(), "held")?;
    std::io::stdin().lock().lines().for_each(drop);
    Ok(())
}

fn second() -> Result<Child, CaseError> {
    let mut child = Command::new(std::env::current_exe()?)
        .arg("--hold")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    if let Some(output) = child.stdout.take() {
        BufReader::new(output).read_line(&mut line)?;
    }
    if line.trim() == "held" {
        return Ok(child);
    }
    child.kill()?;
    child.wait()?;
    Err(CaseError::Process(Error::other("it could not allocate")))
}

pub(super) fn run(report: &CaseReport) -> Result<(), CaseError> {
    let session = DriverSession::start()?;
    let used = || -> Result<i64, CaseError> { Ok(session.card_memory()?.0.used as i64) };
    let (before, named) = (used()?, session.running()?.len());
    let (free, _) = session.memory_info()?;
    let mut child = second()?;

    let grown = used()? - before;
    report.holds(
        "the card has less by what the other holds",
        grown >= HELD as i64,
        grown,
    );
    let (free_then, _) = session.memory_info()?;
    let lower = free as i64 - free_then as i64;
    report.holds(
        "what is free for us is less by it",
        lower >= HELD as i64,
        lower,
    );
    let list = session.running()?;
    report.observed("processes that NVML names more", list.len() - named);
    let other = list.iter().find(|one| one.pid == child.id());
    report.observed("NVML names the other by its pid here", other.is_some());
    if let Some(other) = other {
        report.holds(
            "and counts what it holds",
            other.used >= HELD as u64,
            other.used,
        );
        report.observed("and its context beside it", other.used as i64 - HELD as i64);
    }

    child.kill()?;
    let killed = Instant::now();
    child.wait()?;
    while used()? > before && killed.elapsed() < PATIENCE {
        std::thread::yield_now();
    }
    let (left, waited) = (used()? - before, killed.elapsed());
    report.holds("memory of a killed process comes back", left <= 0, left);
    report.observed("within a second", waited < Duration::from_secs(1));
    Ok(())
}
