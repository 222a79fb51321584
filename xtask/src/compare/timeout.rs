//! Runs a program that may never end. After a time limit the program and all its children are killed.

use std::ffi::OsStr;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};

/// The statuses of `timeout` when the time was over, and when it then had to kill the program.
const HUNG: [i32; 2] = [124, 137];

/// How a program ended.
#[derive(Debug)]
pub(crate) struct TimedOutcome {
    /// Its exit status; `None` if it timed out.
    pub(crate) code: Option<i32>,
    pub(crate) output: String,
    /// Its standard error, including that of its libraries.
    pub(crate) errors: String,
}

impl TimedOutcome {
    /// Whether it finished all of its work.
    pub(crate) fn is_done(&self) -> bool {
        self.code == Some(0)
    }

    /// The words that it printed.
    pub(crate) fn words(&self) -> Vec<&str> {
        self.output.split_whitespace().collect()
    }

    /// Why there is no result.
    pub(crate) fn failure(&self) -> String {
        match self.code {
            None => "hung".to_owned(),
            Some(code) if code > 128 => format!("died of signal {}", code - 128),
            Some(code) => format!("ended with {code}"),
        }
    }
}

/// Runs `words` for at most `limit`, with the environment and folder of `base`.
pub(crate) fn run<Word: AsRef<OsStr>>(
    mut base: Command,
    limit: Duration,
    words: &[Word],
) -> Result<TimedOutcome> {
    let child = base
        .args(["--kill-after=1", &limit.as_secs().to_string()])
        .args(words)
        .stdin(Stdio::null())
        .output()
        .context("failed to start timeout (of coreutils)")?;
    // If a signal killed the program, `timeout` dies with it only if that was SIGKILL.
    let code = child.status.code().unwrap_or(HUNG[1]);
    Ok(TimedOutcome {
        code: Some(code).filter(|code| !HUNG.contains(code)),
        output: String::from_utf8_lossy(&child.stdout).into_owned(),
        errors: String::from_utf8_lossy(&child.stderr).into_owned(),
    })
}
