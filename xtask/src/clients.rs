//! What tests take from PyPI: the virtual environment of the third-party clients (numba-cuda, cuda-bindings,
//! nvidia-ml-py, …), and the driver's headers.
//!
//! These tests need Python and PyPI. Without them the run goes on and says what it left out. In CI, leaving something
//! out is a failure.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::steps::{run, succeeds, typed};
use crate::workspace::Workspace;

/// The Python of an environment with all clients, which is created on first use. `Err` says what is missing.
pub(crate) fn python(workspace: &Workspace) -> Result<PathBuf> {
    let wanted = workspace.root.join("tests/clients/requirements.txt");
    let wanted = fs::canonicalize(&wanted).context("failed to find the clients' requirements")?;
    let venv = workspace.target.join("venv");
    environment(&venv, &wanted, &[])?;
    Ok(venv.join("bin/python"))
}

/// Creates the virtual environment `venv` with the packages that the file `wanted` lists, unless it has them already.
/// `Err` says what is missing; no half-filled environment then remains.
pub(crate) fn environment(venv: &Path, wanted: &Path, options: &[&OsStr]) -> Result<()> {
    let installed = venv.join("requirements.txt");
    if is_same(&installed, wanted) {
        return Ok(());
    }
    if !succeeds(Command::new("python3").args(["-c", "import venv, ensurepip"])) {
        bail!("python3 with venv is not installed");
    }
    run(Command::new("python3")
        .args(["-m", "venv", "--clear"])
        .arg(venv))?;
    if let Err(missing) = pip_install(&venv.join("bin/python"), options, wanted) {
        // The partial download may be gigabytes.
        let _ = fs::remove_dir_all(venv);
        return Err(missing.context("PyPI gave not all that is listed"));
    }
    fs::copy(wanted, &installed).context("failed to note what is installed")?;
    Ok(())
}

/// The folder with the driver's headers. The environment's `python` fills it on first use.
pub(crate) fn headers(workspace: &Workspace, python: &Path) -> Result<PathBuf> {
    let wanted = workspace
        .root
        .join("tests/clients/requirements-headers.txt");
    let folder = workspace.target.join("headers");
    let unpacked = folder.join("requirements.txt");
    if is_same(&unpacked, &wanted) {
        return Ok(folder);
    }
    if folder.exists() {
        fs::remove_dir_all(&folder).context("failed to remove the headers that were there")?;
    }
    let options = [
        "--no-deps".as_ref(),
        "--target".as_ref(),
        folder.as_os_str(),
    ];
    pip_install(python, &options, &wanted).context("PyPI gave no headers")?;
    fs::copy(&wanted, &unpacked).context("failed to note what is unpacked")?;
    Ok(folder)
}

fn is_same(there: &Path, here: &Path) -> bool {
    fs::read(there).is_ok_and(|there| fs::read(here).is_ok_and(|here| here == there))
}

fn pip_install(python: &Path, options: &[&OsStr], wanted: &Path) -> Result<()> {
    let pip = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ];
    let mut command = Command::new(python);
    command
        .args(pip)
        .args(options)
        .arg("--requirement")
        .arg(wanted);
    // pip does not resume a download that broke off, so try once more.
    tried(&mut command).or_else(|_| tried(&mut command))
}

/// Runs pip. An error ends with pip's last message, for example that the disk is full.
fn tried(pip: &mut Command) -> Result<()> {
    let ended = pip
        .stderr(Stdio::piped())
        .spawn()
        .and_then(|pip| pip.wait_with_output())
        .with_context(|| format!("failed to start {}", typed(pip)))?;
    let output = String::from_utf8_lossy(&ended.stderr);
    eprint!("{output}");
    if ended.status.success() {
        return Ok(());
    }
    let last = output.lines().rfind(|line| !line.trim().is_empty());
    bail!(
        "{} ended with {}: {}",
        typed(pip),
        ended.status,
        last.unwrap_or("it printed no error")
    )
}

/// Whether leaving a suite out is a failure.
pub(crate) fn must_be_complete() -> bool {
    env::var_os("CI").is_some_and(|value| value == "true" || value == "1")
}
