//! Operators of other projects, as they are released: LeaderWorkerSet's controller and KubeRay's operator.
//!
//! Each is built from its Go module and runs beside the cluster, as the servers do. So it asks the API server as an
//! administrator; who tests its rights needs its own manifests. Its kinds come from the same module.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::Cluster;
use crate::binaries;
use crate::server::Server;

/// Their names among the servers.
const LWS: &str = "lws-controller";
const KUBERAY: &str = "kuberay-operator";
/// How long an operator may take to listen.
const PATIENCE: Duration = Duration::from_secs(60);
const GLANCE: Duration = Duration::from_millis(100);
/// The label of pods of a LeaderWorkerSet: its webhook is asked about these pods only, as in its own manifests.
const OF_SET: &str = "leaderworkerset.sigs.k8s.io/name";

/// Builds them from the folders of `modules`, installs their kinds and starts them, unless they run.
///
/// # Errors
/// If one cannot be built or does not start.
pub fn start(cluster: &mut Cluster, modules: &Path) -> Result<()> {
    let runs = |name: &str| cluster.servers().any(|(server, _)| server == name);
    let (has_sets, has_ray) = (runs(LWS), runs(KUBERAY));
    if !has_sets {
        leader_worker_set(cluster, modules)?;
    }
    if !has_ray {
        kuberay(cluster, modules)?;
    }
    Ok(())
}

fn leader_worker_set(cluster: &mut Cluster, modules: &Path) -> Result<()> {
    let source = source(&modules.join("lws"), "sigs.k8s.io/lws")?;
    let kinds = source.join("config/crd/bases");
    install(
        cluster,
        &kinds.join("leaderworkerset.x-k8s.io_leaderworkersets.yaml"),
    )?;
    let port = free_port()?;
    let folder = cluster.folder().path().join("lws");
    let (certificate, key) = (
        cluster.folder().certificate("operator"),
        cluster.folder().key("operator"),
    );
    for (from, to) in [(certificate, "tls.crt"), (key, "tls.key")] {
        cluster
            .folder()
            .write(&folder.join(to), &fs::read_to_string(from)?)?;
    }
    let config = json!({"apiVersion": "config.lws.x-k8s.io/v1alpha1", "kind": "Configuration",
        "internalCertManagement": {"enable": false}, "leaderElection": {"leaderElect": false},
        "webhook": {"host": "127.0.0.1", "port": port, "certDir": folder},
        "metrics": {"bindAddress": "0"}, "health": {"healthProbeBindAddress": "0"}});
    let file = folder.join("config.json");
    cluster.folder().write(&file, &config.to_string())?;
    let mut command = Command::new(binaries::operator(modules, "lws")?);
    command.arg("--config").arg(&file);
    begin(cluster, LWS, command)?;
    await_port(cluster, LWS, port)?;
    for configuration in webhooks(cluster, &source, port)? {
        cluster.apply(&configuration)?;
    }
    Ok(())
}

/// The configurations of its webhooks, at a port of this machine.
fn webhooks(cluster: &Cluster, source: &Path, port: u16) -> Result<Vec<Value>> {
    let authority = cluster.folder().certificate("ca");
    let file = format!("--from-file=ca={}", authority.display());
    let encode = [
        "create",
        "secret",
        "generic",
        "ca",
        &file,
        "--dry-run=client",
        "-o",
        "jsonpath={.data.ca}",
    ];
    let authority = cluster.kubectl(&encode)?;
    let path = source.join("config/webhook/manifests.yaml");
    let text =
        fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))?;
    let mut all = Vec::new();
    for document in serde_norway::Deserializer::from_str(&text) {
        let mut configuration = Value::deserialize(document)?;
        if !configuration["webhooks"].is_array() {
            continue;
        }
        let name = configuration["metadata"]["name"]
            .as_str()
            .unwrap_or_default();
        configuration["metadata"]["name"] = format!("lws-{name}").into();
        for webhook in configuration["webhooks"]
            .as_array_mut()
            .into_iter()
            .flatten()
        {
            let path = webhook["clientConfig"]["service"]["path"]
                .as_str()
                .unwrap_or_default();
            let is_for_pods = path.ends_with("-v1-pod");
            let url = format!("https://127.0.0.1:{port}{path}");
            webhook["clientConfig"] = json!({"url": url, "caBundle": authority.trim()});
            if is_for_pods {
                let has_label = json!({"key": OF_SET, "operator": "Exists"});
                webhook["objectSelector"] = json!({"matchExpressions": [has_label]});
            }
        }
        all.push(configuration);
    }
    Ok(all)
}

fn kuberay(cluster: &mut Cluster, modules: &Path) -> Result<()> {
    let source = source(
        &modules.join("kuberay"),
        "github.com/ray-project/kuberay/ray-operator",
    )?;
    for kind in ["rayclusters", "rayjobs", "rayservices"] {
        install(
            cluster,
            &source.join(format!("config/crd/bases/ray.io_{kind}.yaml")),
        )?;
    }
    let mut command = Command::new(binaries::operator(modules, "kuberay")?);
    command.args([
        "--metrics-addr=0",
        "--health-probe-bind-address=0",
        "--enable-leader-election=false",
    ]);
    // Its init container asks for the head's name, which nobody answers without a network of pods.
    command.env("ENABLE_INIT_CONTAINER_INJECTION", "false");
    begin(cluster, KUBERAY, command)
}

fn begin(cluster: &mut Cluster, name: &str, mut command: Command) -> Result<()> {
    command.env("KUBECONFIG", cluster.folder().kubeconfig());
    let log = cluster.folder().log(name);
    cluster.add(Server::start(name, &mut command, &log)?)
}

/// Some kinds are too large for what `kubectl apply` remembers.
fn install(cluster: &Cluster, kinds: &Path) -> Result<()> {
    let kinds = kinds.display().to_string();
    cluster.kubectl(&["apply", "--server-side", "-f", &kinds])?;
    let wait = ["wait", "--for=condition=Established", "-f", &kinds];
    let deadline = Instant::now() + PATIENCE;
    loop {
        // It fails where a kind has no conditions yet.
        match cluster.kubectl(&wait) {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() > deadline => return Err(error),
            Err(_) => sleep(GLANCE),
        }
    }
}

/// Downloads a module in the version that `folder` pins; says where it is.
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

/// Where Go keeps a module in the version that the folder `pinned_by` names.
///
/// # Errors
/// Go is missing, or does not have the module.
pub fn module(pinned_by: &Path, name: &str) -> Result<PathBuf> {
    let mut go = Command::new("go");
    go.current_dir(pinned_by)
        .args(["list", "-m", "-f", "{{.Dir}}", name]);
    let output = go.output().context("failed to start go")?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success() && !said.trim().is_empty(),
        "go list -m {name}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(said.trim().into())
}

fn await_port(cluster: &Cluster, name: &str, port: u16) -> Result<()> {
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
