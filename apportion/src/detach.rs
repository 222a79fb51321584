//! Starting a program that outlives us.
//!
//! The program must not be our child: we become somebody else's command soon, and that command must not
//! find a child that it never started. So a second process of ours leaves the session, starts the program
//! and ends, which hands the program to init.

use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::path::Path;
use std::process::{Command, Stdio};

use apportion_abi::place;

use crate::failure::Failure;

/// Variables that say how *our* command is limited; what runs in the background is not.
const NOT_INHERITED: &[&str] = &[
    "LD_PRELOAD",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    place::ENV_ACCOUNT,
];

/// Starts `program` in the background with its output in `log`; returns its process id.
pub(crate) fn start(
    program: &Path,
    args: impl IntoIterator<Item = OsString>,
    env: Vec<(&'static str, OsString)>,
    log: &Path,
) -> Result<u32, Failure> {
    let failed = || Failure::new(format!("failed to start {}", program.display()));
    let own = std::env::current_exe().map_err(|e| failed().because(e))?;
    let mut command = Command::new(own);
    command
        .arg("detach")
        .arg("--log")
        .arg(log)
        .arg("--")
        .arg(program)
        .args(args)
        .envs(env);
    for name in NOT_INHERITED {
        command.env_remove(name);
    }
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .map_err(|e| failed().because(e))?;
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    match said(&output.stdout).parse() {
        Ok(pid) if output.status.success() => Ok(pid),
        _ => Err(Failure::new(
            said(&output.stderr)
                .trim_start_matches("apportion: ")
                .to_owned(),
        )),
    }
}

/// The second process: leaves the session, starts `command` and prints its process id.
pub(crate) fn detach(log: &Path, command: &[OsString]) -> Result<(), Failure> {
    let program = command.first().map_or(OsStr::new(""), OsString::as_os_str);
    let failed = || Failure::new(format!("failed to start {}", program.display()));
    nix::unistd::setsid().map_err(|e| failed().because(e))?;
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .open(log)
        .map_err(|e| Failure::new(format!("failed to open {}", log.display())).because(e))?;
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
