//! Whether a bold plan, or one that only moves pods, pays off: what the cluster is like when nothing changes any more.

use std::collections::BTreeSet;

use crate::amounts::{ResourceKind, UNLIMITED};
use crate::cluster::{Cluster, TaskStatus};
use crate::lookahead::cautious::{LookaheadBudget, cautious};
use crate::lookahead::commitments::{
    breaks_gang, carried_out, changes_something, is_moves_only, nodes_of,
};
use crate::plan_record::{EvictionCaution, EvictionCommitment, ExcludedJobs};
use crate::session::Session;

/// How many steps a bold plan may take until nothing changes.
const STEPS_TO_REST: usize = 8;

/// The cluster when nothing changes any more, if the evictions then serve the jobs that made them, or others
/// with a claim, and no gang was left with too few pods on the way. If the plan may only move pods, none may have
/// lost its place, but for those of a job that a later step evicted: a cautious step evicts only for a job that gets
/// its place. Jobs that are `idle` may not evict. `None` also if the budget is spent before.
pub(super) fn pays_off(
    session: &Session<'_>,
    cluster: &Cluster,
    idle: &ExcludedJobs,
    budget: &mut LookaheadBudget,
) -> Option<Cluster> {
    let spares_all = matches!(session.plan().caution(), EvictionCaution::Moving(_));
    if session.plan().commitments().is_empty() || spares_all && !is_moves_only(session) {
        return None;
    }
    let next = carried_out(session, cluster);
    let start = Session::open(session.facts().now(), cluster);
    comes_to_rest(
        session,
        cluster,
        next,
        idle,
        budget,
        |end, evicted_later| {
            let mut commitments = session.plan().commitments().iter();
            commitments.all(|commitment| is_served(session, commitment, &start, end))
                && (!spares_all || has_nodes_of(end, &start, evicted_later))
        },
    )
}

/// Follows a plan by cautious steps until nothing changes any more. The cluster then, if it is good. `None` if a gang
/// was left with too few pods on the way, or if the budget is spent before.
///
/// `is_good` gets the last step, and the jobs that later steps evicted.
pub(super) fn comes_to_rest(
    session: &Session<'_>,
    cluster: &Cluster,
    next: Cluster,
    idle: &ExcludedJobs,
    budget: &mut LookaheadBudget,
    is_good: impl FnOnce(&Session<'_>, &BTreeSet<usize>) -> bool,
) -> Option<Cluster> {
    let now = session.facts().now();
    let start = Session::open(now, cluster);
    let mut evicted_later = BTreeSet::new();
    let mut at = next;
    for _ in 0..STEPS_TO_REST {
        if budget.is_spent() {
            return None;
        }
        let next_session = cautious(now, &at, idle, budget, &mut |_, _| ());
        if breaks_gang(&next_session, &start) {
            return None;
        }
        if !changes_something(&next_session) {
            let is_good = is_good(&next_session, &evicted_later);
            drop(next_session);
            return is_good.then_some(at);
        }
        evicted_later.extend(evicted_jobs(&next_session));
        at = carried_out(&next_session, &at);
    }
    None
}

/// The jobs of which a step evicts pods.
fn evicted_jobs(step: &Session<'_>) -> BTreeSet<usize> {
    let tasks = 0..step.facts().tasks().len();
    let evicted = tasks.filter(|&task| {
        let (before, after) = (step.state().initial(task), step.state().task(task));
        before.status.is_active_allocated() && after.status == TaskStatus::Releasing
    });
    evicted.map(|task| step.facts().task(task).job).collect()
}

/// Whether every pod that had a place at the start has one at the end, but for pods of jobs that were evicted later.
fn has_nodes_of(end: &Session<'_>, start: &Session<'_>, evicted_later: &BTreeSet<usize>) -> bool {
    let mut tasks = 0..end.facts().tasks().len();
    tasks.all(|task| {
        !start.state().has_node(task)
            || end.state().has_node(task)
            || evicted_later.contains(&end.facts().task(task).job)
    })
}

/// Whether the job, or another with a claim, has at the end the room that is made for it now.
fn is_served(
    session: &Session<'_>,
    commitment: &EvictionCommitment,
    start: &Session<'_>,
    end: &Session<'_>,
) -> bool {
    let nodes: BTreeSet<Option<usize>> = nodes_of(session, commitment);
    let mut tasks = 0..session.facts().tasks().len();
    tasks.any(|task| {
        let came = session.state().initial(task).status == TaskStatus::Pending
            && end.state().has_node(task);
        let job = session.facts().task(task).job;
        came && (commitment.tasks.contains(&task)
            || nodes.contains(&end.state().task(task).node)
                && has_claim(start, job, commitment.job))
    })
}

/// Whether a job that gets the room made for `other` also had a right to it: its queues hold less than they
/// may, or it is in the same queue and not of lower priority.
fn has_claim(session: &Session<'_>, job: usize, other: usize) -> bool {
    let (job, other) = (session.facts().job(job), session.facts().job(other));
    let is_below_share = job.queue.is_some_and(|queue| {
        session.state().queues().upward(queue).all(|queue| {
            let queue = session.state().queues().get(queue);
            let gpu = queue.of(ResourceKind::Gpu);
            gpu.allocatable() == UNLIMITED || gpu.allocated < gpu.allocatable()
        })
    });
    is_below_share || (job.queue == other.queue && job.job.priority >= other.job.priority)
}
