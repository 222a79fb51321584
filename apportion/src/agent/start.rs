//! Starting the agent in the background when none listens.
//!
//! Several commands may find none at once and start one each: the first takes `agent.lock` and serves all,
//! the others end. So an agent that ended means failure only when nobody holds the lock.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::time::{Duration, Instant};

use apportion_abi::place;
use nix::fcntl::{Flock, FlockArg};

use super::{Agent, Unreachable, try_connect};
use crate::detach;
use crate::failure::Failure;
use crate::instance::Instance;
use crate::simulation;

/// After how many seconds without allocation and client the agent leaves.
const IDLE_EXIT_SECONDS: &str = "30";
/// How long an agent may take until it serves; its first look at a card may be slow.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often is looked.
const PAUSE: Duration = Duration::from_millis(10);
/// A log above that size starts anew with the next agent.
const LOG_BYTES: u64 = 1 << 20;

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
    let log = instance.agent_log();
    let read_from = begin_log(&log);
    let pid = launch(instance, &log)?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        // Asked before connecting: one that serves and ends in between is seen the next time.
        let is_gone = !is_running(pid) && nobody_serves(instance);
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
            return Err(explain(instance, what, &log, read_from));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn launch(instance: &Instance, log: &Path) -> Result<u32, Failure> {
    let mut args = vec!["--dir".into(), instance.dir.clone().into_os_string()];
    args.extend(["--idle-exit".into(), IDLE_EXIT_SECONDS.into()]);
    if instance.is_simulated {
        let nvml = format!("{}/libnvidia-ml.so.1", place::SIM_LIBRARIES);
        args.extend([
            "--nvml-library".into(),
            instance.library(&nvml)?.into_os_string(),
        ]);
    }
    detach::start(
        &instance.agent_program()?,
        args,
        instance.driver_env()?,
        log,
    )
}

/// Starts a long log anew; returns where the next line will stand.
fn begin_log(log: &Path) -> u64 {
    let length = fs::metadata(log).map_or(0, |found| found.len());
    if length > LOG_BYTES && fs::remove_file(log).is_ok() {
        0
    } else {
        length
    }
}

/// Whether the process lives; one that ended and waits for init does not.
fn is_running(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit_once(") ")
        .and_then(|(_, rest)| rest.chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

/// Whether the lock that a serving agent holds is free.
fn nobody_serves(instance: &Instance) -> bool {
    let Ok(lock) = File::open(instance.dir.join(place::AGENT_LOCK)) else {
        return true;
    };
    Flock::lock(lock, FlockArg::LockSharedNonblock).is_ok()
}

/// The failure in the agent's own last words.
fn explain(instance: &Instance, what: &str, log: &Path, read_from: u64) -> Failure {
    let last = last_line(log, read_from).unwrap_or_default();
    let last = last.strip_prefix("apportion-agent: ").unwrap_or(&last);
    let (said, hint) = match last.split_once("; hint: ") {
        Some((said, hint)) => (said, hint.to_owned()),
        None => (last, format!("see {}", log.display())),
    };
    let failure = Failure::new(format!("the agent {what}"));
    let failure = if said.is_empty() {
        failure
    } else {
        failure.because(said.to_owned())
    };
    let names_sim = instance.is_simulated || hint.contains("--sim");
    let hint = if names_sim {
        hint
    } else {
        format!("{hint}; --sim uses simulated cards")
    };
    failure.hint(hint)
}

fn last_line(log: &Path, read_from: u64) -> Option<String> {
    let mut file = File::open(log).ok()?;
    file.seek(SeekFrom::Start(read_from)).ok()?;
    let mut text = Vec::new();
    file.take(LOG_BYTES).read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text);
    text.lines()
        .rev()
        .map(str::trim)
        .find(|line| !line.is_empty())
        .map(str::to_owned)
}
