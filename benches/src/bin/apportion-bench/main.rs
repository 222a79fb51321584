//! What Apportion costs a program. Every figure is a pair, with the library and without it, measured in turns in one
//! run.
//!
//! Four sections: single calls, contention for one account, starts, and elastic shares beside fixed ones. Calls go to a driver that does nothing (so the
//! difference is the hook) and to the simulated driver (so the ratio is realistic). The design's budgets are printed
//! with the figures. A missed budget fails nothing, because a busy machine is not a bug. The measuring processes are
//! this program again (`worker`).

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, ValueEnum};

mod account;
mod calls;
mod contention;
mod cuda;
mod elastic;
mod metrics;
mod quantiles;
mod setup;
mod starts;
mod table;
mod worker;

use setup::BenchSetup;

/// Measures what Apportion costs a program.
#[derive(Debug, Parser)]
#[command(version)]
struct BenchArguments {
    /// What to measure [default: everything]
    #[arg(value_enum)]
    sections: Vec<BenchSection>,
    /// How often each pair is measured
    #[arg(long, default_value_t = 7, value_name = "N")]
    rounds: usize,
    /// Measure in this process and print the samples
    #[arg(long, hide = true, value_enum, value_name = "WORK")]
    worker: Option<worker::WorkerTask>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum BenchSection {
    /// One call, with and without the hook
    Calls,
    /// Many processes with one account
    Contention,
    /// The start of a process and its first use of CUDA
    Starts,
    /// An elastic share below its allowance, beside a fixed share
    Elastic,
}

fn main() -> ExitCode {
    let arguments = BenchArguments::parse();
    let done = match arguments.worker {
        Some(work) => worker::measure(work),
        None => perform(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("apportion-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn perform(arguments: &BenchArguments) -> Result<()> {
    let setting = BenchSetup::find()?;
    let rounds = arguments.rounds.max(1);
    println!("{}", surroundings(rounds));
    let wanted = |section| arguments.sections.is_empty() || arguments.sections.contains(&section);
    if wanted(BenchSection::Calls) {
        calls::compare(&setting, rounds)?;
    }
    if wanted(BenchSection::Contention) {
        contention::compare(&setting, rounds)?;
    }
    if wanted(BenchSection::Starts) {
        starts::compare(&setting, rounds)?;
    }
    if wanted(BenchSection::Elastic) {
        elastic::compare(&setting, rounds)?;
    }
    Ok(())
}

/// The conditions of the measurement.
fn surroundings(rounds: usize) -> String {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default();
    format!("{processors} processors, load {load} at the start, {rounds} rounds")
}
