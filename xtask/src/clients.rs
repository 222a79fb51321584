//! The virtual environment of the third-party clients (numba-cuda, cuda-bindings, nvidia-ml-py, …).
//!
//! They are tests that need Python and PyPI. Where one can't be had the run goes on without them and says
//! so, except in CI, where leaving something out is a failure.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::steps::{run, succeeds};
use crate::workspace::Workspace;

/// The Python of an environment that holds all clients, made on first use; `Err` says what is missing.
pub(crate) fn python(workspace: &Workspace) -> Result<PathBuf> {
    let wanted = workspace.root.join("tests/clients/requirements.txt");
    let wanted = fs::canonicalize(&wanted).context("failed to find the clients' requirements")?;
    let venv = workspace.target.join("venv");
    let installed = venv.join("requirements.txt");
    let python = venv.join("bin/python");
    if fs::read(&installed).is_ok_and(|there| fs::read(&wanted).is_ok_and(|here| here == there)) {
        return Ok(python);
    }
    if !succeeds(Command::new("python3").args(["-c", "import venv, ensurepip"])) {
        bail!("python3 with venv is not installed");
    }
    run(Command::new("python3")
        .args(["-m", "venv", "--clear"])
        .arg(&venv))?;
    let pip = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--requirement",
    ];
    run(Command::new(&python).args(pip).arg(&wanted)).context("PyPI gave no clients")?;
    fs::copy(&wanted, &installed).context("failed to note what is installed")?;
    Ok(python)
}

/// Whether leaving a suite out is a failure.
pub(crate) fn must_be_complete() -> bool {
    env::var_os("CI").is_some_and(|value| value == "true" || value == "1")
}
