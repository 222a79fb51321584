//! The DRA driver: resource claims as a third way to shares and whole cards, beside annotations and `nvidia.com/gpu`,
//! from the same ledger.
//!
//! Each card is a device that several claims share. A claim's allocation says how much memory it gets of which card;
//! kube-scheduler or another scheduler has chosen that. Before the first container of a claim starts, the kubelet calls
//! the plugin here, which reads the claim and asks the agent's loop for the grant. If the memory is not free, because
//! somebody else got it meanwhile, the kubelet shows the refusal in the pod's events and tries again. After half a
//! minute the agent evicts the pod, if a controller replaces it.

mod claim_pods;
pub(crate) mod claim_request;
pub(crate) mod device_offers;
mod ended_claims;
mod plugin;
mod registration;
mod resource_slice;
mod slice_publisher;

use std::path::PathBuf;
use std::sync::Arc;

use kube::Client;
use tokio::sync::{mpsc, watch};
use tracing::error;

use crate::api::request::AgentRequest;
use crate::claims::device_offers::DeviceOffers;
use crate::options::RefusedClaimPolicy;
use crate::telemetry::publish;
use crate::telemetry::view::AgentHandle;
use claim_pods::ClaimPods;
use plugin::ClaimPlugin;
use slice_publisher::SlicePublisher;

/// Serves claims as long as the agent runs. `dir` is the kubelet's folder.
pub(crate) async fn serve(
    dir: PathBuf,
    (node, refused): (String, RefusedClaimPolicy),
    requests: mpsc::Sender<AgentRequest>,
    shown: AgentHandle,
    offers: watch::Receiver<Arc<DeviceOffers>>,
) {
    let client = match publish::client().await {
        Ok(client) => client,
        Err(problem) => {
            error!(
                problem,
                node, "Kubernetes client unavailable, resource claims not served"
            );
            return;
        }
    };
    let views = shown.views.clone();
    let pods = ClaimPods::new(client.clone(), node.clone(), views, refused);
    let plugin = ClaimPlugin::new(client.clone(), node.clone(), requests.clone(), pods);
    tokio::join!(
        registration::keep(&dir, plugin, requests.clone()),
        SlicePublisher::new(client.clone(), node).publish(offers),
        ended_claims::release(client, shown, requests),
    );
}

/// Removes what an earlier agent of this node offered to claims, if the agent may. Where it may not, the kubelet does,
/// half a minute after the driver has left.
pub(crate) async fn retire(node: String) {
    if let Ok(client) = publish::client().await {
        retire_with(client, node).await;
    }
}

async fn retire_with(client: Client, node: String) {
    SlicePublisher::new(client, node).remove().await;
}
