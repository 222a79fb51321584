//! Finds all mistakes of a command line at once. Clap stops at the first one.
//!
//! A mistake is noted, and made harmless: an unknown argument is left out, and an option with a wrong value then takes
//! any value. Then the command line is read again, until nothing is left to note.

use std::env;
use std::ffi::{OsStr, OsString};

use apportion_exit::CommandFailure;
use clap::builder::{OsStringValueParser, Resettable};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgMatches, Command};

/// Reads the arguments, the first of which is the program's name. `None`: the help or the version was printed.
pub(super) fn matches(
    command: Command,
    mut arguments: Vec<OsString>,
) -> Result<Option<ArgMatches>, CommandFailure> {
    let mut command = command.mut_args(without_empty_variable);
    let mut mistakes = Vec::new();
    loop {
        let error = match command.clone().try_get_matches_from(&arguments) {
            Ok(matches) if mistakes.is_empty() => return Ok(Some(matches)),
            Ok(_) => return Err(failure(mistakes)),
            Err(error) => error,
        };
        if !error.use_stderr() {
            error.print()?;
            return Ok(None);
        }
        let text = CommandFailure::from_clap(&error).chain();
        let Some(argument) = invalid_argument(&error) else {
            mistakes.push(text);
            return Err(failure(mistakes));
        };
        if let Some(id) = option(&command, argument) {
            mistakes.push(with_source(&command, &id, &arguments, text));
            command = command.mut_arg(id, |arg| {
                arg.num_args(0..=1).value_parser(OsStringValueParser::new())
            });
        } else if let Some(at) = arguments.iter().position(|given| is(argument, given)) {
            mistakes.push(text);
            arguments.remove(at);
        } else {
            mistakes.push(text);
            return Err(failure(mistakes));
        }
    }
}

/// A failure that names all mistakes.
pub(super) fn failure(mistakes: Vec<String>) -> CommandFailure {
    CommandFailure::mistakes(mistakes).hint("see `apportion-agent --help`")
}

/// An empty variable counts as unset.
fn without_empty_variable(arg: Arg) -> Arg {
    match arg.get_env().and_then(env::var_os) {
        Some(value) if value.is_empty() => arg.env(Resettable::Reset),
        _ => arg,
    }
}

/// The argument that an error is about, as clap shows it: `--tick <MILLISECONDS>`, or an unknown one as it was given.
fn invalid_argument(error: &clap::Error) -> Option<&str> {
    let kind = match error.kind() {
        ErrorKind::InvalidSubcommand => ContextKind::InvalidSubcommand,
        _ => ContextKind::InvalidArg,
    };
    match error.get(kind) {
        Some(ContextValue::String(argument)) => Some(argument),
        _ => None,
    }
}

/// The id of the option that clap shows like this.
fn option(command: &Command, argument: &str) -> Option<String> {
    let long = long(argument)?;
    let arg = command
        .get_arguments()
        .find(|arg| arg.get_long() == Some(long))?;
    Some(arg.get_id().to_string())
}

/// The name of the option in `--name`, `--name=value` or `--name <VALUE>`.
fn long(argument: &str) -> Option<&str> {
    argument.strip_prefix("--")?.split(['=', ' ']).next()
}

/// Whether an argument was given as clap shows it, perhaps with a value.
fn is(name: &str, given: &OsStr) -> bool {
    let given = given.to_string_lossy();
    given == name || (long(name).is_some() && long(&given) == long(name))
}

/// Adds the variable to a mistake if the value is the variable's.
fn with_source(command: &Command, id: &str, arguments: &[OsString], text: String) -> String {
    let Some(arg) = command.get_arguments().find(|arg| arg.get_id() == id) else {
        return text;
    };
    let is_given = arguments
        .iter()
        .any(|given| long(&given.to_string_lossy()) == arg.get_long());
    match arg.get_env().filter(|name| env::var_os(name).is_some()) {
        Some(name) if !is_given => format!("{text} (variable {})", name.display()),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::options::AgentOptions;

    #[test]
    fn every_mistake_is_said_with_name_value_and_form() {
        let arguments = [
            "apportion-agent",
            "--tick",
            "5",
            "--colour=blue",
            "here",
            "--policy=maim",
            "--slots=0",
            "--dir",
        ];
        let arguments = arguments.map(OsString::from).to_vec();
        let failure = matches(AgentOptions::command(), arguments).unwrap_err();
        let all = failure.to_string();
        for part in [
            "invalid value '5' for '--tick <MILLISECONDS>': expected milliseconds, 10 to 60000",
            "unexpected argument '--colour' found",
            "'here'",
            "invalid value 'maim' for '--policy <POLICY>': expected observe, kill or evict",
            "invalid value '0' for '--slots <NUMBER>': 0 is not in 1..=4096",
            "a value is required for '--dir <PATH>' but none was supplied",
        ] {
            assert!(all.contains(part), "{part} is not in {all}");
        }
        assert_eq!(all.lines().count(), 6, "{all}");
    }
}
