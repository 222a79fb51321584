//! Releases the allocations of claims that are gone although the kubelet never said so, for example because its state
//! was deleted. A claim counts as gone when the API server says so twice.

use std::collections::BTreeSet;
use std::time::Duration;

use apportion_proto::v1;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::{Api, Client};
use tokio::sync::{mpsc, oneshot};
use tracing::warn;

use crate::api::request::AgentRequest;
use crate::claims::claim_pods::claim_holder;
use crate::telemetry::view::AgentHandle;

const POLL_INTERVAL: Duration = Duration::from_secs(30);

/// Looks as long as the agent runs.
pub(super) async fn release(
    client: Client,
    shown: AgentHandle,
    requests: mpsc::Sender<AgentRequest>,
) {
    let mut suspects: BTreeSet<String> = BTreeSet::new();
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        let view = shown.views.borrow().clone();
        let mut gone = BTreeSet::new();
        // A claim whose programs run is not gone. So a busy node asks the API server nothing.
        let idle = view.list.allocations.iter();
        let idle = idle.filter(|allocation| allocation.processes.is_empty());
        for claim in idle.filter_map(claim_holder) {
            if is_gone(&client, claim).await {
                gone.insert(claim.uid.clone());
            }
        }
        for uid in gone.intersection(&suspects) {
            warn!(
                claim = uid,
                "ResourceClaim is gone, its allocation is released"
            );
            let (answer, answered) = oneshot::channel();
            let asked = requests.send(AgentRequest::UnprepareClaim(uid.clone(), answer));
            if asked.await.is_err() || answered.await.is_err() {
                return;
            }
        }
        suspects = gone;
    }
}

/// Whether the API server says that the claim does not exist or is allocated no longer.
async fn is_gone(client: &Client, holder: &v1::ClaimHolder) -> bool {
    let Some((namespace, name)) = holder.name.split_once('/') else {
        return false;
    };
    let claims: Api<ResourceClaim> = Api::namespaced(client.clone(), namespace);
    match claims.get_opt(name).await {
        Ok(Some(claim)) => {
            let is_allocated = claim
                .status
                .is_some_and(|status| status.allocation.is_some());
            claim.metadata.uid.as_ref() != Some(&holder.uid) || !is_allocated
        }
        Ok(None) => true,
        Err(_) => false,
    }
}
