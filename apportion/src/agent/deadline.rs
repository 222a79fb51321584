//! The deadline of a call to the agent, and the message about an agent that does not answer.
//!
//! An agent that was stopped (`SIGSTOP`) still has a socket that accepts, so only the missing answer shows it. The
//! kernel names the process behind the socket, and `/proc` says whether that process is stopped.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use apportion_exit::CommandFailure;
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::instance::TargetInstance;

/// The minimum deadline of an allocation: before the agent answers, it may measure a card's first context, for up to
/// ten seconds.
const ALLOCATION: Duration = Duration::from_secs(12);

/// The minimum deadline of an allocation for which the agent may suspend others: its `--guarantee-deadline` is 60 seconds at
/// most, and it may measure a context first.
const GUARANTEE_CALL: Duration = Duration::from_secs(75);

/// The minimum deadline of a suspension or a resume: the agent gives the driver up to five minutes for the copies, and
/// another one may come first.
const SUSPENSION: Duration = Duration::from_secs(600);

/// The deadline of each call to one agent.
#[derive(Clone, Debug)]
pub(super) struct CallDeadline {
    socket: PathBuf,
    patience: Duration,
}

impl CallDeadline {
    pub(super) fn new(instance: &TargetInstance) -> Self {
        Self {
            socket: instance.agent_socket(),
            patience: instance.patience,
        }
    }

    /// Like the deadline itself, but at least as long as an allocation needs.
    pub(super) fn of_allocation(&self) -> Self {
        Self {
            patience: self.patience.max(ALLOCATION),
            ..self.clone()
        }
    }

    /// Like the deadline itself, but at least as long as an allocation needs for which others are suspended.
    pub(super) fn of_guarantee_call(&self) -> Self {
        Self {
            patience: self.patience.max(GUARANTEE_CALL),
            ..self.clone()
        }
    }

    /// Like the deadline itself, but at least as long as the agent lets a suspension or a resume take.
    pub(super) fn of_suspension(&self) -> Self {
        Self {
            patience: self.patience.max(SUSPENSION),
            ..self.clone()
        }
    }

    /// How long a call may take.
    pub(super) const fn patience(&self) -> Duration {
        self.patience
    }

    /// The result of `call`, if it comes in time.
    pub(super) async fn keep<T>(&self, call: impl Future<Output = T>) -> Result<T, CommandFailure> {
        match timeout(self.patience, call).await {
            Ok(answer) => Ok(answer),
            Err(_) => Err(self.missed().await),
        }
    }

    async fn missed(&self) -> CommandFailure {
        let what = format!(
            "the agent did not answer within {} s",
            self.patience.as_secs()
        );
        match self.pid().await {
            Some(pid) if is_stopped(pid) => CommandFailure::new(what)
                .because(format!("its process {pid} is stopped"))
                .hint(format!("`kill -CONT {pid}` lets it go on")),
            Some(_) | None => CommandFailure::new(what).hint("--timeout SECONDS waits longer"),
        }
    }

    /// The process that listens at the socket. If the socket's queue is full, connecting fails at once and does not
    /// wait.
    async fn pid(&self) -> Option<i32> {
        let stream = UnixStream::connect(&self.socket).await.ok()?;
        stream.peer_cred().ok()?.pid()
    }
}

/// Whether a process is stopped by a signal or by a debugger.
fn is_stopped(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name may contain parentheses and spaces. The state follows the last closing one.
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest);
    state.is_some_and(|state| state.starts_with(['T', 't']))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    #[test]
    fn a_stopped_process_is_told_from_one_that_runs() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        assert!(!is_stopped(pid));
        kill(Pid::from_raw(pid), Signal::SIGSTOP).unwrap();
        let limit = std::time::Instant::now() + Duration::from_secs(10);
        while !is_stopped(pid) {
            assert!(std::time::Instant::now() < limit);
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_stopped(pid));
    }
}
