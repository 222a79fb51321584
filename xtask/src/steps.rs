//! Runs one program as one step. A failure names the program; its output is not changed.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The program and its arguments, as one would type them.
pub(crate) fn typed(command: &Command) -> String {
    let program = Path::new(command.get_program())
        .file_name()
        .unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args());
    words
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Runs `command`; a status other than 0 is an error that names it.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("failed to start {}", typed(command)))?;
    if !status.success() {
        bail!("{} ended with {status}", typed(command));
    }
    Ok(())
}

/// Runs `cargo test`. Without this check, a filter that matches no test would pass.
pub(crate) fn run_tests(cargo: &mut Command) -> Result<()> {
    let mut listing = Command::new(cargo.get_program());
    listing.args(cargo.get_args());
    if !cargo.get_args().any(|argument| argument == "--") {
        listing.arg("--");
    }
    listing.arg("--list").stderr(Stdio::inherit());
    for (name, value) in cargo.get_envs() {
        match value {
            Some(value) => listing.env(name, value),
            None => listing.env_remove(name),
        };
    }
    if let Some(folder) = cargo.get_current_dir() {
        listing.current_dir(folder);
    }
    let listed = listing
        .output()
        .with_context(|| format!("failed to start {}", typed(&listing)))?;
    let listed = String::from_utf8_lossy(&listed.stdout);
    if !listed.lines().any(|line| line.ends_with(": test")) {
        bail!("no test matches {}", typed(cargo));
    }
    run(cargo)
}

/// Whether `command` starts and succeeds. Its output is dropped.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    let quiet = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}
