//! What the start of a process costs more: one that never uses CUDA, and one that does for the first time.

use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Result, ensure};

use crate::setting::{Driver, Setting};
use crate::table::{Pair, heading};
use crate::worker::Work;

/// Processes of each kind in a round.
const STARTS: usize = 60;
const FIRST_USES: usize = 6;

/// Prints a pair for each kind of start.
pub(crate) fn compare(setting: &Setting, rounds: usize) -> Result<()> {
    heading("Starts");
    let mut pair = Pair::default();
    for _ in 0..rounds * STARTS {
        pair.without.push(nothing(setting, false)?);
        pair.with.push(nothing(setting, true)?);
    }
    pair.print("/bin/true", Some(100e3));
    for (what, driver, budget) in [
        (
            "first use, driver that does nothing",
            Driver::Null,
            Some(2e6),
        ),
        ("first use, simulated driver", Driver::Simulated, Some(2e6)),
    ] {
        let mut pair = Pair::default();
        for _ in 0..rounds * FIRST_USES {
            pair.without
                .extend(setting.samples(Work::FirstUse, driver, false)?);
            pair.with
                .extend(setting.samples(Work::FirstUse, driver, true)?);
        }
        pair.print(what, budget);
    }
    Ok(())
}

/// Nanoseconds from before the start of a program that does nothing to after its end.
fn nothing(setting: &Setting, hooked: bool) -> Result<f64> {
    let mut command = setting.command(Path::new("/bin/true"), Driver::Null, hooked);
    let start = Instant::now();
    let status = command.stdin(Stdio::null()).status()?;
    let took = start.elapsed();
    ensure!(status.success(), "/bin/true ended with {status}");
    Ok(took.as_secs_f64() * 1e9)
}
