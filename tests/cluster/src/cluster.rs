//! A running cluster, as people and tests use it: its record, and `kubectl` for it.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::folder::ClusterFolder;
use crate::ports::ClusterPorts;
use crate::restart::ServerCommand;
use crate::server::ClusterServer;

/// Names the folder of a running cluster. `cargo xtask cluster test` sets it.
const CLUSTER: &str = "APPORTION_CLUSTER";

/// What was started, as stored in the folder.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClusterRecord {
    pub(crate) kubernetes: String,
    pub(crate) ports: ClusterPorts,
    pub(crate) gpus: u32,
    pub(crate) kubectl: PathBuf,
    pub(crate) crictl: PathBuf,
    pub(crate) ctr: PathBuf,
    pub(crate) helm: PathBuf,
    /// The containerd snapshotter.
    pub(crate) snapshotter: String,
    /// In the order of their start.
    pub(crate) servers: Vec<ClusterServer>,
}

impl ClusterRecord {
    /// The record of `folder`, if there is one and it can be read.
    pub(crate) fn read(folder: &ClusterFolder) -> Option<Self> {
        let text = fs::read(folder.record()).ok()?;
        serde_json::from_slice(&text).ok()
    }

    pub(crate) fn write(&self, folder: &ClusterFolder) -> Result<()> {
        let text = serde_json::to_string_pretty(self).context("failed to write the record")?;
        folder.write(&folder.record(), &text)
    }
}

/// The state of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterState {
    /// Every server runs.
    Up,
    /// Some servers run. These do not.
    Half(Vec<String>),
}

/// A cluster of which all servers were started.
#[derive(Debug)]
pub struct LocalCluster {
    folder: ClusterFolder,
    record: ClusterRecord,
    /// How the servers that were restarted had been started.
    commands: BTreeMap<String, ServerCommand>,
}

impl LocalCluster {
    pub(crate) fn new(folder: ClusterFolder, record: ClusterRecord) -> Self {
        Self {
            folder,
            record,
            commands: BTreeMap::new(),
        }
    }

    /// The cluster of `folder`, if it was started.
    #[must_use]
    pub fn at(folder: &ClusterFolder) -> Option<Self> {
        Some(Self::new(folder.clone(), ClusterRecord::read(folder)?))
    }

    /// The cluster that `APPORTION_CLUSTER` names, for tests.
    ///
    /// # Panics
    /// If it names none that runs.
    #[must_use]
    pub fn of_tests() -> Self {
        let path =
            env::var_os(CLUSTER).expect("no APPORTION_CLUSTER: run `cargo xtask cluster test`");
        let folder =
            ClusterFolder::new(Path::new(&path)).expect("APPORTION_CLUSTER names a folder");
        let cluster =
            Self::at(&folder).expect("APPORTION_CLUSTER names a cluster that was started");
        assert_eq!(
            cluster.state(),
            ClusterState::Up,
            "the cluster of APPORTION_CLUSTER"
        );
        cluster
    }

    /// The state of `folder`'s cluster.
    #[must_use]
    pub fn state(&self) -> ClusterState {
        let dead: Vec<String> = self
            .record
            .servers
            .iter()
            .filter(|server| !server.is_alive())
            .map(|server| server.name.clone())
            .collect();
        if dead.is_empty() {
            ClusterState::Up
        } else {
            ClusterState::Half(dead)
        }
    }

    pub(crate) fn snapshotter(&self) -> &str {
        &self.record.snapshotter
    }

    pub(crate) fn remember(&mut self, name: &str, command: ServerCommand) {
        self.commands.insert(name.to_owned(), command);
    }

    pub(crate) fn remembered(&self, name: &str) -> Option<ServerCommand> {
        self.commands.get(name).cloned()
    }

    /// Kills one of its servers.
    pub(crate) fn kill(&self, name: &str) {
        let mut servers = self.record.servers.iter();
        servers
            .find(|server| server.name == name)
            .map(ClusterServer::kill);
    }

    /// Records that a server was restarted.
    pub(crate) fn replace(&mut self, server: ClusterServer) -> Result<()> {
        let mut servers = self.record.servers.iter_mut();
        if let Some(old) = servers.find(|old| old.name == server.name) {
            *old = server;
        }
        self.record.write(&self.folder)
    }

    /// Records an additional server.
    pub(crate) fn add(&mut self, server: ClusterServer) -> Result<()> {
        self.record.servers.push(server);
        self.record.write(&self.folder)
    }

    pub(crate) fn started(&self) -> &[ClusterServer] {
        &self.record.servers
    }

    /// Its servers with their pids, in start order.
    pub fn servers(&self) -> impl Iterator<Item = (&str, i32)> {
        self.record
            .servers
            .iter()
            .map(|server| (server.name.as_str(), server.pid))
    }

    /// Its folder.
    #[must_use]
    pub fn folder(&self) -> &ClusterFolder {
        &self.folder
    }

    /// The name of the node with the kubelet.
    #[must_use]
    pub fn node(&self) -> String {
        self.folder.name().to_owned()
    }

    /// The version of Kubernetes.
    #[must_use]
    pub fn kubernetes(&self) -> &str {
        &self.record.kubernetes
    }

    /// How many simulated cards the machine has.
    #[must_use]
    pub fn gpus(&self) -> u32 {
        self.record.gpus
    }

    /// Where the API server listens on 127.0.0.1.
    #[must_use]
    pub fn apiserver_port(&self) -> u16 {
        self.record.ports.apiserver
    }

    /// Where etcd listens on 127.0.0.1.
    pub(crate) fn etcd_port(&self) -> u16 {
        self.record.ports.etcd
    }

    /// `kubectl` as this cluster's administrator.
    #[must_use]
    pub fn kubectl_command(&self) -> Command {
        let mut command = Command::new(&self.record.kubectl);
        command.env("KUBECONFIG", self.folder.kubeconfig());
        command
    }

    /// `helm` as this cluster's administrator.
    #[must_use]
    pub fn helm_command(&self) -> Command {
        let mut command = Command::new(&self.record.helm);
        command.env("KUBECONFIG", self.folder.kubeconfig());
        command
    }

    /// `crictl` on this cluster's containerd.
    #[must_use]
    pub fn crictl_command(&self) -> Command {
        let mut command = Command::new(&self.record.crictl);
        command.arg("--config").arg(self.folder.crictl());
        command
    }

    /// `ctr` on the containers of Kubernetes.
    #[must_use]
    pub fn ctr_command(&self) -> Command {
        let mut command = Command::new(&self.record.ctr);
        command
            .arg("--address")
            .arg(self.folder.containerd_socket())
            .args(["--namespace", "k8s.io"]);
        command
    }

    /// Runs `kubectl` and returns its output.
    ///
    /// # Errors
    /// If it fails, with its error output.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        output(self.kubectl_command().args(args), "")
    }

    /// Waits for the end of a namespace that is being deleted: it takes no new objects.
    ///
    /// # Errors
    /// If it is still there after two minutes, or `kubectl` fails.
    pub fn wait_for_deletion(&self, namespace: &str) -> Result<()> {
        let phase = "jsonpath={.status.phase}";
        let get = ["get", "namespace", namespace, "--ignore-not-found", "-o"];
        if self.kubectl(&[&get[..], &[phase]].concat())? == "Terminating" {
            let object = format!("namespace/{namespace}");
            self.kubectl(&["wait", "--for=delete", &object, "--timeout=120s"])?;
        }
        Ok(())
    }

    /// Applies one object.
    ///
    /// # Errors
    /// If `kubectl` refuses it, with its error output.
    pub fn apply(&self, object: &Value) -> Result<String> {
        output(
            self.kubectl_command().args(["apply", "-f", "-"]),
            &object.to_string(),
        )
    }
}

/// Runs `command` with `input`. Returns its output, or fails with its error output.
pub(crate) fn output(command: &mut Command, input: &str) -> Result<String> {
    let name = Path::new(command.get_program())
        .file_name()
        .unwrap_or_default()
        .to_owned();
    let name = name.display();
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("failed to start {name}"))?;
    // A program that does not read its input will report why, so a failed write is ignored.
    if let Some(mut stdin) = child.stdin.take() {
        let _ = stdin.write_all(input.as_bytes());
    }
    let done = child
        .wait_with_output()
        .with_context(|| format!("failed to wait for {name}"))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        bail!("{name} ended with {}: {}", done.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}
