//! What a person reads when a command fails: one line, then what to do.
//!
//! The exit code says what has to change: 64 if it is the command line, else 1.

use std::fmt;
use std::process::ExitCode;

use apportion_abi::{EscapedText, exit};

/// A command that failed.
#[derive(Debug)]
pub(crate) struct SchedulerFailure {
    what: String,
    hint: Option<String>,
    code: u8,
    is_told: bool,
}

impl SchedulerFailure {
    /// The work failed.
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            hint: None,
            code: exit::FAILED,
            is_told: false,
        }
    }

    /// The command line is wrong.
    pub(crate) fn usage(what: impl Into<String>) -> Self {
        Self {
            code: exit::USAGE,
            ..Self::new(what)
        }
    }

    /// Adds what to do.
    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        Self {
            hint: Some(hint.into()),
            ..self
        }
    }

    /// Marks a failure that is already in the log.
    pub(crate) fn told(self) -> Self {
        Self {
            is_told: true,
            ..self
        }
    }

    /// Whether it is already in the log, and need not be printed.
    pub(crate) fn is_told(&self) -> bool {
        self.is_told
    }

    /// The code to exit with.
    pub(crate) fn code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }
}

impl fmt::Display for SchedulerFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", EscapedText(&self.what))?;
        match &self.hint {
            Some(hint) => write!(f, "; hint: {}", EscapedText(hint)),
            None => Ok(()),
        }
    }
}

impl From<clap::Error> for SchedulerFailure {
    /// One line instead of clap's several.
    fn from(mistake: clap::Error) -> Self {
        let text = mistake.render().to_string();
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let said: Vec<&str> = lines
            .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"))
            .collect();
        let said = said.join(" ");
        let what = said.strip_prefix("error: ").unwrap_or(&said);
        Self::usage(what).hint("see `apportion-scheduler --help`")
    }
}

impl From<std::io::Error> for SchedulerFailure {
    fn from(error: std::io::Error) -> Self {
        Self::new(format!("failed to write the output: {error}"))
    }
}
