//! What becomes of a plan in the steps after it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::actions::allocate;
use crate::amounts::{ResourceKind, UNLIMITED};
use crate::card_naming::CardNaming;
use crate::cluster::{Cluster, Task, TaskStatus};
use crate::lookahead::cautious::{LookaheadBudget, cautious};
use crate::plan_record::{BarredJobs, EvictionCommitment};
use crate::scenario::gpus_of;
use crate::session::Session;
use crate::solve::has_too_few;
use crate::task_placement::place_of;

/// How many steps a bold plan may take until nothing changes.
const STEPS_TO_REST: usize = 8;

/// Slack for sums of shares.
const SLACK: f64 = 1e-6;

/// The jobs that others are evicted for.
pub(super) fn committed(session: &Session<'_>) -> BTreeSet<usize> {
    session
        .plan()
        .commitments()
        .iter()
        .map(|commitment| commitment.job)
        .collect()
}

/// The jobs that would not get their promised places in the next step, and the jobs that would get them
/// instead.
pub(super) fn broken_commitments(session: &Session<'_>, cluster: &Cluster) -> BarredJobs {
    if session.plan().commitments().is_empty() {
        return BarredJobs::new();
    }
    let next = carried_out(session, cluster);
    let mut ahead = Session::open(session.facts().now(), &next);
    allocate(&mut ahead);
    // The same jobs and tasks have the same numbers, because they have the same names.
    let only_moves = only_moves(session);
    let is_broken = |commitment: &&EvictionCommitment| {
        let tasks = commitment.tasks.iter().copied();
        let lost: Vec<usize> = tasks.filter(|&task| !has_place(&ahead, task)).collect();
        let is_own = |task: &usize| session.facts().task(*task).job == commitment.job;
        let gives_way = || {
            only_moves
                && gives_way(session, &lost, &ahead)
                && !breaks_gang(&ahead, &Session::open(session.facts().now(), cluster))
        };
        !lost.is_empty() && (lost.iter().any(is_own) || !gives_way())
    };
    let broken = session.plan().commitments().iter().filter(is_broken);
    broken
        .map(|commitment| {
            let nodes = nodes_of(session, commitment);
            let by = (0..ahead.facts().tasks().len()).filter(|&task| {
                let state = ahead.state().task(task);
                state.status == TaskStatus::Binding && nodes.contains(&state.node)
            });
            let by = by.map(|task| ahead.facts().task(task).job);
            let others = by.filter(|&job| job != commitment.job);
            (commitment.job, Some(others.collect()))
        })
        .collect()
}

/// Whether every pod that the plan evicts has another place.
fn only_moves(session: &Session<'_>) -> bool {
    let mut task_states = session.state().before_and_after();
    task_states.all(|(before, after)| {
        !before.status.is_active_allocated() || after.status != TaskStatus::Releasing
    })
}

/// Whether moved pods lose their places only to jobs of higher priority in their queues, so that none of these
/// queues has fewer GPUs in the next step.
fn gives_way(session: &Session<'_>, lost: &[usize], ahead: &Session<'_>) -> bool {
    let job = |task: usize| session.facts().job(session.facts().task(task).job);
    let comes = |task: usize| {
        let was = session.state().task(task).status;
        was == TaskStatus::Pending && ahead.state().task(task).status == TaskStatus::Binding
    };
    let queues: BTreeSet<Option<usize>> = lost.iter().map(|&task| job(task).queue).collect();
    queues.into_iter().all(|queue| {
        let of_queue = |task: &usize| job(*task).queue == queue;
        let lost: Vec<usize> = lost.iter().copied().filter(of_queue).collect();
        let priority = lost.iter().map(|&task| job(task).job.priority).max();
        let coming = (0..session.facts().tasks().len()).filter(of_queue);
        let coming = coming.filter(|&task| comes(task) && Some(job(task).job.priority) > priority);
        let gained: f64 = coming.map(|task| gpus_of(ahead, task)).sum();
        let given: f64 = lost.iter().map(|&task| gpus_of(session, task)).sum();
        session.facts().settings().by_priority && gained > 0.0 && gained + SLACK >= given
    })
}

/// The cluster when nothing changes any more, if the evictions then serve the jobs that made them, or others
/// with a claim, and no gang was left with too few pods on the way. Jobs that are `idle` may not evict. `None`
/// also if the budget is spent before.
pub(super) fn pays_off(
    session: &Session<'_>,
    cluster: &Cluster,
    idle: &BarredJobs,
    budget: &mut LookaheadBudget,
) -> Option<Cluster> {
    if session.plan().commitments().is_empty() {
        return None;
    }
    let start = Session::open(session.facts().now(), cluster);
    let mut at = carried_out(session, cluster);
    for _ in 0..STEPS_TO_REST {
        if budget.is_spent() {
            return None;
        }
        let ahead = cautious(session.facts().now(), &at, idle, budget, &mut |_, _| ());
        if breaks_gang(&ahead, &start) {
            return None;
        }
        if !changes_something(&ahead) {
            let mut commitments = session.plan().commitments().iter();
            let pays_off =
                commitments.all(|commitment| is_served(session, commitment, &start, &ahead));
            drop(ahead);
            return pays_off.then_some(at);
        }
        at = carried_out(&ahead, &at);
    }
    None
}

/// Whether a gang has too few pods that was whole, or had none, at the start. The pods that are left would only
/// be evicted when the gang's grace period is over.
fn breaks_gang(session: &Session<'_>, start: &Session<'_>) -> bool {
    let mut jobs = 0..session.facts().jobs().len();
    jobs.any(|job| has_too_few(session, job) && !has_too_few(start, job))
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
        let came =
            session.state().initial(task).status == TaskStatus::Pending && has_place(end, task);
        let job = session.facts().task(task).job;
        let takes_room = || nodes.contains(&end.state().task(task).node);
        came && (commitment.tasks.contains(&task)
            || takes_room() && has_claim(start, job, commitment.job))
    })
}

fn nodes_of(session: &Session<'_>, commitment: &EvictionCommitment) -> BTreeSet<Option<usize>> {
    let tasks = commitment.tasks.iter();
    tasks.map(|&task| session.state().task(task).node).collect()
}

/// Whether a task runs, or has a place that becomes free without an eviction.
fn has_place(session: &Session<'_>, task: usize) -> bool {
    session.state().task(task).status.is_active_allocated()
}

/// Whether a job that gets the room made for `other` also had a right to it: its queues hold less than they
/// may, or it is in the same queue and not of lower priority.
fn has_claim(session: &Session<'_>, job: usize, other: usize) -> bool {
    let (job, other) = (session.facts().job(job), session.facts().job(other));
    let holds_less = |queue: usize| {
        let queue = session.state().queues().get(queue);
        let gpu = queue.of(ResourceKind::Gpu);
        gpu.allocatable() == UNLIMITED || gpu.allocated < gpu.allocatable()
    };
    let is_below_share = job
        .queue
        .is_some_and(|queue| session.state().queues().upward(queue).all(holds_less));
    is_below_share || (job.queue == other.queue && job.job.priority >= other.job.priority)
}

/// Whether anything starts or ends; places that are only reserved change nothing.
pub(super) fn changes_something(session: &Session<'_>) -> bool {
    let mut task_states = session.state().before_and_after();
    task_states.any(|(before, after)| {
        let starts = after.status == TaskStatus::Binding && before.status != TaskStatus::Binding;
        let ends = before.status.is_allocated() && !after.status.is_allocated();
        starts || ends
    })
}

/// The cluster after the plan: what is bound runs, what is evicted waits.
fn carried_out(session: &Session<'_>, cluster: &Cluster) -> Cluster {
    let changed = (0..session.facts().tasks().len())
        .filter(|&task| session.state().initial(task) != session.state().task(task))
        .map(|task| (session.facts().task(task).task.name.as_str(), task));
    let changed: BTreeMap<&str, usize> = changed.collect();
    let mut names = CardNaming::default();
    let mut next = cluster.clone();
    let mut zone_changes = Vec::new();
    let is_changed = |task: &Task| changed.contains_key(task.name.as_str());
    let jobs = next.jobs.iter_mut();
    let jobs = jobs.filter(|job| job.tasks.iter().any(is_changed));
    for task in jobs.flat_map(|job| &mut Arc::make_mut(job).tasks) {
        let Some(&number) = changed.get(task.name.as_str()) else {
            continue;
        };
        let state = session.state().task(number);
        let is_bound = state.status == TaskStatus::Binding;
        let place = place_of(session, number, state, &mut names);
        let place = place.filter(|_| is_bound);
        task.status = if is_bound {
            TaskStatus::Running
        } else {
            TaskStatus::Pending
        };
        let node = task.node.take();
        let freed = std::mem::take(&mut task.zones);
        // What a terminating pod holds counts as free already.
        if session.state().initial(number).status.is_allocated() {
            zone_changes.push((node, freed, 1));
        }
        task.on.clear();
        if let Some(place) = place {
            zone_changes.push((Some(place.node.clone()), place.zones.clone(), -1));
            (task.node, task.on, task.zones) = (Some(place.node), place.cards, place.zones);
        }
    }
    // Most clusters have no zones, so there is nothing to look up.
    zone_changes.retain(|(_, zones, _)| !zones.is_empty());
    for (node, zones, count) in zone_changes {
        let node = next
            .nodes
            .iter_mut()
            .find(|known| Some(&known.name) == node.as_ref());
        node.into_iter()
            .for_each(|node| node.add_to_zones(&zones, count));
    }
    next
}
