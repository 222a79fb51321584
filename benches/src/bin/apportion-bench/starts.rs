//! The extra cost of starting a process that never uses CUDA, and of the first use of CUDA.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Result, ensure};

use crate::setup::{BenchDriver, BenchSetup};
use crate::table::{PairedSamples, heading};
use crate::worker::WorkerTask;

/// A program that does nothing.
const NOTHING: &str = "/bin/true";
/// The number of processes of each kind in a round.
pub(crate) const STARTS: usize = 60;
pub(crate) const FIRST_USES: usize = 6;

/// Prints a pair for each kind of start.
pub(crate) fn compare(setting: &BenchSetup, rounds: usize) -> Result<()> {
    heading("Starts");
    let mut pair = PairedSamples::default();
    for _ in 0..rounds * STARTS {
        pair.without.push(nothing(setting, false)?);
        pair.with.push(nothing(setting, true)?);
    }
    pair.print("/bin/true", Some(100e3));
    let mut pair = PairedSamples::default();
    for _ in 0..rounds * STARTS {
        let start = |has_runtimes| -> Result<f64> {
            took(setting.command_with_runtimes(Path::new(NOTHING), has_runtimes)?)
        };
        pair.without.push(start(false)?);
        pair.with.push(start(true)?);
    }
    pair.print("the same, the simulated runtimes besides", Some(500e3));
    for (what, driver, budget) in [
        (
            "first use, driver that does nothing",
            BenchDriver::Null,
            Some(2e6),
        ),
        (
            "first use, simulated driver",
            BenchDriver::Simulated,
            Some(2e6),
        ),
    ] {
        let mut pair = PairedSamples::default();
        for _ in 0..rounds * FIRST_USES {
            pair.without
                .extend(setting.samples(WorkerTask::FirstUse, driver, false)?);
            pair.with
                .extend(setting.samples(WorkerTask::FirstUse, driver, true)?);
        }
        pair.print(what, budget);
    }
    Ok(())
}

/// Nanoseconds from the start to the end of a program that does nothing.
fn nothing(setting: &BenchSetup, hooked: bool) -> Result<f64> {
    nothing_on(setting, BenchDriver::Null, hooked)
}

pub(crate) fn nothing_on(setting: &BenchSetup, driver: BenchDriver, hooked: bool) -> Result<f64> {
    took(setting.command(Path::new(NOTHING), driver, hooked))
}

fn took(mut command: Command) -> Result<f64> {
    let start = Instant::now();
    let status = command.stdin(Stdio::null()).status()?;
    let took = start.elapsed();
    ensure!(status.success(), "{NOTHING} ended with {status}");
    Ok(took.as_secs_f64() * 1e9)
}
