//! What becomes of a plan in the steps after it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::actions::allocate;
use crate::card_naming::CardNaming;
use crate::cluster::{Cluster, Task, TaskStatus};
use crate::job_state::has_too_few;
use crate::plan_record::{BarredJobs, EvictionCommitment};
use crate::session::Session;
use crate::task_placement::place_of;

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
        let lost: Vec<usize> = tasks
            .filter(|&task| !ahead.state().has_place(task))
            .collect();
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
        let gained: f64 = coming
            .map(|task| ahead.state().gpus_of(ahead.facts(), task))
            .sum();
        let given: f64 = lost
            .iter()
            .map(|&task| session.state().gpus_of(session.facts(), task))
            .sum();
        session.facts().settings().by_priority && gained > 0.0 && gained + SLACK >= given
    })
}

/// Whether a gang has too few pods that was whole, or had none, at the start. The pods that are left would only
/// be evicted when the gang's grace period is over.
pub(super) fn breaks_gang(session: &Session<'_>, start: &Session<'_>) -> bool {
    let mut jobs = 0..session.facts().jobs().len();
    jobs.any(|job| has_too_few(session, job) && !has_too_few(start, job))
}

pub(super) fn nodes_of(
    session: &Session<'_>,
    commitment: &EvictionCommitment,
) -> BTreeSet<Option<usize>> {
    let tasks = commitment.tasks.iter();
    tasks.map(|&task| session.state().task(task).node).collect()
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
pub(super) fn carried_out(session: &Session<'_>, cluster: &Cluster) -> Cluster {
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
