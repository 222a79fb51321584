//! Kueue's controller, for Jobs and plain pods. It counts slots, MiB of shares, and the memory that claims ask for.

use anyhow::Result;
use serde_json::json;

use super::private_files::command_with;
use super::{OperatorStart, free_port, webhooks};
use crate::managed::DEVICE_CLASS;

/// Where it looks for its metrics certificate, whatever its settings say.
const CERTIFICATES: &str = "/etc/kueue/metrics/certs";
/// The resource of a Kueue quota for the memory that claims of our device class ask for.
pub const CLAIMED_MEMORY: &str = "apportion.dev/gpu-claim-memory";
/// The label of pods that Kueue admits.
const QUEUED: &str = "kueue.x-k8s.io/queue-name";

pub(super) fn start(mut starting: OperatorStart<'_>) -> Result<()> {
    let components = starting.source()?.join("config/components");
    starting.install(&components.join("crd/bases"))?;
    let port = free_port()?;
    let certificate = starting.certificate()?;
    let source = json!({"capacity": {
        "name": "memory",
        "driver": DEVICE_CLASS,
        "deviceSelector": {"cel": {"expression": format!("device.driver == '{DEVICE_CLASS}'")}},
    }});
    let mapping =
        json!({"name": CLAIMED_MEMORY, "deviceClassNames": [DEVICE_CLASS], "sources": [source]});
    let more = json!({
        "integrations": {"frameworks": ["batch/job", "pod"]},
        "resources": {"deviceClassMappings": [mapping]},
    });
    let settings =
        starting.configure("config.kueue.x-k8s.io/v1beta2", port, &certificate, &more)?;
    let mut command = command_with(
        &starting.program()?,
        CERTIFICATES,
        &certificate,
        starting.cluster.folder().path(),
    );
    command.arg("--config").arg(&settings);
    // The first feature is an extra API server, which would need a certificate and a port of its own.
    command
        .arg("--feature-gates=VisibilityOnDemand=false,KueueDRAIntegrationConsumableCapacity=true");
    starting.begin(command)?;
    starting.await_port(port)?;
    let manifests = components.join("webhook/manifests.yaml");
    webhooks::install(&starting, &manifests, port, QUEUED, |path| {
        path.contains("-batch-v1-job")
            || path.contains("--v1-pod")
            || path.contains("-kueue-x-k8s-io-")
    })
}
