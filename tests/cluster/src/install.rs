//! Installs Apportion on a cluster in one step: the images of its programs, and the chart as in the README.
//!
//! A local cluster has no pod network and no service network. So the programs listen at the node, one replica each, and
//! are given the API server's address. Those values are here; all others are the chart's defaults.

use std::net::TcpListener;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::cluster::{LocalCluster, output};
use crate::image;

/// The namespace of the chart.
pub const NAMESPACE: &str = "apportion-system";
/// The name of the release.
pub const RELEASE: &str = "apportion";
/// The programs of the chart.
pub const PROGRAMS: [&str; 3] = [
    "daemonset/apportion-agent",
    "deployment/apportion-scheduler",
    "deployment/apportion-webhook",
];
/// The agent's folder. In the default one, the cluster serves its own simulated cards.
const STATE: &str = "/run/apportion/chart";
/// How long the programs may take to be ready on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// The ports on which the programs listen at the node.
#[derive(Clone, Copy, Debug)]
pub struct ProgramPorts {
    /// The agent's metrics.
    pub metrics: u16,
    /// The agent's port for the scheduler.
    pub agent: u16,
    /// The scheduler's.
    pub scheduler: u16,
    /// The webhook's port for the API server.
    pub webhook: u16,
    /// The webhook's metrics.
    pub health: u16,
}

impl ProgramPorts {
    /// The chart's default ports. A port that is taken is replaced by a free one.
    fn usual() -> Result<Self> {
        Ok(Self {
            metrics: free_or_other(9408)?,
            agent: free_or_other(9407)?,
            scheduler: free_or_other(9409)?,
            webhook: free_or_other(9443)?,
            health: free_or_other(9444)?,
        })
    }
}

fn free_or_other(port: u16) -> Result<u16> {
    let usual = TcpListener::bind(("0.0.0.0", port));
    let listener = match usual {
        Ok(listener) => listener,
        Err(_) => TcpListener::bind("0.0.0.0:0").context("no port is free")?,
    };
    Ok(listener.local_addr()?.port())
}

/// The chart's values for a local cluster.
#[must_use]
pub fn values(state: &str, ports: ProgramPorts) -> String {
    let ProgramPorts {
        metrics,
        agent,
        scheduler,
        webhook,
        health,
    } = ports;
    format!(
        "stateDir={state},hostNetwork=true,image.pullPolicy=Never,metrics.port={metrics},\
         tcp.port={agent},scheduler.port={scheduler},scheduler.replicas=1,scheduler.leaderElection=false,\
         webhook.port={webhook},webhook.healthPort={health},webhook.url=https://127.0.0.1:{webhook},\
         webhook.hostNetwork=true,webhook.replicas=1,schedulerNames={{apportion-scheduler,kai-scheduler}}"
    )
}

/// The API server's address, as values that must be strings.
#[must_use]
pub fn way_to(cluster: &LocalCluster) -> String {
    let apiserver = cluster.apiserver_port();
    format!(
        "env[0].name=KUBERNETES_SERVICE_HOST,env[0].value=127.0.0.1,\
         env[1].name=KUBERNETES_SERVICE_PORT,env[1].value={apiserver}"
    )
}

/// Installs Apportion, or replaces the programs of an existing release by newly built ones. Waits until pods with a
/// share are admitted. `staged` is the tree of `cargo xtask build`, `more` are additional arguments for helm.
///
/// # Errors
/// If a program does not become ready, with the state of its pods.
pub fn install(cluster: &LocalCluster, staged: &Path, chart: &Path, more: &[String]) -> Result<()> {
    for image in image::released(staged)? {
        image::import(cluster, &image)?;
    }
    cluster.wait_for_deletion(NAMESPACE)?;
    let is_there = helm(cluster, &["status"]).is_ok();
    let upgrade = ["upgrade", "--install", "--create-namespace"];
    let mut helm = cluster.helm_command();
    helm.args(upgrade).args(["--namespace", NAMESPACE, RELEASE]);
    helm.arg(chart);
    if is_there {
        helm.arg("--reuse-values")
    } else {
        let values = values(STATE, ProgramPorts::usual()?);
        let cards = format!("simulatedGpus={}", cluster.gpus());
        helm.args([
            "--set",
            &values,
            "--set",
            &cards,
            "--set-string",
            &way_to(cluster),
        ])
    };
    if is_there {
        stop_scheduler(cluster)?;
    }
    output(helm.args(more), "")?;
    if is_there {
        // The images keep their names, so the kubelet does not notice that they changed.
        for program in installed(cluster)? {
            if program.ends_with("/apportion-scheduler") {
                continue;
            }
            let restart = ["rollout", "restart", &program, "--namespace", NAMESPACE];
            cluster.kubectl(&restart)?;
        }
    }
    await_all(cluster).with_context(|| {
        let pods = ["get", "pods,events", "--namespace", NAMESPACE];
        cluster.kubectl(&pods).unwrap_or_default()
    })
}

/// Stops the scheduler before the upgrade: the chart starts the new one first, and here both need the same port. The
/// helm upgrade starts it again.
fn stop_scheduler(cluster: &LocalCluster) -> Result<()> {
    let mut programs = installed(cluster)?;
    programs.retain(|program| program.ends_with("/apportion-scheduler"));
    for program in programs {
        for action in [["scale", "--replicas=0"], ["rollout", "restart"]] {
            cluster.kubectl(&[&action[..], &[&program, "--namespace", NAMESPACE]].concat())?;
        }
    }
    let selector = "app.kubernetes.io/name=apportion-scheduler";
    let timeout = format!("--timeout={}s", PATIENCE.as_secs());
    let gone = [
        "wait",
        "--for=delete",
        "pods",
        "-l",
        selector,
        "-n",
        NAMESPACE,
        &timeout,
    ];
    cluster.kubectl(&gone).map(drop)
}

/// The programs that the values enable, as kubectl names them.
fn installed(cluster: &LocalCluster) -> Result<Vec<String>> {
    let get = [
        "get",
        "daemonsets,deployments",
        "--namespace",
        NAMESPACE,
        "-o",
        "name",
    ];
    let names = cluster.kubectl(&get)?;
    Ok(names.lines().map(str::to_owned).collect())
}

/// Waits for the enabled programs, for a node that offers shares, and for a trusted webhook.
fn await_all(cluster: &LocalCluster) -> Result<()> {
    let timeout = format!("--timeout={}s", PATIENCE.as_secs());
    for program in installed(cluster)? {
        let rollout = [
            "rollout",
            "status",
            &program,
            "--namespace",
            NAMESPACE,
            &timeout,
        ];
        cluster.kubectl(&rollout)?;
    }
    let node = format!("gpunode/{}", cluster.node());
    until("the node's GPUs are known", || {
        let ready = ["wait", "--for=condition=Ready", &node, "--timeout=5s"];
        cluster.kubectl(&ready).map(drop)
    })?;
    let share = serde_json::json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"generateName": "share-", "annotations": {"gpu-memory": "2000"}},
        "spec": {"schedulerName": "apportion-scheduler", "containers": [{"name": "main", "image": "none"}]}});
    until("a pod with a share is let in", || {
        let mut create = cluster.kubectl_command();
        create.args(["create", "--dry-run=server", "-f", "-"]);
        output(&mut create, &share.to_string()).map(drop)
    })
}

fn until(what: &str, mut reached: impl FnMut() -> Result<()>) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match reached() {
            Ok(()) => return Ok(()),
            Err(error) if Instant::now() > deadline => {
                bail!("not within {PATIENCE:?}: {what}: {error:#}");
            }
            Err(_) => thread::sleep(Duration::from_millis(500)),
        }
    }
}

fn helm(cluster: &LocalCluster, args: &[&str]) -> Result<String> {
    let mut helm = cluster.helm_command();
    output(
        helm.args(args).args([RELEASE, "--namespace", NAMESPACE]),
        "",
    )
}
