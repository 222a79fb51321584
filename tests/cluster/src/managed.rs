//! A node that the agent manages, for the suites: the agent as a process in the node's room, on simulated
//! cards, and pods with shares on it.
//!
//! The agent places pods by itself unless it is told otherwise, so that a suite needs nothing but it. What it says is read as people
//! read it: from the node, the pods' events, its metrics and its log.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use crate::cluster::LocalCluster;
use crate::http;
use crate::image;
use crate::nvidia::{self, InstalledDriver};
use crate::wait::eventually;

mod claims;
mod pod;

pub use claims::{DEVICE_CLASS, by_claim, device_class, template};
pub use pod::{ManagedPod, is_rejection};

/// A binary mebibyte.
pub const MIB: u64 = 1 << 20;
/// What each pod's share is.
pub const LIMIT: u64 = 2000 * MIB;
const SLOTS: u16 = 8;
/// Where the simulated driver listens, as seen on the node.
const DRIVER_SOCKET: &str = "/run/apportion/sim/driver.sock";

/// One agent at a time: the node has one kubelet.
static TURN: Mutex<()> = Mutex::new(());

/// Which driver the agent finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NodeDriver {
    /// Simulated GPUs, as by `--sim`: the agent brings the driver into containers.
    Simulated,
    /// The simulated driver, installed as a real one is: [`InstalledDriver`].
    Installed,
}

/// A node whose agent runs. It ends with the test.
pub struct ManagedNode {
    /// The cluster of the node.
    pub cluster: LocalCluster,
    agent: Option<Child>,
    driver: NodeDriver,
    slots: String,
    _turn: MutexGuard<'static, ()>,
}

impl ManagedNode {
    /// A node with an agent as people start it, and with `options` more.
    #[must_use]
    #[track_caller]
    pub fn with(options: &[&str]) -> Self {
        Self::with_slots(SLOTS, options)
    }

    /// The same with another number of slots than the few that most suites need.
    #[must_use]
    #[track_caller]
    pub fn with_slots(slots: u16, options: &[&str]) -> Self {
        Self::start(NodeDriver::Simulated, slots, options)
    }

    /// A node whose agent finds `_driver`, like a real one, and does not know that it is simulated.
    #[must_use]
    #[track_caller]
    pub fn with_driver(_driver: &InstalledDriver, options: &[&str]) -> Self {
        Self::start(NodeDriver::Installed, SLOTS, options)
    }

    #[track_caller]
    fn start(driver: NodeDriver, slots: u16, options: &[&str]) -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let mut node = Self {
            cluster: LocalCluster::of_tests(),
            agent: None,
            driver,
            slots: slots.to_string(),
            _turn: turn,
        };
        let _ = fs::remove_file(node.log());
        node.start_agent(options);
        node
    }

    /// Starts an agent in the node's room and waits until the node offers slots.
    #[track_caller]
    pub fn start_agent(&mut self, options: &[&str]) {
        // What the node says of an agent before is not taken for this one's word: the kubelet refuses pods
        // for good while nobody answers for its devices.
        eventually("the node offers nothing", || self.offered() != self.slots);
        self.spawn_agent(options);
        self.offers_slots();
    }

    /// Waits until the node has all of its slots to give.
    #[track_caller]
    pub fn offers_slots(&self) {
        eventually("the node offers slots", || self.offered() == self.slots);
    }

    /// Starts an agent and does not wait for it.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn spawn_agent(&mut self, options: &[&str]) {
        let log = File::options().create(true).append(true).open(self.log());
        let mut command = self.agent_command();
        command
            .args(["--slots", &self.slots])
            .args(["--metrics-address", "127.0.0.1:0", "--log-format", "json"])
            .args(options)
            .stderr(log.expect("the folder is writable"));
        if !options.contains(&"--unplaced") {
            command.args(["--unplaced", "local-fit"]);
        }
        self.agent = Some(command.spawn().expect("util-linux is there"));
    }

    /// A program of the staged tree in the node's mount namespace, with the simulated driver.
    ///
    /// # Panics
    /// If nothing was staged.
    #[must_use]
    pub fn in_node(&self, program: &str) -> Command {
        let mut command = self.enter(program);
        command.env("APPORTION_SIM_SOCKET", DRIVER_SOCKET);
        command
    }

    fn enter(&self, program: &str) -> Command {
        let mut servers = self.cluster.servers();
        let (_, holder) = servers
            .find(|server| server.0 == "containerd")
            .expect("it runs");
        let staged = std::env::var_os("APPORTION_STAGED").map(PathBuf::from);
        let staged = staged.expect("the tree is named");
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--mount=/proc/{holder}/ns/mnt"))
            .arg("--")
            .arg(staged.join("bin").join(program))
            .stdin(Stdio::null());
        command
    }

    fn agent_command(&self) -> Command {
        let mut command = self.enter("apportion-agent");
        command
            .args(["--kubelet-dir", "/var/lib/kubelet"])
            .args(["--cdi-dir", "/run/cdi"])
            .args(["--node-name", &self.cluster.node()])
            .env("KUBECONFIG", self.cluster.folder().kubeconfig());
        match self.driver {
            NodeDriver::Simulated => command
                .arg("--sim")
                .env("APPORTION_SIM_SOCKET", DRIVER_SOCKET),
            NodeDriver::Installed => command
                .args([
                    "--dir",
                    "/run/apportion/installed",
                    "--dev-root",
                    nvidia::ROOT,
                ])
                .arg("--nvml-library")
                .arg(format!("{}/usr/lib64/libnvidia-ml.so.1", nvidia::ROOT)),
        };
        command
    }

    /// How many slots the node has to give.
    fn offered(&self) -> String {
        let path = "jsonpath={.status.allocatable.apportion\\.dev/gpu-slot}";
        self.kubectl(&["get", "node", &self.cluster.node(), "-o", path])
    }

    /// The agent's process.
    ///
    /// # Panics
    /// If none runs.
    #[must_use]
    pub fn agent_pid(&self) -> u32 {
        self.agent.as_ref().expect("an agent runs").id()
    }

    /// Kills the agent, as a crash does.
    pub fn kill_agent(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }

    /// Kills a server of the node and starts it again.
    ///
    /// # Panics
    /// If that fails.
    pub fn restart(&mut self, server: &str) {
        let restarted = self.cluster.restart(server);
        restarted.expect("it starts as it did before");
    }

    /// What every agent of this test has logged: one object of JSON a line.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.cluster.folder().log("test-agent")
    }

    /// Whether the runtime resolves CDI devices, as the agent has found it.
    #[must_use]
    pub fn has_cdi(&self) -> bool {
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        log.contains("\"has_cdi\":true")
    }

    /// The instance of the agent, as seen from outside of the node's room.
    #[must_use]
    pub fn instance(&self) -> PathBuf {
        let folder = match self.driver {
            NodeDriver::Simulated => "apportion/sim",
            NodeDriver::Installed => "apportion/installed",
        };
        self.cluster.folder().path().join(folder)
    }

    /// What `kubectl` prints; nothing where it fails.
    #[must_use]
    pub fn kubectl(&self, args: &[&str]) -> String {
        self.cluster.kubectl(args).unwrap_or_default()
    }

    /// The sum of the series whose line begins with `series` and has all `labels`, such as `pod="a"`.
    #[must_use]
    pub fn metric(&self, series: &str, labels: &[&str]) -> Option<f64> {
        let address = fs::read_to_string(self.instance().join("metrics.addr")).ok()?;
        http::sum(&http::metrics(address.trim())?, series, labels)
    }

    /// A container that holds a slot and runs `script`.
    #[must_use]
    pub fn container(name: &str, script: &str) -> Value {
        json!({
            "name": name,
            "image": image::VICTIM,
            "imagePullPolicy": "Never",
            "command": ["/bin/sh", "-c", script],
            "resources": {"limits": {"apportion.dev/gpu-slot": 1}},
        })
    }

    /// A pod with a share of [`LIMIT`], changed by `change`.
    #[track_caller]
    pub fn pod(&self, name: &str, script: &str, change: impl FnOnce(&mut Value)) -> ManagedPod {
        let mut pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "annotations": {"gpu-memory": "2000"}},
            "spec": {
                "hostNetwork": true,
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "containers": [Self::container("main", script)],
            },
        });
        change(&mut pod);
        ManagedPod::create(name, &pod)
    }

    /// The grants on disk: files of CDI, and the folders of slots for a runtime without it.
    #[must_use]
    pub fn grants(&self) -> Vec<PathBuf> {
        let paths = |folder: PathBuf| {
            let entries = fs::read_dir(folder).into_iter().flatten();
            entries.flatten().map(|entry| entry.path())
        };
        let files = paths(self.cluster.folder().cdi());
        let is_ours = |path: &PathBuf| path.to_string_lossy().contains("apportion.dev-grant");
        let folders = paths(self.instance().join("slots"));
        files.filter(is_ours).chain(folders).collect()
    }
}

impl Drop for ManagedNode {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", fs::read_to_string(self.log()).unwrap_or_default());
        }
        self.kill_agent();
    }
}
