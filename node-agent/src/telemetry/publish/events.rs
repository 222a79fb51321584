//! Events on pods that exceed or bypass their limit, sleep for others or cannot sleep, and on the node when a card fails.
//! The owners of pods cannot read the agent's log.
//!
//! A pod decides how often it offends, so it must not decide how often the API server gets an event. There is at
//! most one event of a kind for each object in a minute. An event that cannot be published is not retried; metrics
//! and `GpuNode` have the state.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use apportion_abi::ContainerRef;
use apportion_proto::v1;
use k8s_openapi::api::core::v1::{Node, ObjectReference, Pod};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource};
use tracing::debug;

/// The minimum time between two events of one kind on one object.
const QUIET: Duration = Duration::from_secs(60);
/// The most objects that are remembered.
const MOST: usize = 4096;

pub(super) struct EventPublisher {
    recorder: Recorder,
    node: String,
    quiet: EventSpamFilter,
}

impl EventPublisher {
    pub(super) fn new(client: Client, node: String) -> Self {
        Self {
            recorder: recorder(client, node.clone()),
            node,
            quiet: EventSpamFilter::default(),
        }
    }

    /// Publishes the event on its object, if it has one.
    pub(super) async fn publish(&mut self, event: &v1::Event, list: &v1::ListReply) {
        let Some((reason, type_)) = row(event.kind()) else {
            return;
        };
        let Some(object) = self.concerned(event, list) else {
            return;
        };
        let key = (object.uid.clone().or(object.name.clone()), reason);
        if !self.quiet.passes(Instant::now(), key) {
            return;
        }
        let kubernetes_event = Event {
            type_,
            reason: reason.to_owned(),
            note: Some(note(event, list)),
            action: "Enforce".to_owned(),
            secondary: None,
        };
        if let Err(problem) = self.recorder.publish(&kubernetes_event, &object).await {
            debug!(%problem, reason, "Failed to publish an event");
        }
    }

    fn concerned(&self, event: &v1::Event, list: &v1::ListReply) -> Option<ObjectReference> {
        if event.allocation.is_empty() {
            return Some(reference::<Node>(&self.node, None, Some(self.node.clone())));
        }
        let workload = ContainerRef::of(&event.name)?;
        let namespace = Some(workload.namespace.to_owned());
        let uid = pod_uid(&event.allocation, list);
        Some(reference::<Pod>(workload.pod, namespace, uid))
    }
}

/// Publishes events as the agent of a node.
pub(crate) fn recorder(client: Client, node: String) -> Recorder {
    let reporter = Reporter {
        controller: "apportion-agent".to_owned(),
        instance: Some(node),
    };
    Recorder::new(client, reporter)
}

fn reference<K: Resource<DynamicType = ()>>(
    name: &str,
    namespace: Option<String>,
    uid: Option<String>,
) -> ObjectReference {
    ObjectReference {
        api_version: Some(K::api_version(&()).into_owned()),
        kind: Some(K::kind(&()).into_owned()),
        name: Some(name.to_owned()),
        namespace,
        uid,
        ..ObjectReference::default()
    }
}

/// The reason and type of an event, for kinds that are published.
fn row(kind: v1::EventKind) -> Option<(&'static str, EventType)> {
    use v1::EventKind as Kind;
    match kind {
        Kind::Bypassed => Some(("GpuLimitBypassed", EventType::Warning)),
        Kind::Overlimit => Some(("GpuLimitExceeded", EventType::Warning)),
        Kind::Ungranted => Some(("GpuNotGranted", EventType::Warning)),
        Kind::Killed => Some(("GpuProcessKilled", EventType::Warning)),
        Kind::Evicted => Some(("GpuPodEvicted", EventType::Warning)),
        Kind::Suspended => Some(("GpuMemorySuspended", EventType::Warning)),
        Kind::Resumed => Some(("GpuMemoryResumed", EventType::Normal)),
        Kind::StaysAwake => Some(("GpuMemoryStaysAwake", EventType::Warning)),
        Kind::Damaged => Some(("GpuAccountDamaged", EventType::Warning)),
        Kind::CardUnhealthy => Some(("GpuUnhealthy", EventType::Warning)),
        Kind::CardLost => Some(("GpuLost", EventType::Warning)),
        Kind::CardHealthy => Some(("GpuHealthy", EventType::Normal)),
        Kind::Unspecified
        | Kind::Allocated
        | Kind::Committed
        | Kind::Resized
        // A pod that is called now and then sleeps and wakes all day.
        | Kind::Idle
        | Kind::Called
        | Kind::Draining
        | Kind::Released
        | Kind::Expired
        | Kind::CardFound => None,
    }
}

/// The event's message, with GPU, limit and use.
fn note(event: &v1::Event, list: &v1::ListReply) -> String {
    const MIB: u64 = 1 << 20;
    let allocations = list.allocations.iter();
    let mut of_allocation = allocations.filter(|of| of.id == event.allocation);
    let grant =
        of_allocation.find_map(|of| of.grants.iter().find(|grant| grant.card == event.card));
    let mut note = event.message.clone();
    if !event.card.is_empty() {
        note.push_str(&format!(" ({})", event.card));
    }
    if let Some(grant) = grant {
        let (limit, used) = (grant.limit_bytes / MIB, grant.nvml_bytes / MIB);
        note.push_str(&format!(
            ": the limit is {limit} MiB, NVML reports {used} MiB"
        ));
    }
    note
}

/// The UID of the pod that holds an allocation.
pub(super) fn pod_uid(id: &str, list: &v1::ListReply) -> Option<String> {
    let allocation = list.allocations.iter().find(|of| of.id == id)?;
    match allocation.holder.as_ref()?.kind.as_ref()? {
        v1::holder::Kind::PodUid(uid) => Some(uid.clone()),
        // The allocation is named after this pod.
        v1::holder::Kind::Claim(claim) => {
            let own = claim.pods.iter().find(|pod| pod.name == allocation.name);
            own.map(|pod| pod.uid.clone())
        }
        v1::holder::Kind::Pid(_) => None,
    }
}

type Key = (Option<String>, &'static str);

/// The latest events, by object and reason.
#[derive(Default)]
struct EventSpamFilter(BTreeMap<Key, Instant>);

impl EventSpamFilter {
    fn passes(&mut self, now: Instant, key: Key) -> bool {
        self.0.retain(|_, at| now.duration_since(*at) < QUIET);
        if self.0.contains_key(&key) || self.0.len() >= MOST {
            return false;
        }
        self.0.insert(key, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offender_is_told_once_a_minute() {
        let start = Instant::now();
        let mut quiet = EventSpamFilter::default();
        let key = |pod: &str| (Some(pod.to_owned()), "GpuLimitBypassed");
        assert!(quiet.passes(start, key("a")));
        assert!(!quiet.passes(start + QUIET / 2, key("a")));
        assert!(quiet.passes(start + QUIET / 2, key("b")));
        assert!(quiet.passes(start + QUIET, key("a")));
    }

    #[test]
    fn more_objects_than_are_remembered_are_not_told() {
        let now = Instant::now();
        let mut quiet = EventSpamFilter::default();
        for pod in 0..MOST {
            assert!(quiet.passes(now, (Some(pod.to_string()), "r")));
        }
        assert!(!quiet.passes(now, (Some("one more".to_owned()), "r")));
    }
}
