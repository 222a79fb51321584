//! A node without a driver: the agent waits, logs that once, and serves when the driver appears.
//!
//! A DaemonSet has a pod on every node, and most nodes of a cluster have no GPU. Such a pod must not fail, and must
//! not block a rollout. It is healthy and ready, its metrics say that it is idle, and it publishes no `GpuNode`.
//!
//! The agent tries to load the driver every few seconds, because its libraries appear in a folder that the container
//! already has (`driverRoot`). If a container runtime injects the libraries, it does so only at a container's start.
//! So if the kernel module is loaded and no library appears, the agent exits, and the kubelet restarts its
//! container.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use apportion_abi::paths;
use apportion_exit::{CommandFailure, error_chain};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use crate::api::http;
use crate::driver::{DriverError, NvmlDriver};
use crate::instance::ServedInstance;
use crate::options::{AgentOptions, CardOptions};
use crate::stop;
use crate::telemetry::publish;
use crate::telemetry::view::AgentView;

/// How often to look for the driver.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// How long the kernel module may be loaded without its libraries before the agent exits.
const LOADED_FOR: Duration = Duration::from_secs(60);
/// Exists if the kernel module is loaded; visible in every container.
const MODULE: &str = "/proc/driver/nvidia/version";

const HINT: &str = "install the NVIDIA driver, or use simulated GPUs with --sim";
const HINT_LOADED: &str = "the kernel module is loaded, but the driver's libraries are not in the agent's container: \
     set runtimeClassName or driverRoot of the chart";

/// The driver, once there is one; `None` if the agent is stopped before. Outside of Kubernetes a missing driver is a
/// failure.
pub(crate) async fn driver(
    options: &AgentOptions,
    instance: &ServedInstance,
) -> Result<Option<NvmlDriver>, CommandFailure> {
    let absence = match start(&options.cards).await {
        Ok(driver) => return Ok(Some(driver)),
        Err(error) if error.is_absence() && options.kubelet.kubelet_dir.is_some() => error,
        Err(error) => return Err(CommandFailure::from_error(&error).hint(HINT)),
    };
    let reason = error_chain(&absence);
    warn!(
        reason,
        "No NVIDIA driver with GPUs on this node, waiting for one"
    );
    let view = AgentView::empty(Some(format!("no NVIDIA driver with GPUs: {reason}")));
    let file = instance.path(paths::METRICS_ADDRESS);
    let (listener, _) = http::open(options.telemetry.metrics(), &file).await?;
    let (_shows, shown) = watch::channel(Arc::new(view.clone()));
    let served = async {
        match listener {
            Some(listener) => http::serve(listener, shown, Vec::new()).await,
            None => std::future::pending().await,
        }
    };
    let published = async {
        if let Some(node) = &options.node {
            publish::publish_absence(node, &view).await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        driver = appears(&options.cards) => driver.map(Some),
        () = served => Ok(None),
        () = published => Ok(None),
        () = stop::stopped()? => {
            info!("Agent stopped, no driver appeared");
            Ok(None)
        }
    }
}

async fn start(cards: &CardOptions) -> Result<NvmlDriver, DriverError> {
    NvmlDriver::start(cards.nvml_library.clone().into_os_string(), cards.sizes()).await
}

/// Looks for the driver until it is there, or until this container cannot get it.
async fn appears(cards: &CardOptions) -> Result<NvmlDriver, CommandFailure> {
    let mut loaded = None;
    loop {
        sleep(POLL_INTERVAL).await;
        let error = match start(cards).await {
            Ok(driver) => return Ok(driver),
            Err(error) => error,
        };
        if !error.is_absence() {
            return Err(CommandFailure::from_error(&error).hint(HINT));
        }
        let is_loaded = matches!(error, DriverError::Load { .. }) && Path::new(MODULE).exists();
        match loaded.filter(|_| is_loaded) {
            Some(since) if Instant::now() >= since + LOADED_FOR => {
                return Err(CommandFailure::from_error(&error).hint(HINT_LOADED));
            }
            Some(_) => {}
            None => loaded = is_loaded.then(Instant::now),
        }
    }
}
