//! `kubectl apportion`: the GPUs, shares and queues of a whole cluster, and why a pod waits.
//!
//! It reads what agents and scheduler write to the API server, with the permissions of the kubeconfig's user, and
//! changes nothing. It needs no agent on this machine, and no network access except to the API server.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use apportion::failure::CommandFailure;
use clap::Parser;

mod api;
mod explain;
mod gpus;
mod options;
mod pod;
mod queues;
mod scheduler;
mod top;

use api::ClusterConnection;
use options::{KubectlCommand, KubectlOptions};

const HINT: &str = "see `kubectl apportion --help`";

fn main() -> ExitCode {
    let result = match KubectlOptions::try_parse() {
        Ok(options) => perform(&options),
        Err(help) if !help.use_stderr() => help.print().map_err(CommandFailure::from),
        Err(mistake) => Err(CommandFailure::from(mistake).hint(HINT)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("kubectl apportion: {failure}");
            failure.code()
        }
    }
}

fn perform(options: &KubectlOptions) -> Result<(), CommandFailure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| CommandFailure::new("failed to start").because(error))?;
    runtime.block_on(async {
        let cluster = ClusterConnection::open(&options.access).await?;
        match &options.command {
            KubectlCommand::Top(format) => top::show(&cluster, format.json).await,
            KubectlCommand::Gpus(format) => gpus::show(&cluster, format.json).await,
            KubectlCommand::Queues(format) => queues::show(&cluster, format.json).await,
            KubectlCommand::Explain(asked) if asked.scheduler => {
                scheduler::ask(&cluster, asked).await
            }
            KubectlCommand::Explain(asked) => explain::show(&cluster, asked).await,
        }
    })
}
