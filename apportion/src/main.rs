//! The command line for one machine, with or without Kubernetes.
//!
//! It decides nothing about memory: the policy chooses cards, the agent of the instance accepts, and the preloaded
//! library enforces the limit. This program shows the results.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use apportion::{output, table};
use apportion_exit::CommandFailure;
use clap::CommandFactory;

mod agent;
mod background;
mod cards;
mod demo;
mod detach;
mod doctor;
mod gpus;
mod hooks;
mod instance;
mod metrics;
mod options;
mod probe;
mod program;
mod report;
mod request;
mod resize;
mod run;
mod simulate;
mod simulation;
mod suspend;
mod top;
mod view;

use options::{ApportionCommand, ApportionOptions};

fn main() -> ExitCode {
    apportion_exit::run("apportion", perform)
}

fn perform(options: ApportionOptions) -> Result<(), CommandFailure> {
    let address = options.address;
    match options.command {
        ApportionCommand::Run(run) => run::run(run, address),
        ApportionCommand::Sim(sim) => simulate::run(sim, address),
        ApportionCommand::Top(top) => top::top(&top, address),
        ApportionCommand::Gpus(format) => gpus::gpus(format.json, address),
        ApportionCommand::Resize(resize) => resize::resize(&resize, address),
        ApportionCommand::Suspend(which) => suspend::suspend(&which.name, address),
        ApportionCommand::Resume(which) => suspend::resume(&which.name, address),
        ApportionCommand::Completions { shell } => completions(shell),
        ApportionCommand::Hooks(which) => hooks::hooks(&which),
        ApportionCommand::Doctor(what) if what.node => doctor::node(what.format.json, &what.root),
        ApportionCommand::Doctor(what) => doctor::doctor(what.format.json, address),
        ApportionCommand::Demo { verbose } => demo::demo(address, verbose),
        ApportionCommand::Detach { log, command } => detach::detach(&log, &command),
    }
}

fn completions(shell: clap_complete::Shell) -> Result<(), CommandFailure> {
    let mut text = Vec::new();
    clap_complete::generate(
        shell,
        &mut ApportionOptions::command(),
        "apportion",
        &mut text,
    );
    output::all(&String::from_utf8_lossy(&text))
}

/// Runs an async function. The runtime ends with it, so nothing of it is left when another program replaces this one.
fn block_on<T>(work: impl Future<Output = Result<T, CommandFailure>>) -> Result<T, CommandFailure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime
        .map_err(|e| CommandFailure::new("failed to start").because(e))?
        .block_on(work)
}
