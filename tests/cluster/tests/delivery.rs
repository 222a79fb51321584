//! A real kubelet and a real runtime: a container of ours starts with its limit, or it does not start and
//! the pod's events say why.
//!
//! The agent runs on the node as a process, on simulated cards, and places pods by itself.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use apportion_cluster::{Cluster, eventually, image};
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 2000 * MIB;
const SLOTS: &str = "8";

/// One agent at a time: the node has one kubelet.
static TURN: Mutex<()> = Mutex::new(());

/// A node whose agent runs. It ends with the test.
struct Node {
    cluster: Cluster,
    agent: Option<Child>,
    _turn: MutexGuard<'static, ()>,
}

impl Node {
    fn new() -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let mut node = Self {
            cluster: Cluster::of_tests(),
            agent: None,
            _turn: turn,
        };
        node.start_agent();
        node
    }

    /// Starts an agent in the node's room and waits until the node offers slots.
    fn start_agent(&mut self) {
        // What the node says of an agent before is not taken for this one's word: the kubelet refuses pods
        // for good while nobody answers for its devices.
        eventually("the node offers nothing", || self.offered() != SLOTS);
        let mut servers = self.cluster.servers();
        let (_, room) = servers
            .find(|server| server.0 == "containerd")
            .expect("it runs");
        let staged = std::env::var_os("APPORTION_STAGED").map(PathBuf::from);
        let program = staged
            .expect("the tree is named")
            .join("bin/apportion-agent");
        let log = File::options().create(true).append(true).open(self.log());
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--mount=/proc/{room}/ns/mnt"))
            .arg("--")
            .arg(program)
            .args([
                "--sim",
                "--kubelet-dir",
                "/var/lib/kubelet",
                "--cdi-dir",
                "/run/cdi",
            ])
            .args(["--unplaced", "local-fit", "--metrics-address", "none"])
            .args(["--node-name", &self.cluster.node(), "--slots", SLOTS])
            .env("KUBECONFIG", self.cluster.folder().kubeconfig())
            .env("APPORTION_SIM_SOCKET", "/run/apportion/sim/driver.sock")
            .stdin(Stdio::null())
            .stderr(log.expect("the folder is writable"));
        drop(servers);
        self.agent = Some(command.spawn().expect("util-linux is there"));
        eventually("the node offers slots", || self.offered() == SLOTS);
    }

    /// How many slots the node has to give.
    fn offered(&self) -> String {
        let path = "jsonpath={.status.allocatable.apportion\\.dev/gpu-slot}";
        self.kubectl(&["get", "node", &self.cluster.node(), "-o", path])
    }

    fn kill_agent(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }

    fn log(&self) -> PathBuf {
        self.cluster.folder().log("test-agent")
    }

    fn kubectl(&self, args: &[&str]) -> String {
        self.cluster.kubectl(args).unwrap_or_default()
    }

    /// A container that holds a slot and runs `script`.
    fn container(name: &str, script: &str) -> Value {
        json!({
            "name": name,
            "image": image::VICTIM,
            "imagePullPolicy": "Never",
            "command": ["/bin/sh", "-c", script],
            "resources": {"limits": {"apportion.dev/gpu-slot": 1}},
        })
    }

    /// A pod with a share of 2000 MiB, changed by `change`.
    fn pod(&self, name: &'static str, script: &str, change: impl FnOnce(&mut Value)) -> Pod<'_> {
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
        self.cluster
            .apply(&pod)
            .expect("the API server takes a pod");
        Pod { node: self, name }
    }

    /// The grants on disk.
    fn grants(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.cluster.folder().cdi())
            .into_iter()
            .flatten();
        let paths = entries.flatten().map(|entry| entry.path());
        paths
            .filter(|path| path.to_string_lossy().contains("apportion.dev-grant"))
            .collect()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", fs::read_to_string(self.log()).unwrap_or_default());
        }
        self.kill_agent();
    }
}

/// A pod that goes when the test ends.
struct Pod<'a> {
    node: &'a Node,
    name: &'static str,
}

impl Pod<'_> {
    fn phase(&self) -> String {
        self.node
            .kubectl(&["get", "pod", self.name, "-o", "jsonpath={.status.phase}"])
    }

    fn logs(&self, container: &str) -> String {
        self.node.kubectl(&["logs", self.name, "-c", container])
    }

    fn exec(&self, command: &str) -> String {
        self.node.kubectl(&[
            "exec", self.name, "-c", "main", "--", "/bin/sh", "-c", command,
        ])
    }

    fn events(&self) -> String {
        let selector = format!("involvedObject.name={}", self.name);
        let path = "jsonpath={range .items[*]}{.message}{\"\\n\"}{end}";
        self.node
            .kubectl(&["get", "events", "--field-selector", &selector, "-o", path])
    }

    #[track_caller]
    fn succeeds(&self) {
        eventually("the pod ends", || {
            matches!(self.phase().as_str(), "Succeeded" | "Failed")
        });
        assert_eq!(
            self.phase(),
            "Succeeded",
            "{}\n{}",
            self.logs("main"),
            self.events()
        );
    }

    #[track_caller]
    fn runs(&self) {
        eventually("the pod runs", || self.phase() == "Running");
    }
}

impl Drop for Pod<'_> {
    fn drop(&mut self) {
        let delete = ["delete", "pod", self.name, "--ignore-not-found", "--now"];
        let _ = self.node.cluster.kubectl(&delete);
    }
}

/// The numbers that a victim said of a step.
fn said(log: &str, verb: &str) -> Vec<u64> {
    let line = log.lines().find_map(|line| line.strip_prefix(verb));
    let words = line
        .unwrap_or_else(|| panic!("no {verb} in {log:?}"))
        .split_whitespace();
    words.filter_map(|word| word.parse().ok()).collect()
}

#[test]
fn a_granted_pod_sees_one_card_of_its_size_and_is_refused_the_next_byte() {
    let node = Node::new();
    let pod = node.pod(
        "granted",
        "victim total info alloc 1000M alloc 1000M",
        |_| {},
    );
    pod.succeeds();
    let log = pod.logs("main");
    assert_eq!(said(&log, "total"), [0, LIMIT], "{log}");
    assert_eq!(said(&log, "info")[2], LIMIT, "{log}");
    let allocs: Vec<_> = log
        .lines()
        .filter(|line| line.starts_with("alloc"))
        .collect();
    assert!(
        allocs[0].starts_with("alloc 0") && allocs[1].starts_with("alloc 2"),
        "{log}"
    );
    eventually("its grant is gone", || node.grants().is_empty());
}

#[test]
fn init_container_sidecar_restart_and_shell_stay_inside_one_limit() {
    let node = Node::new();
    let pod = node.pod("family", "victim alloc 1000M hold", |pod| {
        pod["spec"]["initContainers"] = json!([Node::container("first", "victim total")]);
        let sidecar = Node::container("beside", "sleep 2; victim alloc 1000M; sleep 600");
        pod["spec"]["containers"]
            .as_array_mut()
            .unwrap()
            .push(sidecar);
    });
    pod.runs();
    assert_eq!(said(&pod.logs("first"), "total"), [0, LIMIT]);
    eventually("the sidecar has asked", || {
        pod.logs("beside").contains("alloc")
    });
    assert_eq!(
        said(&pod.logs("beside"), "alloc")[0],
        2,
        "both share one limit"
    );
    assert_eq!(said(&pod.exec("victim alloc 1000M || true"), "alloc")[0], 2);
    assert_eq!(
        said(&pod.exec("env -i /usr/bin/victim total"), "total"),
        [0, LIMIT]
    );
}

#[test]
fn a_container_that_starts_again_has_its_limit_again() {
    let node = Node::new();
    let script = "victim total; test -e /tmp/again/x || { touch /tmp/again/x; exit 1; }";
    let pod = node.pod("again", script, |pod| {
        pod["spec"]["restartPolicy"] = json!("OnFailure");
        pod["spec"]["volumes"] = json!([{"name": "kept", "emptyDir": {}}]);
        pod["spec"]["containers"][0]["volumeMounts"] =
            json!([{"name": "kept", "mountPath": "/tmp/again"}]);
    });
    pod.succeeds();
    assert_eq!(said(&pod.logs("main"), "total"), [0, LIMIT]);
}

#[test]
fn a_pod_that_asks_for_nothing_does_not_start_and_its_events_say_why() {
    let node = Node::new();
    let pod = node.pod("silent", "echo started", |pod| {
        pod["metadata"]["annotations"] = json!({});
    });
    eventually("its events say why", || {
        pod.events()
            .contains("asks for neither gpu-memory nor gpu-fraction")
    });
    assert!(!pod.logs("main").contains("started"));
}

#[test]
fn a_pod_that_fits_nowhere_does_not_start_and_its_events_say_why() {
    let node = Node::new();
    let pod = node.pod("huge", "echo started", |pod| {
        pod["metadata"]["annotations"] = json!({"gpu-memory": "9000000"});
    });
    eventually("its events say why", || {
        pod.events().contains("the most that one has is")
    });
    assert!(!pod.logs("main").contains("started"));
}

#[test]
fn no_environment_of_a_pod_raises_its_limit() {
    let node = Node::new();
    let pod = node.pod(
        "attacker",
        "victim total; cat /.apportion/limits > /tmp/l; \
        echo x > /.apportion/limits && echo WROTE; umount /.apportion/limits && echo UMOUNTED; \
        LD_PRELOAD= victim total; env -i /usr/bin/victim total; true",
        |pod| {
            pod["spec"]["containers"][0]["env"] = json!([
                {"name": "LD_PRELOAD", "value": ""},
                {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
                {"name": "CUDA_DEVICE_MEMORY_LIMIT", "value": "0"},
                {"name": "APPORTION_ACCOUNT", "value": "/tmp"},
                {"name": "CUDA_DISABLE_CONTROL", "value": "true"},
            ]);
        },
    );
    pod.succeeds();
    let log = pod.logs("main");
    let totals: Vec<_> = log
        .lines()
        .filter(|line| line.starts_with("total"))
        .collect();
    assert_eq!(totals, vec![format!("total 0 {LIMIT}"); 3], "{log}");
    assert!(!log.contains("WROTE") && !log.contains("UMOUNTED"), "{log}");
}

#[test]
fn without_an_agent_a_container_does_not_start_and_with_the_next_one_it_does() {
    let mut node = Node::new();
    node.kill_agent();
    node.start_agent();
    let pod = node.pod("patient", "victim total", |_| {});
    pod.succeeds();
    assert_eq!(said(&pod.logs("main"), "total"), [0, LIMIT]);
}
