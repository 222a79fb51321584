//! The pods from the kubelet's own pods API (KEP-4188): known as soon as the kubelet acts on them, and without an
//! API server.
//!
//! The API reports a pod as deleted when none of its containers runs or will run again, even if the API server still
//! has it. The kubelet encodes pods as Kubernetes does. The fields that the agent reads are converted to the API
//! server's `Pod` type.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use apportion_proto::pods::pods_client::PodsClient;
use apportion_proto::pods::{self as wire, EventType, WatchPodsEvent, WatchPodsRequest};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use kube::ResourceExt;
use tokio::sync::watch;
use tonic::Streaming;
use tracing::{debug, info, warn};

use super::{NodePods, PodFacts, facts};

/// How often to try a kubelet that does not serve the API: it may be upgraded.
const ASK_EVERY: Duration = Duration::from_secs(10);
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

type Events = Streaming<WatchPodsEvent>;

/// The socket of the pods API, in the kubelet's folder.
pub(super) fn socket(dir: &Path) -> PathBuf {
    dir.join("pods-api/pods-api.sock")
}

/// Opens the watch, if the kubelet serves it.
pub(super) async fn open(socket: &Path) -> Option<Events> {
    if !socket.exists() {
        return None;
    }
    let asked = async {
        let channel = apportion_proto::channel(socket).await.ok()?;
        let asked = PodsClient::new(channel)
            .watch_pods(WatchPodsRequest {})
            .await;
        Some(
            asked
                .map_err(|status| debug!(%status, "Kubelet pods API unavailable"))
                .ok()?
                .into_inner(),
        )
    };
    tokio::time::timeout(PATIENCE, asked).await.ok().flatten()
}

/// Waits until the kubelet serves the watch.
pub(super) async fn opened(socket: &Path) -> Events {
    loop {
        tokio::time::sleep(ASK_EVERY).await;
        if let Some(events) = open(socket).await {
            return events;
        }
    }
}

/// Applies the events until the watch ends.
pub(super) async fn follow(mut events: Events, pods: &watch::Sender<NodePods>) {
    let mut listed = Some(BTreeMap::new());
    loop {
        match events.message().await {
            Ok(Some(event)) => enter(event, &mut listed, pods),
            Ok(None) => return,
            Err(status) => {
                let reason = status.message();
                return warn!(reason, "Kubelet pods API watch ended");
            }
        }
    }
}

/// Applies an event. `listed` collects the pods until the first list is complete.
fn enter(
    event: WatchPodsEvent,
    listed: &mut Option<BTreeMap<String, Arc<PodFacts>>>,
    pods: &watch::Sender<NodePods>,
) {
    let kind = event.r#type();
    let pod = event.pod.map(pod).unwrap_or_default();
    match (kind, pod.uid(), &mut *listed) {
        (EventType::InitialSyncComplete, ..) => {
            if let Some(listed) = listed.take() {
                info!(
                    pods = listed.len(),
                    source = "kubelet",
                    "Pods of the node listed"
                );
                pods.send_modify(|pods| pods.replace(listed));
            }
        }
        (EventType::Added | EventType::Modified, Some(uid), Some(listed)) => {
            listed.insert(uid, Arc::new(facts(&pod)));
        }
        (EventType::Added | EventType::Modified, Some(_), None) => {
            pods.send_modify(|pods| pods.enter(&pod));
        }
        (EventType::Deleted, Some(uid), Some(listed)) => drop(listed.remove(&uid)),
        (EventType::Deleted, Some(uid), None) => pods.send_modify(|pods| pods.leave(uid)),
        (EventType::Unspecified, ..) | (_, None, _) => {}
    }
}

fn pod(pod: wire::Pod) -> core::Pod {
    core::Pod {
        metadata: pod.metadata.map(metadata).unwrap_or_default(),
        spec: pod.spec.map(spec),
        status: pod.status.map(status),
    }
}

fn metadata(of: wire::ObjectMeta) -> meta::ObjectMeta {
    // Only whether it is being deleted matters, not since when.
    let ends = of
        .deletion_timestamp
        .map(|_| meta::Time(k8s_openapi::jiff::Timestamp::default()));
    meta::ObjectMeta {
        name: Some(of.name),
        namespace: Some(of.namespace),
        uid: Some(of.uid).filter(|uid| !uid.is_empty()),
        annotations: Some(of.annotations.into_iter().collect()),
        deletion_timestamp: ends,
        ..meta::ObjectMeta::default()
    }
}

fn spec(of: wire::PodSpec) -> core::PodSpec {
    core::PodSpec {
        containers: of.containers.into_iter().map(container).collect(),
        init_containers: Some(of.init_containers.into_iter().map(container).collect()),
        restart_policy: of.restart_policy,
        ..core::PodSpec::default()
    }
}

fn container(of: wire::Container) -> core::Container {
    let limits = of.resources.unwrap_or_default().limits.into_iter();
    let mounts = of.volume_mounts.into_iter();
    core::Container {
        name: of.name,
        restart_policy: of.restart_policy,
        resources: Some(core::ResourceRequirements {
            limits: Some(
                limits
                    .map(|(name, of)| (name, Quantity(of.string)))
                    .collect(),
            ),
            ..core::ResourceRequirements::default()
        }),
        volume_mounts: Some(mounts.map(mount).collect()),
        ..core::Container::default()
    }
}

fn mount(of: wire::VolumeMount) -> core::VolumeMount {
    core::VolumeMount {
        name: of.name,
        mount_path: of.mount_path,
        ..core::VolumeMount::default()
    }
}

fn status(of: wire::PodStatus) -> core::PodStatus {
    let statuses = of.container_statuses.into_iter();
    core::PodStatus {
        phase: of.phase,
        container_statuses: Some(statuses.map(container_status).collect()),
        ..core::PodStatus::default()
    }
}

fn container_status(of: wire::ContainerStatus) -> core::ContainerStatus {
    let state = |of: wire::ContainerState| core::ContainerState {
        running: of.running.map(|_| core::ContainerStateRunning::default()),
        terminated: of
            .terminated
            .map(|_| core::ContainerStateTerminated::default()),
        ..core::ContainerState::default()
    };
    core::ContainerStatus {
        name: of.name,
        state: of.state.map(state),
        ..core::ContainerStatus::default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use apportion_abi::names::RESOURCE_SLOT;

    fn pod_event(kind: EventType, phase: &str) -> WatchPodsEvent {
        let quantity = wire::Quantity { string: "1".into() };
        let container = |name: &str| wire::Container {
            name: name.into(),
            resources: Some(wire::ResourceRequirements {
                limits: [(RESOURCE_SLOT.to_owned(), quantity.clone())].into(),
            }),
            volume_mounts: vec![wire::VolumeMount {
                name: "own".into(),
                mount_path: "/.apportion".into(),
            }],
            restart_policy: None,
        };
        let pod = wire::Pod {
            metadata: Some(wire::ObjectMeta {
                name: "train".into(),
                namespace: "team".into(),
                uid: "u1".into(),
                annotations: [("gpu-memory".to_owned(), "2000".to_owned())].into(),
                deletion_timestamp: None,
            }),
            spec: Some(wire::PodSpec {
                containers: vec![container("main")],
                restart_policy: Some("Never".into()),
                init_containers: vec![container("first")],
            }),
            status: Some(wire::PodStatus {
                phase: Some(phase.into()),
                container_statuses: Vec::new(),
            }),
        };
        WatchPodsEvent {
            r#type: kind.into(),
            pod: Some(pod),
        }
    }

    #[test]
    fn a_pod_is_known_once_the_list_is_complete_and_ended_when_the_kubelet_says_so() {
        let (pods, seen) = watch::channel(NodePods::default());
        let mut listed = Some(BTreeMap::new());
        let mut apply = |kind, phase| enter(pod_event(kind, phase), &mut listed, &pods);
        apply(EventType::Added, "Pending");
        assert!(seen.borrow().get("u1").is_none());
        apply(EventType::InitialSyncComplete, "");
        let facts = seen.borrow().get("u1").cloned().unwrap();
        assert_eq!(
            (facts.name.as_str(), facts.memory.as_deref()),
            ("team/train", Some("2000"))
        );
        assert_eq!(
            facts.covered.as_deref(),
            Some("container first mounts a volume at /.apportion")
        );
        assert!(
            seen.borrow()
                .are_init("u1", &BTreeSet::from(["first".to_owned()]))
        );
        apply(EventType::Modified, "Succeeded");
        assert_eq!(seen.borrow().live().count(), 0);
        apply(EventType::Deleted, "");
        assert_eq!(seen.borrow().ended().collect::<Vec<_>>(), ["u1"]);
        assert!(seen.borrow().get("u1").is_none());
    }
}
