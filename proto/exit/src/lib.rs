//! How our programs end: what a person reads when one fails, and its exit code.
//!
//! Each problem is one line with the whole chain of causes, outermost first. The hint about what to do is last. The exit
//! code is 64 if the command line or the environment must change, and 1 if something on the machine must.
#![forbid(unsafe_code)]

use std::error::Error;
use std::fmt;
use std::io::Write as _;
use std::process::ExitCode;

use apportion_abi::{EscapedText, exit};
use clap::Parser;
use clap::error::ErrorKind;

/// A program or a command that failed.
#[derive(Debug)]
pub struct CommandFailure {
    /// One entry, or all mistakes of a command line.
    problems: Vec<String>,
    source: Option<Box<dyn Error + Send + Sync>>,
    hint: Option<String>,
    code: u8,
    is_lost: bool,
    is_logged: bool,
}

impl CommandFailure {
    /// A failure of the work itself, with exit status 1.
    #[must_use]
    pub fn new(what: impl Into<String>) -> Self {
        Self {
            problems: vec![what.into()],
            source: None,
            hint: None,
            code: exit::FAILED,
            is_lost: false,
            is_logged: false,
        }
    }

    /// The work failed with this error.
    #[must_use]
    pub fn from_error(error: &dyn Error) -> Self {
        Self::new(error_chain(error))
    }

    /// A mistake in the command line.
    #[must_use]
    pub fn usage(what: impl Into<String>) -> Self {
        Self {
            code: exit::USAGE,
            ..Self::new(what)
        }
    }

    /// All mistakes in the command line and the environment.
    #[must_use]
    pub fn mistakes(problems: Vec<String>) -> Self {
        Self {
            problems,
            ..Self::usage("")
        }
    }

    /// A mistake that clap found, as one line instead of several.
    #[must_use]
    pub fn from_clap(error: &clap::Error) -> Self {
        if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
            return Self::usage("no command was given");
        }
        let text = error.render().to_string();
        let paragraph = text.split("\n\n").next().unwrap_or_default();
        let line = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
        Self::usage(line.strip_prefix("error: ").unwrap_or(&line))
    }

    /// Adds the error that caused this one.
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

    /// Marks a failure that the log has already, so that it is not printed.
    #[must_use]
    pub fn logged(self) -> Self {
        Self {
            is_logged: true,
            ..self
        }
    }

    /// Whether the request was lost with its connection.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// What happened and why, without the hint.
    #[must_use]
    pub fn chain(&self) -> String {
        let mut chain = self.problems.join("; ");
        if let Some(source) = &self.source {
            append_causes(&mut chain, source.as_ref());
        }
        chain
    }

    /// What the user can do about the failure.
    #[must_use]
    pub fn todo(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// Prints each problem on a line of standard error, unless the log has them. A closed standard error is no reason
    /// to panic.
    #[must_use]
    pub fn report(&self, program: &str) -> ExitCode {
        if !self.is_logged {
            for line in self.lines() {
                let _ = writeln!(std::io::stderr(), "{program}: {line}");
            }
        }
        ExitCode::from(self.code)
    }

    /// A line for each problem, with the hint.
    fn lines(&self) -> Vec<String> {
        let mut lines = self.problems.clone();
        for line in &mut lines {
            if let Some(source) = &self.source {
                append_causes(line, source.as_ref());
            }
            *line = EscapedText(line).to_string();
            if let Some(hint) = &self.hint {
                line.push_str(&format!("; hint: {}", EscapedText(hint)));
            }
        }
        lines
    }
}

impl fmt::Display for CommandFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines().join("\n"))
    }
}

impl Error for CommandFailure {}

/// Standard output is closed or full.
impl From<std::io::Error> for CommandFailure {
    fn from(error: std::io::Error) -> Self {
        Self::new("failed to write the output").because(error)
    }
}

/// Parses the command line and does the work. `program` is what the user types, and begins each line of a failure.
#[must_use]
pub fn run<P: Parser>(
    program: &str,
    work: impl FnOnce(P) -> Result<(), CommandFailure>,
) -> ExitCode {
    let result = match P::try_parse() {
        Ok(options) => work(options),
        Err(help) if !help.use_stderr() => help.print().map_err(CommandFailure::from),
        Err(mistake) => {
            Err(CommandFailure::from_clap(&mistake).hint(format!("see `{program} --help`")))
        }
    };
    exit_code(program, result)
}

/// Reports the result of a program.
#[must_use]
pub fn exit_code(program: &str, result: Result<(), CommandFailure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(program),
    }
}

/// An error and its causes on one line.
#[must_use]
pub fn error_chain(error: &dyn Error) -> String {
    with_causes(error.to_string(), error)
}

/// A text about an error, and the causes of the error, on one line.
#[must_use]
pub fn with_causes(mut text: String, error: &dyn Error) -> String {
    if let Some(source) = error.source() {
        append_causes(&mut text, source);
    }
    text.replace('\n', " ")
}

/// Appends an error and its causes. Some libraries repeat the cause in their own text; it is not appended again.
fn append_causes(chain: &mut String, error: &dyn Error) {
    let mut before = chain.clone();
    let mut cause = Some(error);
    while let Some(error) = cause {
        let text = error.to_string();
        if !before.contains(&text) {
            chain.push_str(": ");
            chain.push_str(&text);
            before = text;
        }
        cause = error.source();
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

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

    #[test]
    fn every_mistake_has_a_line_with_the_hint() {
        let mistakes = vec!["--tick x".to_owned(), "--policy\ny".to_owned()];
        let failure = CommandFailure::mistakes(mistakes).hint("see --help");
        let lines = "--tick x; hint: see --help\n--policy\\ny; hint: see --help";
        assert_eq!((failure.to_string().as_str(), failure.code), (lines, 64));
    }

    #[test]
    fn what_clap_finds_is_one_line() {
        let parser = clap::Command::new("p").arg(clap::arg!(--way <WAY>).value_parser(["a", "b"]));
        let error = parser
            .try_get_matches_from(["p", "--way", "c"])
            .unwrap_err();
        assert_eq!(
            CommandFailure::from_clap(&error).to_string(),
            "invalid value 'c' for '--way <WAY>' [possible values: a, b]"
        );
    }
}
