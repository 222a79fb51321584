//! Compares what NVIDIA's own libraries do with and without the preloaded library.
//!
//! No card is needed: `cuInit` returns `CUDA_ERROR_NO_DEVICE`. Every program first meets what a driver does up to this
//! point, and after it. Each check runs the same program (mostly this one, see [`inside`]) in three ways
//! ([`run_mode::RunMode`]) and compares its output. Only the addresses of hooks may differ, and these must be the hooks
//! of exactly the functions that the driver selected.
//!
//! `cargo xtask drivers` fetches the libraries and starts this.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

mod check;
mod elf;
mod inside;
mod objects;
mod run_mode;

use check::{CHECKS, CheckOutcome};
use run_mode::{RunSetup, UnpackedDriver};

/// Compares drivers with and without the preloaded library.
#[derive(Debug, Parser)]
#[command(version)]
struct ComparisonArguments {
    /// The staged tree, which has the preloaded library
    #[arg(long)]
    staged: PathBuf,
    /// The program with the conformance cases
    #[arg(long)]
    conformance: PathBuf,
    /// The folder that the packages of the CUDA runtime are unpacked into
    #[arg(long)]
    runtimes: Option<PathBuf>,
    /// The seed of an earlier run's garbage
    #[arg(long)]
    seed: Option<u64>,
    /// Folders with a driver's libraries and nvidia-smi, each named by the driver's version
    #[arg(required = true)]
    drivers: Vec<PathBuf>,
}

/// How many differences are printed per check.
const SHOWN: usize = 20;

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let Some((inside::WORD, task)) = words
        .split_first()
        .and_then(|(f, r)| Some((f.to_str()?, r)))
    {
        return finish(inside::perform(task).map(|()| true));
    }
    let arguments = ComparisonArguments::try_parse().unwrap_or_else(|error| {
        let _ = error.print();
        std::process::exit(if error.use_stderr() { 64 } else { 0 })
    });
    finish(compare(&arguments))
}

fn finish(result: Result<bool>) -> ExitCode {
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("apportion-real-drivers: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Prints every difference, then the table. True if there is no difference.
fn compare(arguments: &ComparisonArguments) -> Result<bool> {
    let seed = arguments.seed.unwrap_or_else(fresh_seed);
    let setup = RunSetup::new(
        &arguments.staged,
        &arguments.conformance,
        arguments.runtimes.as_deref(),
        seed,
    )?;
    println!("garbage of seed {seed}");
    let mut rows = Vec::new();
    let mut is_same = true;
    for folder in &arguments.drivers {
        let driver = UnpackedDriver::at(folder)?;
        let mut cells = vec![driver.version.clone()];
        for check in CHECKS {
            let outcome = (check.run)(&setup, &driver)?;
            is_same &= outcome.differences.is_empty();
            show(&driver, check.name, &outcome);
            cells.push(outcome.cell());
        }
        rows.push(cells);
    }
    let names = CHECKS.iter().map(|check| check.name.to_owned());
    rows.insert(0, ["driver".to_owned()].into_iter().chain(names).collect());
    print_table(&rows);
    Ok(is_same)
}

fn fresh_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |since| u64::from(since.subsec_nanos()))
}

fn show(driver: &UnpackedDriver, check: &str, outcome: &CheckOutcome) {
    for difference in outcome.differences.iter().take(SHOWN) {
        println!("{}: {check}: {difference}", driver.version);
    }
    if let Some(more) = outcome.differences.len().checked_sub(SHOWN)
        && more > 0
    {
        println!("{}: {check}: and {more} more", driver.version);
    }
}

fn print_table(rows: &[Vec<String>]) {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(String::len).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &[String]| {
        let cells = row.iter().zip(&widths);
        let cells: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        println!("| {} |", cells.join(" | "));
    };
    for (place, row) in rows.iter().enumerate() {
        line(row);
        if place == 0 {
            let dashes: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
            line(&dashes);
        }
    }
}
