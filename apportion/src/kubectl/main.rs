//! `kubectl apportion`: the GPUs, shares and queues of a whole cluster, and why a pod waits.
//!
//! It reads what agents and scheduler write to the API server, with the permissions of the kubeconfig's user, and
//! changes nothing. It needs no agent on this machine, and no network access except to the API server.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use apportion_exit::CommandFailure;

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

fn main() -> ExitCode {
    apportion_exit::run("kubectl apportion", |options| perform(&options))
}

fn perform(options: &KubectlOptions) -> Result<(), CommandFailure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CommandFailure::new("failed to start").because(error))?;
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
