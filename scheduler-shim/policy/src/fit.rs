//! Whether a pod may run on a node.
//!
//! Checks free resources first, then everything else.

use apportion_abi::Bytes;

use crate::affinity_filter::matches_neighbours;
use crate::amounts::ResourceAmounts;
use crate::charges::{charged, limits, wants_cards};
use crate::claims::grants_claims;
use crate::cluster::{MigStrategy, TaskGpuRequest, is_of_bytes};
use crate::node_resources::{CardShareRequest, ResourceRequest};
use crate::requests::{matches_node, request_on};
use crate::session::Session;
use crate::transitions::zones_for;

/// Whether the task fits the node, counting what is being released there.
pub(crate) fn fits(
    session: &Session<'_>,
    task: usize,
    node: usize,
    request: &ResourceRequest,
) -> bool {
    session.state().node(node).fits_soon(request)
        && (!session.facts().settings().has_predicates || is_allowed(session, task, node, request))
}

fn is_allowed(session: &Session<'_>, task: usize, node: usize, request: &ResourceRequest) -> bool {
    grants_claims(session, task, node)
        && aligns(session, task, node)
        && may_ever_be(session, task, node)
        && may_take_partitions(session, task, node)
        && has_pod_slot(session, node, request)
        && matches_neighbours(session, task, node)
}

/// Whether the queues have room for the task's charge on this node.
pub(crate) fn has_node_quota(session: &Session<'_>, task: usize, node: usize) -> bool {
    let node_state = session.state().node(node);
    let card = match &session.facts().task(task).task.cards {
        // The lowest possible charge: which cards it gets depends on what its queues can pay for.
        TaskGpuRequest::Shared { .. } if node_state.sizes.is_listed() => node_state.largest(),
        _ => node_state.card_memory,
    };
    has_quota(session, task, card)
}

/// Whether the queues of a task have room for it on cards of this size.
fn has_quota(session: &Session<'_>, task: usize, card: Bytes) -> bool {
    if !session.facts().settings().has_predicates {
        return true;
    }
    let job = session.facts().task(task).job;
    let charge = charged(session.facts(), task, card);
    is_within_bounds(session, job, charge) && is_within_burst_limits(session, job, &[task], card)
}

/// Whether the job's queue and all above have room for `more`.
pub(crate) fn is_within_bounds(session: &Session<'_>, job: usize, more: ResourceAmounts) -> bool {
    is_within_limits(session, job, more) && is_within_quota(session, job, more)
}

fn is_within_limits(session: &Session<'_>, job: usize, more: ResourceAmounts) -> bool {
    let Some(queue) = session
        .facts()
        .job(job)
        .queue
        .filter(|_| session.facts().settings().has_quotas)
    else {
        return true;
    };
    let mut queues = session.state().queues().upward(queue);
    queues.all(|queue| {
        session
            .state()
            .queues()
            .get(queue)
            .over_limit(more)
            .is_none()
    })
}

/// Whether the job's queue and all above stay within their burst limits with these tasks on cards of this size.
pub(crate) fn is_within_burst_limits(
    session: &Session<'_>,
    job: usize,
    tasks: &[usize],
    card: Bytes,
) -> bool {
    let (facts, tree) = (session.facts(), session.state().queues());
    let bound = facts.settings().has_quotas && tree.has_burst_limits();
    let Some(queue) = facts.job(job).queue.filter(|_| bound) else {
        return true;
    };
    let more = limits(facts, tasks, card);
    let mut queues = tree.upward(queue);
    queues.all(|queue| !tree.get(queue).exceeds_burst_limit(more))
}

/// Whether a non-preemptible job keeps its queues within their quotas.
pub(crate) fn is_within_quota(session: &Session<'_>, job: usize, more: ResourceAmounts) -> bool {
    let facts = session.facts().job(job);
    let bound = session.facts().settings().has_quotas && !facts.job.is_preemptible;
    let Some(queue) = facts.queue.filter(|_| bound) else {
        return true;
    };
    let mut queues = session.state().queues().upward(queue);
    queues.all(|queue| {
        session
            .state()
            .queues()
            .get(queue)
            .over_quota(more)
            .is_none()
    })
}

/// Whether the kubelet's Topology Manager would admit the task.
pub(crate) fn aligns(session: &Session<'_>, task: usize, node: usize) -> bool {
    !session.state().node(node).zones.is_strict() || zones_for(session, task, node).is_some()
}

/// Whether no legacy MIG pod keeps partitions from the task.
fn may_take_partitions(session: &Session<'_>, task: usize, node: usize) -> bool {
    let cards = session.facts().cards_on(task, node);
    let node_state = session.state().node(node);
    let takes_partitions = matches!(cards, TaskGpuRequest::Partitions(_));
    !(takes_partitions && node_state.legacy > 0)
}

/// Whether the task may be on the node, whatever else runs there.
pub(crate) fn may_ever_be(session: &Session<'_>, task: usize, node: usize) -> bool {
    let facts = session.facts().task(task).task;
    let cards = session.facts().cards_on(task, node);
    let takes_partitions = matches!(cards, TaskGpuRequest::Partitions(_));
    let is_kind = match session.state().node(node).mig {
        _ if !wants_cards(session.facts(), task) => true,
        None => !takes_partitions,
        Some(MigStrategy::Single) => matches!(cards, TaskGpuRequest::Whole(_)),
        Some(MigStrategy::Mixed) => takes_partitions,
    };
    !session.facts().settings().has_predicates
        || (!facts.is_legacy_mig && is_kind && matches_node(session.facts(), task, node))
}

/// Whether the node may run one more pod. A share that opens a card counts as two, as with KAI's reservation
/// pod.
pub(crate) fn has_pod_slot(session: &Session<'_>, node: usize, request: &ResourceRequest) -> bool {
    let node_state = session.state().node(node);
    let places = node_state.idle.pods + node_state.releasing.pods;
    match request.share {
        None => places > 0,
        // Its pod is there.
        Some(share) if share.only.is_some() => places > 0,
        Some(share) if node_state.cards_that_fit(share).count() >= share.devices => places > 0,
        Some(_) => places > 1,
    }
}

/// What a task that is yet to be placed takes of a node: with the smallest card that its queues can pay for.
pub(crate) fn cheapest_request(session: &Session<'_>, task: usize, node: usize) -> ResourceRequest {
    let mut request = request_on(session.facts(), task, node);
    if let Some(share) = &mut request.share
        && is_of_bytes(share.share, share.limit)
    {
        let smallest = smallest_payable(session, task, node, share);
        share.smallest = smallest.unwrap_or(Bytes::ZERO);
    }
    request
}

/// The smallest cards of a node that can hold a share and that the task's queues can pay for.
fn smallest_payable(
    session: &Session<'_>,
    task: usize,
    node: usize,
    share: &CardShareRequest,
) -> Option<Bytes> {
    let mut sizes = session.state().node(node).sizes.all();
    sizes.find(|&size| share.of(size).is_some() && has_quota(session, task, size))
}
