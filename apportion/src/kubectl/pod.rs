//! What a pod's own object says: its node, its requests, and what blocks it.

use apportion_abi::names::{LABEL_OLD_QUEUE, LABEL_QUEUE};
use apportion_admission::names;
use apportion_crds::PodGroup;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

/// The labels that name a queue, the newer one first.
const QUEUES: [&str; 2] = [LABEL_QUEUE, LABEL_OLD_QUEUE];
/// The annotation that names a pod's group.
pub(crate) const GROUP: &str = "pod-group-name";

pub(crate) fn node_of(pod: &Pod) -> Option<String> {
    pod.spec.as_ref()?.node_name.clone()
}

/// The queue that the pod names, or its group's queue.
pub(crate) fn queue_of(pod: &Pod, group: Option<&PodGroup>) -> Option<String> {
    let of_group = group.map(|group| group.spec.queue.clone());
    let labels = pod.labels();
    let of_pod = QUEUES.iter().find_map(|label| labels.get(*label).cloned());
    of_group.filter(|name| !name.is_empty()).or(of_pod)
}

pub(crate) fn phase(pod: &Pod) -> String {
    let phase = pod.status.as_ref().and_then(|status| status.phase.clone());
    match pod.metadata.deletion_timestamp {
        Some(_) => "Terminating".to_owned(),
        None => phase.unwrap_or_else(|| "Unknown".to_owned()),
    }
}

pub(crate) fn has_share(pod: &Pod) -> bool {
    asks_by_annotation(pod).next().is_some()
}

fn asks_by_annotation(pod: &Pod) -> impl Iterator<Item = String> + '_ {
    let all = pod.annotations().iter();
    all.filter(move |(name, _)| {
        names::REQUEST.contains(&name.as_str()) || name.starts_with(names::PER_CONTAINER)
    })
    .map(|(name, value)| format!("{name}: {value}"))
}

/// What the pod requests of GPUs.
pub(crate) fn asks(pod: &Pod) -> Vec<String> {
    let spec = pod.spec.clone().unwrap_or_default();
    asks_by_annotation(pod)
        .chain(spec.containers.iter().filter_map(|container| {
            let limits = container.resources.as_ref()?.limits.as_ref()?;
            Some(format!("{}: {}", names::WHOLE, limits.get(names::WHOLE)?.0))
        }))
        .collect()
}

/// The message of a condition that is not true.
pub(crate) fn condition(pod: &Pod, kind: &str) -> Option<String> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let mut conditions = conditions.iter();
    let found = conditions.find(|one| one.type_ == kind && one.status != "True")?;
    found.message.clone().or_else(|| found.reason.clone())
}

/// Containers that fail to start.
pub(crate) fn stuck(pod: &Pod) -> Vec<String> {
    let status = pod.status.clone().unwrap_or_default();
    let all = [status.init_container_statuses, status.container_statuses]
        .into_iter()
        .flatten()
        .flatten();
    let lines = all.filter_map(|container| {
        let waiting = container.state?.waiting?;
        let (reason, message) = (waiting.reason.unwrap_or_default(), waiting.message?);
        Some(format!(
            "container {} does not start: {reason}: {message}",
            container.name
        ))
    });
    lines.collect()
}
