//! Running a program that may never end: after its time it is ended with all that it started.

use std::ffi::OsStr;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};

/// What `timeout` answers when the time was over, and when the program had to be killed then.
const HUNG: [i32; 2] = [124, 137];

/// How a program ended.
#[derive(Debug)]
pub(crate) struct TimedOutcome {
    /// Its exit status; `None` if its time was over.
    pub(crate) code: Option<i32>,
    /// What it printed.
    pub(crate) output: String,
    /// What it, or a library in it, said on standard error.
    pub(crate) errors: String,
}

impl TimedOutcome {
    /// Whether it did all that it was to do.
    pub(crate) fn is_done(&self) -> bool {
        self.code == Some(0)
    }

    /// The words of what it printed.
    pub(crate) fn words(&self) -> Vec<&str> {
        self.output.split_whitespace().collect()
    }

    /// Why it has no result.
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
    // A program that died of a signal takes `timeout` with it only where that was SIGKILL.
    let code = child.status.code().unwrap_or(HUNG[1]);
    Ok(TimedOutcome {
        code: Some(code).filter(|code| !HUNG.contains(code)),
        output: String::from_utf8_lossy(&child.stdout).into_owned(),
        errors: String::from_utf8_lossy(&child.stderr).into_owned(),
    })
}
