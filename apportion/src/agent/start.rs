//! Starts the agent in the background if none listens.
//!
//! Several commands may start an agent at once. The first agent takes `agent.lock` and serves them all; the others
//! exit. So an agent that exited is a failure only if nobody holds the lock.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use apportion_abi::paths;
use apportion_exit::CommandFailure;
use nix::unistd::Uid;

use super::{AgentUnreachable, ConnectedAgent, connect_to_running, try_connect};
use crate::background::BackgroundProcess;
use crate::instance::TargetInstance;
use crate::simulation;

/// After how many seconds without allocations and clients the agent exits.
const IDLE_EXIT_SECONDS: &str = "30";
/// How long an agent may take until it serves; its first query of a card may be slow.
const PATIENCE: Duration = Duration::from_secs(20);
/// How many agents may exit with an error. One may have met another that was about to serve and then failed.
const COMPLAINTS: u32 = 2;
/// The pause between attempts.
const PAUSE: Duration = Duration::from_millis(10);

/// Connects to the agent of `instance`. Starts the agent, and its simulated driver, if needed.
pub(crate) async fn connect_or_start(
    instance: &TargetInstance,
) -> Result<ConnectedAgent, CommandFailure> {
    instance.prepare()?;
    if instance.is_shared {
        return connect_to_running(instance).await;
    }
    if instance.is_simulated {
        simulation::ensure(instance, &simulation::SimulationSpec::default())?;
    }
    let deadline = Instant::now() + PATIENCE;
    let mut launched: Option<BackgroundProcess> = None;
    let mut complaints = 0;
    loop {
        // Checked before connecting, so that an agent that takes the lock meanwhile is connected to.
        let is_free = !is_held(&instance.dir.join(paths::AGENT_LOCK));
        match try_connect(instance).await {
            Ok(agent) => return Ok(agent),
            Err(AgentUnreachable::Failed(failure)) => return Err(failure),
            // An agent that we started may still be querying its cards.
            Err(AgentUnreachable::Silent(failure)) if launched.is_none() => return Err(failure),
            Err(AgentUnreachable::Silent(_)) => {}
            Err(AgentUnreachable::Absent) => {}
        }
        match &launched {
            None if is_free => launched = Some(launch(instance)?),
            // If an agent exits while the lock is held, another agent has it and will serve soon.
            Some(agent) if is_free && !agent.is_running() => {
                complaints += u32::from(agent.has_cause());
                if complaints == COMPLAINTS {
                    return Err(explain(instance, "exited at once", agent));
                }
                launched = None;
            }
            None | Some(_) => {}
        }
        if Instant::now() > deadline {
            let what = "does not answer";
            return Err(match &launched {
                Some(agent) => explain(instance, what, agent),
                None => {
                    CommandFailure::new(format!("the agent {what}")).hint("run `apportion doctor`")
                }
            });
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn launch(instance: &TargetInstance) -> Result<BackgroundProcess, CommandFailure> {
    let mut args = vec!["--dir".into(), instance.dir.clone().into_os_string()];
    args.extend(["--idle-exit".into(), IDLE_EXIT_SECONDS.into()]);
    // Root's agent has the machine's GPUs, so other users must get theirs from it.
    if Uid::effective().is_root() && std::env::var_os("APPORTION_USERS").is_none() {
        args.extend(["--users".into(), "all".into()]);
    }
    if instance.is_simulated {
        let nvml = format!("{}/libnvidia-ml.so.1", paths::SIM_LIBRARIES);
        args.extend([
            "--sim".into(),
            "--nvml-library".into(),
            instance.library(&nvml)?.into_os_string(),
        ]);
    }
    let log = instance.agent_log();
    BackgroundProcess::start(
        &instance.agent_program()?,
        args,
        instance.driver_env()?,
        log,
    )
}

/// Whether a process holds the lock. `/proc/locks` shows that without taking the lock even for a moment, which would
/// make an agent exit that starts just then.
fn is_held(lock: &Path) -> bool {
    let Ok(file) = fs::metadata(lock) else {
        return false;
    };
    let inode = format!(":{}", file.ino());
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    locks.lines().any(|line| {
        let mut words = line.split_whitespace();
        words.nth(1) == Some("FLOCK") && words.any(|word| word.ends_with(&inode))
    })
}

/// A failure with the agent's last log line.
fn explain(instance: &TargetInstance, what: &str, agent: &BackgroundProcess) -> CommandFailure {
    let failure = agent.explain(&format!("the agent {what}"));
    let hint = failure.todo().unwrap_or_default().to_owned();
    let names_sim = instance.is_simulated || hint.contains("--sim");
    if names_sim {
        failure
    } else {
        failure.hint(format!("{hint}; or use simulated GPUs with --sim"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::{Flock, FlockArg};

    #[test]
    fn a_lock_is_held_for_as_long_as_somebody_has_it() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(!is_held(file.path()));
        let second = file.reopen().unwrap();
        let held = Flock::lock(second, FlockArg::LockExclusiveNonblock)
            .map_err(|(_, e)| e)
            .unwrap();
        assert!(is_held(file.path()));
        drop(held);
        assert!(!is_held(file.path()));
    }
}
