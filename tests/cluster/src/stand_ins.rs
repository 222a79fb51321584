//! Nodes with agents and simulated GPUs but without containers. The agents are real, and one program stands in for
//! their kubelets. So one machine has as many nodes as a scheduling test needs, and pods on them cost nothing.
//!
//! Each node has a folder with the sockets of its driver and its agent. The agent gets a token of the chart's service
//! account bound to its node, as a DaemonSet's pod would.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::cluster::LocalCluster;
use crate::node;
use crate::server::ClusterServer;

/// One node to create.
#[derive(Clone, Debug)]
pub struct StandInNode {
    /// Its name.
    pub name: String,
    /// The number of its simulated GPUs. A node without any has no agent.
    pub gpus: u32,
    /// The memory of each of them, in MiB.
    pub gpu_memory: u32,
    /// Its other capacity: `cpu`, `memory` and so on.
    pub capacity: Vec<(&'static str, String)>,
    /// Its labels besides its name and system.
    pub labels: Vec<(&'static str, String)>,
}

/// The agents' service account.
#[derive(Clone, Copy, Debug)]
pub struct AgentServiceAccount<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
}

/// The name of the stand-in for kubelets in the list of servers.
pub const KUBELET: &str = "stand-in-kubelet";
/// How many slots a node offers.
const SLOTS: &str = "128";
/// The lifetime of an agent's token.
const TOKEN: &str = "--duration=24h";
/// Agents poll less often than usual, since nothing allocates.
const TICK: &str = "2000";

/// Creates the nodes and starts their agents and drivers. `staged` is the tree of `cargo xtask build`, `kubelet` the
/// program that stands in for the kubelets.
///
/// # Errors
/// If the API server refuses something or a program does not start.
pub fn start(
    cluster: &mut LocalCluster,
    nodes: &[StandInNode],
    account: AgentServiceAccount<'_>,
    staged: &Path,
    kubelet: &Path,
) -> Result<()> {
    for one in nodes {
        write(cluster, one)?;
    }
    for one in nodes.iter().filter(|one| one.gpus > 0) {
        let folder = cluster.folder().path().join("stand-ins").join(&one.name);
        fs::create_dir_all(&folder)
            .with_context(|| format!("failed to make {}", folder.display()))?;
        let socket = folder.join("driver.sock");
        let mut driver = Command::new(staged.join("lib/apportion/apportion-simd"));
        driver.arg("--socket").arg(&socket);
        driver.arg("--config").arg(machine(cluster, one, &folder)?);
        begin(cluster, &format!("driver-of-{}", one.name), driver)?;
        let kubeconfig = credentials(cluster, one, account, &folder)?;
        let mut agent = Command::new(staged.join("bin/apportion-agent"));
        agent
            .arg("--dir")
            .arg(&folder)
            .args(["--node-name", &one.name, "--listen", "127.0.0.1:0"])
            .args(["--metrics-address", "127.0.0.1:0", "--tick", TICK])
            .args(["--context-reserve", "0"])
            .env("KUBECONFIG", kubeconfig)
            .env("LD_LIBRARY_PATH", staged.join("lib/apportion/sim"))
            .env("APPORTION_SIM_SOCKET", &socket);
        begin(cluster, &format!("agent-of-{}", one.name), agent)?;
    }
    let mut command = Command::new(kubelet);
    command.args(nodes.iter().flat_map(|one| ["--node", &one.name]));
    command.env("KUBECONFIG", cluster.folder().kubeconfig());
    begin(cluster, KUBELET, command)
}

/// Starts another program that uses the API server as administrator. It ends with the cluster.
///
/// # Errors
/// If it does not start.
pub fn start_beside(cluster: &mut LocalCluster, name: &str, program: &Path) -> Result<()> {
    let mut command = Command::new(program);
    command.env("KUBECONFIG", cluster.folder().kubeconfig());
    begin(cluster, name, command)
}

fn begin(cluster: &mut LocalCluster, name: &str, mut command: Command) -> Result<()> {
    let log = cluster.folder().log(name);
    cluster.add(ClusterServer::start(name, &mut command, &log)?)
}

fn write(cluster: &LocalCluster, one: &StandInNode) -> Result<()> {
    let mut capacity = serde_json::Map::new();
    for (name, much) in &one.capacity {
        capacity.insert((*name).to_owned(), json!(much));
    }
    if one.gpus > 0 {
        capacity.insert("nvidia.com/gpu".into(), json!(one.gpus.to_string()));
        capacity.insert("apportion.dev/gpu-slot".into(), json!(SLOTS));
    }
    let labels = one.labels.iter();
    let labels: Value = labels
        .map(|(name, value)| ((*name).to_owned(), json!(value)))
        .collect::<serde_json::Map<_, _>>()
        .into();
    node::add(cluster, &one.name, &json!({}), &labels, &capacity.into())
}

/// Writes the configuration of a node's simulated driver. All GPUs of the cluster have different UUIDs.
fn machine(cluster: &LocalCluster, one: &StandInNode, folder: &Path) -> Result<PathBuf> {
    let gpu = |index: u32| {
        let digest = Sha256::digest(format!("{} {index}", one.name));
        let hex: String = digest[..16]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let [a, b, c, d, e] = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &hex[part]);
        json!({"uuid": format!("GPU-{a}-{b}-{c}-{d}-{e}"), "memory": u64::from(one.gpu_memory) << 20})
    };
    let gpus: Vec<Value> = (0..one.gpus).map(gpu).collect();
    let path = folder.join("machine.json");
    let machine = json!({"driver": "580", "cards": gpus, "rules": []});
    cluster.folder().write(&path, &machine.to_string())?;
    Ok(path)
}

/// Writes the credentials with which a node's agent uses the API server.
fn credentials(
    cluster: &LocalCluster,
    one: &StandInNode,
    account: AgentServiceAccount<'_>,
    folder: &Path,
) -> Result<PathBuf> {
    let token = cluster.kubectl(&[
        "create",
        "token",
        account.name,
        "--namespace",
        account.namespace,
        "--bound-object-kind=Node",
        "--bound-object-name",
        &one.name,
        TOKEN,
    ])?;
    let path = folder.join("kubeconfig");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "agent",
        "clusters": [{"name": "cluster", "cluster": {
            "server": format!("https://127.0.0.1:{}", cluster.apiserver_port()),
            "certificate-authority": cluster.folder().certificate("ca"),
        }}],
        "users": [{"name": "agent", "user": {"token": token.trim()}}],
        "contexts": [{"name": "agent", "context": {"cluster": "cluster", "user": "agent",
            "namespace": account.namespace}}],
    });
    cluster.folder().write(&path, &config.to_string())?;
    Ok(path)
}
