//! Apportion on a cluster in one step: the images of its programs, and the chart as the README installs it.
//!
//! A cluster of this machine has no network of pods and none of services, so the programs listen at the node, one of
//! each, and are told where the API server is. Those values are here; what else the chart does is its own.

use std::net::TcpListener;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::cluster::{LocalCluster, output};
use crate::image;

/// Where the chart is installed.
pub const NAMESPACE: &str = "apportion-system";
/// What it is called there.
pub const RELEASE: &str = "apportion";
/// Its programs.
pub const PROGRAMS: [&str; 3] = [
    "daemonset/apportion-agent",
    "deployment/apportion-scheduler",
    "deployment/apportion-webhook",
];
/// The agent's folder. In the usual one, the cluster's own simulated cards are served.
const STATE: &str = "/run/apportion/chart";
/// How long the programs may take to be ready, on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(180);

/// The ports of the node at which the programs listen.
#[derive(Clone, Copy, Debug)]
pub struct ProgramPorts {
    /// The agent's, for metrics.
    pub metrics: u16,
    /// The agent's, for the scheduler.
    pub agent: u16,
    /// The scheduler's.
    pub scheduler: u16,
    /// The webhook's, for the API server.
    pub webhook: u16,
    /// The webhook's, for metrics.
    pub health: u16,
}

impl ProgramPorts {
    /// Those of the chart, or others where they are taken.
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

/// What the chart has to be told on a cluster of this machine.
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
         tcp.port={agent},scheduler.port={scheduler},scheduler.replicas=1,scheduler.leaseDuration=3,\
         webhook.port={webhook},webhook.healthPort={health},webhook.url=https://127.0.0.1:{webhook},\
         webhook.hostNetwork=true,webhook.replicas=1,schedulerNames={{apportion-scheduler,kai-scheduler}}"
    )
}

/// Where the API server is, as values that must stay text.
#[must_use]
pub fn way_to(cluster: &LocalCluster) -> String {
    let apiserver = cluster.apiserver_port();
    format!(
        "env[0].name=KUBERNETES_SERVICE_HOST,env[0].value=127.0.0.1,\
         env[1].name=KUBERNETES_SERVICE_PORT,env[1].value={apiserver}"
    )
}

/// Installs Apportion, or the newly built programs where it is installed, and waits until pods with a share are let in.
/// `staged` is the tree of `cargo xtask build`, `more` are further arguments of helm.
///
/// # Errors
/// If a program does not become ready, with what its pods say.
pub fn install(cluster: &LocalCluster, staged: &Path, chart: &Path, more: &[String]) -> Result<()> {
    for image in image::released(staged)? {
        image::import(cluster, &image)?;
    }
    let is_there = helm(cluster, &["status"]).is_ok();
    let upgrade = ["upgrade", "--install", "--create-namespace"];
    let mut helm = cluster.helm_command();
    helm.args(upgrade).args(["--namespace", NAMESPACE, RELEASE]);
    helm.arg(chart);
    match is_there {
        true => helm.arg("--reuse-values"),
        false => {
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
        }
    };
    if is_there {
        stop_scheduler(cluster)?;
    }
    output(helm.args(more), "")?;
    if is_there {
        // The images have their old names, so nothing else tells the kubelet of them.
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

/// Ends the scheduler before its successor comes: the chart starts the new one first, and here both need the same port.
/// What helm does next starts it anew.
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

/// The programs that the values ask for, as kubectl names them.
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

/// Waits for the programs that the values ask for, for a node that gives shares, and for the webhook to be trusted.
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
