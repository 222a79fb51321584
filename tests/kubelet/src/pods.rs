//! The kubelet's pods API as an agent sees it: first all pods, then the changes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use apportion_proto::pods::pods_server::{Pods, PodsServer};
use apportion_proto::pods::{EventType, ObjectMeta, Pod, WatchPodsEvent, WatchPodsRequest};
use tokio::sync::broadcast;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::{BroadcastStream, UnixListenerStream};
use tokio_stream::{Stream, StreamExt};
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::kubelet::listen;

/// The service. It ends when this is dropped.
#[derive(Debug)]
pub struct PodsApi {
    known: PodsState,
    server: JoinHandle<()>,
}

#[derive(Clone, Debug)]
struct PodsState {
    pods: Arc<Mutex<BTreeMap<String, Pod>>>,
    events: broadcast::Sender<WatchPodsEvent>,
}

impl PodsApi {
    /// Serves below the kubelet's folder, without pods.
    ///
    /// # Panics
    /// If the socket cannot be created.
    #[must_use]
    pub fn listen(dir: &Path) -> Self {
        let known = PodsState {
            pods: Arc::default(),
            events: broadcast::channel(64).0,
        };
        let incoming = UnixListenerStream::new(listen(&dir.join("pods-api/pods-api.sock")));
        let server = Server::builder().add_service(PodsServer::new(known.clone()));
        let server = tokio::spawn(async move {
            let _ = server.serve_with_incoming(incoming).await;
        });
        Self { known, server }
    }

    /// Adds a pod with these annotations to the namespace `team`.
    pub fn has(&self, uid: &str, name: &str, annotations: &[(&str, &str)]) {
        let annotations = annotations.iter();
        let metadata = ObjectMeta {
            name: name.to_owned(),
            namespace: "team".to_owned(),
            uid: uid.to_owned(),
            annotations: annotations
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
            deletion_timestamp: None,
        };
        let pod = Pod {
            metadata: Some(metadata),
            ..Pod::default()
        };
        let mut pods = self.known.pods();
        pods.insert(uid.to_owned(), pod.clone());
        let _ = self.known.events.send(event(EventType::Added, Some(pod)));
    }

    /// Marks a pod as finished: nothing of it runs or will run again.
    pub fn is_finished(&self, uid: &str) {
        let gone = self.known.pods().remove(uid);
        let _ = self.known.events.send(event(EventType::Deleted, gone));
    }
}

impl Drop for PodsApi {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl PodsState {
    fn pods(&self) -> MutexGuard<'_, BTreeMap<String, Pod>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn event(kind: EventType, pod: Option<Pod>) -> WatchPodsEvent {
    WatchPodsEvent {
        r#type: kind.into(),
        pod,
    }
}

#[tonic::async_trait]
impl Pods for PodsState {
    type WatchPodsStream =
        std::pin::Pin<Box<dyn Stream<Item = Result<WatchPodsEvent, Status>> + Send>>;

    async fn watch_pods(
        &self,
        _: Request<WatchPodsRequest>,
    ) -> Result<Response<Self::WatchPodsStream>, Status> {
        let pods = self.pods();
        let later = BroadcastStream::new(self.events.subscribe());
        let added = pods.values().cloned();
        let added = added.map(|pod| event(EventType::Added, Some(pod)));
        let complete = event(EventType::InitialSyncComplete, None);
        let first: Vec<_> = added.chain([complete]).map(Ok).collect();
        let late = |_| Status::resource_exhausted("watch client channel closed");
        let later = later.map(move |event| event.map_err(late));
        Ok(Response::new(Box::pin(
            tokio_stream::iter(first).chain(later),
        )))
    }
}
