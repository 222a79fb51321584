//! `apportion sim`: a command on simulated cards, with nothing of ours between it and them.

use crate::failure::Failure;
use crate::instance::Instance;
use crate::options::{Address, Sim};
use crate::program::Program;
use crate::simulation::{Daemon, Shape, ensure};

/// Runs `sim.command` on the simulated cards; returns only if that fails.
pub(crate) fn run(sim: Sim, address: Address) -> Result<(), Failure> {
    let wanted = Shape::parse(
        sim.gpus.as_deref(),
        sim.gpu_memory.as_deref(),
        sim.driver.as_deref(),
    )?;
    let program = Program::find(sim.command)?;
    let instance = Instance::new(Address {
        sim: true,
        ..address
    })?;
    instance.prepare()?;
    let env = instance.driver_env()?;
    let daemon = ensure(&instance, &wanted)?;
    if daemon == Daemon::Found && wanted != Shape::default() {
        eprintln!(
            "apportion: the simulated GPUs are already running, so these options have no effect; hint: `apportion \
             gpus --sim` shows them; they stop 60 seconds after the last program that uses them"
        );
    }
    Err(program.become_it(env))
}
