//! JobSet's controller.

use std::process::Command;

use anyhow::Result;
use serde_json::Value;

use super::{OperatorStart, free_port, webhooks};

/// The label of a JobSet's pods. The webhook is called only for them, as in JobSet's own manifests.
const OF_SET: &str = "jobset.sigs.k8s.io/jobset-name";

pub(super) fn start(mut starting: OperatorStart<'_>) -> Result<()> {
    let components = starting.source()?.join("config/components");
    starting.install(&components.join("crd/bases/jobset.x-k8s.io_jobsets.yaml"))?;
    let port = free_port()?;
    let certificate = starting.certificate()?;
    let settings = starting.configure(
        "config.jobset.x-k8s.io/v1alpha1",
        port,
        &certificate,
        &Value::Null,
    )?;
    let mut command = Command::new(starting.program()?);
    command.arg("--config").arg(&settings);
    starting.begin(command)?;
    starting.await_port(port)?;
    let manifests = components.join("webhook/manifests.yaml");
    webhooks::install(&starting, &manifests, port, OF_SET, |_| true)
}
