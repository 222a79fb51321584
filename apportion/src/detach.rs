//! The process between a command and its background program.
//!
//! A command soon becomes another program by `exec`, and that program must not get a child that it never started. So
//! this process leaves the session, starts the background program and exits, which makes init the parent.

use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::path::Path;
use std::process::{Command, Stdio};

use apportion_exit::CommandFailure;

/// Leaves the session, starts `command` and prints its process id.
pub(crate) fn detach(log: &Path, command: &[OsString]) -> Result<(), CommandFailure> {
    let program = command.first().map_or(OsStr::new(""), OsString::as_os_str);
    let failed = || CommandFailure::new(format!("failed to start {}", program.display()));
    nix::unistd::setsid().map_err(|e| failed().because(e))?;
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .open(log)
        .map_err(|e| CommandFailure::new(format!("failed to open {}", log.display())).because(e))?;
    let errors = log.try_clone().map_err(|e| failed().because(e))?;
    let child = Command::new(program)
        .args(command.iter().skip(1))
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        .spawn()
        .map_err(|e| failed().because(e))?;
    crate::output::line(&child.id().to_string())
}
