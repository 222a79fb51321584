//! Publishes the agent's state to the cluster: the node's `GpuNode`, some resources in the node's status, and events
//! on pods.
//!
//! It reads the same view as all other readers and sends nothing back to the agent. A slow or missing API server
//! delays what is published, and nothing else. The state is written only when it changed, at most once in five
//! seconds. The used memory changes all the time, so it is written after a large change or with the next heartbeat.

use std::sync::Arc;
use std::time::Duration;

use apportion_abi::names::{HEARTBEAT, NODE_CHECK};
use apportion_crds::GpuNodeStatus;
use apportion_exit::error_chain;
use apportion_proto::v1;
use kube::{Client, Config};
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::telemetry::view::AgentHandle;
use crate::telemetry::view::AgentView;

mod events;
mod eviction;
mod gpu_node;
mod schedule;
mod status;

pub(crate) use events::recorder;
pub(crate) use eviction::evict_pod as evict;
use gpu_node::GpuNodePublisher;
use schedule::PublishSchedule;

/// Publishes as long as the agent runs, if it has access to a cluster. `address` is the agent's TCP address.
pub(crate) async fn publish(node: String, agent: AgentHandle, address: Option<String>) {
    let client = match client().await {
        Ok(client) => client,
        Err(problem) => {
            warn!(
                problem,
                node, "Kubernetes client unavailable, GPU state not published"
            );
            return;
        }
    };
    info!(node, "Publishing GPU state to the cluster");
    let events = agent.events.subscribe();
    tokio::join!(
        keep(
            GpuNodePublisher::new(client.clone(), node.clone()),
            agent.views.clone(),
            address,
        ),
        publish_events(client, node, agent.views, events),
    );
}

/// Keeps an existing `GpuNode` up to date while the node has no driver. A node that never had one gets no such
/// object.
pub(crate) async fn publish_absence(node: &str, view: &AgentView) {
    let client = match client().await {
        Ok(client) => client,
        Err(problem) => {
            debug!(problem, node, "Kubernetes client unavailable");
            return;
        }
    };
    let mut remote = GpuNodePublisher::new(client, node.to_owned());
    let wanted = status::of(view);
    loop {
        let again = match remote.write_if_known(&wanted).await {
            Ok(()) => HEARTBEAT,
            Err(error) => {
                debug!(
                    error = error_chain(&error),
                    "Failed to publish GPU state, retrying"
                );
                AGAIN
            }
        };
        tokio::time::sleep(again).await;
    }
}

/// How long to wait after a failure to publish the absence of a driver.
const AGAIN: Duration = Duration::from_secs(10);

/// A client for the cluster that the agent runs in.
pub(crate) async fn client() -> Result<Client, String> {
    let config = Config::infer().await.map_err(|error| error_chain(&error))?;
    Client::try_from(config).map_err(|error| error_chain(&error))
}

/// Keeps the published state equal to the view.
async fn keep(
    mut remote: GpuNodePublisher,
    mut views: watch::Receiver<Arc<AgentView>>,
    address: Option<String>,
) {
    let mut pace = PublishSchedule::new(Instant::now());
    let mut node_check = tokio::time::interval_at(Instant::now() + NODE_CHECK, NODE_CHECK);
    loop {
        let mut wanted = status::of(&views.borrow_and_update());
        wanted.agent_address.clone_from(&address);
        let Some(due) = pace.due(&wanted) else {
            if views.changed().await.is_err() {
                return;
            }
            continue;
        };
        tokio::select! {
            () = tokio::time::sleep_until(due) => attempt(&mut remote, &mut pace, wanted).await,
            _ = node_check.tick() => check_node(&remote, &wanted).await,
            changed = views.changed() => if changed.is_err() { return },
        }
    }
}

/// A request that hangs must not block later writes.
const PATIENCE: Duration = Duration::from_secs(10);

/// Writes the node's resources again if somebody cleared them. After a failure the next check does it.
async fn check_node(remote: &GpuNodePublisher, wanted: &GpuNodeStatus) {
    let problem = match tokio::time::timeout(PATIENCE, remote.restore_resources(wanted)).await {
        Ok(Ok(is_written)) => {
            if is_written {
                info!("Extended resources of the node written again");
            }
            return;
        }
        Ok(Err(error)) => error_chain(&error),
        Err(_) => "the API server does not answer".to_owned(),
    };
    debug!(problem, "Failed to check the node's extended resources");
}

async fn attempt(remote: &mut GpuNodePublisher, pace: &mut PublishSchedule, wanted: GpuNodeStatus) {
    let problem = match tokio::time::timeout(PATIENCE, remote.write(&wanted)).await {
        Ok(Ok(())) => return pace.done(Instant::now(), wanted),
        Ok(Err(error)) => error_chain(&error),
        Err(_) => "the API server does not answer".to_owned(),
    };
    pace.failed(Instant::now());
    warn!(problem, "Failed to publish GPU state, retrying");
}

/// Publishes events on pods and nodes, and evicts offenders.
async fn publish_events(
    client: Client,
    node: String,
    views: watch::Receiver<Arc<AgentView>>,
    mut events: broadcast::Receiver<v1::Event>,
) {
    let mut teller = events::EventPublisher::new(client.clone(), node);
    loop {
        match events.recv().await {
            Ok(event) => {
                let view = views.borrow().clone();
                eviction::evict(&client, &event, &view.list).await;
                teller.publish(&event, &view.list).await;
            }
            // Metrics have the missed events.
            Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(broadcast::error::RecvError::Closed) => return,
        }
    }
}

#[cfg(test)]
mod tests;
