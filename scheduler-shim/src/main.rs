//! The scheduler's program: it schedules a running cluster, says what it would decide for files, and who may come
//! into a cluster.
//!
//! It decides nothing itself: objects become the policy's cluster, the policy decides, the decisions are
//! carried out or printed; `webhook` answers the API server with the rules of admission.
#![deny(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;

#[cfg(test)]
mod chart;
mod choices;
mod failure;
mod live;
mod log;
mod objects;
mod options;
mod over_time;
mod reasons;
mod simulate;
mod webhook;

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
            if !failure.is_told() {
                eprintln!("apportion-scheduler: {failure}");
            }
            failure.code()
        }
    }
}

fn perform(options: &Options) -> Result<(), Failure> {
    match &options.command {
        Command::Run(asked) => live::run(asked),
        Command::Explain(asked) => live::explain(asked),
        Command::Simulate(asked) => simulate::run(asked),
        Command::Webhook(asked) => webhook::run(asked),
    }
}
