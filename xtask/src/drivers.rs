//! NVIDIA's own libraries, without a card: downloads and unpacks them, and compares them with and without ours.
//!
//! The libraries come as Debian packages ([`archive`]) and are never installed. `tests/real-drivers` does the
//! comparison; this module collects what that program needs.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::Result;

use crate::clients;
use crate::stage;
use crate::steps::run;
use crate::workspace::Workspace;

mod archive;

/// The branches to compare by default: all with `cuGetProcAddress` that Debian still has.
const BRANCHES: [&str; 5] = ["470", "525", "535", "550", "555"];
/// The program that compares.
const PROGRAM: &str = "apportion-real-drivers";
/// The program whose cases also run on these libraries.
const CONFORMANCE: &str = "apportion-conformance";

/// Downloads the drivers of `branches` (or of [`BRANCHES`]) and compares their behaviour with and without ours.
pub(crate) fn compare(workspace: &Workspace, branches: &[String]) -> Result<ExitCode> {
    let branches: Vec<&str> = match branches {
        [] => BRANCHES.to_vec(),
        named => named.iter().map(String::as_str).collect(),
    };
    let folder = workspace.target.join("drivers");
    let mut found = Vec::new();
    let mut left_out = 0;
    for (branch, driver) in archive::drivers(&folder, &branches)? {
        match driver {
            Ok(driver) => found.push(driver),
            Err(reason) => {
                println!("left out: driver {branch} ({reason:#})");
                left_out += 1;
            }
        }
    }
    let is_complete = left_out == 0 || !clients::must_be_complete();
    if found.is_empty() {
        return Ok(code(is_complete));
    }
    let held = compare_found(workspace, &found)?;
    Ok(code(held && is_complete))
}

fn code(is_good: bool) -> ExitCode {
    if is_good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Builds the programs and runs the comparison. Returns whether nothing differed.
fn compare_found(workspace: &Workspace, found: &[PathBuf]) -> Result<bool> {
    let staged = stage::build(workspace, false)?;
    run(workspace
        .cargo_build_for_tests()
        .args(["--bin", PROGRAM, "--bin", CONFORMANCE]))?;
    let made = workspace.target.join("debug");
    let mut program = Command::new(made.join(PROGRAM));
    program
        .arg("--staged")
        .arg(staged)
        .arg("--conformance")
        .arg(made.join(CONFORMANCE));
    match runtimes(workspace) {
        Ok(folder) => {
            program.arg("--runtimes").arg(folder);
        }
        Err(missing) if clients::must_be_complete() => return Err(missing),
        Err(missing) => println!("left out: the CUDA runtime ({missing:#})"),
    }
    Ok(program.args(found).status()?.success())
}

/// The folder with the CUDA runtimes, which come in one package with the headers.
fn runtimes(workspace: &Workspace) -> Result<PathBuf> {
    let python = workspace.target.join("venv/bin/python");
    if python.exists() {
        clients::headers(workspace, &python)
    } else {
        clients::headers(workspace, Path::new("python3"))
    }
}
