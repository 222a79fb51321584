//! Starts a cluster: all of it, or nothing.
//!
//! Each server starts when those before it serve. If anything fails, Ctrl-C included, everything is stopped again. The
//! logs stay until the next `up`, and the error names the one to read.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::binaries::ClusterBinaries;
use crate::cluster::{ClusterRecord, ClusterState, LocalCluster, output};
use crate::down::{self, down};
use crate::folder::ClusterFolder;
use crate::interrupt::InterruptFlag;
use crate::leftovers;
use crate::ports::ClusterPorts;
use crate::server::ClusterServer;
use crate::servers::ServerCommands;
use crate::sysctls::SavedSysctls;
use crate::{
    certificates, containerd, image, kubeconfig, kubelet, mount_namespace, node, pods, snapshotter,
};

/// How long a server may take until it serves on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// The properties of a cluster to start.
#[derive(Clone, Debug)]
pub struct ClusterSpec {
    /// How many nodes without a kubelet there are, besides the real one.
    pub silent_nodes: u32,
    /// Whether [stand-ins](crate::stand_ins) are added later.
    pub stand_ins: bool,
    /// How many simulated cards the machine has.
    pub gpus: u32,
    /// The memory of each card, as the simulated driver reads it, such as `46068Mi`; otherwise its default.
    pub gpu_memory: Option<String>,
    /// The tree of `cargo xtask build`.
    pub staged: PathBuf,
    /// The folder with the victim programs.
    pub victims: PathBuf,
}

/// Starts the cluster of `folder`, unless it runs already.
///
/// # Errors
/// If a server does not start, with the end of its log. Nothing is left running then.
pub fn up(
    folder: &ClusterFolder,
    wanted: &ClusterSpec,
    binaries: &ClusterBinaries,
) -> Result<LocalCluster> {
    if let Some(cluster) =
        LocalCluster::at(folder).filter(|cluster| cluster.state() == ClusterState::Up)
    {
        return Ok(cluster);
    }
    down(folder)?;
    let start = ClusterStart {
        folder,
        wanted,
        binaries,
        interrupt: InterruptFlag::listen()?,
        record: ClusterRecord {
            kubernetes: binaries.kubernetes.clone(),
            ports: ClusterPorts::pick()?,
            gpus: wanted.gpus,
            kubectl: binaries.path("kubectl").into(),
            crictl: binaries.path("crictl").into(),
            ctr: binaries.path("ctr").into(),
            helm: binaries.path("helm").into(),
            snapshotter: String::new(),
            servers: Vec::new(),
        },
    };
    start.run().inspect_err(|_| down::stop(folder))
}

struct ClusterStart<'a> {
    folder: &'a ClusterFolder,
    wanted: &'a ClusterSpec,
    binaries: &'a ClusterBinaries,
    interrupt: InterruptFlag,
    record: ClusterRecord,
}

impl ClusterStart<'_> {
    fn run(mut self) -> Result<LocalCluster> {
        self.write_files()?;
        let plan = ServerCommands {
            folder: self.folder,
            ports: self.record.ports,
            binaries: self.binaries,
            has_silent_nodes: self.wanted.silent_nodes > 0 || self.wanted.stand_ins,
        };
        self.start("cards", self.cards())?;
        self.start("etcd", plan.etcd())?;
        self.start("kube-apiserver", plan.apiserver())?;
        let containerd = self.start("containerd", plan.containerd())?;
        let mut cluster = self.cluster()?;
        self.wait("kube-apiserver", || {
            Ok(cluster.kubectl(&["get", "--raw", "/readyz"]).is_ok())
        })?;
        pods::adapt(&cluster)?;
        self.start("kube-controller-manager", plan.controller_manager())?;
        self.start("kube-scheduler", plan.scheduler())?;
        self.wait("containerd", || {
            Ok(output(cluster.ctr_command().arg("version"), "").is_ok())
        })?;
        image::load(&cluster, self.wanted)?;

        node::announce(&cluster)?;
        // Dropped at the end of this function, which reverts what the kubelet changes when it starts.
        let _found = SavedSysctls::remember();
        self.start("kubelet", plan.kubelet(containerd))?;
        self.wait("kubelet", || node::is_ready(&cluster))?;
        node::add_silent(&cluster, self.wanted.silent_nodes)?;
        self.wait("kube-controller-manager", || {
            Ok(cluster
                .kubectl(&["get", "serviceaccount", "default"])
                .is_ok())
        })?;
        cluster = self.cluster()?;
        Ok(cluster)
    }

    fn write_files(&mut self) -> Result<()> {
        let (folder, ports) = (self.folder, &self.record.ports);
        let logs = folder.path().join("logs");
        fs::create_dir_all(&logs).with_context(|| format!("failed to make {}", logs.display()))?;
        mount_namespace::prepare(folder)?;
        self.record.snapshotter = snapshotter::choose(folder).into();
        leftovers::make_control_groups(folder)?;
        certificates::make(folder)?;
        kubeconfig::write(folder, ports, "admin", &folder.kubeconfig())?;
        for name in ["kube-controller-manager", "kube-scheduler", "kubelet"] {
            kubeconfig::write(folder, ports, name, &kubeconfig::of_server(folder, name))?;
        }
        let shim = self.binaries.path("containerd-shim-runc-v2");
        containerd::write(folder, shim, &self.record.snapshotter)?;
        kubelet::write(folder, ports)
    }

    fn cards(&self) -> Command {
        let mut command = Command::new(self.wanted.staged.join("lib/apportion/apportion-simd"));
        command.arg("--socket").arg(self.folder.cards());
        command.args(["--gpus", &self.wanted.gpus.to_string()]);
        if let Some(memory) = &self.wanted.gpu_memory {
            command.args(["--gpu-memory", memory]);
        }
        command
    }

    /// Starts one server and records it at once, so that `down` finds it even if this process is killed.
    fn start(&mut self, name: &str, mut command: Command) -> Result<i32> {
        self.interrupt.check()?;
        let server = ClusterServer::start(name, &mut command, &self.folder.log(name))?;
        let pid = server.pid;
        self.record.servers.push(server);
        self.record.write(self.folder)?;
        Ok(pid)
    }

    /// Waits until `seen` is true. All servers must stay alive meanwhile.
    fn wait(&self, name: &str, mut seen: impl FnMut() -> Result<bool>) -> Result<()> {
        let served = self
            .interrupt
            .wait(PATIENCE, &format!("{name} did not serve"), || {
                for server in &self.record.servers {
                    if !server.is_alive() {
                        bail!(
                            "{} ended\n{}",
                            server.name,
                            end_of(&self.folder.log(&server.name))
                        );
                    }
                }
                seen()
            });
        served.with_context(|| {
            format!(
                "failed to start {name}; its log is {}",
                self.folder.log(name).display()
            )
        })
    }

    fn cluster(&self) -> Result<LocalCluster> {
        let record = ClusterRecord::read(self.folder).context("the record was just written")?;
        Ok(LocalCluster::new(self.folder.clone(), record))
    }
}

/// The last lines of a log.
fn end_of(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(8)..].join("\n")
}
