//! Our programs as processes beside a cluster, for tests that stop and start them at will. They end when their value is
//! dropped.
//!
//! There is no service network, so the API server calls the webhook at this machine's address.

use std::env;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::LocalCluster;
use crate::wait::eventually;

/// The folder with KAI's CRDs and ours.
const KINDS: &str = "../../deploy/chart/apportion/crds";

/// A running program of the staged tree.
pub struct StagedProgram(Child);

impl StagedProgram {
    /// Starts a command of `apportion-scheduler`. It finds the cluster by its environment.
    ///
    /// # Panics
    /// If nothing was staged.
    #[must_use]
    pub fn scheduler(cluster: &LocalCluster, arguments: &[&str]) -> Self {
        Self(
            command(cluster, arguments)
                .spawn()
                .expect("the scheduler starts"),
        )
    }

    /// Kills it at once.
    ///
    /// # Panics
    /// If it cannot be waited for.
    pub fn kill(&mut self) {
        let _ = self.0.kill();
        self.0.wait().expect("a child can be waited for");
    }
}

impl Drop for StagedProgram {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The webhook, and the port of this machine on which it serves.
pub struct WebhookServer {
    /// The process.
    pub process: StagedProgram,
    /// Its port.
    pub port: u16,
}

impl WebhookServer {
    /// Starts the webhook. Port 0 means any free one. Its Secret is in `namespace`.
    ///
    /// # Panics
    /// If it does not log where it listens.
    #[must_use]
    pub fn start(cluster: &LocalCluster, namespace: &str, port: u16, more: &[&str]) -> Self {
        let listen = format!("127.0.0.1:{port}");
        let mut arguments = vec!["webhook", "--name", "127.0.0.1", "--health", "127.0.0.1:0"];
        arguments.extend(["--namespace", namespace, "--listen", &listen]);
        arguments.extend(more);
        let mut process = command(cluster, &arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the webhook starts");
        let mut line = String::new();
        let mut lines = BufReader::new(process.stdout.take().expect("it is piped"));
        lines.read_line(&mut line).expect("it is text");
        let port = line.trim().rsplit(':').next().map(str::parse);
        let port = port.expect("a line").expect("it ends with the port");
        Self {
            process: StagedProgram(process),
            port,
        }
    }

    /// Makes the API server call it.
    ///
    /// # Panics
    /// If the API server refuses a configuration.
    pub fn install(&self, cluster: &LocalCluster) {
        for configuration in configurations(self.port) {
            cluster.apply(&configuration).expect("it is taken");
        }
    }
}

/// Deletes the webhook configurations.
///
/// # Panics
/// If they do not exist.
pub fn uninstall_webhook(cluster: &LocalCluster) {
    for configuration in configurations(0) {
        let kind = configuration["kind"].as_str().unwrap_or_default();
        let name = configuration["metadata"]["name"]
            .as_str()
            .unwrap_or_default();
        cluster
            .kubectl(&["delete", kind, name])
            .expect("it is there");
    }
}

/// Installs KAI's CRDs and ours.
///
/// # Panics
/// If the API server refuses one.
pub fn install_kinds(cluster: &LocalCluster) {
    for kind in [
        "queues.scheduling.run.ai",
        "podgroups.scheduling.run.ai",
        "topologies.kai.scheduler",
        "gpunodes.apportion.dev",
    ] {
        for object in manifest(KINDS, &format!("{kind}.yaml")) {
            cluster.apply(&object).expect("the kind is taken");
        }
        let known = format!("crd/{kind}");
        eventually(kind, || {
            let wait = ["wait", "--for=condition=Established", &known];
            cluster.kubectl(&wait).is_ok()
        });
    }
}

fn command(cluster: &LocalCluster, arguments: &[&str]) -> Command {
    let staged = env::var_os("APPORTION_STAGED").expect("APPORTION_STAGED names the staged tree");
    let mut command = Command::new(Path::new(&staged).join("bin/apportion-scheduler"));
    command
        .args(arguments)
        .env("KUBECONFIG", cluster.folder().kubeconfig())
        .stdin(Stdio::null());
    command
}

/// The objects of a manifest of the repository.
fn manifest(folder: &str, name: &str) -> Vec<Value> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let text = std::fs::read_to_string(folder.join(name)).expect("the manifest can be read");
    serde_norway::Deserializer::from_str(&text)
        .map(|one| Value::deserialize(one).expect("the manifest is YAML"))
        .collect()
}

fn configurations(port: u16) -> Vec<Value> {
    let mut all = manifest("../../deploy/manifests", "in-place-of-kai.yaml");
    all.retain(|one| one["webhooks"].is_array());
    let webhooks = all
        .iter_mut()
        .flat_map(|one| one["webhooks"].as_array_mut().into_iter().flatten());
    for webhook in webhooks {
        let path = webhook["clientConfig"]["service"]["path"].as_str();
        let url = format!("https://127.0.0.1:{port}{}", path.unwrap_or_default());
        webhook["clientConfig"] = json!({ "url": url });
    }
    all
}
