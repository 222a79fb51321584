//! The scheduler's program. So far it answers one question: what would be decided for these objects.
//!
//! It decides nothing itself: objects become the policy's cluster, the policy decides, the decisions are
//! printed. There is no network here.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;

mod failure;
mod objects;
mod options;
mod reasons;
mod simulate;

use failure::Failure;
use options::{Command, Options};

fn main() -> ExitCode {
    let result = match Options::try_parse() {
        Ok(options) => perform(&options),
        Err(help) if !help.use_stderr() => help.print().map_err(Failure::from),
        Err(mistake) => Err(mistake.into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("apportion-scheduler: {failure}");
            failure.code()
        }
    }
}

fn perform(options: &Options) -> Result<(), Failure> {
    match &options.command {
        Command::Simulate(asked) => simulate::run(asked),
    }
}
