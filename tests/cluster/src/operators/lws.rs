//! LeaderWorkerSet's controller.

use std::process::Command;

use anyhow::Result;
use serde_json::Value;

use super::{OperatorStart, free_port, webhooks};

/// The label of a LeaderWorkerSet's pods. The webhook is called only for them, as in its own manifests.
const OF_SET: &str = "leaderworkerset.sigs.k8s.io/name";

pub(super) fn start(mut starting: OperatorStart<'_>) -> Result<()> {
    let source = starting.source()?;
    let kinds = source.join("config/crd/bases");
    starting.install(&kinds.join("leaderworkerset.x-k8s.io_leaderworkersets.yaml"))?;
    let port = free_port()?;
    let certificate = starting.certificate()?;
    let settings = starting.configure(
        "config.lws.x-k8s.io/v1alpha1",
        port,
        &certificate,
        &Value::Null,
    )?;
    let mut command = Command::new(starting.program()?);
    command.arg("--config").arg(&settings);
    starting.begin(command)?;
    starting.await_port(port)?;
    let manifests = source.join("config/webhook/manifests.yaml");
    webhooks::install(&starting, &manifests, port, OF_SET, |_| true)
}
