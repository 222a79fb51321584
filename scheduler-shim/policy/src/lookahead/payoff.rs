//! Whether a plan that is not cautious pays off: what the cluster is like when nothing changes any more.

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

/// The cluster when nothing changes any more, if the plan then serves whom it is for and no gang was left with too few
/// pods on the way. Jobs that are `idle` may not evict. `None` also if the budget is spent before.
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
    let start = Session::open(session.facts().now(), cluster);
    let mut evicted_later = BTreeSet::new();
    let mut at = carried_out(session, cluster);
    for _ in 0..STEPS_TO_REST {
        if budget.is_spent() {
            return None;
        }
        let next_session = cautious(session.facts().now(), &at, idle, budget, &mut |_, _| ());
        if breaks_gang(&next_session, &start) {
            return None;
        }
        if !changes_something(&next_session) {
            let pays_off = serves(session, &start, &next_session, &evicted_later);
            drop(next_session);
            return pays_off.then_some(at);
        }
        evicted_later.extend(evicted_jobs(&next_session));
        at = carried_out(&next_session, &at);
    }
    None
}

/// Whether a plan serves at the end whom it is for: the jobs that evict, or others with a claim. A plan that nominates
/// must give every pod the place that it promised. If a plan may only move pods, none may have lost its place, but for
/// those of a job that a later step evicted: a cautious step evicts only for a job that gets its place.
fn serves(
    session: &Session<'_>,
    start: &Session<'_>,
    end: &Session<'_>,
    evicted_later: &BTreeSet<usize>,
) -> bool {
    let mut commitments = session.plan().commitments().iter();
    match session.plan().caution() {
        EvictionCaution::Nominating(_) => {
            let mut tasks = commitments.flat_map(|commitment| &commitment.tasks);
            tasks.all(|&task| end.state().has_node(task))
        }
        caution => {
            commitments.all(|commitment| is_served(session, commitment, start, end))
                && (!matches!(caution, EvictionCaution::Moving(_))
                    || has_nodes_of(end, start, evicted_later))
        }
    }
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
