//! The command that a person types on a machine, with or without Kubernetes.
//!
//! It decides nothing about memory: the policy chooses cards, the agent of the instance accepts, the
//! preloaded library keeps the limit. Here is what a person sees of it.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use apportion::{failure, output, table};
use clap::{CommandFactory, Parser};

mod agent;
mod ask;
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
mod resize;
mod run;
mod simulate;
mod simulation;
mod top;
mod view;

use failure::Failure;
use options::{Command, Options};

fn main() -> ExitCode {
    let result = match Options::try_parse() {
        Ok(options) => perform(options),
        Err(help) if !help.use_stderr() => help.print().map_err(Failure::from),
        Err(mistake) => Err(mistake.into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("apportion: {failure}");
            failure.code()
        }
    }
}

fn perform(options: Options) -> Result<(), Failure> {
    let address = options.address;
    match options.command {
        Command::Run(run) => run::run(run, address),
        Command::Sim(sim) => simulate::run(sim, address),
        Command::Top(top) => top::top(&top, address),
        Command::Gpus(format) => gpus::gpus(format.json, address),
        Command::Resize(resize) => resize::resize(&resize, address),
        Command::Completions { shell } => completions(shell),
        Command::Hooks(which) => hooks::hooks(&which),
        Command::Doctor(what) if what.node => doctor::node(what.format.json, &what.root),
        Command::Doctor(what) => doctor::doctor(what.format.json, address),
        Command::Demo { verbose } => demo::demo(address, verbose),
        Command::Detach { log, command } => detach::detach(&log, &command),
    }
}

fn completions(shell: clap_complete::Shell) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Options::command(), "apportion", &mut text);
    output::all(&String::from_utf8_lossy(&text))
}

/// Runs what talks to the agent. The runtime ends with it: nothing of it is left when a command takes over.
fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime
        .map_err(|e| Failure::new("failed to start").because(e))?
        .block_on(work)
}
