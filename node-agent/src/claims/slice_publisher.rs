//! Keeps the node's `ResourceSlice` equal to what the agent offers to claims.
//!
//! The slice is written as soon as something changed, and again if somebody removed it: the kubelet does so when the
//! driver was away for half a minute, and when the kubelet starts. Each write is another generation of the pool, so a
//! scheduler never mixes two of them.

use std::sync::Arc;
use std::time::Duration;

use apportion_exit::error_chain;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{Device, ResourceSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::runtime::watcher;
use kube::{Api, Client, Error};
use tokio::sync::watch;
use tokio_stream::StreamExt;
use tracing::{debug, info, warn};

use super::device_offers::DeviceOffers;
use super::resource_slice::{devices, slice, slice_name};

/// The field manager of the agent.
const FIELD_MANAGER: &str = "apportion-agent";
/// The least time between two writes.
const PACE: Duration = Duration::from_millis(200);
/// How long until a failed write is tried again.
const AGAIN: Duration = Duration::from_secs(1);
/// How long the API server may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Writes the slice of one node.
pub(super) struct SlicePublisher {
    node: String,
    slices: Api<ResourceSlice>,
    nodes: Api<Node>,
    owner: Option<OwnerReference>,
    /// The latest generation of the pool; `None` until the existing slice was read.
    generation: Option<i64>,
}

impl SlicePublisher {
    pub(super) fn new(client: Client, node: String) -> Self {
        Self {
            node,
            slices: Api::all(client.clone()),
            nodes: Api::all(client),
            owner: None,
            generation: None,
        }
    }

    /// Publishes as long as the agent runs.
    pub(super) async fn publish(mut self, mut offers: watch::Receiver<Arc<DeviceOffers>>) {
        let (seen, mut foreign) = watch::channel(());
        let others = watch_others(self.slices.clone(), slice_name(&self.node), seen);
        tokio::spawn(others);
        let mut written: Option<Vec<Device>> = None;
        let mut problem = None;
        loop {
            let wanted = devices(&offers.borrow_and_update());
            // An agent that knows no card yet has nothing to say.
            if wanted.is_empty() || written.as_ref() == Some(&wanted) {
                tokio::select! {
                    changed = offers.changed() => if changed.is_err() { return },
                    _ = foreign.changed() => if self.is_lost().await { written = None },
                }
                continue;
            }
            let pause = match tokio::time::timeout(PATIENCE, self.write(wanted.clone())).await {
                Ok(Ok(generation)) => {
                    debug!(generation, devices = wanted.len(), "ResourceSlice written");
                    if written.is_none() {
                        info!(devices = wanted.len(), "GPUs offered to resource claims");
                    }
                    (written, problem) = (Some(wanted), None);
                    PACE
                }
                Ok(Err(error)) => {
                    self.generation = None;
                    warn_once(&mut problem, error_chain(&error));
                    AGAIN
                }
                Err(_) => {
                    warn_once(&mut problem, "the API server does not answer".to_owned());
                    AGAIN
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Removes the slice, if there is one.
    pub(super) async fn remove(&self) {
        let name = slice_name(&self.node);
        match self.slices.delete(&name, &DeleteParams::default()).await {
            Ok(_) => info!(name, "ResourceSlice removed"),
            Err(Error::Api(status)) if matches!(status.code, 403 | 404) => {}
            Err(error) => debug!(
                name,
                problem = error_chain(&error),
                "ResourceSlice not removed"
            ),
        }
    }

    async fn write(&mut self, devices: Vec<Device>) -> Result<i64, Error> {
        let name = slice_name(&self.node);
        let before = match self.generation {
            Some(generation) => generation,
            None => {
                let found = self.slices.get_opt(&name).await?;
                found.map_or(0, |slice| slice.spec.pool.generation)
            }
        };
        if self.owner.is_none() {
            self.owner = Some(self.node_owner().await?);
        }
        let generation = before + 1;
        let slice = slice(&self.node, self.owner.clone(), generation, devices);
        let how = PatchParams::apply(FIELD_MANAGER).force();
        self.slices
            .patch(&name, &how, &Patch::Apply(&slice))
            .await?;
        self.generation = Some(generation);
        Ok(generation)
    }

    /// The slice is the node's and goes with it.
    async fn node_owner(&self) -> Result<OwnerReference, Error> {
        let node = self.nodes.get(&self.node).await?;
        Ok(OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: self.node.clone(),
            uid: node.metadata.uid.unwrap_or_default(),
            controller: Some(true),
            ..OwnerReference::default()
        })
    }

    /// Whether the slice is not the one that was written last.
    async fn is_lost(&self) -> bool {
        match self.slices.get_opt(&slice_name(&self.node)).await {
            Ok(Some(slice)) => Some(slice.spec.pool.generation) != self.generation,
            Ok(None) => true,
            Err(_) => false,
        }
    }
}

/// Logs a problem when it is not the one before.
fn warn_once(before: &mut Option<String>, problem: String) {
    if before.as_ref() != Some(&problem) {
        warn!(problem, "Failed to write the ResourceSlice, retrying");
    }
    *before = Some(problem);
}

/// Notifies of each event of the slice.
async fn watch_others(slices: Api<ResourceSlice>, name: String, seen: watch::Sender<()>) {
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut events = Box::pin(watcher(slices, config));
    while let Some(event) = events.next().await {
        if event.is_err() {
            tokio::time::sleep(AGAIN).await;
        }
        if seen.send(()).is_err() {
            return;
        }
    }
}
