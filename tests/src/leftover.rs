//! All processes that a test has started, directly or not: those that name the test's folder in their environment or on
//! their command line. The folder's name is unique, so these belong only to the test.

use std::fs;
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// One process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftoverProcess {
    /// Its pid.
    pub pid: i32,
    /// Its command line.
    pub command: String,
}

/// The live processes that name `folder`, except this one.
pub(crate) fn leftovers(folder: &Path) -> Vec<LeftoverProcess> {
    let own = std::process::id().cast_signed();
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| *pid != own)
        .filter_map(|pid| read(pid, folder))
        .collect()
}

/// Kills these processes.
pub(crate) fn kill_leftovers(folder: &Path) {
    for leftover in leftovers(folder) {
        let _ = kill(Pid::from_raw(leftover.pid), Signal::SIGKILL);
    }
}

/// A zombie has neither environment nor command line, so it does not count.
fn read(pid: i32, folder: &Path) -> Option<LeftoverProcess> {
    let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let folder = folder.as_os_str().as_encoded_bytes();
    let names = |text: &[u8]| text.windows(folder.len()).any(|part| part == folder);
    let command_line = String::from_utf8_lossy(&command).replace('\0', " ");
    (names(&command) || names(&environment)).then_some(LeftoverProcess {
        pid,
        command: command_line,
    })
}
