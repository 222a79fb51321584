//! `apportion-simd`: one simulated machine for all processes of this host. It owns the machine. It learns from the
//! kernel who is asking, and notices the end of a process by itself, as the real driver does.

mod arguments;
mod checkpoints;
mod descriptors;
mod instance;
mod processes;
mod restore_threads;
mod serve;

use std::process::ExitCode;

use anyhow::Context;
use apportion_sim_machine::Machine;
use clap::Parser;

use crate::arguments::DaemonArguments;
use crate::instance::{SocketClaim, SocketLease};

/// The exit code of a command line or configuration that makes no sense.
const BAD_USAGE: u8 = 64;

fn main() -> ExitCode {
    let arguments = match DaemonArguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { BAD_USAGE } else { 0 });
        }
    };
    match run(&arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("apportion-simd: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &DaemonArguments) -> anyhow::Result<ExitCode> {
    let socket = arguments.socket();
    if let Some(request) = &arguments.ask {
        return ask(&socket, request);
    }
    let machine = match arguments
        .config()
        .and_then(|config| Ok(Machine::new(config)?))
    {
        Ok(machine) => machine,
        Err(error) => {
            eprintln!("apportion-simd: {error:#}");
            return Ok(ExitCode::from(BAD_USAGE));
        }
    };
    match SocketLease::claim(&socket)? {
        SocketClaim::ServedAlready => Ok(ExitCode::SUCCESS),
        SocketClaim::Ours(instance) => {
            serve::serve(&instance, machine, arguments.idle_exit())?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Sends one JSON request to the running machine and prints the answer.
fn ask(socket: &std::path::Path, request: &str) -> anyhow::Result<ExitCode> {
    let request = serde_json::from_str(request).context("failed to read the request")?;
    let machine = apportion_sim_client::MachineClient::at(socket.to_owned());
    let answer = machine.ask(None, request)?;
    println!("{}", serde_json::to_string(&answer.reply)?);
    Ok(ExitCode::SUCCESS)
}
