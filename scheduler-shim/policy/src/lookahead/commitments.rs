//! What becomes of a plan in the steps after it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::actions::allocate;
use crate::card_naming::CardNaming;
use crate::cluster::{Cluster, DeviceGrant, Task, TaskStatus};
use crate::job_state::has_too_few;
use crate::plan_record::{EvictionCommitment, ExcludedJobs};
use crate::session::Session;
use crate::task_placement::placement_of;

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
pub(super) fn broken_commitments(session: &Session<'_>, cluster: &Cluster) -> ExcludedJobs {
    if session.plan().commitments().is_empty() {
        return ExcludedJobs::new();
    }
    let next = carried_out(session, cluster);
    let mut next_session = Session::open(session.facts().now(), &next);
    allocate(&mut next_session);
    let is_moves_only = is_moves_only(session);
    let mut broken = ExcludedJobs::new();
    for commitment in session.plan().commitments() {
        // The same jobs and tasks have the same numbers, because they have the same names.
        let tasks = commitment.tasks.iter().copied();
        let lost: Vec<usize> = tasks
            .filter(|&task| !next_session.state().has_node(task))
            .collect();
        if lost.is_empty() {
            continue;
        }
        let mut lost_tasks = lost.iter().map(|&task| session.facts().task(task));
        let loses_own = lost_tasks.any(|facts| facts.job == commitment.job);
        // Where pods only move, one may give way to a job of higher priority, as it would without the plan.
        let is_kept = !loses_own
            && is_moves_only
            && gives_way(session, &lost, &next_session)
            && !breaks_gang(
                &next_session,
                &Session::open(session.facts().now(), cluster),
            );
        if !is_kept {
            let by = served_instead(session, commitment, &next_session);
            broken.insert(commitment.job, Some(by));
        }
    }
    broken
}

/// The other jobs that get a place in the next step on a node where one was promised.
fn served_instead(
    session: &Session<'_>,
    commitment: &EvictionCommitment,
    next_session: &Session<'_>,
) -> BTreeSet<usize> {
    let nodes = nodes_of(session, commitment);
    let mut jobs = BTreeSet::new();
    for (task, facts) in next_session.facts().tasks().iter().enumerate() {
        let state = next_session.state().task(task);
        let comes = state.status == TaskStatus::Binding && nodes.contains(&state.node);
        if comes && facts.job != commitment.job {
            jobs.insert(facts.job);
        }
    }
    jobs
}

/// Whether every pod that the plan evicts has another place.
pub(super) fn is_moves_only(session: &Session<'_>) -> bool {
    let mut task_states = session.state().before_and_after();
    task_states.all(|(before, after)| {
        !before.status.is_active_allocated() || after.status != TaskStatus::Releasing
    })
}

/// Whether moved pods lose their places only to jobs of higher priority in their queues, so that none of these
/// queues has fewer GPUs in the next step.
fn gives_way(session: &Session<'_>, lost: &[usize], next_session: &Session<'_>) -> bool {
    if !session.facts().settings().by_priority {
        return false;
    }
    let facts = session.facts();
    let job = |task: usize| facts.job(facts.task(task).job);
    let queues: BTreeSet<Option<usize>> = lost.iter().map(|&task| job(task).queue).collect();
    queues.into_iter().all(|queue| {
        let lost = lost.iter().copied();
        let lost: Vec<usize> = lost.filter(|&task| job(task).queue == queue).collect();
        let priority = lost.iter().map(|&task| job(task).job.priority).max();
        let given: f64 = lost
            .iter()
            .map(|&task| session.state().gpus_of(facts, task))
            .sum();
        let mut gained = 0.0;
        for task in 0..facts.tasks().len() {
            let comes = session.state().task(task).status == TaskStatus::Pending
                && next_session.state().task(task).status == TaskStatus::Binding;
            let job = job(task);
            if comes && job.queue == queue && Some(job.job.priority) > priority {
                gained += next_session.state().gpus_of(next_session.facts(), task);
            }
        }
        gained > 0.0 && gained + SLACK >= given
    })
}

/// Whether a gang has too few pods that was whole, or had none, at the start. The pods that are left would only
/// be evicted when the gang's grace period is over.
pub(super) fn breaks_gang(session: &Session<'_>, start: &Session<'_>) -> bool {
    let mut jobs = 0..session.facts().jobs().len();
    jobs.any(|job| has_too_few(session, job) && !has_too_few(start, job))
}

/// The nodes of the promised places.
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
    let changed: BTreeMap<&str, usize> = (0..session.facts().tasks().len())
        .filter(|&task| session.state().initial(task) != session.state().task(task))
        .map(|task| (session.facts().task(task).task.name.as_str(), task))
        .collect();
    let mut names = CardNaming::default();
    let mut next = cluster.clone();
    let mut zone_changes = Vec::new();
    let jobs = next.jobs.iter_mut().filter(|job| {
        job.tasks
            .iter()
            .any(|task| changed.contains_key(task.name.as_str()))
    });
    for task in jobs.flat_map(|job| &mut Arc::make_mut(job).tasks) {
        let Some(&number) = changed.get(task.name.as_str()) else {
            continue;
        };
        let state = session.state().task(number);
        let is_bound = state.status == TaskStatus::Binding;
        let placement = placement_of(session, number, state, &mut names).filter(|_| is_bound);
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
        if let Some(placement) = placement {
            zone_changes.push((Some(placement.node.clone()), placement.zones.clone(), -1));
            (task.node, task.on, task.zones) =
                (Some(placement.node), placement.cards, placement.zones);
        }
    }
    give_claims(session, &mut next);
    nominate(&mut next, &session.nominated_pods());
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

/// Nominates these pods of a cluster, and nobody else.
fn nominate(cluster: &mut Cluster, tasks: &BTreeSet<&str>) {
    for job in &mut cluster.jobs {
        let is_wrong = |task: &Task| task.is_nominated != tasks.contains(task.name.as_str());
        if !job.tasks.iter().any(is_wrong) {
            continue;
        }
        for task in &mut Arc::make_mut(job).tasks {
            task.is_nominated = tasks.contains(task.name.as_str());
        }
    }
}

/// Gives the claims of bound tasks their devices. What nobody has any more counts as free without further ado.
fn give_claims(session: &Session<'_>, next: &mut Cluster) {
    let facts = session.facts();
    if facts.allocator().is_none() {
        return;
    }
    let tasks = 0..facts.tasks().len();
    let bound = tasks
        .map(|task| session.state().task(task))
        .filter(|state| state.status == TaskStatus::Binding);
    let given: BTreeMap<&str, &DeviceGrant> = bound
        .flat_map(|state| &state.devices.0)
        .map(|(claim, grant)| (facts.claim(*claim).claim.name.as_str(), grant))
        .collect();
    for claim in &mut next.claims {
        if let Some(grant) = given.get(claim.name.as_str()) {
            claim.allocation = Some(Arc::clone(grant));
        }
    }
}
