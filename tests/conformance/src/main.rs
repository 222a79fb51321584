//! Records what a driver does, and fails where that is not what is documented.
//!
//! The same cases run against the simulated driver (in every test run) and against a real one (when a machine with a
//! card is available): any difference is a bug in the simulation. They also run under a limit, where the hooks must not
//! be visible. The output is one JSON line per fact ([`record`]). The last line on standard error has the counts.
//!
//! Each case runs in its own process with a time limit, so a driver that hangs or crashes only costs one case. The
//! loader selects the driver (`LD_LIBRARY_PATH`), as for any program.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

mod cases;
mod code;
mod compare;
mod layout;
mod library;
mod record;
mod session;
mod suite;

use cases::CASES;
use record::CaseReport;

/// Runs the conformance cases on the driver that the loader finds.
#[derive(Debug, Parser)]
#[command(version)]
struct ConformanceArguments {
    /// The cases to run [default: all]
    cases: Vec<String>,
    /// Name the cases and leave
    #[arg(long)]
    list: bool,
    /// Seconds that one case may take
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    timeout: u64,
    /// Also name what is not as in this record of another run, on the standard error
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
    /// Run one case in this process
    #[arg(long, hide = true, value_name = "CASE")]
    here: Option<String>,
    /// Make one call that may end this process, and print what it returns
    #[arg(long, hide = true, value_name = "CALL")]
    deadly: Option<String>,
    /// Hold memory until the standard input ends
    #[arg(long, hide = true)]
    hold: bool,
    /// Fill memory and compare it as the standard input says
    #[arg(long, hide = true)]
    sleep: bool,
}

fn main() -> ExitCode {
    let arguments = ConformanceArguments::try_parse().unwrap_or_else(|error| {
        let _ = error.print();
        std::process::exit(if error.use_stderr() { 64 } else { 0 })
    });
    match perform(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(sentence) => {
            eprintln!("apportion-conformance: {sentence}");
            ExitCode::from(64)
        }
    }
}

/// Whether all documented facts hold.
fn perform(arguments: &ConformanceArguments) -> Result<bool, String> {
    if arguments.list {
        for case in CASES {
            println!("{:<18} {}", case.name, case.about);
        }
        return Ok(true);
    }
    if arguments.hold {
        return Ok(cases::hold().is_ok());
    }
    if arguments.sleep {
        return Ok(cases::sleep().is_ok());
    }
    if let Some(name) = &arguments.deadly {
        return cases::perform_deadly(name);
    }
    if let Some(name) = &arguments.here {
        return here(name);
    }
    let chosen = chosen(&arguments.cases)?;
    let records = suite::run(&chosen, Duration::from_secs(arguments.timeout));
    if let Some(file) = &arguments.compare {
        compare::differences(&records, file)?;
    }
    Ok(suite::summarise(&records))
}

fn chosen(names: &[String]) -> Result<Vec<&'static str>, String> {
    if names.is_empty() {
        return Ok(CASES.iter().map(|case| case.name).collect());
    }
    names
        .iter()
        .map(|name| match CASES.iter().find(|case| case.name == name) {
            Some(case) => Ok(case.name),
            None => Err(format!(
                "there is no case `{name}`; hint: --list names them"
            )),
        })
        .collect()
}

fn here(name: &str) -> Result<bool, String> {
    let case = CASES.iter().find(|case| case.name == name);
    let case = case.ok_or_else(|| format!("there is no case `{name}`"))?;
    let report = CaseReport::of(case.name);
    if let Err(stop) = (case.run)(&report) {
        report.holds("the case runs to its end", false, suite::chain(&stop));
    }
    Ok(true)
}
