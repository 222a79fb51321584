//! An agent that a test starts with its own options, instead of leaving it to `apportion run`.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};

use apportion_memory_group::MemoryGroup;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::Pid;

use crate::host::TestHost;
use crate::wait::{PATIENCE, eventually};

/// A running agent of the simulated instance. Dropping this kills it.
#[derive(Debug)]
pub struct AgentProcess(Child);

impl TestHost {
    /// Starts an agent and waits until it serves.
    ///
    /// # Panics
    /// If it does not start to serve.
    #[must_use]
    pub fn agent(&self, options: &[&str]) -> AgentProcess {
        self.agent_with(options, &[])
    }

    /// The same, with additional environment variables.
    ///
    /// # Panics
    /// If it does not start to serve.
    #[must_use]
    pub fn agent_with(&self, options: &[&str], variables: &[(&str, &Path)]) -> AgentProcess {
        self.started(options, variables, None)
    }

    /// The same, in the memory group of the agent's container.
    ///
    /// # Panics
    /// If it does not start to serve.
    #[must_use]
    pub fn agent_in(&self, group: Option<&MemoryGroup>) -> AgentProcess {
        self.started(&[], &[], group)
    }

    fn started(
        &self,
        options: &[&str],
        variables: &[(&str, &Path)],
        group: Option<&MemoryGroup>,
    ) -> AgentProcess {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.dir().join("agent.log"));
        let mut command = self.staged("apportion-agent");
        command
            .arg("--dir")
            .arg(self.instance())
            .args(["--metrics-address", "127.0.0.1:0"])
            .args(options)
            .envs(variables.iter().copied());
        command.env("LD_LIBRARY_PATH", self.libraries().join("sim"));
        command.env("APPORTION_SIM_SOCKET", self.instance().join("driver.sock"));
        if let Some(group) = group {
            command = group.around(&command);
        }
        command
            .stdin(Stdio::null())
            .stderr(log.expect("the folder is writable"));
        loop {
            let agent = AgentProcess(command.spawn().expect("the agent is staged"));
            self.await_agent();
            match self.serving_agent() {
                Some(other) if other != agent.pid() => {
                    // `apportion run` found none after the last one was killed, and started its own.
                    let _ = kill(Pid::from_raw(other.cast_signed()), Signal::SIGKILL);
                }
                _ => return agent,
            }
        }
    }

    /// The pid of the agent that serves.
    fn serving_agent(&self) -> Option<u32> {
        let socket = UnixStream::connect(self.instance().join("agent.sock")).ok()?;
        let peer = getsockopt(&socket, PeerCredentials).ok()?;
        Some(peer.pid().cast_unsigned())
    }

    /// Waits until an agent serves.
    ///
    /// # Panics
    /// If none does.
    pub fn await_agent(&self) {
        let socket = self.instance().join("agent.sock");
        eventually(PATIENCE, "the agent serves", || {
            UnixStream::connect(&socket).is_ok()
        });
    }

    /// The log of the test's agent.
    #[must_use]
    pub fn agent_log(&self) -> String {
        fs::read_to_string(self.dir().join("agent.log")).unwrap_or_default()
    }

    /// The agent's HTTP address.
    #[must_use]
    pub fn metrics_address(&self) -> String {
        fs::read_to_string(self.instance().join("metrics.addr")).unwrap_or_default()
    }

    /// The agent's HTTP response at `path`.
    #[must_use]
    pub fn http(&self, path: &str) -> String {
        let mut text = String::new();
        let Ok(mut stream) = TcpStream::connect(self.metrics_address().trim()) else {
            return text;
        };
        let _ = stream.set_read_timeout(Some(PATIENCE));
        let sent = write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n"
        );
        if sent.is_ok() {
            let _ = stream.read_to_string(&mut text);
        }
        text
    }

    /// The sum of all series of a metric whose labels contain all of `labels`. None if there is no such series.
    #[must_use]
    pub fn metric(&self, name: &str, labels: &[&str]) -> Option<f64> {
        let text = self.http("/metrics");
        let values: Vec<f64> = text
            .lines()
            .filter(|line| line.split(['{', ' ']).next() == Some(name))
            .filter(|line| labels.iter().all(|label| line.contains(label)))
            .filter_map(|line| line.rsplit(' ').next()?.parse().ok())
            .collect();
        (!values.is_empty()).then(|| values.iter().sum())
    }
}

impl AgentProcess {
    /// Its pid.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Kills it.
    ///
    /// # Panics
    /// If it is not running.
    pub fn kill(mut self) {
        self.0.kill().expect("the agent runs");
        self.0.wait().expect("the agent is our child");
    }

    /// Kills its child that suspends and resumes programs, if there is one now.
    pub fn kill_mover(&self) {
        let pid = self.pid();
        let children = format!("/proc/{pid}/task/{pid}/children");
        let children = fs::read_to_string(children).unwrap_or_default();
        for child in children.split_whitespace() {
            let line = fs::read_to_string(format!("/proc/{child}/cmdline")).unwrap_or_default();
            if let Ok(child) = child.parse()
                && line.contains("move-processes")
            {
                // It may end by itself at this moment.
                let _ = kill(Pid::from_raw(child), Signal::SIGKILL);
            }
        }
    }

    /// Sends SIGTERM and waits for the exit.
    ///
    /// # Panics
    /// If it does not exit.
    #[must_use]
    pub fn stop(mut self) -> ExitStatus {
        kill(Pid::from_raw(self.0.id().cast_signed()), Signal::SIGTERM).expect("the agent runs");
        self.wait()
    }

    /// Waits for the exit.
    ///
    /// # Panics
    /// If it does not exit.
    pub fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        eventually(PATIENCE, "the agent leaves", || {
            status = self.0.try_wait().expect("the agent is our child");
            status.is_some()
        });
        status.expect("it was seen to leave")
    }
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
