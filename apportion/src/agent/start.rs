//! Starting the agent in the background when none listens.
//!
//! Several commands may find none at once and start one each: the first takes `agent.lock` and serves all,
//! the others end. So an agent that ended means failure only when nobody holds the lock.

use std::fs::File;
use std::time::{Duration, Instant};

use apportion_abi::place;
use nix::fcntl::{Flock, FlockArg};

use super::{Agent, Unreachable, try_connect};
use crate::background::Background;
use crate::failure::Failure;
use crate::instance::Instance;
use crate::simulation;

/// After how many seconds without allocation and client the agent leaves.
const IDLE_EXIT_SECONDS: &str = "30";
/// How long an agent may take until it serves; its first look at a card may be slow.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often is looked.
const PAUSE: Duration = Duration::from_millis(10);

/// Connects to the agent of `instance`, starting it, and the simulated driver below it, where needed.
pub(crate) async fn connect_or_start(instance: &Instance) -> Result<Agent, Failure> {
    if instance.is_simulated {
        instance.prepare()?;
        simulation::ensure(instance, &simulation::Shape::default())?;
    }
    match try_connect(instance).await {
        Ok(agent) => return Ok(agent),
        Err(Unreachable::Failed(failure)) => return Err(failure),
        Err(Unreachable::Absent) => {}
    }
    instance.prepare()?;
    let agent = launch(instance)?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        // Asked before connecting: one that serves and ends in between is seen the next time.
        let is_gone = !agent.is_running() && nobody_serves(instance);
        match try_connect(instance).await {
            Ok(agent) => return Ok(agent),
            Err(Unreachable::Failed(failure)) => return Err(failure),
            Err(Unreachable::Absent) => {}
        }
        if is_gone || Instant::now() > deadline {
            let what = if is_gone {
                "ended at once"
            } else {
                "does not serve"
            };
            return Err(explain(instance, what, &agent));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn launch(instance: &Instance) -> Result<Background, Failure> {
    let mut args = vec!["--dir".into(), instance.dir.clone().into_os_string()];
    args.extend(["--idle-exit".into(), IDLE_EXIT_SECONDS.into()]);
    if instance.is_simulated {
        let nvml = format!("{}/libnvidia-ml.so.1", place::SIM_LIBRARIES);
        args.extend([
            "--sim".into(),
            "--nvml-library".into(),
            instance.library(&nvml)?.into_os_string(),
        ]);
    }
    let log = instance.agent_log();
    Background::start(
        &instance.agent_program()?,
        args,
        instance.driver_env()?,
        log,
    )
}

/// Whether the lock that a serving agent holds is free.
fn nobody_serves(instance: &Instance) -> bool {
    let Ok(lock) = File::open(instance.dir.join(place::AGENT_LOCK)) else {
        return true;
    };
    Flock::lock(lock, FlockArg::LockSharedNonblock).is_ok()
}

/// The failure in the agent's own last words.
fn explain(instance: &Instance, what: &str, agent: &Background) -> Failure {
    let failure = agent.explain(&format!("the agent {what}"));
    let hint = failure.todo().unwrap_or_default().to_owned();
    let names_sim = instance.is_simulated || hint.contains("--sim");
    if names_sim {
        failure
    } else {
        failure.hint(format!("{hint}; --sim uses simulated cards"))
    }
}
