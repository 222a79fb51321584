//! Watches the pods of a node through the API server, as long as it is reachable.

use std::collections::BTreeMap;
use std::future;
use std::sync::Arc;

use apportion_exit::error_chain;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher;
use kube::{Api, Client, Config, ResourceExt};
use tokio::sync::watch;
use tokio_stream::StreamExt;
use tracing::{info, warn};

use super::{NodePods, PodFacts, RETRY, facts};

/// Watches the pods of the node. Without the node's name nothing can be asked.
pub(super) async fn follow(node: Option<&str>, pods: &watch::Sender<NodePods>) {
    let Some(node) = node else {
        warn!(
            "Pods of the node unknown: the kubelet's pods API is unavailable, and --node-name is not set"
        );
        return future::pending().await;
    };
    match client().await {
        Ok(client) => events(client, node, pods).await,
        Err(error) => warn!(
            error,
            "Kubernetes client unavailable, pods of the node unknown"
        ),
    }
}

pub(in crate::kubelet) async fn client() -> Result<Client, String> {
    let config = Config::infer().await.map_err(|error| error_chain(&error))?;
    Client::try_from(config).map_err(|error| error_chain(&error))
}

async fn events(client: Client, node: &str, pods: &watch::Sender<NodePods>) {
    let config = watcher::Config::default().fields(&format!("spec.nodeName={node}"));
    let mut events = Box::pin(watcher(Api::<Pod>::all(client), config));
    let mut listed = BTreeMap::new();
    let mut is_failing = false;
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                is_failing = false;
                enter(event, &mut listed, pods);
            }
            // The watcher retries by itself.
            Err(error) if !is_failing => {
                is_failing = true;
                warn!(
                    error = error_chain(&error),
                    "Failed to watch the pods of the node"
                );
                tokio::time::sleep(RETRY).await;
            }
            Err(_) => tokio::time::sleep(RETRY).await,
        }
    }
}

fn enter(
    event: watcher::Event<Pod>,
    listed: &mut BTreeMap<String, Arc<PodFacts>>,
    pods: &watch::Sender<NodePods>,
) {
    match event {
        watcher::Event::Init => listed.clear(),
        watcher::Event::InitApply(pod) => {
            if let Some(uid) = pod.uid() {
                listed.insert(uid, Arc::new(facts(&pod)));
            }
        }
        watcher::Event::InitDone => {
            let count = listed.len();
            pods.send_modify(|pods| pods.replace(std::mem::take(listed)));
            info!(
                pods = count,
                source = "api-server",
                "Pods of the node listed"
            );
        }
        watcher::Event::Apply(pod) => pods.send_modify(|pods| pods.enter(&pod)),
        watcher::Event::Delete(pod) => {
            if let Some(uid) = pod.uid() {
                pods.send_modify(|pods| pods.leave(uid));
            }
        }
    }
}
