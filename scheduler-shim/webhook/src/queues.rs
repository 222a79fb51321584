//! The cluster's queues, for the rules that look at more than one.
//!
//! Only warnings depend on them, so an answer never waits for them: it uses the queues that were last seen.

use std::sync::Arc;
use std::time::Duration;

use apportion_admission::queue::{QueueLookup, ReviewedQueue};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use serde::Deserialize;
use serde_json::json;
use tokio_stream::StreamExt;
use tracing::warn;

/// How long to wait before asking again for a kind that did not exist.
const PAUSE: Duration = Duration::from_secs(30);

/// The queues that were last seen.
pub(crate) struct QueueReflector {
    store: Store<DynamicObject>,
    kind: ApiResource,
}

impl QueueLookup for QueueReflector {
    fn find(&self, name: &str) -> Option<ReviewedQueue> {
        let found = self
            .store
            .get(&ObjectRef::new_with(name, self.kind.clone()))?;
        ReviewedQueue::deserialize(json!(*found)).ok()
    }
}

/// Follows the queues until the program ends.
pub(crate) fn follow(client: Client) -> Arc<QueueReflector> {
    let kind = GroupVersionKind::gvk("scheduling.run.ai", "v2", "Queue");
    let kind = ApiResource::from_gvk_with_plural(&kind, "queues");
    let writer = reflector::store::Writer::new(kind.clone());
    let store = writer.as_reader();
    let api: Api<DynamicObject> = Api::all_with(client, &kind);
    tokio::spawn(async move {
        let events = watcher(api, watcher::Config::default()).default_backoff();
        let mut events = std::pin::pin!(reflector::reflector(writer, events));
        while let Some(event) = events.next().await {
            if let Err(problem) = event {
                warn!(%problem, "Failed to watch queues");
                tokio::time::sleep(PAUSE).await;
            }
        }
    });
    Arc::new(QueueReflector { store, kind })
}
