//! How failures are reported: the whole error chain on one line, then a hint.

use std::error::Error;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

use apportion_abi::exit;

/// The lines to print, and the exit status.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct AgentFailure {
    /// One line for each problem.
    pub(crate) lines: Vec<String>,
    /// The exit status.
    pub(crate) code: u8,
}

impl AgentFailure {
    /// A failure while running.
    pub(crate) fn running(error: &dyn Error, hint: &str) -> Self {
        Self {
            lines: vec![format!("{}; hint: {hint}", chain(error))],
            code: exit::FAILED,
        }
    }

    /// All mistakes in the command line or the environment.
    pub(crate) fn usage(mistakes: Vec<String>) -> Self {
        let hint = |mistake| format!("{mistake}; hint: see apportion-agent --help");
        Self {
            lines: mistakes.into_iter().map(hint).collect(),
            code: exit::USAGE,
        }
    }

    /// Logs all lines, for logs that machines read. Leaves none for [`Self::report`].
    pub(crate) fn logged(self) -> Self {
        for line in &self.lines {
            tracing::error!(problem = %line, "Program failed");
        }
        Self {
            lines: Vec::new(),
            ..self
        }
    }

    /// Prints all lines to standard error. A closed one is no reason to panic.
    pub(crate) fn report(self) -> ExitCode {
        for line in self.lines {
            let _ = writeln!(std::io::stderr(), "apportion-agent: {line}");
        }
        ExitCode::from(self.code)
    }
}

/// An error and its causes on one line. Some libraries print the cause in their own message; it is not repeated.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !line.ends_with(&said) {
            let _ = write!(line, ": {said}");
        }
        cause = error.source();
    }
    line.replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_mistakes_are_said_and_the_status_is_that_of_bad_usage() {
        let failure = AgentFailure::usage(vec!["--tick x".into(), "--policy y".into()]);
        assert_eq!((failure.lines.len(), failure.code), (2, exit::USAGE));
    }

    #[test]
    fn a_cause_that_was_already_said_is_not_said_again() {
        #[derive(Debug, thiserror::Error)]
        #[error("failed to load: {0}")]
        struct Load(#[source] std::io::Error);
        let cause = std::io::Error::other("no such file");
        assert_eq!(chain(&Load(cause)), "failed to load: no such file");
    }
}
