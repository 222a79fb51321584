//! The scheduler's program: it schedules a running cluster, simulates decisions for files, and runs the admission
//! webhook.
//!
//! It decides nothing itself. Objects become the policy's cluster, the policy decides, and the decisions are carried
//! out or printed. `webhook` answers the API server with the rules of admission.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use apportion_exit::CommandFailure;

#[cfg(test)]
mod chart;
mod live;
mod log;
mod options;
mod policy_options;
mod simulate;
mod usage_options;
mod webhook;

use options::{SchedulerCommand, SchedulerOptions};

fn main() -> ExitCode {
    apportion_exit::run("apportion-scheduler", |options| perform(&options))
}

fn perform(options: &SchedulerOptions) -> Result<(), CommandFailure> {
    match &options.command {
        SchedulerCommand::Run(asked) => live::run(asked),
        SchedulerCommand::Explain(asked) => live::explain(asked),
        SchedulerCommand::Simulate(asked) => simulate::run(asked),
        SchedulerCommand::Webhook(asked) => webhook::run(asked),
    }
}
