//! A test's cluster: a control plane, nodes with agents, a scheduler, and pods.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use apportion_tests::control_plane::ControlPlane;
use apportion_tests::{AgentProcess, TestHost, cards, eventually};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::objects::{kind, node};
pub(crate) use crate::objects::{placed, pod, queue};

/// How long anything may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// The agents' service account.
const AGENTS: &str = "apportion-agent";
const GPU_NODES: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../deploy/chart/apportion/crds/gpunodes.apportion.dev.yaml"
);

/// A node: its machine and its agent.
pub(crate) struct SchedulerNode {
    pub(crate) host: TestHost,
    pub(crate) agent: Option<AgentProcess>,
    /// The options of its agent: its kubeconfig in the cluster, and more.
    kubeconfig: Option<PathBuf>,
    options: Vec<String>,
}

impl SchedulerNode {
    /// Kills the agent and starts another.
    pub(crate) fn replace_agent(&mut self) {
        if let Some(agent) = self.agent.take() {
            agent.kill();
        }
        self.start_agent();
    }

    fn start_agent(&mut self) {
        let mut options = vec!["--tick", "100", "--context-reserve", "0"];
        options.extend(self.options.iter().map(String::as_str));
        let kubeconfig = self.kubeconfig.as_deref();
        let variables: Vec<_> = kubeconfig
            .map(|path| ("KUBECONFIG", path))
            .into_iter()
            .collect();
        let agent = self.host.agent_with(&options, &variables);
        self.agent = Some(agent);
    }
}

pub(crate) struct Cluster {
    scheduler: Option<Child>,
    /// Where the log of the latest scheduler begins.
    began: usize,
    /// The scheduler's log level.
    pub(crate) log_level: &'static str,
    /// In seconds.
    pub(crate) lease_duration: &'static str,
    /// The scheduler's kubeconfig, if it is not that of the test.
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Additional options of the scheduler.
    pub(crate) options: Vec<String>,
    pub(crate) nodes: BTreeMap<String, SchedulerNode>,
    pub(crate) plane: ControlPlane,
}

impl Cluster {
    /// A cluster with one node with `count` cards, one queue, and a scheduler.
    pub(crate) fn with_cards(count: usize) -> Self {
        let mut cluster = Self::bare();
        cluster.add_node("node-1", &cards(count));
        cluster.start_scheduler();
        cluster
    }

    /// A control plane with KAI's queue CRD and one queue without limits.
    pub(crate) fn bare() -> Self {
        let plane = ControlPlane::new();
        plane.apply(&[
            kind("queues", "Queue", "v2", "Cluster"),
            kind("podgroups", "PodGroup", "v2alpha2", "Namespaced"),
        ]);
        eventually(PATIENCE, "queues are known", || {
            let wait = [
                "wait",
                "--for=condition=Established",
                "--timeout=30s",
                "crd/queues.scheduling.run.ai",
            ];
            !plane.kubectl(&wait).is_empty()
        });
        plane.apply(&[queue("default-queue", -1)]);
        Self {
            scheduler: None,
            began: 0,
            log_level: "info,apportion_scheduler=debug",
            lease_duration: "3",
            kubeconfig: None,
            options: Vec::new(),
            nodes: BTreeMap::new(),
            plane,
        }
    }

    /// Adds a node and starts its agent.
    pub(crate) fn add_node(&mut self, name: &str, config: &apportion_sim_machine::MachineConfig) {
        let host = TestHost::with(config);
        let socket = host.instance().join("agent.sock");
        let address = format!("unix:{}", socket.display());
        let annotations = json!({"apportion.dev/agent-address": address});
        self.plane.apply(&[node(name, &annotations)]);
        self.start_node(name, host, None, Vec::new());
    }

    /// Adds a node whose agent serves over TCP, with a token like that of a pod on the node.
    pub(crate) fn add_remote_node(
        &mut self,
        name: &str,
        config: &apportion_sim_machine::MachineConfig,
    ) {
        self.plane.apply(&[node(name, &json!({}))]);
        let kubeconfig = self.plane.kubeconfig_on(name, AGENTS);
        let options = ["--node-name", name, "--listen", "127.0.0.1:0"];
        let options = options.map(str::to_owned).to_vec();
        self.start_node(name, TestHost::with(config), Some(kubeconfig), options);
    }

    /// Installs what agents over TCP need: the CRD in which they publish their address, and their service account.
    pub(crate) fn add_agents(&self) {
        let _ = self.plane.kubectl(&["apply", "-f", GPU_NODES]);
        self.plane
            .apply(&[json!({"apiVersion": "v1", "kind": "ServiceAccount",
                "metadata": {"name": AGENTS, "namespace": "default"}})]);
        let established = "--for=condition=Established";
        let _ = self.plane.kubectl(&[
            "wait",
            established,
            "--timeout=60s",
            "crd/gpunodes.apportion.dev",
        ]);
    }

    /// Adds a node object whose agent is said to listen at `address`.
    pub(crate) fn add_named_node(&self, name: &str, address: &str) {
        let annotations = json!({"apportion.dev/agent-address": address});
        self.plane.apply(&[node(name, &annotations)]);
    }

    fn start_node(
        &mut self,
        name: &str,
        host: TestHost,
        kubeconfig: Option<PathBuf>,
        options: Vec<String>,
    ) {
        let mut node = SchedulerNode {
            host,
            agent: None,
            kubeconfig,
            options,
        };
        node.start_agent();
        self.nodes.insert(name.to_owned(), node);
    }

    pub(crate) fn start_scheduler(&mut self) {
        let host = self.nodes.values().next().expect("there is a node");
        let log = File::options().create(true).append(true).open(self.log());
        let mut command = host.host.staged("apportion-scheduler");
        command
            .args([
                "run",
                "--address",
                "127.0.0.1:0",
                "--log",
                self.log_level,
                "--kubeconfig",
            ])
            .arg(
                self.kubeconfig
                    .clone()
                    .unwrap_or_else(|| self.plane.kubeconfig()),
            )
            .args(["--lease-duration", self.lease_duration])
            .args(&self.options)
            .stdin(Stdio::null())
            .stderr(log.expect("the folder is writable"));
        self.began = self.whole_log().len();
        self.scheduler = Some(command.spawn().expect("the scheduler is staged"));
    }

    /// The most memory that the scheduler has had so far, in bytes.
    pub(crate) fn scheduler_peak(&self) -> usize {
        let scheduler = self.scheduler.as_ref().expect("it runs");
        let status = std::fs::read_to_string(format!("/proc/{}/status", scheduler.id()));
        let status = status.expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
        let kibibytes: usize = kibibytes
            .and_then(|text| text.parse().ok())
            .expect("it is a number");
        kibibytes * 1024
    }

    /// Kills the scheduler at once.
    pub(crate) fn kill_scheduler(&mut self) {
        if let Some(mut scheduler) = self.scheduler.take() {
            scheduler.kill().expect("the scheduler runs");
            let _ = scheduler.wait();
        }
    }

    /// Restarts the scheduler if it has ended by itself, as a kubelet does.
    pub(crate) fn revive_scheduler(&mut self) {
        let ended = self.scheduler.as_mut().map(Child::try_wait);
        if matches!(ended, Some(Ok(Some(_)))) {
            self.start_scheduler();
        }
    }

    /// Waits until the latest scheduler leads.
    pub(crate) fn await_leader(&mut self) {
        eventually(PATIENCE, "the scheduler leads", || {
            self.revive_scheduler();
            let log = self.whole_log();
            log[self.began..].contains("Scheduler became leader")
        });
    }

    /// Stops the scheduler with SIGSTOP, so that another one can be started beside it.
    pub(crate) fn stop_scheduler(&mut self) -> StoppedScheduler {
        let scheduler = self.scheduler.take().expect("the scheduler runs");
        signal(&scheduler, Signal::SIGSTOP);
        StoppedScheduler(scheduler)
    }

    /// Leaves the scheduler running, so that another can be started beside it.
    pub(crate) fn leave_scheduler(&mut self) -> FormerScheduler {
        FormerScheduler(self.scheduler.take().expect("the scheduler runs"))
    }

    /// Whether the latest scheduler still runs.
    pub(crate) fn is_running(&mut self) -> bool {
        let ended = self.scheduler.as_mut().map(Child::try_wait);
        matches!(ended, Some(Ok(None)))
    }

    fn log(&self) -> PathBuf {
        self.plane.dir().join("scheduler.log")
    }

    /// The scheduler's address, once it leads.
    pub(crate) fn address(&self) -> String {
        let text = std::fs::read_to_string(self.log()).unwrap_or_default();
        let mut lines = text
            .lines()
            .filter(|line| line.contains("Scheduler listening"));
        let line = lines.next_back().expect("it said where it answers");
        let (_, address) = line
            .rsplit_once("127.0.0.1")
            .expect("it listens on loopback");
        let port: String = address.chars().filter(char::is_ascii_digit).collect();
        format!("127.0.0.1:{port}")
    }

    /// The output of a client command of the scheduler's program.
    pub(crate) fn ask(&self, arguments: &[&str]) -> String {
        let node = self.nodes.values().next().expect("there is a node");
        let output = node
            .host
            .staged("apportion-scheduler")
            .args(arguments)
            .output();
        let output = output.expect("the scheduler is staged");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The scheduler's HTTP response at a path.
    pub(crate) fn http(&self, path: &str) -> String {
        let mut stream = std::net::TcpStream::connect(self.address()).expect("it listens");
        write!(stream, "GET {path} HTTP/1.0\r\nHost: scheduler\r\n\r\n").expect("it reads");
        let mut reply = String::new();
        stream.read_to_string(&mut reply).expect("it answers");
        let (_, body) = reply.split_once("\r\n\r\n").expect("it speaks HTTP");
        body.to_owned()
    }

    /// The log of all schedulers of this cluster.
    pub(crate) fn whole_log(&self) -> String {
        std::fs::read_to_string(self.log()).unwrap_or_default()
    }

    /// The scheduler's log, for error messages.
    pub(crate) fn said(&self) -> String {
        let text = self.whole_log();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }

    /// Waits until `seen` finds something in the list of pods.
    pub(crate) fn eventually<T>(&self, what: &str, seen: impl Fn(&[Value]) -> Option<T>) -> T {
        let deadline = std::time::Instant::now() + PATIENCE;
        loop {
            let pods = self.plane.all("pods");
            if let Some(found) = seen(&pods) {
                return found;
            }
            assert!(
                std::time::Instant::now() < deadline,
                "{what}: {}",
                self.said()
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Waits until `count` pods are bound. Returns each pod's card.
    pub(crate) fn bound(&self, count: usize) -> BTreeMap<String, String> {
        self.eventually(&format!("{count} pods are bound"), |pods| {
            let bound = placed(pods);
            (bound.len() >= count).then_some(bound)
        })
    }

    /// The cards of a node.
    pub(crate) fn cards(&self, node: &str) -> Vec<String> {
        let json = self.top(node);
        let cards = json["cards"].as_array().into_iter().flatten();
        cards
            .map(|card| card["uuid"].as_str().unwrap_or_default().to_owned())
            .collect()
    }

    fn top(&self, node: &str) -> Value {
        let output = self.nodes[node]
            .host
            .simulated("top")
            .arg("--json")
            .output();
        let output = output.expect("apportion starts");
        serde_json::from_slice(&output.stdout).expect("it prints JSON")
    }

    /// The grants of a node's agent by card: the name and the guaranteed bytes of each.
    pub(crate) fn granted(&self, node: &str) -> BTreeMap<String, Vec<(String, u64)>> {
        let json = self.top(node);
        let mut granted: BTreeMap<String, Vec<(String, u64)>> = BTreeMap::new();
        for allocation in json["allocations"].as_array().into_iter().flatten() {
            for grant in allocation["grants"].as_array().into_iter().flatten() {
                let card = grant["card"].as_str().unwrap_or_default().to_owned();
                let name = allocation["name"].as_str().unwrap_or_default().to_owned();
                let bytes = grant["guaranteed_bytes"].as_u64().unwrap_or_default();
                granted.entry(card).or_default().push((name, bytes));
            }
        }
        granted
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(mut scheduler) = self.scheduler.take() {
            let _ = scheduler.kill();
            let _ = scheduler.wait();
        }
    }
}

/// A scheduler beside the latest one. Dropping this kills it.
pub(crate) struct FormerScheduler(Child);

impl FormerScheduler {
    /// Ends it with SIGTERM.
    pub(crate) fn end(self) {
        signal(&self.0, Signal::SIGTERM);
        self.ended();
    }

    /// Waits until it has ended.
    pub(crate) fn ended(mut self) {
        eventually(PATIENCE, "the scheduler ends", || {
            self.0.try_wait().is_ok_and(|ended| ended.is_some())
        });
    }
}

impl Drop for FormerScheduler {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A scheduler that is stopped.
pub(crate) struct StoppedScheduler(Child);

impl StoppedScheduler {
    /// Lets it continue, and waits until it ends because another one leads.
    pub(crate) fn go_on(mut self) {
        signal(&self.0, Signal::SIGCONT);
        eventually(PATIENCE, "who lost the lease ends", || {
            self.0.try_wait().is_ok_and(|ended| ended.is_some())
        });
    }
}

impl Drop for StoppedScheduler {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn signal(child: &Child, signal: Signal) {
    let pid = i32::try_from(child.id()).expect("a pid is small");
    kill(Pid::from_raw(pid), signal).expect("it is there");
}
