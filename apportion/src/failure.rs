//! What the user reads when a command fails: one line, then what to do.
//!
//! The line has the whole chain of causes, outermost first, and the hint last. The exit code is 64 if the command
//! line must change, and 1 if something on the machine must.

use std::error::Error;
use std::fmt;
use std::process::ExitCode;

use apportion_abi::{EscapedText, exit};
use clap::error::ErrorKind;

/// A command that failed.
#[derive(Debug)]
pub struct CommandFailure {
    what: String,
    source: Option<Box<dyn Error + Send + Sync>>,
    hint: Option<String>,
    code: u8,
    is_lost: bool,
}

impl CommandFailure {
    /// A failure of what was being done.
    #[must_use]
    pub fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            source: None,
            hint: None,
            code: exit::FAILED,
            is_lost: false,
        }
    }

    /// A mistake in the command line.
    #[must_use]
    pub fn usage(what: impl Into<String>) -> Self {
        Self {
            code: exit::USAGE,
            ..Self::new(what)
        }
    }

    /// Adds the cause.
    #[must_use]
    pub fn because(self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            source: Some(source.into()),
            ..self
        }
    }

    /// Adds a hint about what to do.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self {
            hint: Some(hint.into()),
            ..self
        }
    }

    /// Marks a request that was lost with its connection and may be repeated.
    #[must_use]
    pub fn lost(self, is_lost: bool) -> Self {
        Self { is_lost, ..self }
    }

    /// Whether the request was lost with its connection.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// What happened and why, without the hint.
    #[must_use]
    pub fn chain(&self) -> String {
        let mut said = self.what.clone();
        let mut chain = said.clone();
        let mut cause = self.source.as_deref().map(|source| source as &dyn Error);
        while let Some(error) = cause {
            let text = error.to_string();
            // Some libraries repeat their cause in their own text.
            if !said.contains(&text) {
                chain = format!("{chain}: {text}");
                said = text;
            }
            cause = error.source();
        }
        chain
    }

    /// The hint.
    #[must_use]
    pub fn todo(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// The exit code.
    #[must_use]
    pub fn code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }
}

impl fmt::Display for CommandFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", EscapedText(&self.chain()))?;
        match &self.hint {
            Some(hint) => write!(f, "; hint: {}", EscapedText(hint)),
            None => Ok(()),
        }
    }
}

impl Error for CommandFailure {}

/// A mistake in the command line that clap found, as one line.
impl From<clap::Error> for CommandFailure {
    fn from(error: clap::Error) -> Self {
        if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
            return Self::usage("no command was given").hint("see `apportion --help`");
        }
        let text = error.render().to_string();
        let paragraph = text.split("\n\n").next().unwrap_or_default();
        let line = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
        let line = line.strip_prefix("error: ").unwrap_or(&line);
        Self::usage(line).hint("see `apportion --help`")
    }
}

/// Standard output is closed or full.
impl From<std::io::Error> for CommandFailure {
    fn from(error: std::io::Error) -> Self {
        Self::new("failed to write the output").because(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn the_whole_chain_and_the_hint_are_on_one_line() {
        let cause = io::Error::new(io::ErrorKind::PermissionDenied, "permission denied");
        let failure = CommandFailure::new("failed to map the account")
            .because(cause)
            .hint("be root");
        let line = "failed to map the account: permission denied; hint: be root";
        assert_eq!(failure.to_string(), line);
    }

    #[test]
    fn a_cause_that_was_already_said_is_not_said_again() {
        let failure =
            CommandFailure::new("transport error: refused").because(io::Error::other("refused"));
        assert_eq!(failure.to_string(), "transport error: refused");
    }

    #[test]
    fn bad_usage_and_failures_differ_in_their_code() {
        assert_eq!(CommandFailure::usage("x").code, 64);
        assert_eq!(
            CommandFailure::new("x").because(io::Error::other("y")).code,
            1
        );
    }
}
