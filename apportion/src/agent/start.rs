//! Starting the agent in the background when none listens.
//!
//! Several commands may find none at once and start one each: the first takes `agent.lock` and serves all,
//! the others end. So an agent that ended means failure only when nobody holds the lock.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use apportion_abi::place;
use nix::unistd::Uid;

use super::{AgentUnreachable, ConnectedAgent, connect_to_running, try_connect};
use crate::background::BackgroundProcess;
use crate::failure::CommandFailure;
use crate::instance::TargetInstance;
use crate::simulation;

/// After how many seconds without allocation and client the agent leaves.
const IDLE_EXIT_SECONDS: &str = "30";
/// How long an agent may take until it serves; its first look at a card may be slow.
const PATIENCE: Duration = Duration::from_secs(20);
/// How many agents may say why they end. One may have met another that was about to serve and did not.
const COMPLAINTS: u32 = 2;
/// How often is looked.
const PAUSE: Duration = Duration::from_millis(10);

/// Connects to the agent of `instance`, starting it, and the simulated driver below it, where needed.
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
        // Asked before connecting, so that one that serves by then is connected to.
        let is_free = !is_held(&instance.dir.join(place::AGENT_LOCK));
        match try_connect(instance).await {
            Ok(agent) => return Ok(agent),
            Err(AgentUnreachable::Failed(failure)) => return Err(failure),
            // One that we started may still look at its cards.
            Err(AgentUnreachable::Silent(failure)) if launched.is_none() => return Err(failure),
            Err(AgentUnreachable::Silent(_)) => {}
            Err(AgentUnreachable::Absent) => {}
        }
        match &launched {
            None if is_free => launched = Some(launch(instance)?),
            // One that ends without the lock being free met another that serves soon.
            Some(agent) if is_free && !agent.is_running() => {
                complaints += u32::from(agent.has_said_why());
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
        let nvml = format!("{}/libnvidia-ml.so.1", place::SIM_LIBRARIES);
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

/// Whether anybody holds the lock. The kernel's list says it without taking the lock for a moment, which
/// would turn away an agent that starts just then.
fn is_held(lock: &Path) -> bool {
    let Ok(file) = fs::metadata(lock) else {
        return false;
    };
    let inode = format!(":{}", file.ino());
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let is_it = |line: &str| {
        let mut words = line.split_whitespace();
        words.nth(1) == Some("FLOCK") && words.any(|word| word.ends_with(&inode))
    };
    locks.lines().any(is_it)
}

/// The failure in the agent's own last words.
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
        let taken = file.reopen().unwrap();
        let held = Flock::lock(taken, FlockArg::LockExclusiveNonblock)
            .map_err(|(_, e)| e)
            .unwrap();
        assert!(is_held(file.path()));
        drop(held);
        assert!(!is_held(file.path()));
    }
}
