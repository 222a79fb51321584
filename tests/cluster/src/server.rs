//! A server that outlives the command that started it. Its pid is recorded with its start time, so that a reused pid is
//! never mistaken for it.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

/// How long a server may take to exit before it is killed.
const GRACE: Duration = Duration::from_secs(10);
const GLANCE: Duration = Duration::from_millis(20);

/// A server that was started.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClusterServer {
    pub(crate) name: String,
    pub(crate) pid: i32,
    /// Its start time, in the kernel's ticks since boot.
    started: u64,
}

impl ClusterServer {
    /// Starts `command` with its output in `log`, in a process group that the terminal's Ctrl-C does not reach.
    pub(crate) fn start(name: &str, command: &mut Command, log: &Path) -> Result<Self> {
        let started = (|| {
            let file = File::create(log)?;
            command
                .stdin(Stdio::null())
                .stdout(file.try_clone()?)
                .stderr(file)
                .process_group(0);
            let pid = command.spawn()?.id().cast_signed();
            Ok::<_, io::Error>((pid, start_time(pid).unwrap_or_default()))
        })();
        let (pid, started) = started.with_context(|| {
            let program = command.get_program().display();
            format!("failed to start {name} ({program})")
        })?;
        Ok(Self {
            name: name.to_owned(),
            pid,
            started,
        })
    }

    /// Whether this very process runs. A zombie does not count.
    pub(crate) fn is_alive(&self) -> bool {
        let _ = waitpid(Pid::from_raw(self.pid), Some(WaitPidFlag::WNOHANG));
        start_time(self.pid) == Some(self.started)
    }

    /// Sends SIGTERM, then kills it.
    pub(crate) fn stop(&self) {
        for signal in [Signal::SIGTERM, Signal::SIGKILL] {
            if self.is_alive() {
                let _ = kill(Pid::from_raw(self.pid), signal);
                self.await_end();
            }
        }
    }

    pub(crate) fn kill(&self) {
        if self.is_alive() {
            let _ = kill(Pid::from_raw(self.pid), Signal::SIGKILL);
            self.await_end();
        }
    }

    fn await_end(&self) {
        let deadline = Instant::now() + GRACE;
        while self.is_alive() && Instant::now() < deadline {
            thread::sleep(GLANCE);
        }
    }
}

/// The start time of the process `pid`. None if it is dead.
fn start_time(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may contain anything, even parentheses.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let state = fields.next()?;
    // From the state, which is field 3, to the start time, which is field 22.
    let started = fields.nth(18)?.parse().ok()?;
    (state != "Z").then_some(started)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_lives_until_it_is_stopped() {
        let mut command = Command::new("sleep");
        let server =
            ClusterServer::start("sleep", command.arg("60"), Path::new("/dev/null")).unwrap();
        assert!(server.is_alive());
        server.stop();
        assert!(!server.is_alive());
    }

    #[test]
    fn a_process_that_got_the_number_later_is_a_stranger() {
        let stranger = ClusterServer {
            name: "stranger".into(),
            pid: std::process::id().cast_signed(),
            started: 1,
        };
        assert!(!stranger.is_alive());
        stranger.stop();
    }
}
