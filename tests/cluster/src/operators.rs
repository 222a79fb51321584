//! Released operators of other projects: JobSet, Kubeflow's training operator, LeaderWorkerSet, KubeRay, and Kueue. And
//! KAI Scheduler, from a checkout.
//!
//! Each is built from its Go module and runs beside the cluster, like the servers. It uses the API server as an
//! administrator, so a test of its permissions needs its own manifests. Its CRDs come from the same module.

mod jobset;
mod kai;
mod kai_checkout;
mod kuberay;
mod kueue;
mod lws;
mod private_files;
mod training;
mod webhooks;

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::LocalCluster;
use crate::binaries;
use crate::server::ClusterServer;

pub use kai::KaiScheduler;
pub use kai_checkout::KaiCheckout;
pub use kueue::CLAIMED_MEMORY;

/// How long an operator may take until it listens.
const PATIENCE: Duration = Duration::from_secs(60);
const GLANCE: Duration = Duration::from_millis(100);

/// An operator.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WorkloadOperator {
    /// JobSet's controller.
    JobSet,
    /// KubeRay's operator.
    KubeRay,
    /// Kueue's controller, for Jobs and plain pods.
    Kueue,
    /// LeaderWorkerSet's controller.
    LeaderWorkerSet,
    /// Kubeflow's training operator.
    Training,
}

impl WorkloadOperator {
    /// Its name in the list of servers, which is its program's name.
    fn server(self) -> &'static str {
        match self {
            Self::JobSet => "jobset-controller",
            Self::KubeRay => "kuberay-operator",
            Self::Kueue => "kueue-controller",
            Self::LeaderWorkerSet => "lws-controller",
            Self::Training => "training-operator",
        }
    }

    /// The folder of its `go.mod`.
    fn folder(self) -> &'static str {
        match self {
            Self::JobSet => "jobset",
            Self::KubeRay => "kuberay",
            Self::Kueue => "kueue",
            Self::LeaderWorkerSet => "lws",
            Self::Training => "training-operator",
        }
    }

    /// Its Go module.
    fn module(self) -> &'static str {
        match self {
            Self::JobSet => "sigs.k8s.io/jobset",
            Self::KubeRay => "github.com/ray-project/kuberay/ray-operator",
            Self::Kueue => "sigs.k8s.io/kueue",
            Self::LeaderWorkerSet => "sigs.k8s.io/lws",
            Self::Training => "github.com/kubeflow/training-operator",
        }
    }
}

/// Builds operators from the folders of `modules`, installs their CRDs and starts them, unless they run already.
///
/// # Errors
/// If one cannot be built or does not start.
pub fn start(
    cluster: &mut LocalCluster,
    modules: &Path,
    operators: &[WorkloadOperator],
) -> Result<()> {
    for &operator in operators {
        if cluster.servers().any(|(name, _)| name == operator.server()) {
            continue;
        }
        let start = match operator {
            WorkloadOperator::JobSet => jobset::start,
            WorkloadOperator::KubeRay => kuberay::start,
            WorkloadOperator::Kueue => kueue::start,
            WorkloadOperator::LeaderWorkerSet => lws::start,
            WorkloadOperator::Training => training::start,
        };
        let starting = OperatorStart {
            cluster,
            modules,
            operator,
        };
        start(starting).with_context(|| format!("{} did not start", operator.server()))?;
    }
    Ok(())
}

/// An operator that is being started.
struct OperatorStart<'c> {
    cluster: &'c mut LocalCluster,
    modules: &'c Path,
    operator: WorkloadOperator,
}

impl OperatorStart<'_> {
    /// The path of its module's source.
    fn source(&self) -> Result<PathBuf> {
        source(
            &self.modules.join(self.operator.folder()),
            self.operator.module(),
        )
    }

    /// The operator's program.
    fn program(&self) -> Result<PathBuf> {
        binaries::operator(self.modules, self.operator.folder())
    }

    /// The folder for its files, inside the cluster's.
    fn folder(&self) -> PathBuf {
        self.cluster.folder().path().join(self.operator.folder())
    }

    /// Writes the certificate of its webhooks like a mounted TLS Secret. Returns the folder.
    fn certificate(&self) -> Result<PathBuf> {
        write_certificate(self.cluster, self.folder())
    }

    /// Writes a configuration in the form of Kubernetes SIGs' controllers: webhooks at `port` with the certificate from
    /// the folder, and no metrics, health checks or leader election. `more` has settings that only this operator needs.
    fn configure(
        &self,
        api_version: &str,
        port: u16,
        certificate: &Path,
        more: &Value,
    ) -> Result<PathBuf> {
        let mut settings = json!({"apiVersion": api_version, "kind": "Configuration",
            "internalCertManagement": {"enable": false}, "leaderElection": {"leaderElect": false},
            "webhook": {"host": "127.0.0.1", "port": port, "certDir": certificate},
            "metrics": {"bindAddress": "0"}, "health": {"healthProbeBindAddress": "0"}});
        for (field, value) in more.as_object().into_iter().flatten() {
            settings[field] = value.clone();
        }
        let file = self.folder().join("config.json");
        self.cluster.folder().write(&file, &settings.to_string())?;
        Ok(file)
    }

    /// Installs its CRDs, from a file or a folder.
    fn install(&self, kinds: &Path) -> Result<()> {
        install(self.cluster, kinds)
    }

    fn begin(&mut self, mut command: Command) -> Result<()> {
        let name = self.operator.server();
        command.env("KUBECONFIG", self.cluster.folder().kubeconfig());
        let log = self.cluster.folder().log(name);
        self.cluster
            .add(ClusterServer::start(name, &mut command, &log)?)
    }

    fn await_port(&self, port: u16) -> Result<()> {
        await_port(self.cluster, self.operator.server(), port)
    }
}

/// Writes the certificate for webhooks on this machine into a folder.
fn write_certificate(cluster: &LocalCluster, folder: PathBuf) -> Result<PathBuf> {
    let files = cluster.folder();
    for (from, to) in [
        (files.certificate("operator"), "tls.crt"),
        (files.key("operator"), "tls.key"),
    ] {
        files.write(&folder.join(to), &fs::read_to_string(from)?)?;
    }
    Ok(folder)
}

/// Installs CRDs with a server-side apply. Some are too large for the annotation of `kubectl apply`.
fn install(cluster: &LocalCluster, kinds: &Path) -> Result<()> {
    let kinds = kinds.display().to_string();
    cluster.kubectl(&["apply", "--server-side", "-f", &kinds])?;
    let wait = ["wait", "--for=condition=Established", "-f", &kinds];
    let deadline = Instant::now() + PATIENCE;
    loop {
        // `kubectl wait` fails if a CRD has no conditions yet.
        match cluster.kubectl(&wait) {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() > deadline => return Err(error),
            Err(_) => sleep(GLANCE),
        }
    }
}

/// Downloads a module in the version that `folder` pins. Returns its path.
fn source(folder: &Path, name: &str) -> Result<PathBuf> {
    let mut go = Command::new("go");
    go.current_dir(folder).args(["mod", "download", name]);
    let status = go.status().context("failed to start go")?;
    ensure!(
        status.success(),
        "go mod download {name} ended with {status}"
    );
    module(folder, name)
}

/// The path of a module in Go's cache, in the version that the folder `pinned_by` pins. Downloads it if it is missing.
///
/// # Errors
/// If Go is missing or cannot find the module.
pub fn module(pinned_by: &Path, name: &str) -> Result<PathBuf> {
    let mut go = Command::new("go");
    go.current_dir(pinned_by)
        .args(["mod", "download", "-json", name]);
    let output = go.output().context("failed to start go")?;
    let said: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let folder = said["Dir"].as_str().filter(|_| output.status.success());
    let folder = folder.with_context(|| {
        let problem = String::from_utf8_lossy(&output.stderr);
        format!("go mod download {name}: {problem}{}", said["Error"])
    })?;
    Ok(folder.into())
}

fn await_port(cluster: &LocalCluster, name: &str, port: u16) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        let log = cluster.folder().log(name);
        ensure!(
            Instant::now() < deadline,
            "{name} does not listen; see {}",
            log.display()
        );
        sleep(GLANCE);
    }
    Ok(())
}

fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("failed to find a free port")?;
    Ok(listener.local_addr()?.port())
}
