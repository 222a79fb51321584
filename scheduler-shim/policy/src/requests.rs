//! What a task asks of a node: resources, cards and NUMA zones.

use std::borrow::Cow;
use std::collections::BTreeMap;

use apportion_abi::{Bytes, Share as CardShare};

use crate::charges::charged;
use crate::cluster::{NumaScope, TaskGpuRequest, ZoneAmounts};
use crate::fit::has_quota;
use crate::node_resources::{CardShareRequest, NodeResources, ResourceRequest};
use crate::numa::ZoneRequest;
use crate::session::Session;

/// What a task takes on any node; `None` if that depends on the node.
pub(crate) fn need_anywhere(session: &Session<'_>, task: usize) -> Option<ResourceRequest> {
    let facts = &session.tasks[task];
    let is_of_bytes = matches!(
        facts.task.cards,
        TaskGpuRequest::Shared {
            share: CardShare::Memory(_),
            ..
        }
    );
    let depends = is_of_bytes || !facts.task.claims.is_empty();
    (!depends && !session.nodes.is_empty()).then(|| need(session, task, 0))
}

/// What a task takes of a node.
pub(crate) fn need(session: &Session<'_>, task: usize, node: usize) -> ResourceRequest {
    let facts = session.tasks[task].task;
    let mut need = ResourceRequest {
        node_state: NodeResources {
            cpu: facts.cpu_millis,
            memory: facts.memory,
            pods: 1,
            ..NodeResources::default()
        },
        ..ResourceRequest::default()
    };
    match &facts.cards {
        TaskGpuRequest::None => {}
        TaskGpuRequest::Whole(count) => need.node_state.cards = *count,
        TaskGpuRequest::Partitions(partitions) => {
            need.node_state.partitions = by_profile(session, partitions)
        }
        TaskGpuRequest::Shared { share, devices } => {
            need.share = Some(CardShareRequest {
                share: *share,
                devices: usize::try_from(*devices).unwrap_or(usize::MAX),
                smallest: Bytes::ZERO,
            });
        }
    }
    for &claim in session.tasks[task].claims.iter().flatten() {
        let facts = &session.claims[claim];
        match &facts.given {
            _ if !facts.claim.is_of_cards => {}
            Some((place, cards)) if *place == node => need.claimed.extend(cards),
            _ => {
                need.node_state.cards = need.node_state.cards.saturating_add(facts.claim.devices);
            }
        }
    }
    need
}

/// Like `need`, for a task that is yet to be placed: with the smallest card that its queues can pay for.
pub(crate) fn need_to_place(session: &Session<'_>, task: usize, node: usize) -> ResourceRequest {
    let mut need = need(session, task, node);
    let bytes = |share: &CardShareRequest| matches!(share.share, CardShare::Memory(_));
    if let Some(share) = need.share.as_mut().filter(|share| bytes(share)) {
        let mut sizes = session.node_states[node].sizes.all();
        let payable = sizes.find(|&size| {
            share.of(size).is_some() && has_quota(session, task, charged(session, task, size))
        });
        share.smallest = payable.unwrap_or(Bytes::ZERO);
    }
    need
}

/// What a task asks of the zones of a node.
pub(crate) fn zone_request<'s>(
    session: &'s Session<'_>,
    task: usize,
    node: usize,
) -> ZoneRequest<'s> {
    match (
        &session.tasks[task].task.containers,
        session.node_states[node].zones.scope,
    ) {
        (Some(containers), NumaScope::Container) => ZoneRequest {
            together: Cow::Borrowed(&containers.running),
            before: &containers.init,
        },
        (Some(containers), NumaScope::Pod) => ZoneRequest::whole(containers.pod),
        (None, _) => ZoneRequest::whole(whole_zone_request(session, task)),
    }
}

fn whole_zone_request(session: &Session<'_>, task: usize) -> ZoneAmounts {
    const WHOLE_CPU: i64 = 1000;
    let facts = session.tasks[task].task;
    let cards = match &facts.cards {
        TaskGpuRequest::Whole(count) => *count,
        TaskGpuRequest::None | TaskGpuRequest::Shared { .. } | TaskGpuRequest::Partitions(_) => 0,
    };
    ZoneAmounts {
        cpu: facts.cpu_millis,
        memory: facts.memory,
        cards,
    }
    .only(
        facts.is_guaranteed && facts.cpu_millis % WHOLE_CPU == 0,
        facts.is_guaranteed,
        true,
    )
}

fn by_profile(session: &Session<'_>, partitions: &BTreeMap<String, i64>) -> Vec<i64> {
    let count = |profile| partitions.get(profile).copied().unwrap_or(0);
    session.profiles.iter().map(count).collect()
}
