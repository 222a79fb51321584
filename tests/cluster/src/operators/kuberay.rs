//! KubeRay's operator.

use std::process::Command;

use anyhow::Result;

use super::OperatorStart;

pub(super) fn start(mut starting: OperatorStart<'_>) -> Result<()> {
    let source = starting.source()?;
    for kind in ["rayclusters", "rayjobs", "rayservices"] {
        starting.install(&source.join(format!("config/crd/bases/ray.io_{kind}.yaml")))?;
    }
    let mut command = Command::new(starting.program()?);
    command.args([
        "--metrics-addr=0",
        "--health-probe-bind-address=0",
        "--enable-leader-election=false",
    ]);
    // The init container resolves the head's name, which is impossible without a pod network.
    command.env("ENABLE_INIT_CONTAINER_INJECTION", "false");
    starting.begin(command)
}
