//! Kills and restarts a server of the cluster, as an upgrade or a crash does. The processes that it has started keep
//! running.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::process::Command;

use anyhow::{Context, Result};

use crate::cluster::LocalCluster;
use crate::server::ClusterServer;

/// The servers inside the node's mount namespace. While one of them runs, the other can enter the namespace again.
const OF_NODE: [&str; 2] = ["containerd", "kubelet"];

/// The command line of a server and its environment.
#[derive(Clone, Debug)]
pub(crate) struct ServerCommand {
    line: Vec<OsString>,
    environment: Vec<OsString>,
}

impl ServerCommand {
    /// How a process was started.
    fn of(pid: i32) -> Result<Self> {
        let words = |file: &str| -> Result<Vec<OsString>> {
            let text = fs::read(format!("/proc/{pid}/{file}"))?;
            let words = text
                .split(|byte| *byte == 0)
                .filter(|word| !word.is_empty());
            Ok(words
                .map(|word| OsString::from_vec(word.to_vec()))
                .collect())
        };
        Ok(Self {
            line: words("cmdline")?,
            environment: words("environ")?,
        })
    }
}

impl LocalCluster {
    /// Kills the server `name` and starts it again with the same command. It may have ended by itself since this last
    /// restarted it.
    ///
    /// # Errors
    /// If it does not run or cannot be started.
    pub fn restart(&mut self, name: &str) -> Result<()> {
        if self.is_alive(name) {
            let found = ServerCommand::of(self.pid(name)?);
            let found = found.with_context(|| format!("failed to read how {name} was started"))?;
            self.remember(name, found);
        }
        let remembered = self.remembered(name);
        let ServerCommand { line, environment } =
            remembered.with_context(|| format!("{name} does not run"))?;
        let mut command = if OF_NODE.contains(&name) {
            self.in_node_mounts(name, &line)?
        } else {
            let (program, arguments) = line.split_first().context("a program has a name")?;
            let mut command = Command::new(program);
            command.args(arguments);
            command
        };
        command.env_clear();
        for entry in environment {
            if let Some((key, value)) = entry.to_string_lossy().split_once('=') {
                command.env(key, value);
            }
        }
        self.kill(name);
        let log = self.folder().log(name);
        let server = ClusterServer::start(name, &mut command, &log)?;
        self.replace(server)
    }

    /// Whether the server `name` runs.
    #[must_use]
    pub fn is_alive(&self, name: &str) -> bool {
        let mut servers = self.started().iter();
        servers.any(|server| server.name == name && server.is_alive())
    }

    fn pid(&self, name: &str) -> Result<i32> {
        let mut servers = self.servers();
        let found = servers.find(|server| server.0 == name);
        found
            .map(|server| server.1)
            .with_context(|| format!("no {name} runs"))
    }

    /// A command in the node's mount namespace, which the node's other server keeps open.
    fn in_node_mounts(&self, name: &str, line: &[OsString]) -> Result<Command> {
        let other = OF_NODE.iter().find(|of_node| **of_node != name);
        let holder = self.pid(other.context("the node has two servers")?)?;
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--mount=/proc/{holder}/ns/mnt"))
            .arg("--")
            .args(line);
        Ok(command)
    }
}
