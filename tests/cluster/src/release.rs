//! The chart on a node of the cluster, installed by `helm`, for the suites that need all programs together.
//!
//! There is no pod network and no service network, so the programs listen at the node, one replica each. Dropping a
//! release removes everything that it created.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::cluster::LocalCluster;
use crate::http;
use crate::image;
use crate::install::{self, ProgramPorts};
use crate::wait::eventually;

pub use crate::install::NAMESPACE;

/// A release of the chart, installed or not.
pub struct ChartRelease {
    /// The cluster that it is for.
    pub cluster: LocalCluster,
    values: String,
    pods: &'static [&'static str],
    /// The ports of the agent's and the scheduler's metrics.
    metrics: [u16; 2],
}

impl ChartRelease {
    /// Creates a release and loads its images into the cluster. `state` is the agent's folder. It must not be the
    /// default one, where the cluster serves its own simulated cards. `pods` are deleted with the release.
    ///
    /// # Panics
    /// If `APPORTION_STAGED` is not set, or an image cannot be imported.
    #[must_use]
    pub fn prepare(state: &str, values: &str, pods: &'static [&'static str]) -> Self {
        let ports: [u16; 5] = std::array::from_fn(|_| free_port());
        let [metrics, agent, scheduler, webhook, health] = ports;
        let ports = ProgramPorts {
            metrics,
            agent,
            scheduler,
            webhook,
            health,
        };
        let values = format!("{},{values}", install::values(state, ports));
        let cluster = LocalCluster::of_tests();
        let staged = std::env::var_os("APPORTION_STAGED").expect("it names the staged tree");
        for image in image::released(Path::new(&staged)).expect("the tree is staged") {
            image::import(&cluster, &image).expect("the cluster runs");
        }
        Self {
            cluster,
            values,
            pods,
            metrics: [metrics, scheduler],
        }
    }

    /// A `helm` command in the namespace of the chart.
    #[must_use]
    pub fn helm(&self, args: &[&str]) -> Command {
        let mut helm = self.cluster.helm_command();
        helm.args(args).args(["--namespace", NAMESPACE]);
        helm
    }

    /// Installs the chart.
    ///
    /// # Panics
    /// If helm refuses it.
    pub fn install(&self) {
        let ready = self.cluster.wait_for_deletion(NAMESPACE);
        ready.expect("the namespace of the release before is gone");
        let way = install::way_to(&self.cluster);
        let mut helm = self.helm(&["install", "apportion", &chart(), "--create-namespace"]);
        succeed(helm.args(["--set", &self.values, "--set-string", &way]));
    }

    /// Runs `kubectl` and returns its output.
    ///
    /// # Panics
    /// If it fails.
    pub fn kubectl(&self, args: &[&str]) -> String {
        self.cluster.kubectl(args).expect("kubectl succeeds")
    }

    /// The value at a path of a pod. Empty if there is no such pod.
    #[must_use]
    pub fn at(&self, pod: &str, path: &str) -> String {
        let path = format!("jsonpath={{{path}}}");
        let get = ["get", "pod", pod, "--ignore-not-found", "-o", &path];
        self.cluster.kubectl(&get).unwrap_or_default()
    }

    /// Waits until all programs run in their latest version.
    pub fn rolled_out(&self) {
        for what in install::PROGRAMS {
            let wait = ["rollout", "status", what, "-n", NAMESPACE, "--timeout=180s"];
            self.kubectl(&wait);
        }
    }

    /// Waits until a pod with a share is admitted.
    pub fn shares_are_taken(&self, when: &str) {
        let ask = ["create", "--dry-run=server", "-f", &example("memory.yaml")];
        eventually(when, || self.cluster.kubectl(&ask).is_ok());
    }

    /// The node's `GpuNode`, or null.
    #[must_use]
    pub fn gpu_node(&self) -> Value {
        let get = ["get", "gpunode", &self.cluster.node(), "-o", "json"];
        let text = self.cluster.kubectl(&get).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// The sum of the series of the agent and the scheduler whose line begins with `series` and has all `labels`.
    #[must_use]
    pub fn metric(&self, series: &str, labels: &[&str]) -> f64 {
        let texts = self
            .metrics
            .map(|port| http::metrics(&format!("127.0.0.1:{port}")));
        let values = texts.iter().flatten();
        let values = values.filter_map(|text| http::sum(text, series, labels));
        values.sum()
    }

    /// The log of a program of the chart.
    #[must_use]
    pub fn log(&self, part: &str) -> String {
        let selector = format!("app.kubernetes.io/name=apportion-{part}");
        let logs = ["logs", "-n", NAMESPACE, "-l", &selector, "--tail=-1"];
        self.cluster.kubectl(&logs).unwrap_or_default()
    }
}

impl Drop for ChartRelease {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for namespace in [NAMESPACE, "default"] {
                let pods = ["get", "pods,events", "-n", namespace];
                eprintln!("{}", self.cluster.kubectl(&pods).unwrap_or_default());
            }
        }
        for pod in self.pods {
            let delete = ["delete", "pod", pod, "--now", "--ignore-not-found"];
            let _ = self.cluster.kubectl(&delete);
        }
        let _ = self.helm(&["uninstall", "apportion", "--wait"]).status();
        for delete in [
            &["delete", "queues,gpunodes", "--all"][..],
            &["delete", "namespace", NAMESPACE, "--wait=false"],
        ] {
            let _ = self.cluster.kubectl(delete);
        }
    }
}

/// A free port of the node.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    listener.local_addr().expect("it listens").port()
}

/// The folder of the chart.
#[must_use]
pub fn chart() -> String {
    let path = "../../deploy/chart/apportion";
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(path)
        .display()
        .to_string()
}

/// The path of an example manifest.
#[must_use]
pub fn example(file: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    folder.join(file).display().to_string()
}

/// Runs a command.
///
/// # Panics
/// If it fails.
pub fn succeed(command: &mut Command) {
    let output = command.output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
}
