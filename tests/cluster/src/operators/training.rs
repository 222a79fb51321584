//! Kubeflow's training operator.

use std::thread::sleep;
use std::time::Instant;

use anyhow::{Result, ensure};
use serde_json::json;

use super::private_files::command_with;
use super::{GLANCE, OperatorStart, PATIENCE, free_port};

/// Where it waits for the certificate of its webhook, which it makes itself and expects back by a mounted Secret.
const CERTIFICATES: &str = "/tmp/k8s-webhook-server/serving-certs";
const NAMESPACE: &str = "kubeflow";
const SECRET: &str = "training-operator-webhook-cert";
/// Its webhook's configuration, in which it writes its CA.
const CONFIGURATION: &str = "validator.training-operator.kubeflow.org";

pub(super) fn start(mut starting: OperatorStart<'_>) -> Result<()> {
    let kinds = starting.source()?.join("manifests/base/crds");
    for kind in [
        "mpijobs",
        "mxjobs",
        "paddlejobs",
        "pytorchjobs",
        "tfjobs",
        "xgboostjobs",
    ] {
        starting.install(&kinds.join(format!("kubeflow.org_{kind}.yaml")))?;
    }
    // The webhook only refuses wrong jobs. Its certificate is for a Service, which this cluster could not reach.
    for object in [
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET, "namespace": NAMESPACE}}),
        json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": CONFIGURATION}, "webhooks": []}),
    ] {
        starting.cluster.apply(&object)?;
    }
    let port = free_port()?;
    let folder = starting.folder();
    std::fs::create_dir_all(&folder)?;
    let mut command = command_with(
        &starting.program()?,
        CERTIFICATES,
        &folder,
        starting.cluster.folder().path(),
    );
    command.args(["--metrics-bind-address=0", "--health-probe-bind-address=0"]);
    command.arg(format!("--webhook-server-port={port}"));
    // Its init container asks for the master's name, which nobody answers without a network of pods.
    let none = folder.join("init-containers.yaml");
    starting.cluster.folder().write(&none, "[]")?;
    command
        .arg("--pytorch-init-container-template-file")
        .arg(none);
    starting.begin(command)?;
    let deadline = Instant::now() + PATIENCE;
    // It waits for the certificate alone, so the key comes first.
    for file in ["tls.key", "tls.crt"] {
        loop {
            let text = of_secret(&starting, file)?;
            if !text.is_empty() {
                let files = starting.cluster.folder();
                files.write(&folder.join(file), &text)?;
                break;
            }
            ensure!(Instant::now() < deadline, "the Secret {SECRET} stays empty");
            sleep(GLANCE);
        }
    }
    starting.await_port(port)
}

/// A file of the Secret; empty while the operator has not made it.
fn of_secret(starting: &OperatorStart<'_>, file: &str) -> Result<String> {
    let template = format!(
        r#"go-template={{{{with .data}}}}{{{{with index . "{file}"}}}}{{{{. | base64decode}}}}{{{{end}}}}{{{{end}}}}"#
    );
    let get = ["get", "secret", SECRET, "-n", NAMESPACE, "-o", &template];
    starting.cluster.kubectl(&get)
}
