//! Kubeflow's training operator.

use std::thread::sleep;
use std::time::Instant;

use anyhow::{Result, ensure};
use serde_json::json;

use super::private_files::command_with;
use super::{GLANCE, OperatorStart, PATIENCE, free_port};

/// Where it waits for its webhook's certificate. It creates the certificate itself and expects it back through a
/// mounted Secret.
const CERTIFICATES: &str = "/tmp/k8s-webhook-server/serving-certs";
const NAMESPACE: &str = "kubeflow";
const SECRET: &str = "training-operator-webhook-cert";
/// Its webhook configuration. It writes its CA there.
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
    // The webhook only rejects invalid jobs. Its certificate is for a Service, which is unreachable in this cluster.
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
    // The init container resolves the master's name, which is impossible without a pod network.
    let none = folder.join("init-containers.yaml");
    starting.cluster.folder().write(&none, "[]")?;
    command
        .arg("--pytorch-init-container-template-file")
        .arg(none);
    starting.begin(command)?;
    let deadline = Instant::now() + PATIENCE;
    // The operator waits only for the certificate, so write the key first.
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

/// A file of the Secret. Empty until the operator has created it.
fn of_secret(starting: &OperatorStart<'_>, file: &str) -> Result<String> {
    let template = format!(
        r#"go-template={{{{with .data}}}}{{{{with index . "{file}"}}}}{{{{. | base64decode}}}}{{{{end}}}}{{{{end}}}}"#
    );
    let get = ["get", "secret", SECRET, "-n", NAMESPACE, "-o", &template];
    starting.cluster.kubectl(&get)
}
