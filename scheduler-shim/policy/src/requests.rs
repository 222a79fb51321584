//! What a task asks of a node: resources, cards and NUMA zones.

use std::borrow::Cow;

use apportion_abi::Bytes;

use crate::cluster::{NumaScope, TaskGpuRequest, ZoneAmounts, is_of_bytes};
use crate::node_resources::{CardShareRequest, NodeResources, ResourceRequest};
use crate::numa::ZoneRequest;
use crate::snapshot::ClusterSnapshot;

/// What a task takes on any node; `None` if that depends on the node.
pub(crate) fn request_anywhere(
    facts: &ClusterSnapshot<'_>,
    task: usize,
) -> Option<ResourceRequest> {
    let asked = facts.task(task).task;
    let depends_on_size = match &asked.cards {
        TaskGpuRequest::Shared { share, .. } => is_of_bytes(*share, asked.limit),
        TaskGpuRequest::None | TaskGpuRequest::Whole(_) | TaskGpuRequest::Partitions(_) => false,
    };
    let has_claims = !asked.claims.is_empty() || !asked.extended.is_empty();
    if depends_on_size || has_claims || asked.pinned.is_some() || facts.nodes().is_empty() {
        return None;
    }
    Some(request_on(facts, task, 0))
}

/// What a task takes of a node.
pub(crate) fn request_on(facts: &ClusterSnapshot<'_>, task: usize, node: usize) -> ResourceRequest {
    let cards = facts.cards_on(task, node);
    let only = facts.pinned_class(task, node);
    let task = facts.task(task);
    let mut request = ResourceRequest {
        resources: NodeResources {
            cpu: task.task.cpu_millis,
            memory: task.task.memory,
            pods: 1,
            ..NodeResources::default()
        },
        ..ResourceRequest::default()
    };
    match cards {
        TaskGpuRequest::None => {}
        TaskGpuRequest::Whole(count) => request.resources.cards = *count,
        TaskGpuRequest::Partitions(partitions) => {
            let profiles = facts.profiles().iter();
            request.resources.partitions = profiles
                .map(|profile| partitions.get(profile).copied().unwrap_or(0))
                .collect();
        }
        TaskGpuRequest::Shared { share, devices } => {
            request.share = Some(CardShareRequest {
                share: *share,
                limit: task.task.limit,
                foreign_limits: task.task.foreign_limits,
                devices: usize::try_from(*devices).unwrap_or(usize::MAX),
                smallest: Bytes::ZERO,
                only,
            });
        }
    }
    if facts.allocator().is_some() {
        return request;
    }
    for &claim in task.claims.iter().flatten() {
        let claim = facts.claim(claim);
        if !claim.claim.is_of_cards {
            continue;
        }
        match &claim.given {
            // The claim has its cards, and the pod takes no others.
            Some(given) if given.node == node => request.claimed.extend(&given.cards),
            _ => {
                let cards = &mut request.resources.cards;
                *cards = cards.saturating_add(claim.claim.devices);
            }
        }
    }
    request
}

/// What a task asks of the zones of a node whose kubelet aligns by this scope. Devices of claims are not aligned.
pub(crate) fn zone_request<'s>(
    facts: &'s ClusterSnapshot<'_>,
    task: usize,
    node: usize,
    scope: NumaScope,
) -> ZoneRequest<'s> {
    let asked = facts.task(task).task;
    let request = zone_request_anywhere(facts, task, scope);
    if asked.extended.is_empty() || facts.cards_on(task, node) == &asked.cards {
        return request;
    }
    let without_cards = |all: &[ZoneAmounts]| {
        let parts = all.iter().map(|part| part.only(true, true, false));
        Cow::Owned(parts.collect())
    };
    ZoneRequest {
        together: without_cards(&request.together),
        before: without_cards(&request.before),
    }
}

fn zone_request_anywhere<'s>(
    facts: &'s ClusterSnapshot<'_>,
    task: usize,
    scope: NumaScope,
) -> ZoneRequest<'s> {
    match (&facts.task(task).task.containers, scope) {
        (Some(containers), NumaScope::Container) => ZoneRequest {
            together: Cow::Borrowed(&containers.running),
            before: Cow::Borrowed(&containers.init),
        },
        (Some(containers), NumaScope::Pod) => ZoneRequest::whole(containers.pod),
        (None, _) => ZoneRequest::whole(whole_zone_request(facts, task)),
    }
}

/// What the kubelet aligns of a pod as a whole: CPU only in whole processors, and memory only if guaranteed.
fn whole_zone_request(facts: &ClusterSnapshot<'_>, task: usize) -> ZoneAmounts {
    const WHOLE_CPU: i64 = 1000;
    let asked = facts.task(task).task;
    let cards = match &asked.cards {
        TaskGpuRequest::Whole(count) => *count,
        TaskGpuRequest::None | TaskGpuRequest::Shared { .. } | TaskGpuRequest::Partitions(_) => 0,
    };
    ZoneAmounts {
        cpu: asked.cpu_millis,
        memory: asked.memory,
        cards,
    }
    .only(
        asked.is_guaranteed && asked.cpu_millis % WHOLE_CPU == 0,
        asked.is_guaranteed,
        true,
    )
}

/// Whether the node has the labels that the task requires, and the card to which it is pinned.
pub(crate) fn matches_node(facts: &ClusterSnapshot<'_>, task: usize, node: usize) -> bool {
    let mut pinned = facts.task(task).task.pinned.iter();
    pinned.all(|pinned| pinned.node == facts.node(node).name) && matches_labels(facts, task, node)
}

/// Whether the node has the labels that the task requires.
pub(crate) fn matches_labels(facts: &ClusterSnapshot<'_>, task: usize, node: usize) -> bool {
    let labels = &facts.node(node).labels;
    let mut wanted = facts.task(task).task.node_affinity.iter();
    wanted.all(|(label, values)| {
        let value = labels.get(label);
        value.is_some_and(|value| values.contains(value))
    })
}
