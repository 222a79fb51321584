//! The scheduler's program: it schedules a running cluster, simulates decisions for files, and runs the admission
//! webhook.
//!
//! It decides nothing itself. Objects become the policy's cluster, the policy decides, and the decisions are carried
//! out or printed. `webhook` answers the API server with the rules of admission.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;

#[cfg(test)]
mod chart;
mod failure;
mod live;
mod log;
mod options;
mod policy_options;
mod simulate;
mod usage_options;
mod webhook;

use failure::SchedulerFailure;
use options::{SchedulerCommand, SchedulerOptions};

fn main() -> ExitCode {
    let result = match SchedulerOptions::try_parse() {
        Ok(options) => perform(&options),
        Err(help) if !help.use_stderr() => help.print().map_err(SchedulerFailure::from),
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

fn perform(options: &SchedulerOptions) -> Result<(), SchedulerFailure> {
    match &options.command {
        SchedulerCommand::Run(asked) => live::run(asked),
        SchedulerCommand::Explain(asked) => live::explain(asked),
        SchedulerCommand::Simulate(asked) => simulate::run(asked),
        SchedulerCommand::Webhook(asked) => webhook::run(asked),
    }
}
