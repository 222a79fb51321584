//! What is left after programs are killed at any point.

use std::time::Duration;

use anyhow::Result;

use super::CompareSetup;
use super::machine::CompareMachine;
use super::report::{CompareReport, CompareTable};
use super::timeout::TimedOutcome;

/// Longer than the program itself waits for a hanging one.
const TIME: Duration = Duration::from_secs(240);
const CARD_GIB: u64 = 16;
const LIMIT: u64 = 8000;
/// The memory of a context, in MiB. The program that checks has one.
const CONTEXT: u64 = 384;

/// What is killed, and how often: in a quick run, and otherwise.
struct KillCase {
    what: &'static str,
    name: &'static str,
    times: [u32; 2],
}

const KILLS: [KillCase; 2] = [
    KillCase {
        what: "programs that start",
        name: "start",
        times: [40, 400],
    },
    KillCase {
        what: "8 programs that allocate and free",
        name: "churn",
        times: [50, 500],
    },
];

/// Kills programs under every library.
pub(crate) fn compare(setting: &CompareSetup, report: &mut CompareReport) -> Result<()> {
    let columns = std::iter::once("killed".to_owned()).chain(setting.columns());
    let words = format!(
        "Programs that got SIGKILL, all under one limit of {LIMIT} MiB: the longest that a next program took to start, and what the last \
         one found free (all but its own context is {}). A program that needs more than 20 s to start has hung.",
        LIMIT - CONTEXT
    );
    let mut table = CompareTable::new("Kills", &words, columns);
    for kill in &KILLS {
        let times = kill.times[usize::from(!setting.is_quick)];
        eprintln!("kills: {}", kill.what);
        let mut cells = Vec::new();
        for contender in &setting.contenders {
            let machine = CompareMachine::start(setting, contender, CARD_GIB)?;
            machine.settle(LIMIT)?;
            let words = [
                setting.programs.named("kill").into_os_string(),
                kill.name.into(),
                times.to_string().into(),
                "1".into(),
            ];
            let outcome = machine.run(LIMIT, TIME, &words)?;
            let (cell, free) = outcome_text(&outcome);
            if contender.is_ours() && free != Some(LIMIT - CONTEXT) {
                report.surprise(format!("{} killed: {cell}", kill.what));
            }
            cells.push(cell);
        }
        table.row(&format!("{times} times {}", kill.what), cells);
    }
    report.add(&table);
    Ok(())
}

/// The program's result as a cell, and how much memory it found free.
fn outcome_text(outcome: &TimedOutcome) -> (String, Option<u64>) {
    match outcome.words().as_slice() {
        [longest, free] if outcome.is_done() && *longest != "failed" => {
            (format!("{longest} ms, {free} MiB free"), free.parse().ok())
        }
        ["hung", ..] => ("**hung**".to_owned(), None),
        ["failed", status] => (format!("**the next program ended with {status}**"), None),
        _ => (format!("**{}**", outcome.failure()), None),
    }
}
