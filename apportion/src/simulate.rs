//! `apportion sim`: a command on simulated cards, with nothing of ours between it and them.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use crate::failure::Failure;
use crate::instance::Instance;
use crate::options::Sim;
use crate::program::Program;
use crate::simulation::{Daemon, Shape, ensure};

/// Runs `sim.command` on the simulated cards; returns only if that fails.
pub(crate) fn run(sim: Sim) -> Result<(), Failure> {
    let wanted = Shape::parse(
        sim.gpus.as_deref(),
        sim.gpu_memory.as_deref(),
        sim.driver.as_deref(),
    )?;
    let program = Program::find(sim.command)?;
    let instance = Instance::new(true)?;
    instance.prepare()?;
    let env = instance.driver_env()?;
    let daemon = ensure(&instance, &wanted)?;
    if daemon == Daemon::Found && wanted != Shape::default() {
        eprintln!(
            "apportion: the simulated cards run already and keep their shape; hint: `apportion gpus --sim` \
             shows it, and they end 60 seconds after their last program"
        );
    }
    let _held = hold(&instance)?;
    Err(program.become_it(env))
}

/// A connection that lives as long as the command and keeps the daemon from leaving before the command's
/// first use of a card.
fn hold(instance: &Instance) -> Result<UnixStream, Failure> {
    let socket = instance.driver_socket();
    let failed = || {
        Failure::new(format!(
            "failed to hold the simulated driver at {}",
            socket.display()
        ))
    };
    let stream = UnixStream::connect(&socket).map_err(|e| failed().because(e))?;
    fcntl(stream.as_fd(), FcntlArg::F_SETFD(FdFlag::empty())).map_err(|e| failed().because(e))?;
    Ok(stream)
}
