//! `apportion sim`: runs a command on simulated cards, without a limit or an allocation.

use apportion_exit::CommandFailure;

use crate::instance::TargetInstance;
use crate::options::{ConnectionOptions, SimOptions};
use crate::program::ResolvedCommand;
use crate::simulation::{DaemonOrigin, SimulationSpec, ensure};

/// Runs `sim.command` on the simulated cards. Returns only if that fails.
pub(crate) fn run(sim: SimOptions, address: ConnectionOptions) -> Result<(), CommandFailure> {
    let wanted = SimulationSpec::parse(
        sim.gpus.as_deref(),
        sim.gpu_memory.as_deref(),
        sim.driver.as_deref(),
    )?;
    let program = ResolvedCommand::find(sim.command)?;
    let instance = TargetInstance::new(ConnectionOptions {
        sim: true,
        ..address
    })?;
    instance.prepare()?;
    let env = instance.driver_env()?;
    let daemon = ensure(&instance, &wanted)?;
    if daemon == DaemonOrigin::Found && wanted != SimulationSpec::default() {
        eprintln!(
            "apportion: the simulated GPUs are already running, so these options have no effect; hint: `apportion \
             gpus --sim` shows them; they stop 60 seconds after the last program that uses them"
        );
    }
    Err(program.become_it(env))
}
